"""Rules of verdicts: what the rows say of a paper's claim, in its words "same direction", "not seen", "opposite".

One rule for a difference, seed by seed: the interval of the median paired difference excludes zero
(`lab.statistics`). Of three seeds that interval is from the lowest to the highest and covers 75 %: few seeds show
a direction, not a significance, and n stands beside each number.
"""

import math
from collections.abc import Sequence
from typing import Literal

from isograd.lab.statistics import compare, median, median_interval, wilson
from isograd.papers.reproduce.item import Direction, Judgement, Ours, Row, Rows

Side = Literal["lower", "higher"]


def of_arm(rows: Rows, arm: str, **where: object) -> list[Row]:
    """The rows of an arm, and of what else is asked."""
    return [row for row in rows if row.get("arm") == arm and all(row.get(key) == value for key, value in where.items())]


SCORES = ("bleu", "score", "chrf", "meteor", "accuracy")  # columns of which more is better


def by_seed(rows: Rows, column: str) -> dict[int, float]:
    """A column by seed, the worst of all where a run diverged. Rows without the number are left out."""
    found, worst = {}, -math.inf if column in SCORES else math.inf
    for row in rows:
        value = worst if row.get("outcome") == "diverged" else row.get(column)
        if value is not None:
            found[int(row["seed"])] = float(value)
    return found


def measured(label: str, values: Sequence[float], unit: str = "") -> Ours:
    """A median over seeds, with its interval."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Ours(label=label, value=None, unit=unit, n=0)
    interval = median_interval(known)
    ends = {} if interval is None else {"low": interval.low, "high": interval.high}
    return Ours(label=label, value=median(known), unit=unit, n=len(known), **ends)


def paired(
    rows: Rows, column: str, mine: str, theirs: str, expect: Side, *, what: str = "", unit: str = "", least: float = 0.0
) -> Judgement:
    """Whether arm `mine` is lower (higher) than arm `theirs` in a column, seed by seed.

    Args:
        what: the column in words.
        least: the interval must be further from zero than this.
    """
    a, b = (by_seed(of_arm(rows, arm), column) for arm in (mine, theirs))
    found = compare(a, b)
    name = what or column.replace("_", " ")
    ours = (measured(f"{name}, {mine}", [*a.values()], unit), measured(f"{name}, {theirs}", [*b.values()], unit))
    verdict = (
        sided(found.interval.low, found.interval.high, expect, least) if found.interval else "not seen"
    )  # one seed has none
    if not found.n:
        return Judgement(verdict="not seen", reason=f"no seed of {mine} and {theirs} can be compared.", ours=ours)
    size = f"by {abs(found.median or 0):.3g}{f' {unit}' if unit else ''} in the median"
    side = "lower" if (found.median or 0) < 0 else "higher"
    said = f"{_capital(name)}: {mine} is {side} than {theirs} {size}"
    counted = found.count_said()
    return Judgement(
        verdict=verdict, reason=f"{said} ({counted or 'equal'}, n = {found.n}){_alone(found.n)}.", ours=ours
    )


def _alone(n: int) -> str:
    return "; one seed has no interval, and shows nothing" if n == 1 else ""


def sided(low: float, high: float, expect: Side, least: float = 0.0) -> Direction:
    """The verdict of an interval of differences (or of anything that is 0 where there is no effect)."""
    side: Side | None = "higher" if low > least else "lower" if high < -least else None
    return "not seen" if side is None else "same direction" if side == expect else "opposite"


def beyond(label: str, values: Sequence[float], threshold: float, expect: Side, unit: str = "") -> Judgement:
    """Whether values, one per seed, lie above (below) a threshold, by the interval of their median."""
    ours = measured(label, values, unit)
    asked = f"the rule asks for {'more' if expect == 'higher' else 'less'} than {threshold:g}"
    reason = f"{_capital(label)}: {_number(ours.value)}{unit and ' ' + unit} (n = {ours.n}); {asked}{_alone(ours.n)}."
    interval = median_interval([value - threshold for value in values]) if len(values) > 1 else None
    verdict = sided(interval.low, interval.high, expect) if interval else "not seen"  # one seed has none
    return Judgement(verdict=verdict, reason=reason, ours=(ours,))


TRAINED, FAILED = ("finished",), ("collapsed", "diverged")


def trains(rows: Rows, yes: Sequence[str] = (), no: Sequence[str] = ()) -> Judgement:
    """Whether every run of the arms `yes` trains, and every one of the arms `no` collapses or diverges.

    "opposite" where every run does the contrary of what is expected; an undecided run is neither.
    """
    ours, right, wrong, said = [], 0, 0, []
    for arm, wanted, other in [*((arm, TRAINED, FAILED) for arm in yes), *((arm, FAILED, TRAINED) for arm in no)]:
        outcomes = [str(row["outcome"]) for row in of_arm(rows, arm) if row.get("outcome")]
        finished, interval = outcomes.count("finished"), wilson(outcomes.count("finished"), len(outcomes))
        ends = {"low": interval.low, "high": interval.high}
        ours.append(Ours(label=f"trains, {arm}", value=finished, n=len(outcomes), unit="runs", **ends))
        right += bool(outcomes) and all(outcome in wanted for outcome in outcomes)
        wrong += bool(outcomes) and all(outcome in other for outcome in outcomes)
        said.append(f"{arm} trains with {finished} of {len(outcomes)} seeds")
    verdict: Direction = "same direction" if right == len(said) else "opposite" if wrong == len(said) else "not seen"
    return Judgement(verdict=verdict, reason=f"{'; '.join(said)}.", ours=tuple(ours))


def both(*found: Judgement) -> Judgement:
    """All of several rules: the verdict that they share, else "not seen", with what holds beside what does not."""
    held, missed = _held(found)
    if held and missed:
        return _together(found, f"{_counted(held, found)} Not: {_reasons(missed)} Holds: {_reasons(held)}")
    return _together(found, _reasons(found))


def every(*found: Judgement) -> Judgement:
    """As `both`, of many rules: the reason counts those that hold, and tells of the others alone."""
    held, missed = _held(found)
    return _together(found, _counted(held, found) + (f" Not: {_reasons(missed)}" if missed else ""))


def _together(found: Sequence[Judgement], reason: str) -> Judgement:
    verdicts = {one.verdict for one in found}
    verdict = verdicts.pop() if len(verdicts) == 1 else "not seen"
    ours = dict.fromkeys(number for one in found for number in one.ours)
    return Judgement(verdict=verdict, reason=reason, ours=tuple(ours))


def _held(found: Sequence[Judgement]) -> tuple[list[Judgement], list[Judgement]]:
    """Those in the paper's direction, and the others."""
    held = [one for one in found if one.verdict == "same direction"]
    return held, [one for one in found if one not in held]


def _counted(held: Sequence[Judgement], found: Sequence[Judgement]) -> str:
    return f"{len(held)} of {len(found)} conditions hold."


def _reasons(found: Sequence[Judgement]) -> str:
    return " ".join(_capital(one.reason) for one in found)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
