"""Numbers from curves (an exponent, how much a fit explains, the farthest point, means), and the theory's lines."""

import math
from collections.abc import Callable, Sequence
from statistics import correlation, fmean

from isograd.lab.statistics import mean_interval
from isograd.papers.theory.claim import Case, Curve, Line, Measured, Theory


def r_squared(x: Sequence[float], y: Sequence[float]) -> float:
    """1 - residual over total sum of squares of the least-squares line y = a + b x.

    >>> round(r_squared([1, 2, 3], [2, 4, 6]), 12), round(r_squared([1, 2, 3], [1, 2, 1]), 12)
    (1.0, 0.0)
    """
    return correlation(x, y) ** 2


def over_interval(values: Sequence[float], curve: Curve) -> Measured:
    """A number per seed: their mean and Student's 95 % interval; none below three seeds."""
    return Measured(value=fmean(values), interval=mean_interval(values), curve=curve)


def farthest(values: Sequence[float], low: float, high: float) -> float:
    """The value that lies farthest from the middle of [low, high]: if it is inside, all are.

    >>> farthest([1.4, 1.5, 1.9], 1.0, 2.0)
    1.9
    """
    return max(values, key=lambda value: abs(value - (low + high) / 2))


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean log v); 0 where a value is 0.

    >>> round(geometric_mean([1, 4]), 12)
    2.0
    """
    return math.exp(fmean(map(math.log, values))) if min(values) > 0 else 0.0


def over_seeds(x: Sequence[float], curves: Sequence[Sequence[float]]) -> Curve:
    """The mean over seeds at each x, with the lowest and the highest."""
    columns = list(zip(*curves, strict=True))
    return Curve(
        x=tuple(map(float, x)),
        y=tuple(map(fmean, columns)),
        low=tuple(map(min, columns)),
        high=tuple(map(max, columns)),
    )


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
        first = curve.y[0] / law(curve.x[0])
        return [Line(label=f"theory: {label}", x=curve.x, y=tuple(first * law(x) for x in curve.x))]

    return lines


def factor(case: Case, curve: Curve) -> Sequence[Line]:
    """The predicted factor per layer, from the top down."""
    assert isinstance(case.predicted, float)
    predicted = case.predicted
    return [Line(label=f"theory: {predicted:.3g} per layer", x=curve.x, y=tuple(predicted**x for x in curve.x))]


THEORIES: dict[str, Theory] = {  # as the tables of claims name them
    **{f"power of {variable}": power(variable) for variable in ("L", "l", "i", "sum")},
    "factor": factor,
    "1": fixed("1", lambda _: 1.0),
    "3/2": fixed("3/2", lambda _: 1.5),
    "d / 2": fixed("d / 2", lambda d: d / 2),
    "1 / std(x)": fixed("1 / std(x)", lambda x: 1 / x),
    "between 1 + l/2 and 1 + 3l/2": fixed("between 1 + l/2 and 1 + 3l/2", lambda x: 1 + x / 2, lambda x: 1 + 1.5 * x),
    "atan(0.05 / 0.95)": fixed("atan(0.05 / 0.95)", lambda _: 3.0128),
    "O(N), O(log N), O(1)": from_first(
        post_ln=("O(N)", lambda layers: layers),
        pre_ln=("O(log N)", lambda layers: math.log(2 * layers)),
        deepnorm=("O(1)", lambda _: 1.0),
    ),
}
