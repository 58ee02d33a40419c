"""Figures of arms, and the sections that they stand in. The stacks of an encoder-decoder have panels of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from isograd.lab.report.kept_weights import point as kept_point
from isograd.lab.report.page import Section
from isograd.lab.report.runs import ArmFiles, SeedsCurve, at_end, at_start, stacks
from isograd.lab.report.shape import note
from isograd.lab.report.style import (
    INK,
    LEVEL_LINE,
    UNLISTED,
    Drawing,
    drawing,
    entropy_line,
    heading,
    is_first,
    is_narrow,
    label,
    log,
    near,
    shade,
    widen,
)


def loss_curves(arms: Sequence[ArmFiles], unigram_entropy: float | None) -> Drawing:
    """Training loss over steps, a running mean of ten; with several seeds the mean and the band of all."""
    drawn = drawing(1, height=3.9)
    (axes,) = drawn.panels
    for arm in arms:
        over_seeds(axes, arm, arm.curve(), arm.label)
    if unigram_entropy is not None:
        entropy_line(axes, unigram_entropy)
        if later := [y for arm in arms for y in arm.curve()[1][5:]]:
            near(axes, [*later, unigram_entropy], peak=0.97)
    label(axes, "step", "training loss (nats)")
    return drawn


def validation_curves(arms: Sequence[ArmFiles], unigram_entropy: float | None) -> Drawing | None:
    """Validation loss, and BLEU, over epochs; the mean over seeds and the band of all. None where nothing is known.

    In the manner of Xiong et al. 2020, figures 2 and 4.
    """
    names = {"loss": "validation loss (nats per token)", "bleu": "validation BLEU"}
    shown = {name: title for name, title in names.items() if any(arm.validation(name)[0] for arm in arms)}
    if not shown:
        return None
    drawn = drawing(len(shown), height=3.7)
    for axes, (name, title) in zip(drawn.panels, shown.items(), strict=True):
        for arm in arms:
            named = arm.label if set(arm.outcomes) == {"finished"} else f"{arm.label}: {arm.outcome}"
            over_seeds(axes, arm, arm.validation(name), named, marker="o", markersize=3.4)
        _mark_kept(axes, arms, name)
        label(axes, "epoch" if all(arm.in_epochs for arm in arms) else "step", title)
        axes.set_xlim(left=0)
    if "loss" in shown and unigram_entropy is not None:
        _low_part(drawn.panels[0], arms, unigram_entropy)
    if "bleu" in shown:
        drawn.panels[-1].set_ylim(bottom=0)
    return drawn


def ratio_curves(arms: Sequence[ArmFiles]) -> Drawing:
    """First over last layer's mean |gradient| of W_2, through training."""
    both = stacks(arms)
    drawn = drawing(len(both), height=3.4, sharey=True)
    for axes, stack in zip(drawn.panels, both, strict=True):
        for arm in arms:
            axes.plot(*arm.ratio("gradient_mean_abs", "ffn", stack), label=arm.label, **arm.look)
        axes.axhline(1.0, **LEVEL_LINE)
        if len(both) > 1:
            heading(axes, stack)
        label(axes, "step", "first / last layer" if stack == both[0] else "")
    for axes in drawn.panels:
        log(axes)
    return drawn


def gradient_histories(arms: Sequence[ArmFiles]) -> Drawing | None:
    """mean |gradient| of W_2 in each layer through training, a panel per arm on one scale; None where there is none.

    In the manner of Shleifer et al. 2021, figure 3.
    """
    both = stacks(arms)
    found = [(arm, stack, arm.histories("gradient_mean_abs", "ffn", stack)) for arm in arms for stack in both]
    shown = [(arm, stack, layers) for arm, stack, layers in found if layers]
    if not shown:
        return None
    beside = 2 if len(both) > 1 or len(shown) == 4 else 3
    drawn = drawing(len(shown), height=3.2, sharey=True, sharex=True, beside=beside, least=_LEAST)
    for axes, (arm, stack, layers) in zip(drawn.panels, shown, strict=True):
        last, place = max(layers), axes.get_subplotspec()
        for layer, line in layers.items():
            part = (layer - 1) / max(1, last - 1)
            name = _ENDS.get(part, f"{UNLISTED}layer {layer}")
            (drawn_line,) = axes.plot(*line, label=name, **_of_depth(part))
            note(drawn_line, arm=arm.label, panel=stack if len(both) > 1 else "", layer=layer)
        heading(axes, arm.label if len(both) == 1 else f"{arm.label}, {stack}")
        below = place is None or place.is_last_row() or len(shown) - drawn.panels.index(axes) <= _columns(axes)
        label(axes, "step" if below else "", "mean |gradient| of W₂" if is_first(axes) else "")
        axes.tick_params(labelbottom=below)
    for axes in drawn.panels:
        log(axes)
    return drawn


_LEAST = 1.5  # inches of a panel in a column of a paper


def _columns(axes: Axes) -> int:
    place = axes.get_subplotspec()
    return place.get_gridspec().ncols if place else 1


