"""A placement as text: its formula line by line, and its numbers at a given shape."""

from itertools import groupby

from isograd.placement.formula import PLAIN, Coefficient, Coupled, Learned, Norm, Placement, ProjectionNorm, Residual
from isograd.placement.laws import Kind, Site, Stack, sites

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
    branch = _times("scale", residual.scale, _norm(_branch(residual, kind), residual.out))
    return f"x <- {_norm(_times('skip', residual.skip, 'x') + ' + ' + branch, residual.post)}"


def formulas(placement: Placement, *, cross: bool = False, layers: int = 12) -> dict[str, str]:
    """Kind -> formula, cross-attention only where asked; of a rule "attn, layers 1 to 3" and so on.

    >>> mixed = lambda site: Residual(post=Norm()) if site.layer < 4 else Residual(pre=Norm())
    >>> [*formulas(Placement(each=mixed))]
    ['attn, layers 1 to 3', 'attn, layers 4 to 12', 'ffn, layers 1 to 3', 'ffn, layers 4 to 12']
    """
    found: dict[str, str] = {}
    every = sites(layers, "decoder", layers if cross else 0)
    for kind in dict.fromkeys(site.kind for site in every):
        of_kind = [(site.layer, formula(placement.of(site), kind)) for site in every if site.kind == kind]
        for line, group in groupby(of_kind, key=lambda one: one[1]):
            first, *_, last = [layer for layer, _ in group] * 2
            found[kind if last - first + 1 == layers else f"{kind}, layers {first} to {last}"] = line
    return found


def final_formula(placement: Placement) -> str | None:
    """What happens after the last layer of a stack; None where nothing does."""
    return f"x <- {_norm('x', placement.final)}" if placement.final else None


def numbers(placement: Placement, layers: int, stack: Stack = "decoder", other: int = 0) -> list[dict[str, object]]:
    """One dict per site: layer, kind, skip, scale (initial values where learned), and the init gain of each role."""
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
            how = (
                "set by a profile of the first batch"
                if placement.calibrate
                else f"initialized to {_law(learned[0].init)}"
            )
            lines.append(f"{name}: {what} per sublayer, {how}")
        elif laws:
            lines.append(f"{name}: constant, {_law(laws[0])}")
    if placement.stream != PLAIN:
        stream = placement.stream
        lines.append(f"stream {type(stream).__name__}: a branch reads {stream.reads}; {stream.writes}")
    heads = [r.head_scale for r in every if r.head_scale]
    if heads:
        place = "on what W_O reads" if heads[0].reads == "heads" else "on what W_O wrote"
        lines.append(f"heads: one trainable number per head, initialized to 1, {place}")
    lines.extend(dict.fromkeys(_projection_norms(r.projections) for r in every if r.projections))
    by_law: dict[object, list[str]] = {}
    for role, g in placement.init.gain.items():
        by_law.setdefault(g, []).append(role)
    lines.extend(f"init of {', '.join(of)}: times {_law(g)}" for g, of in by_law.items())
    return lines


def _at_init(c: float | Coupled, scale: Coefficient) -> float:
    """What a skip is before the first step."""
    if not isinstance(c, Coupled):
        return c
    assert isinstance(scale, Learned) and isinstance(scale.init, float)
    return 1 - scale.init if c.by == "complement" else max(1 - scale.init**2, c.floor) ** 0.5


def _branch(residual: Residual, kind: Kind) -> str:
    read = _projected(_norm("x", residual.pre), residual.projections)
    heads = residual.head_scale.reads if residual.head_scale else None
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
    letters = ", ".join(role[0] for role in ("query", "key", "value") if role in norms.of)
    matrices = ", ".join(f"W_{role[0].upper()}" for role in ("query", "key", "value") if role in norms.of)
    over = "over the whole width" if norms.over == "width" else "over each head on its own"
    return f"{letters}: what {matrices} wrote, normalized {over}"


def _law(value: object) -> str:
    doc = (getattr(value, "__doc__", None) or "a number per site") if callable(value) else None
    return doc.strip().splitlines()[0].rstrip(".") if doc else f"{value:g}" if isinstance(value, float) else str(value)


def _norm(text: str, norm: Norm | None) -> str:
    return f"{_letters(norm)}({text})" if norm else text


_LETTERS = {"model": "LN", "layernorm": "LN", "rmsnorm": "RMS", "l2": "L2", "dyt": "DyT", "derf": "Derf"}


def _letters(norm: Norm) -> str:
    scaled = "" if norm.scale == 1.0 else "s * " if callable(norm.scale) else f"{norm.scale:g} * "
    return scaled + _LETTERS[norm.kind]


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
    return values | {f"init.{role}": g for role, g in placement.init.at(site).items()}
