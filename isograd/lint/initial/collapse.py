"""Whether a stack collapses at a learning rate and a warm-up: a rule fitted on a grid of short runs.

    p = 1 / (1 + exp(-z)),   z = a + b ln(layers / 12) + c ln(LR / 1e-3) + d ln(width / 64) + e ln(1 + warm-up / 10)

with a, b and d by what the sums compute (Post-LN, ADMIN, DeepNorm; `isograd.trace.anatomy.function_of`). Fitted on
one part of the runs of benchmarks/collapse_grid.py and tested on depths and a width that were not in it
(docs/check/collapse-predicted.md). It speaks of Adam and of the first few hundred steps.

Post-LN has two lines: where branches begin with a fifth of the stream (Xavier), and with a thousandth of it (BERT's and
GPT-2's N(0, 0.02^2)), which tolerates more. A stack in between is judged by the second, and warned of by the first.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from torch import nn

from isograd.errors import many
from isograd.lint import branches, norms, shortcuts
from isograd.lint.checked_model import CheckedModel, is_quantized
from isograd.lint.findings import Finding, Severity
from isograd.lint.rules import Phase, rule
from isograd.models import IsogradPreTrainedModel
from isograd.outcome import one_digit
from isograd.trace.anatomy import Function, TracedStack, find_anatomy
from isograd.trace.inputs import as_inputs, guess_inputs
from isograd.trace.record import unwrapped
from isograd.trace.sublayers import TracedSublayer

INTERCEPT: dict[str, float] = {"post-ln": 1.20, "post-ln, small": -0.59, "admin": -2.79, "deepnorm": -1.44}
LAYERS: dict[str, float] = {"post-ln": 6.50, "post-ln, small": 2.46, "admin": 2.81, "deepnorm": 0.25}
WIDTH: dict[str, float] = {"post-ln": 0.57, "post-ln, small": 3.33, "admin": 4.26, "deepnorm": 4.21}
RATE, WARMUP = 2.91, -1.07
COLLAPSES = 0.85  # p from which a collapse is predicted: in fitting, with each depth left out in turn, 46 of 46 did

MEASURED = {"layers": (6.0, 48.0), "width": (32.0, 128.0), "LR": (2e-4, 6e-3), "warm-up": (0.0, 200.0)}
SHARE: dict[str, tuple[float, float]] = {  # of a branch in its sum, the median over a stack, at initialization
    "post-ln": (0.09, 0.4),
    "post-ln, small": (1e-5, 0.01),
    "admin": (0.01, 0.2),
    "deepnorm": (3e-5, 4e-3),
}
ROWS: dict[str, str] = {
    "post-ln": "Post-LN",
    "post-ln, small": "Post-LN from N(0, 0.02²)",
    "admin": "ADMIN",
    "deepnorm": "DeepNorm",
}
USUAL = 1e-3  # Adam's default rate
HIGH, DEEP = 2e-3, 18  # without a rate: where a stack of so many layers collapses below this one
WARMED = 100  # steps of warm-up that are advised
WARM_UPS = (WARMED, 200)  # the same, where a stack is deep
TRAINED: dict[str, float] = {"post-ln": 24, "post-ln, small": 48, "admin": 48, "deepnorm": 48}  # the deepest that did
SMALL = "draw the matrices smaller before the optimizer is built ({}), and "
DRAWN = "[torch.nn.init.normal_(p, std=0.02) for p in model.parameters() if p.dim() > 1]"


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
        >>> deep.risk(1e-3) > CollapseRule(function="post-ln", layers=48, width=64, share=1e-3).risk(1e-3)
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
        return f"{self.layers:g} {ROWS[self.function]} layers of width {self.width:g}"

    @property
    def line(self) -> str:
        """Which of the fitted lines it is."""
        small = self.function == "post-ln" and self.share < SHARE["post-ln"][0]
        return "post-ln, small" if small else self.function

    @property
    def row(self) -> str:
        """The row of the table in docs/check/collapse-predicted.md that judges it."""
        return f"fitted on {ROWS[self.line]}"

    @property
    def between(self) -> bool:
        """Branches larger than those of the one line, and smaller than those of the other."""
        return self.function == "post-ln" and SHARE["post-ln, small"][1] < self.share < SHARE["post-ln"][0]

    @property
    def strict(self) -> "CollapseRule":
        """That of larger branches, where this one is in between."""
        return replace(self, share=SHARE["post-ln"][0]) if self.between else self

    @property
    def smaller(self) -> "CollapseRule":
        """The largest measured stack that is no larger than this one: it tolerates no less."""
        return replace(
            self, layers=min(self.layers, MEASURED["layers"][1]), width=min(self.width, MEASURED["width"][1])
        )

    def _odds(self, warmup: float) -> float:
        size = LAYERS[self.line] * math.log(self.layers / 12) + WIDTH[self.line] * math.log(self.width / 64)
        return INTERCEPT[self.line] + size + WARMUP * math.log1p(warmup / 10)

    def outside(self, **settings: float) -> list[str]:
        """What of the stack and of `settings` lies outside what was measured, in words."""
        numbers = {"layers": self.layers, "width": self.width} | {k.replace("_", "-"): v for k, v in settings.items()}
        ranges = {name: (value, *MEASURED[name]) for name, value in numbers.items()}
        if not self.between:
            ranges["share of a branch in its sum"] = (self.share, *SHARE[self.line])
        return [
            f"{name} {value:.3g}, measured {low:g} to {high:g}"
            for name, (value, low, high) in ranges.items()
            if value < low / 1.001 or value > high * 1.001
        ]


@rule(Phase.INIT, "collapse-predicted")
def collapse(checked: CheckedModel) -> Iterator[Finding]:
    """A stack under post norms at a rate at which such stacks collapse; an info where that was not measured."""
    several = ["more than one stack"] if len(checked.anatomy.stacks) > 1 else []
    for traced in checked.anatomy.stacks:
        if traced.function is None or not checked.at_init:
            continue
        rule = rule_of(checked, traced)
        lr, warmup = _rate(checked)
        verdict = _of_depth(rule, several) if lr is None else _at_rate(rule, lr, warmup, several)
        if verdict is None:
            continue
        severity, measured, message = verdict
        unknown = severity == "info" and lr is not None
        yield Finding(
            severity=severity,
            address=traced.sublayers[0].address,
            measured=measured,
            message=message,
            remedy=WATCH if unknown else _remedy(rule, checked, traced),
        )


WATCH = "watch the first steps of the run: isograd.watch(model), or isograd.WatchCallback in a Trainer"


def _rate(checked: CheckedModel) -> tuple[float | None, int | None]:
    """The peak rate, as given or as the optimizer has it (`initial_lr` under a schedule), and the warm-up if known.

    An optimizer other than Adam's kind says nothing about Adam's rates.
    """
    if checked.lr is not None:
        return checked.lr, checked.warmup or 0
    if checked.optimizer is None or "adam" not in type(checked.optimizer).__name__.lower():
        return None, None
    rates = [group.get("initial_lr", group["lr"]) for group in checked.optimizer.param_groups]
    return (float(max(rates)), checked.warmup) if rates and max(rates) > 0 else (None, None)


Prediction = tuple[Severity, float, str]


def _at_rate(rule: CollapseRule, lr: float, warmup: int | None, several: list[str]) -> Prediction | None:
    """At the rate and the warm-up that are to come; a warm-up that is not known may be any."""
    steps = warmup or 0
    how = f"{rule.name} at LR {lr:g} with {f'{steps} steps of warm-up' if steps else 'no warm-up'}"
    outside = several + rule.outside(LR=lr, warm_up=steps)
    risk = rule.risk(lr, steps)
    end = ": the loss stays at the unigram entropy"
    if outside:
        smaller, rate = rule.smaller, min(lr, MEASURED["LR"][1])
        risk = smaller.risk(rate, steps)
        if not several and not smaller.outside(LR=rate, warm_up=steps) and risk >= COLLAPSES:
            but = f"larger than any measured one, and {smaller.name} collapse already at LR {rate:g} (p = {risk:.2f})"
            return "warning", risk, f"{how}: a collapse is likely: {but}{end}"
        return "info", risk, f"{how}: no prediction, outside what was measured ({'; '.join(dict.fromkeys(outside))})"
    if risk < COLLAPSES:
        most = rule.strict.risk(lr, steps)
        if most < COLLAPSES:
            return None
        sizes = "with branches somewhat larger at initialization such a stack collapses, with smaller ones it trains"
        return "warning", most, f"{how}: it may collapse (p up to {most:.2f}): {sizes}"
    severity: Severity = "error" if warmup is not None else "warning"
    return severity, risk, f"{how}: a collapse is predicted (p = {risk:.2f}, {rule.row}){end}"


def _of_depth(rule: CollapseRule, several: list[str]) -> Prediction | None:
    """Without a rate: where one that people use would collapse."""
    highest = rule.strict.highest_rate()
    if several or rule.outside() or highest >= HIGH or rule.layers < DEEP:
        return None
    from_on = (
        f"from LR {rule.strict.limit()} on, and with {WARMED} steps of warm-up from {rule.strict.limit(WARMED)} on"
    )
    word = "may come" if rule.between else "is predicted"
    return "info", highest, f"{rule.name}: without warm-up a collapse {word} {from_on}"


def _remedy(rule: CollapseRule, checked: CheckedModel, traced: TracedStack) -> str:
    """What to write in the user's own code."""
    lr, warmup = _rate(checked)
    if lr is None:
        return "for a verdict give the rate and the warm-up: lr=1e-3, warmup=0 (--lr 1e-3 --warmup 0)"
    ask = "pass warmup= for a verdict; " if warmup is None else ""
    slower = schedule(rule, lr)
    return f"{ask}{norms_moved(checked, traced)}{f'; or {slower}' if slower else ''}"


