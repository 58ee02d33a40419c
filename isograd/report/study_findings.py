"""What a study found, a sentence per question."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from isograd.report.pace import Pace, spread
from isograd.report.runs import Row
from isograd.report.study_arms import RATE, Design, StudyArm, Tuned
from isograd.report.study_compared import Compared, tunable
from isograd.report.study_files import COUNTED, Cell, StudyFiles
from isograd.report.study_words import axis_name, condition_said, counted, listed, loss_said, named, shown_value, under
from isograd.study.paired import FEWEST
from isograd.train.metrics import NEAR

LOSSES = {"validation_loss": "validation loss", "final_loss": "training loss (mean of the last 20 steps)"}
APART = 6  # conditions at most that have a sentence each; of more what trained is told over all of them


def progress(study: StudyFiles) -> str:
    """How far the study came."""
    ended, planned = study.ended, len(study.cells)
    counts = Counter(cell.how for cell in ended)
    ends = ", ".join(f"{counts[how]} {how}" for how in (*COUNTED, "failed") if counts[how])
    seeds = f"{len(study.seeds)} seeds" if len(study.seeds) > 1 else "one seed"
    how_many = f"All {planned} cells" if len(ended) == planned else f"{len(ended)} of {planned} cells"
    return f"{how_many} have ended ({seeds}){f': {ends}' if ends else ''}."


def trained(design: Design, arms: Sequence[StudyArm]) -> Iterator[str]:
    """ "At 12 layers without warm-up, post-ln trained in 2 of 9 cells (7 collapsed); pre-ln in all of its 9." """
    conditions = design.conditions if len(design.conditions) <= APART else [{}]
    whole = []
    for condition in conditions:
        here = [arm for arm in arms if all(arm.values[key] == condition[key] for key in condition)]
        broken, unbroken = _ends(design, here)
        if broken:
            named = len(unbroken) < len(design.who) - 1 or len(unbroken) < 3
            rest = listed(unbroken) if named else "every other one"
            yield _sentence(condition, "; ".join([*broken, *([f"{rest} in every cell"] if unbroken else [])]))
        elif unbroken:
            whole.append(condition)
    if whole and len(whole) == len(conditions):
        yield "Every cell that has ended trained: nothing collapsed or diverged."
    elif whole:
        said = listed([(begin := under(condition))[:1].lower() + begin[1:] for condition in whole])
        yield f"{said[:1].upper()}{said[1:]}, every cell trained."


def unlearnt(arms: Sequence[StudyArm], entropy: float | None) -> Iterator[str]:
    """Which finished, and know no more of held-out text than how often each token occurs."""
    found = [(arm, sum(map(partial(_is_unlearnt, entropy), arm.cells))) for arm in arms]
    said = [f"{arm.label} ({many} of {arm.n} seeds)" for arm, many in found if many]
    if said:
        yield f"Finished with a validation loss no better than the unigram entropy: {'; '.join(said)}."


def _is_unlearnt(entropy: float | None, cell: Cell) -> bool:
    loss = cell.number("validation_loss")
    return cell.how == "finished" and entropy is not None and loss is not None and loss > entropy - NEAR


def _ends(design: Design, arms: Sequence[StudyArm]) -> tuple[list[str], list[str]]:
    """Of those with cells that did not train a part of a sentence, fewest first; the others by name."""
    broken, unbroken = [], []
    for who in design.who:
        cells = [cell for arm in arms if arm.who == who for cell in arm.cells]
        finished = sum(cell.how == "finished" for cell in cells)
        if cells and finished == len(cells):
            unbroken.append(named(who))
        elif cells:
            wrong = counted(cell.how for cell in cells)
            broken.append(
                (finished / len(cells), f"{named(who)} trained in {finished or 'none'} of {len(cells)} cells ({wrong})")
            )
    return [said for _, said in sorted(broken, key=lambda one: one[0])], unbroken


def _sentence(condition: Row | None, said: str) -> str:
    begin = under(condition) if condition else ""
    said = said if begin or not said.startswith(("against", "the ")) else said[:1].upper() + said[1:]  # no name is
    return f"{begin}, {said}." if begin else f"{said}."


def rates(design: Design, chosen: Sequence[Tuned]) -> Iterator[str]:
    """The best rate of each, and which stand at an end of the sweep."""
    swept = [one for one in chosen if len(one.arms) > 1 and one.best is not None]
    if swept:
        yield f"The best learning rate: {_by_who(design, swept)}."
    ends = [one for one in swept if one.edge is not None]
    if ends:
        said = "all of these" if len(ends) == len(swept) > 1 else _by_who(design, ends)
        yield f"At an end of the sweep, beyond which a rate may be better: {said}."


def _by_who(design: Design, tuned: Sequence[Tuned]) -> str:
    by_who = {who: [one for one in tuned if one.who == who] for who in design.who}
    return "; ".join(f"{named(who)} {_where(of, len(design.conditions))}" for who, of in by_who.items() if of)


def _where(of: Sequence[Tuned], many: int) -> str:
    """ "0.001 (no warm-up), 0.003 (warm-up 50; warm-up 150)"; "0.001" where it is so under all of `many` conditions."""
    by_rate: dict[float, list[Row]] = {}
    for one in of:
        if one.best is not None:
            by_rate.setdefault(one.best.values[RATE], []).append(one.condition)
    everywhere = len(by_rate) == 1 and len(of) == many
    return ", ".join(f"{rate:g}{'' if everywhere else _conditions(found)}" for rate, found in by_rate.items())


def _conditions(conditions: Sequence[Row]) -> str:
    said = [condition_said(condition) for condition in conditions if condition]
    return f" ({'; '.join(said)})" if said else ""


def best(design: Design, arms: Sequence[StudyArm]) -> Iterator[str]:
    """Each at its own best over all conditions, where these are settings that a placement may choose."""
    if tunable(design) and arms:
        keys = [*design.others, *([RATE] if design.rates else [])]
        said = (
            f"{named(arm.who)} {loss_said(arm.median)} ({condition_said({key: arm.values[key] for key in keys})})"
            for arm in arms
            if arm.trains
        )
        yield f"Median loss, each at its own best: {'; '.join(said)}."


def differences(design: Design, compared: Sequence[Compared], reference: str) -> Iterator[str]:
    """Under each condition who is lower, higher, or not seen to differ from the reference."""
    own = ", each at its own best rate" if design.rates else ""
    for condition in [*design.conditions, None] if len(design.conditions) <= APART else [None]:
        here = [one for one in compared if one.condition == condition]
        chosen = own if condition is not None else f", each at its own best {_choices(design)}"
        if here:
            yield _sentence(condition, f"against {named(reference)}{chosen}: {'; '.join(_verdicts(here))}")


def _choices(design: Design) -> str:
    return listed([axis_name(key).partition(" (")[0] for key in (*design.others, *([RATE] if design.rates else []))])


def _verdicts(compared: Sequence[Compared]) -> Iterator[str]:
    for verdict in ("lower", "higher"):
        found = [one for one in compared if one.found.verdict == verdict]
        if found:
            yield f"{verdict} loss: {listed([f'{named(one.mine.who)}{_amount(one)}' for one in found])} ({_n(found)})"
    alike = [one for one in compared if one.found.verdict is None and one.found.n >= FEWEST]
    if alike:
        yield f"no difference seen: {listed([named(one.mine.who) for one in alike])} ({_n(alike)})"
    few = [one for one in compared if one.found.n < FEWEST]
    if few:
        yield f"no verdict, for want of {FEWEST} seeds in common: {listed([named(one.mine.who) for one in few])}"


def _amount(one: Compared) -> str:
    median = one.found.median
    return f" by {abs(median):.3f}" if median is not None and abs(median) < float("inf") else ""


def _n(compared: Sequence[Compared]) -> str:
    counts = sorted({one.found.n for one in compared})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def caution(compared: Sequence[Compared]) -> Iterator[str]:
    """What so few seeds, and so many comparisons, cannot say."""
    short = [one.found.interval for one in compared if one.found.interval and one.found.interval.falls_short]
    if short:
        least = min(interval.coverage for interval in short)
        yield f"So few seeds hold the true median within such an interval in {100 * least:.0f} % of cases at most."
    chance = max((one.found.chance for one in compared), default=0.0)
    if any(one.found.verdict for one in compared) and chance > 0.05 / len(compared):
        yield (
            f"Two arms that are alike come out as lower or higher in up to {100 * chance:.0f} % of cases, and"
            f" {len(compared)} comparisons stand here."
        )


def compared_said(one: Compared, what: str, comparisons: int) -> str:
    """A comparison in full."""
    mine, theirs = (f"{arm.who}{_at_rate(arm)}" for arm in (one.mine, one.theirs))
    found = one.found.said(mine, theirs, what, comparisons)
    where = "" if not one.condition else f"{under(one.condition)}: "
    return where + (found if mine in found else f"{mine} and {theirs}: {found}")


def _at_rate(arm: StudyArm) -> str:
    return f" (LR {shown_value(arm.values[RATE])})" if RATE in arm.values else ""


def sooner(condition: Row | None, paces: Sequence[Pace]) -> Iterator[str]:
    """In which part of the reference's steps each comes down to the loss at which that one ends."""
    apart = [pace for pace in paces if max(pace.steps.values()) < 1 or min(pace.steps.values()) > 1]
    there = [pace for pace in apart if min(pace.steps.values()) < math.inf]
    said = [
        f"{named(pace.arm)} is there in {spread(pace.steps)} of its steps (n = {len(pace.steps)})" for pace in there
    ]
    for how, those in (
        ("not reached by", [pace for pace in apart if pace not in there]),
        ("no difference seen:", [pace for pace in paces if pace not in apart]),
    ):
        said += [f"{how} {listed([named(pace.arm) for pace in those])}"] if those else []
    if said:
        yield _sentence(condition, f"the loss at which {named(paces[0].reference)} ends: {'; '.join(said)}")
