"""Character and byte-level BPE tokenizers, trained with the `tokenizers` library."""

import sys
from collections.abc import Iterable
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

Level = Literal["char", "bpe"]

SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
MASK = "<mask>"


def train_tokenizer(texts: Iterable[str], level: Level, vocab_size: int = 8192, mask: bool = False) -> Tokenizer:
    """A tokenizer for the texts: one token per character, or byte-level BPE of at most `vocab_size` entries.

    Ids 0 to 3 are <pad>, <unk>, <s>, </s> in both; with `mask` the last one is <mask>, as in RoBERTa, so that the
    other ids are the same without it.
    """
    tokenizer = characters(texts) if level == "char" else _bpe(texts, vocab_size - mask)
    if mask:
        tokenizer.add_special_tokens([MASK])
    return reads_text(tokenizer)


def smallest_bpe(mask: bool = False) -> int:
    """Ids that every byte-level BPE has: of the bytes and of the special tokens."""
    return len(SPECIAL) + len(pre_tokenizers.ByteLevel.alphabet()) + mask


def reads_text(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, for which "</s>" in a text is four characters (its file does not keep this)."""
    tokenizer.encode_special_tokens = True
    return tokenizer


def for_transformers(tokenizer: Tokenizer) -> Any:
    """The same tokenizer as transformers' fast tokenizer, to be saved beside a model."""
    options = {"clean_up_tokenization_spaces": False, "split_special_tokens": True}
    mask = {"mask_token": MASK} if tokenizer.token_to_id(MASK) is not None else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options, **SPECIAL, **mask)


def characters(texts: Iterable[str]) -> Tokenizer:
    """One token per character."""
    alphabet = sorted(set().union(*map(set, texts)))
    vocabulary = {token: i for i, token in enumerate([*SPECIAL.values(), *alphabet])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    return tokenizer


def _bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
