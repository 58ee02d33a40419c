"""Figures as SVG text that takes the page's colours: ink is `currentColor`, the ground is clear.

One colour and dash per arm throughout, safe for colour-blind readers (Okabe and Ito's set, yellow left out).
"""

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from isograd.report.runs import ArmFiles, at_end, at_start

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
_INK = "#0a0b0c"  # stands for currentColor in the SVG


def style(index: int) -> dict[str, Any]:
    """Colour and dash of the index-th arm; 28 differ, since 7 colours and 4 dashes have no divisor in common."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "linewidth": 1.8,
    }


def loss_curves(arms: Sequence[ArmFiles], unigram_entropy: float | None) -> str:
    """Training loss over steps, a running mean of ten; with several seeds the mean and the band of all."""
    figure, (axes,) = _figure(1, height=3.9)
    for i, arm in enumerate(arms):
        steps, mean, low, high = arm.curve()
        axes.plot(steps, mean, label=arm.label, **style(i))
        if len(arm.runs) > 1:
            axes.fill_between(steps, low, high, color=style(i)["color"], alpha=0.18, linewidth=0)
    if unigram_entropy is not None:
        named = f"unigram entropy {unigram_entropy:.3f}"
        axes.axhline(unigram_entropy, color=_INK, linewidth=0.8, linestyle=(0, (2, 2)), label=named)
        _near(axes, arms, unigram_entropy)
    _label(axes, "step", "training loss (nats)")
    return _svg(figure, "loss", axes)


def gradient_profiles(arms: Sequence[ArmFiles]) -> str:
    """mean |gradient| of W_2 by layer, at the first step and over the last fifty."""
    return _profiles(arms, "gradient_mean_abs", "mean |gradient| of W₂", "gradients", log=True)


def residual_profiles(arms: Sequence[ArmFiles]) -> str:
    """Root mean square of the stream after each layer."""
    return _profiles(arms, "residual_rms", "residual RMS after the layer", "residual", log=True)


def dependency_profiles(arms: Sequence[ArmFiles]) -> str:
    """Var[branch] / Var[skip] of the feed-forward sublayer by layer."""
    return _profiles(arms, "branch_skip_ratio", "Var[branch] / Var[skip], ffn", "dependency", log=True)


def ratio_curves(arms: Sequence[ArmFiles]) -> str:
    """First over last layer's mean |gradient| of W_2, through training."""
    figure, (axes,) = _figure(1, height=3.4)
    for i, arm in enumerate(arms):
        axes.plot(*arm.ratio("gradient_mean_abs", "ffn"), label=arm.label, **style(i))
    axes.axhline(1.0, color=_INK, linewidth=0.8, linestyle=(0, (2, 2)))
    _log(axes)
    _label(axes, "step", "first / last layer")
    return _svg(figure, "ratio", axes)


COEFFICIENTS = {
    ("skip", "attn"): "skip, attention",
    ("skip", "ffn"): "skip, feed-forward",
    ("heads", "attn"): "head scale",
    ("out", "attn"): "gain of the norm after attention",
    ("mid", "ffn"): "gain of the norm inside the feed-forward",
}


def coefficients(arms: Sequence[ArmFiles]) -> str | None:
    """Learned coefficients by layer, thin at the start and bold at the end; None when no arm has any."""
    shown = {key: title for key, title in COEFFICIENTS.items() if any(arm.profile(*key, at_start)[0] for arm in arms)}
    if not shown:
        return None
    figure, grid = _figure(len(shown), height=3.3)
    for axes, ((name, kind), title) in zip(grid, shown.items(), strict=True):
        for i, arm in enumerate(arms):
            end = arm.profile(name, kind, at_end)
            if not end[0]:
                continue
            axes.plot(*arm.profile(name, kind, at_start), **(style(i) | {"linewidth": 0.9, "alpha": 0.6}))
            axes.plot(*end, label=arm.label, marker="o", markersize=2.6, **style(i))
        _widen(axes, 0.05)
        _label(axes, "layer", title)
        axes.ticklabel_format(axis="y", useOffset=False)  # 0.9999, not 9e-5 beside a +9.999e-1 in the corner
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _svg(figure, "coefficients", *grid)


def _profiles(arms: Sequence[ArmFiles], name: str, title: str, salt: str, log: bool) -> str:
    figure, grid = _figure(2, height=3.6, sharey=True)
    for axes, when, moment in zip(
        grid, (at_start, at_end), ("at the first step", "mean of the last 50 steps"), strict=True
    ):
        for i, arm in enumerate(arms):
            axes.plot(*arm.profile(name, "ffn", when), label=arm.label, marker="o", markersize=2.6, **style(i))
        axes.set_title(moment, fontsize=9, color=_INK)
        _label(axes, "layer", title if when is at_start else "")
        if log:
            _log(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _svg(figure, salt, *grid)


def _log(axes: Axes) -> None:
    """A logarithmic axis where there is anything to show on it."""
    if any(y > 0 for line in axes.lines for y in np.asarray(line.get_ydata())):
        axes.set_yscale("log")


def _widen(axes: Axes, least: float) -> None:
    """Show at least this span, so that noise around 1 does not look like a finding."""
    low, high = axes.get_ylim()
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)


def _near(axes: Axes, arms: Sequence[ArmFiles], entropy: float) -> None:
    """Cut the first steps' peak off, so that the part where arms differ fills the figure."""
    ends = [y for arm in arms for y in arm.curve()[1][5:]]
    if ends:
        low, high = min([*ends, entropy]), max([entropy, sorted(ends)[int(0.97 * (len(ends) - 1))]])
        if high > low:
            axes.set_ylim(low - 0.06 * (high - low), high + 0.12 * (high - low))


def _figure(panels: int, height: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    columns = min(panels, 2)
    rows = -(-panels // columns)
    figure = Figure(figsize=(8.4, height * rows), layout="constrained")
    figure.patch.set_alpha(0)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey).flatten()
    for axes in grid[panels:]:
        axes.set_axis_off()
    return figure, list(grid[:panels])


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9, color=_INK)
    axes.set_ylabel(y, fontsize=9, color=_INK)
    axes.patch.set_alpha(0)
    axes.tick_params(labelsize=8, colors=_INK, which="both")
    axes.grid(True, color=_INK, alpha=0.12, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_INK)


def _svg(figure: Figure, salt: str, *legend_of: Axes) -> str:
    """The figure with one legend below it."""
    entries: dict[str, Any] = {}
    for axes in legend_of:
        entries |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if entries:
        figure.legend(
            entries.values(),
            [name.replace("$", r"\$") for name in entries],  # a name is no formula
            loc="outside lower center",
            ncols=min(3, len(entries)),
            fontsize=8.5,
            frameon=False,
            labelcolor=_INK,
            handlelength=3.2,
        )
    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{salt}-", svg)  # ids are one per page, not one per figure
    return svg.replace(_INK, "currentColor")
