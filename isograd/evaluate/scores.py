"""hypotheses, references -> BLEU and chrF with their signatures, the papers' tokenised BLEU, exact match."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from types import ModuleType
from typing import Any

from isograd.data import DataError

EXTRA = "scores need sacrebleu and sacremoses; pip install 'isograd[mt]'"


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of one output, each from 0 to 100."""

    bleu: float
    chrf: float
    legacy_bleu: float  # comparable with papers that tokenised as Moses does, with nothing else
    exact_match: float
    lines: int
    signatures: dict[str, str]  # of bleu, chrf and legacy_bleu: sacrebleu's
    text: dict[str, str]  # of the same: what was done to both sides first

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def score(hypotheses: Sequence[str], references: Sequence[str], *, tokenized: bool, language: str = "en") -> Scores:
    """Four scores of one hypothesis and one reference per line.

    bleu, chrf: sacrebleu at its defaults on text as people write it. Where `tokenized`, both sides are first freed of
    Moses's escapes (&apos;) and detokenised by sacremoses; else they are taken as they come.

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
        ImportError: sacrebleu or sacremoses is missing; the message names the extra.
    """
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses):,} hypotheses for {len(references):,} references: scores compare line by line"
        )
    if not references:
        raise DataError("no lines to score")
    metrics, moses = _libraries()
    sides = [line.strip() for line in hypotheses], [line.strip() for line in references]
    written, split, text = _both_ways(moses, sides, tokenized, language)
    measures = {"bleu": _bleu(metrics, language), "chrf": metrics.CHRF()}
    measures["legacy_bleu"] = metrics.BLEU(tokenize="none", smooth_method="none", force=True)
    numbers: dict[str, float] = {}
    for name, measure in measures.items():
        ours, theirs = split if name == "legacy_bleu" else written
        numbers[name] = min(
            measure.corpus_score(ours, [theirs]).score, 100.0
        )  # the exponential of logarithms rounds up
    equal = sum(ours == theirs for ours, theirs in zip(*sides, strict=True))
    return Scores(
        **numbers,
        exact_match=100 * equal / len(references),
        lines=len(references),
        signatures={name: str(measure.get_signature()) for name, measure in measures.items()},
        text={"bleu": text[0], "chrf": text[0], "legacy_bleu": text[1]},
    )


def _libraries() -> tuple[ModuleType, ModuleType]:
    try:
        import sacremoses
        from sacrebleu import metrics
    except ImportError as error:
        raise ImportError(EXTRA) from error
    return metrics, sacremoses


def _both_ways(
    moses: ModuleType, sides: tuple[list[str], list[str]], tokenized: bool, language: str
) -> tuple[list[list[str]], list[list[str]], tuple[str, str]]:
    """Both sides as people write them, both sides in Moses's tokens, and how either came about."""
    means = f"by sacremoses {version('sacremoses')} for {language!r}"
    if tokenized:
        joiner = moses.MosesDetokenizer(lang=language)
        written = [[joiner.detokenize(line.split()) for line in side] for side in sides]
        return written, list(sides), (f"unescaped and detokenised {means}", "as it came")
    splitter = moses.MosesTokenizer(lang=language)
    split = [[splitter.tokenize(line, return_str=True) for line in side] for side in sides]
    return list(sides), split, ("as it came", f"tokenised {means}")


def _bleu(metrics: ModuleType, language: str) -> Any:
    try:
        return metrics.BLEU(trg_lang=language)
    except (ImportError, RuntimeError) as error:  # Japanese and Korean need a dictionary of sacrebleu's own extras
        raise DataError(f"BLEU of language {language!r}: {' '.join(str(error).split())}") from error
