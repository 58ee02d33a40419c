"""Tokenizers beside a model: read, written, and their tokens as strings in the order of their ids."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from isograd.convert.checkpoints.subwords import PairTokenizer, Subwords
from isograd.convert.checkpoints.tokenizers import SPECIAL, for_transformers
from isograd.errors import InteropError, IsogradError, first_line
from isograd.hub import from_pretrained

_FILES = ("tokenizer*", "*vocab*", "translation.json", "*.model", "*.spm", "merges.txt")


def load_tokenizer(name: str | Path) -> Any:
    """A `PairTokenizer` of a model that translates, else the tokenizer as transformers reads it; None where none lies.

    Args:
        name: a folder, or a name on the hub.

    Raises:
        InteropError: it cannot be read.
    """
    folder = Path(name)
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _FILES):
        return None
    try:
        if (folder / "translation.json").is_file():
            return PairTokenizer.load(folder)
        return from_pretrained(AutoTokenizer, name)
    except IsogradError:
        raise
    except Exception as error:  # of JSON, of a key, and what the tokenizers library raises, which is an Exception
        raise InteropError(f"{name}: no tokenizer that can be read ({first_line(error)})") from error


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
        InteropError: neither is in the vocabulary.
    """
    if index is not None:
        return tokens[index]
    if SPECIAL[role] in tokens:
        return SPECIAL[role]
    raise InteropError(f"the model's config has no {role}_id, and the vocabulary no {SPECIAL[role]!r}")


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
