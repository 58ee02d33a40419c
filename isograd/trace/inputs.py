"""Example inputs for one forward pass of a model, guessed from its configuration, its kind or its first layers.

Ids are random and never special (padding, beginning, end), two sequences of sixteen; a guess is believed when the model
has run on it. A generator of its own draws them, so that the same model gets the same inputs each time.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from isograd.data.text import first_line
from isograd.errors import InputsError
from isograd.trace.pretrained_inputs import of_pretrained

Inputs = dict[str, Any] | tuple[Any, ...]

_BATCH = 2
_LENGTHS = (16, 8, 4)
_WIDTHS = 4  # different widths of Linear layers that are tried
_SIDES = (224, 64, 32, 16)


def guess_inputs(model: nn.Module) -> Inputs:
    """Inputs that `model` runs on: a dict of keywords, or a tuple of what stands in order.

    Raises:
        InputsError: none of the guesses runs.
    """
    reason = "it has no Embedding, Linear or Conv2d to tell from"
    for inputs in _candidates(model):
        try:
            run(model, inputs)
        except Exception as error:  # whatever a model raises on inputs that are not for it
            reason = f"{type(error).__name__}: {first_line(error)}"
        else:
            return inputs
    raise InputsError(
        f"no example inputs can be guessed for {type(model).__name__} ({reason});"
        " give --batch module:callable, which returns what forward takes"
    )


def as_inputs(value: Any) -> Inputs:
    """What a --batch callable returned, as keywords (of a mapping) or in order (of a tensor, a tuple, a list).

    Raises:
        InputsError: something else, or no tensor in it.
    """
    inputs: Inputs
    if isinstance(value, Tensor):
        _check_filled(value)
        return (value,)
    if isinstance(value, Mapping):
        inputs = {str(name): part for name, part in value.items()}
    elif isinstance(value, tuple | list):
        inputs = tuple(value)
    else:
        raise InputsError(f"expected a tensor, a tuple or a dict of what forward takes; got {type(value).__name__}")
    tensors = [part for part in tree_leaves(inputs) if isinstance(part, Tensor)]
    if not tensors:
        raise InputsError("there is no tensor in what the batch's callable returned")
    _check_filled(tensors[0])
    return inputs


def _check_filled(tensor: Tensor) -> None:
    if not tensor.numel():
        raise InputsError(f"the batch is empty: its first tensor has the shape {tuple(tensor.shape)}")


def with_labels(model: nn.Module, inputs: Inputs) -> Inputs:
    """The inputs with `labels`, where forward takes them and they can be had; else the inputs as they are.

    Labels are drawn anew: those equal to the ids that the model reads would be given away by a tied head.
    """
    parameters = inspect.signature(model.forward).parameters
    if "labels" not in parameters:
        return inputs
    named = inputs if isinstance(inputs, dict) else dict(zip(parameters, inputs, strict=False))
    logits = getattr(run(model, inputs), "logits", None)
    if "labels" in named or not isinstance(logits, Tensor) or logits.ndim not in (2, 3):
        return inputs
    return {**named, "labels": _labels(logits)}


def run(model: nn.Module, inputs: Inputs) -> Any:
    """One forward pass in evaluation, without gradients, which leaves modes and random numbers as they were."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()
            return model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    finally:
        for module, training in modes:
            module.training = training


def _labels(logits: Tensor) -> Tensor:
    """Classes of every row of logits; of one class, values."""
    draw = torch.Generator().manual_seed(1)
    *rows, classes = logits.shape
    if classes == 1:
        return torch.randn(rows, generator=draw).to(logits)
    return torch.randint(classes, rows, generator=draw).to(logits.device)


def _candidates(model: nn.Module) -> Iterator[Inputs]:
    """Guesses, the best ones first, where the model's parameters are."""
    device, dtype = _place(model)
    for inputs in _guesses(model):
        if isinstance(inputs, dict):
            yield {name: _moved(part, device, dtype) for name, part in inputs.items()}
        else:
            yield tuple(_moved(part, device, dtype) for part in inputs)


def _guesses(model: nn.Module) -> Iterator[Inputs]:
    if isinstance(model, PreTrainedModel):
        yield from of_pretrained(model)
    yield from _of_torch(model)
    yield from _of_x_transformers(model)
    yield from _of_timm(model)
    yield from _of_layers(model)


