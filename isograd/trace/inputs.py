"""Inputs for one forward pass of a model: given, guessed from its kind or its first layers, or a text's tokens.

Ids are random and never special (padding, beginning, end), two sequences of sixteen; a guess is taken once the model
has run on it. A generator of its own draws them, so that the same model gets the same inputs each time.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from isograd.errors import InputsError, IsogradError, first_line
from isograd.hub import from_pretrained
from isograd.trace.pretrained_inputs import BATCH, floats, of_pretrained
from isograd.trace.record import arguments, fitted, is_large

Inputs = dict[str, Any] | tuple[Any, ...]

_LENGTHS = (16, 8, 4)
_WIDTHS = 4  # different widths of Linear layers that are tried
_SIZES, _VARIABLES = 12, 7
_SIDES = (224, 64, 32, 16)
_TEXT_LENGTHS = (128, 64, 32, 16, 8)
_TEXTS = 4
_MASKED = 0.15  # of the tokens that a masked model reads
IGNORED = -100  # a label that no loss counts


def guess_inputs(model: nn.Module) -> Inputs:
    """Inputs that `model` runs on, where its parameters are: a dict of keywords, or a tuple of what stands in order.

    Raises:
        InputsError: none of the guesses runs.
    """
    reason = ""
    device = next((t.device for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()), "cpu")
    for guess in _short(model, _guesses(model)):
        inputs: Inputs = fitted(model, guess, device)
        try:
            run(model, inputs)
        except Exception as error:  # whatever a model raises on inputs that are not for it
            reason = reason or f"on {_described(inputs)}: {type(error).__name__}: {first_line(error)}"
        else:
            return inputs
    raise InputsError(
        f"no example inputs can be guessed for {type(model).__name__}"
        f" ({reason or 'it has no Embedding, Linear or Conv2d to tell from'});"
        " give --batch module:callable, which returns what forward takes"
    )


def _short(model: nn.Module, guesses: Iterator[Inputs]) -> Iterator[Inputs]:
    """The guesses; for a large model first those of ids and masks alone at half their length."""
    for guess in guesses:
        parts = list(guess.values() if isinstance(guess, dict) else guess)
        shapes = {tuple(p.shape) if isinstance(p, Tensor) and not p.is_floating_point() else () for p in parts}
        if is_large(model) and len(shapes) == 1 and len(shape := shapes.pop()) == 2 and shape[1] >= _LENGTHS[0]:
            cut = [p[:, : shape[1] // 2] for p in parts]
            yield dict(zip(guess, cut, strict=True)) if isinstance(guess, dict) else tuple(cut)
        yield guess


def _described(inputs: Inputs) -> str:
    """The shapes of inputs, by name where they have one."""
    parts = inputs.items() if isinstance(inputs, dict) else (("", part) for part in inputs)
    return ", ".join(f"{name} {tuple(part.shape)}".strip() for name, part in parts if isinstance(part, Tensor))


def as_inputs(value: Any) -> Inputs:
    """What a --batch callable returned, as keywords (of a mapping) or in order (of a tensor, a tuple, a list).

    Raises:
        InputsError: something else, no tensor in it, or an empty one.
    """
    if not isinstance(value, Tensor | Mapping | tuple | list):
        raise InputsError(f"expected a tensor, a tuple or a dict of what forward takes; got {type(value).__name__}")
    args, kwargs = arguments(value)
    tensors = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor | np.ndarray)]
    if not tensors:
        raise InputsError("there is no tensor in what the batch's callable returned")
    if not np.prod(tensors[0].shape):
        raise InputsError(f"the batch is empty: its first tensor has the shape {tuple(tensors[0].shape)}")
    return {str(name): part for name, part in kwargs.items()} if isinstance(value, Mapping) else args


def few_sequences(model: nn.Module, inputs: Inputs, most: int | None = None) -> Inputs:
    """The first sequences of a batch: where there are more than `most`, or as many as positions, which makes axes look
    alike. All of them where the model does not run on fewer.
    """
    parts = list(inputs.values() if isinstance(inputs, dict) else inputs)
    shapes = [part.shape for part in parts if isinstance(part, Tensor) and part.ndim]
    counts = {shape[0] for shape in shapes}
    if len(counts) != 1 or (count := counts.pop()) < 3 or not any(len(shape) > 1 for shape in shapes):
        return inputs
    sizes = {size for shape in shapes for size in shape[1:]}
    if count not in sizes and (most is None or count <= most):
        return inputs
    fewer = next((n for n in (4, 3, 5, 6, 2) if n not in sizes and n < count and n <= (most or n)), None)
    if fewer is None:
        return inputs
    try:
        cut = [part[:fewer] if isinstance(part, Tensor) and part.ndim else part for part in parts]
        made: Inputs = dict(zip(inputs, cut, strict=True)) if isinstance(inputs, dict) else tuple(cut)
        run(model, made)
    except Exception:  # a mask of (time, time) is no batch, and a sparse matrix cannot be cut
        return inputs
    return made


def run(model: nn.Module, inputs: Inputs) -> Any:
    """One forward pass in evaluation, without gradients, which leaves modes and random numbers as they were."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(model):
        return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model in evaluation mode; afterwards each module is in its own again."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def text_inputs(model: nn.Module, name: str, text: str, seed: int = 0) -> tuple[Inputs, Tensor | None]:
    """The beginning of a text in up to four sequences of up to 128 tokens, and labels where the model fills in masks.

    A decoder beside an encoder reads the text after the encoder's.

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
    for length in _TEXT_LENGTHS:
        rows = min(_TEXTS, len(ids) // (length * len(names)))
        if not rows:
            continue
        cut = ids[: rows * length * len(names)].view(len(names), rows, length)
        inputs = {n: p for n, p in guessed.items() if "mask" not in n} | dict(zip(names, cut, strict=True))
        inputs |= {n: torch.ones_like(cut[0]) for n in guessed if n == "attention_mask"}
        if _runs(model, inputs):
            return _masked(model, inputs, tokenizer, seed)
    raise InputsError(f"the text has {len(ids)} tokens, or the model runs on none of {_TEXT_LENGTHS} at a time")


def _guesses(model: nn.Module) -> Iterator[Inputs]:
    if isinstance(model, PreTrainedModel):
        yield from of_pretrained(model)
    yield from _of_torch(model)
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
        floats(*((BATCH, length) if in_front else (length, BATCH)), width, seed=length) for length in (16, 12)
    )
    causal = nn.Transformer.generate_square_subsequent_mask(12)
    if isinstance(model, nn.Transformer):
        yield {"src": source, "tgt": target, "tgt_mask": causal}
    elif isinstance(model, nn.TransformerDecoder | nn.TransformerDecoderLayer):
        yield {"tgt": target, "memory": source, "tgt_mask": causal}
    else:
        yield (source,)


def _of_timm(model: nn.Module) -> Iterator[Inputs]:
    """timm: the size that the patches are cut for, else the one that the configuration names."""
    patches: Any = getattr(model, "patch_embed", None)
    settings = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    size = settings.get("input_size") if isinstance(settings, Mapping) else None
    sides = getattr(patches, "img_size", None) or (size[-2:] if size else None)
    sides = (sides, sides) if isinstance(sides, int) else sides
    if sides is not None:
        channels = getattr(getattr(patches, "proj", None), "in_channels", size[0] if size else 3)
        yield (floats(BATCH, channels, *sides),)


def _of_layers(model: nn.Module) -> Iterator[Inputs]:
    """By the first layers: ids for an Embedding, vectors for a Linear, images for a Conv2d; for all that forward needs.

    Arguments whose names speak of a mask are ones, those that are declared as numbers are small ones.
    """
    needed = _arguments(model)
    widths = list(dict.fromkeys(m.in_features for m in model.modules() if isinstance(m, nn.Linear)))[:_WIDTHS]
    images = [m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)][:1]
    tables = list(dict.fromkeys(_tables(model)))
    for length in _LENGTHS:
        for rows in tables:
            yield _filled(needed, [_ids(rows, length, seed=i) for i in range(len(needed))])
    for rows in tables[:1] if len(needed) == 1 else ():
        ids = _ids(rows, _LENGTHS[0])
        yield ({"input_ids": ids, "attention_mask": torch.ones_like(ids)},)
    for width in widths:
        yield _filled(needed, [floats(BATCH, _LENGTHS[0], width, seed=i) for i in range(len(needed))])
        yield _filled(needed, [floats(BATCH, width, seed=i) for i in range(len(needed))])
    sizes = (n for m in model.modules() if isinstance(m, nn.Linear) for n in (m.in_features, m.out_features))
    for size in list(dict.fromkeys(sizes))[:_SIZES]:  # series of a fixed length, of any number of variables
        yield _filled(needed, [floats(BATCH, size, _VARIABLES, seed=i) for i in range(len(needed))])
    for channels in dict.fromkeys([*images, *([3, 1] if widths else [])]):  # patches may be cut by hand
        for side in _SIDES:
            yield _filled(needed, [floats(BATCH, channels, side, side, seed=i) for i in range(len(needed))])


def _tables(model: nn.Module) -> Iterator[int]:
    """Rows of what may be looked up in: of Embeddings, else of matrices that a module holds without being a layer."""
    found = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    yield from found
    if not found:
        held = (nn.ParameterDict, nn.ParameterList)
        holders = (m for m in model.modules() if isinstance(m, held) or not type(m).__module__.startswith("torch.nn"))
        own = (p for m in holders for p in m.parameters(recurse=False))
        yield from (p.shape[0] for p in own if p.ndim == 2 and p.shape[0] > 1)


def _arguments(model: nn.Module) -> list[inspect.Parameter]:
    """What forward needs, in order; else the first of what it takes."""
    in_order = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in inspect.signature(model.forward).parameters.values() if p.kind in in_order]
    needed = [p for p in taken if p.default is p.empty]
    return needed or taken[:1] or [inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY)]


def _filled(needed: list[inspect.Parameter], parts: list[Tensor]) -> tuple[Any, ...]:
    shape = parts[0].shape[:2]
    plain: dict[Any, Any] = {int: 2, "int": 2, float: 0.5, "float": 0.5, bool: False, "bool": False}

    def fill(parameter: inspect.Parameter, part: Tensor) -> Any:
        if parameter.annotation in plain:
            return plain[parameter.annotation]
        return torch.ones(shape, dtype=torch.bool) if "mask" in parameter.name else part

    return tuple(fill(parameter, part) for parameter, part in zip(needed, parts, strict=True))


def _ids(rows: int, length: int, seed: int = 0) -> Tensor:
    """Ids of a table whose first four rows, where special ones use to stand, are left out."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(min(4, rows - 1), rows, (BATCH, length), generator=draw)


