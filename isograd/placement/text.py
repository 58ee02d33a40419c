"""A placement as text: its formula line by line, and its numbers at a given shape."""

from collections.abc import Mapping
from dataclasses import fields
from itertools import groupby
from typing import Literal

from isograd.placement.formula import (
    PLAIN,
    SLOTS,
    Coefficient,
    Constraint,
    Coupled,
    Gate,
    Learned,
    Norm,
    Placement,
    ProjectionNorm,
    Residual,
    Role,
    UnitNorm,
)
from isograd.placement.laws import Kind, Law, Site, Stack, sites
from isograd.placement.streams import Stream

_BRANCH: dict[Kind, str] = {"attn": "Attn({})", "cross": "Cross({})", "ffn": "FFN({})"}
_OPENED: dict[Kind, tuple[str, str]] = {  # the last projection, and what it reads
    "attn": ("W_O", "Heads({})"),
    "cross": ("W_O", "CrossHeads({})"),
    "ffn": ("W_2", "act(W_1 {})"),
}


def formula(residual: Residual, kind: Kind) -> str:
    """One line such as `x <- LN(skip * x + Attn(x))`. A branch is opened where a norm or a scale stands inside it.

    >>> formula(Residual(pre=Norm()), "ffn")
    'x <- x + FFN(LN(x))'
    >>> formula(Residual(pre=Norm(), mid=Norm()), "ffn")
    'x <- x + W_2 LN(act(W_1 LN(x)))'
    >>> formula(Residual(pre=Norm(), projections=ProjectionNorm(of=("query", "key"))), "attn")
    'x <- x + Attn(LN(q), LN(k), v of LN(x))'
    """
    return f"x <- {_sum(residual, _norm(_branch(residual, kind), residual.out))}"


def _sum(residual: Residual, branch: str) -> str:
    scaled = _times("scale", residual.scale, branch)
    return _norm(f"{_times('skip', residual.skip, 'x')} + {scaled}", residual.post)


def _formula(placement: Placement, site: Site) -> str:
    """In another stream than the plain one the branch alone: what it reads and writes, the legend says."""
    residual = placement.of(site)
    if placement.stream == PLAIN:
        return formula(residual, site.kind)
    return f"u = {_norm(_branch(residual, site.kind, 'read'), residual.out)}"


def formulas(placement: Placement, *, cross: bool = False, layers: int = 12) -> dict[str, str]:
    """Kind -> formula, cross-attention only where asked; of a rule "attn, layers 1 to 3" and so on.

    >>> mixed = lambda site: Residual(post=Norm()) if site.layer < 4 else Residual(pre=Norm())
    >>> [*formulas(Placement(each=mixed))]
    ['attn, layers 1 to 3', 'attn, layers 4 to 12', 'ffn, layers 1 to 3', 'ffn, layers 4 to 12']
    """
    found: dict[str, str] = {}
    every = sites(layers, "decoder", layers if cross else 0)
    for kind in dict.fromkeys(site.kind for site in every):
        of_kind = [(site.layer, _formula(placement, site)) for site in every if site.kind == kind]
        for line, group in groupby(of_kind, key=lambda one: one[1]):
            first, *_, last = [layer for layer, _ in group] * 2
            where = f"{kind}, layer {first}" if first == last else f"{kind}, layers {first} to {last}"
            found[kind if last - first + 1 == layers else where] = line
    return found


def first_formula(placement: Placement) -> str | None:
    """What happens before the first layer of a stack; None where nothing does."""
    return f"x <- {_norm('x', placement.first)}" if placement.first else None


def final_formula(placement: Placement) -> str | None:
    """What happens after the last layer of a stack; None where nothing does."""
    return f"x <- {_norm('x', placement.final)}" if placement.final else None


def numbers(placement: Placement, layers: int, stack: Stack = "decoder", other: int = 0) -> list[dict[str, object]]:
    """One dict per site: layer, kind, skip, scale (initial values where learned), the scale of a norm and the numbers
    of a stream where they change with the site, and the init gain of each role."""
    return [_row(placement, site) for site in sites(layers, stack, other)]


