"""An optimizer and the model that it is to train: what it holds, at which rate, with which decay."""

from collections.abc import Iterator
from typing import Any

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.rules import Phase, rule

MOST = 0.05  # of a rate in Adam
HIGH = 20.0  # times the median rate of the groups
STRONG = 0.5  # weight decay from which on weights are held at 0


@rule(
    Phase.OPTIMIZER, "optimizer-lacks-parameters", "optimizer-of-another-model",
    hides={"optimizer-of-another-model": ("optimizer-lacks-parameters",)}, stops=("optimizer-of-another-model",),
)  # fmt: skip
def holds(checked: CheckedModel) -> Iterator[Finding]:
    """Parameters that are not in the optimizer, and such of it that are not the model's."""
    if checked.optimizer is None:
        return
    mine = {id(p): n for n, p in checked.model.named_parameters() if p.requires_grad}
    known = {id(p) for p in checked.model.parameters()}
    held = [id(p) for group in checked.optimizer.param_groups for p in group["params"]]
    foreign = [i for i in held if i not in known]
    lost = [n for i, n in mine.items() if i not in set(held)]
    if foreign:
        yield Finding(
            code="optimizer-of-another-model",
            address=lost[0] if lost else "",
            measured=float(len(foreign)),
            message=f"{len(foreign)} of {len(held)} parameters that the optimizer holds are not this model's",
            remedy="build the optimizer after the model's last change: after to(device), a new head, a copy, a reload",
        )
    elif lost:
        yield Finding(
            code="optimizer-lacks-parameters",
            address=lost[0],
            measured=float(len(lost)),
            message=f"the optimizer does not hold this parameter ({many(len(lost), 'parameter')} of {len(mine)})",
            remedy="build it from all of model.parameters(), or let the last group take the rest",
        )


@rule(Phase.OPTIMIZER, "lr-zero", "lr-high", stops=("lr-zero",))
def rates(checked: CheckedModel) -> Iterator[Finding]:
    """Groups with a rate of 0, or far above the others'."""
    if checked.optimizer is None:
        if checked.lr is not None and checked.lr >= MOST:
            yield Finding(
                code="lr-high",
                address="",
                measured=checked.lr,
                message=f"the peak learning rate is {checked.lr:g}: Adam moves every weight by about as much in a step",
                remedy="begin with 1e-3 or less, and warm it up",
            )
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
    high = [g for g in groups if len(given) > 1 and float(g["lr"]) >= HIGH * given[(len(given) - 1) // 2]]
    alone = [g for g in groups if "adam" in kind.lower() and float(g["lr"]) >= MOST]
    if high or alone:
        group = (high or alone)[0]
        rate = float(group["lr"])
        yield Finding(
            code="lr-high",
            address=_name(checked, group),
            measured=rate,
            message=f"the learning rate of {many(len(group['params']), 'parameter')} is {rate:g}"
            + (f", {rate / given[0]:.3g} times that of another group" if high else f" in {kind}"),
            remedy="give all groups one rate, or a ratio that a parameterization gives (muP)",
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
    strong = [g for g in groups if float(g["weight_decay"]) >= STRONG]
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
    if strong:
        decay = float(strong[0]["weight_decay"])
        yield Finding(
            code="weight-decay-high",
            severity="warning",
            address=_name(checked, strong[0]),
            measured=decay,
            message=f"weight_decay is {decay:g}: at this strength weights shrink faster than they learn",
            remedy="take 0.01 to 0.1",
        )


def _name(checked: CheckedModel, group: dict[str, Any]) -> str:
    mine = {id(p): n for n, p in checked.model.named_parameters()}
    return next((mine[id(p)] for p in group["params"] if id(p) in mine), "")
