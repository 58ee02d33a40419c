"""Parallel text as token ids: read, cleaned, held out, encoded, and cached.

The first call trains the vocabularies and encodes; the result is cached by the hash of what was read, so the second
call only maps arrays.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence, Sized
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from isograd.convert.checkpoints.subwords import PairTokenizer, Subwords, read_subword_nmt, train_subwords
from isograd.errors import DataError
from isograd.files import read_json
from isograd.lab.data.batches import Ragged
from isograd.lab.data.corpus import MARK, unigram_entropy, write_entry
from isograd.lab.data.pairs import NUMBERS, Pairs, PairsFound, find_pairs
from isograd.machine import cache_folder
from isograd.text import file_sha256

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


Vocabulary = Literal["bpe", "unigram", "char", "subword-nmt"]

_FORMAT = 3  # of the cache; raise it when the encoding changes
_ARRAYS = ("train_source", "train_target", "valid_source", "valid_target")
_REASONS = {
    "empty": "with an empty side",
    "held_out": "held out for validation",
    "long": "longer than pairs.longest",
    "ratio": "of a higher ratio than pairs.ratio",
}


@dataclass(frozen=True, kw_only=True)
class ParallelCorpus:
    """Token ids of both sides and their facts; every row ends with </s>.

    Attributes:
        valid_lines: the text of the validation pairs, source and target.
        unigram_entropy: -sum p ln p over the training target's ids, nats.
        sha256: of the text and of what was done to it.
        source: what was read, for people.
        counts: training pairs that were read, held out, left out as empty, long or of a high ratio, and kept.
    """

    train_source: Ragged
    train_target: Ragged
    valid_source: Ragged
    valid_target: Ragged
    valid_lines: tuple[list[str], list[str]]
    tokenizer: PairTokenizer
    unigram_entropy: float
    sha256: str
    source: str
    counts: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """What is done to the text."""

    languages: tuple[str, str]
    vocabulary: Vocabulary
    vocab_size: int
    joint: bool
    codes: str | None
    dictionaries: tuple[str, ...]
    tokenized: bool
    longest: int
    ratio: float
    given: PairTokenizer | None


def load_parallel(
    train: Sequence[str] = (NUMBERS,),
    valid: Sequence[str] = (),
    *,
    source: str = "de",
    target: str = "en",
    vocabulary: Vocabulary = "bpe",
    vocab_size: int = 8000,
    joint: bool = True,
    codes: str | None = None,
    dictionaries: Sequence[str] = (),
    tokenized: bool = False,
    longest: int = 250,
    ratio: float = 0.0,
    tokenizer: PairTokenizer | None = None,
    cache: Path | None = None,
) -> ParallelCorpus:
    """Read, clean, encode.

    Args:
        train: sources, one after the other; see `isograd.lab.data.pairs.find_pairs`.
        valid: sources; none holds out 500 pairs of `train`, and takes the number words' own.
        source, target: languages.
        vocabulary: "bpe", "unigram", "char" (trained on the training part), or "subword-nmt" (read from `codes`).
        vocab_size: of "bpe" and "unigram".
        joint: one vocabulary for both sides.
        codes: subword-nmt's merges.
        dictionaries: fairseq's, one joined or two; none collects the training text's pieces.
        tokenized: the text is Moses-tokenised; written beside the vocabulary, it changes no id.
        longest: tokens of a side, </s> not counted; longer training pairs are left out.
        ratio: of the longer side to the shorter one in tokens; above it training pairs are left out, 0 keeps any.
        tokenizer: of a model that is trained further, in place of `vocabulary` and what belongs to it.
        cache: folder for encoded text; None takes `cache_folder()`.

    Raises:
        DataError: in one line what is wrong with the input.
    """
    wanted = _Wanted(
        languages=(source, target),
        vocabulary=vocabulary,
        vocab_size=vocab_size if vocabulary in ("bpe", "unigram") else 0,
        joint=joint,
        codes=codes,
        dictionaries=tuple(dictionaries),
        tokenized=tokenized,
        longest=longest,
        ratio=ratio,
        given=tokenizer,
    )
    _check(wanted, train)
    if not valid and all(name.partition(":")[0] == NUMBERS for name in train):
        valid = (NUMBERS,)  # words that every other number is made of are not held out
    found = tuple([find_pairs(name, source, target, r) for name in n] for n, r in ((train, "train"), (valid, "valid")))
    folder = (cache or cache_folder()) / _key(wanted, found)[:32]
    if not (folder / MARK).exists():
        pairs = [[one.read() for one in part] for part in found]
        write_entry(folder, lambda scratch: _fill(scratch, wanted, *pairs))
    return _load(folder, ", ".join(one.name for one in found[0]))


def _check(wanted: _Wanted, train: Sequence[str]) -> None:
    if not train:
        raise DataError("no source of parallel text; name at least one, or 'numbers'")
    if (wanted.vocabulary == "subword-nmt") != bool(wanted.codes):
        raise DataError("vocabulary='subword-nmt' and codes (the file of merges) belong together")
    if wanted.dictionaries and not wanted.codes:
        raise DataError("dictionaries are for vocabulary='subword-nmt'")
    if len(wanted.dictionaries) not in ((0, 1) if wanted.joint else (0, 2)):
        raise DataError(
            f"{len(wanted.dictionaries)} dictionaries with joint={wanted.joint}: a joint vocabulary takes one, "
            "separate ones take two, of source and target"
        )


def _key(wanted: _Wanted, found: Sequence[Sequence[PairsFound]]) -> str:
    """Of the cache entry: of the options and of the files as they lie there, which are not unpacked for it."""
    return _sha(wanted, [[one.key for one in part] for part in found])


def _sha(wanted: _Wanted, content: Any) -> str:
    files = [file_sha256(Path(name)) for name in (wanted.codes, *wanted.dictionaries) if name]
    options = asdict(replace(wanted, given=None)) | {"codes": None, "dictionaries": None}
    options.pop("given")
    files += [_sha_of(wanted.given)] if wanted.given else []
    return hashlib.sha256(json.dumps([_FORMAT, options, files, content]).encode()).hexdigest()


def _sha_of(tokenizer: PairTokenizer) -> str:
    both = [[side.tokenizer.to_str(), side.vocab_size] for side in (tokenizer.source, tokenizer.target)]
    return hashlib.sha256(json.dumps(both).encode()).hexdigest()


def _text_sha(*parts: list[Pair]) -> list[str]:
    """Of every part, whatever files it came in."""
    digests = [hashlib.sha256() for _ in parts]
    for part, digest in zip(parts, digests, strict=True):
        for pair in part:
            digest.update(json.dumps(pair).encode())
    return [digest.hexdigest() for digest in digests]


def _fill(folder: Path, wanted: _Wanted, train: list[Pairs], valid: list[Pairs]) -> None:
    whole, read = non_empty(train), sum(map(len, train))
    counts = {"read": read, "empty": read - len(whole)}
    _some_left(whole, counts)
    pairs, held = (whole, complete(valid)) if valid else hold_out(whole)
    tokenizer = _vocabularies(wanted, pairs)
    sides = _encoded(tokenizer, pairs)
    out = reasons(sides[0].lengths - 1, sides[1].lengths - 1, wanted.longest, wanted.ratio)
    keep = ~(out["long"] | out["ratio"])
    counts |= {reason: int(mask.sum()) for reason, mask in out.items()}
    counts |= {"held_out": len(whole) - len(pairs), "kept": int(keep.sum())}
    _some_left(keep.nonzero()[0], counts)
    kept = [side.rows(keep) for side in sides]
    for name, rows in zip(_ARRAYS, [*kept, *_encoded(tokenizer, held)], strict=True):
        rows.save(folder, name)
    tokenizer.save(folder / "tokenizer")
    (folder / "valid.json").write_text(json.dumps(list(zip(*held, strict=True))))
    facts: dict[str, Any] = {"sha256": _sha(wanted, _text_sha(whole, held)), "counts": counts}
    facts["unigram_entropy"] = unigram_entropy(kept[1].flat)
    (folder / MARK).write_text(json.dumps(facts))


def _some_left(pairs: Sized, counts: dict[str, int]) -> None:
    if not len(pairs):
        why = ", ".join(f"{counts[k]} {said}" for k, said in _REASONS.items() if counts.get(k))
        raise DataError(f"no training pair is left of {counts['read']}: {why}")


def _vocabularies(wanted: _Wanted, pairs: list[Pair]) -> PairTokenizer:
    if wanted.given:
        return PairTokenizer(wanted.given.source, wanted.given.target, wanted.languages, wanted.tokenized)
    sides = [[pair[i] for pair in pairs] for i in (0, 1)]
    texts: list[Iterable[str]] = [chain(*sides)] if wanted.joint else [*sides]
    files = wanted.dictionaries or (None,) * len(texts)
    made = [_vocabulary(wanted, text, file) for text, file in zip(texts, files, strict=True)]
    return PairTokenizer(made[0], made[-1], wanted.languages, wanted.tokenized)


def _vocabulary(wanted: _Wanted, lines: Iterable[str], dictionary: str | None) -> Subwords:
    if wanted.vocabulary == "subword-nmt":
        assert wanted.codes
        return read_subword_nmt(Path(wanted.codes), Path(dictionary) if dictionary else None, lines)
    return train_subwords(lines, wanted.vocabulary, wanted.vocab_size)


def _encoded(tokenizer: PairTokenizer, pairs: list[Pair]) -> list[Ragged]:
    both = (tokenizer.source, tokenizer.target)
    return [Ragged.of(side.encode_each(pair[i] for pair in pairs), side.vocab_size) for i, side in enumerate(both)]


def _load(folder: Path, source: str) -> ParallelCorpus:
    facts = read_json(folder / MARK)
    lines = read_json(folder / "valid.json")
    train_source, train_target, valid_source, valid_target = (Ragged.load(folder, name) for name in _ARRAYS)
    return ParallelCorpus(
        train_source=train_source,
        train_target=train_target,
        valid_source=valid_source,
        valid_target=valid_target,
        valid_lines=(lines[0], lines[1]),
        tokenizer=PairTokenizer.load(folder / "tokenizer"),
        source=source,
        **facts,
    )
