"""What is found in a model: norms, sublayers, towers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import torch

from isograd.trace.record import Operation

Slot = Literal["pre", "mid", "out", "post", "query", "key", "value"]
FoundKind = Literal["attn", "cross", "ffn", "mix"]
Function = Literal["post-ln", "admin", "deepnorm"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FoundNorm:
    """A normalisation: scaling `origin` leaves `result` unchanged.

    Attributes:
        address: of the module in which it was computed.
        gain, offset: names of the parameters that multiply it and are added, where there are such.
        eps: None where it could not be read from the operations.
        centred: whether adding a constant to all channels changes nothing (LayerNorm), or does (RMSNorm).
        dtype: in which it was computed.
    """

    origin: int
    result: int
    address: str
    gain: str | None
    offset: str | None
    eps: float | None
    centred: bool
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True, eq=False)
class Coefficient:
    """`skip` or `gain` of a found sum: its mean value, and the names of the parameters in it."""

    value: float
    even: bool  # one number for all channels
    learned: tuple[str, ...]


@dataclass(kw_only=True, eq=False)
class FoundSublayer:
    """One sum with its branch.

    Attributes:
        read: what the branch reads, x.
        branch: what the branch gives, u, before its coefficient.
        total: the sum s.
        kind: "attn", "cross", "ffn", or "mix" (mixes positions without attention).
        norms: those found, by slot.
        placement: the name of what was found; see `name_of`.
        sure: whether the walk and the probes agree.
        parameters: names of all in the branch, its norms and coefficients.
        roles: name of a matrix -> query, key, value, out, ffn_in, ffn_out.
        last: name of the last projection's weight, W_O or W_2.
        address: of the module that holds the branch.
    """

    read: int
    branch: int
    total: int
    kind: FoundKind
    norms: dict[Slot, list[FoundNorm]]
    skip: Coefficient
    gain: Coefficient
    parameters: tuple[str, ...]
    roles: dict[str, str]
    last: str | None
    attention: Operation | None
    address: str = ""
    placement: str = ""
    sure: bool = True
    tower: str = ""
    layer: int = 0
    parallel: bool = False


@dataclass(kw_only=True, eq=False)
class FoundTower:
    """Sublayers along one residual stream.

    Attributes:
        name: "encoder" or "decoder", with a number where there are several.
        start: the value that the first sublayer reads.
        final: the norms that the last sum goes through before anything else reads it.
        function: what sums under a post norm compute; see `function_of`.
    """

    name: str
    sublayers: list[FoundSublayer]
    start: int
    final: list[FoundNorm] = field(default_factory=list)
    function: Function | None = None

    @property
    def layers(self) -> int:
        return self.sublayers[-1].layer


def name_of(slots: Iterable[str]) -> str:
    """The name of a sublayer's norms: "post-ln", "pre-ln", "out-ln" (on what the branch wrote), "sandwich" (pre and
    out), "sub-ln" (pre and mid); others by their slots, as "pre+post"; "none".
    """
    named = [slot for slot in ("pre", "mid", "out", "post") if slot in slots]
    joined = "+".join(named)
    return {
        "": "none",
        "pre": "pre-ln",
        "post": "post-ln",
        "out": "out-ln",
        "pre+out": "sandwich",
        "pre+mid": "sub-ln",
    }.get(joined, joined)


SMALL = 0.7  # skip on a stream of variance 1, or RMS of an embedding, below which a branch replaces what came before


def function_of(sublayers: Sequence[FoundSublayer]) -> Function | None:
    """What the sums under a post norm compute in a tower, whatever their coefficients are called.

    `function_of_skips` of r_i = skip_i / gain_i. None: no sublayer has a post norm alone.
    """
    ratios = [s.skip.value / (s.gain.value or 1.0) for s in sublayers if "post" in s.norms and "pre" not in s.norms]
    return function_of_skips(ratios) if ratios else None


def function_of_skips(ratios: Sequence[float]) -> Function:
    """r_i weighs the stream, which a post norm has brought to one size, against branch i of N.

    "post-ln": in the last quarter r is below two thirds of DeepNorm's N^(1/4), or 1.05, as in an ADMIN that was never
    calibrated; or some r after the first is below `SMALL`, as after a calibration on an embedding that is too small.
    Otherwise "deepnorm" where r is one number, and "admin" where it grows.
    """
    last = median(ratios[-max(1, len(ratios) // 4) :])
    if last < max(1.05, len(ratios) ** 0.25 * 2 / 3) or min(ratios[1:], default=1.0) < SMALL:
        return "post-ln"
    return "deepnorm" if max(ratios) < 1.01 * min(ratios) else "admin"
