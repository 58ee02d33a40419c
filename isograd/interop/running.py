"""One side of a comparison, in one precision: from a batch to logits, and from a prompt to what is written on."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from isograd.interop.sample import Batch

Precision = Literal["fp64", "fp32", "bf16"]
DTYPES: dict[Precision, torch.dtype] = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Runner:
    """What can be compared.

    Attributes:
        logits: a batch of `Sample.batches` -> logits, (batch, time, vocabulary) or (batch, classes).
        write: a prompt of `Sample.prompts`, beams (1 is greedy), new tokens at most -> for each sequence the ids behind
            what was read, without eos and what follows it.
    """

    logits: Callable[[Batch], Tensor]
    write: Callable[[Batch, int, int], list[list[int]]] | None = None


Part = nn.Module | Runner | Callable[[Batch], Tensor]
Side = Part | Mapping[Precision, Part]


def runner(side: Side, precision: Precision) -> Runner | None:
    """The side in a precision; None where it has none."""
    if isinstance(side, Mapping):
        part = side.get(precision)
        return None if part is None else _runner(part, precision)
    if isinstance(side, nn.Module) or precision == "fp32":
        return _runner(side, precision)
    return None


def _runner(part: Part, precision: Precision) -> Runner:
    if isinstance(part, Runner):
        return part
    if not isinstance(part, nn.Module):
        return Runner(logits=part)
    model: Any = copy.deepcopy(part).to(DTYPES[precision]).eval()

    def logits(batch: Batch) -> Tensor:
        with torch.inference_mode():
            out = model(**_there(model, batch))
        found = out if isinstance(out, Tensor) else out.logits if hasattr(out, "logits") else out[0]
        assert isinstance(found, Tensor)
        return found

    def write(prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
        return _written(model, prompt, beams, new_tokens)

    generates = hasattr(part, "can_generate") and model.can_generate()
    return Runner(logits=logits, write=write if generates else None)


def _written(model: Any, prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
    """By the rules of transformers, whatever generation_config.json says: it may differ where the function does not."""
    config = model.config
    end = config.eos_token_id if isinstance(config.eos_token_id, int) else None
    pad = config.pad_token_id if isinstance(config.pad_token_id, int) else end or 0
    model.generation_config = GenerationConfig(
        pad_token_id=pad,
        bos_token_id=config.bos_token_id,
        eos_token_id=end,
        decoder_start_token_id=getattr(config, "decoder_start_token_id", None),
    )
    with torch.inference_mode():
        out = model.generate(**_there(model, prompt), num_beams=beams, do_sample=False, max_new_tokens=new_tokens)
    read = 1 if config.is_encoder_decoder else prompt["input_ids"].shape[1]
    rows = [list(row) for row in out[:, read:].tolist()]
    return [row[: row.index(end)] if end in row else row for row in rows]


def _there(model: Any, batch: Batch) -> dict[str, Tensor]:
    device = next(iter(model.parameters())).device
    return {name: value.to(device) for name, value in batch.items()}
