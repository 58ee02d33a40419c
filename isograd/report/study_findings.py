"""What a study found, a sentence per question."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from isograd.report.pace import Pace, pace_verdict, spread
from isograd.report.runs import Row
from isograd.report.study_arms import RATE, Design, StudyArm, Tuned
from isograd.report.study_compared import tunable
from isograd.report.study_files import COUNTED, Cell, StudyFiles
from isograd.report.study_words import condition_said, counted, listed, loss_said, named, under

LOSSES = {"validation_loss": "validation loss", "final_loss": "training loss (mean of the last 20 steps)"}
MANY = 12  # arms or errors at most that a sentence lists
APART = 6  # conditions at most that have a sentence each; of more what trained is told over all of them


def progress(study: StudyFiles) -> str:
    """How far the study came."""
    ended, planned = study.ended, len(study.cells)
    counts = Counter(cell.how for cell in ended)
    ends = ", ".join(f"{counts[how]} {how}" for how in (*COUNTED, "failed") if counts[how])
    seeds = f"{len(study.seeds)} seeds" if len(study.seeds) > 1 else "one seed"
    how_many = f"All {planned} cells" if len(ended) == planned > 1 else f"{len(ended)} of {planned} cells"
    return f"{how_many} {'has' if planned == 1 else 'have'} ended ({seeds}){f': {ends}' if ends else ''}."


def failures(study: StudyFiles) -> Iterator[str]:
    """Why cells failed, which are counted in nothing else."""
    errors = Counter(str(cell.outcome.get("error", "no more is known")) for cell in study.cells if cell.how == "failed")
    said = [f"{error}{f' ({many} cells)' if many > 1 else ''}" for error, many in errors.most_common()]
    if said:
        yield f"Failed, and counted in nothing else: {_some(said, 'errors')}."


def trained(design: Design, arms: Sequence[StudyArm]) -> Iterator[str]:
    """ "At 12 layers without warm-up, post-ln finished in 2 of 9 cells (7 collapsed); pre-ln in every cell." """
    conditions = design.conditions if len(design.conditions) <= APART else [{}]
    whole = []
    for condition in conditions:
        here = [arm for arm in arms if all(arm.values[key] == condition[key] for key in condition)]
        broken, unbroken = _ends(design, here)
        if broken:
            named = len(unbroken) < len(design.who) - 1 or len(unbroken) < 3
            rest = listed(unbroken) if named else "every other one"
            yield sentence(condition, "; ".join([*broken, *([f"{rest} in every cell"] if unbroken else [])]))
        elif unbroken:
            whole.append(condition)
    if whole and len(whole) == len(conditions):
        yield "Nothing collapsed or diverged in any cell that has ended."
    elif whole:
        said = listed([(begin := under(condition))[:1].lower() + begin[1:] for condition in whole])
        yield f"{said[:1].upper()}{said[1:]}, every cell finished."


def undecided(arms: Sequence[StudyArm]) -> Iterator[str]:
    """Which cells were too short to tell, and how many more steps they need at most."""
    cells = [cell for arm in arms for cell in arm.cells if cell.how == "undecided"]
    if cells:
        needed = [(cell.outcome.get("judged") or {}).get("needed") for cell in cells]
        known = [steps for steps in needed if steps is not None]
        more = f"; up to {max(known):,} more steps would tell" if known else ""
        of = sum(arm.n for arm in arms)
        yield f"Too short to tell whether they train: {len(cells)} of {of} cells, neither finished nor collapsed{more}."


def unlearnt(arms: Sequence[StudyArm], entropy: float | None) -> Iterator[str]:
    """Which finished, and are no better on held-out text than token frequencies are on the text of the training.

    Args:
        entropy: what is said of it; each cell is held against its own.
    """
    found = [(arm, sum(map(_is_unlearnt, arm.cells))) for arm in arms]
    said = [f"{arm.label} ({many} of {arm.n} seed{'s' * (arm.n > 1)})" for arm, many in found if many]
    if said:
        level = "of its text" if entropy is None else f"({entropy:.3f} nats)"
        yield f"Finished, with a validation loss not below the unigram entropy {level}: {_some(said, 'arms')}."


def _is_unlearnt(cell: Cell) -> bool:
    loss, entropy = cell.number("validation_loss"), cell.number("unigram_entropy")
    return cell.how == "finished" and entropy is not None and loss is not None and loss >= entropy


def _some(said: Sequence[str], what: str) -> str:
    """The first of them, and how many more; a sentence is no table."""
    left = len(said) - MANY
    return "; ".join([*said[:MANY], f"and {left} other {what}"] if left > 1 else said)


def _ends(design: Design, arms: Sequence[StudyArm]) -> tuple[list[str], list[str]]:
    """Of those with cells that did not finish a part of a sentence, fewest first; the others by name."""
    broken, unbroken = [], []
    for who in design.who:
        cells = [cell for arm in arms if arm.who == who for cell in arm.cells]
        finished = sum(cell.how == "finished" for cell in cells)
        if cells and finished == len(cells):
            unbroken.append(named(who))
        elif cells:
            wrong = counted(cell.how for cell in cells)
            broken.append(
                (
                    finished / len(cells),
                    f"{named(who)} finished in {finished or 'none'} of {len(cells)} cells ({wrong})",
                )
            )
    return [said for _, said in sorted(broken, key=lambda one: one[0])], unbroken


def sentence(condition: Row | None, said: str) -> str:
    begin = under(condition) if condition else ""
    said = said if begin or not said.startswith(("against", "the ")) else said[:1].upper() + said[1:]  # no name is
    return f"{begin}, {said}." if begin else f"{said}."


def rates(design: Design, chosen: Sequence[Tuned]) -> Iterator[str]:
    """The best rate of each, where none trained, and which stand at an end of the sweep."""
    swept = [one for one in chosen if len(one.arms) > 1 and one.best is not None]
    if swept:
        yield f"The best learning rate: {_by_who(design, swept)}."
    none = [one for one in chosen if len(one.arms) > 1 and one.best is None]
    if none:
        yield f"No learning rate trained: {_by_who(design, none)}."
    ends = [one for one in swept if one.edge is not None]
    if ends:
        said = "all of these" if len(ends) == len(swept) > 1 else _by_who(design, ends)
        yield f"At an end of the sweep, beyond which a rate may be better: {said}."


def _by_who(design: Design, tuned: Sequence[Tuned]) -> str:
    by_who = {who: [one for one in tuned if one.who == who] for who in design.who}
    return "; ".join(f"{named(who)}{_where(of, len(design.conditions))}" for who, of in by_who.items() if of)


def _where(of: Sequence[Tuned], many: int) -> str:
    """ " 0.001 (no warm-up), 0.003 (warm-up 5; warm-up 15)"; " 0.001" where it is so under all of `many` conditions."""
    by_rate: dict[str, list[Row]] = {}
    for one in of:
        by_rate.setdefault("" if one.best is None else f" {one.best.values[RATE]:g}", []).append(one.condition)
    everywhere = len(by_rate) == 1 and len(of) == many
    return ",".join(f"{rate}{'' if everywhere else _conditions(found)}" for rate, found in by_rate.items())


def _conditions(conditions: Sequence[Row]) -> str:
    said = [condition_said(condition) for condition in conditions if condition]
    return f" ({'; '.join(said)})" if said else ""


def best(design: Design, arms: Sequence[StudyArm]) -> Iterator[str]:
    """Each at its own best over all conditions, where these are settings that a placement may choose."""
    if tunable(design) and arms:
        keys = [*design.others, *([RATE] if design.rates else [])]
        said = [
            f"{named(arm.who)} {loss_said(arm.median)} ({condition_said({key: arm.values[key] for key in keys})})"
            for arm in arms
            if arm.trains
        ]
        if said:
            yield f"Median loss in nats, each at its own best: {'; '.join(said)}."


def sooner(condition: Row | None, paces: Sequence[Pace]) -> Iterator[str]:
    """In which part of the reference's steps each comes down to the loss at which that one ends."""
    there = [pace for pace in paces if statistics.median(pace.steps.values()) < math.inf]
    never = [f"{named(pace.arm)}{_without(pace)}" for pace in paces if pace not in there]
    said = [
        f"{named(pace.arm)} is there in {spread(pace.steps)} of its steps ({pace_verdict(pace)}, n = {pace.found.n})"
        for pace in there
    ]
    said += [f"not reached by {listed(never)}"] if never else []
    if said:
        yield sentence(condition, f"the loss at which {named(paces[0].reference)} ends: {'; '.join(said)}")


def _without(pace: Pace) -> str:
    """With how many seeds it is not reached, where some do."""
    missed = sum(value == math.inf for value in pace.steps.values())
    return "" if missed == len(pace.steps) else f" (with {missed} of {len(pace.steps)} seeds)"
