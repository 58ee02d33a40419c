"""The formula of one sublayer as data, and what a placement is.

Every placement of the norms is the same line,

    x <- post( skip * x  +  scale * out( f( pre(x) ) ) )      with one more norm, mid, before f's last projection

A placement says which norms exist, what `skip` and `scale` are, and how the weights of f are initialized.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from isograd.placement.laws import Kind, Law, Site
from isograd.placement.streams import Plain, Stream

Group = Literal["norm on the sum", "norm inside", "scaled", "streams", "attention", "parameterization"]
Role = Literal[
    "query",
    "key",
    "value",
    "attn_out",
    "ffn_in",
    "ffn_out",
    "embed",
    "head",
    "norm",
    "coefficient",
    "dense",
    "shortcut",  # a coefficient on the stream itself, where another on what is added has a rate of its own
    "bias",  # of a matrix, in rates alone: where they name it; else a bias has the rates of its matrix
]


@dataclass(frozen=True, kw_only=True)
class Norm:
    """scale * (weight * n(v) + bias), n a normalization over the width, or an element-wise curve in its place.

    | kind | n(v) | |
    | --- | --- | --- |
    | model | the kind that the model's configuration names | |
    | layernorm | (v - mean) / sqrt(var + eps) | |
    | rmsnorm | v / sqrt(mean(v^2) + eps) | no bias |
    | l2 | v / max(|v|, 1e-12) | no bias |
    | dyt | tanh(slope v), slope trained | Zhu et al. 2025, arXiv 2503.10622 |
    | derf | erf(slope v + shift), both trained, shift from 0 | Chen et al. 2025, arXiv 2512.10938 |
    | none | v: a weight alone | no bias |

    Args:
        affine: whether it has a weight, and a bias where its kind has one.
        init: where its weight begins.
        centered: the weight is stored as its distance from 1, so that 0 stands for 1 (Gemma).
        scale: a constant on the result (LayerNorm Scaling has a law of the layer there); "root", the square root of the
            number of features.
        slope: where the slope of "dyt" and "derf" begins.
    """

    kind: Literal["model", "layernorm", "rmsnorm", "l2", "dyt", "derf", "none"] = "model"
    affine: bool = True
    init: float | Law = 1.0
    centered: bool = False
    scale: float | Law | Literal["root"] = 1.0
    slope: float | Law = 0.5

    def at(self, site: Site) -> "Norm":
        """The same norm with every law replaced by its value at `site`."""
        scale: float | Literal["root"] = "root" if self.scale == "root" else _number(self.scale, site)
        return replace(self, init=_number(self.init, site), scale=scale, slope=_number(self.slope, site))


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A trainable coefficient: a vector of the width, or one number, all entries initialized to `init`.

    Args:
        init: the coefficient at the first step, whatever its parameter is then.
        shape: "width", a vector; "scalar", one number per sublayer; "layer", one number that all sublayers of a layer
            share (ReZero).
        by: the coefficient as a function of its parameter w: "itself", w; "sigmoid", 1 / (1 + exp(-w)); "abs", |w|.
    """

    init: float | Law = 1.0
    shape: Literal["width", "scalar", "layer"] = "width"
    by: Literal["itself", "sigmoid", "abs"] = "itself"

    def __post_init__(self) -> None:
        if not callable(self.init) and not isinstance(self.init, int | float):
            raise ValueError(f"init={self.init!r}: a number or a law expected")
        if self.by == "sigmoid" and not callable(self.init) and not 0 < self.init < 1:
            raise ValueError(f"init={self.init}: a sigmoid lies between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class Coupled:
    """A skip that is a function of the scale c: "complement", 1 - c; "circle", sqrt(max(1 - c^2, floor))."""

    by: Literal["complement", "circle"]
    floor: float = 0.0


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
    by lengths, Dehghani et al. 2023, ViT-22B, by LayerNorm; Qwen3).
    `over="heads"`: over each head on its own, and each head has a weight of its own (Cohere).

    In a feed-forward "ffn_in" is what W_1 wrote (and in a gated one the gate's matrix), over its whole inner width.

    Args:
        after_rotary: the norm reads queries and keys that have been rotated (nanochat, nGPT).
    """

    of: tuple[Literal["query", "key", "value", "ffn_in"], ...]
    over: Literal["width", "head", "heads"] = "width"
    norm: Norm = Norm()
    after_rotary: bool = False

    def __post_init__(self) -> None:
        known = {"ffn_in"} if "ffn_in" in self.of else {"query", "key", "value"}
        if not self.of or len(set(self.of)) < len(self.of) or not set(self.of) <= known:
            raise ValueError(
                f"of={self.of!r}: expected each of 'query', 'key', 'value' at most once, and at least one; of a"
                " feed-forward 'ffn_in' alone"
            )
        if self.over not in ("width", "head", "heads"):
            raise ValueError(
                f"over={self.over!r}: expected 'width' (all heads together), 'head' (each on its own, one weight) or"
                " 'heads' (each on its own, a weight each)"
            )
        if "ffn_in" in self.of and self.over != "width":
            raise ValueError(f"over={self.over!r}: a feed-forward has no heads; 'ffn_in' is normalized over its width")
        if self.after_rotary and (self.over == "width" or "value" in self.of):
            raise ValueError(
                "after_rotary=True: queries and keys of heads are what is rotated; set over='head' or 'heads', and"
                " leave 'value' out of `of`"
            )


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A gate on what W_O reads: W_O( h * sigmoid(W_g read) ), `read` what the branch reads.

    Qiu et al. 2025, arXiv 2505.06708. `per="element"`: W_g writes a number for each feature of each head;
    `per="head"`: one for each head.
    """

    per: Literal["element", "head"] = "element"


Coefficient = float | Law | Learned
PLAIN = Plain()
SLOTS = ("pre", "mid", "out", "post")


@dataclass(frozen=True, kw_only=True)
class Residual:
    """One sublayer: x <- post(skip * x + scale * out(f(pre(x)))), all else inside f.

    Args:
        pre: norm on what the branch reads.
        mid: norm before the branch's last projection (the attention's W_O, the feed-forward's W_2).
        out: norm on what the branch wrote.
        post: norm on the sum.
        skip: coefficient on x: a number, a law, a `Learned`, or a function of the scale (`Coupled`).
        scale: coefficient on the branch: a number, a law, or a `Learned`.
        head_scale: NormFormer's HeadScale; only an attention has heads.
        projections: norms on queries, keys, values; only an attention has them.
        gate: a gate on what W_O reads; only an attention has it.
        cap: attention scores s become cap * tanh(s / cap) (Gemma 2); None leaves them as they are.
    """

    pre: Norm | None = None
    mid: Norm | None = None
    out: Norm | None = None
    post: Norm | None = None
    skip: Coefficient | Coupled = 1.0
    scale: Coefficient = 1.0
    head_scale: HeadScale | None = None
    projections: ProjectionNorm | None = None
    gate: Gate | None = None
    cap: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.skip, Coupled) and not isinstance(self.scale, Learned):
            raise ValueError("a Coupled skip follows a trained scale: set scale=Learned(...), or give skip as a number")

    def at(self, site: Site) -> "Residual":
        """The same residual with every law replaced by its value at `site`."""
        norms = {slot: norm.at(site) for slot in SLOTS if (norm := getattr(self, slot))}
        inside = self.projections and replace(self.projections, norm=self.projections.norm.at(site))
        skip = self.skip if isinstance(self.skip, Coupled) else _resolved(self.skip, site)
        scale = _resolved(self.scale, site)
        return replace(self, **norms, projections=inside, skip=skip, scale=scale)


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


