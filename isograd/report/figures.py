"""The figures: each a drawing from the files of arms. Towers of an encoder-decoder have panels of their own."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from isograd.report import kept
from isograd.report.runs import ArmFiles, Curve, at_end, at_start, towers
from isograd.report.style import INK, Drawing, drawing, heading, label, log, shade, widen
from isograd.report.style import look as style

LEVEL: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (2, 2))}  # of a line across a panel


def loss_curves(arms: Sequence[ArmFiles], unigram_entropy: float | None) -> Drawing:
    """Training loss over steps, a running mean of ten; with several seeds the mean and the band of all."""
    drawn = drawing(1, height=3.9)
    (axes,) = drawn.panels
    for i, arm in enumerate(arms):
        over_seeds(axes, i, arm, arm.curve(), arm.label)
    if unigram_entropy is not None:
        axes.axhline(unigram_entropy, **LEVEL, label=f"unigram entropy {unigram_entropy:.3f}")
        _near(axes, [y for arm in arms for y in arm.curve()[1][5:]], unigram_entropy)
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
        for i, arm in enumerate(arms):
            named = arm.label if set(arm.outcomes) == {"finished"} else f"{arm.label}: {arm.outcome}"
            over_seeds(axes, i, arm, arm.validation(name), named, marker="o", markersize=3.4)
        _mark_kept(axes, arms, name)
        label(axes, "epoch" if all(arm.in_epochs for arm in arms) else "step", title)
        axes.set_xlim(left=0)
    if "loss" in shown and unigram_entropy is not None:
        _low_part(drawn.panels[0], arms, unigram_entropy)
    if "bleu" in shown:
        drawn.panels[-1].set_ylim(bottom=0)
    return drawn


def gradient_profiles(arms: Sequence[ArmFiles]) -> Drawing:
    """mean |gradient| of W_2 by layer, at the first step and over the last fifty."""
    return _profiles(arms, "gradient_mean_abs", "mean |gradient| of W₂")


def residual_profiles(arms: Sequence[ArmFiles]) -> Drawing:
    """Root mean square of the stream after each layer."""
    return _profiles(arms, "residual_rms", "residual RMS after the layer")


def dependency_profiles(arms: Sequence[ArmFiles]) -> Drawing:
    """Var[branch] / Var[skip] of the feed-forward sublayer by layer."""
    return _profiles(arms, "branch_skip_ratio", "Var[branch] / Var[skip], ffn")


def ratio_curves(arms: Sequence[ArmFiles]) -> Drawing:
    """First over last layer's mean |gradient| of W_2, through training."""
    both = towers(arms)
    drawn = drawing(len(both), height=3.4, sharey=True)
    for axes, tower in zip(drawn.panels, both, strict=True):
        for i, arm in enumerate(arms):
            axes.plot(*arm.ratio("gradient_mean_abs", "ffn", tower), label=arm.label, **style(i))
        axes.axhline(1.0, **LEVEL)
        if len(both) > 1:
            heading(axes, tower)
        label(axes, "step", "first / last layer" if tower == both[0] else "")
    for axes in drawn.panels:
        log(axes)
    return drawn


def gradient_histories(arms: Sequence[ArmFiles]) -> Drawing | None:
    """mean |gradient| of W_2 in each layer through training, a panel per arm on one scale; None where there is none.

    In the manner of Shleifer et al. 2021, figure 3.
    """
    both = towers(arms)
    found = [(arm, tower, arm.histories("gradient_mean_abs", "ffn", tower)) for arm in arms for tower in both]
    shown = [(arm, tower, layers) for arm, tower, layers in found if layers]
    if not shown:
        return None
    beside = 2 if len(both) > 1 or len(shown) == 4 else 3
    drawn = drawing(len(shown), height=3.2, sharey=True, beside=beside)
    for axes, (arm, tower, layers) in zip(drawn.panels, shown, strict=True):
        last, place = max(layers), axes.get_subplotspec()
        for layer, line in layers.items():
            part = (layer - 1) / max(1, last - 1)
            axes.plot(*line, label=_ENDS.get(part, ""), **_of_depth(part))
        heading(axes, arm.label if len(both) == 1 else f"{arm.label}, {tower}")
        label(axes, "step", "mean |gradient| of W₂" if place and place.is_first_col() else "")
    for axes in drawn.panels:
        log(axes)
    return drawn


_ENDS = {0.0: "first layer", 1.0: "last layer"}


def _of_depth(part: float) -> dict[str, Any]:
    """The look of a layer at this part of the depth, 0 the first and 1 the last, which stand out."""
    end = part in _ENDS
    look: dict[str, Any] = {"color": shade(part), "linewidth": 2.0 if end else 0.9, "zorder": 3 if end else 2}
    return look | {"linestyle": (0, (4, 1.5)) if part == 1 else "-"}


COEFFICIENTS = {  # those that only a decoder has behind the others, so that towers stand side by side
    ("skip", "attn"): "skip, attention",
    ("skip", "ffn"): "skip, feed-forward",
    ("heads", "attn"): "head scale",
    ("out", "attn"): "gain of the norm after attention",
    ("mid", "ffn"): "gain of the norm inside the ffn",
    ("skip", "cross"): "skip, cross-attention",
    ("heads", "cross"): "head scale, cross-attention",
    ("out", "cross"): "gain of the norm after cross-attention",
}


