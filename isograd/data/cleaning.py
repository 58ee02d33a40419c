"""Which pairs are trained on, which are held out, and how many are left out for what."""

import hashlib
import json
from collections.abc import Iterable

import numpy as np

from isograd.data.pairs import Pairs
from isograd.errors import DataError

Pair = tuple[str, str]

HELD_OUT = 500


def non_empty(parts: Iterable[Pairs]) -> list[Pair]:
    """Pairs with text on both sides, part after part."""
    both = (pair for part in parts for pair in zip(part.source, part.target, strict=True))
    return [(a, b) for a, b in both if a.strip() and b.strip()]


def complete(parts: Iterable[Pairs]) -> list[Pair]:
    """All pairs of a validation set, where nothing may be left out: a score would be of another set.

    Raises:
        DataError: a side is empty; with its file and line.
    """
    pairs: list[Pair] = []
    for part in parts:
        for number, *pair in zip(part.numbers, part.source, part.target, strict=True):
            for where, text in zip(part.where, pair, strict=True):
                if not text.strip():
                    raise DataError(f"{where}, {part.unit} {number}: an empty side; a validation set has none")
            pairs.append((pair[0], pair[1]))
    return pairs


def hold_out(pairs: list[Pair], most: int = HELD_OUT) -> tuple[list[Pair], list[Pair]]:
    """Training and validation pairs: those whose text has the lowest hashes are held out, with all their copies.

    One different pair in twenty, `most` at most. The choice depends on the text alone, not on its order.
    """
    marks = {pair: hashlib.sha256(json.dumps(pair).encode()).digest() for pair in set(pairs)}
    if len(marks) < 2:
        raise DataError(f"{len(marks)} different pairs are too few to hold one out; name a validation set")
    lowest = sorted(marks, key=marks.__getitem__)[: min(most, max(1, len(marks) // 20))]
    held = set(lowest)
    return [pair for pair in pairs if pair not in held], lowest


def reasons(source: np.ndarray, target: np.ndarray, longest: int, ratio: float) -> dict[str, np.ndarray]:
    """Masks of the pairs that are left out, each under its first reason.

    Args:
        source, target: tokens of the sides, </s> not counted.
        longest: of a side.
        ratio: of the longer side to the shorter one; 0 for any.
    """
    longer, shorter = np.maximum(source, target), np.minimum(source, target)
    long = longer > longest
    uneven = ~long & (longer > ratio * shorter) if ratio else np.zeros_like(long)
    return {"long": long, "ratio": uneven}
