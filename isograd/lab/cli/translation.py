"""`isograd translate MODEL < in.txt > out.txt`, and `isograd evaluate` of a translator: what translations score."""

import json
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from rich.console import Console
from rich.markup import escape

from isograd.cli import wait_for_input
from isograd.cli.console import Result, loading, must_be_writable, output, print_table, progress, warn
from isograd.cli.parser import Count, File, Number
from isograd.errors import UserError, needed, refusing
from isograd.hub import must_be_a_model

if TYPE_CHECKING:
    from isograd.lab.evaluate.scores import Scores
    from isograd.lab.evaluate.translation import Evaluation, TranslatedLine, Translator

Precision = Literal["fp32", "bf16"]
Tokens = Annotated[Count, "TOKENS"]
_CHUNK = 1 << 16  # bytes
_GRACE = 0.02  # seconds; whoever writes line by line is answered line by line, and a fast writer fills a window
_NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "legacy_bleu": "legacy BLEU"}


def translate(
    model: str,
    *,
    beam: Count | None = None,
    length_penalty: Number | None = None,
    batch: Tokens = 8192,
    precision: Precision = "fp32",
    threads: Count | None = None,
    pairs: bool = False,
    tag: Annotated[str, "TEXT"] | None = None,
) -> int:
    """Translate lines of stdin with a trained model, a line out for every line in.

    examples:
      isograd translate runs/number-words < numbers.de > numbers.en
      echo siebenundzwanzig | isograd translate runs/number-words
      isograd translate runs/multi30k --beam 1 --precision bf16 < test.de > test.en
      isograd translate runs/en-de --pairs --tag "<BT>" < more.en > back.jsonl

    A model of Moses-tokenized text reads and writes such text. A line that cannot be translated leaves an empty line,
    is named on stderr, and makes the exit code 1.

    Back-translation: --pairs writes training pairs for a model of the other direction, as pairs.train reads them: the
    translation, after the tag, is the source, the line is the target.

    Args:
        model: the folder of a run or of its model, or a model's name on the hub
        beam: hypotheses that are kept at each step (default: as the model was trained, or 5)
        length_penalty: P; a hypothesis of n tokens scores log p / n^P (default: as the model was trained, or 1)
        batch: lines x beam x longest line, default 8192
        precision: of weights and activations, default fp32
        threads: threads of the CPU (default: torch's)
        pairs: write JSON lines with source and target under their language codes
        tag: with --pairs: a word before each translation, such as <BT>
    """
    if tag is not None and not pairs:
        raise UserError("--tag needs --pairs")
    search = _search(beam, length_penalty, batch)
    translator = _load(model, precision, threads, search)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", newline="\n")  # as the lines that come in, whatever the locale
    source, console = sys.stdin.buffer, progress()
    if source.isatty():
        console.print("reading lines from the terminal; Ctrl-D ends")
    from isograd.lab.evaluate.translation import WINDOW

    lines: dict[int, bytes] = {}
    there = windows(source, WINDOW)
    found = translator.translate_windows(_kept(there, lines) if pairs else there, **search)
    if pairs:
        form = partial(_pair, lines=lines, languages=translator.tokenizer.languages, tag=f"{tag} " if tag else "")
        return _written(found, form, console, without="left out of")
    return _written(found, lambda translation: translation.text, console)


def _search(beam: int | None, length_penalty: float | None, tokens: int) -> dict[str, Any]:
    """What was given, as `SearchOptions` names it."""
    named = {"beam": beam, "length_penalty": length_penalty, "tokens": tokens}
    return {name: value for name, value in named.items() if value is not None}


def _load(model: str, precision: Precision, threads: int | None, search: dict[str, Any]) -> "Translator":
    must_be_a_model(model, owned=True)
    with loading("loading the model", threads), refusing(ValueError):  # an option, or what is in the model's folder
        from isograd.lab.evaluate.translation import Translator

        translator = Translator.load(model, precision=precision)
        translator.options(**search)
        return translator


def windows(stream: Any, most: int) -> Iterator[list[bytes]]:
    """Lines as they come: those that are there, at least one, at most so many.

    Of a file the windows are always the same, since all of it is there.
    """
    rest, lines = b"", list[bytes]()
    while chunk := _read(stream):
        *whole, rest = (rest + chunk).split(b"\n")
        lines += whole
        while len(lines) >= most:
            window, lines = lines[:most], lines[most:]
            yield window
        if lines and not _more(stream):
            yield lines
            lines = []
    if rest:
        lines.append(rest)
    if lines:
        yield lines


