"""Vocabularies of a translation: text to ids and back, trained here or read from subword-nmt and fairseq.

subword-nmt cuts "pyramide" to "pyr@@ ami@@ de", and fairseq looks these up; here the pieces are "pyr", "ami",
"de</w>", as the merges write them. A merge needs the ids of both its parts and of what they become, though many of
these are in no dictionary, being met on the way to longer pieces only: they follow the dictionary, and whoever finds
one left over reads <unk>.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from isograd.convert.checkpoints.tokenizers import SPECIAL, characters, for_transformers, reads_text
from isograd.errors import DataError
from isograd.files import read_json
from isograd.text import file_text, must_be_a_file

Merge = tuple[str, str]

VERSION = "#version: 0.2"
FAIRSEQ_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3 in fairseq
_END, _GOES_ON = "</w>", "@@"


def merging_tokenizer(merges: Sequence[Merge], tokens: Iterable[str]) -> tuple[Tokenizer, int]:
    """The tokenizer, and how many ids are the vocabulary's: fairseq's special tokens, then `tokens`.

    Args:
        tokens: as in a fairseq dictionary, "pyr@@" or "de".
    """
    pieces = dict.fromkeys(map(_piece, tokens))
    size = len(FAIRSEQ_SPECIAL) + len(pieces)
    pieces |= dict.fromkeys(piece for left, right in merges for piece in (left, right, left + right))
    if special := pieces.keys() & set(FAIRSEQ_SPECIAL):
        raise DataError(f"a merge or a dictionary has the piece {min(special)!r}, which is a special token's name")
    vocabulary = {piece: i for i, piece in enumerate([*FAIRSEQ_SPECIAL, *pieces])}
    model = models.BPE(vocabulary, list(merges), unk_token="<unk>", end_of_word_suffix=_END)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer.decoder = decoders.BPEDecoder(suffix=_END)
    tokenizer.add_special_tokens(list(FAIRSEQ_SPECIAL))
    return reads_text(tokenizer), size


def read_merges(path: Path) -> list[Merge]:
    """Merges of a file, the first one first."""
    first, *rest = _lines(path)
    if first != VERSION:
        raise DataError(f"{path}, line 1: expected {VERSION!r} of subword-nmt, found {first[:40]!r}")
    merges: dict[Merge, None] = {}  # of two equal ones the first counts
    for number, line in enumerate(rest, start=2):
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            raise DataError(f"{path}, line {number}: expected a merge, two pieces and a blank, found {line[:40]!r}")
        merges[pair[0], pair[1]] = None
    return list(merges)


def read_dictionary(path: Path) -> list[str]:
    """Tokens of a fairseq dictionary; line n (from 1) has the id n + 3."""
    tokens: dict[str, None] = {}
    for number, line in enumerate(_lines(path), start=1):
        token, _, count = line.rpartition(" ")
        if not token or not count.isdecimal():
            raise DataError(
                f"{path}, line {number}: expected 'token count' of a fairseq dictionary, found {line[:40]!r}"
            )
        if token in tokens or token in FAIRSEQ_SPECIAL:
            raise DataError(f"{path}, line {number}: {token!r} is there already")
        tokens[token] = None
    return list(tokens)


def collected(merges: Sequence[Merge], lines: Iterable[str]) -> list[str]:
    """Tokens of the lines as fairseq would order them: by falling count, equal ones by the alphabet."""
    words = Counter(word for line in lines for word in line.split(" ") if word)
    letters = {token for word in words for token in (word[-1], *(c + _GOES_ON for c in word))}
    tokenizer, _ = merging_tokenizer(merges, sorted(letters))
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for piece in tokenizer.encode(word, add_special_tokens=False).tokens:
            counts[_token(piece)] += count
    return sorted(counts, key=lambda token: (-counts[token], token))


def _piece(token: str) -> str:
    inside = token.endswith(_GOES_ON) and token != _GOES_ON
    return token.removesuffix(_GOES_ON) if inside else token + _END


def _token(piece: str) -> str:
    return piece.removesuffix(_END) if piece.endswith(_END) else piece + _GOES_ON


def _lines(path: Path) -> list[str]:
    must_be_a_file(path)
    return file_text(path).rstrip("\n").split("\n")


Subword = Literal["bpe", "unigram", "char"]

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
_LINES = 1 << 14  # encoded at a time


@dataclass(frozen=True)
class Subwords:
    """One side's text <-> ids.

    Attributes:
        tokenizer: of the `tokenizers` library; it appends </s> by itself.
        vocab_size: ids below it are the vocabulary's. One read from merges has pieces beyond it, which are met on
            the way to longer ones: where one is left over, it is <unk>.
    """

    tokenizer: Tokenizer
    vocab_size: int

    @property
    def pad_id(self) -> int:
        return self._id("pad_token")

    @property
    def unk_id(self) -> int:
        return self._id("unk_token")

    @property
    def bos_id(self) -> int:
        return self._id("bos_token")

    @property
    def eos_id(self) -> int:
        return self._id("eos_token")

    def _id(self, role: str) -> int:
        found = self.tokenizer.token_to_id(SPECIAL[role])
        assert found is not None
        return found

    def encode(self, lines: Iterable[str]) -> list[list[int]]:
        """Ids of every line, </s> at its end."""
        return list(self.encode_each(lines))

    def encode_each(self, lines: Iterable[str]) -> Iterator[list[int]]:
        """The same one by one: all rows of a large text at once, as lists, are several gigabytes."""
        unk, size = self.unk_id, self.vocab_size
        beyond = size < self.tokenizer.get_vocab_size()
        lines = iter(lines)
        while chunk := list(islice(lines, _LINES)):
            for encoding in self.tokenizer.encode_batch_fast(chunk):
                yield [i if i < size else unk for i in encoding.ids] if beyond else encoding.ids

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Text of every row of ids, without special tokens."""
        return [text.strip(" ") for text in self.tokenizer.decode_batch([list(row) for row in rows])]

    def save(self, folder: Path) -> None:
        """As a folder of transformers, which `AutoTokenizer.from_pretrained` reads too.

        To that one the pieces beyond a dictionary are ids beyond it, where `Subwords.load` makes them <unk>.
        """
        fast = for_transformers(self.tokenizer)
        fast.init_kwargs["dictionary_size"] = self.vocab_size  # kept in tokenizer_config.json
        fast.save_pretrained(folder)

    @staticmethod
    def load(folder: Path) -> "Subwords":
        for name in ("tokenizer.json", "tokenizer_config.json"):
            must_be_a_file(folder / name)
        tokenizer = reads_text(Tokenizer.from_file(str(folder / "tokenizer.json")))
        options = read_json(folder / "tokenizer_config.json")
        return Subwords(tokenizer, options.get("dictionary_size", tokenizer.get_vocab_size()))


