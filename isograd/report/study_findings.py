"""What a study found, a sentence per question."""

from collections import Counter
from collections.abc import Iterator, Sequence

from isograd.report import pace
from isograd.report.runs import Row
from isograd.report.study_arms import RATE, Design, StudyArm, Tuned
from isograd.report.study_compared import Compared, pace_of, tunable
from isograd.report.study_files import COUNTED, StudyFiles
from isograd.report.study_words import condition_said, counted, listed, shown_value, under
from isograd.study.paired import FEWEST

LOSSES = {"validation_loss": "validation loss", "final_loss": "training loss (mean of the last 20 steps)"}


def summary(
    study: StudyFiles,
    design: Design,
    arms: Sequence[StudyArm],
    chosen: Sequence[Tuned],
    compared: Sequence[Compared],
    reference: str,
) -> list[str]:
    """How far it came, what trained, which rate was best, what differs, who is sooner."""
    return [
        _progress(study),
        *(_trained(design, arms, condition) for condition in design.conditions if _under(arms, condition)),
        *(line for condition in design.conditions for line in _rates(design, chosen, condition)),
        *_differences(design, compared, reference),
    ]


def _progress(study: StudyFiles) -> str:
    ended, all_ends = study.ended, [cell.how for cell in study.cells]
    counts = Counter(cell.how for cell in ended)
    ends = ", ".join(f"{counts[how]} {how}" for how in (*COUNTED, "failed") if counts[how])
    seeds = f"{len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}"
    if len(ended) == len(all_ends):
        return f"All {len(ended)} cells have ended ({seeds} each): {ends}."
    return f"{len(ended)} of {len(all_ends)} cells have ended ({seeds} planned)" + (f": {ends}." if ends else ".")


def _under(arms: Sequence[StudyArm], condition: Row) -> list[StudyArm]:
    return [arm for arm in arms if all(arm.values[key] == condition[key] for key in condition)]


def _trained(design: Design, arms: Sequence[StudyArm], condition: Row) -> str:
    """ "At 12 layers without warm-up, post-ln trained in 2 of 9 cells (7 collapsed), pre-ln in 9 of 9." """
    here = _under(arms, condition)
    parts = []
    for who in design.who:
        cells = [cell for arm in here if arm.who == who for cell in arm.cells]
        finished = sum(cell.how == "finished" for cell in cells)
        wrong = counted(cell.how for cell in cells)
        if cells:
            parts.append((finished, len(cells), f" ({wrong})" if wrong else "", who))
    whole = [part for part in parts if part[0] == part[1]]
    if len(whole) == len(parts) and len({part[1] for part in parts}) == 1:
        each = f"each of {len(parts)} trained in all its" if len(parts) > 1 else f"{parts[0][3]} trained in all its"
        return _sentence(condition, f"{each} {parts[0][1]} cells")
    said = [f"{who} trained in {n} of {of} cells{wrong}" for n, of, wrong, who in sorted(parts, key=lambda one: one[0])]
    return _sentence(condition, "; ".join(said))


def _sentence(condition: Row | None, said: str) -> str:
    begin = under(condition) if condition else ""
    return f"{begin}, {said}." if begin else f"{said[:1].upper()}{said[1:]}."


def _rates(design: Design, chosen: Sequence[Tuned], condition: Row) -> Iterator[str]:
    """The best rate of each, and whether it is at the edge of the sweep."""
    here = [one for one in chosen if one.condition == condition and len(one.arms) > 1]
    by_rate: dict[float, list[Tuned]] = {}
    for one in here:
        if one.best is not None:
            by_rate.setdefault(one.best.values[RATE], []).append(one)
    if by_rate:
        said = [f"{rate:g} for {listed([one.who for one in of])}" for rate, of in sorted(by_rate.items())]
        yield _sentence(condition, f"the best learning rate is {'; '.join(said)}")
    for edge in ("lowest", "highest"):
        ends = [one.who for one in here if one.edge == edge]
        if ends:
            who = "every one of these" if len(ends) == len(here) > 2 else listed(ends)
            yield (
                f"For {who} that is the {edge} of the sweep{f' ({condition_said(condition)})' if condition else ''}:"
                f" a {'lower' if edge == 'lowest' else 'higher'} rate may be better."
            )


def _differences(design: Design, compared: Sequence[Compared], reference: str) -> Iterator[str]:
    """Of each condition who is lower, higher, or not seen to differ from the reference."""
    conditions: list[Row | None] = [*design.conditions, *([None] if tunable(design) else [])]
    own = ", each at its own best rate" if design.rates else ""
    for condition in conditions:
        here = [one for one in compared if one.condition == condition]
        if not here:
            continue
        chosen = own if condition is not None else f", each at its own best {_axes(design)}"
        said = f"against {reference}{chosen}: {'; '.join(_grouped(here))}"
        yield _sentence(condition, said)


def _axes(design: Design) -> str:
    names = {"training.warmup": "warm-up"}
    keys = [names.get(key, key.rpartition(".")[2].replace("_", " ")) for key in design.others]
    return listed([*keys, *(["learning rate"] if design.rates else [])])


def _grouped(compared: Sequence[Compared]) -> Iterator[str]:
    alike = [one for one in compared if one.found.n >= FEWEST and one.found.verdict is None]
    if alike:
        counts = sorted({one.found.n for one in alike})
        n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
        yield f"no difference seen of {listed([one.mine.who for one in alike])} ({n})"
    for one in compared:
        if one.found.verdict is not None:
            by = f" by {abs(one.found.median):.3f}" if one.found.median is not None else ""
            yield f"{one.mine.who} is {one.found.verdict}{by} (n = {one.found.n})"
    few = [one.mine.who for one in compared if one.found.n < FEWEST]
    if few:
        yield f"no verdict on {listed(few)} (fewer than {FEWEST} seeds in common)"


def compared_said(one: Compared, what: str) -> str:
    """A comparison in full."""
    mine, theirs = (f"{arm.who}{_at_rate(arm)}" for arm in (one.mine, one.theirs))
    found = one.found.said(mine, theirs, what)
    return found if mine in found else f"{mine} and {theirs}: {found[:1].lower()}{found[1:]}"


def _at_rate(arm: StudyArm) -> str:
    return f" (LR {shown_value(arm.values[RATE])})" if RATE in arm.values else ""


def pace_said(arms: Sequence[StudyArm], reference: str) -> list[str]:
    return [pace.said(one) for one in pace_of(arms, reference)[1]]
