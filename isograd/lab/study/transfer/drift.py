"""Where the best learning rate of a study stands, over depth and over width: how far it moves, with an interval.

    best rate      the vertex of the parabola through the best of the rates and its neighbours, loss over log rate
    drift          the largest ratio of the best rate at a size and at the smallest one, whichever way, seed by seed
    it transfers   <=>  the whole interval of the median drift lies below 2; three seeds at least

A run that diverged or collapsed counts with the loss of token frequencies. A best rate at the end of the rates may lie
beyond: its drift is a lower bound, and nothing is said to transfer by it.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from isograd.errors import UserError
from isograd.files import read_rows
from isograd.lab.statistics import Interval, median, median_interval
from isograd.lab.study.engine.ledger import LEDGER

LIMIT = 2.0
FEWEST = 3  # seeds of a verdict
KEYS = {"depth": "model.layers", "width": "model.width"}
Axis = Literal["depth", "width"]
DriftVerdict = Literal["transfers", "does not transfer here", "too few seeds"]


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best rate at a size, of one seed; `open` where it is the lowest or highest of the rates."""

    rate: float
    loss: float
    open: bool


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far the best rate of an arm moves over sizes.

    Attributes:
        arm: a placement, with the rule and without the size that it counts from.
        best: size -> seed -> best rate; the smallest size is the source.
        drift, interval: of the median over seeds that have all sizes; the interval None below two.
        open: whether any best rate is at the end of the rates.
    """

    arm: str
    axis: Axis
    best: dict[int, dict[int, Best]]
    drift: float
    interval: Interval | None
    seeds: int
    open: bool

    @property
    def verdict(self) -> DriftVerdict:
        if self.seeds < FEWEST or self.interval is None:
            return "too few seeds"
        return "transfers" if self.interval.high < LIMIT and not self.open else "does not transfer here"

    def middle(self, size: int) -> float:
        """The median of the best rates at a size."""
        return median([one.rate for one in self.best[size].values()])

    def cells(self) -> list[str]:
        """Arm, axis, best rates, drift, interval, seeds, verdict, as a table has them."""
        rates = ", ".join(f"{size}: {self.middle(size):.2g}" for size in self.best)
        bound = "at least " if self.open else ""
        interval = "–" if self.interval is None else f"{self.interval.low:.2g} to {self.interval.high:.2g}"
        return [self.arm, self.axis, rates, f"{bound}{self.drift:.2g}", interval, str(self.seeds), self.verdict]

    def as_dict(self) -> dict[str, Any]:
        best = {size: {seed: vars(one) for seed, one in of.items()} for size, of in self.best.items()}
        interval = None if self.interval is None else [self.interval.low, self.interval.high, self.interval.coverage]
        said = {"drift": self.drift, "interval": interval, "seeds": self.seeds, "open": self.open}
        return {"arm": self.arm, "axis": self.axis, "best": best, **said, "verdict": self.verdict}


def read_drifts(folder: Path) -> list[Drift]:
    """Of a study's folder.

    Raises:
        UserError: there is no ledger, or no arm in it has two sizes with two rates each.
    """
    rows = read_rows(folder / LEDGER)
    if not rows:
        raise UserError(f"{folder}: no study with ended cells here (no {LEDGER}); 'isograd study' makes one")
    if found := drifts(rows):
        return found
    raise UserError(f"{folder}: no placement at two depths or widths with three rates each: nothing moves here")


def drifts(rows: Sequence[Mapping[str, Any]]) -> list[Drift]:
    """Every arm over depth, at the smallest width, and over width, at the smallest depth; those of several sizes."""
    points = [row for row in rows if all(key in row["values"] for key in (*KEYS.values(), "training.lr"))]
    if not points:
        points = [{**row, "values": {"model.width": 0, **row["values"]}} for row in rows]
        points = [row for row in points if all(key in row["values"] for key in (*KEYS.values(), "training.lr"))]
    least = {key: min((row["values"][key] for row in points), default=0) for key in KEYS.values()}
    return [one for axis in KEYS for one in _over(points, axis, least)]  # type: ignore[arg-type]


def _over(points: Sequence[Mapping[str, Any]], axis: Axis, least: Mapping[str, int]) -> Iterator[Drift]:
    other = KEYS["width" if axis == "depth" else "depth"]
    here = [row for row in points if row["values"][other] == least[other]]
    own = KEYS[axis]
    found: dict[str, dict[int, dict[int, list[tuple[float, float]]]]] = {}
    for row in here:
        values = row["values"]
        point = (values["training.lr"], _loss(row))
        sizes = found.setdefault(arm_of(values["model.placement"]), {}).setdefault(values[own], {})
        sizes.setdefault(row["seed"], []).append(point)
    for arm, at in found.items():
        source = arm.partition("@")[0]  # where a rule counts from, it is the placement itself
        whole = {**({least[own]: found[source][least[own]]} if least[own] in found.get(source, {}) else {}), **at}
        best = {size: {s: best_rate(p) for s, p in of.items() if len(p) > 2} for size, of in sorted(whole.items())}
        best = {size: of for size, of in best.items() if of}
        if len(best) > 1 and least[own] in best:
            yield _drift(arm, axis, best)


def arm_of(placement: str) -> str:
    """A placement with its rules, without the sizes that they count from.

    >>> arm_of("pre-ln@completep-4@mup-2XE"), arm_of("pre-ln")
    ('pre-ln@completep@mup', 'pre-ln')
    """
    return re.sub(r"(@[a-z-]*[a-z])-[\d.]+[XEU]*", r"\1", placement)


def _loss(row: Mapping[str, Any]) -> float:
    """The held-out loss, else the final one; the unigram loss where that is lower or there is none."""
    cap = row.get("unigram_loss") or row.get("unigram_entropy") or math.inf
    loss = row.get("validation_loss") if row.get("validation_loss") is not None else row.get("final_loss")
    return min(math.inf if loss is None else loss, cap)


def best_rate(points: Sequence[tuple[float, float]]) -> Best:
    """The vertex of the parabola through the best of (rate, loss) and its neighbours, over log rate.

    >>> best_rate([(1e-3, 2.5), (1e-2, 2.0), (1e-1, 2.5)]).rate
    0.01
    >>> best_rate([(1e-3, 2.0), (1e-2, 2.2), (1e-1, 2.5)])
    Best(rate=0.001, loss=2.0, open=True)
    """
    ordered = sorted(points)
    at = min(range(len(ordered)), key=lambda i: ordered[i][1])
    rate, loss = ordered[at]
    if at in (0, len(ordered) - 1) or not all(math.isfinite(one[1]) for one in ordered[at - 1 : at + 2]):
        return Best(rate=rate, loss=loss, open=True)
    (x0, y0), (x1, y1), (x2, y2) = ((math.log(x), y) for x, y in ordered[at - 1 : at + 2])
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    bend = (right - left) / (x2 - x0)
    if bend <= 0:  # three equal losses
        return Best(rate=rate, loss=loss, open=False)
    vertex = (x0 + x1) / 2 - left / (2 * bend)
    return Best(rate=round(math.exp(min(max(vertex, x0), x2)), 12), loss=loss, open=False)


def _drift(arm: str, axis: Axis, best: dict[int, dict[int, Best]]) -> Drift:
    base, *others = best
    seeds = [seed for seed in best[base] if all(seed in best[size] for size in others)]
    logs = [max(abs(math.log(best[size][s].rate / best[base][s].rate)) for size in others) for s in seeds]
    ratios = [math.exp(one) for one in logs]
    return Drift(
        arm=arm,
        axis=axis,
        best=best,
        drift=median(ratios) if ratios else math.nan,
        interval=median_interval(ratios),
        seeds=len(seeds),
        open=any(best[size][seed].open for size in best for seed in seeds),
    )