def _of_torch(model: nn.Module) -> Iterator[Inputs]:
    """torch.nn's stacks; the decoder reads to the left only, as it is meant to."""
    if isinstance(model, nn.Transformer):
        first: Any = model.encoder.layers[0]
        width, in_front = first.self_attn.embed_dim, model.batch_first
    elif isinstance(model, nn.TransformerEncoder | nn.TransformerDecoder):
        first = model.layers[0]
        width, in_front = first.self_attn.embed_dim, first.self_attn.batch_first
    elif isinstance(model, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        width, in_front = model.self_attn.embed_dim, model.self_attn.batch_first
    else:
        return
    source, target = (
        _floats(*((_BATCH, length) if in_front else (length, _BATCH)), width, seed=length) for length in (16, 12)
    )
    causal = nn.Transformer.generate_square_subsequent_mask(12)
    if isinstance(model, nn.Transformer):
        yield {"src": source, "tgt": target, "tgt_mask": causal}
    elif isinstance(model, nn.TransformerDecoder | nn.TransformerDecoderLayer):
        yield {"tgt": target, "memory": source, "tgt_mask": causal}
    else:
        yield (source,)


def _of_x_transformers(model: nn.Module) -> Iterator[Inputs]:
    """x-transformers: ids for a wrapper, vectors of the width for bare attention layers."""
    if not type(model).__module__.startswith("x_transformers"):
        return
    for length in _LENGTHS:
        if isinstance(tokens := getattr(model, "num_tokens", None), int):
            yield (_ids(tokens, length),)
        if isinstance(width := getattr(model, "dim", None), int):
            yield (_floats(_BATCH, length, width),)


def _of_timm(model: nn.Module) -> Iterator[Inputs]:
    """timm: the size that the patches are cut for, else the one that the configuration names."""
    patches: Any = getattr(model, "patch_embed", None)
    settings = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    size = settings.get("input_size") if isinstance(settings, Mapping) else None
    sides = getattr(patches, "img_size", None) or (size[-2:] if size else None)
    if sides is not None:
        channels = getattr(getattr(patches, "proj", None), "in_channels", size[0] if size else 3)
        yield (_floats(_BATCH, channels, *sides),)


def _of_layers(model: nn.Module) -> Iterator[Inputs]:
    """By the first layers: ids for an Embedding, vectors for a Linear, images for a Conv2d; for all that forward needs.

    Arguments whose names speak of a mask are ones.
    """
    names = _arguments(model)
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    widths = list(dict.fromkeys(m.in_features for m in model.modules() if isinstance(m, nn.Linear)))[:_WIDTHS]
    images = [m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)][:1]
    for length in _LENGTHS:
        for rows in dict.fromkeys(tables):
            yield _filled(names, [_ids(rows, length, seed=i) for i in range(len(names))])
    for width in widths:
        yield _filled(names, [_floats(_BATCH, _LENGTHS[0], width, seed=i) for i in range(len(names))])
        yield _filled(names, [_floats(_BATCH, width, seed=i) for i in range(len(names))])
    for channels in images:
        for side in _SIDES:
            yield _filled(names, [_floats(_BATCH, channels, side, side, seed=i) for i in range(len(names))])


def _arguments(model: nn.Module) -> list[str]:
    """What forward needs, in order; else the first of what it takes."""
    in_order = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in inspect.signature(model.forward).parameters.values() if p.kind in in_order]
    needed = [p.name for p in taken if p.default is p.empty]
    return needed or [p.name for p in taken[:1]] or ["x"]


def _filled(names: list[str], parts: list[Tensor]) -> tuple[Tensor, ...]:
    shape = parts[0].shape[:2]
    return tuple(
        torch.ones(shape, dtype=torch.bool) if "mask" in name else part for name, part in zip(names, parts, strict=True)
    )


def _ids(rows: int, length: int, seed: int = 0) -> Tensor:
    """Ids of a table whose first four rows, where special ones use to stand, are left out."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(min(4, rows - 1), rows, (_BATCH, length), generator=draw)


def _floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _place(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    floating = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    return (floating[0].device, floating[0].dtype) if floating else (torch.device("cpu"), torch.float32)


def _moved(part: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(part, Tensor):
        return part
    return part.to(device, dtype) if part.is_floating_point() else part.to(device)
