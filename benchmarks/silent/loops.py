"""One loop for tools that are put into a loop: whatever a case trains, seen from `Optimizer.step` and `backward`."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import ModuleType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

UPDATES = 60  # of setups and of single models; train() has its own number


class CannotLook(Exception):
    """The case gives a tool nothing that it takes."""


class InLoop:
    """A tool in a loop: `begin` before the first step, with gradients; `before` and `after` each step."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def begin(self) -> None: ...
    def before(self, step: int, loss: float) -> None: ...
    def after(self, step: int, loss: float) -> None: ...
    def end(self) -> list[str]:
        return []


@contextmanager
def tapped(tool: InLoop) -> Iterator[None]:
    """Calls `tool` at the steps of the optimizer that steps first; its model is the one, called before, that holds most
    of the optimizer's parameters; the loss is the sum of what `backward` was called on since the last step."""
    called: dict[torch.nn.Module, None] = {}
    losses: list[float] = []
    steps = 0
    backward = torch.Tensor.backward

    def seen(self: torch.Tensor, *args: Any, **options: Any) -> None:
        if self.numel() == 1:
            losses.append(float(self.detach()))
        backward(self, *args, **options)

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if steps == 0 and not hasattr(tool, "optimizer"):
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if not called:
                raise CannotLook("no module is called")
            tool.model = max(called, key=lambda m: _held(m, held))
            tool.optimizer = optimizer
            tool.begin()
        if optimizer is tool.optimizer:
            tool.before(steps, sum(losses))

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal steps
        if optimizer is tool.optimizer:
            tool.after(steps, sum(losses))
            losses.clear()
            steps += 1

    hooks = [
        register_module_forward_pre_hook(lambda module, _: called.setdefault(module)),
        register_optimizer_step_pre_hook(before),
        register_optimizer_step_post_hook(after),
    ]
    torch.Tensor.backward = seen  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]
        for hook in hooks:
            hook.remove()


def _held(module: torch.nn.Module, held: set[int]) -> tuple[int, int, int]:
    parameters = list(module.parameters())
    return sum(id(p) in held for p in parameters), len(parameters), sum(1 for _ in module.modules())


def through(case: ModuleType, faulty: bool, tool: InLoop) -> list[str]:
    """The tool in the case's own loop, or in a plain one around its setup or its model."""
    run = train if hasattr(case, "train") else step if hasattr(case, "setup") else single
    with tapped(tool):
        run(case, faulty)
    if not hasattr(tool, "optimizer"):
        raise CannotLook("no optimizer steps")
    return tool.end()


def train(case: ModuleType, faulty: bool) -> None:
    case.train(faulty)


def setup_of(case: ModuleType, faulty: bool) -> dict[str, Any]:
    made = case.setup(faulty)
    return made if isinstance(made, dict) else {"trainer": made}


def step(case: ModuleType, faulty: bool) -> None:
    """Updates of a setup, as its `step` or its Trainer makes them, else the usual way."""
    setup = setup_of(case, faulty)
    if "trainer" in setup:
        setup["trainer"].train()
        return
    if not {"model", "data", "optimizer"} <= setup.keys() or not {"step", "loss"} & setup.keys():
        raise CannotLook("no model, data, loss and optimizer")
    batches, accumulate = endless(setup["data"]), setup.get("accumulate", 1)
    for _ in range(min(UPDATES, setup.get("steps") or UPDATES)):
        parts = list(islice(batches, accumulate))
        if "step" in setup:
            setup["step"](parts)
        else:
            _update(setup, parts)


def endless(data: Any) -> Iterator[Any]:
    while True:
        yield from data


def several(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]


def _update(setup: dict[str, Any], parts: list[Any]) -> None:
    scaler, clip, dtype = setup.get("scaler"), setup.get("clip"), setup.get("autocast")
    optimizers = several(setup["optimizer"])
    for optimizer in optimizers:
        optimizer.zero_grad()
    for batch in parts:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = setup["loss"](setup["model"], batch) / len(parts)
        (scaler.scale(loss) if scaler else loss).backward()
    for optimizer in optimizers:
        if scaler and clip:
            scaler.unscale_(optimizer)
        if clip:
            torch.nn.utils.clip_grad_norm_(setup["model"].parameters(), clip)
        scaler.step(optimizer) if scaler else optimizer.step()
    if scaler:
        scaler.update()
    for scheduler in several(setup.get("scheduler")):
        scheduler.step()


def called(model: torch.nn.Module, batch: Any) -> Any:
    return model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(batch, tuple) else model(batch)


def loss_of(case: ModuleType, output: Any, batch: Any) -> torch.Tensor:
    if hasattr(case, "loss"):
        return case.loss(output, batch)
    if getattr(output, "loss", None) is None:
        raise CannotLook("the model has no loss")
    return output.loss


def single(case: ModuleType, faulty: bool) -> None:
    """A module and its batch, fitted with AdamW at 1e-3."""
    model, batch = case.build(faulty), case.batch()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss_of(case, called(model, batch), batch).backward()
        optimizer.step()
