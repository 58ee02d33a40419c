"""Comparisons for people: one table, and one sentence per verdict, whatever was compared. The rule is `statistics`'."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from isograd.lab.report.page import Section, Table
from isograd.lab.statistics import Comparison, Interval, caution, side_by_side


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One arm against another.

    Attributes:
        size: how far apart they are, as a table says it; a sentence leaves out its range. "": the median difference.
        unit: of the size, in a sentence.
        where: the condition under which; "" where there is none.
        more: further cells, under the headers that `table` is given.
    """

    mine: str
    theirs: str
    found: Comparison
    size: str = ""
    where: str = ""
    unit: str = ""
    more: Sequence[str] = ()

    @property
    def amount(self) -> str:
        return self.size or difference(self.found)


def corrected(compared: Sequence[Compared]) -> list[Compared]:
    """The same comparisons, each corrected for all of them."""
    found = side_by_side([one.found for one in compared])
    return [replace(one, found=own) for one, own in zip(compared, found, strict=True)]


def section(
    name: str,
    title: str,
    compared: Sequence[Compared],
    what: str,
    words: Mapping[str, str],
    sentence: str = "",
    who: str = "arm",
    more: Sequence[str] = (),
) -> Section | None:
    """The table and the verdicts of these; None where there is none. See `table` and `verdicts`."""
    shown = table(compared, what, who, more)
    said = list(verdicts(compared, words))
    return Section(name=name, title=title, sentence=sentence, table=shown, verdicts=said) if shown else None


def table(compared: Sequence[Compared], what: str, who: str = "arm", more: Sequence[str] = ()) -> Table | None:
    """A line per comparison; None where there is none.

    Args:
        what: the header of the sizes.
        more: headers of further cells.
    """
    if not compared:
        return None
    where = any(one.where for one in compared)
    header = [who, *(["under"] if where else []), "against", what, *more, "lower in", "p", "corrected p", "verdict"]
    lines = []
    for one in compared:
        found = one.found
        tests = (f"{found.lower} of {found.n}", f"{found.p:.2g}", f"{found.corrected:.2g}", found.verdict)
        counts = tests if found.n else ("–", "–", "–", "no common seeds")
        under = [one.where or "all"] if where else []
        lines.append((one.mine, *under, one.theirs, one.amount, *one.more, *counts))
    return Table(header=header, lines=lines, verdict="verdict", left=3 if where else 2)


def verdicts(
    compared: Sequence[Compared], words: Mapping[str, str], among: Sequence[Compared] | None = None
) -> Iterator[str]:
    """ "Lower validation loss than pre-ln: normformer by 0.026 nats (n = 6)." for each verdict; then the caution.

    Args:
        words: what "lower" and "higher" mean here: "lower validation loss than"; of the other verdicts what they are
            about, where that is not plain.
        among: all for which p was corrected; None: these.
    """
    known, every = [one for one in compared if one.found.n], {**_SAME, **words}
    groups: dict[tuple[str, str, str], list[Compared]] = {}
    for one in known:
        groups.setdefault((one.where, one.theirs, one.found.verdict), []).append(one)
    for (where, theirs, verdict), those in groups.items():
        said = f"{every[verdict]} {theirs}: {'; '.join(_named(one) for one in those)}."
        yield f"{where}: {said}" if where else f"{said[:1].upper()}{said[1:]}"
    yield from filter(None, [caution([one.found for one in among or known if one.found.n > 1])])


_SAME = {"no difference seen": "no difference seen from", "too few seeds": "too few seeds to compare with"}


def _named(one: Compared) -> str:
    """Who, how far apart where that is a finding, and n; of too few seeds whether they agree."""
    found = one.found
    known = found.differs and found.median is not None and math.isfinite(found.median)
    size = f" by {one.amount.partition(' (')[0].lstrip('+-')}{one.unit}" if known else ""
    agree = found.verdict == "too few seeds" and found.n > 1 and found.n in (found.lower, found.higher)
    return f"{one.mine}{size} ({found.count_said() if agree else f'n = {found.n}'})"


def difference(found: Comparison) -> str:
    """ "-0.026 (-0.031 to -0.020)": the median of the differences, and its interval."""
    return "–" if found.median is None else signed(found.median) + ends(found.interval)


def ends(interval: Interval | None) -> str:
    return "" if interval is None else f" ({signed(interval.low)} to {signed(interval.high)})"


def signed(value: float) -> str:
    if math.isfinite(value):
        return f"{value:+.3f}"
    return "diverged" if value > 0 else "reference diverged"
