"""What a score hides: words by how often they occur in training, sentences by their length.

Words are sacrebleu's ("13a", as BLEU counts them).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from isograd.lab.evaluate.scores import bleu_of

FREQUENCIES = (1, 2, 5, 10, 100, 1000)  # each begins a bucket; what is rarer than the first is one of its own
LENGTHS = (10, 20, 30, 40)


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Words of a range of frequencies, or sentences of a range of lengths.

    Attributes:
        low, high: the range, `high` not included; None where it has no end.
        n: words of the references, or sentences.
        score: the words' F1, or the sentences' BLEU, each from 0 to 100; None of an empty bucket.
    """

    low: int
    high: int | None
    n: int
    score: float | None

    @property
    def name(self) -> str:
        """ "2 to 4", "1000 and more"."""
        if self.high is None:
            return f"{self.low} and more"
        return str(self.low) if self.high == self.low + 1 else f"{self.low} to {self.high - 1}"


def word_counts(lines: Iterable[str]) -> Counter[str]:
    """How often each word occurs."""
    split = Tokenizer13a()
    return Counter(word for line in lines for word in split(line).split())


def by_frequency(
    hypotheses: Sequence[str],
    references: Sequence[str],
    counts: Mapping[str, int],
    edges: Sequence[int] = FREQUENCIES,
) -> list[Bucket]:
    """F1 of the words of each bucket, 200 m / (h + r): in each line a word matches as often as both sides have it.

    m are the matches of the bucket's words in all lines, h and r their number in hypotheses and references.

    Args:
        counts: of the training text; a word that it lacks has 0.
    """
    bounds = [0, *edges]
    matches, ours, theirs = ([0] * len(bounds) for _ in range(3))
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        own, wanted = word_counts([hypothesis]), word_counts([reference])
        for found, words in ((ours, own), (theirs, wanted), (matches, own & wanted)):
            for word, n in words.items():
                found[bisect_right(bounds, counts.get(word, 0)) - 1] += n
    scores = [200 * m / (h + r) if r else None for m, h, r in zip(matches, ours, theirs, strict=True)]
    return _buckets(bounds, theirs, scores)


def by_length(
    hypotheses: Sequence[str], references: Sequence[str], edges: Sequence[int] = LENGTHS, language: str = "en"
) -> list[Bucket]:
    """BLEU of the sentences of each bucket, by the words of their references."""
    bounds = [0, *edges]
    split = Tokenizer13a()
    inside: list[list[int]] = [[] for _ in bounds]
    for i, reference in enumerate(references):
        inside[bisect_right(bounds, len(split(reference).split())) - 1].append(i)
    scores = [
        bleu_of([hypotheses[i] for i in of], [references[i] for i in of], tokenized=False, language=language)
        if of
        else None
        for of in inside
    ]
    return _buckets(bounds, [len(of) for of in inside], scores)


def _buckets(bounds: Sequence[int], counts: Sequence[int], scores: Sequence[float | None]) -> list[Bucket]:
    ends = [*bounds[1:], None]
    return [
        Bucket(low=low, high=high, n=n, score=score)
        for low, high, n, score in zip(bounds, ends, counts, scores, strict=True)
    ]