def legend(placement: Placement, layers: int = 12) -> list[str]:
    """What the symbols in the formulas stand for, in this placement."""
    every = list(dict.fromkeys(placement.of(site) for site in sites(layers, "decoder", layers)))
    lines = []
    for name in ("skip", "scale"):
        learned = [c for c in (getattr(r, name) for r in every) if isinstance(c, Learned)]
        laws = [c for c in (getattr(r, name) for r in every) if callable(c)]
        if learned:
            what = "a trainable vector of the width" if learned[0].shape == "width" else "a trainable number"
            per = "layer" if learned[0].shape == "layer" else "sublayer"
            what += {"itself": "", "sigmoid": ", as a sigmoid,", "abs": ", as an absolute value,"}[learned[0].by]
            how = (
                "set by a profile of the first batch"
                if placement.calibrate
                else f"initialized to {_law(learned[0].init)}"
            )
            lines.append(f"{name}: {what} per {per}, {how}")
        elif laws:
            lines.append(f"{name}: constant, {_law(laws[0])}")
    if placement.stream != PLAIN:
        lines.extend(_stream_lines(placement.stream))
        if placement.stream.adds:
            lines.extend(dict.fromkeys(f"add(x, u) = {_sum(residual, 'u')}" for residual in every))
    heads = [r.head_scale for r in every if r.head_scale]
    if heads:
        place = "on what W_O reads" if heads[0].reads == "heads" else "on what W_O wrote"
        lines.append(f"heads: one trainable number per head, initialized to 1, {place}")
    lines.extend(dict.fromkeys(_projection_norms(r.projections) for r in every if r.projections))
    lines.extend(dict.fromkeys(_gate_line(r.gate) for r in every if r.gate))
    lines.extend(dict.fromkeys(f"scores s of the attention: {r.cap:g} tanh(s / {r.cap:g})" for r in every if r.cap))
    lines.extend(dict.fromkeys(line for r in every for slot in SLOTS for line in _norm_lines(getattr(r, slot))))
    lines.extend(dict.fromkeys(line for r in every for slot in SLOTS for line in _weight_lines(slot, getattr(r, slot))))
    lines.extend(f"init of {', '.join(of)}: times {_law(g)}" for g, of in _by_law(placement.init.gain).items())
    for what, of in (
        ("learning rate", placement.rates.lr),
        ("eps", placement.rates.eps),
        ("decay", placement.rates.decay),
    ):
        lines.extend(f"{what} of {', '.join(roles)} in layers: times {_law(g)}" for g, roles in _by_law(of).items())
    return lines + [_constraint_line(one) for one in placement.constrain]


def _by_law(of: Mapping[Role, float | Law]) -> dict[object, list[str]]:
    by_law: dict[object, list[str]] = {}
    for role, g in of.items():
        by_law.setdefault(g, []).append(role)
    return by_law


def _stream_lines(stream: Stream) -> list[str]:
    lines = [f"stream {type(stream).__name__}: a branch reads {_said(stream, 'reads')}; {_said(stream, 'writes')}"]
    values = {f.name: (getattr(stream, f.name), f.default) for f in fields(stream)}
    own = {name: value for name, (value, default) in values.items() if name in _ALWAYS or value != default}
    if own:
        lines.append("stream: " + ", ".join(f"{name} = {_law(value)}" for name, value in own.items()))
    return lines


def _said(stream: Stream, name: Literal["reads", "writes"]) -> str:
    """What a stream says of itself; of one of one's own that says nothing, who computes it: the default is Plain's."""
    first = next(kind for kind in type(stream).__mro__ if name in vars(kind))
    if first is not Stream or not hasattr(stream, "connection"):
        return str(getattr(stream, name))
    return {
        "reads": "what its connection's `read` returns",
        "writes": "state <- its connection's `write`, of u",
    }[name] + f" (say it in `{name}` of the class)"


_ALWAYS = ("maps", "copies", "mix", "form")  # numbers of a stream that are shown even as they are by default


def _gate_line(gate: Gate) -> str:
    per = "for each feature of each head" if gate.per == "element" else "for each head"
    return f"gate: sigmoid(W_g read), a number {per}, on what W_O reads"


def _norm_lines(norm: Norm | None) -> list[str]:
    if norm is None:
        return []
    lines = [f"s: {_law(norm.scale)}"] if callable(norm.scale) else []
    return lines + (
        [f"slope: a trainable number, initialized to {_law(norm.slope)}"] if norm.kind in ("dyt", "derf") else []
    )


def _weight_lines(slot: str, norm: Norm | None) -> list[str]:
    """Where a norm's weight begins elsewhere than at 1."""
    begins = norm is not None and norm.affine and norm.init != 1.0
    return [f"weight of the norm {slot}: initialized to {_law(norm.init)}"] if norm is not None and begins else []


