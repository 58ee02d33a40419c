"""A corpus: token ids of a training and a validation part, the tokenizer, and what is known of them.

The first call trains the tokenizer and encodes; the result is cached by the hash of the text, so the second call only
maps two arrays.
"""

import hashlib
import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from isograd.convert.checkpoints.tokenizers import SPECIAL, Level, reads_text, smallest_bpe, train_tokenizer
from isograd.errors import DataError, first_line
from isograd.files import new_folder, read_json, write_text
from isograd.machine import cache_folder
from isograd.text import EMBEDDED, Document, Ends, file_sha256, is_file, read

MARK = "facts.json"  # the entry of the cache that has it is whole
_FORMAT = 3  # of the cache; raise it when the encoding changes
_LINES = 1 << 14  # encoded at a time


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A tokenizer that is there already, of a model that is trained further.

    Attributes:
        end: the id between documents.
        by_line: whether lines are encoded one by one, as this package trains its models, or whole documents.
    """

    tokenizer: Tokenizer
    end: int
    by_line: bool

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps([self.tokenizer.to_str(), self.end, self.by_line]).encode()).hexdigest()

    @cached_property
    def of_characters(self) -> bool:
        """Whether it is one that `train_tokenizer` made of characters, which a table encodes as well."""
        own = self.tokenizer.token_to_id(SPECIAL["eos_token"]) == self.end
        return own and self.by_line and '"pattern":{"Regex":"[\\\\s\\\\S]"}' in self.tokenizer.to_str()


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
    source: str | Sequence[str] = EMBEDDED,
    *,
    level: Level = "char",
    vocab_size: int = 8192,
    field: str = "text",
    valid: str | None = None,
    documents: Ends = "file",
    mask: bool = False,
    reader: Reader | None = None,
    cache: Path | None = None,
) -> Corpus:
    """Read, tokenize and split; a bar shows how far it is where there is a terminal.

    Args:
        source: "embedded", a file, or a data set's name, or several; see `isograd.text.read`.
        level: "char" or "bpe".
        vocab_size: of the BPE.
        field: the key of the text where rows have keys.
        valid: a source for validation; None holds out one document in twenty, or the last twentieth of a single one.
        documents: what ends a document of a text file; </s> stands between documents.
        mask: the tokenizer has a <mask>.
        reader: takes the place of `level`, `vocab_size` and `mask`.
        cache: folder for tokenizers and encoded text; None takes `cache_folder()`.

    Raises:
        DataError: in one line what is wrong with the input.
    """
    asked = [source] if isinstance(source, str) else list(source)
    if not asked:
        raise DataError("no source of text is named")
    _check_once(asked)
    if level == "bpe" and not reader and vocab_size < smallest_bpe(mask):
        raise DataError(
            f"vocab_size={vocab_size}: BPE needs at least {smallest_bpe(mask)}, the bytes and the special tokens"
        )
    how = _How(level=level, vocab_size=vocab_size if level == "bpe" else 0, mask=mask, reader=reader)
    cache = cache or cache_folder()
    known = _known_as(cache, asked, valid, field, documents, how)
    if known and (digest := _read_digest(known)) and (cache / digest[:32] / MARK).exists():
        return _load(cache / digest[:32], digest, _said(asked))
    texts = _non_empty(read(asked, field, documents=documents), _said(asked))
    held_out = _non_empty(read(valid, field, documents=documents), valid) if valid else None
    train, held_out = (texts, held_out) if held_out else split(texts)
    digest = _digest(train, held_out, how)
    if not (cache / digest[:32] / MARK).exists():
        write_entry(cache / digest[:32], partial(_fill, train=train, valid=held_out, how=how))
    if known:
        write_text(known, digest)
    return _load(cache / digest[:32], digest, _said(asked))


def _check_once(asked: Sequence[str]) -> None:
    """Read twice, one copy would be held out and the other trained on."""
    twice = [name for i, name in enumerate(asked) if _place(name) in map(_place, asked[:i])]
    if twice:
        raise DataError(f"{twice[0]}: is named twice")


def _place(source: str) -> str:
    return str(Path(source).resolve()) if is_file(source) else source


def _said(asked: Sequence[str]) -> str:
    return ", ".join(asked)


@dataclass(frozen=True, kw_only=True)
class _How:
    """What is done to a text."""

    level: Level
    vocab_size: int
    mask: bool
    reader: Reader | None

    def as_list(self) -> list[Any]:
        """What goes into hashes; without a mask as it was before there were masks."""
        if self.reader:
            return [_FORMAT, self.reader.sha256]
        return [_FORMAT, self.level, self.vocab_size, *(["mask"] if self.mask else [])]


def _known_as(
    cache: Path, asked: Sequence[str], valid: str | None, field: str, documents: Ends, how: _How
) -> Path | None:
    """Where the digest of these files' text is kept, so that it need not be unpacked again; None unless all are files.

    By the bytes of the files and all that is done to them.
    """
    files = [*asked, *([valid] if valid else [])]
    if not all(is_file(name) and Path(name).is_file() for name in files):
        return None
    each = [[Path(name).name, file_sha256(Path(name))] for name in files]
    content = json.dumps([each, bool(valid), field, documents, how.as_list()])
    return cache / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.digest"


def _read_digest(path: Path) -> str | None:
    """None where there is none, or something else in its place."""
    content = path.read_bytes().decode(errors="replace").strip() if path.is_file() else ""
    return content if re.fullmatch("[0-9a-f]{64}", content) else None


def write_entry(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder under a temporary name and move it into place, so that a kill leaves nothing half-done.

    Two processes may do so at once: the first one's entry stays.
    """
    try:
        if folder.is_dir() and not (folder / MARK).exists():  # part of an entry was removed
            shutil.rmtree(folder)
        with new_folder(folder) as scratch:
            fill(scratch)
    except OSError as error:
        if not (folder / MARK).exists():
            raise DataError(f"the cache {folder.parent} cannot be written ({error}); set XDG_CACHE_HOME") from error


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
        return documents[:-1], documents[-1:]
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


