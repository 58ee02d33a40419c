"""The figures of a depth profile: a curve per kind of sublayer, a panel per tower, the theory's lines thin and dashed.

All from the plain data of `diagnose.json`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from isograd.report.canvas import COLOURS, INK, Drawing, drawing, heading, label, log, style, widen

Row = Mapping[str, Any]
Draw = Callable[[Axes, Row, str], None]

KINDS = {"attn": "attention", "cross": "cross-attention", "ffn": "feed-forward", "mix": "mixing"}
_ORDER = ("attn", "ffn", "cross", "mix")
_THEORY: tuple[dict[str, Any], ...] = tuple(
    {"color": INK, "linewidth": 0.9, "linestyle": dash, "zorder": 1} for dash in ((0, (2, 2)), (0, (6, 2)), (0, (1, 3)))
)


def gradients(profile: Row) -> Drawing | None:
    """mean |gradient| of the last projections, and the norm of all gradients of a sublayer."""
    panels = {
        "gradient_mean_abs": "mean |gradient| of W₂, W_O",
        "gradient_norm": "|gradient|, all parameters",
    }
    return _drawn(profile, panels, _by_kind, logarithmic=panels)


def stream(profile: Row) -> Drawing | None:
    """Root mean square of the stream behind each sublayer; of the sum too, where a norm stands between the two."""
    normed = any(not _same(row["sum_rms"], row["residual_rms"]) for row in profile["rows"])
    beside = {"sum_rms": "RMS of the sum, before its norm"} if normed else {"growth": "Var[stream] / Var[start]"}
    panels = {"residual_rms": "RMS of the stream", **beside}
    return _drawn(profile, panels, _by_depth, logarithmic=("growth",))


def dependency(profile: Row) -> Drawing | None:
    """How much of each sum is new, and the running sum of it: ADMIN's index of instability."""
    panels = {
        "branch_skip_ratio": "Var[branch] / Var[skip]",
        "dependency": "β², the branch's part",
        "dependency_sum": "running sum of β²",
    }
    drawers = {"branch_skip_ratio": _by_kind, "dependency": _by_kind, "dependency_sum": _by_depth}
    return _drawn(profile, panels, drawers, logarithmic=("branch_skip_ratio", "dependency"))


def amplified(profile: Row) -> Drawing | None:
    """How far a small change of all matrices carries."""
    return _drawn(profile, {"amplification": "mean |change|² / e²"}, _by_depth, logarithmic=("amplification",))


def attention(profile: Row) -> Drawing | None:
    """Entropy of the attention and its largest logit."""
    panels = {"attention_entropy": "entropy of the attention (nats)", "largest_logit": "largest |logit|"}
    return _drawn(profile, panels, {"attention_entropy": _entropy, "largest_logit": _by_kind}, logarithmic=())


def massive(profile: Row) -> Drawing | None:
    """The largest entry of the stream."""
    panels = {"largest": "largest |x| in the stream", "largest_over_median": "largest |x| / median |x|"}
    return _drawn(profile, panels, _by_depth, logarithmic=panels)


def _drawn(
    profile: Row, panels: Mapping[str, str], draw: Draw | Mapping[str, Draw], logarithmic: Sequence[str] | Row
) -> Drawing | None:
    """Panels for each tower, rows of them side by side; None where nothing is known of any."""
    towers = [tower["name"] for tower in profile["towers"]]
    shown = {name: said for name, said in panels.items() if any(row[name] is not None for row in profile["rows"])}
    if not shown:
        return None
    drawn = drawing(len(shown) * len(towers), height=3.1, beside=_beside(len(shown), len(towers)))
    places = [(tower, name) for tower in towers for name in shown]
    for axes, (tower, name) in zip(drawn.panels, places, strict=True):
        (draw[name] if isinstance(draw, Mapping) else draw)(axes, _of(profile, tower), name)
        if len(towers) > 1:
            heading(axes, tower)
        _expected(axes, profile, tower, name)
        label(axes, "layer", shown[name])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        if name in logarithmic:
            log(axes)
            _widen_log(axes, _SPAN.get(name, 1.0))
        elif name in ("residual_rms", "sum_rms", "attention_entropy"):
            widen(axes, 0.2)
    return drawn


