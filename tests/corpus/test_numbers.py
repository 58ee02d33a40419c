"""Number words: disjoint parts, the same every time, and true: read back by a reader of its own."""

import sys
from itertools import pairwise

import pytest

from isograd.errors import DataError
from isograd.lab.data.numbers import SPLITS, integers, numbers

GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
GERMAN += ["dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"]
TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
ENGLISH += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TIES = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def english_value(text: str) -> int:
    """By adding up the words."""
    total = group = 0
    for word in text.replace(",", "").replace("-", " ").split():
        if word in ENGLISH:
            group += ENGLISH.index(word)
        elif word in TIES:
            group += 10 * (TIES.index(word) + 2)
        elif word == "hundred":
            group *= 100
        elif word == "thousand":
            total, group = total + 1000 * group, 0
        else:
            assert word == "and", text
    return total + group


def german_value(text: str) -> int:
    """By what stands before and behind "tausend", "hundert" and "und"."""
    for word, factor in (("tausend", 1000), ("hundert", 100)):
        if word in text:
            before, after = text.split(word, 1)
            return factor * german_value(before) + (german_value(after) if after else 0)
    if text == "ein":
        return 1
    if text in GERMAN:
        return GERMAN.index(text)
    if "und" in text:
        unit, ten = text.split("und")
        return german_value(unit) + 10 * (TENS.index(ten) + 2)
    return 10 * (TENS.index(text) + 2)


def test_the_parts_are_disjoint_and_always_the_same() -> None:
    parts = {split: integers(split) for split in SPLITS}
    assert {split: len(part) for split, part in parts.items()} == SPLITS
    assert all(len(set(part)) == len(part) for part in parts.values())
    everything = set().union(*map(set, parts.values()))
    assert len(everything) == sum(SPLITS.values()) and everything < set(range(1_000_000))
    assert set(range(1000)) <= set(parts["train"])  # the words all others are made of
    assert parts["train"][1000:1003] == (400798, 771897, 401351)
    assert parts["valid"][:3] == (113017, 646795, 737714) and parts["test"][:2] == (220546, 532796)


def test_the_sample_is_spread_over_all_sizes() -> None:
    for split in ("valid", "test"):
        counts = [sum(low <= n < high for n in integers(split)) for low, high in pairwise(range(0, 10**6 + 1, 250_000))]
        assert min(counts) > 90, counts


@pytest.mark.parametrize("split", ["valid", "test"])
def test_the_words_say_the_numbers(split: str) -> None:
    german, english = numbers(split)
    assert tuple(map(german_value, german)) == integers(split) == tuple(map(english_value, english))


def test_the_readers_of_this_file_tell_numbers_apart() -> None:
    assert german_value("einundzwanzigtausenddreihundertfünf") == 21_305
    assert english_value("twenty-one thousand, three hundred and five") == 21_305
    assert german_value("zwölftausenddreihundertfünf") != 21_305
    german, english = numbers("valid")
    assert tuple(map(german_value, german[1:])) != integers("valid")[:-1]
    assert len(set(german)) == len(set(english)) == 500


def test_other_languages_and_directions() -> None:
    german, english = numbers("test")
    assert numbers("test", "en", "de") == (english, german)
    french, _ = numbers("test", "fr", "en")
    assert len(french) == 500 and "mille" in french[0]


def test_what_is_not_there() -> None:
    with pytest.raises(DataError, match=r"numbers:dev: no such part; take numbers:train, numbers:valid, numbers:test"):
        numbers("dev")
    with pytest.raises(DataError, match=r"num2words does not know the language 'xx'; it knows .*de, .*en"):
        numbers("valid", "xx", "en")


def test_without_num2words_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "num2words", None)
    with pytest.raises(DataError, match=r"pip install 'isograd\[mt\]'"):
        numbers("valid")
