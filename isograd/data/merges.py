"""subword-nmt's merges and fairseq's dictionary as one tokenizer: their pieces, their ids.

subword-nmt cuts "pyramide" to "pyr@@ ami@@ de", and fairseq looks these up; here the pieces are "pyr", "ami",
"de</w>", as the merges write them. A merge needs the ids of both its parts and of what they become, though many of
these are in no dictionary, being met on the way to longer pieces only: they come behind the dictionary, and whoever
finds one left over reads <unk>.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from isograd.data.text import file_text, must_be_a_file
from isograd.data.tokenizers import reads_text
from isograd.errors import DataError

Merge = tuple[str, str]

VERSION = "#version: 0.2"
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3 in fairseq
_END, _GOES_ON = "</w>", "@@"


def merging_tokenizer(merges: Sequence[Merge], tokens: Iterable[str]) -> tuple[Tokenizer, int]:
    """The tokenizer, and how many ids are the vocabulary's: fairseq's special tokens, then `tokens`.

    Args:
        tokens: as in a fairseq dictionary, "pyr@@" or "de".
    """
    pieces = dict.fromkeys(map(_piece, tokens))
    size = len(SPECIAL) + len(pieces)
    pieces |= dict.fromkeys(piece for left, right in merges for piece in (left, right, left + right))
    if special := pieces.keys() & set(SPECIAL):
        raise DataError(f"a merge or a dictionary has the piece {min(special)!r}, which is a special token's name")
    vocabulary = {piece: i for i, piece in enumerate([*SPECIAL, *pieces])}
    model = models.BPE(vocabulary, list(merges), unk_token="<unk>", end_of_word_suffix=_END)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer.decoder = decoders.BPEDecoder(suffix=_END)
    tokenizer.add_special_tokens(list(SPECIAL))
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
        if token in tokens or token in SPECIAL:
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