Gains = dict[Role, float | Law]


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
class UnitNorm:
    """After each step rows (or columns) of the matrices of these roles are divided by their lengths (nGPT).

    What is scaled back after each step is not decayed.

    Args:
        rows: roles whose rows, a vector of what the matrix reads each, have length 1.
        columns: roles whose columns, a vector of what the matrix writes each, have length 1.
    """

    rows: tuple[Role, ...] = ()
    columns: tuple[Role, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClipLogits:
    """After each step a head whose largest attention logit S of that step was above the threshold has its part of W_Q
    and W_K (and their biases) times sqrt(threshold / S) (QK-clip of MuonClip, arXiv 2507.20534)."""

    threshold: float = 100.0


Constraint = UnitNorm | ClipLogits


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Factors on what the optimizer is given, by role; a role that is not named has 1.

    "embed" and "head" are the tables and the head, all else is inside layers. No depth rule changes what is outside.

    Args:
        lr: role -> factor on the learning rate.
        eps: role -> factor on the optimizer's eps.
        decay: role -> factor on the weight decay.
    """

    lr: Mapping[Role, float | Law] = field(default_factory=dict)
    eps: Mapping[Role, float | Law] = field(default_factory=dict)
    decay: Mapping[Role, float | Law] = field(default_factory=dict)

    def names(self, role: Role) -> bool:
        """Whether any factor is given for it."""
        return any(role in of for of in (self.lr, self.eps, self.decay))

    def at(self, role: Role, site: Site) -> tuple[float, float, float]:
        """The factors on learning rate, eps and weight decay of one role at a site."""
        lr, eps, decay = (_number(of.get(role, 1.0), site) for of in (self.lr, self.eps, self.decay))
        return lr, eps, decay


AS_GIVEN = Rates()


@dataclass(frozen=True, kw_only=True)
class Placement:
    """An entry of the catalogue: norms, coefficients, init.

    Args:
        each: the residual of every sublayer, or one per kind, or a rule from a site to either.
        first: norm on what the embedding gives the first layer.
        final: norm after the last layer of each stack.
        stream: what carries the residuals from one sublayer to the next.
        init: how the weights are initialized.
        calibrate: name of a calibration that must run before the first training step ("admin").
        constrain: what is done to weights after each optimizer step.
        rates: factors on the learning rate, eps and weight decay by role.
        about: one line for the list.
        paper: the source, with an arXiv number where there is one.
        note: what a user should know before choosing it.
        group: where the list has it; "" for one of your own.
        families: model families that carry it, by transformers' names ("gemma2").
        unconfirmed: only one source gives its equation, and no code by its authors.
    """

    each: "Residual | ByKind | Rule"
    first: Norm | None = None
    final: Norm | None = None
    stream: Stream = PLAIN
    init: Init = Init()
    calibrate: Literal["admin"] | None = None
    constrain: tuple[Constraint, ...] = ()
    rates: Rates = AS_GIVEN
    about: str = ""
    paper: str = ""
    note: str = ""
    group: Group | Literal[""] = ""
    families: tuple[str, ...] = ()
    unconfirmed: bool = False

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
        for kind, residual in residuals.items():
            inside = residual.projections
            if inside is not None and (kind == "ffn") != ("ffn_in" in inside.of):
                raise ValueError(
                    "a feed-forward has no queries, keys and values: put ProjectionNorm on the attention, by"
                    " ByKind(attn=..., ffn=...)"
                    if kind == "ffn"
                    else "'ffn_in' is a feed-forward's: put that ProjectionNorm there, by ByKind(attn=..., ffn=...)"
                )
        if "ffn" in residuals:
            for name, (what, who) in _OF_AN_ATTENTION.items():
                if getattr(residuals["ffn"], name) is not None:
                    raise ValueError(
                        f"a feed-forward has no {what}: put {who} on the attention, by ByKind(attn=..., ffn=...)"
                    )
        fixed = [kind for kind, residual in residuals.items() if not isinstance(residual.skip, Learned)]
        if self.calibrate and fixed:
            raise ValueError(
                f"calibrate={self.calibrate!r} sets learned skips, but this placement's skip is not Learned"
                f" at {', '.join(fixed)}"
            )
        lined = [kind for kind, r in residuals.items() if (r.skip, r.scale, r.post) != (1.0, 1.0, None)]
        if lined and not self.stream.adds:
            raise ValueError(
                f"{type(self.stream).__name__} writes by its own maps: skip, scale and post have no place in it, and"
                f" are set at {', '.join(lined)}"
            )


_OF_AN_ATTENTION = {
    "head_scale": ("heads", "HeadScale"),
    "gate": ("heads to gate", "Gate"),
    "cap": ("scores", "cap"),
}


Rule = Callable[[Site], Residual | ByKind]


def _of(each: Residual | ByKind, kind: Kind) -> Residual:
    return each.of(kind) if isinstance(each, ByKind) else each


def _resolved(c: Coefficient, site: Site) -> float | Learned:
    if isinstance(c, Learned):
        return replace(c, init=_number(c.init, site))
    return _number(c, site)


def _number(value: float | Law, site: Site) -> float:
    return float(value(site)) if callable(value) else float(value)
