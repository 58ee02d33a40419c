"""What a depth profile holds: rows of sublayers, facts of towers and of the model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SublayerProfile:
    """One sublayer; None where a quantity does not exist, or could not be had (`Profile.missing` says why).

    Attributes:
        index: of the sublayer in its tower, from 1; `layer` counts layers.
        gradient_norm: Frobenius norm of the loss's gradient by all parameters of the sublayer.
        gradient_mean_abs: mean |gradient| of its last projection, W_O or W_2.
        sum_rms: root mean square of skip * x + gain * u.
        residual_rms: of the stream behind the sublayer: behind the post norm where there is one.
        growth: Var[stream behind it] / Var[what the tower's first sublayer reads].
        skip, gain: the coefficients, as measured; of vectors their root mean square.
        branch_variance: Var[gain * u].
        branch_skip_ratio: Var[gain * u] / Var[skip * x].
        dependency: beta_ii^2 = Var[gain * u] / (Var[gain * u] + Var[skip * x]) (Liu et al. 2020).
        dependency_sum: of this and the sublayers before it in its tower.
        amplification: mean |F(W + e s) - F(W)|^2 / e^2 of the stream behind the sublayer, s = +-1 in all matrices.
        attention_entropy, attention_entropy_min: in nats, mean over heads and queries, and the lowest head's.
        attention_uniform: mean ln of the number of keys that a query sees; `attention_share` is the entropy over it.
        largest_logit: the largest |logit| of the attention.
        largest, largest_over_median: largest |x| in the stream behind the sublayer, and over the median |x|.
        largest_channel, largest_position: where it stands.
    """

    address: str
    tower: str
    layer: int
    index: int
    kind: str
    placement: str
    parameters: int
    gradient_norm: float | None
    gradient_mean_abs: float | None
    sum_rms: float
    residual_rms: float
    growth: float
    skip: float
    gain: float
    branch_variance: float | None
    branch_skip_ratio: float | None
    dependency: float | None
    dependency_sum: float | None
    amplification: float | None
    attention_entropy: float | None
    attention_entropy_min: float | None
    attention_uniform: float | None
    attention_share: float | None
    largest_logit: float | None
    largest: float
    largest_over_median: float
    largest_channel: int
    largest_position: int


@dataclass(frozen=True, kw_only=True)
class TowerProfile:
    """Facts of a tower: what its first sublayer reads has the root mean square `start_rms`."""

    name: str
    layers: int
    sublayers: int
    placements: Mapping[str, int]
    cross: bool
    final_norms: int
    start_rms: float


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What theory says of a quantity over a tower.

    Attributes:
        label: in a few words, for a figure.
        source: the paper and what it assumes.
        index: of sublayers; `value` is what is expected there.
    """

    quantity: str
    tower: str
    label: str
    source: str
    index: tuple[int, ...]
    value: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A model's depth profile.

    Attributes:
        model: its class.
        loss: None where there is none.
        objective: what the loss is of: "next token", "given labels", "random labels", "random targets" (no logits:
            mean square of the distance to numbers drawn from N(0, 1)).
        ln_classes: ln of the number of classes, ln V: the loss of a model that finds all alike.
        ratios: "tower kind" -> `first_last` and `max_min` of gradient_mean_abs over its layers.
        missing: what could not be had, and why.
        expected: what theory says of a start, where a tower's placement is one that it speaks of.
    """

    model: str
    parameters: int
    towers: tuple[TowerProfile, ...]
    inputs: Mapping[str, tuple[int, ...]]
    loss: float | None
    objective: str | None
    ln_classes: float | None
    ratios: Mapping[str, Mapping[str, float]]
    missing: Mapping[str, str]
    seed: int
    rows: tuple[SublayerProfile, ...]
    expected: tuple[Expected, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def ratios(rows: Sequence[SublayerProfile]) -> dict[str, dict[str, float]]:
    """First over last and largest over smallest gradient_mean_abs, by tower and kind."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row.gradient_mean_abs is not None:
            groups.setdefault(f"{row.tower} {row.kind}", []).append(row.gradient_mean_abs)
    return {
        name: {"first_last": _over(values[0], values[-1]), "max_min": _over(max(values), min(values))}
        for name, values in groups.items()
        if len(values) > 1
    }


def _over(a: float, b: float) -> float:
    return a / b if b else math.inf if a else math.nan