def coefficients(arms: Sequence[ArmFiles]) -> Drawing | None:
    """Learned coefficients by layer, thin at the start and bold at the end; None when no arm has any.

    A coefficient of many values (a norm's gains, the heads of a layer) is drawn as their mean, with a band from the
    lowest to the highest at the end.
    """
    both = towers(arms)
    places = [(name, kind, tower) for name, kind in COEFFICIENTS for tower in both]
    shown = [place for place in places if _learned(arms, *place)]
    if not shown:
        return None
    drawn = drawing(len(shown), height=3.3 if len(shown) <= 4 else 2.7)
    for axes, (name, kind, tower) in zip(drawn.panels, shown, strict=True):
        for i, arm in enumerate(arms):
            end = arm.profile(name, kind, at_end, tower)
            if not end[0]:
                continue
            (layers, low), (_, high) = (arm.profile(f"{name}_{of}", kind, at_end, tower) for of in ("min", "max"))
            axes.fill_between(layers, low, high, color=style(i)["color"], alpha=0.16, linewidth=0)
            axes.plot(*arm.profile(name, kind, at_start, tower), **(style(i) | {"linewidth": 0.9, "alpha": 0.6}))
            axes.plot(*end, label=arm.label, marker="o", markersize=2.6, **style(i))
        widen(axes, 0.05)
        label(axes, "layer" if len(both) == 1 else f"{tower} layer", COEFFICIENTS[name, kind])
        axes.ticklabel_format(axis="y", useOffset=False)  # 0.9999, not 9e-5 beside a +9.999e-1 in the corner
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawn


def _learned(arms: Sequence[ArmFiles], name: str, kind: str, tower: str) -> bool:
    return any(arm.profile(name, kind, at_start, tower)[0] for arm in arms)


def over_seeds(axes: Axes, index: int, arm: ArmFiles, curve: Curve, named: str, **markers: Any) -> None:
    """The mean over seeds, with a band from the lowest to the highest."""
    x, mean, low, high = curve
    axes.plot(x, mean, label=named, **style(index), **markers)
    if len(arm.runs) > 1:
        axes.fill_between(x, low, high, color=style(index)["color"], alpha=0.18, linewidth=0)


def _profiles(arms: Sequence[ArmFiles], name: str, title: str) -> Drawing:
    """A row of panels per tower: at the start, and at the end."""
    both = towers(arms)
    drawn = drawing(2 * len(both), height=3.6 if len(both) == 1 else 3.0, sharey=True)
    moments = [(at_start, "at the first step"), (at_end, "mean of the last 50 steps")]
    places = [(tower, when, moment) for tower in both for when, moment in moments]
    for axes, (tower, when, moment) in zip(drawn.panels, places, strict=True):
        for i, arm in enumerate(arms):
            line = arm.profile(name, "ffn", when, tower)
            axes.plot(*line, label=arm.label, marker="o", markersize=2.6, **style(i))
        heading(axes, moment if len(both) == 1 else f"{tower}, {moment}")
        label(axes, "layer" if tower == both[-1] else "", title if when is at_start else "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in drawn.panels:
        log(axes)
    return drawn


def _near(axes: Axes, ends: Sequence[float], entropy: float) -> None:
    """Cut the first steps' peak off, so that the part where arms differ fills the figure."""
    if ends:
        low, high = min([*ends, entropy]), max([entropy, sorted(ends)[int(0.97 * (len(ends) - 1))]])
        if high > low:
            axes.set_ylim(low - 0.06 * (high - low), high + 0.12 * (high - low))


def _mark_kept(axes: Axes, arms: Sequence[ArmFiles], name: str) -> None:
    """A star where the weights stand that were kept, whose numbers are in the table."""
    for i, arm in enumerate(arms):
        if (at := kept.point(arm, name)) is not None:
            look = {"color": style(i)["color"], "markeredgecolor": INK, "markeredgewidth": 0.6}
            axes.plot(*([value] for value in at), marker="*", markersize=11, linestyle="", zorder=5, **look)


def _low_part(axes: Axes, arms: Sequence[ArmFiles], entropy: float) -> None:
    """Cut the first validations' peak off; the unigram entropy where a line comes to rest at it."""
    means = [arm.validation("loss")[1] for arm in arms]
    stars = [[at[1]] for arm in arms if (at := kept.point(arm, "loss"))]
    if any(mean and abs(mean[-1] - entropy) < 0.3 for mean in means):
        axes.axhline(entropy, **LEVEL, label=f"unigram entropy {entropy:.3f}")
    without_peak(axes, [*means, *stars])


def without_peak(axes: Axes, means: Sequence[Sequence[float]]) -> None:
    """From the lowest to the highest of these lines, but for the first point of each that has more than three."""
    later = [y for mean in means for y in (mean[1:] if len(mean) > 3 else mean)]
    low, high = min(later), max(later)
    if high > low:
        axes.set_ylim(low - 0.06 * (high - low), high + 0.12 * (high - low))
