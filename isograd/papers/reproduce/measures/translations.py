"""Translations of the held-out lines, what they score, and what a change of model or data does to them."""

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from isograd.files import write_json, write_text
from isograd.papers.reproduce.context import Context, Trained
from isograd.papers.reproduce.item import Row, Rows

if TYPE_CHECKING:
    from isograd.lab.train.run import Run

LINES = 500  # of the held-out ones, the first
FREQUENT = 30  # words or sentences that a bucket needs


def scores(context: Context) -> Rows:
    """A row per run: BLEU, chrF and TER by sacrebleu, of the first held-out lines."""
    rows: list[Row] = []
    for one in context.trained:
        ours, theirs = translated(context, one)
        rows.append(one.row(**_scores(ours, theirs, *_kind(one.run))))
    return rows


def differences(context: Context) -> Rows:
    """The rows of `scores`, and one per two arms and seed: how far apart, and p of the paired bootstrap over lines."""
    rows = [*scores(context)]
    for seed in dict.fromkeys(one.seed for one in context.trained):
        same = [{"seed": seed, "first": one.arm, "second": one.arm} for one in context.of(seed=seed)]
        rows += [{**row, "bleu difference": 0.0, "bleu p": 1.0} for row in same]  # first: both axes in one order
        for one in context.once(f"paired bootstrap, seed {seed}", partial(_bootstrap, context, seed)):
            turned = {name: -value if name.endswith("difference") else value for name, value in one.items()}
            turned |= {"first": one["second"], "second": one["first"]}
            rows += [{"seed": seed, **one}, {"seed": seed, **turned}]
    return rows


def meteors(context: Context) -> Rows:
    """The rows of `scores`, with METEOR in its first two stages, exact words and stems: the mean over the lines."""
    rows = zip(scores(context), context.trained, strict=True)
    return [{**row, "meteor": _meteor(*translated(context, one))} for row, one in rows]


def _meteor(ours: list[str], theirs: list[str]) -> float:
    try:
        from nltk.translate.meteor_score import single_meteor_score
    except ImportError as missing:
        raise ImportError("METEOR needs nltk; pip install 'isograd[eval]'", name="nltk") from missing
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    class NoSynonyms:
        """In the place of WordNet, METEOR's third stage."""

        def synsets(self, word: str) -> list[str]:
            return []

    lines = [[Tokenizer13a()(line).split() for line in pair] for pair in zip(theirs, ours, strict=True)]
    return 100 * fmean(single_meteor_score(*pair, wordnet=NoSynonyms()) for pair in lines)


def _bootstrap(context: Context, seed: int) -> list[Row]:
    from isograd.lab.evaluate.scores import paired_bootstrap

    of = {one.arm: translated(context, one) for one in context.of(seed=seed)}
    tokenized, language = _kind(context.trained[0].run)
    systems = {arm: lines for arm, (lines, _) in of.items()}
    found = paired_bootstrap(systems, next(iter(of.values()))[1], tokenized=tokenized, language=language)
    first = [{"first": one.first, "second": one.second} for one in found]
    named = [{f"{one.measure} difference": one.score, f"{one.measure} p": one.p} for one in found]
    together: dict[tuple[str, str], Row] = {}
    for who, what in zip(first, named, strict=True):
        together.setdefault((who["first"], who["second"]), dict(who)).update(what)
    return list(together.values())


def by_frequency(context: Context) -> Rows:
    """The rows of `scores`, and one per run and range of training frequencies: F1 of its words."""
    from isograd.lab.data.pairs import find_pairs
    from isograd.lab.evaluate.analysis import by_frequency as buckets
    from isograd.lab.evaluate.analysis import word_counts

    pairs = _pairs(context.trained[0].run)
    read = [find_pairs(name, pairs.source, pairs.target, role="train").read() for name in pairs.train]
    counts = word_counts(line for part in read for line in part.target)
    return [
        *scores(context),
        *(row for one in context.trained for row in _rows_of(one, buckets(*translated(context, one), counts))),
    ]


def by_length(context: Context) -> Rows:
    """The rows of `scores`, and one per run and range of lengths: BLEU of its sentences."""
    from isograd.lab.evaluate.analysis import by_length as buckets

    found = [*scores(context)]
    for one in context.trained:
        lengths = buckets(*translated(context, one), edges=(5, 10, 15, 20), language=_pairs(one.run).target)
        found += _rows_of(one, lengths)
    return found


def _rows_of(one: Trained, buckets: Sequence[Any]) -> list[Row]:
    first = {"arm": one.arm, "placement": one.placement, "seed": one.seed}
    return [
        {**first, "bucket": of.name, "from": max(of.low, 0.5), "n": of.n, "value": of.score}
        for of in buckets
        if of.n >= FREQUENT
    ]


def folded(context: Context) -> Rows:
    """A row per run: how many translations are the same after its skips are folded away, and the time of each."""
    from isograd.convert.folding import fold
    from isograd.lab.evaluate.translation import Translator
    from isograd.transformer.parameters import Coefficient

    rows: list[Row] = []
    for one in context.trained:
        plain = Translator.load(one.folder, device="cpu")
        sources = held_out(one.run)[0][:100]

        def measure(plain: Translator = plain, sources: list[str] = sources) -> Row:
            after = Translator(fold(plain.model, untie=True), plain.tokenizer)
            (ours, before), (theirs, behind) = _timed(plain, sources), _timed(after, sources)
            skips, left = (sum(isinstance(m, Coefficient) for m in t.model.modules()) for t in (plain, after))
            same = 100 * sum(map(str.__eq__, ours, theirs)) / len(ours)
            return {"same": same, "skips": skips, "skips_left": left, "speed": before / behind}

        rows.append(one.row(**context.once(f"folded, {one.arm}, seed {one.seed}", measure)))
    return rows