_SPAN = {"gradient_mean_abs": 5.0, "gradient_norm": 5.0, "largest": 10.0, "largest_over_median": 10.0}


def _widen_log(axes: Axes, least: float) -> None:
    """Show at least this ratio, so that noise does not look like a finding."""
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log" and high / low < least:
        more = (least * low / high) ** 0.5
        axes.set_ylim(low / more, high * more)


def _beside(panels: int, towers: int) -> int:
    if panels == 1:
        return min(towers, 2)
    return panels if panels < 4 else 2


def _by_kind(axes: Axes, tower: Row, name: str) -> None:
    """A line per kind of sublayer over the layers."""
    for kind, rows in tower["kinds"].items():
        known = [row for row in rows if row[name] is not None]
        if known:
            x, y = [row["layer"] for row in known], [row[name] for row in known]
            axes.plot(x, y, label=KINDS[kind], **_marks(len(known)), **style(_ORDER.index(kind)))


def _by_depth(axes: Axes, tower: Row, name: str) -> None:
    """One line through all sublayers: each stands at its part of its layer."""
    known = [row for row in tower["rows"] if row[name] is not None]
    x = [tower["at"][row["index"]] for row in known]
    look: dict[str, Any] = {"color": COLOURS[2], "linewidth": 1.8}
    axes.plot(x, [row[name] for row in known], label="as measured", **_marks(len(known)), **look)


def _entropy(axes: Axes, tower: Row, name: str) -> None:
    """The mean over heads, and thin below it the lowest head."""
    _by_kind(axes, tower, name)
    for kind, rows in tower["kinds"].items():
        known = [row for row in rows if row["attention_entropy_min"] is not None]
        if known:
            look = style(_ORDER.index(kind)) | {"linewidth": 0.8, "alpha": 0.8}
            x, lowest = [row["layer"] for row in known], [row["attention_entropy_min"] for row in known]
            axes.plot(x, lowest, label=f"{KINDS[kind]}, lowest head", **look)
    axes.set_ylim(bottom=0)


def _expected(axes: Axes, profile: Row, tower: str, name: str) -> None:
    """The theory's lines beside what was measured."""
    lines = [line for line in profile["expected"] if (line["tower"], line["quantity"]) == (tower, name)]
    at = _of(profile, tower)["at" if name in _ALONG else "layers"]
    for look, line in zip(_THEORY, lines, strict=False):
        axes.plot([at[i] for i in line["index"]], line["value"], label=line["label"], **look)


_ALONG = ("residual_rms", "sum_rms", "growth", "dependency_sum", "amplification", "largest", "largest_over_median")


def _of(profile: Row, tower: str) -> dict[str, Any]:
    """The rows of a tower, by kind too, and where each stands: layer 1 lies between 0 and 1."""
    rows = [row for row in profile["rows"] if row["tower"] == tower]
    kinds: dict[str, list[Row]] = {}
    counts: dict[int, int] = {}
    for row in rows:
        kinds.setdefault(row["kind"], []).append(row)
        counts[row["layer"]] = counts.get(row["layer"], 0) + 1
    at, seen = {}, dict.fromkeys(counts, 0)
    for row in rows:
        seen[row["layer"]] += 1
        at[row["index"]] = row["layer"] - 1 + seen[row["layer"]] / counts[row["layer"]]
    ordered = {kind: kinds[kind] for kind in _ORDER if kind in kinds}
    return {"rows": rows, "kinds": ordered, "at": at, "layers": {row["index"]: row["layer"] for row in rows}}


def _marks(points: int) -> dict[str, Any]:
    return {"marker": "o", "markersize": 3.0} if points <= 32 else {}


def _same(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and abs(a - b) <= 1e-3 * abs(b))