def _digest(train: list[Document], valid: list[Document], how: _How) -> str:
    sha = hashlib.sha256(json.dumps(how.as_list()).encode())
    for part in (train, valid):
        for _, text in part:
            sha.update(hashlib.sha256(text.encode()).digest())
        sha.update(b"|")
    return sha.hexdigest()


def _fill(folder: Path, train: list[Document], valid: list[Document], how: _How) -> None:
    reader = how.reader or _trained(train, how)
    reader.tokenizer.save(str(folder / "tokenizer.json"))
    encoded = encode_characters if reader.of_characters else encode
    ids = encoded(reader, train)
    np.save(folder / "train.npy", ids)
    np.save(folder / "valid.npy", encoded(reader, valid))
    facts = {"unigram_entropy": unigram_entropy(ids), "characters": sum(len(t) for _, t in train)}
    (folder / MARK).write_text(json.dumps(facts))


def _trained(train: list[Document], how: _How) -> Reader:
    return own_reader(train_tokenizer((text for _, text in train), how.level, how.vocab_size, how.mask))


def own_reader(tokenizer: Tokenizer) -> Reader:
    """How a tokenizer of `train_tokenizer` reads."""
    end = tokenizer.token_to_id(SPECIAL["eos_token"])
    assert end is not None
    return Reader(tokenizer=tokenizer, end=end, by_line=True)


def encode(reader: Reader, documents: list[Document]) -> np.ndarray:
    """Ids of all documents in a row, </s> between them, in the smallest unsigned type that holds the vocabulary."""
    tokenizer = reader.tokenizer
    dtype = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    end = np.array([reader.end], dtype=dtype)
    parts: list[np.ndarray] = []
    characters = sum(len(text) for _, text in documents)
    with tqdm(total=characters, desc="tokenizing", unit="char", unit_scale=True, disable=None, delay=1) as bar:
        for text in filter(None, (text for _, text in documents)):
            lines = text.splitlines(keepends=True) if reader.by_line else [text]
            for begin in range(0, len(lines), _LINES):
                some = lines[begin : begin + _LINES]
                encoded = tokenizer.encode_batch_fast(some, add_special_tokens=False)
                parts.extend(np.array(e.ids, dtype=dtype) for e in encoded)
                bar.update(sum(map(len, some)))
            parts.append(end)
    return np.concatenate(parts[:-1]) if parts[:-1] else np.zeros(0, dtype=dtype)


def encode_characters(reader: Reader, documents: list[Document]) -> np.ndarray:
    """What `encode` gives with a tokenizer of characters, by a table of code points: a hundredth of its time."""
    tokenizer = reader.tokenizer
    known = {token: i for token, i in tokenizer.get_vocab().items() if len(token) == 1}
    dtype = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    table = np.full(sys.maxunicode + 1, tokenizer.token_to_id(SPECIAL["unk_token"]), dtype=dtype)
    table[[ord(token) for token in known]] = list(known.values())
    end = np.array([reader.end], dtype=dtype)
    parts = [part for _, text in documents if text for part in (table[_code_points(text)], end)]
    return np.concatenate(parts[:-1]) if parts else np.zeros(0, dtype=dtype)


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def _load(folder: Path, digest: str, source: str) -> Corpus:
    try:
        facts = read_json(folder / MARK)
        assert math.isfinite(facts["unigram_entropy"])
        return Corpus(
            train=np.load(folder / "train.npy", mmap_mode="r"),
            valid=np.load(folder / "valid.npy", mmap_mode="r"),
            tokenizer=reads_text(Tokenizer.from_file(str(folder / "tokenizer.json"))),
            sha256=digest,
            source=source,
            **facts,
        )
    except Exception as error:  # of JSON, of numpy, and what the tokenizers library raises, which is an Exception
        raise DataError(f"the cache's entry {folder} cannot be read ({first_line(error)}); remove it") from error
