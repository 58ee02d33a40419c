"""What a study's page says in words: the headline, and what to be warned of."""

from collections import Counter
from collections.abc import Iterator, Sequence

from isograd.lab.report.study import order as study_order
from isograd.lab.report.study.arms import StudyArm, is_number, overall
from isograd.lab.report.study.files import COUNTED, CellFiles, StudyFiles
from isograd.lab.report.study.findings import LAYERS, LOSSES, STEPS, StudyFindings
from isograd.lab.report.study.tables import loss_said
from isograd.lab.study.labels import flat

MANY = 12  # arms or errors at most that a sentence lists


def headline(study: StudyFiles, found: StudyFindings) -> str:
    """How far the study came, and who is lowest."""
    best = min((arm for arm in overall(found.arms, found.design) if arm.trains), key=_median, default=None)
    if best is None or len(found.design.who) < 2:
        return f"{progress(study)}."
    loss = LOSSES[found.measure].partition(" (")[0]
    if study_order.is_order(found.design):
        return f"{progress(study)}; {study_order.headline(found.chosen, found.design, best, size(study), loss)}."
    return f"{progress(study)}; lowest median {loss}: {best.label}, {loss_said(best.median)} nats (n = {best.n})."


def _median(arm: StudyArm) -> float:
    return arm.median


def progress(study: StudyFiles) -> str:
    ended, planned = study.ended, len(study.cells)
    counts = Counter(cell.how for cell in ended)
    ends = ", ".join(f"{counts[how]} {how}" for how in (*COUNTED, "failed") if counts[how])
    seeds = f"{len(study.seeds)} seeds" if len(study.seeds) > 1 else "one seed"
    how_many = f"All {planned} cells" if len(ended) == planned > 1 else f"{len(ended)} of {planned} cells"
    return f"{how_many} {'has' if planned == 1 else 'have'} ended ({seeds}){f': {ends}' if ends else ''}"


def size(study: StudyFiles) -> str:
    """ "12 layers, width 64, 300 updates"; without what an axis sweeps."""
    words = {LAYERS: "{:,} layers", "model.width": "width {:,}", STEPS: "{:,} updates"}
    known = {**dict(flat(study.base)), **({STEPS: steps} if (steps := (study.budget or {}).get("steps")) else {})}
    known |= {key: values[0] for key, values in study.axes.items() if len(values) == 1}
    fixed = {key: value for key, value in known.items() if len(study.axes.get(key, [0])) == 1 and is_number(value)}
    return ", ".join(form.format(fixed[key]) for key, form in words.items() if key in fixed) or "this size"


def failures(study: StudyFiles) -> Iterator[str]:
    """Why cells failed, which are counted in nothing else."""
    errors = Counter(str(cell.outcome.get("error", "unknown error")) for cell in study.cells if cell.how == "failed")
    said = [f"{error}{f' ({many} cells)' if many > 1 else ''}" for error, many in errors.most_common()]
    if said:
        yield f"Failed, and counted in nothing else: {_some(said, 'errors')}."


def undecided(arms: Sequence[StudyArm]) -> Iterator[str]:
    """How many cells were too short to tell, and how many more steps they need at most."""
    cells = [cell for arm in arms for cell in arm.cells if cell.how == "undecided"]
    if cells:
        needed = [(cell.outcome.get("judged") or {}).get("needed") for cell in cells]
        known = [steps for steps in needed if steps is not None]
        more = f"; up to {max(known):,} more steps would tell" if known else ""
        yield f"Undecided, too short to tell: {len(cells)} of {sum(arm.n for arm in arms)} cells{more}."


def unlearnt(found: StudyFindings) -> Iterator[str]:
    """Which finished, and are no better on validation text than token frequencies."""
    known = [(arm, [*filter(_is_unlearnt, arm.cells)]) for arm in found.arms]
    known = [(arm, cells) for arm, cells in known if cells]
    said = [f"{arm.label} ({len(cells)} of {arm.n} seed{'s' * (arm.n > 1)})" for arm, cells in known]
    if said:
        rough = any(_judged_excess(cell) is None for _, cells in known for cell in cells)
        of = ", by those of the training text where a run does not record others" if rough else ""
        yield (f"Finished, with a validation loss not below the unigram entropy{of}: {_some(said, 'arms')}.")


def _is_unlearnt(cell: CellFiles) -> bool:
    """By the unigram loss of the validation text; where the run does not record it, by that of the training text."""
    loss, entropy, excess = cell.number("validation_loss"), cell.number("unigram_entropy"), _judged_excess(cell)
    if cell.how != "finished" or loss is None:
        return False
    return excess >= 0 if excess is not None else entropy is not None and loss >= entropy


def _judged_excess(cell: CellFiles) -> float | None:
    """Nats of the validation loss above the unigram loss of the same text."""
    excess: float | None = (cell.outcome.get("judged") or {}).get("held_out_excess")
    return excess


def edges(found: StudyFindings) -> Iterator[str]:
    """Whose best rate stands at an end of the sweep."""
    at_end = [one for one in found.chosen if one.edge is not None]
    if at_end:
        who = dict.fromkeys(one.who for one in at_end)
        yield f"Best learning rate at an end of the sweep, beyond which a rate may be better: {_some([*who], 'arms')}."


def _some(said: Sequence[str], what: str) -> str:
    """The first of them, and how many more; a sentence is no table."""
    left = len(said) - MANY
    return "; ".join([*said[:MANY], f"and {left} other {what}"] if left > 1 else said)
