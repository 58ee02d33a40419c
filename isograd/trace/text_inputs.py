"""A batch of real text for a model, with its own tokenizer."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from isograd.data.text import first_line
from isograd.errors import InputsError
from isograd.trace.inputs import Inputs, guess_inputs, run

_LENGTHS = (128, 64, 32, 16, 8)
_SEQUENCES = 4
_HIDDEN = 0.15  # of the tokens that a masked model reads
IGNORED = -100


def text_inputs(model: nn.Module, name: str, text: str, seed: int = 0) -> tuple[Inputs, Tensor | None]:
    """The beginning of a text in up to four sequences of up to 128 tokens, and labels where the model fills in masks.

    A decoder beside an encoder reads the text behind the encoder's.

    Args:
        name: of the folder, or on the hub, where the tokenizer is.

    Raises:
        InputsError: no tokenizer, a model that reads no ids, or a text too short; in one line.
    """
    tokenizer = _tokenizer(name)
    guessed = guess_inputs(model)
    names = [n for n in guessed if n.endswith("input_ids")] if isinstance(guessed, dict) else []
    if not isinstance(guessed, dict) or not names:
        raise InputsError(f"{type(model).__name__} takes no input_ids")
    ids = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    for length in _LENGTHS:
        rows = min(_SEQUENCES, len(ids) // (length * len(names)))
        if not rows:
            continue
        cut = ids[: rows * length * len(names)].view(len(names), rows, length)
        inputs = {n: p for n, p in guessed.items() if "mask" not in n} | dict(zip(names, cut, strict=True))
        inputs |= {n: torch.ones_like(cut[0]) for n in guessed if n == "attention_mask"}
        if _runs(model, inputs):
            return _hidden(model, inputs, tokenizer, seed)
    raise InputsError(f"the text has {len(ids)} tokens, or the model runs on none of {_LENGTHS} at a time")


def _tokenizer(name: str) -> Any:
    """From the folder, that of a run too, or from the hub."""
    path = Path(name)
    own = [f for f in (path, path / "model") if any(f.glob("tokenizer*")) or any(f.glob("*vocab*"))]
    if not own and (path.exists() or ":" in name):
        raise InputsError(f"{name} has no tokenizer")
    try:
        return transformers.AutoTokenizer.from_pretrained(str(own[0]) if own else name)
    except Exception as error:  # of the hub, of JSON, of the tokenizers library
        raise InputsError(f"{name}: no tokenizer that can be read ({first_line(error)})") from error


def _runs(model: nn.Module, inputs: dict[str, Any]) -> bool:
    try:
        run(model, inputs)
    except Exception:  # too long for its positions, ids that it does not have
        return False
    return True


def _hidden(model: nn.Module, inputs: dict[str, Any], tokenizer: Any, seed: int) -> tuple[Inputs, Tensor | None]:
    """Of a masked model some tokens behind <mask>, which are its labels."""
    if not type(model).__name__.endswith("ForMaskedLM") or tokenizer.mask_token_id is None:
        return inputs, None
    ids = inputs["input_ids"]
    chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed)) < _HIDDEN
    chosen[0, 0] = True
    hidden = inputs | {"input_ids": ids.masked_fill(chosen, tokenizer.mask_token_id)}
    return hidden, ids.masked_fill(~chosen, IGNORED)