def schedule(rule: CollapseRule, lr: float | None) -> str:
    """A rate and a warm-up at which such a stack trains, as lines to write; empty where none was measured.

    Post-LN deeper than any that trained from its papers' initialization is to be drawn from N(0, 0.02^2) first.
    """
    line, before = rule.strict, ""
    if line.layers > TRAINED[line.line] and line.function == "post-ln":
        line, before = replace(line, share=SHARE["post-ln, small"][1]), SMALL.format(DRAWN)
    for warmup in WARM_UPS if rule.smaller == rule and line.layers <= TRAINED[line.line] else ():
        safe = min(line.highest_rate(warmup) / (4 if before else 2), lr or math.inf)  # p = 0.1 where it was not tried
        if safe >= MEASURED["LR"][0] / 2:
            return (
                f"{before}train at lr={one_digit(safe):g} with {warmup} steps of warm-up: scheduler ="
                f" torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / {warmup})), and"
                " scheduler.step() after optimizer.step()"
            )
    return ""


def norms_moved(checked: CheckedModel, traced: TracedStack) -> str:
    """Pre-LN, in the words of the module that holds the norms."""
    if isinstance(checked.model, IsogradPreTrainedModel):
        return "normalize what each branch reads, not the sum: placement='pre-ln'"
    modules = dict(checked.model.named_modules())
    names = [post[0].weight for s in traced.sublayers if (post := s.norms.get("post")) and post[0].weight]
    layers = [re.sub(r"\.\d+\..*", ".0", name) for name in names[:1]]
    layer = modules.get(layers[0]) if layers else None
    if isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        holder = _holder(checked.model, layers[0])
        last = f"; in {type(holder).__name__}.forward a LayerNorm after the last layer"
        if isinstance(holder, nn.TransformerEncoder | nn.TransformerDecoder):
            norm = f" and {type(holder).__name__}(..., norm=nn.LayerNorm({layer.norm1.normalized_shape[0]}))"
            last = norm if holder.norm is None else ""
        what = f"{type(layer).__name__}(..., norm_first=True){last}"
        return f"normalize what each branch reads, not the sum (Pre-LN): {what}"
    owner = modules.get(names[0].removesuffix(".weight").rpartition(".")[0]) if names else None
    if owner is None or type(owner).__module__.startswith("transformers."):  # whose code is not the user's to write
        return OTHERS
    own = [name.removesuffix(".weight").rpartition(".")[2] for name in names]
    last = f"in {type(_holder(checked.model, layers[0])).__name__}.forward a LayerNorm after the last layer"
    where = f"in {type(owner).__name__}.forward x + f(self.{own[0]}(x)) in place of self.{own[0]}(x + f(x)); {last}"
    return f"normalize what each branch reads, not the sum (Pre-LN): {where}"


