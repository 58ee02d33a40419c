"""Parallel text as token ids: read, cleaned, held out, encoded, and cached.

The first call trains the vocabularies and encodes; the result is cached by the hash of what was read, so the second
call only maps arrays.
"""

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from isograd.data.corpus import cache_folder, unigram_entropy
from isograd.data.errors import DataError
from isograd.data.pairs import NUMBERS, Found, Pairs, find_pairs
from isograd.data.subwords import PairTokenizer, Subwords, read_subword_nmt, train_subwords

Vocabulary = Literal["bpe", "unigram", "char", "subword-nmt"]

HELD_OUT = 500
_FORMAT = 1  # of the cache; raise it when the encoding changes
_STALE = 24 * 3600  # seconds after which a build that was killed is swept away


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: row i is flat[offsets[i] : offsets[i + 1]]."""

    flat: np.ndarray
    offsets: np.ndarray  # int64, one more than rows

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.flat[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @staticmethod
    def of(rows: Sequence[Sequence[int]], vocab_size: int) -> "Ragged":
        """In the smallest unsigned type that holds the vocabulary."""
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        return Ragged(np.fromiter(chain.from_iterable(rows), dtype=dtype, count=int(offsets[-1])), offsets)

    def save(self, folder: Path, name: str) -> None:
        np.save(folder / f"{name}.npy", self.flat)
        np.save(folder / f"{name}.offsets.npy", self.offsets)

    @staticmethod
    def load(folder: Path, name: str) -> "Ragged":
        """Memory-mapped."""
        return Ragged(*(np.load(folder / f"{name}{end}.npy", mmap_mode="r") for end in ("", ".offsets")))


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
    cache: Path | None = None,
) -> ParallelCorpus:
    """Read, clean, encode.

    Args:
        train: sources, one behind the other; see `isograd.data.pairs.find_pairs`.
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
    )
    _check(wanted, train)
    if not valid and all(name.partition(":")[0] == NUMBERS for name in train):
        valid = (NUMBERS,)  # words that every other number is made of are not held out
    parts = [[find_pairs(name, source, target, r) for name in n] for n, r in ((train, "train"), (valid, "valid"))]
    folder = (cache or cache_folder()) / _key(wanted, parts)[:32]
    if not (folder / "facts.json").exists():
        try:
            _build(folder, wanted, *parts)
        except OSError as error:
            raise DataError(f"the cache {folder.parent} cannot be written ({error}); set XDG_CACHE_HOME") from error
    return _load(folder, ", ".join(found.name for found in parts[0]))


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


def _key(wanted: _Wanted, parts: list[list[Found]]) -> str:
    files = [hashlib.sha256(Path(f).read_bytes()).hexdigest() for f in (wanted.codes, *wanted.dictionaries) if f]
    options = {k: v for k, v in vars(wanted).items() if k not in ("codes", "dictionaries")}
    keys = [[found.key for found in part] for part in parts]
    return hashlib.sha256(json.dumps([_FORMAT, options, files, keys]).encode()).hexdigest()


