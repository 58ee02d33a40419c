"""Number words: the embedded parallel text, a real translation that can be checked exactly.

German says the unit before the ten in one word ("einundzwanzigtausenddreihundert"), English the other way round in
several, so a model has to reorder.
"""

import random
from functools import cache
from importlib import metadata
from typing import Any

from isograd.errors import DataError

SPLITS = {"train": 20_000, "valid": 500, "test": 500}
_SEED = 14  # of the numbers that are drawn; another one is another corpus
_SMALL, _END = 1_000, 1_000_000


def numbers(split: str = "train", source: str = "de", target: str = "en") -> tuple[list[str], list[str]]:
    """Words of the integers of a part in two languages, line by line.

    Args:
        split: "train", "valid" or "test".
        source, target: languages of num2words.

    Raises:
        DataError: num2words is absent, or does not know the part or a language.
    """
    drawn = integers(split)
    return _words(drawn, source), _words(drawn, target)


@cache
def integers(split: str) -> tuple[int, ...]:
    """All below 1,000 (in training) and a sample of 1,000 to 999,999, disjoint between the parts."""
    if split not in SPLITS:
        raise DataError(f"numbers:{split}: no such part; take {', '.join(f'numbers:{s}' for s in SPLITS)}")
    small = list(range(_SMALL))
    drawn = random.Random(_SEED).sample(range(_SMALL, _END), sum(SPLITS.values()) - _SMALL)
    cut = SPLITS["valid"], SPLITS["valid"] + SPLITS["test"]
    parts = {"valid": drawn[: cut[0]], "test": drawn[cut[0] : cut[1]], "train": small + drawn[cut[1] :]}
    return tuple(parts[split])


def version() -> str:
    """Of num2words: another one may spell otherwise."""
    _library()
    return metadata.version("num2words")


def _words(drawn: tuple[int, ...], language: str) -> list[str]:
    library = _library()
    try:
        return [library.num2words(n, lang=language) for n in drawn]
    except NotImplementedError as error:
        known = ", ".join(sorted(library.CONVERTER_CLASSES))
        raise DataError(f"numbers: num2words does not know the language {language!r}; it knows {known}") from error


def _library() -> Any:
    try:
        import num2words
    except ImportError as error:
        raise DataError("the number words need num2words; pip install 'isograd[mt]'") from error
    return num2words
