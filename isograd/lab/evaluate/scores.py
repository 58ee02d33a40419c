"""hypotheses, references -> BLEU, chrF and TER with their signatures, the papers' tokenised BLEU, exact match.

Importing this needs sacrebleu and sacremoses; without them the error names the extra.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import combinations
from typing import Any

from isograd.errors import DataError

try:
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.significance import PairedTest
    from sacremoses import MosesDetokenizer, MosesTokenizer
except ImportError as missing:
    raise ImportError(f"scores need {missing.name}; pip install 'isograd[mt]'", name=missing.name) from missing


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of one output, each from 0 to 100, of which a lower `ter` is better: edits per 100 words, or more."""

    bleu: float
    chrf: float
    ter: float
    legacy_bleu: float  # comparable with papers that tokenised as Moses does, with nothing else
    exact_match: float
    lines: int
    signatures: dict[str, str]  # of bleu, chrf, ter and legacy_bleu: sacrebleu's
    text: dict[str, str]  # of the same: what was done to both sides first

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def score(hypotheses: Sequence[str], references: Sequence[str], *, tokenized: bool, language: str = "en") -> Scores:
    """Five scores of one hypothesis and one reference per line.

    bleu, chrf, ter: sacrebleu at its defaults on text as people write it. Where `tokenized`, both sides are first freed
    of Moses's escapes (&apos;) and detokenised by sacremoses; else they are taken as they come.

    legacy_bleu: what `multi-bleu` and fairseq's papers report. Corpus BLEU of the words between white space, orders 1
    to 4, no smoothing, no further tokenisation, case as it is. Where `tokenized`, both sides are taken as they come,
    escapes and all; else sacremoses tokenises them first (escaped, hyphens kept). References split by other means, in
    other case or with compounds taken apart give other numbers: never compare it with bleu.

    exact_match: the share of lines that equal their reference as they came, white space at their ends aside.

    Args:
        hypotheses: lines of the system.
        references: as many lines.
        tokenized: whether both are tokenised as Moses does.
        language: code of the target language, for both tokenisers.

    Raises:
        DataError: unequal counts, no lines at all, or a language whose tokeniser sacrebleu lacks here.
    """
    _check(hypotheses, references)
    sides = [line.strip() for line in hypotheses], [line.strip() for line in references]
    written, split, text = _both_ways(sides, tokenized, language)
    legacy = BLEU(tokenize="none", smooth_method="none", force=True)
    measures = {name: (measure, written) for name, measure in _measures(language).items()}
    measures |= {"legacy_bleu": (legacy, split)}
    return Scores(
        **{name: _measured(measure, *of) for name, (measure, of) in measures.items()},
        exact_match=100 * sum(map(str.__eq__, *sides)) / len(references),
        lines=len(references),
        signatures={name: str(measure.get_signature()) for name, (measure, _) in measures.items()},
        text={name: text[1] if name == "legacy_bleu" else text[0] for name in measures},
    )


def bleu_of(hypotheses: Sequence[str], references: Sequence[str], *, tokenized: bool, language: str = "en") -> float:
    """The `bleu` of `score` alone, which is what is asked for during a run."""
    _check(hypotheses, references)
    written = _as_written(
        ([line.strip() for line in hypotheses], [line.strip() for line in references]), tokenized, language
    )
    return _measured(_bleu(language), *written)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two systems on the same lines by one measure: `score` is the first's minus the second's."""

    first: str
    second: str
    measure: str
    score: float
    p: float


RESAMPLES = 1000


def paired_bootstrap(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    tokenized: bool,
    language: str = "en",
    resamples: int = RESAMPLES,
) -> list[Difference]:
    """Every two systems by bleu, chrf and ter of `score`: sacrebleu's paired bootstrap over lines (Koehn 2004).

    p is the share of the resampled sets of lines on which the two are as far apart as here though their mean distance
    is taken away; 1 of equal scores, where sacrebleu's own can be the lowest there is. It speaks of other lines, not
    of other seeds. The same numbers at every call (sacrebleu's seed).

    Raises:
        DataError: as in `score`.
    """
    for hypotheses in systems.values():
        _check(hypotheses, references)
    sides = {name: [line.strip() for line in lines] for name, lines in {**systems, "": references}.items()}
    written = dict(zip(sides, _as_written(tuple(sides.values()), tokenized, language), strict=True))
    return [
        difference
        for first, second in combinations(systems, 2)
        for difference in _differences(first, second, written, _measures(language), resamples)
    ]


def _differences(
    first: str, second: str, written: Mapping[str, list[str]], measures: dict[str, Any], resamples: int
) -> Iterator[Difference]:
    pair = [(name, written[name]) for name in (second, first)]  # the first of sacrebleu's is its baseline
    test = PairedTest(pair, measures, [written[""]], test_type="bs", n_samples=resamples)
    for measure, (theirs, mine) in zip(measures, list(test()[1].values())[1:], strict=True):
        yield Difference(
            first=first,
            second=second,
            measure=measure,
            score=mine.score - theirs.score,
            p=1.0 if mine.score == theirs.score else float(mine.p_value),
        )


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses):,} hypotheses for {len(references):,} references: scores compare line by line"
        )
    if not references:
        raise DataError("no lines to score")


def _measures(language: str) -> dict[str, Any]:
    """Of text as people write it."""
    return {"bleu": _bleu(language), "chrf": CHRF(), "ter": TER()}


def _as_written(sides: tuple[list[str], ...], tokenized: bool, language: str) -> list[list[str]]:
    """Sides as people write them."""
    if not tokenized:
        return list(sides)
    joiner = MosesDetokenizer(lang=language)
    return [[joiner.detokenize(line.split()) for line in side] for side in sides]


def _both_ways(
    sides: tuple[list[str], list[str]], tokenized: bool, language: str
) -> tuple[list[list[str]], list[list[str]], tuple[str, str]]:
    """Both sides as people write them, both sides in Moses's tokens, and how either came about."""
    means = f"by sacremoses {version('sacremoses')} for {language!r}"
    written = _as_written(sides, tokenized, language)
    if tokenized:
        return written, list(sides), (f"unescaped and detokenised {means}", "as it came")
    splitter = MosesTokenizer(lang=language)
    split = [[splitter.tokenize(line, return_str=True) for line in side] for side in sides]
    return written, split, ("as it came", f"tokenised {means}")


def _bleu(language: str) -> Any:
    try:
        return BLEU(trg_lang=language)
    except (ImportError, RuntimeError) as error:  # Japanese and Korean need a dictionary of sacrebleu's own extras
        raise DataError(f"BLEU of language {language!r}: {' '.join(str(error).split())}") from error


def _measured(measure: Any, ours: list[str], theirs: list[str]) -> float:
    found = float(measure.corpus_score(ours, [theirs]).score)
    return found if isinstance(measure, TER) else min(found, 100.0)  # rounding takes BLEU a little above
