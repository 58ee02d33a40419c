"""A corpus: token ids of a training and a validation part, the tokenizer, and what is known of them.

The first call trains the tokenizer and encodes; the result is cached by the hash of the text, so the second call only
maps two arrays.
"""

import hashlib
import json
import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from isograd.data.cache import MARK, write_entry
from isograd.data.errors import DataError
from isograd.data.text import EMBEDDED, Document, read
from isograd.data.tokenizers import SPECIAL, Level, reads_text, train_tokenizer

_FORMAT = 3  # of the cache; raise it when the encoding changes
_LINES = 1 << 14  # encoded at a time


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Token ids and their facts.

    Attributes:
        train, valid: one-dimensional arrays of ids.
        unigram_entropy: -sum p ln p over the training ids, nats: the loss of a model that knows frequencies only.
        sha256: of the text and of what was done to it.
        source: what was read.
    """

    train: np.ndarray
    valid: np.ndarray
    tokenizer: Tokenizer
    unigram_entropy: float
    sha256: str
    source: str
    characters: int

    @property
    def vocab_size(self) -> int:
        return int(self.tokenizer.get_vocab_size())


def load_corpus(
    source: str = EMBEDDED,
    *,
    level: Level = "char",
    vocab_size: int = 8192,
    field: str = "text",
    valid: str | None = None,
    cache: Path | None = None,
) -> Corpus:
    """Read, tokenize and split.

    Args:
        source: "embedded", a file, or a data set's name; see `isograd.data.text.read`.
        level: "char" or "bpe".
        vocab_size: of the BPE.
        field: the key of the text where rows have keys.
        valid: a source for validation; None holds out one document in twenty, or the last twentieth of a single one.
        cache: folder for tokenizers and encoded text; None takes `cache_folder()`.

    Raises:
        DataError: in one line what is wrong with the input.
    """
    documents = _non_empty(read(source, field), source)
    held_out = _non_empty(read(valid, field), valid) if valid else None
    train, held_out = (documents, held_out) if held_out else split(documents)
    digest = _digest(train, held_out, level, vocab_size if level == "bpe" else 0)
    folder = (cache or cache_folder()) / digest[:32]
    if not (folder / MARK).exists():
        write_entry(folder, partial(_fill, train=train, valid=held_out, level=level, vocab_size=vocab_size))
    return _load(folder, digest, source)


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/isograd, or ~/.cache/isograd."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isograd"


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Training and validation part: by document (a hash of its name decides), or the tail of a single one.

    The tail begins with a line, unless that would make it twice as long.
    """
    if len(documents) == 1:
        name, text = documents[0]
        cut = len(text) - len(text) // 20
        cut = text.rfind("\n", len(text) - len(text) // 10, cut) + 1 or cut
        return [(name, text[:cut])], [(name, text[cut:])]
    held_out = [d for d in documents if int(hashlib.sha256(d[0].encode()).hexdigest(), 16) % 20 == 0]
    if not 0 < len(held_out) < len(documents):
        held_out = documents[-1:]
    names = {name for name, _ in held_out}
    return [d for d in documents if d[0] not in names], held_out


def unigram_entropy(ids: np.ndarray) -> float:
    """-sum p ln p of the id frequencies, nats."""
    counts = np.bincount(ids)
    p = counts[counts > 0] / len(ids)
    return float(-(p * np.log(p)).sum())


def _non_empty(documents: list[Document], source: str | None) -> list[Document]:
    if not any(text.strip() for _, text in documents):
        raise DataError(f"{source}: holds no text")
    return documents


def _digest(train: list[Document], valid: list[Document], level: str, vocab_size: int) -> str:
    sha = hashlib.sha256(json.dumps([_FORMAT, level, vocab_size]).encode())
    for part in (train, valid):
        for _, text in part:
            sha.update(hashlib.sha256(text.encode()).digest())
        sha.update(b"|")
    return sha.hexdigest()


def _fill(folder: Path, train: list[Document], valid: list[Document], level: Level, vocab_size: int) -> None:
    tokenizer = train_tokenizer((text for _, text in train), level, vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = encode(tokenizer, train)
    np.save(folder / "train.npy", ids)
    np.save(folder / "valid.npy", encode(tokenizer, valid))
    facts = {"unigram_entropy": unigram_entropy(ids), "characters": sum(len(t) for _, t in train)}
    (folder / MARK).write_text(json.dumps(facts))


def encode(tokenizer: Tokenizer, documents: list[Document]) -> np.ndarray:
    """Ids of all documents in a row, </s> between them, in the smallest unsigned type that holds the vocabulary."""
    dtype = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    end = np.array([tokenizer.token_to_id(SPECIAL["eos_token"])], dtype=dtype)
    parts: list[np.ndarray] = []
    for text in filter(None, (text for _, text in documents)):
        lines = text.splitlines(keepends=True)
        for begin in range(0, len(lines), _LINES):
            encoded = tokenizer.encode_batch_fast(lines[begin : begin + _LINES], add_special_tokens=False)
            parts.extend(np.array(e.ids, dtype=dtype) for e in encoded)
        parts.append(end)
    return np.concatenate(parts[:-1]) if parts[:-1] else np.zeros(0, dtype=dtype)


def _load(folder: Path, digest: str, source: str) -> Corpus:
    facts = json.loads((folder / MARK).read_text())
    assert math.isfinite(facts["unigram_entropy"])
    return Corpus(
        train=np.load(folder / "train.npy", mmap_mode="r"),
        valid=np.load(folder / "valid.npy", mmap_mode="r"),
        tokenizer=reads_text(Tokenizer.from_file(str(folder / "tokenizer.json"))),
        sha256=digest,
        source=source,
        **facts,
    )