def _build(folder: Path, wanted: _Wanted, train: list[Found], valid: list[Found]) -> None:
    """Write the cache entry under a temporary name and move it into place, so that a kill leaves nothing half-done."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    try:
        _fill(scratch, wanted, [found.read() for found in train], [found.read() for found in valid])
        try:
            scratch.rename(folder)
        except OSError:  # another process was first, or part of an entry was removed
            if not (folder / "facts.json").exists():
                shutil.rmtree(folder)
                scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sweep(cache: Path) -> None:
    """Remove what builds of yesterday and before left when they were killed."""
    for left in cache.glob(".building-*"):
        try:
            if time.time() - left.stat().st_mtime > _STALE:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # another process was first
            continue


def _fill(folder: Path, wanted: _Wanted, train: list[Pairs], valid: list[Pairs]) -> None:
    counts = {"read": sum(map(len, train))}
    pairs, held = _non_empty(train), _all(valid)
    counts["empty"] = counts["read"] - len(pairs)
    if not valid:
        whole = len(pairs)
        pairs, held = hold_out(pairs)
        counts["held_out"] = whole - len(pairs)
    tokenizer = _vocabularies(wanted, pairs)
    kept = _encoded(tokenizer, pairs)
    keep = _keep([row.lengths - 1 for row in kept], wanted, counts)
    if not keep.any():
        raise DataError(f"no training pair is left of {counts['read']}: {_said(counts)}")
    size = (tokenizer.source.vocab_size, tokenizer.target.vocab_size)
    digest = hashlib.sha256(json.dumps([_FORMAT, wanted.languages, size]).encode())
    for name, side in zip(("train_source", "train_target"), kept, strict=True):
        part = _taken(side, keep)
        part.save(folder, name)
        digest.update(part.flat.tobytes())
    entropy = unigram_entropy(part.flat)
    for name, side in zip(("valid_source", "valid_target"), _encoded(tokenizer, held), strict=True):
        side.save(folder, name)
        digest.update(side.flat.tobytes())
    tokenizer.save(folder / "tokenizer")
    lines = [list(side) for side in zip(*held, strict=True)]
    (folder / "valid.json").write_text(json.dumps(lines, ensure_ascii=False), encoding="utf-8")
    facts = {"unigram_entropy": entropy, "sha256": digest.hexdigest(), "counts": counts}
    (folder / "facts.json").write_text(json.dumps(facts))


def _non_empty(parts: list[Pairs]) -> list[tuple[str, str]]:
    both = (pair for part in parts for pair in zip(part.source, part.target, strict=True))
    return [(a, b) for a, b in both if a.strip() and b.strip()]


def _all(parts: list[Pairs]) -> list[tuple[str, str]]:
    """Pairs of a validation set, where nothing may be lost in silence: a score would be of another set."""
    for part in parts:
        for number, *pair in zip(part.numbers, part.source, part.target, strict=True):
            for where, text in zip(part.where, pair, strict=True):
                if not text.strip():
                    raise DataError(f"{where}, {part.unit} {number}: an empty side in a validation set")
    return _non_empty(parts)


def hold_out(pairs: list[tuple[str, str]], most: int = HELD_OUT) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Training and validation pairs: those whose text has the lowest hashes are held out, with all their copies.

    One in twenty, 500 at most; the choice depends on the text alone, not on its order.
    """
    marks = {pair: hashlib.sha256(json.dumps(pair).encode()).digest() for pair in set(pairs)}
    if len(marks) < 2:
        raise DataError(f"{len(marks)} different pairs are too few to hold any out; name a validation set")
    lowest = sorted(marks, key=marks.__getitem__)[: min(most, max(1, len(marks) // 20))]
    held = set(lowest)
    return [pair for pair in pairs if pair not in held], lowest


def _vocabularies(wanted: _Wanted, pairs: list[tuple[str, str]]) -> PairTokenizer:
    sides = [[pair[i] for pair in pairs] for i in (0, 1)]
    texts = [chain(*sides)] if wanted.joint else sides
    files = wanted.dictionaries or (None,) * len(texts)
    made = [_vocabulary(wanted, text, file) for text, file in zip(texts, files, strict=True)]
    return PairTokenizer(made[0], made[-1], wanted.languages, wanted.tokenized)


def _vocabulary(wanted: _Wanted, lines: Iterable[str], dictionary: str | None) -> Subwords:
    if wanted.vocabulary == "subword-nmt":
        assert wanted.codes
        return read_subword_nmt(Path(wanted.codes), Path(dictionary) if dictionary else None, lines)
    return train_subwords(lines, wanted.vocabulary, wanted.vocab_size)


def _encoded(tokenizer: PairTokenizer, pairs: list[tuple[str, str]]) -> list[Ragged]:
    both = (tokenizer.source, tokenizer.target)
    return [Ragged.of(side.encode(pair[i] for pair in pairs), side.vocab_size) for i, side in enumerate(both)]


def _keep(lengths: list[np.ndarray], wanted: _Wanted, counts: dict[str, int]) -> np.ndarray:
    """Which pairs stay; every other one is counted by its first reason."""
    longer, shorter = np.maximum(*lengths), np.minimum(*lengths)
    long = longer > wanted.longest
    uneven = ~long & (longer > wanted.ratio * shorter) if wanted.ratio else np.zeros_like(long)
    keep = ~(long | uneven)
    counts.update(long=int(long.sum()), ratio=int(uneven.sum()), kept=int(keep.sum()))
    return keep


def _taken(rows: Ragged, keep: np.ndarray) -> Ragged:
    lengths = rows.lengths
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths[keep])])
    return Ragged(rows.flat[np.repeat(keep, lengths)], offsets)


def _said(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.items() if reason not in ("read", "kept"))


def _load(folder: Path, source: str) -> ParallelCorpus:
    facts = json.loads((folder / "facts.json").read_text())
    lines = json.loads((folder / "valid.json").read_text(encoding="utf-8"))
    return ParallelCorpus(
        train_source=Ragged.load(folder, "train_source"),
        train_target=Ragged.load(folder, "train_target"),
        valid_source=Ragged.load(folder, "valid_source"),
        valid_target=Ragged.load(folder, "valid_target"),
        valid_lines=(lines[0], lines[1]),
        tokenizer=PairTokenizer.load(folder / "tokenizer"),
        source=source,
        **facts,
    )
