"""The module in which numbers first stop being finite, found by running the batch again."""

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from isograd.diagnose.watch.layers import plain


def culprit(model: nn.Module, batch: Any, *, forward: bool = True) -> tuple[str, str] | None:
    """The address, and what is seen there: a weight that is not finite, or outputs of finite inputs that are not.

    None where the batch does not run, or everything is finite in the forward pass.

    Args:
        forward: the loss was not finite: also look in half precision, as autocast may have computed it.
    """
    for name, p in model.named_parameters():
        if not bool(torch.isfinite(p.detach()).all()):
            return plain(name), "holds weights that are not finite: the update before has made them"
    with suppress(Exception):  # somebody else's model
        for low in (None, torch.float16, torch.bfloat16) if forward else (None,):
            if found := _run(model, batch, low):
                return found
    return None


def _run(model: nn.Module, batch: Any, low: torch.dtype | None) -> tuple[str, str] | None:
    found: list[tuple[str, str]] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            made, read = _largest(output, False), max(_largest(args, True), _largest(kwargs, True))
            if not found and made == torch.inf and read < torch.inf:
                how = f" in {str(low).removeprefix('torch.')}" if low is not None else ""
                found.append((plain(name), f"gives numbers that are not finite{how}, of inputs up to {read:.3g}"))

        return hook

    device = next(model.parameters()).device.type
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        if low is not None:
            stack.enter_context(torch.autocast(device, low))
        for name, module in model.named_modules():
            if name:
                stack.callback(module.register_forward_hook(look(name), with_kwargs=True).remove)
        call(getattr(model, "_orig_mod", model), batch)
    return found[0] if found else None


def call(model: nn.Module, batch: Any) -> Any:
    """What a model gives for a batch, or for several, of the form that it takes."""
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], Mapping | list | tuple):
        return [call(model, one) for one in batch]
    if isinstance(batch, Mapping):
        try:
            return model(**batch)
        except TypeError:
            return model(next(iter(batch.values())))
    if not isinstance(batch, list | tuple):
        return model(batch)
    try:
        return model(batch[0])
    except TypeError:
        return model(*batch)


def _largest(value: Any, masks: bool) -> float:
    """max |x| over the tensors in it, NaN as infinite; with `masks` -inf is left out, which masks hold."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or value.numel() == 0:
            return 0.0
        x = value.detach().float()
        x = x.masked_fill(x == -torch.inf, 0.0) if masks else x
        return float(x.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).max())
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return max((_largest(one, masks) for one in inner), default=0.0)
