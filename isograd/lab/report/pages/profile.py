"""The page of a depth profile: every number of every sublayer, and curves over depth. From `profile.json` alone.

Curves have the colour and dash of the model's placement; the marker shows the kind of sublayer.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from isograd.files import finite, write_text
from isograd.lab.report.page import Page, Section, Table, write_page
from isograd.lab.report.style import INK, Drawing, Look, drawing, heading, known, label, log, look_of, widen

Row = Mapping[str, Any]
Numbers = Sequence[float]


def write_profile(out: Path, profile: Row, facts: Mapping[str, str]) -> Path:
    """Write profile.html, profile.json, figures and tables into `out`.

    Args:
        profile: as `Profile.as_dict` gives it; may have been read from JSON.
        facts: name -> value, of the command, the machine and the versions.

    Returns:
        the path of the page.
    """
    read = plain(profile)
    inputs = ", ".join(f"{name or 'input'} {tuple(shape)}" for name, shape in read["inputs"].items())
    page = Page(
        title=f"Depth profile of {facts.get('model', read['model'])}",
        headline=verdict(read),
        subtitle=summary(read),
        warnings=[f"Missing: {name}: {reason}" for name, reason in read["missing"].items()],
        sections=[
            Section(name="overview", title="Overview", sentence=_OVERVIEW, table=overview(read)),
            *(
                Section(name=one.name, title=one.title, sentence=one.text, figure=partial(draw, read, one.name))
                for one in CHARTS
            ),
            Section(name="expected", title="Dashed lines", sentence=_EXPECTED, table=_sources(read)),
            Section(name="sublayers", title="Every sublayer", table=every_sublayer(read)),
        ],
        made=f"Made by `isograd explain` from one batch ({inputs}):"
        f" {', '.join(f'{name} {value}' for name, value in facts.items())}. The numbers are in `profile.json`.",
    )
    written = write_page(page, out / "profile.html")
    content = json.dumps({**read, "facts": facts}, indent=1, ensure_ascii=False)
    write_text(out / "profile.json", content + "\n")
    return written


def plain(profile: Row) -> dict[str, Any]:
    """As JSON gives it back: lists, and nothing for what is no number."""
    found: dict[str, Any] = json.loads(json.dumps(finite(dict(profile))))
    return found


# ------------------------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True, kw_only=True)
class ProfileColumn:
    """A quantity: its header, and how a number is written."""

    key: str
    name: str
    form: str = "{:.3g}"


COLUMNS = (
    ProfileColumn(key="gradient_norm", name="|grad|"),
    ProfileColumn(key="gradient_mean_abs", name="mean|g| W₂,W_O"),
    ProfileColumn(key="residual_rms", name="stream RMS"),
    ProfileColumn(key="branch_skip_ratio", name="Var b/s"),
    ProfileColumn(key="dependency", name="β²"),
    ProfileColumn(key="dependency_sum", name="Σβ²", form="{:.2f}"),
    ProfileColumn(key="amplification", name="amplif."),
    ProfileColumn(key="attention_share", name="entropy", form="{:.0%}"),
    ProfileColumn(key="largest_logit", name="max logit"),
    ProfileColumn(key="largest_over_median", name="max/median"),
)


def number(value: float | None, form: str = "{:.3g}") -> str:
    """Three digits, thousands in full; "n/a" for what is no number."""
    if value is None or math.isnan(value):
        return "n/a"
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else form.format(value)


def every_sublayer(profile: Row) -> Table:
    """Every sublayer with its address, all columns."""
    columns: dict[str, Any] = {"sublayer": "address", "kind": "kind", "placement": "placement"}
    columns |= {column.name: partial(_number, column) for column in COLUMNS}
    columns["largest entry"] = lambda row: f"channel {row['largest_channel']}, position {row['largest_position']}"
    return Table.of(profile["rows"], columns, left=3)


def _number(column: ProfileColumn, row: Row) -> str:
    return "" if row[column.key] is None else number(row[column.key], column.form)


def summary(profile: Row) -> str:
    """What the model is."""
    stacks = "; ".join(
        f"{stack['name']}: {_count(stack['layers'], 'layer')} of {_placements(stack['placements'])}"
        + (f", {_count(stack['final_norms'], 'final norm')}" if stack["final_norms"] else "")
        for stack in profile["stacks"]
    )
    size = profile["parameters"]
    millions = f"{size / 1e6:,.1f} M" if size >= 1e6 else f"{size:,}"
    return f"{profile['model']}, {millions} parameters. {stacks[:1].upper()}{stacks[1:]}."


FAR = 30.0  # times, first over last layer
USUAL = "Nothing unusual"


def verdict(profile: Row, judged: bool = False) -> str:
    """What the numbers say, the worst first; of the rest that they are as usual.

    Args:
        judged: whether a deep stack trains has been said already; of the rest nothing is said then.
    """
    stream = [] if judged else _stream_of(profile)
    said = [*_gradients_of(profile), *_loss_of(profile), *stream, *_attention_of(profile)]
    if judged or said:
        return " ".join(said)
    loss = (
        "random inputs say nothing about a trained model's loss"
        if _says_nothing(profile)
        else "the loss is as expected"
    )
    return f"{USUAL}: {gradients_said(profile)}; {loss}."


def _says_nothing(profile: Row) -> bool:
    """Whether the loss is that of a trained model on random inputs: it has learned that they do not come."""
    return bool(profile.get("trained")) and profile.get("text") is None


def gradients_said(profile: Row) -> str:
    """The first/last gradient ratio that is farthest from 1, and from where on one counts as unusual."""
    ratios = (one["first_last"] for name, one in profile["ratios"].items() if name.endswith(" ffn"))
    known = [ratio for ratio in ratios if ratio]
    limits = f"unusual below 1/{FAR:.0f} or above {FAR:.0f}"
    if not known:
        return f"no first/last gradient ratio ({limits})"
    farthest = max(known, key=lambda ratio: abs(math.log(ratio)))
    return f"the first layer's mean gradient is {number(farthest)} times the last layer's ({limits})"


def _gradients_of(profile: Row) -> Iterator[str]:
    for group, ratio in profile["ratios"].items():
        found = ratio["first_last"]
        if group.endswith(" ffn") and found is not None and not 1 / FAR <= found <= FAR:
            how = "vanish" if found < 1 else "explode"
            yield f"Gradients {how} towards the input: first/last layer {number(found)} ({group[:-4]})."


def _loss_of(profile: Row) -> Iterator[str]:
    loss, guess = profile["loss"], profile["ln_classes"]
    if _says_nothing(profile) or loss is None or guess is None:
        return
    if loss > guess + 1 and profile.get("trained"):
        yield f"The loss is {loss - guess:.1f} nats above a uniform guess on a text that the model was not trained on."
    elif loss > guess + 1 and profile["objective"] != "given labels":
        yield f"The loss is {loss - guess:.1f} nats above a uniform guess: the head, or what it reads, is too large."


def _stream_of(profile: Row) -> Iterator[str]:
    for stack in profile["stacks"]:
        rows = [row for row in profile["rows"] if row["stack"] == stack["name"] and row["dependency_sum"] is not None]
        share = rows[-1]["dependency_sum"] / len(rows) if rows else 0.0
        if len(rows) >= DEEP and ({*stack["placements"]} == {"post-ln"} or share > REWRITTEN):
            yield (
                "Gradients at initialization say little of this stack: with norms on the sum, or branches that rewrite"
                f" the stream ({share:.0%} in each of {len(rows)} sublayers), deep stacks collapse without a warm-up or"
                " at too high a rate. isograd check judges that, with the rate and the warm-up (--lr, --warmup)."
            )


def _attention_of(profile: Row) -> Iterator[str]:
    low = [row for row in profile["rows"] if row["attention_share"] is not None and row["attention_share"] < 0.1]
    if low:
        yield f"Attention looks at one key in {_count(len(low), 'sublayer')}, first {low[0]['address']}."


DEEP = 24  # sublayers
REWRITTEN = 0.2  # of the stream, by each sublayer


def overview(profile: Row) -> Table:
    """The loss, gradients over depth, the largest activation."""
    found = []
    if profile["loss"] is not None:
        found.append((f"loss {_OBJECTIVES[profile['objective']]}", number(profile["loss"])))
        if profile["ln_classes"] is not None:
            classes = f"{round(math.exp(profile['ln_classes'])):,}"
            found.append((f"ln {classes}: loss of a uniform guess", f"{profile['ln_classes']:.3f}"))
    for group, ratio in profile["ratios"].items():
        stack, kind = group.rsplit(" ", 1)
        if kind == "ffn":
            found.append((f"gradient of W₂, {stack}: first/last layer", number(ratio["first_last"])))
            found.append((f"gradient of W₂, {stack}: largest/smallest", number(ratio["max_min"])))
    top = max(profile["rows"], key=lambda row: _or_less(row["largest_over_median"]))
    where = f"{top['address']}, channel {top['largest_channel']}, position {top['largest_position']}"
    found.append((f"largest entry of a residual stream, after {where}", number(top["largest"])))
    found.append(("the same over the median entry", number(top["largest_over_median"])))
    return Table(header=("quantity", "value"), lines=found)


_OBJECTIVES = {
    "next token": "of the next token",
    "given labels": "of the labels given",
    "random labels": "of random labels",
    "random targets": "(no logits: mean square against random targets)",
}


def _placements(counts: Mapping[str, int]) -> str:
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{name} ({n})" for name, n in counts.items())


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _or_less(value: float | None) -> float:
    return -1.0 if value is None or math.isnan(value) else value


def _sources(profile: Row) -> Table:
    """Each dashed line of the page once: its name, of what, and where it comes from."""
    seen = {(line["label"], line["quantity"]): line for line in profile["expected"]}
    columns: dict[str, Any] = {"line": "label", "quantity": lambda line: line["quantity"].replace("_", " ")}
    return Table.of(seen.values(), columns | {"source": "source"}, left=3)


# ------------------------------------------------------------------------------------------------------------- charts

Draw = Callable[[Axes, Row, str], None]
KINDS = {"attn": "attention", "cross": "cross-attention", "ffn": "feed-forward", "mix": "mixing"}
_MARKERS: dict[str, Look] = {  # beside the placement's colour and dash
    "attn": {"marker": "o", "markerfacecolor": "none", "linewidth": 1.0},
    "ffn": {"marker": "s"},
    "cross": {"marker": "^", "markerfacecolor": "none", "linewidth": 1.0},
    "mix": {"marker": "D", "markerfacecolor": "none", "linewidth": 1.0},
}
_MARKED = 32  # points of a line at most that are each marked
_DASHED: tuple[Look, ...] = tuple(
    {"color": INK, "linewidth": 0.9, "linestyle": dash, "zorder": 1} for dash in ((0, (2, 2)), (0, (6, 2)), (0, (1, 3)))
)


def _by_kind(axes: Axes, stack: Row, name: str) -> None:
    """A line per kind of sublayer over the layers."""
    for kind, rows in stack["kinds"].items():
        known(axes, rows, "layer", name, label=KINDS[kind], **stack["look"], **_marks(len(rows), kind))


def _by_depth(axes: Axes, stack: Row, name: str) -> None:
    """One line through all sublayers: each stands at its part of its layer."""
    rows = [row | {"at": stack["at"][row["index"]]} for row in stack["rows"]]
    marker = "o" if len(rows) <= _MARKED else ""
    known(axes, rows, "at", name, label="measured", **stack["look"], marker=marker, markersize=3)


def _entropy(axes: Axes, stack: Row, name: str) -> None:
    """The mean over heads, and thin below it the lowest head."""
    _by_kind(axes, stack, name)
    for kind, rows in stack["kinds"].items():
        thin = _marks(len(rows), kind) | {"linewidth": 0.6, "alpha": 0.7, "label": f"{KINDS[kind]}, lowest head"}
        known(axes, rows, "layer", "attention_entropy_min", **stack["look"], **thin)
    axes.set_ylim(bottom=0)


def _marks(points: int, kind: str) -> Look:
    """Each point where they are few, else twelve of them."""
    return _MARKERS[kind] | {"markersize": 3.5, "markevery": 1 if points <= _MARKED else points // 12}


@dataclass(frozen=True, kw_only=True)
class ProfileChart:
    """A figure over depth, a panel per quantity and stack.

    Attributes:
        panels: quantity -> what stands at its axis.
        draw: how; of several quantities a mapping.
        logarithmic: quantities on a logarithmic axis.
    """

    name: str
    title: str
    text: str
    panels: Mapping[str, str]
    draw: Draw | Mapping[str, Draw]
    logarithmic: Sequence[str] = ()


CHARTS = (
    ProfileChart(
        name="gradients",
        title="Gradients over depth",
        text="Left: mean |gradient| of each sublayer's last projection (W_2, W_O). Right: the Frobenius norm over all"
        " parameters of the sublayer. Flat curves are better: where gradients vanish or explode over depth, layers"
        " learn at different rates, which Adam evens out only in part.",
        panels={"gradient_mean_abs": "mean |gradient| of W₂, $W_O$", "gradient_norm": "|gradient|, all parameters"},
        draw=_by_kind,
        logarithmic=("gradient_mean_abs", "gradient_norm"),
    ),
    ProfileChart(
        name="stream",
        title="Residual stream",
        text="Root mean square after each sublayer. Without a norm on the sum the stream grows with depth and later"
        " branches count for less; where the input is small, the first branches already outweigh it.",
        panels={
            "residual_rms": "RMS of the stream",
            "sum_rms": "RMS of the sum, before its norm",
            "growth": "Var[stream] / Var[input]",
        },
        draw=_by_depth,
        logarithmic=("growth",),
    ),
    ProfileChart(
        name="dependency",
        title="Contribution of each sublayer",
        text="Variance of the branch over that of the skip. β² is the branch's share of the sum; its running sum is"
        " ADMIN's index of instability: it grows like ln i where deep layers contribute little, like i where each layer"
        " rewrites the stream, and then small weight changes add up.",
        panels={
            "branch_skip_ratio": "Var[branch] / Var[skip]",
            "dependency": "β², share of the branch",
            "dependency_sum": "running sum of β²",
        },
        draw={"branch_skip_ratio": _by_kind, "dependency": _by_kind, "dependency_sum": _by_depth},
        logarithmic=("branch_skip_ratio", "dependency"),
    ),
    ProfileChart(
        name="amplification",
        title="Sensitivity to weight perturbations",
        text="All matrices of the sublayers are perturbed by ±1e-5 at once, in float64: mean square change of the"
        " stream after each sublayer, over 1e-10. The steeper it rises with depth, the more an update disturbs the"
        " output.",
        panels={"amplification": "mean |change|² / e²"},
        draw=_by_depth,
        logarithmic=("amplification",),
    ),
    ProfileChart(
        name="attention",
        title="Attention",
        text="Mean entropy of the attention weights over heads and queries, and thin the head with the lowest; dashed"
        " the entropy of uniform weights. A head at 0 attends to one key. Logits that grow without bound precede a"
        " collapse of the entropy.",
        panels={"attention_entropy": "entropy of the attention (nats)", "largest_logit": "largest |logit|"},
        draw={"attention_entropy": _entropy, "largest_logit": _by_kind},
    ),
    ProfileChart(
        name="massive",
        title="Largest activations",
        text="The largest |x| in the stream, and how many times the median it is. Trained models often have a few"
        " channels that are hundreds of times larger at the first token: a risk for float16 and for quantization.",
        panels={"largest": "largest |x| in the stream", "largest_over_median": "largest |x| / median |x|"},
        draw=_by_depth,
        logarithmic=("largest", "largest_over_median"),
    ),
)
_ALONG = {"dependency_sum", *(name for chart in CHARTS if chart.draw is _by_depth for name in chart.panels)}
_SPAN = {"gradient_mean_abs": 5.0, "gradient_norm": 5.0, "largest": 10.0, "largest_over_median": 10.0}


def draw(profile: Row, name: str) -> Drawing | None:
    """The chart of this name; None where nothing is known of any of its quantities."""
    chart = next(one for one in CHARTS if one.name == name)
    stacks = [stack["name"] for stack in profile["stacks"]]
    hidden = _redundant(profile)
    measured = {name for name in chart.panels if any(row[name] is not None for row in profile["rows"])} - {hidden}
    shown = {name: said for name, said in chart.panels.items() if name in measured}
    if not shown:
        return None
    beside = min(len(stacks), 2) if len(shown) == 1 else len(shown) if len(shown) < 4 else 2
    drawn = drawing(len(shown) * len(stacks), height=3.1, beside=beside)
    places = [(stack, name) for stack in stacks for name in shown]
    for axes, (stack, name) in zip(drawn.panels, places, strict=True):
        own = _of(profile, stack)
        (chart.draw[name] if isinstance(chart.draw, Mapping) else chart.draw)(axes, own, name)
        if len(stacks) > 1:
            heading(axes, stack)
        _expected(axes, profile, own, stack, name)
        label(axes, "layer", shown[name])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        if name in chart.logarithmic:
            log(axes)
            _widen_log(axes, _SPAN.get(name, 1.0))
        elif name in ("residual_rms", "sum_rms", "attention_entropy"):
            widen(axes, 0.2)
    return drawn


def _redundant(profile: Row) -> str:
    """The sum is the stream where no norm stands between the two; where one does, the growth says nothing."""
    normed = any(not _same(row["sum_rms"], row["residual_rms"]) for row in profile["rows"])
    return "growth" if normed else "sum_rms"


def _same(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and abs(a - b) <= 1e-3 * abs(b))


def _widen_log(axes: Axes, least: float) -> None:
    """Show at least this ratio, so that noise does not look like a finding."""
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log" and high / low < least:
        more = (least * low / high) ** 0.5
        axes.set_ylim(low / more, high * more)


def _expected(axes: Axes, profile: Row, own: Row, stack: str, name: str) -> None:
    """The theory's lines beside what was measured."""
    expected = [line for line in profile["expected"] if (line["stack"], line["quantity"]) == (stack, name)]
    at = own["at" if name in _ALONG else "layers"]
    for look, line in zip(_DASHED, expected, strict=False):
        axes.plot([at[i] for i in line["index"]], line["value"], label=line["label"], **look)


