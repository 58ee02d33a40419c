"""Scores of fine-tunings: a dot per seed, the median of each arm, the majority line."""

import math
import statistics
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isograd.report.figures import LEVEL
from isograd.report.runs import ArmFiles, RunFiles
from isograd.report.style import INK, Drawing, heading, label
from isograd.report.style import look as style

_APART = 0.17  # of a row between the dots of two seeds
_LEAST = 0.04  # of a score that a panel shows, so that a row or two of a dev set do not look like a finding


def score_strips(arms: Sequence[ArmFiles]) -> Drawing | None:
    """A panel per score, a row per arm: a dot per seed (a cross where it failed), a bar at the median.

    A dashed line is the majority line. None where no run has a score.
    """
    scored = [(i, arm) for i, arm in enumerate(arms) if arm.values("score")]
    titles = list(dict.fromkeys(_title(arm) for _, arm in scored))
    if not titles:
        return None
    groups = [[(i, arm) for i, arm in scored if _title(arm) == title] for title in titles]
    heights = [0.9 + 0.5 * len(group) for group in groups]
    figure = Figure(figsize=(8.4, 0.5 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights).flatten()
    for axes, title, group in zip(panels, titles, groups, strict=True):
        _strip(axes, title, group)
    for marker, meaning in (("o", "a seed"), ("X", "a failed run"), ("|", "median")):
        look = {"color": "none", "markeredgecolor": INK, "markersize": 14 if marker == "|" else 7}
        panels[0].plot([], [], marker, label=meaning, markeredgewidth=3 if marker == "|" else 1, **look)
    return Drawing(figure=figure, panels=list(panels))


def _strip(axes: Axes, title: str, group: Sequence[tuple[int, ArmFiles]]) -> None:
    for line in dict.fromkeys(line for _, arm in group for line in arm.values("majority")[:1]):
        axes.axvline(line, **LEVEL, label="majority line")
    for row, (index, arm) in enumerate(group):
        _dots(axes, row, index, arm)
    heading(axes, title)
    label(axes, "", "")
    names = ["\n".join(textwrap.wrap(_named(arm), 34)).replace("$", r"\$") for _, arm in group]
    axes.set_yticks(range(len(group)), names)
    axes.set_ylim(len(group) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.margins(x=0.06)
    low, high = axes.get_xlim()
    if high - low < _LEAST:
        axes.set_xlim((low + high - _LEAST) / 2, (low + high + _LEAST) / 2)


def _dots(axes: Axes, row: int, index: int, arm: ArmFiles) -> None:
    colour, scored = style(index)["color"], [run for run in arm.runs if run.outcome.get("score") is not None]
    for place, run in enumerate(scored):
        y = row + _APART * (place - (len(scored) - 1) / 2) * min(1.0, 5 / len(scored))
        marker, edge = ("X", colour) if _failed(run) else ("o", INK)
        axes.plot([run.outcome["score"]], [y], marker, color=colour, markeredgecolor=edge, markersize=6, zorder=3)
    middle = statistics.median(_ranked(arm))
    if math.isfinite(middle):
        axes.vlines(middle, row - 0.36, row + 0.36, color=colour, linewidth=3, alpha=0.55, zorder=2)


def _named(arm: ArmFiles) -> str:
    """The label; runs that have no score are told."""
    without = sum(run.outcome.get("score") is None for run in arm.runs)
    return f"{arm.label} ({without} of {len(arm.runs)} without a score)" if without else arm.label


def _title(arm: ArmFiles) -> str:
    """ "accuracy of mrpc"."""
    metric = next((run.outcome["metric"] for run in arm.runs if run.outcome.get("metric")), "score")
    task = arm.first.run.get("glue", {}).get("task")
    return f"{metric} of {task}" if task else metric


def _failed(run: RunFiles) -> bool:
    """As its outcome says, else by the majority line."""
    known, line = run.outcome.get("failed"), run.outcome.get("majority")
    return bool(known) if known is not None else line is not None and run.outcome["score"] <= line


def _ranked(arm: ArmFiles) -> list[float]:
    """Scores; what has ended without one, since it diverged, is below all others."""
    ended = [run.outcome.get("score") for run in arm.runs if run.outcome["outcome"] in ("finished", "diverged")]
    return [-math.inf if score is None else score for score in ended]
