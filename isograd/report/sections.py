"""The parts of a page in their order: figures, each with what it shows in words, and what follows from it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from isograd.report import figures, finding_figures, pace, ramps, score_figures, tuned
from isograd.report.runs import ArmFiles, losses_of, measure_of, reference_of
from isograd.report.style import Drawing
from isograd.report.tables import kind_of
from isograd.statistics import caution, compare, side_by_side


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page; `name` is that of its figure's files.

    `findings` are sentences; `table` is a header and its lines.
    """

    name: str
    title: str
    text: str
    drawn: Drawing
    findings: Sequence[str] = ()
    table: Sequence[tuple[str, ...]] = ()


def sections(arms: Sequence[ArmFiles], entropy: float | None, reference: str | None = None) -> list[Section]:
    """What these runs have to show, the main figure first.

    Args:
        entropy: of the data's unigrams, where it is known.
        reference: label or placement of the arm that others are measured against; see `runs.reference_of`.
    """
    said = findings(arms, reference)
    found = [
        Section(name=name, title=title, text=text, drawn=drawn, findings=said.get(name, ()))
        for name, title, text, drawn in _drawings(arms, entropy, reference)
        if drawn is not None
    ]
    return [replace(one, table=ramps.table(arms)) if one.name == "ramp" else one for one in found]


def findings(arms: Sequence[ArmFiles], reference: str | None = None) -> dict[str, list[str]]:
    """Sentences by the section that they belong to."""
    if kind_of(arms) == "ramp":
        found = ramps.ratios(arms, reference)
        return {"ramp": [*map(ramps.said, found), *_caution(found)]}
    if kind_of(arms) == "classification":
        return {"scores": list(tuned.findings(arms))}
    known = pace.paces(arms, reference) if kind_of(arms) in _PACED else []
    said = {"loss": losses(arms, reference), "pace": [*map(pace.said, known), *_caution(known)]}
    return {name: lines for name, lines in said.items() if lines}


def losses(arms: Sequence[ArmFiles], reference: str | None = None) -> list[str]:
    """Every arm against the reference arm, seed by seed; nothing of a single seed."""
    theirs = reference_of(arms, reference)
    mine = [arm for arm in arms if theirs is not None and arm is not theirs and len(arm.runs) > 1]
    if theirs is None or not mine:
        return []
    measure = measure_of(arms)
    found = side_by_side([compare(losses_of(arm, measure), losses_of(theirs, measure)) for arm in mine])
    what = measure.replace("_", " ").replace("final", "training")
    said = [one.said(arm.label, theirs.label, what) for arm, one in zip(mine, found, strict=True)]
    return [*said, *filter(None, [caution(found)])]


def _caution(found: Sequence[pace.Pace] | Sequence[ramps.Ratio]) -> list[str]:
    """Of several seeds what is corrected for, and what so few cannot show."""
    said = caution([one.found for one in found if one.found.n > 1])
    return [said] if said else []


_PACED = ("language", "masked")


def _drawings(
    arms: Sequence[ArmFiles], entropy: float | None, reference: str | None
) -> Iterator[tuple[str, str, str, Drawing | None]]:
    kind = kind_of(arms)
    smoothed = any(arm.first.run["training"].get("label_smoothing") for arm in arms)
    if kind == "ramp":
        yield "ramp", "Up to which learning rate the loss holds", _RAMP, finding_figures.ramp_curves(arms, entropy)
    if kind == "classification":
        yield "scores", "Scores", _SCORES, score_figures.score_strips(arms)
    if kind == "translation":
        yield "validation", "Validation", _VALIDATION, figures.validation_curves(arms, entropy)
    if kind != "ramp":
        text = _TUNED if kind == "classification" else _SMOOTHED if smoothed else _LOSS
        yield "loss", "Training loss", text, figures.loss_curves(arms, entropy)
    if kind in _PACED:
        yield "pace", "Validation loss by steps and by time", _PACE, finding_figures.pace_curves(arms, reference)
    if any(run.quantities for arm in arms for run in arm.runs):
        yield from _of_depth(arms)


def _of_depth(arms: Sequence[ArmFiles]) -> Iterator[tuple[str, str, str, Drawing | None]]:
    yield "gradients", "Gradients over depth", _GRADIENTS, figures.gradient_profiles(arms)
    yield "histories", "Gradients of each layer, through training", _HISTORIES, figures.gradient_histories(arms)
    yield "ratio", "First over last layer, through training", _RATIO, figures.ratio_curves(arms)
    yield "residual", "The residual stream over depth", _RESIDUAL, figures.residual_profiles(arms)
    yield "dependency", "How much each layer adds", _DEPENDENCY, figures.dependency_profiles(arms)
    yield "coefficients", "Learned coefficients over depth", _COEFFICIENTS, figures.coefficients(arms)


_RAMP = (
    "The rate rises from step to step; a line per run. A run ends for this figure where its loss breaks: a mean of ten"
    " steps 0.5 nat above the lowest such mean before it, or a loss that is not finite; or where it returns to the"
    " unigram entropy after it had been 0.10 nat below, whichever is first."
)
_SCORES = (
    "A dot per seed, the bar is the median; a run that diverged has no dot and counts below all others. What answers"
    " the commonest class, or the mean score, whatever it reads, lies on the majority line."
)
_PACE = (
    "Held-out loss, the mean over seeds and a band from the lowest to the highest. Diamonds: where a line first comes"
    " down to the loss at which the reference ends. The times are those of the trainings, validations left out, and"
    " compare where each had the machine to itself. The ratios are taken seed by seed, on straight lines between"
    " validations, the reference timed by the same rule."
)
_VALIDATION = (
    "Held-out loss without label smoothing, and BLEU of held-out pairs, as training went; the mean over the seeds that"
    " got so far, and a band from the lowest to the highest. Stars: the weights that were kept, whose numbers stand in"
    " the table; off the line where they are an average of several."
)
_LOSS = "A running mean of ten steps. A collapsed run comes down to the unigram entropy and stays there."
_TUNED = "A running mean of ten steps."
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
