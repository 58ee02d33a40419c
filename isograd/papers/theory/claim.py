"""A claim: a sentence of theory with a number, an interval that the measurement must fall into, and a negative control.

    verdict holds  <=>  low <= measured <= high;   of a number with an interval, all of the interval must lie inside

A claim has one case per placement that it speaks of. The negative control of a case is another network, which differs
in what the claim rests on, and which the case must refuse when it is measured in the same way. It is no other case of
the claim: that one has a verdict of its own, and would be refused by arithmetic alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What a number was taken from: `y` over `x`, the mean over seeds, and the lowest and highest seed."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the theory, for the figure."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A number and the curve it was taken from.

    Attributes:
        interval: Student's 95 % interval of the number's mean over seeds, where each seed has one.
    """

    value: float
    curve: Curve
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a claim says of one placement.

    Args:
        placement: of the catalogue, or "any" where the claim speaks of a part that all have.
        predicted: the theory's number, or its lowest and highest.
        low, high: the tolerance: where the measured number must lie; None leaves that side open.
        control: what is measured in its place and must lie outside.
        subject: what is measured, where the placement alone does not say it.
        refuted: why the claim is false of this case, where it is known to be: its number must lie outside. It has a
            control of its own all the same, and another case of the claim, or another claim, that holds.
    """

    placement: str
    predicted: float | tuple[float, float]
    low: float | None = None
    high: float | None = None
    control: str
    subject: str = ""
    refuted: str = ""

    def holds(self, measured: Measured) -> bool:
        """Whether the number, and its whole interval where it has one, lies in the tolerance."""
        return all(map(self.accepts, (measured.value, *(measured.interval or ()))))

    def accepts(self, measured: float) -> bool:
        """Whether a number lies in the tolerance; one that is not finite never does."""
        above = self.low is None or measured >= self.low
        return math.isfinite(measured) and above and (self.high is None or measured <= self.high)


Measure = Callable[[str, int], Measured]  # (subject, seeds) -> number and curve
Theory = Callable[[Case, Curve], Sequence[Line]]


@dataclass(frozen=True, kw_only=True)
class Axes:
    """How the curve is drawn."""

    x: str
    y: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One sentence of theory, made to run.

    Args:
        name: as the command line calls it.
        title: in a few words.
        source: the paper, with the number of the lemma, equation or figure.
        statement: what is claimed, and no more than that.
        number: what the measured number is.
        how: the setting in which it is measured.
        cases: one per placement.
        seeds: how many by default.
        axes: of the figure.
        theory: the lines that the figure draws beside the curve of a case.
    """

    name: str
    title: str
    source: str
    statement: str
    number: str
    how: str
    cases: tuple[Case, ...]
    seeds: int
    axes: Axes
    theory: Theory = field(default=lambda case, curve: ())

    @property
    def measure(self) -> Measure:
        """From a subject and a number of seeds to the number. Loads torch."""
        from isograd.papers.theory.measures import MEASURES

        return MEASURES[self.name]

    def verdict(self, case: Case, seeds: int | None = None) -> "CaseResult":
        """Measure one case."""
        return self._judged(case, case.subject or case.placement, seeds)

    def control(self, case: Case, seeds: int | None = None) -> "CaseResult":
        """Measure the negative control of a case under its tolerance: this verdict must not hold."""
        return self._judged(case, case.control, seeds)

    def like(self, measured: Measured) -> list[str]:
        """The placements of whose cases a number is one, of a claim about placements."""
        return [case.placement for case in self.by_placement if case.holds(measured)]

    @property
    def by_placement(self) -> list[Case]:
        """The cases whose subject is a placement as it stands: any other can be measured in its place."""
        return [case for case in self.cases if not case.subject and case.placement != "any"]

    def _judged(self, case: Case, subject: str, seeds: int | None) -> "CaseResult":
        seeds = seeds or self.seeds
        measured = self.measure(subject, seeds)
        return CaseResult(
            claim=self.name,
            placement=case.placement,
            case=case.subject or case.placement,
            subject=subject,
            predicted=case.predicted,
            measured=measured.value,
            interval=measured.interval,
            tolerance=(case.low, case.high),
            holds=case.holds(measured),
            refuted=case.refuted,
            seeds=seeds,
            curve=measured.curve,
            lines=tuple(self.theory(case, measured.curve)),
        )


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What measuring a case has found; `subject` is the case's own, or that of its negative control."""

    claim: str
    placement: str
    case: str
    subject: str
    predicted: float | tuple[float, float]
    measured: float
    interval: tuple[float, float] | None
    tolerance: tuple[float | None, float | None]
    holds: bool
    seeds: int
    curve: Curve
    lines: tuple[Line, ...] = ()
    refuted: str = ""  # why the claim is known to be false of this case

    @property
    def as_recorded(self) -> bool:
        """Whether the case holds, or is false where it is known to be."""
        return self.holds != bool(self.refuted)

    def row(self) -> dict[str, Any]:
        """For JSON: without the curve."""
        names = (
            "claim",
            "placement",
            "case",
            "subject",
            "predicted",
            "measured",
            "interval",
            "tolerance",
            "holds",
            "seeds",
            "refuted",
        )
        return {name: getattr(self, name) for name in names}