_ENDS = {0.0: "first layer", 1.0: "last layer"}


def _of_depth(part: float) -> dict[str, Any]:
    """The look of a layer at this part of the depth, 0 the first and 1 the last, which stand out."""
    end = part in _ENDS
    look: dict[str, Any] = {"color": shade(part), "linewidth": 2.0 if end else 0.9, "zorder": 3 if end else 2}
    return look | {"linestyle": (0, (4, 1.5)) if part == 1 else "-"}


COEFFICIENTS = {  # those that only a decoder has come last, so that stacks stand side by side
    ("skip", "attn"): "skip, attention",
    ("skip", "ffn"): "skip, feed-forward",
    ("heads", "attn"): "head scale",
    ("out", "attn"): "weight of the norm after attention",
    ("mid", "ffn"): "weight of the norm inside the ffn",
    ("skip", "cross"): "skip, cross-attention",
    ("heads", "cross"): "head scale, cross-attention",
    ("out", "cross"): "weight of the norm after cross-attention",
}


def coefficients(arms: Sequence[ArmFiles]) -> Drawing | None:
    """Learned coefficients by layer, thin at the start and bold at the end; None when no arm has any.

    A coefficient of many values (a norm's weights, the head scales of a layer) is drawn as their mean, with a band
    from the lowest to the highest at the end.
    """
    both = stacks(arms)
    places = [(name, kind, stack) for name, kind in [*COEFFICIENTS, *_others(arms)] for stack in both]
    shown = [place for place in places if _learned(arms, *place)]
    if not shown:
        return None
    drawn = drawing(len(shown), height=3.3 if len(shown) <= 4 else 2.7)
    for axes, (name, kind, stack) in zip(drawn.panels, shown, strict=True):
        for arm in arms:
            end = arm.profile(name, kind, at_end, stack)
            if not end[0]:
                continue
            (layers, low), (_, high) = (arm.profile(f"{name}_{of}", kind, at_end, stack) for of in ("min", "max"))
            axes.fill_between(layers, low, high, color=arm.look["color"], alpha=0.16, linewidth=0)
            start = arm.profile(name, kind, at_start, stack)
            (first,) = axes.plot(*start, **(arm.look | {"linewidth": 0.9, "alpha": 0.6}))
            note(first, arm=arm.label, when="at the first step")
            (line,) = axes.plot(*end, label=arm.label, marker="o", markersize=2.6, **arm.look)
            note(line, when=_END, low=low, high=high)
        widen(axes, 0.05)
        label(axes, "layer" if len(both) == 1 else f"{stack} layer", _named(name, kind))
        axes.ticklabel_format(axis="y", useOffset=False)  # 0.9999, not 9e-5 beside a +9.999e-1 in the corner
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawn


def _others(arms: Sequence[ArmFiles]) -> list[tuple[str, str]]:
    """Coefficients of any other placement, and of streams, in the order in which they were written."""
    rows = [row for arm in arms for run in arm.runs for row in run.quantities[:ROWS]]
    named = [(name, str(row.get("kind"))) for row in rows for name in row if f"{name}_min" in row]
    return [place for place in dict.fromkeys(named) if place not in COEFFICIENTS and place[0] not in _NORMS]


ROWS = 500  # of a run's quantities that are read for their names: those of the first steps
_NORMS = ("pre", "post", "out", "mid", "query", "key", "value")  # weights of norms, which most placements have
_KINDS = {"attn": "attention", "ffn": "feed-forward", "cross": "cross-attention"}


def _named(name: str, kind: str) -> str:
    return COEFFICIENTS.get((name, kind), f"{name.removeprefix('stream.')}, {_KINDS.get(kind, kind)}")


def _learned(arms: Sequence[ArmFiles], name: str, kind: str, stack: str) -> bool:
    return any(arm.profile(name, kind, at_start, stack)[0] for arm in arms)


def over_seeds(axes: Axes, arm: ArmFiles, curve: SeedsCurve, named: str, **markers: Any) -> None:
    """The mean over seeds, with a band from the lowest to the highest."""
    x, mean, low, high = curve
    (line,) = axes.plot(x, mean, label=named, **arm.look, **markers)
    note(line, low=low, high=high)
    if len(arm.runs) > 1:
        axes.fill_between(x, low, high, color=arm.look["color"], alpha=0.18, linewidth=0)