OTHERS = "take a model that normalizes what each branch reads, not the sum (Pre-LN)"


def _holder(model: nn.Module, layer: str) -> nn.Module:
    """The module that holds the list of layers in which one stands."""
    modules, above = dict(model.named_modules()), re.sub(r"\.?\d+$", "", layer)
    while above and isinstance(modules.get(above), nn.ModuleList | nn.Sequential | nn.ModuleDict | None):
        above = above.rpartition(".")[0]
    return modules.get(above, model)


WIRED = (  # rules that hold for a trained model too, and whose faults keep a stack from training
    shortcuts.after_norm,
    shortcuts.missing,
    shortcuts.factors,
    shortcuts.bypassed,
    branches.bent,
    norms.axis,
)


def advice(model: nn.Module, batch: Any = None, lr: float | None = None) -> tuple[str, str] | None:
    """The cause and the remedy, of a model that may have moved from its initialization; None without a fault.

    A fault of the wiring goes first; else that norms stand on the sums, with the line to change, and the rate and the
    warm-up at which such stacks train, below `lr`. The model is copied.

    Raises:
        InputsError: no inputs given, and none that can be guessed.
    """
    model = unwrapped(model)
    if is_quantized(model):
        return None
    inputs = guess_inputs(model) if batch is None else as_inputs(batch)
    checked = CheckedModel(model, inputs, find_anatomy(model, inputs))
    for look in WIRED:
        for one in look(checked):
            if one.severity == "error":
                return f"isograd.check finds {one.code} at {one.address or 'the model'}: {one.message}", one.remedy
    for stack in checked.anatomy.stacks:
        if stack.function is not None:
            layers = many(stack.layers, f"{ROWS[stack.function]} layer")
            slower = schedule(rule_of(checked, stack), None if lr is None else lr / 2)
            return f"{layers}: each norm is on the sum of x and its branch, first at {stack.sublayers[0].address}", (
                f"{norms_moved(checked, stack)}; or {slower}" if slower else norms_moved(checked, stack)
            )
    return None


def rule_of(checked: CheckedModel, traced: TracedStack) -> CollapseRule:
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