def _of(profile: Row, stack: str) -> dict[str, Any]:
    """The rows of a stack, by kind too, the look of its placement, and where each stands: layer 1 lies from 0 to 1."""
    rows = [row for row in profile["rows"] if row["stack"] == stack]
    kinds: dict[str, list[Row]] = {}
    counts: dict[int, int] = {}
    for row in rows:
        kinds.setdefault(row["kind"], []).append(row)
        counts[row["layer"]] = counts.get(row["layer"], 0) + 1
    at, seen = {}, dict.fromkeys(counts, 0)
    for row in rows:
        seen[row["layer"]] += 1
        at[row["index"]] = row["layer"] - 1 + seen[row["layer"]] / counts[row["layer"]]
    return {
        "rows": rows,
        "kinds": {kind: kinds[kind] for kind in _MARKERS if kind in kinds},
        "look": look_of(statistics.mode(row["placement"] for row in rows)),
        "at": at,
        "layers": {row["index"]: row["layer"] for row in rows},
    }


_OVERVIEW = (
    "First/last layer: the mean |gradient| of W_2 in the first layer over that in the last; 1 where gradients of both"
    " are of one size."
)
_EXPECTED = (
    "What theory says of a stack at initialization, drawn where its placement is the one it speaks of; of trained"
    " weights it says where training began."
)
