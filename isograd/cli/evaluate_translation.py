"""`isograd evaluate translation`: what a model's translations score, or those of a file."""

import argparse
import json
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isograd import __version__
from isograd.cli.console import output
from isograd.cli.searching import configure_search, load, search_options
from isograd.errors import UserError, one_line

if TYPE_CHECKING:
    from isograd.evaluate.scores import Scores
    from isograd.evaluate.translation import Evaluation, Translator

_EPILOG = """\
examples:
  isograd evaluate translation runs/number-words --pairs numbers:test
  isograd evaluate translation runs/multi30k --src test.de.gz --ref test.en.gz --out test.hyp
  isograd evaluate translation --hyp test.hyp --ref test.en.gz --tokenized

BLEU and chrF are sacrebleu's, of detokenised text. Legacy BLEU is of Moses's tokens, as papers reported it; it is
comparable with theirs alone."""

_NAMES = {"bleu": "BLEU", "chrf": "chrF", "legacy_bleu": "legacy BLEU"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("model", nargs="?", help="the folder of a run or of its model, or a model's name on the hub")
    add("--src", type=Path, metavar="FILE", help="lines to translate, plain, .gz or .xz")
    add("--ref", type=Path, metavar="FILE", help="their references")
    add("--pairs", metavar="SOURCE", help="both at once: numbers:test, a prefix, JSON lines, or a data set's name")
    configure_search(parser)
    add("--out", type=Path, metavar="FILE", help="where the translations are written")
    add("--hyp", type=Path, metavar="FILE", help="score these lines, with no MODEL")
    add("--tokenized", action="store_true", help="with --hyp: both files are tokenised as Moses does")
    add("--language", metavar="CODE", help="with --hyp: of both files, default en")
    add("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    _check(options)
    try:
        import isograd.evaluate.scores  # noqa: F401  (what is missing is said before anything is loaded)
        from isograd.errors import DataError
    except ImportError as error:
        raise UserError(one_line(error)) from error
    try:
        return _file(options) if options.hyp else _model(options)
    except DataError as error:
        raise UserError(one_line(error)) from error


def _check(options: argparse.Namespace) -> None:
    """Options that contradict each other."""
    given = {
        name for name in ("model", "src", "ref", "pairs", "out", "tokenized", "language") if getattr(options, name)
    }
    if options.hyp:
        _refuse(given - {"ref", "tokenized", "language"}, "--hyp scores a file as it is")
        if not options.ref:
            raise UserError("--hyp FILE needs --ref FILE")
        return
    if not options.model:
        raise UserError("name a MODEL, or --hyp FILE with translations that exist")
    _refuse(given & {"tokenized", "language"}, "the model's folder says it")
    if given & {"src", "ref", "pairs"} not in ({"src", "ref"}, {"pairs"}):
        raise UserError("give --src FILE and --ref FILE, or --pairs SOURCE")
    if options.out and (options.out.is_dir() or not options.out.parent.is_dir()):
        raise UserError(f"--out {options.out}: not a file in a folder that exists")


def _refuse(names: set[str], why: str) -> None:
    for name in sorted(names):
        raise UserError(f"{'MODEL' if name == 'model' else f'--{name}'} cannot be given here: {why}")


def _file(options: argparse.Namespace) -> int:
    from isograd.evaluate.scores import score

    hypotheses, references = _both(options.hyp, options.ref)
    scores = score(hypotheses, references, tokenized=options.tokenized, language=options.language or "en")
    facts = {"hypotheses": str(options.hyp), "references": str(options.ref), "provenance": _libraries()}
    _tell(scores, facts, options.json)
    return 0


def _model(options: argparse.Namespace) -> int:
    from isograd.evaluate.translation import evaluate
    from isograd.train.provenance import provenance

    console = Console(stderr=True)
    translator = load(options, console)
    sources, references, names = _pairs(options, translator)
    with console.status("") as status:
        done = evaluate(
            translator,
            sources,
            references,
            progress=lambda lines: status.update(f"{lines:,} of {len(sources):,} lines"),
            **search_options(options),
        )
    if options.out:
        lines = "".join(f"{translation.text}\n" for translation in done.translations)
        options.out.write_text(lines, encoding="utf-8", newline="\n")
    facts = {
        "model": options.model,
        **names,
        **asdict(translator.options(**search_options(options))),
        "precision": options.precision,
        **_speed(done),
        "failures": [{"line": failed.line, "failure": failed.failure} for failed in done.failures],
        "provenance": provenance() | _libraries(),
    }
    _tell(done.scores, facts, options.json)
    for failed in done.failures:
        said = f"isograd evaluate: line {failed.line}: {failed.failure}; it is scored as an empty translation"
        print(said, file=sys.stderr)
    return 1 if done.failures else 0


def _pairs(options: argparse.Namespace, translator: "Translator") -> tuple[list[str], list[str], dict[str, str]]:
    from isograd.data.pairs import find_pairs

    if options.pairs:
        pairs = find_pairs(options.pairs, *translator.tokenizer.languages, role="valid").read()
        return pairs.source, pairs.target, {"sources": pairs.where[0], "references": pairs.where[1]}
    return *_both(options.src, options.ref), {"sources": str(options.src), "references": str(options.ref)}


def _both(first: Path, second: Path) -> tuple[list[str], list[str]]:
    ours, theirs = _lines(first), _lines(second)
    if len(ours) != len(theirs):
        raise UserError(f"{first} has {len(ours):,} lines and {second} has {len(theirs):,}; they are scored in pairs")
    return ours, theirs


def _lines(path: Path) -> list[str]:
    """Divided at line feeds alone: other separators that Python knows stand in sentences."""
    from isograd.data.text import file_text, must_be_a_file

    must_be_a_file(path)
    return file_text(path).removesuffix("\n").split("\n")


def _speed(done: "Evaluation") -> dict[str, float]:
    return {
        "seconds": done.seconds,
        "lines_per_second": done.lines_per_second,
        "tokens_per_second": done.tokens_per_second,
    }


def _libraries() -> dict[str, str]:
    return {"isograd": __version__} | {name: version(name) for name in ("sacrebleu", "sacremoses")}


def _tell(scores: "Scores", facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(scores.as_dict() | facts, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, justify in (("name", "left"), ("score", "right"), ("signature", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for name, shown in _NAMES.items():
        table.add_row(shown, f"{getattr(scores, name):.2f}", f"[dim]{escape(scores.signatures[name])}[/dim]")
    table.add_row("exact match", f"{scores.exact_match:.2f}", "[dim]% of the lines[/dim]")
    console = output()
    console.print(table)
    text = scores.text
    console.print(f"[dim]text of BLEU and chrF: {text['bleu']}; of legacy BLEU: {text['legacy_bleu']}[/dim]")
    counts = f"{scores.lines:,} lines"
    if "seconds" in facts:
        counts += f" in {facts['seconds']:.1f} s: {facts['lines_per_second']:.1f} lines/s"
        counts += f", {facts['tokens_per_second']:.0f} tokens/s"
        counts += f"; beam {facts['beam']}, length penalty {facts['length_penalty']:g}"
    console.print(counts)
