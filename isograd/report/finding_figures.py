"""The figures that end in a finding: the speed-up to equal loss, the learning rate reached, scores of fine-tuning."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from isograd.report.figures import LEVEL, over_seeds, without_peak
from isograd.report.pace import paces, points, reached
from isograd.report.ramps import curve_of, end_of
from isograd.report.runs import ArmFiles
from isograd.report.style import INK, Drawing, drawing, label
from isograd.report.style import look as style


def pace_curves(arms: Sequence[ArmFiles], named: str | None = None) -> Drawing | None:
    """Validation loss over steps and over training time, and where each arm reaches the reference's final loss.

    None where no run was validated twice.

    Args:
        named: label or placement of the reference; None: see `runs.reference_of`.
    """
    shown = [x for x in ("step", "seconds") if any(len(points(run, x)) > 1 for arm in arms for run in arm.runs)]
    if not shown:
        return None
    unit, size = _unit(max(row.get("seconds") or 0 for arm in arms for run in arm.runs for row in run.validation))
    found = paces(arms, named)
    target = next((_last(arm) for arm in arms if found and arm.label == found[0].reference), None)
    drawn = drawing(len(shown), height=3.9, sharey=True)
    for axes, x in zip(drawn.panels, shown, strict=True):
        for i, arm in enumerate(arms):
            at, mean, low, high = arm.validation("loss", x)
            at = [value / size for value in at] if x == "seconds" else at
            over_seeds(axes, i, arm, (at, mean, low, high), arm.label)
            crossing = None if target is None else reached(list(zip(at, mean, strict=True)), target)
            if target is not None and crossing is not None:
                _mark(axes, i, crossing, target, "D")
        if target is not None:
            axes.axhline(target, **LEVEL, label=f"where {found[0].reference} ends: {target:.3f}")
        label(axes, x if x == "step" else f"training time ({unit})", "validation loss (nats)" if x == "step" else "")
        axes.set_xlim(left=0)
    without_peak(drawn.panels[0], [arm.validation("loss", "step")[1] for arm in arms])
    return drawn


def _last(arm: ArmFiles) -> float:
    return arm.validation("loss", "step")[1][-1]


def _unit(longest: float) -> tuple[str, float]:
    """What to tell times in of which this is the longest, and its length in seconds."""
    units = {"hours": 3600.0, "minutes": 60.0}
    return next(((name, size) for name, size in units.items() if longest >= 2 * size), ("seconds", 1.0))


def _mark(axes: Axes, index: int, x: float, y: float, marker: str, named: str = "") -> None:
    axes.plot([x], [y], marker, color=style(index)["color"], markeredgecolor=INK, markersize=7, zorder=4, label=named)


def ramp_curves(arms: Sequence[ArmFiles], entropy: float | None) -> Drawing:
    """Loss over the learning rate as it rises, a line per run, and where the rate stopped to be bearable."""
    drawn = drawing(1, height=4.2)
    (axes,) = drawn.panels
    for i, arm in enumerate(arms):
        for run in arm.runs:
            rates = [(rate, loss) for _, rate, loss in curve_of(run)]
            named = arm.label if run is arm.first else ""
            axes.plot(*zip(*rates, strict=True), label=named, **(style(i) | {"linewidth": 1.1}))
            end = end_of(run)
            if end and end.loss is not None:
                _mark(axes, i, end.rate, end.loss, "X")
    axes.plot([], [], "X", color="none", markeredgecolor=INK, markersize=7, label="the loss broke")
    if entropy is not None:
        axes.axhline(entropy, **LEVEL, label=f"unigram entropy {entropy:.3f}")
        _near(axes, entropy)
    label(axes, "learning rate", "training loss (nats), mean of ten steps")
    axes.set_xlim(left=0)
    return drawn


def _near(axes: Axes, entropy: float) -> None:
    """Cut the first steps' peak off, and whatever a break shot up to: as far above the entropy as twice below it."""
    low, high = axes.dataLim.intervaly
    if low < entropy:
        axes.set_ylim(low - 0.1 * (entropy - low), min(high, entropy + 2 * (entropy - low)))
