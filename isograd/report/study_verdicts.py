"""What the comparisons of a study come to, in words. By the one rule of `isograd.statistics`."""

from collections.abc import Iterator, Sequence

from isograd.report.runs import Row
from isograd.report.study_arms import RATE, Design, StudyArm
from isograd.report.study_compared import Compared
from isograd.report.study_words import axis_name, listed, named, shown_value, under
from isograd.statistics import caution as correction


def differences(design: Design, compared: Sequence[Compared], reference: str) -> Iterator[str]:
    """Who is lower, higher, or not seen to differ from the reference; conditions that say the same in one sentence."""
    own = ", each at its own best rate" if design.rates else ""
    for conditions, found in _alike(compared):
        if conditions == [None]:
            where = f", each at its own best {_axes([*design.others, *([RATE] if design.rates else [])])}"
        else:
            said = [begin[:1].lower() + begin[1:] for begin in map(under, filter(None, conditions))]
            every = (
                f"whatever the {_axes(list(design.others))}"
                if len(said) == len(design.conditions) > 1
                else listed(said)
            )
            where = own + (f", {every}" if said else "")
        yield f"Against {named(reference)}{where}: {'; '.join(_verdicts(found))}."


def _axes(keys: Sequence[str]) -> str:
    return listed([axis_name(key).partition(" (")[0] for key in keys])


def _alike(compared: Sequence[Compared]) -> Iterator[tuple[list[Row | None], list[list[Compared]]]]:
    """Conditions under which the same is found of the same, with what is found under each."""
    by_condition: dict[str, list[Compared]] = {}
    for one in compared:
        by_condition.setdefault(repr(one.condition), []).append(one)
    groups: dict[object, list[list[Compared]]] = {}
    for here in by_condition.values():
        same = tuple((one.mine.who, _kind(one)) for one in here)
        groups.setdefault((here[0].condition is None, same), []).append(here)
    for found in groups.values():
        yield [here[0].condition for here in found], found


def _kind(one: Compared) -> str:
    """The verdict; of too few seeds whether they agree, which is no verdict."""
    found = one.found
    if found.verdict != "too few seeds":
        return found.verdict
    agreed = next((word for word in ("lower", "higher") if getattr(found, word) == found.n), None)
    return f"{agreed} with every seed" if agreed else "seeds disagree"


_WORDS = {
    "lower": "lower loss:",
    "higher": "higher loss:",
    "no difference seen": "no difference seen:",
    "lower with every seed": "too few seeds for a verdict, lower with every one:",
    "higher with every seed": "too few seeds for a verdict, higher with every one:",
    "seeds disagree": "too few seeds for a verdict, which disagree:",
}


def _verdicts(found: Sequence[Sequence[Compared]]) -> Iterator[str]:
    """Of each kind of verdict whom it is about, with its size from the least to the most of these conditions."""
    for kind, begin in _WORDS.items():
        those = [[one for one in here if _kind(one) == kind] for here in found]
        if those[0]:
            sizes = kind.startswith(("lower", "higher"))
            whom = [
                named(one.mine.who) + (_size([here[i] for here in those]) if sizes else "")
                for i, one in enumerate(those[0])
            ]
            yield f"{begin} {listed(whom)} ({_n([one for here in those for one in here])})"


def _size(found: Sequence[Compared]) -> str:
    """ " by 0.026 to 0.031 nats"; nothing where a median is a divergence."""
    sizes = [abs(one.found.median) for one in found if one.found.median is not None]
    if not sizes or max(sizes) == float("inf"):
        return ""
    low, high = f"{min(sizes):.3f}", f"{max(sizes):.3f}"
    return f" by {low} nats" if low == high else f" by {low} to {high} nats"


def _n(compared: Sequence[Compared]) -> str:
    counts = sorted({one.found.n for one in compared})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def caution(compared: Sequence[Compared]) -> Iterator[str]:
    """What so few seeds cannot say, and what is corrected for."""
    short = [one.found.interval for one in compared if one.found.interval and one.found.interval.falls_short]
    if short:
        least = min(interval.coverage for interval in short)
        yield f"So few seeds hold the true median within such an interval in {100 * least:.0f} % of cases at most."
    yield from corrected(compared)


def corrected(compared: Sequence[Compared]) -> Iterator[str]:
    """One sentence or none on the correction, and on too few seeds."""
    said = correction([one.found for one in compared])
    if said:
        yield said


def compared_said(one: Compared, what: str) -> str:
    """A comparison in full."""
    mine, theirs = (f"{arm.who}{_at_rate(arm)}" for arm in (one.mine, one.theirs))
    where = "" if not one.condition else f"{under(one.condition)}: "
    return where + one.found.said(mine, theirs, what)


def _at_rate(arm: StudyArm) -> str:
    return f" (LR {shown_value(arm.values[RATE])})" if RATE in arm.values else ""
