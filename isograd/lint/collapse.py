"""Whether a stack collapses at a learning rate and a warm-up: a rule fitted on a grid of short runs.

    p = 1 / (1 + exp(-z)),   z = a + b ln(layers / 12) + c ln(LR / 1e-3) + d ln(width / 64) + e ln(1 + warm-up / 10)

with a, b and d by what the sums compute (Post-LN, ADMIN, DeepNorm; `isograd.trace.anatomy.function_of`). Fitted on
one part of the runs of benchmarks/collapse_grid.py and tested on depths and a width that were not in it
(docs/check/collapse-predicted.md). It speaks of Adam and of the first few hundred steps, and predicts nothing where the
branches begin with another share of the stream than those of the grid: with N(0, 0.02^2) Post-LN tolerates more.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding, Severity
from isograd.trace.anatomy import Function, TracedStack
from isograd.trace.sublayers import TracedSublayer

INTERCEPT: dict[Function, float] = {"post-ln": 1.20, "admin": -2.79, "deepnorm": -1.44}
LAYERS: dict[Function, float] = {"post-ln": 6.50, "admin": 2.81, "deepnorm": 0.25}
WIDTH: dict[Function, float] = {"post-ln": 0.57, "admin": 4.26, "deepnorm": 4.21}
RATE, WARMUP = 2.91, -1.07
COLLAPSES = 0.85  # p from which a collapse is predicted: in fitting, with each depth left out in turn, 41 of 41 did

MEASURED = {"layers": (6.0, 48.0), "width": (32.0, 128.0), "LR": (2e-4, 6e-3), "warm-up": (0.0, 200.0)}
SHARE: dict[Function, tuple[float, float]] = {  # of a branch in its sum, the median over a stack, at initialization
    "post-ln": (0.09, 0.4),
    "admin": (0.01, 0.2),
    "deepnorm": (3e-5, 4e-3),
}
NAMES: dict[Function, str] = {"post-ln": "Post-LN", "admin": "ADMIN", "deepnorm": "DeepNorm"}
USUAL = 1e-3  # Adam's default rate


@dataclass(frozen=True, kw_only=True)
class CollapseRule:
    """The fitted rule for one stack, by what it reads of it at initialization.

    Attributes:
        function: what its sums compute.
        layers: half the number of its sublayers.
        share: variance of a branch over that of the sum, the median over the sublayers.
    """

    function: Function
    layers: float
    width: float
    share: float = math.nan

    def risk(self, lr: float, warmup: float = 0) -> float:
        """The probability p of a collapse.

        >>> deep = CollapseRule(function="post-ln", layers=48, width=64)
        >>> deep.risk(1e-3) > deep.risk(1e-4) and deep.risk(1e-3) > deep.risk(1e-3, warmup=200)
        True
        """
        return 1 / (1 + math.exp(-self._odds(warmup) - RATE * math.log(lr / USUAL)))

    def highest_rate(self, warmup: float = 0) -> float:
        """The rate from which on a collapse is predicted, p = `COLLAPSES`; it may be lower than any measured one."""
        return USUAL * math.exp((math.log(COLLAPSES / (1 - COLLAPSES)) - self._odds(warmup)) / RATE)

    def limit(self, warmup: float = 0) -> str:
        """The highest rate, in words that stay within what was measured."""
        rate, lowest = self.highest_rate(warmup), MEASURED["LR"][0]
        return f"{rate:.1g}" if rate > lowest else f"{lowest:g}, the lowest measured,"

    @property
    def name(self) -> str:
        return f"{self.layers:g} {NAMES[self.function]} layers of width {self.width:g}"

    def _odds(self, warmup: float) -> float:
        size = LAYERS[self.function] * math.log(self.layers / 12) + WIDTH[self.function] * math.log(self.width / 64)
        return INTERCEPT[self.function] + size + WARMUP * math.log1p(warmup / 10)

    def outside(self, **settings: float) -> list[str]:
        """What of the stack and of `settings` lies outside what was measured, in words."""
        numbers = {"layers": self.layers, "width": self.width} | {k.replace("_", "-"): v for k, v in settings.items()}
        ranges = {name: (value, *MEASURED[name]) for name, value in numbers.items()}
        ranges["share of a branch in its sum"] = (self.share, *SHARE[self.function])
        return [
            f"{name} {value:.3g}, measured {low:g} to {high:g}"
            for name, (value, low, high) in ranges.items()
            if value < low / 1.001 or value > high * 1.001
        ]


def collapse(checked: CheckedModel) -> Iterator[Finding]:
    """A stack under post norms at a rate at which such stacks collapse; an info where that was not measured."""
    for traced in checked.anatomy.stacks:
        if traced.function is None or not checked.at_init:
            continue
        rule = _rule(checked, traced)
        outside = rule.outside() + (["more than one stack"] if len(checked.anatomy.stacks) > 1 else [])
        verdict = (
            _of_depth(rule, outside) if checked.lr is None else _at_rate(rule, checked.lr, checked.warmup or 0, outside)
        )
        if verdict is not None:
            severity, measured, message = verdict
            yield Finding(
                code="collapse-predicted",
                severity=severity,
                address=traced.sublayers[0].address,
                measured=measured,
                message=message,
                remedy=_remedy(rule, checked.lr, outside),
            )


Prediction = tuple[Severity, float, str]


def _at_rate(rule: CollapseRule, lr: float, warmup: int, outside: list[str]) -> Prediction | None:
    """At the rate and the warm-up that are to come."""
    risk = rule.risk(lr, warmup)
    how = f"{rule.name} at LR {lr:g} with {f'{warmup} steps of warm-up' if warmup else 'no warm-up'}"
    outside = outside + rule.outside(LR=lr, warm_up=warmup)
    if outside:
        return "info", risk, f"{how}: no prediction, outside what was measured ({'; '.join(dict.fromkeys(outside))})"
    if risk < COLLAPSES:
        return None
    return (
        "error",
        risk,
        f"{how}: a collapse is predicted (p = {risk:.2f}): the loss stays at that of token frequencies",
    )


def _of_depth(rule: CollapseRule, outside: list[str]) -> Prediction | None:
    """Without a rate: where a usual one would collapse even after a warm-up."""
    highest = rule.highest_rate(warmup=100)
    if outside or highest >= USUAL:
        return None
    return (
        "info",
        highest,
        f"{rule.name}: with 100 steps of warm-up a collapse is predicted from LR {rule.limit(100)} on",
    )


def _remedy(rule: CollapseRule, lr: float | None, outside: list[str]) -> str:
    if outside:
        return "watch the first steps of the run: isograd.watch(model), or isograd.WatchCallback in a Trainer"
    norm = "normalize what each branch reads, not the sum (Pre-LN)"
    if lr is None:
        return f"{norm}, or pass lr= and warmup= for a verdict"
    return f"{norm}, or take a learning rate below {rule.limit(100)} with 100 steps of warm-up"


def _rule(checked: CheckedModel, traced: TracedStack) -> CollapseRule:
    assert traced.function is not None
    return CollapseRule(
        function=traced.function,
        layers=len(traced.sublayers) / 2,
        width=checked.trace[traced.first].shape[-1],
        share=median(_share(checked, sublayer) for sublayer in traced.sublayers),
    )


def _share(checked: CheckedModel, sublayer: TracedSublayer) -> float:
    """Var[scale u] / (Var[skip x] + Var[scale u])."""
    x, u = (checked.trace[value].double().var().item() for value in (sublayer.read, sublayer.branch))
    stream, branch = sublayer.skip.value**2 * x, sublayer.scale.value**2 * u
    return branch / ((stream + branch) or 1.0)