def _read(stream: BufferedReader) -> bytes:
    """What has come, at least a byte; nothing at the end."""
    wait_for_input(stream)
    return stream.read1(_CHUNK)


def _more(stream: BufferedReader) -> bool:
    """Whether the next read has something to give, be it the end, within the grace."""
    try:
        return bool(select.select([stream], [], [], _GRACE)[0])
    except (OSError, ValueError):  # no file of the system's; on Windows, no socket
        return not stream.isatty()


def _kept(found: Iterable[list[bytes]], lines: dict[int, bytes]) -> Iterator[list[bytes]]:
    """The windows, whose lines stay in `lines` by their number until they are taken out."""
    last = 0
    for window in found:
        lines.update(enumerate(window, start=last + 1))
        last += len(window)
        yield window


Form = Callable[["TranslatedLine"], str | None]  # what is printed; None: nothing


def _written(found: Iterable["TranslatedLine"], form: Form, console: Console, without: str = "empty in") -> int:
    """Print each line as soon as it is found; the exit code."""
    began, lines, failed = time.perf_counter(), 0, 0
    out = sys.stdout  # rich would send it to where the status is shown
    shown = console.is_terminal and not out.isatty()  # in one terminal the two would mix
    try:
        with console.status("") if shown else nullcontext() as status:
            for translation in found:
                lines += 1
                if (line := form(translation)) is not None:
                    print(line, file=out, flush=True)
                if translation.failure:
                    failed += 1
                    warn("translate", f"line {translation.line}: {translation.failure}")
                if status:
                    status.update(f"{lines:,} lines, {lines / (time.perf_counter() - began):.1f} lines/s")
    except KeyboardInterrupt:
        print(f"interrupted after line {lines}", file=sys.stderr)
        return 130
    if failed:
        warn("translate", f"{failed:,} of {lines:,} lines could not be translated; they are {without} the output")
    return 1 if failed else 0


def _pair(translation: "TranslatedLine", lines: dict[int, bytes], languages: tuple[str, str], tag: str) -> str | None:
    """A pair for the other direction: what the model wrote is its source, what it read is its target."""
    line = lines.pop(translation.line)
    if not translation.text.strip():
        return None
    read, wrote = languages
    text = line.decode("utf-8-sig").rstrip("\r\n")
    return json.dumps({wrote: f"{tag}{translation.text}", read: text}, ensure_ascii=False)


class Scored(TypedDict):
    """Scores from 0 to 100 (a lower `ter` is better), how the model searched, how fast, what failed."""

    bleu: float
    chrf: float
    ter: float
    legacy_bleu: float
    exact_match: float
    lines: int
    signatures: dict[str, str]
    text: dict[str, str]
    references: str
    provenance: dict[str, Any]
    model: str
    sources: str
    beam: int
    length_penalty: float
    early_stopping: bool | str
    stretch: float
    extra: int
    tokens: int
    precision: str
    seconds: float
    lines_per_second: float
    tokens_per_second: float
    failures: list[dict[str, Any]]