def _tokenizer(name: str) -> Any:
    """From the folder, that of a run too, or from the hub."""
    path = Path(name)
    own = [f for f in (path, path / "model") if any(f.glob("tokenizer*")) or any(f.glob("*vocab*"))]
    if not own and (path.exists() or ":" in name):
        raise InputsError(f"{name} has no tokenizer")
    try:
        return from_pretrained(transformers.AutoTokenizer, own[0] if own else name)
    except IsogradError:
        raise
    except Exception as error:  # of the hub, of JSON, of the tokenizers library
        raise InputsError(f"{name}: no tokenizer that can be read ({first_line(error)})") from error


def _runs(model: nn.Module, inputs: dict[str, Any]) -> bool:
    try:
        run(model, inputs)
    except Exception:  # too long for its positions, ids that it does not have
        return False
    return True


def _masked(model: nn.Module, inputs: dict[str, Any], tokenizer: Any, seed: int) -> tuple[Inputs, Tensor | None]:
    """Of a masked model some tokens replaced by <mask>, which are its labels."""
    if not type(model).__name__.endswith("ForMaskedLM") or tokenizer.mask_token_id is None:
        return inputs, None
    ids = inputs["input_ids"]
    chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed)) < _MASKED
    chosen[0, 0] = True
    masked = inputs | {"input_ids": ids.masked_fill(chosen, tokenizer.mask_token_id)}
    return masked, ids.masked_fill(~chosen, IGNORED)
