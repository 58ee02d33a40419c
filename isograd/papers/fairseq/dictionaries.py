"""fairseq's dictionaries and subword-nmt's merges -> the tokenizer of an imported model.

Ids are those of the table's rows: <s> 0, <pad> 1, </s> 2, <unk> 3, then line n of the dictionary n + 3. RoBERTa and
BART have one more after them, <mask>.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from isograd.convert.checkpoints.subwords import (
    FAIRSEQ_SPECIAL,
    PairTokenizer,
    Subwords,
    read_dictionary,
    read_subword_nmt,
)
from isograd.convert.checkpoints.tokenizers import MASK, reads_text
from isograd.convert.kinds import MASKED, PAIR, ModelKind
from isograd.errors import DataError
from isograd.models import IsogradConfig

ESCAPES = ("&apos;", "&quot;", "&amp;", "@-@")  # Moses's, which stand in no raw text


def tokenizer_of(
    kind: ModelKind,
    config: IsogradConfig,
    dictionaries: Sequence[Path],
    codes: Path | None = None,
    languages: tuple[str, str] = ("source", "target"),
) -> PairTokenizer | Subwords:
    """The tokenizer of a model, its sizes checked.

    Args:
        dictionaries: one, or the source's and the target's.
        codes: merges of subword-nmt; None reads words of the dictionary between blanks.

    Raises:
        DataError: a file that is none, a number of files that does not fit, a dictionary of another size.
    """
    if kind != PAIR:
        if len(dictionaries) != 1:
            raise DataError(f"{len(dictionaries)} dictionaries, and a model of one stack has one")
        return _side(dictionaries[0], codes, config.vocab_size, kind)
    if not 1 <= len(dictionaries) <= 2:
        raise DataError(f"{len(dictionaries)} dictionaries: expected the source's and the target's, or one for both")
    rows = (config.encoder_vocab_size or config.vocab_size, config.vocab_size)
    source, target = dictionaries[0], dictionaries[-1]
    joint = source == target or read_dictionary(source) == read_dictionary(target)
    if joint and rows[0] != rows[1]:
        raise DataError(f"{source} is for both sides, but their tables have {rows[0]} and {rows[1]} rows")
    first = _side(source, codes, rows[0], kind)
    second = first if joint else _side(target, codes, rows[1], kind)
    tokenized = any(escape in token for token in read_dictionary(target) for escape in ESCAPES)
    return PairTokenizer(first, second, languages, tokenized)


def _side(path: Path, codes: Path | None, rows: int, kind: ModelKind) -> Subwords:
    tokens = read_dictionary(path)
    size = len(FAIRSEQ_SPECIAL) + len(tokens)
    masked = rows == size + 1
    if size != rows and not masked:
        raise DataError(
            f"{path}: {size} ids, {len(FAIRSEQ_SPECIAL)} special ones among them, but the token table has {rows} rows"
        )
    if codes is not None:
        if kind != PAIR:
            raise DataError(f"{codes}: merges of subword-nmt are read for translations only; leave them out")
        return read_subword_nmt(codes, path)
    return Subwords(_words([*tokens, MASK] if masked else tokens, kind, masked), rows)


def _words(tokens: Sequence[str], kind: ModelKind, masked: bool) -> Tokenizer:
    """Words between blanks, as fairseq splits a line; what no language model read at an end is not put there."""
    vocabulary = {token: i for i, token in enumerate([*FAIRSEQ_SPECIAL, *tokens])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([*FAIRSEQ_SPECIAL, *([MASK] if masked else [])])
    ends: dict[ModelKind, Any] = {PAIR: "$A </s>", MASKED: "<s> $A </s>"}
    if kind in ends:
        special = [(token, vocabulary[token]) for token in ("<s>", "</s>")]
        tokenizer.post_processor = processors.TemplateProcessing(single=ends[kind], special_tokens=special)
    return reads_text(tokenizer)
