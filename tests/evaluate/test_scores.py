"""Scores against the definitions, written by hand."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from isograd.errors import DataError
from isograd.lab.evaluate.scores import Scores, score

REFERENCES = [
    "two young men are outside near many bushes .",
    "several men in hard hats are operating a giant pulley system .",
    "a little girl climbing into a wooden playhouse .",
    "a man in a blue shirt is standing on a ladder cleaning a window .",
    "two men are at the stove preparing food .",
    "a man in green holds a guitar while the other man observes his shirt .",
    "a man smiles at a stuffed lion",
]
HYPOTHESES = [
    "two young men are outside near several bushes .",
    "several men wearing hard hats operate a giant pulley system .",
    "a little girl climbs into a wooden house .",
    "a man in a blue shirt stands on a ladder and is cleaning a window .",
    "two men are at the stove cooking .",
    "a man in green is holding a guitar while the man looks at his shirt .",
    "a man smiles at a stuffed lion",
]
TOKENS = "it &apos;s &quot; green &quot; ( well , mostly ) & that costs $ 5 @-@ ish , doesn &apos;t it ?"
WRITTEN = "it's \"green\" (well, mostly) & that costs $5-ish, doesn't it?"


def grams(units: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(units[i : i + n]) for i in range(len(units) - n + 1))


def counted(split: Callable[[str], Sequence[str]], n: int) -> tuple[int, int, int]:
    """Matching n-grams of all lines (each at most as often as the reference has it), ours, theirs."""
    pairs = [(grams(split(h), n), grams(split(r), n)) for h, r in zip(HYPOTHESES, REFERENCES, strict=True)]
    return sum((h & r).total() for h, r in pairs), sum(h.total() for h, _ in pairs), sum(r.total() for _, r in pairs)


def bleu_by_hand() -> float:
    """100 min(1, e^(1 - r/c)) (p_1 p_2 p_3 p_4)^(1/4): Papineni et al. 2002, section 2.3."""
    counts = [counted(str.split, n) for n in (1, 2, 3, 4)]
    _, ours, theirs = counts[0]
    mean = math.exp(sum(math.log(matches / total) for matches, total, _ in counts) / 4)
    return 100 * min(1.0, math.exp(1 - theirs / ours)) * mean


def chrf_by_hand() -> float:
    """100 * 5 P R / (4 P + R), P and R means over orders 1 to 6 of characters without blanks: Popovic 2015."""
    counts = [counted(lambda line: line.replace(" ", ""), n) for n in range(1, 7)]
    precision = sum(matches / ours for matches, ours, _ in counts) / 6
    recall = sum(matches / theirs for matches, _, theirs in counts) / 6
    return 100 * 5 * precision * recall / (4 * precision + recall)


def of(hypotheses: list[str], references: list[str], *, tokenized: bool = False, language: str = "en") -> Scores:
    return score(hypotheses, references, tokenized=tokenized, language=language)


def test_by_hand() -> None:
    """These lines are the same tokenised or not, so both BLEUs are Papineni's; chrF sees no blanks."""
    found = of(HYPOTHESES, REFERENCES)
    assert found.bleu == pytest.approx(bleu_by_hand(), abs=1e-9)
    assert found.legacy_bleu == pytest.approx(bleu_by_hand(), abs=1e-9)
    assert found.chrf == pytest.approx(chrf_by_hand(), abs=1e-9)
    assert 40 < found.bleu < 60 < found.chrf < 80
    assert found.exact_match == pytest.approx(100 / 7) and found.lines == 7


def test_the_brevity_penalty() -> None:
    """All precisions are 1; six words stand for eight."""
    assert of(["a b c d e f"], ["a b c d e f g h"]).bleu == pytest.approx(100 * math.exp(1 - 8 / 6), abs=1e-9)


def test_only_legacy_bleu_knows_tokens() -> None:
    """Tokenised text is put together for BLEU and chrF; told that it is plain text, they would take it as it is."""
    other = TOKENS.replace("mostly", "partly")
    found, plain = of([TOKENS], [other], tokenized=True), of([WRITTEN], [WRITTEN.replace("mostly", "partly")])
    assert (found.bleu, found.chrf) == (plain.bleu, plain.chrf)
    assert of([TOKENS], [other]).bleu != found.bleu
    assert found.text["bleu"].startswith("unescaped and detokenised by sacremoses")
    assert found.text["legacy_bleu"] == plain.text["bleu"] == plain.text["chrf"] == "as it came"
    assert plain.text["legacy_bleu"].startswith("tokenised by sacremoses")


def test_legacy_bleu_of_plain_text_is_of_its_tokens() -> None:
    """One of eight tokens differs, between punctuation that plain words would keep."""
    lines = ["We saw it, yes. Go!"], ["We saw it, no. Go!"]
    assert of(*lines).legacy_bleu == pytest.approx(100 * (7 / 8 * 5 / 7 * 3 / 6 * 1 / 5) ** 0.25, abs=1e-9)
    assert of(*lines, tokenized=True).legacy_bleu == 0


def test_case_counts() -> None:
    found = of([line.upper() for line in REFERENCES], REFERENCES)
    assert found.legacy_bleu == 0 and found.bleu < 5 and found.exact_match == 0


@pytest.mark.slow
def test_signatures() -> None:
    """They name what decides a score: tokeniser, smoothing, case, version."""
    signatures = of(HYPOTHESES, REFERENCES).signatures
    for name, parts in {
        "bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:",
        "chrf": "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:",
        "legacy_bleu": "nrefs:1|case:mixed|eff:no|tok:none|smooth:none|version:",
    }.items():
        assert signatures[name].startswith(parts)
    assert "tok:zh" in of(["好的"], ["好的"], language="zh").signatures["bleu"]


def test_equal_lines() -> None:
    found = of([*REFERENCES, ""], [*REFERENCES[:-1], f" {REFERENCES[-1]}  ", ""])
    assert (found.bleu, found.chrf, found.legacy_bleu, found.exact_match) == (100, 100, 100, 100)
    assert found.as_dict()["lines"] == 8


@pytest.mark.parametrize("tokenized", [False, True])
def test_empty_lines(tokenized: bool) -> None:
    """An empty hypothesis costs its reference's words, and is no error."""
    found = of(["", *REFERENCES[1:]], REFERENCES, tokenized=tokenized)
    missing, rest = len(REFERENCES[0].split()), sum(len(line.split()) for line in REFERENCES[1:])
    assert found.legacy_bleu == pytest.approx(100 * math.exp(-missing / rest), abs=1e-9)
    nothing = of([""], ["word"], tokenized=tokenized)
    assert (nothing.bleu, nothing.chrf, nothing.legacy_bleu, nothing.exact_match) == (0, 0, 0, 0)


def test_refused() -> None:
    with pytest.raises(DataError, match="2 hypotheses for 3 references"):
        of(["a"] * 2, ["a"] * 3)
    with pytest.raises(DataError, match="no lines"):
        of([], [])


def test_a_missing_library_names_the_extra() -> None:
    code = "import sys; sys.modules['sacrebleu'] = None; import isograd.lab.evaluate.scores"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode and "pip install 'isograd[mt]'" in done.stderr.splitlines()[-1]