def profiles(arms: Sequence[ArmFiles], name: str, title: str) -> Drawing:
    """A quantity of the feed-forward sublayers by layer.

    A row of panels per stack: at the start, and at the end; in a narrow figure each with a scale of its own.
    """
    both = stacks(arms)
    height = 3.6 if len(both) == 1 else 3.0
    drawn = drawing(2 * len(both), height=height, sharey=not is_narrow(), least=_LEAST)
    moments = [(at_start, "at the first step"), (at_end, _END)]
    places = [(stack, when, moment) for stack in both for when, moment in moments]
    for axes, (stack, when, moment) in zip(drawn.panels, places, strict=True):
        for arm in arms:
            over_seeds(axes, arm, arm.profile_of_seeds(name, "ffn", when, stack), arm.label, marker="o", markersize=2.6)
        heading(axes, moment if len(both) == 1 else f"{stack}, {moment}")
        label(axes, "layer" if stack == both[-1] else "", title if when is at_start else "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in drawn.panels:
        log(axes)
    return drawn


_END = "mean of the last 50 steps"


def _mark_kept(axes: Axes, arms: Sequence[ArmFiles], name: str) -> None:
    """A star where the weights stand that were kept, whose numbers are in the table."""
    for arm in arms:
        if (at := kept_point(arm, name)) is not None:
            look = {"color": arm.look["color"], "markeredgecolor": INK, "markeredgewidth": 0.6}
            axes.plot(*([value] for value in at), marker="*", markersize=11, linestyle="", zorder=5, **look)


def _low_part(axes: Axes, arms: Sequence[ArmFiles], entropy: float) -> None:
    """Cut the first validations' peak off; the unigram entropy where a line comes to rest at it."""
    means = [arm.validation("loss")[1] for arm in arms]
    stars = [[at[1]] for arm in arms if (at := kept_point(arm, "loss"))]
    if any(mean and abs(mean[-1] - entropy) < 0.3 for mean in means):
        entropy_line(axes, entropy)
    without_peak(axes, [*means, *stars])


def without_peak(axes: Axes, means: Sequence[Sequence[float]]) -> None:
    """Without the first point of each line that has more than three."""
    near(axes, [y for mean in means for y in (mean[1:] if len(mean) > 3 else mean)])


# ------------------------------------------------------------------------------------------------------------- sections


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a section of a page of runs is made of.

    Attributes:
        entropy: of the data's unigrams, where it is known.
        reference: label or placement of the arm that others are measured against; None: see `runs.reference_of`.
    """

    arms: Sequence[ArmFiles]
    entropy: float | None = None
    reference: str | None = None

    @property
    def observed(self) -> bool:
        """Whether any run has rows of sublayers."""
        return any(run.quantities for arm in self.arms for run in arm.runs)


Maker = Callable[[Subject], Section | None]


def loss(about: Subject) -> Section:
    smoothed = any(arm.first.run["training"].get("label_smoothing") for arm in about.arms)
    text = f"A running mean of ten steps{', label smoothing included: it lies above the validation loss' * smoothed}."
    if about.entropy is not None:
        text += " A collapsed run falls to the unigram entropy and stays there."
    draw = partial(loss_curves, about.arms, about.entropy)
    return Section(name="loss", title="Training loss", sentence=text, figure=draw)


def validation(about: Subject) -> Section:
    draw = partial(validation_curves, about.arms, about.entropy)
    return Section(name="validation", title="Validation", sentence=_VALIDATION, figure=draw)


_VALIDATION = (
    "Held-out loss without label smoothing, and BLEU of held-out pairs; the mean over the seeds that got so far, and a"
    " band from the lowest to the highest. Stars: the weights that were kept, whose numbers are in the table."
)
_DEPTH: tuple[tuple[str, str, str, Callable[[Sequence[ArmFiles]], Drawing | None]], ...] = (
    (
        "gradients",
        "Gradients over depth",
        "Flat curves are better. In a collapsed stack gradients vanish towards the input by orders of magnitude.",
        partial(profiles, name="gradient_mean_abs", title="mean |gradient| of W₂"),
    ),
    (
        "histories",
        "Gradients of each layer during training",
        "A line per layer, from the first (violet) through grey to the last (olive, dashed), the mean over seeds; all"
        " panels have one scale.",
        gradient_histories,
    ),
    (
        "ratio",
        "First/last gradient ratio during training",
        "Mean |gradient| of W_2 in the first layer over that in the last: 1 where both get gradients of one size.",
        ratio_curves,
    ),
    (
        "residual",
        "Residual stream over depth",
        "Without a norm on the sum the stream grows with depth; with one its RMS stays 1.",
        partial(profiles, name="residual_rms", title="residual RMS after the layer"),
    ),
    (
        "dependency",
        "Contribution of each layer",
        "Variance of the branch over variance of the skip: where it is small, a layer contributes little.",
        partial(profiles, name="branch_skip_ratio", title="Var[branch] / Var[skip], ffn"),
    ),
    (
        "coefficients",
        "Learned coefficients over depth",
        "Thin: at initialization. Bold: mean of the last 50 steps; where a layer has many values (norm weights, head"
        " scales) the band is from the lowest to the highest.",
        coefficients,
    ),
)


def _over_depth(
    name: str, title: str, text: str, draw: Callable[[Sequence[ArmFiles]], Drawing | None], about: Subject
) -> Section | None:
    if not about.observed:
        return None
    return Section(name=name, title=title, sentence=text, figure=partial(draw, about.arms))


DEPTH_CHARTS: dict[str, Maker] = {chart[0]: partial(_over_depth, *chart) for chart in _DEPTH}