def _constraint_line(constraint: Constraint) -> str:
    if isinstance(constraint, UnitNorm):
        return (
            f"after each step: rows of {', '.join(constraint.rows)} and columns of {', '.join(constraint.columns)}"
            " divided by their lengths"
        )
    return (
        "after each step: W_Q and W_K of a head whose largest logit S was above"
        f" {constraint.threshold:g} times sqrt({constraint.threshold:g} / S)"
    )


def _at_init(c: float | Coupled, scale: Coefficient) -> float:
    """What a skip is before the first step."""
    if not isinstance(c, Coupled):
        return c
    assert isinstance(scale, Learned) and isinstance(scale.init, float)
    return 1 - scale.init if c.by == "complement" else max(1 - scale.init**2, c.floor) ** 0.5


def _branch(residual: Residual, kind: Kind, x: str = "x") -> str:
    read = _projected(_norm(x, residual.pre), None if kind == "ffn" else residual.projections)
    heads = residual.head_scale.reads if residual.head_scale else None
    if residual.gate is not None:
        read = f"{read}; gated"
    if kind == "ffn" and residual.projections:
        inner = f"act({_norm(f'W_1 {read}', residual.projections.norm)})"
        return f"W_2 {_norm(inner, residual.mid)}"
    if residual.mid is None and heads != "heads":
        text = _BRANCH[kind].format(read)
    else:
        last, inner = _OPENED[kind]
        inner = inner.format(read)
        scaled = f"heads * {inner}" if heads == "heads" else inner
        text = f"{last} {_norm(scaled, residual.mid)}" if residual.mid else f"{last} ({scaled})"
    return f"heads * {text}" if heads == "output" else text


def _projected(read: str, norms: ProjectionNorm | None) -> str:
    """What an attention reads, with the norms on its projections, if there are any."""
    if norms is None:
        return read
    letters = (_norm(role[0], norms.norm if role in norms.of else None) for role in ("query", "key", "value"))
    return f"{', '.join(letters)} of {read}"


def _projection_norms(norms: ProjectionNorm) -> str:
    if "ffn_in" in norms.of:
        return "w: what W_1 wrote, times a trainable vector"
    letters = ", ".join(role[0] for role in ("query", "key", "value") if role in norms.of)
    matrices = ", ".join(f"W_{role[0].upper()}" for role in ("query", "key", "value") if role in norms.of)
    over = "over the whole width" if norms.over == "width" else "over each head on its own"
    over += ", each with weights of its own" if norms.over == "heads" else ""
    over += ", after rotary positions" if norms.after_rotary else ""
    return f"{letters}: what {matrices} wrote, normalized {over}"


def _law(value: object) -> str:
    doc = (getattr(value, "__doc__", None) or "a number per site") if callable(value) else None
    return doc.strip().splitlines()[0].rstrip(".") if doc else f"{value:g}" if isinstance(value, float) else str(value)


def _norm(text: str, norm: Norm | None) -> str:
    if norm is None:
        return text
    if norm.kind == "none":
        return f"{_scaled(norm)}{'w * ' if norm.affine else ''}{text}"
    return f"{_scaled(norm)}{_LETTERS[norm.kind]}({text})"


def _scaled(norm: Norm) -> str:
    if norm.scale == 1.0:
        return ""
    return "s * " if callable(norm.scale) else "sqrt(d) * " if isinstance(norm.scale, str) else f"{norm.scale:g} * "


_LETTERS = {"model": "LN", "layernorm": "LN", "rmsnorm": "RMS", "l2": "L2", "dyt": "DyT", "derf": "Derf"}


def _times(name: str, c: Coefficient | Coupled, text: str) -> str:
    if isinstance(c, Coupled):
        return f"(1 - scale) * {text}" if c.by == "complement" else f"sqrt(1 - scale^2) * {text}"
    return text if c == 1.0 else f"{name} * {text}"


def _row(placement: Placement, site: Site) -> dict[str, object]:
    residual = placement.at(site)
    values: dict[str, object] = {"layer": site.layer, "kind": site.kind}
    for name in ("skip", "scale"):
        c = getattr(residual, name)
        values[name] = c.init if isinstance(c, Learned) else _at_init(c, residual.scale)
    for slot in SLOTS:
        norm = getattr(placement.of(site), slot)
        if norm is not None and callable(norm.scale):
            values[f"{slot}.scale"] = norm.scale(site)
        if norm is not None and callable(norm.init):
            values[f"{slot}.init"] = norm.init(site)
    for f in fields(placement.stream):
        if callable(law := getattr(placement.stream, f.name)):
            values[f"stream.{f.name}"] = float(law(site))
    return values | {f"init.{role}": g for role, g in placement.init.at(site).items()}
