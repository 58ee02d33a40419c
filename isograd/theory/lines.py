"""The lines that a claim's figure draws beside what was measured."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from isograd.theory.claim import Case, Curve, Line, Theory
from isograd.theory.fit import geometric_mean


def power(variable: str) -> Theory:
    """The predicted exponent as a line through the middle of the curve."""

    def lines(case: Case, curve: Curve) -> Sequence[Line]:
        assert isinstance(case.predicted, float)
        middle = geometric_mean(curve.y) / math.exp(fmean(map(math.log, curve.x))) ** case.predicted
        label = f"~ {variable}^{case.predicted:g}" if case.predicted else f"constant in {variable}"
        return [Line(label=f"theory: {label}", x=curve.x, y=tuple(middle * x**case.predicted for x in curve.x))]

    return lines


def fixed(label: str, *laws: Callable[[float], float]) -> Theory:
    """Laws of x that are the same for every case."""

    def lines(case: Case, curve: Curve) -> Sequence[Line]:
        return [Line(label=f"theory: {label}", x=curve.x, y=tuple(map(law, curve.x))) for law in laws]

    return lines


def from_first(**laws: tuple[str, Callable[[float], float]]) -> Theory:
    """Placement -> name and law, drawn through the first point; other placements have no line."""

    def lines(case: Case, curve: Curve) -> Sequence[Line]:
        known = laws.get(case.placement.replace("-", "_"))
        if known is None:
            return []
        label, law = known
        start = curve.y[0] / law(curve.x[0])
        return [Line(label=f"theory: {label}", x=curve.x, y=tuple(start * law(x) for x in curve.x))]

    return lines


def factor(case: Case, curve: Curve) -> Sequence[Line]:
    """The predicted factor per layer, from the top down."""
    assert isinstance(case.predicted, float)
    predicted = case.predicted
    return [Line(label=f"theory: {predicted:.3g} per layer", x=curve.x, y=tuple(predicted**x for x in curve.x))]
