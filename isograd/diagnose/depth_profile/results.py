"""What a depth profile holds: rows of sublayers, facts of stacks and of the model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SublayerProfile:
    """One sublayer; None where a quantity does not exist, or could not be measured (`Profile.missing` says why).

    Attributes:
        index: of the sublayer in its stack, from 1; `layer` counts layers.
        gradient_norm: Frobenius norm of the loss's gradient by all parameters of the sublayer.
        gradient_mean_abs: mean |gradient| of its last projection, W_O or W_2.
        sum_rms: root mean square of skip * x + scale * u.
        residual_rms: of the stream after the sublayer: after the post norm where there is one.
        growth: Var[stream after it] / Var[what the stack's first sublayer reads].
        skip, scale: the coefficients, as measured; of vectors their root mean square.
        branch_variance: Var[scale * u].
        branch_skip_ratio: Var[scale * u] / Var[skip * x].
        dependency: beta_ii^2 = Var[scale * u] / (Var[scale * u] + Var[skip * x]) (Liu et al. 2020).
        dependency_sum: of this and the sublayers before it in its stack.
        amplification: mean |F(W + e s) - F(W)|^2 / e^2 of the stream after the sublayer, s = +-1 in all matrices.
        attention_entropy, attention_entropy_min: in nats, mean over heads and queries, and the lowest head's.
        attention_uniform: mean ln of the number of keys that a query attends to; `attention_share`: entropy over it.
        largest_logit: the largest |logit| of the attention.
        largest, largest_over_median: largest |x| in the stream after the sublayer, and over the median |x|.
        largest_channel, largest_position: where it stands.
    """

    address: str
    stack: str
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
    scale: float
    branch_variance: float | None = None
    branch_skip_ratio: float | None = None
    dependency: float | None = None
    dependency_sum: float | None
    amplification: float | None
    attention_entropy: float | None = None
    attention_entropy_min: float | None = None
    attention_uniform: float | None = None
    attention_share: float | None = None
    largest_logit: float | None = None
    largest: float
    largest_over_median: float
    largest_channel: int
    largest_position: int


@dataclass(frozen=True, kw_only=True)
class StackProfile:
    """Facts of a stack; `input_rms` is the root mean square of what its first sublayer reads."""

    name: str
    layers: int
    sublayers: int
    placements: Mapping[str, int]
    cross: bool
    final_norms: int
    input_rms: float


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What theory says of a quantity over a stack.

    Attributes:
        label: in a few words, for a figure.
        source: the paper and what it assumes.
        index: of sublayers; `value` is what is expected there.
    """

    quantity: str
    stack: str
    label: str
    source: str
    index: tuple[int, ...]
    value: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A model's depth profile.

    Attributes:
        model: its class.
        trained: whether most norm weights differ from each other, which no init makes them.
        loss: None where there is none.
        objective: what the loss is of: "next token", "given labels", "random labels", "random targets" (no logits:
            mean square of the distance to numbers drawn from N(0, 1)).
        ln_classes: ln of the number of classes, ln V: the loss of equal probabilities.
        ratios: "stack kind" -> `first_last` and `max_min` of gradient_mean_abs over its layers.
        missing: what could not be measured, and why.
        expected: what theory predicts at initialization, for the placements of which it does.
    """

    model: str
    parameters: int
    stacks: tuple[StackProfile, ...]
    inputs: Mapping[str, tuple[int, ...]]
    trained: bool
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
    """First over last and largest over smallest gradient_mean_abs, by stack and kind."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row.gradient_mean_abs is not None:
            groups.setdefault(f"{row.stack} {row.kind}", []).append(row.gradient_mean_abs)
    return {
        name: {"first_last": over(values[0], values[-1]), "max_min": over(max(values), min(values))}
        for name, values in groups.items()
        if len(values) > 1
    }


def over(a: float, b: float) -> float:
    """a / b, infinite over 0, not a number where both are."""
    return a / b if b else math.inf if a else math.nan