def train_subwords(lines: Iterable[str], kind: Subword, vocab_size: int) -> Subwords:
    """A vocabulary of the lines, ids 0 to 3 as in `SPECIAL`, white space normalised to single blanks.

    Args:
        kind: "bpe" and "unigram" work on bytes, so that every text has pieces and none is <unk>; "char" has one id per
            character, and <unk> for one it has not seen.
        vocab_size: at most so many ids, of "bpe" and "unigram".
    """
    least = len(SPECIAL) + len(BYTES)
    if kind != "char" and vocab_size < least:
        raise DataError(f"vocab_size={vocab_size}: {kind!r} needs at least {least}, the bytes and the special tokens")
    tokenizer = _characters(lines) if kind == "char" else _bytes(lines, kind, vocab_size)
    return _ending(tokenizer, tokenizer.get_vocab_size())


def _ending(tokenizer: Tokenizer, size: int) -> Subwords:
    """With </s> after every text."""
    end = SPECIAL["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    return Subwords(reads_text(tokenizer), size)


def _blanks() -> Any:
    return normalizers.Sequence([normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()])


def _characters(lines: Iterable[str]) -> Tokenizer:
    normal = _blanks()
    tokenizer = characters(normal.normalize_str(line) for line in lines)
    tokenizer.normalizer = normal
    return tokenizer


def _bytes(lines: Iterable[str], kind: Subword, vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE() if kind == "bpe" else models.Unigram())
    tokenizer.normalizer = _blanks()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    options: dict[str, Any] = {
        "vocab_size": vocab_size,
        "special_tokens": list(SPECIAL.values()),
        "initial_alphabet": BYTES,
        "show_progress": False,
    }
    if kind == "bpe":
        tokenizer.train_from_iterator(lines, trainers.BpeTrainer(min_frequency=2, **options))
    else:
        tokenizer.train_from_iterator(lines, trainers.UnigramTrainer(unk_token=SPECIAL["unk_token"], **options))
        tokenizer.model = _settled(json.loads(tokenizer.to_str())["model"]["vocab"])
    return tokenizer


def _settled(vocabulary: list[tuple[str, float]]) -> models.Unigram:
    """The same pieces in the same order every time.

    The trainer's scores differ in the last bits from run to run, equal ones change places, and the bytes it has not
    seen (at the lowest score, each 1e-4 above the one before) come in any order.
    """
    special, pieces = vocabulary[: len(SPECIAL)], vocabulary[len(SPECIAL) :]
    lowest = min(score for _, score in pieces)
    unseen = lowest + 1e-4 * len(BYTES)
    bytes_ = set(BYTES)
    settled = [(lowest if piece in bytes_ and score <= unseen else score, piece) for piece, score in pieces]
    ordered = sorted((-round(score, 9), piece) for score, piece in settled)
    tokens = [(piece, score) for piece, score in special] + [(piece, -score) for score, piece in ordered]
    return models.Unigram(tokens, unk_id=1)


def read_subword_nmt(codes: Path, dictionary: Path | None = None, lines: Iterable[str] = ()) -> Subwords:
    """subword-nmt's merges with a fairseq dictionary: their pieces and ids, for text of words between blanks.

    Args:
        codes: a file of merges, '#version: 0.2'.
        dictionary: lines of 'token count'; None collects the pieces of `lines`, the most frequent first.

    Raises:
        DataError: another version, or a line that is none.
    """
    merges = read_merges(Path(codes))
    tokens = read_dictionary(Path(dictionary)) if dictionary else collected(merges, lines)
    return _ending(*merging_tokenizer(merges, tokens))


@dataclass(frozen=True)
class PairTokenizer:
    """The vocabularies of both sides; one and the same object when they are joint.

    Attributes:
        languages: of source and target, as they were named.
        tokenized: the text is Moses-tokenised.
    """

    source: Subwords
    target: Subwords
    languages: tuple[str, str] = ("de", "en")
    tokenized: bool = False

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def save(self, folder: Path) -> None:
        """The tokenizer's files in the folder itself when joint, else in two folders there; and translation.json."""
        folder.mkdir(parents=True, exist_ok=True)
        for side, part in _parts(folder, self.joint).items():
            getattr(self, side).save(part)
        source, target = self.languages
        facts = {"source": source, "target": target, "tokenized": self.tokenized, "joint": self.joint}
        (folder / "translation.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> "PairTokenizer":
        must_be_a_file(folder / "translation.json")
        facts = read_json(folder / "translation.json")
        sides = {side: Subwords.load(part) for side, part in _parts(folder, facts["joint"]).items()}
        languages = facts["source"], facts["target"]
        return PairTokenizer(sides["source"], sides.get("target", sides["source"]), languages, facts["tokenized"])


def _parts(folder: Path, joint: bool) -> dict[str, Path]:
    return {"source": folder} if joint else {s: folder / f"{s}_tokenizer" for s in ("source", "target")}
