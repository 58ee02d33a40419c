"""What made a number that is not finite: the batch, or the module that is found by running it again."""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from isograd.diagnose.watch.baseline import labels_of, targets_of
from isograd.diagnose.watch.layers import plain

ID_NAMES = ("input_ids", "inputs", "tokens", "ids", "batch[0]")  # of what is looked up in an embedding


Origin = tuple[str | None, str, str]  # a module's address or None, the cause, the remedy
IN_FLOAT32 = "compute that part in float32, clip gradients, lower the rate; torch.autograd.set_detect_anomaly(True)"


def origin(model: nn.Module, batch: Any, loss: float, *, again: bool) -> Origin | None:
    """Where a loss or a gradient that is not finite comes from: what is in the batch first, then the model.

    Args:
        again: the weights are those that the batch was run with: it may be run once more.
    """
    if found := not_finite(batch) or out_of_range(model, batch):
        return None, *found
    labels = labels_of(batch)
    if labels and not math.isfinite(loss) and not any(bool((y >= 0).any()) for y in labels):
        return None, "no label of this batch counts (all are -100): its mean is 0 / 0", "leave out such batches"
    module = culprit(model, batch, forward=not math.isfinite(loss)) if again and batch is not None else None
    if module is not None:
        return module[0], f"{module[0]} {module[1]}", IN_FLOAT32
    same = constant(batch)
    return None if same is None else (None, *same)


def not_finite(batch: Any) -> tuple[str, str] | None:
    """The first entry of a batch that is NaN or infinite, by its tensor and its place; a mask may hold -inf."""
    for name, x in named(batch):
        if not x.is_floating_point():
            continue
        bad = torch.isnan(x) if "mask" in name else ~torch.isfinite(x)
        if bool(bad.any()):
            many = int(bad.sum())
            others = f" ({many:,} of its {x.numel():,} entries are not finite)" if many > 1 else ""
            return (
                f"the batch holds it: {_at(name, x, bad)} is {float(x[bad][0])}{others}",
                "find such samples in the data with torch.isfinite, and leave them out or fill them",
            )
    return None


def out_of_range(model: nn.Module, batch: Any) -> tuple[str, str] | None:
    """The first token id that no embedding of the model has a row for."""
    rows = max((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=None)
    for name, x in named(batch):
        if (
            x.device.type != "cpu"
            or rows is None
            or x.is_floating_point()
            or x.dtype == torch.bool
            or not any(f in name for f in ID_NAMES)
        ):
            continue
        bad = (x < 0) | (x >= rows)
        if bool(bad.any()):
            return (
                f"an id is out of range: {_at(name, x, bad)} is {int(x[bad][0])}, and the model has {rows} embeddings",
                f"ids have to be 0 to {rows - 1}: use the model's own tokenizer, or model.resize_token_embeddings",
            )
    return None


def constant(batch: Any) -> tuple[str, str] | None:
    """A batch whose targets are all one number, which a loss that divides by their spread cannot take."""
    targets = targets_of(batch)
    if len(targets) != 1 or targets[0].numel() < 2 or not bool((targets[0] == targets[0].flatten()[0]).all()):
        return None
    name = next(name for name, x in named(batch) if x.data_ptr() == targets[0].data_ptr())
    return (
        f"all targets of this batch are {targets[0].flatten()[0].item():g} ({name}): a loss that divides by their"
        " spread is 0 / 0",
        "leave out such batches, or add an eps to what the loss divides by",
    )


def named(batch: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch, as they are written in Python.

    >>> [name for name, _ in named({"x": torch.zeros(2), "parts": (torch.zeros(1), 3)})]
    ["batch['x']", "batch['parts'][0]"]
    """
    if isinstance(batch, Tensor):
        yield name, batch.detach()
    elif isinstance(batch, Mapping):
        for key, part in batch.items():
            yield from named(part, f"{name}[{key!r}]")
    elif isinstance(batch, list | tuple):
        for place, part in enumerate(batch):
            yield from named(part, f"{name}[{place}]")


def _at(name: str, x: Tensor, bad: Tensor) -> str:
    """
    >>> _at("batch[0]", torch.zeros(2, 3), torch.tensor([[0, 0, 0], [0, 1, 0]]).bool())
    'batch[0][1, 1]'
    """
    place = bad.nonzero()[0].tolist()
    return f"{name}[{', '.join(map(str, place))}]" if place else name


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
