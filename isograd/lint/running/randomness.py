"""Dropout that is on where it should be off, and dropout that drops nearly everything."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.rules import RUN, Phase, rule
from isograd.trace.dataflow import bare
from isograd.trace.record import Operation, arguments, fitted

HIGH = 0.7  # of entries dropped, from which on a rate is likely to be the part that was to be kept
CHANGED = 1e-5  # of the largest output
RANDOM = ("bernoulli", "rand", "randn", "rand_like", "randn_like", "normal", "uniform", "multinomial", "exponential")
DROPOUTS = ("dropout", "native_dropout", "feature_dropout", "alpha_dropout")


@rule(Phase.REGISTERED, "random-in-eval", hides=(*RUN, "gradient-cut", "gradient-zero"))
def in_eval(checked: CheckedModel) -> Iterator[Finding]:
    """An output in eval mode that depends on the seed."""
    one, other = (checked.run(checked.inputs, seed=seed)[0] for seed in (0, 1))
    if one is None or other is None or one.shape != other.shape or not one.is_floating_point():
        return
    gap = ((one - other).abs().max() / one.abs().max().clamp_min(1e-30)).item()
    if not gap > CHANGED:
        return
    sources = [o for o in checked.trace.operations if _draws(o)]
    dropped = [o for o in sources if bare(o) in DROPOUTS or "attention" in o.name]
    where = next(iter(dropped or sources), None)
    what = "dropout is still on" if dropped else "random numbers are drawn"
    yield Finding(
        code="random-in-eval",
        severity="error" if dropped else "warning",
        address=where.module if where is not None else "",
        measured=gap,
        message=f"in eval mode, two runs on the same input differ by {gap:.2g} of the largest output: {what}"
        f" ({many(len(dropped or sources), 'place')})",
        remedy="pass F.dropout(x, p, training=self.training), and dropout_p=p if self.training else 0.0 to"
        " F.scaled_dot_product_attention; nn.Dropout does it by itself",
    )


def _draws(operation: Operation) -> bool:
    name = bare(operation)
    if name == "dropout":
        return len(operation.args) > 2 and operation.args[2] is True and operation.args[1] > 0
    if name == "scaled_dot_product_attention":
        rate = operation.kwargs.get("dropout_p", operation.args[4] if len(operation.args) > 4 else 0)
        return bool(rate)
    return name in RANDOM or name in DROPOUTS[1:]


@rule(Phase.REGISTERED, "dropout-high")
def high(checked: CheckedModel) -> Iterator[Finding]:
    """A rate that drops most entries: often the part that was to be kept."""
    rates = [(rate, where) for rate, where in _rates(checked) if rate >= HIGH]
    if rates:
        rate, where = max(rates)
        yield Finding(
            code="dropout-high",
            severity="error" if rate >= 0.9 else "warning",
            address=where,
            measured=rate,
            message=f"in training, dropout zeroes {rate:.0%} of the entries here ({many(len(rates), 'place')})",
            remedy=f"p is the part that is dropped, not kept: p={1 - rate:.2g}" if rate < 1 else "p=1 leaves nothing",
        )


def _rates(checked: CheckedModel) -> list[tuple[float, str]]:
    """Rates of dropout in a training step, with the module that runs it."""
    recorder = _Rates()
    twin = checked.few
    hooks = [
        m.register_forward_pre_hook(lambda *_, a=address: recorder.enter(a)) for address, m in twin.named_modules()
    ]
    hooks += [m.register_forward_hook(lambda *_: recorder.leave()) for m in twin.modules()]
    args, kwargs = arguments(fitted(twin, checked.inputs))
    try:
        twin.train()
        with torch.random.fork_rng(devices=[]), torch.inference_mode(), recorder:
            twin(*args, **kwargs)
    finally:
        twin.eval()
        for hook in hooks:
            hook.remove()
    return recorder.rates


class _Rates(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.rates: list[tuple[float, str]] = []
        self._running = [""]

    def enter(self, address: str) -> None:
        self._running.append(address)

    def leave(self) -> None:
        self._running.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name.split("::")[-1].rstrip("_"), kwargs or {}
        rate: Any = 0.0
        if name in DROPOUTS:
            rate = args[1]
        elif name == "scaled_dot_product_attention":
            rate = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        if rate:
            self.rates.append((float(rate), self._running[-1]))
        return func(*args, **kwargs)
