"""Rules about the size of weights at the start, by role. They are silent about a trained model."""

import math
from collections.abc import Iterator
from statistics import median

import torch
from torch import Tensor

from isograd.lint.checked_model import Subject, xavier
from isograd.lint.findings import Finding
from isograd.trace.structure import FoundSublayer, FoundTower

FAR = 1.25  # times off, above or below, that no sample of a matrix explains
_SCHEMES = {
    "normal": "N(0, initializer_range^2)",
    "xavier": "Xavier's 2 / (fan_in + fan_out)",
    "torch": "torch's U(+-1/sqrt(fan_in))",
    "lecun": "1 / fan_in",
}


def stds(subject: Subject) -> Iterator[Finding]:
    """Weights of one role whose standard deviation is off the scheme that the others follow."""
    if not subject.at_start:
        return
    for tower in subject.anatomy.towers:
        roles = _by_role(subject, tower)
        schemes = {name: [_fits(subject, tower, role, roles[role], name) for role in roles] for name in _SCHEMES}
        name, fits = max(schemes.items(), key=lambda item: sum(f is None for f in item[1]))
        odd = [(role, fit) for role, fit in zip(roles, fits, strict=True) if fit is not None]
        yield from (found for names in roles.values() if (found := _one_off(subject, names)) is not None)
        if len(roles) < 3 or len(odd) * 2 > len(roles) or "deepnorm-swapped" in subject.said:
            continue
        for role, ratio in odd:
            yield Finding(
                code="start-std",
                severity="warning",
                address=roles[role][0],
                measured=ratio,
                message=f"{role} weights of the {tower.name} start with {ratio:.3g} times the standard deviation that"
                f" {_SCHEMES[name]}, which the others follow, would give",
                remedy="start all roles by one scheme; scale only W_O and W_2 with depth",
            )


def value_start(subject: Subject) -> Iterator[Finding]:
    """DeepNorm scales the start of W_V, W_O, W_1 and W_2, and in a fused W_QKV its third part is forgotten."""
    if not subject.at_start:
        return
    for tower in subject.anatomy.towers:
        layers = [s for s in tower.sublayers if s.placement == "deepnorm" and s.skip.value > 1 and s.attention]
        found = [(s, pair) for s in layers if (pair := _value_and_out(subject, s)) is not None]
        if not found:
            continue
        value, out = (median(pair[i] for _, pair in found) for i in (0, 1))
        if out < 0.9 and value > FAR * out:
            sublayer = found[0][0]
            yield Finding(
                code="value-start",
                severity="error",
                address=_value_matrix(sublayer) or sublayer.address,
                measured=value / out,
                message=f"W_V starts at {value:.3g} of Xavier's standard deviation and W_O at {out:.3g}:"
                " DeepNorm's beta was not applied to the value part",
                remedy="scale the rows of W_V in the fused matrix, too (beta for V, O, 1 and 2; 1 for Q and K)",
            )


def _expected(subject: Subject, name: str, scheme: str) -> float:
    weight = subject.parameters[name]
    fan_out, fan_in = weight.shape[0], weight[0].numel()
    if scheme == "normal":
        return float(
            getattr(subject.config, "initializer_range", None) or getattr(subject.config, "init_std", None) or 0.02
        )
    if scheme == "xavier":
        return math.sqrt(2 / (fan_in + fan_out))
    return 1 / math.sqrt(3 * fan_in) if scheme == "torch" else 1 / math.sqrt(fan_in)


def _fits(subject: Subject, tower: FoundTower, role: str, names: list[str], scheme: str) -> float | None:
    """None where weights follow a scheme, plain, scaled with depth, or fused; else how many times off they are."""
    ratio = median(subject.std(n) / _expected(subject, n, scheme) for n in names)
    layers, sublayers = tower.layers, len(tower.sublayers)
    folded = 1 / math.sqrt(_head_size(subject, tower)) if role.endswith("query") else 1.0  # T5's 1/sqrt(d/heads)
    known = (
        1.0,
        folded,
        2**-0.5,  # Xavier of a fused matrix, drawn apart
        2**0.5,
        (2 * layers) ** -0.5,  # GPT-2's W_O and W_2
        layers**-0.5,
        sublayers**-0.5,
        (8 * layers) ** -0.25,  # DeepNorm's beta
        (12 * layers) ** -0.25,
        0.87 * layers ** (-5 / 16),
        1.5**0.5,  # torch's MultiheadAttention draws its fused matrix by Xavier, all else as nn.Linear does
    )
    near = any(abs(math.log(max(ratio, 1e-9) / k)) < math.log(1.12) for k in known)
    return None if near or ratio == 0 else ratio


def _one_off(subject: Subject, names: list[str]) -> Finding | None:
    """A weight of another size than its like in all other layers, where those agree."""
    stds = {name: subject.std(name) for name in names}
    usual = median(stds.values())
    odd = [name for name, std in stds.items() if usual and not 1 / FAR < std / usual < FAR]
    if len(odd) != 1 or len(names) < 4:
        return None
    return Finding(
        code="start-std",
        severity="warning",
        address=odd[0],
        measured=stds[odd[0]] / usual,
        message=f"this weight starts with {stds[odd[0]] / usual:.3g} times the standard deviation of the same one"
        f" in the other {len(names) - 1} layers",
        remedy="start all layers alike, or by one law of depth",
    )


def _head_size(subject: Subject, tower: FoundTower) -> int:
    attention = next((s.attention for s in tower.sublayers if s.attention is not None), None)
    attended = subject.anatomy.sums.attended(attention) if attention is not None else None
    return subject.trace[attended[0]].shape[-1] if attended is not None else 1


def _by_role(subject: Subject, tower: FoundTower) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for sublayer in tower.sublayers:
        for name, role in sublayer.roles.items():
            if subject.parameters[name].ndim == 2:
                found.setdefault(f"{sublayer.kind} {role}", []).append(name)
    return found


def _value_matrix(sublayer: FoundSublayer) -> str | None:
    return next((name for name, role in sublayer.roles.items() if "value" in role.split("+")), None)


def _value_and_out(subject: Subject, sublayer: FoundSublayer) -> tuple[float, float] | None:
    """Standard deviation over Xavier's, of W_V (of its part in a fused matrix) and of W_O."""
    name = _value_matrix(sublayer)
    if name is None or sublayer.last is None:
        return None
    weight, out = subject.parameters[name].float(), subject.parameters[sublayer.last].float()
    width = min(weight.shape)
    if "+" in sublayer.roles[name]:
        weight = _value_rows(subject, sublayer, weight)
    part = weight.std(unbiased=False).item() / xavier(torch.empty(width, width))
    return part, out.std(unbiased=False).item() / xavier(out)


def _value_rows(subject: Subject, sublayer: FoundSublayer, weight: Tensor) -> Tensor:
    """The part of a fused matrix that makes the values: its outputs are numbered, and those that arrive read off."""
    trace, flow = subject.trace, subject.flow
    attended = subject.anatomy.attended(sublayer)
    assert attended is not None
    made = next(
        o for o in reversed(trace.operations) if flow.is_product(o) and o.makes[0] in trace.above([attended[2]])
    )
    channels = trace[made.makes[0]].shape[-1]
    numbered = torch.arange(channels, dtype=trace[made.makes[0]].dtype).expand(trace[made.makes[0]].shape).clone()
    arrived = trace.replay({made.makes[0]: numbered}, [attended[2]])[0]
    rows = torch.unique(arrived.round().long().clamp(0, channels - 1))
    return weight[rows] if weight.shape[0] == channels else weight[:, rows]
