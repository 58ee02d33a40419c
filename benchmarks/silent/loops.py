"""The loop that tools are put into: whatever a case trains, seen from `backward` and `Optimizer.step`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice, repeat
from types import ModuleType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

UPDATES = 60  # of a setup or a module; train() has its own number
Each = Callable[[int, float], Any]  # (step, loss)
End = Callable[[], list[str]]
Begin = Callable[[torch.nn.Module, torch.optim.Optimizer], tuple[Each, End]]


class CannotLookError(Exception):
    """The case gives a tool nothing that it takes."""


def through(case: ModuleType, faulty: bool, begin: Begin, after: bool = False) -> list[str]:
    """What a tool says that is put into the case's own loop, or into a plain one around its setup or module.

    Args:
        begin: called at the first step, when gradients are there: gives what is called at each step, and at the end.
        after: call it after each step, not before.
    """
    train = _train if hasattr(case, "train") else _setup if hasattr(case, "setup") else _module
    tool: list[tuple[Each, End]] = []
    with _tapped(begin, tool, after):
        train(case, faulty)
    if not tool:
        raise CannotLookError("no optimizer steps")
    return tool[0][1]()


@contextmanager
def _tapped(begin: Begin, tool: list[tuple[Each, End]], after: bool) -> Iterator[None]:
    """The optimizer is the one that steps first; the model is the module, called before, that holds most of its
    parameters; the loss is the sum of what `backward` was called on since the last step."""
    called: dict[torch.nn.Module, None] = {}
    losses: list[float] = []
    clock: list[torch.optim.Optimizer] = []
    steps = iter(range(10**9))
    backward = torch.Tensor.backward

    def seen(loss: torch.Tensor, *args: Any, **options: Any) -> None:
        if loss.numel() == 1:
            losses.append(float(loss.detach()))
        backward(loss, *args, **options)

    def stepping(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not clock and called:
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            clock.append(optimizer)
            tool.append(begin(max(called, key=lambda module: _held(module, held)), optimizer))

    def each(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if clock and optimizer is clock[0]:
            tool[0][0](next(steps), sum(losses))
            losses.clear()

    hooks = [
        register_module_forward_pre_hook(lambda module, _: called.setdefault(module)),
        register_optimizer_step_pre_hook(stepping),
        (register_optimizer_step_post_hook if after else register_optimizer_step_pre_hook)(each),
    ]
    torch.Tensor.backward = seen  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]
        for hook in hooks:
            hook.remove()


def _held(module: torch.nn.Module, held: set[int]) -> tuple[int, int, int]:
    parameters = list(module.parameters())
    return sum(id(p) in held for p in parameters), len(parameters), sum(1 for _ in module.modules())


def _train(case: ModuleType, faulty: bool) -> None:
    case.train(faulty)


def _setup(case: ModuleType, faulty: bool) -> None:
    setup = case.setup(faulty)
    if not isinstance(setup, dict):
        setup.train()  # a Trainer
        return
    if not {"model", "data", "optimizer"} <= setup.keys() or not {"step", "loss"} & setup.keys():
        raise CannotLookError("no model, data, loss and optimizer")
    batches = chain.from_iterable(repeat(setup["data"]))
    for _ in range(min(UPDATES, setup.get("steps") or UPDATES)):
        parts = list(islice(batches, setup.get("accumulate", 1)))
        setup["step"](parts) if "step" in setup else _update(parts, **setup)


def several(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]


def _update(
    parts: list[Any],
    model: torch.nn.Module,
    loss: Any,
    optimizer: Any,
    scheduler: Any = None,
    scaler: Any = None,
    clip: float | None = None,
    autocast: torch.dtype | None = None,
    **_: Any,
) -> None:
    """The usual update of a setup that has no `step`."""
    for one in several(optimizer):
        one.zero_grad()
    for batch in parts:
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            value = loss(model, batch) / len(parts)
        (scaler.scale(value) if scaler else value).backward()
    for one in several(optimizer):
        if scaler and clip:
            scaler.unscale_(one)
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(one) if scaler else one.step()
    if scaler:
        scaler.update()
    for one in several(scheduler):
        one.step()


def called(model: torch.nn.Module, batch: Any) -> Any:
    return model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(batch, tuple) else model(batch)


def loss_of(case: ModuleType, output: Any, batch: Any) -> torch.Tensor:
    if hasattr(case, "loss"):
        return case.loss(output, batch)
    if getattr(output, "loss", None) is None:
        raise CannotLookError("the model has no loss")
    return output.loss


def one_step(case: ModuleType, faulty: bool) -> dict[str, Any]:
    """model, optimizer, data, batch, and `loss(model, batch)`, of a setup, a Trainer or a single module."""
    if not hasattr(case, "setup"):
        if not hasattr(case, "build"):
            raise CannotLookError("a loop alone")
        model = case.build(faulty)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

        def loss(model: Any, batch: Any) -> Any:
            return loss_of(case, called(model, batch), batch)

        return {"model": model, "optimizer": optimizer, "data": [case.batch()], "batch": case.batch(), "loss": loss}
    setup = case.setup(faulty)
    if not isinstance(setup, dict):
        data, loss, optimizer = setup.get_train_dataloader(), setup.compute_loss, setup.create_optimizer()
        setup = {"model": setup.model, "data": data, "loss": loss, "optimizer": optimizer}
    if not {"model", "data", "loss"} <= setup.keys():
        raise CannotLookError("no model, data and loss")
    optimizers = several(setup.get("optimizer"))
    return setup | {"batch": next(iter(setup["data"])), "optimizer": optimizers[0] if optimizers else None}


def pair(case: ModuleType, faulty: bool) -> dict[str, Any]:
    """`one_step` for tools that take batches of (inputs, targets) and a loss of output and targets: inputs are what the
    loss of the case gives to the model, targets the last of the batch; `loss_fn` runs that loss on the first batch."""
    given = one_step(case, faulty)
    model, batch, inputs = given["model"], given["batch"], []
    if isinstance(batch, dict):
        raise CannotLookError("the batch is no pair of inputs and targets")
    hook = model.register_forward_pre_hook(lambda _, *called: inputs.append(called), with_kwargs=True)
    pairs = []
    for one in islice(given["data"], 10):
        inputs.clear()
        with torch.no_grad():
            given["loss"](model, one)
        if not inputs or len(inputs[0][0]) != 1 or inputs[0][1]:
            raise CannotLookError("the model takes more than one tensor")
        pairs.append((inputs[0][0][0], one if isinstance(one, torch.Tensor) else one[-1]))
    hook.remove()
    return given | {"data": pairs, "batch": pairs[0], "loss_fn": lambda *_: given["loss"](model, batch)}


def _module(case: ModuleType, faulty: bool) -> None:
    """A module is fitted to its batch with AdamW at 1e-3."""
    given = one_step(case, faulty)
    for _ in range(UPDATES):
        _update([given["batch"]], **{key: given[key] for key in ("model", "loss", "optimizer")})