def _timed(translator: Any, sources: list[str]) -> tuple[list[str], float]:
    began = time.perf_counter()
    return [found.text for found in translator.translate(sources)], time.perf_counter() - began


def translated(context: Context, one: Trained) -> tuple[list[str], list[str]]:
    """What a run makes of the first held-out sources, and their references; kept beside the run, for every item."""
    path = one.folder / f"translated-{LINES}.json"
    sources, references = (side[:LINES] for side in held_out(one.run))
    if not path.exists():
        from isograd.lab.evaluate.translation import Translator

        context.note(f"translating, {one.arm}, seed {one.seed}")
        write_json(path, [found.text for found in Translator.load(one.folder).translate(sources)])
    return json.loads(path.read_text(encoding="utf-8")), references


def held_out(run: "Run") -> tuple[list[str], list[str]]:
    """Sources and references of a translation's validation pairs."""
    from isograd.lab.train.train import load_task

    lines: tuple[list[str], list[str]] = load_task(run).corpus.valid_lines
    return lines


def _scores(ours: list[str], theirs: list[str], tokenized: bool, language: str) -> Row:
    from isograd.lab.evaluate.scores import score

    found = score(ours, theirs, tokenized=tokenized, language=language)
    return {"bleu": found.bleu, "chrf": found.chrf, "ter": found.ter, "lines": found.lines}


def _kind(run: "Run") -> tuple[bool, str]:
    return _pairs(run).tokenized, _pairs(run).target


def _pairs(run: "Run") -> Any:
    return run.pairs  # type: ignore[attr-defined]


# -- back-translation

TAG = "<BT>"
SHARE = 4  # one pair in so many is a pair; of the others only the target is read
SYNTHETIC = {"pairs alone": 0, "one to one": 1, "one to three": 3}  # synthetic pairs for each real one
BACK = "back"


def back_translated(context: Context) -> Rows:
    """The rows of `scores`, and those of runs on a quarter of the pairs, alone and with back-translation.

    A quarter of the corpus are the pairs; of the rest the targets are back-translated, tagged and added. All files and
    runs stand in the item's folder, where the same command goes on.
    """
    rows = [*scores(context)]
    given = context.trained[0].run
    parts = _divided(given, context.folder)
    for seed in dict.fromkeys(one.seed for one in context.trained):
        back = _train(context, given, seed, BACK, [parts["pairs"]], reverse=True)
        synthetic = _synthetic(context, back, parts["targets"], seed)
        for arm, many in SYNTHETIC.items():
            files = [parts["pairs"]]
            if many and (part := _first(synthetic, many * parts["count"])).stat().st_size:
                files.append(part)  # empty where the reverse model writes nothing, after a few updates
            one = _train(context, given, seed, arm, files)
            ours, theirs = translated(context, one)
            rows.append(one.row(ratio=many, **_scores(ours, theirs, *_kind(one.run))))
        rows.append(back.row(ratio=0))
    return rows


def _divided(run: "Run", folder: Path) -> dict[str, Any]:
    """The files of a quarter of the pairs, and of the targets of the others."""
    from isograd.lab.data.pairs import find_pairs

    pairs = _pairs(run)
    there = find_pairs(pairs.train[0], pairs.source, pairs.target, role="train").read()
    rows = [{pairs.source: a, pairs.target: b} for a, b in zip(there.source, there.target, strict=True)]
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    own, rest = folder / "corpus" / "pairs.jsonl", [row[pairs.target] for i, row in enumerate(rows) if i % SHARE]
    _write(own, rows[::SHARE])
    return {"pairs": own, "targets": rest, "count": len(rows[::SHARE])}


def _write(path: Path, rows: Sequence[Row]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def _train(context: Context, run: "Run", seed: int, arm: str, files: Sequence[Path], reverse: bool = False) -> Trained:
    """The run on these files, or what there is of it."""
    from dataclasses import replace

    from isograd.lab.train.train import train

    pairs = _pairs(run)
    sides = (pairs.target, pairs.source) if reverse else (pairs.source, pairs.target)
    held = pairs.valid or ("numbers:valid",)
    own = replace(pairs, train=tuple(map(str, files)), valid=held, source=sides[0], target=sides[1])
    one = replace(run, seed=seed, pairs=own)  # type: ignore[call-arg]
    folder = context.folder / "runs" / f"{arm.replace(' ', '-')}-s{seed}-{one.key()}"
    context.note(f"training, {arm}, seed {seed}")
    train(one, folder)
    return Trained(group="", arm=arm, run=one, values={}, folder=folder)


def _synthetic(context: Context, back: Trained, targets: list[str], seed: int) -> Path:
    """Tagged pairs, as `isograd translate --pairs` writes them: what the reverse model makes of a target, and the"
    " target."""
    path = context.folder / "corpus" / f"{back.folder.name}.jsonl"
    if not path.exists():
        from isograd.lab.evaluate.translation import Translator

        context.note(f"back-translating {len(targets):,} lines, seed {seed}")
        wanted, (read, wrote) = max(SYNTHETIC.values()) * (len(targets) // (SHARE - 1)), _sides(back.run)
        found = Translator.load(back.folder).translate(targets[:wanted], beam=1)
        rows = [{wrote: f"{TAG} {one.text}", read: targets[one.line - 1]} for one in found if one.text.strip()]
        _write(path, rows)
    return path


def _sides(run: "Run") -> tuple[str, str]:
    return _pairs(run).source, _pairs(run).target


def _first(path: Path, count: int) -> Path:
    """A file of the first so many lines."""
    part = path.with_name(f"{path.stem}-{count}.jsonl")
    if not part.exists():
        write_text(part, "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:count]))
    return part
