"""hypotheses, references -> BLEU and chrF with their signatures, the papers' tokenised BLEU, exact match.

Importing this needs sacrebleu and sacremoses; without them the error names the extra.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from isograd.errors import DataError

try:
    from sacrebleu.metrics import BLEU, CHRF
    from sacremoses import MosesDetokenizer, MosesTokenizer
except ImportError as missing:
    raise ImportError(f"scores need {missing.name}; pip install 'isograd[mt]'", name=missing.name) from missing


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
    """
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses):,} hypotheses for {len(references):,} references: scores compare line by line"
        )
    if not references:
        raise DataError("no lines to score")
    sides = [line.strip() for line in hypotheses], [line.strip() for line in references]
    written, split, text = _both_ways(sides, tokenized, language)
    legacy = BLEU(tokenize="none", smooth_method="none", force=True)
    measures = {"bleu": (_bleu(language), written), "chrf": (CHRF(), written), "legacy_bleu": (legacy, split)}
    return Scores(
        **{name: _measured(measure, *of) for name, (measure, of) in measures.items()},
        exact_match=100 * sum(map(str.__eq__, *sides)) / len(references),
        lines=len(references),
        signatures={name: str(measure.get_signature()) for name, (measure, _) in measures.items()},
        text={"bleu": text[0], "chrf": text[0], "legacy_bleu": text[1]},
    )


def _both_ways(
    sides: tuple[list[str], list[str]], tokenized: bool, language: str
) -> tuple[list[list[str]], list[list[str]], tuple[str, str]]:
    """Both sides as people write them, both sides in Moses's tokens, and how either came about."""
    means = f"by sacremoses {version('sacremoses')} for {language!r}"
    if tokenized:
        joiner = MosesDetokenizer(lang=language)
        written = [[joiner.detokenize(line.split()) for line in side] for side in sides]
        return written, list(sides), (f"unescaped and detokenised {means}", "as it came")
    splitter = MosesTokenizer(lang=language)
    split = [[splitter.tokenize(line, return_str=True) for line in side] for side in sides]
    return list(sides), split, ("as it came", f"tokenised {means}")


def _bleu(language: str) -> Any:
    try:
        return BLEU(trg_lang=language)
    except (ImportError, RuntimeError) as error:  # Japanese and Korean need a dictionary of sacrebleu's own extras
        raise DataError(f"BLEU of language {language!r}: {' '.join(str(error).split())}") from error


def _measured(measure: Any, ours: list[str], theirs: list[str]) -> float:
    return min(measure.corpus_score(ours, [theirs]).score, 100.0)  # rounding takes BLEU a little above