def evaluate(
    model: str,
    *,
    src: File | None = None,
    ref: File | None = None,
    pairs: Annotated[str, "SOURCE"] | None = None,
    beam: Count | None = None,
    length_penalty: Number | None = None,
    batch: Tokens = 8192,
    precision: Precision = "fp32",
    threads: Count | None = None,
    out: File | None = None,
) -> Annotated[Result, Scored]:
    """Score a model's translations: BLEU, chrF, TER and exact match.

    examples:
      isograd evaluate runs/number-words --pairs numbers:test
      isograd evaluate runs/multi30k --src test.de.gz --ref test.en.gz --out test.hyp

    BLEU, chrF and TER (lower is better) are sacrebleu's, of detokenized text. Legacy BLEU is of Moses's tokens, as
    papers reported it; it is comparable with theirs alone.

    Args:
        model: the folder of a run or of its model, or a model's name on the hub
        src: lines to translate, plain, .gz or .xz
        ref: their references
        pairs: both at once: numbers:test, a prefix, JSON lines, or a data set's name
        beam: hypotheses that are kept at each step (default: as the model was trained, or 5)
        length_penalty: P; a hypothesis of n tokens scores log p / n^P (default: as the model was trained, or 1)
        batch: lines x beam x longest line, default 8192
        precision: of weights and activations, default fp32
        threads: threads of the CPU (default: torch's)
        out: where the translations are written
    """
    if (bool(src), bool(ref), bool(pairs)) not in ((True, True, False), (False, False, True)):
        raise UserError("give --src FILE and --ref FILE, or --pairs SOURCE")
    must_be_writable(out)
    must_be_a_model(model, owned=True)
    needed("mt", "sacrebleu", "sacremoses")  # what is missing is said before anything is loaded
    search = _search(beam, length_penalty, batch)
    translator = _load(model, precision, threads, search)
    sources, references, names = _pairs(src, ref, pairs, translator)
    done = _translated(translator, sources, references, search)
    if out:
        lines = "".join(f"{translation.text}\n" for translation in done.translations)
        out.write_text(lines, encoding="utf-8", newline="\n")
    from isograd.lab.train.provenance import provenance

    facts = {
        "model": model,
        **names,
        **asdict(translator.options(**search)),
        "precision": precision,
        **{name: getattr(done, name) for name in ("seconds", "lines_per_second", "tokens_per_second")},
        "failures": [{"line": failed.line, "failure": failed.failure} for failed in done.failures],
        "provenance": provenance() | {name: version(name) for name in ("isograd", "sacrebleu", "sacremoses")},
    }
    empty = [f"line {one.line}: {one.failure}; it is scored as an empty translation" for one in done.failures]
    return Result(done.scores.as_dict() | facts, partial(_print, done.scores, facts), empty, code=1 if empty else 0)


def _translates(name: str) -> bool:
    """Whether a folder on this disk holds an encoder-decoder, or a run of one."""
    from isograd.files import read_object

    configs = [path for path in (Path(name, "config.json"), Path(name, "model", "config.json")) if path.is_file()]
    return any(read_object(path).get("is_encoder_decoder") for path in configs)


TAKES = {"evaluate": _translates}


def _translated(
    translator: "Translator", sources: list[str], references: list[str], search: dict[str, Any]
) -> "Evaluation":
    from isograd.lab.evaluate.translation import evaluate as evaluate_pairs

    with progress().status("") as status:

        def shown(lines: int) -> None:
            status.update(f"{lines:,} of {len(sources):,} lines")

        return evaluate_pairs(translator, sources, references, progress=shown, **search)


def _pairs(
    src: Path | None, ref: Path | None, pairs: str | None, translator: "Translator"
) -> tuple[list[str], list[str], dict[str, str]]:
    from isograd.lab.data.pairs import find_pairs

    if src and ref:
        return *_both(src, ref), {"sources": str(src), "references": str(ref)}
    found = find_pairs(str(pairs), *translator.tokenizer.languages, role="valid").read()
    return found.source, found.target, {"sources": found.where[0], "references": found.where[1]}


def _both(first: Path, second: Path) -> tuple[list[str], list[str]]:
    ours, theirs = _lines(first), _lines(second)
    if len(ours) != len(theirs):
        raise UserError(f"{first} has {len(ours):,} lines and {second} has {len(theirs):,}; they are scored in pairs")
    return ours, theirs


def _lines(path: Path) -> list[str]:
    """Divided at line feeds alone: other separators that Python knows stand in sentences."""
    from isograd.text import file_text, must_be_a_file

    must_be_a_file(path)
    return file_text(path).removesuffix("\n").split("\n")


def _print(scores: "Scores", facts: dict[str, Any]) -> None:
    rows = [
        [shown, f"{getattr(scores, name):.2f}", f"[dim]{escape(scores.signatures[name])}[/dim]"]
        for name, shown in _NAMES.items()
    ]
    print_table(
        ["", "", ""], [*rows, ["exact match", f"{scores.exact_match:.2f}", "[dim]% of the lines[/dim]"]], left=3
    )
    text = scores.text
    output().print(f"[dim]text of BLEU, chrF and TER: {text['bleu']}; of legacy BLEU: {text['legacy_bleu']}[/dim]")
    counts = f"{scores.lines:,} lines in {facts['seconds']:.1f} s: {facts['lines_per_second']:.1f} lines/s"
    counts += f", {facts['tokens_per_second']:.0f} tokens/s"
    counts += f"; beam {facts['beam']}, length penalty {facts['length_penalty']:g}"
    output().print(counts)
