"""Scores by word frequency and sentence length, and the paired bootstrap: against sacrebleu and by hand."""

import random

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from isograd.errors import DataError
from isograd.lab.evaluate.analysis import by_frequency, by_length, word_counts
from isograd.lab.evaluate.scores import bleu_of, paired_bootstrap, score
from tests.evaluate.test_scores import HYPOTHESES, REFERENCES, TOKENS, WRITTEN


def test_ter_is_sacrebleus_and_may_exceed_100() -> None:
    found = score(HYPOTHESES, REFERENCES, tokenized=False)
    assert found.ter == sacrebleu.corpus_ter(HYPOTHESES, [REFERENCES]).score
    assert found.signatures["ter"].startswith("nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:")
    assert score(["a b c d e f"], ["x y"], tokenized=False).ter == pytest.approx(300)
    assert score(["b a c d"], ["a b c d"], tokenized=False).ter == pytest.approx(25)  # one shift of four words
    assert score([TOKENS], [TOKENS.replace("mostly", "partly")], tokenized=True).ter == pytest.approx(100 / 10)
    assert len(WRITTEN.split()) == 10


def test_bleu_alone_is_the_same() -> None:
    for tokenized in (False, True):
        one, other = [TOKENS, *HYPOTHESES], [TOKENS.replace("mostly", "partly"), *REFERENCES]
        assert bleu_of(one, other, tokenized=tokenized) == score(one, other, tokenized=tokenized).bleu
    with pytest.raises(DataError, match="no lines"):
        bleu_of([], [], tokenized=False)


def test_words_by_their_frequency() -> None:
    """the: seen 9 times, in two of three places; cat: once, right; axolotl: never, missed; a hypothesis' word alone."""
    counts = word_counts(["the cat the", "the , the the", "the the the the"])
    assert counts == {"the": 9, "cat": 1, ",": 1}
    found = by_frequency(["the cat sat", "the the emu"], ["the cat the", "the axolotl"], counts, edges=(1, 2, 10))
    assert [(one.name, one.n) for one in found] == [("0", 1), ("1", 1), ("2 to 9", 3), ("10 and more", 0)]
    # none: h = 2 (sat, emu), r = 1; once: h = r = m = 1; often: h = 3, r = 3, m = 1 + 1
    assert [one.score for one in found] == [0.0, 100.0, pytest.approx(200 * 2 / 6), None]


def test_sentences_by_their_length() -> None:
    """The words of the reference decide; each bucket has sacrebleu's own score of its lines."""
    found = by_length(HYPOTHESES, REFERENCES, edges=(8, 12))
    inside = [(0, 8, [6]), (8, 12, [0, 2, 4]), (12, None, [1, 3, 5])]
    lengths = [len(line.split()) for line in REFERENCES]
    for bucket, (low, high, lines) in zip(found, inside, strict=True):
        lines = [i for i, n in enumerate(lengths) if low <= n and (high is None or n < high)]
        expected = sacrebleu.corpus_bleu([HYPOTHESES[i] for i in lines], [[REFERENCES[i] for i in lines]]).score
        assert (bucket.low, bucket.high, bucket.n) == (low, high, len(lines))
        assert bucket.score == pytest.approx(min(expected, 100.0))
    assert by_length(["a"], ["a"], edges=(5,))[1].score is None


def test_the_paired_bootstrap_is_sacrebleus() -> None:
    """Its p of each pair and measure; equal systems differ in nothing, and one that is much worse does."""
    draw = random.Random(0)
    references = [" ".join(draw.choices("abcdefgh", k=8)) for _ in range(40)]
    worse = [" ".join(draw.sample(line.split(), 8)) for line in references]
    systems = {"good": [f"{line} x" for line in references], "same": [f"{line} x" for line in references]}
    found = paired_bootstrap(systems | {"bad": worse}, references, tokenized=False, resamples=200)
    assert [(d.first, d.second) for d in found[::3]] == [("good", "same"), ("good", "bad"), ("same", "bad")]
    metrics = {"bleu": BLEU(trg_lang="en"), "chrf": CHRF(), "ter": TER()}
    test = PairedTest([("bad", worse), ("good", systems["good"])], metrics, [references], "bs", n_samples=200)
    expected = test()[1]
    for mine, name in zip(found[3:6], ("BLEU", "chrF2", "TER"), strict=True):
        theirs, ours = expected[name]
        assert mine.p == ours.p_value and mine.score == pytest.approx(ours.score - theirs.score)
        assert mine.p < 0.05 and (mine.score < 0) == (mine.measure == "ter")
    assert all(d.score == 0 and d.p == 1 for d in found[:3])
