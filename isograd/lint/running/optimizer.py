"""An optimizer and the model that it is to train: what it holds, at which rate, with which decay."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.rules import Phase, rule

MOST = 0.05  # of a rate in Adam
HIGH = 20.0  # times the median rate of the groups
STRONG = 0.5  # weight decay from which on weights are held at 0
SLOW = 1e-5  # at a rate below, no decay is strong
Group = dict[str, Any]


@rule(
    Phase.OPTIMIZER, "optimizer-lacks-parameters", "optimizer-of-another-model",
    hides={"optimizer-of-another-model": ("optimizer-lacks-parameters",)}, stops=("optimizer-of-another-model",),
)  # fmt: skip
def holds(checked: CheckedModel) -> Iterator[Finding]:
    """Parameters that are not in the optimizer, and such of it that are not the model's."""
    if checked.optimizer is not None:
        yield from held(checked.model, checked.optimizer.param_groups)


def held(model: nn.Module, groups: Iterable[Group], beside: Iterable[Tensor] = ()) -> Iterator[Finding]:
    """What the groups of all optimizers lack of a model; `beside`: others that they may hold, as a criterion's."""
    names = {id(p): n for n, p in model.named_parameters()}
    wanted = [n for n, p in model.named_parameters() if p.requires_grad]
    inside = {id(p) for group in groups for p in group["params"]}
    foreign = inside - set(names) - {id(p) for p in beside}
    own = {names[i] for i in inside if i in names}
    lost = [n for n in wanted if n not in own]
    if foreign and lost:
        yield Finding(
            code="optimizer-of-another-model",
            address=lost[0],
            measured=float(len(foreign)),
            message=f"{len(foreign)} of {len(inside)} parameters that the optimizer holds are not this model's",
            remedy="build the optimizer after the model's last change: after to(device), a new head, a copy, a reload",
        )
    elif lost:
        yield Finding(
            code="optimizer-lacks-parameters",
            address=lost[0],
            measured=float(len(lost)),
            message=f"no optimizer holds {many(len(lost), 'parameter')} of {len(wanted)} that want gradients",
            remedy="build it from all of model.parameters(), or set requires_grad_(False) on what is to stay",
        )


@rule(Phase.OPTIMIZER, "lr-zero", "lr-high", stops=("lr-zero",))
def rates(checked: CheckedModel) -> Iterator[Finding]:
    """Groups with a rate of 0, or far above the others'."""
    if checked.optimizer is None:
        yield from high(checked.lr or 0.0)
        return
    groups = [g for g in checked.optimizer.param_groups if g["params"]]
    kind, states = type(checked.optimizer).__name__, checked.optimizer.state
    steps = max((int(states.get(p, {}).get("step", 0)) for g in groups for p in g["params"]), default=0)
    still = [g for g in groups if float(g["lr"]) == 0 and not (g.get("initial_lr") and steps < 2)]
    if still:
        stepped = bool(still[0].get("initial_lr"))
        yield Finding(
            code="lr-zero",
            address=_name(checked, still[0]),
            measured=0.0,
            message=f"the learning rate of {many(len(still[0]['params']), 'parameter')} is 0"
            + (f" after {steps} updates: the schedule was never stepped" if stepped else ""),
            remedy="call scheduler.step() after each optimizer.step()" if stepped else "set lr of this group",
        )
    given = sorted(float(g["lr"]) for g in groups if float(g["lr"]) > 0)
    above = [g for g in groups if len(given) > 1 and float(g["lr"]) >= HIGH * given[(len(given) - 1) // 2]]
    if above:
        rate = float(above[0]["lr"])
        yield Finding(
            code="lr-high",
            address=_name(checked, above[0]),
            measured=rate,
            message=f"the learning rate of {many(len(above[0]['params']), 'parameter')} is {rate:g},"
            f" {rate / given[0]:.3g} times that of another group",
            remedy="give all groups one rate, or a ratio that a parameterization gives (muP)",
        )
    elif "adam" in kind.lower():
        yield from high(max(given, default=0.0), kind)


def high(peak: float, kind: str = "Adam") -> Iterator[Finding]:
    """A rate that no Adam trains at."""
    if peak >= MOST:
        yield Finding(
            code="lr-high",
            address="",
            measured=peak,
            message=f"the peak learning rate is {peak:g}: {kind} moves every weight by about as much in a step",
            remedy="begin with 1e-3 or less, and warm it up",
        )


@rule(Phase.OPTIMIZER, "norms-decayed", "weight-decay-high")
def decays(checked: CheckedModel) -> Iterator[Finding]:
    """Weight decay on norm weights and coefficients, or one that holds weights at 0."""
    if checked.optimizer is None:
        return
    vectors = checked.norm_weights | checked.coefficients
    mine = {id(p): n for n, p in checked.model.named_parameters()}
    groups = [g for g in checked.optimizer.param_groups if float(g.get("weight_decay") or 0) > 0]
    wrong = [n for g in groups for p in g["params"] if (n := mine.get(id(p))) in vectors and n is not None]
    if wrong:
        yield Finding(
            code="norms-decayed",
            severity="warning",
            address=wrong[0],
            measured=float(len(wrong)),
            message="the optimizer applies weight decay to this norm weight or coefficient"
            f" ({many(len(wrong), 'parameter')})",
            remedy="use two parameter groups: p.ndim >= 2 with weight_decay, the rest with weight_decay=0.0",
        )
    yield from strong(groups, lambda group: _name(checked, group))


def strong(groups: Iterable[Group], name: Callable[[Group], str]) -> Iterator[Finding]:
    """A weight decay under which weights shrink faster than they learn."""
    for group in groups:
        decay = float(group.get("weight_decay") or 0)
        if decay >= STRONG and float(group.get("lr", 0)) > SLOW:
            yield Finding(
                code="weight-decay-high",
                severity="warning",
                address=name(group),
                measured=decay,
                message=f"weight_decay is {decay:g}: at this strength weights shrink faster than they learn",
                remedy="take 0.01 to 0.1",
            )
            return


def _name(checked: CheckedModel, group: Group) -> str:
    mine = {id(p): n for n, p in checked.model.named_parameters()}
    return next((mine[id(p)] for p in group["params"] if id(p) in mine), "")
