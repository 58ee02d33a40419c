"""The figures of a page in their order, each with what it shows in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from isograd.report import figures
from isograd.report.canvas import Drawing
from isograd.report.runs import ArmFiles


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page; `name` is that of its figure's files."""

    name: str
    title: str
    text: str
    drawn: Drawing


def sections(arms: Sequence[ArmFiles], entropy: float | None) -> list[Section]:
    """What these runs have to show, the main figure first."""
    found = (
        Section(name=name, title=title, text=text, drawn=drawn)
        for name, title, text, drawn in _drawings(arms, entropy)
        if drawn is not None
    )
    return list(found)


def _drawings(arms: Sequence[ArmFiles], entropy: float | None) -> Iterator[tuple[str, str, str, Drawing | None]]:
    smoothed = any(arm.first.run["training"].get("label_smoothing") for arm in arms)
    if arms[0].task == "translation":
        yield "validation", "Validation", _VALIDATION, figures.validation_curves(arms, entropy)
    yield "loss", "Training loss", _SMOOTHED if smoothed else _LOSS, figures.loss_curves(arms, entropy)
    if not any(run.quantities for arm in arms for run in arm.runs):
        return
    yield "gradients", "Gradients over depth", _GRADIENTS, figures.gradient_profiles(arms)
    yield "histories", "Gradients of each layer, through training", _HISTORIES, figures.gradient_histories(arms)
    yield "ratio", "First over last layer, through training", _RATIO, figures.ratio_curves(arms)
    yield "residual", "The residual stream over depth", _RESIDUAL, figures.residual_profiles(arms)
    yield "dependency", "How much each layer adds", _DEPENDENCY, figures.dependency_profiles(arms)
    yield "coefficients", "Learned coefficients over depth", _COEFFICIENTS, figures.coefficients(arms)


_VALIDATION = (
    "Held-out loss without label smoothing, and BLEU of held-out pairs, as training went; the mean over the seeds that"
    " got so far, and a band from the lowest to the highest."
)
_LOSS = "A running mean of ten steps. A collapsed run comes down to the unigram entropy and stays there."
_SMOOTHED = "A running mean of ten steps, label smoothing included: it lies above the loss of validation."
_GRADIENTS = "Level lines are the aim. In a collapsed stack they fall by orders of magnitude towards the input."
_HISTORIES = (
    "A line per layer, from the first (blue) through grey to the last (orange, dashed), the mean over seeds; all panels"
    " have one scale. Lines that lie on each other are layers that learn at one pace."
)
_RATIO = "1 means that the first and the last layer get gradients of the same size."
_RESIDUAL = "Without a norm on the sum the stream grows with depth; with one it is held at 1."
_DEPENDENCY = "Variance of the branch over variance of the skip: where it is small, a layer hardly counts."
_COEFFICIENTS = (
    "Thin without dots: at the start. Bold with dots: mean of the last 50 steps; of gains and heads, of which a layer"
    " has many, the band is from the lowest to the highest."
)
