"""The tokens of a vocabulary as strings, in the order of their ids, whichever kind of tokenizer holds them."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from isograd.data.subwords import PairTokenizer, Subwords
from isograd.data.tokenizers import SPECIAL, for_transformers
from isograd.errors import ExportError


def pieces(tokenizer: Any, rows: int) -> list[str]:
    """One string per row of the token table; rows that the vocabulary does not know are <unused-i>.

    Args:
        tokenizer: `Subwords`, one of the `tokenizers` library or of transformers.
        rows: of the model's table; pieces beyond it are met on the way to longer ones and have no row.
    """
    known = {index: token for token, index in _vocabulary(tokenizer).items()}
    return [known.get(index, f"<unused-{index}>") for index in range(rows)]


def sides(tokenizer: Any) -> tuple[Any, Any]:
    """The vocabularies of source and target; one serves both unless it is a `PairTokenizer`."""
    return (tokenizer.source, tokenizer.target) if isinstance(tokenizer, PairTokenizer) else (tokenizer, tokenizer)


def special(tokens: list[str], index: int | None, role: str) -> str:
    """The token of a special id, or where the configuration names none, the usual one.

    Raises:
        ExportError: neither is in the vocabulary.
    """
    if index is not None:
        return tokens[index]
    if SPECIAL[role] in tokens:
        return SPECIAL[role]
    raise ExportError(f"the model's config has no {role}_id, and the vocabulary no {SPECIAL[role]!r}")


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Beside the model, as transformers reads it."""
    if isinstance(tokenizer, Tokenizer):
        tokenizer = for_transformers(tokenizer)
    if isinstance(tokenizer, PairTokenizer | Subwords):
        tokenizer.save(folder)
    else:
        tokenizer.save_pretrained(folder)


def _vocabulary(tokenizer: Any) -> dict[str, int]:
    known: dict[str, int] = (tokenizer.tokenizer if isinstance(tokenizer, Subwords) else tokenizer).get_vocab()
    return known
