"""The formula of one sublayer as data, and what a placement is.

Every placement of the norms is the same line,

    x <- post( skip * x  +  scale * out( f( pre(x) ) ) )      with one more norm, mid, before f's last projection

A placement says which norms exist, what `skip` and `scale` are, and how the weights of f are initialized.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from isograd.placement.laws import Kind, Site

Law = Callable[[Site], float]
Role = Literal[
    "query", "key", "value", "attn_out", "ffn_in", "ffn_out", "embed", "head", "norm", "coefficient", "dense"
]


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A normalization over the width. `kind="model"` takes the kind that the model's configuration names."""

    kind: Literal["model", "layernorm", "rmsnorm"] = "model"


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A trainable coefficient: a vector of the width, or one number, all entries initialized to `init`."""

    init: float | Law = 1.0
    shape: Literal["width", "scalar"] = "width"


@dataclass(frozen=True, kw_only=True)
class HeadScale:
    """One trainable number per attention head, initialized to 1.

    `reads="heads"`: Concat(g_1 h_1, ..., g_n h_n) W_O, NormFormer as the paper writes it.
    `reads="output"`: the h-th block of width/heads features of Concat(h) W_O + b_O times g_h, as fairseq released it.
    """

    reads: Literal["heads", "output"] = "heads"


@dataclass(frozen=True, kw_only=True)
class ProjectionNorm:
    """A norm on what each projection in `of` wrote, before positions are rotated into it.

    `over="width"`: over all heads together, a weight of the width (NormFormer's ablation; OLMo 2's queries and keys).
    `over="head"`: over each head on its own, a weight of width/heads that all heads share (QK-norm: Henry et al. 2020
    by lengths, Dehghani et al. 2023, ViT-22B, by LayerNorm).
    """

    of: tuple[Literal["query", "key", "value"], ...]
    over: Literal["width", "head"] = "width"
    norm: Norm = Norm()

    def __post_init__(self) -> None:
        if not self.of or len(set(self.of)) < len(self.of) or not set(self.of) <= {"query", "key", "value"}:
            raise ValueError(f"of={self.of!r}: expected each of 'query', 'key', 'value' at most once, and at least one")
        if self.over not in ("width", "head"):
            raise ValueError(f"over={self.over!r}: expected 'width' (all heads together) or 'head' (each on its own)")


Coefficient = float | Law | Learned


@dataclass(frozen=True, kw_only=True)
class Residual:
    """One sublayer: x <- post(skip * x + scale * out(f(pre(x)))), `mid`, `head_scale` and `projections` inside f.

    Args:
        pre: norm on what the branch reads.
        mid: norm before the branch's last projection (the attention's W_O, the feed-forward's W_2).
        out: norm on what the branch wrote.
        post: norm on the sum.
        skip: coefficient on x: a number, a law, or a `Learned`.
        scale: coefficient on the branch, likewise.
        head_scale: NormFormer's HeadScale; only an attention has heads.
        projections: norms on queries, keys, values; only an attention has them.
    """

    pre: Norm | None = None
    mid: Norm | None = None
    out: Norm | None = None
    post: Norm | None = None
    skip: Coefficient = 1.0
    scale: Coefficient = 1.0
    head_scale: HeadScale | None = None
    projections: ProjectionNorm | None = None

    def at(self, site: Site) -> "Residual":
        """The same residual with every law replaced by its value at `site`."""
        return replace(self, skip=_resolved(self.skip, site), scale=_resolved(self.scale, site))


@dataclass(frozen=True, kw_only=True)
class ByKind:
    """A residual per kind of sublayer; `cross` defaults to `attn`."""

    attn: Residual
    ffn: Residual
    cross: Residual | None = None

    def of(self, kind: Kind) -> Residual:
        if kind == "ffn":
            return self.ffn
        return self.cross if kind == "cross" and self.cross else self.attn


@dataclass(frozen=True, kw_only=True)
class Init:
    """How the weights are initialized: a base scheme and a factor per role.

    Args:
        base: a scheme of `isograd.transformer.init`; None takes the one that the model's configuration names.
        gain: role -> number or law, multiplies the standard deviation of that role's weights.
    """

    base: str | None = None
    gain: Mapping[Role, float | Law] = field(default_factory=dict)

    def at(self, site: Site) -> dict[Role, float]:
        """Role -> factor at `site`, roles without a factor left out."""
        return {role: _number(g, site) for role, g in self.gain.items()}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """An entry of the catalogue: norms, coefficients, init.

    Args:
        each: the residual of every sublayer, or one per kind, or a rule from a site to either.
        final: norm after the last layer of each stack.
        init: how the weights are initialized.
        calibrate: name of a calibration that must run before the first training step ("admin").
        about: one line for the list.
        paper: the source, with an arXiv number where there is one.
        note: what a user should know before choosing it.
    """

    each: "Residual | ByKind | Rule"
    final: Norm | None = None
    init: Init = Init()
    calibrate: Literal["admin"] | None = None
    about: str = ""
    paper: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not callable(self.each):
            kinds: tuple[Kind, ...] = ("attn", "cross", "ffn")
            self._check({kind: _of(self.each, kind) for kind in kinds})

    def of(self, site: Site) -> Residual:
        """The residual at a site, laws unresolved."""
        if not callable(self.each):
            return _of(self.each, site.kind)
        residual = _of(self.each(site), site.kind)
        self._check({site.kind: residual})
        return residual

    def at(self, site: Site) -> Residual:
        """The residual at a site, laws resolved to numbers."""
        return self.of(site).at(site)

    def _check(self, residuals: Mapping[Kind, Residual]) -> None:
        if "ffn" in residuals and residuals["ffn"].head_scale is not None:
            raise ValueError(
                "a feed-forward has no heads: put HeadScale on the attention, by ByKind(attn=..., ffn=...)"
            )
        if "ffn" in residuals and residuals["ffn"].projections is not None:
            raise ValueError(
                "a feed-forward has no queries, keys and values: put ProjectionNorm on the attention, by"
                " ByKind(attn=..., ffn=...)"
            )
        fixed = [kind for kind, residual in residuals.items() if not isinstance(residual.skip, Learned)]
        if self.calibrate and fixed:
            raise ValueError(
                f"calibrate={self.calibrate!r} sets learned skips, but this placement's skip is not Learned"
                f" at {', '.join(fixed)}"
            )


Rule = Callable[[Site], Residual | ByKind]


def _of(each: Residual | ByKind, kind: Kind) -> Residual:
    return each.of(kind) if isinstance(each, ByKind) else each


def _resolved(c: Coefficient, site: Site) -> float | Learned:
    if isinstance(c, Learned):
        return replace(c, init=_number(c.init, site))
    return _number(c, site)


def _number(value: float | Law, site: Site) -> float:
    return float(value(site)) if callable(value) else float(value)
