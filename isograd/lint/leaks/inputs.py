"""The inputs of a model by the names that forward has for them, and with something else in a place."""

import inspect
from typing import Any

import torch
from torch import Tensor

from isograd.lint.checked_model import CheckedModel

CHANGED = 1e-5  # of the largest output: more than another order of rounding does


def named_inputs(checked: CheckedModel) -> dict[str, Any]:
    """Inputs by the names that forward has for them, the batch in front."""
    inputs = checked.inputs
    if not isinstance(inputs, dict):
        names = [*inspect.signature(checked.model.forward).parameters]
        names += [str(i) for i in range(len(names), len(inputs))]
        inputs = dict(zip(names, inputs, strict=False))
    return {name: in_batches(checked, part) for name, part in inputs.items()}


def as_given(checked: CheckedModel, named: dict[str, Any]) -> Any:
    """Named inputs as the model was given them."""
    turned = {name: in_batches(checked, part) for name, part in named.items()}
    more = isinstance(checked.inputs, dict) or len(turned) > len(checked.inputs)  # by name alone
    return turned if more else tuple(turned.values())


def output_of(checked: CheckedModel, inputs: Any) -> Tensor | None:
    made = checked.run(inputs)[0]
    return in_batches(checked, made) if made is not None and made.ndim >= 3 else made


def in_batches(checked: CheckedModel, part: Any) -> Any:
    """Sequences of a model that has time in front, with the batch there, and the other way round."""
    sequences = isinstance(part, Tensor) and part.ndim >= (2 if checked.named_time_first else 3)
    vectors = sequences and (checked.named_time_first or (part.ndim == 3 and part.is_floating_point()))
    return part.transpose(0, 1) if vectors and checked.time_first else part


def others(checked: CheckedModel, x: Tensor) -> Tensor:
    """Something else of the same kind everywhere; special ids stay, since models look for them."""
    draw = torch.Generator().manual_seed(7)
    if x.dtype == torch.bool:
        return ~x
    if x.is_floating_point():
        return x + torch.randn(x.shape, generator=draw).to(x) * (x.std() if x.numel() > 1 else x.abs()).clamp_min(1.0)
    ids = (getattr(checked.config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "sep", "cls"))
    special = torch.tensor([i for i in ids if isinstance(i, int)], dtype=x.dtype, device=x.device)
    used = torch.unique(x)
    special = torch.cat([special, _repeated_at_ends(x)])
    used = used[~torch.isin(used, special)]
    if len(used) < 2:
        return x + 1
    next_one = used[(torch.searchsorted(used, x.contiguous()) + 1) % len(used)]
    return torch.where(torch.isin(x, special), x, next_one)


def _repeated_at_ends(ids: Tensor) -> Tensor:
    """Ids that fill the first or the last places of some sequences and not of all: padding."""
    if ids.ndim != 2 or ids.shape[1] < 4:
        return ids.new_empty(0)
    ends = [row[at] for row in ids for at, beside in ((0, 1), (-1, -2)) if row[at] == row[beside]]
    return torch.stack(ends) if 0 < len(ends) < 2 * len(ids) else ids.new_empty(0)


def _repeated(value: Any, like: Tensor, times: int) -> Any:
    """The first of a batch, as often as asked; what has no batch stays."""
    if not isinstance(value, Tensor) or value.ndim < 1 or value.shape[0] != like.shape[0]:
        return value
    return value[:1].repeat(times, *[1] * (value.ndim - 1))  # in memory of its own: models take views of it


def aligned(checked: CheckedModel) -> list[str]:
    """Inputs of as many positions as the output."""
    out = output_of(checked, checked.inputs)
    if out is None or out.ndim < 3:
        return []
    named = named_inputs(checked)
    found = [n for n, v in named.items() if isinstance(v, Tensor) and v.ndim >= 2 and v.shape[:2] == out.shape[:2]]
    return [n for n in found if "mask" not in n]


def sequence_of(checked: CheckedModel) -> str | None:
    """The input whose positions are the output's: the decoder's, else the first sequence where there is one stack."""
    found = aligned(checked)
    both = getattr(checked.config, "is_encoder_decoder", False)  # without decoder ids it makes them of the encoder's
    first = found[0] if found and not both else None
    return next((n for n in found if n.startswith(("decoder", "tgt"))), first)


def reach_of(checked: CheckedModel, name: str) -> Tensor | None:
    """(output position, input position) -> whether the one changes with the other."""
    named = named_inputs(checked)
    x = named[name][:1]
    if x.ndim > 2 and not x.is_floating_point():  # several codes at each position: which axis is time, is not known
        return None
    time = x.shape[1]
    rows = x.repeat(time + 1, *[1] * (x.ndim - 1))
    other = others(checked, x)
    for t in range(time):
        rows[t + 1, t] = other[0, t]
    fixed = {key: _repeated(value, named[name], time + 1) for key, value in named.items()}
    out = output_of(checked, as_given(checked, fixed | {name: rows}))
    if out is None or out.ndim < 3 or out.shape[:2] != (time + 1, time):
        return None
    gaps = (out[1:] - out[:1]).abs().flatten(2).amax(-1)  # (input position, output position)
    return (gaps > CHANGED * out.abs().max()).T


def is_read_to_the_left(checked: CheckedModel, name: str) -> bool:
    reach = reach_of(checked, name)
    return reach is not None and bool(reach.tril(-1).any()) and not bool(reach.triu(1).any())
