"""What a search for the largest rate that trains has found, as numbers for people: a line of a table each.

Reads the content of headroom.json (see `isograd.study.headroom`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isograd.study.boundary import Level

Row = Mapping[str, Any]
HEADER = ("placement", "warm-up", "boundary (LR)", "interval", "seeds", "your LR", "runs")
SAME = 1e-9  # rates nearer than this, relatively, are one


@dataclass(frozen=True, kw_only=True)
class Place:
    """A placement at a warm-up, with its chains; `level` is None where no chain has found a boundary."""

    placement: str
    warmup: int
    level: Level | None
    chains: Sequence[Row]


def places(content: Row) -> list[Place]:
    """In the order of placements and warm-ups."""
    return [
        Place(
            placement=row["placement"],
            warmup=row["warmup"],
            level=_level(row["level"]),
            chains=[c for c in content["chains"] if (c["placement"], c["warmup"]) == (row["placement"], row["warmup"])],
        )
        for row in content["levels"]
    ]


def _level(row: Row | None) -> Level | None:
    """JSON has no infinity: an open end is null."""
    if row is None:
        return None
    ends = {name: math.inf if row[name] is None else row[name] for name in ("middle", "low", "high")}
    return Level(**ends, n=row["n"], coverage=row["coverage"])


def own(content: Row) -> tuple[str, float, int]:
    """The user's own placement, peak rate and warm-up."""
    base = content["base"]
    return base["model"]["placement"], base["training"]["lr"], base["training"]["warmup"]


def rows(content: Row) -> list[tuple[str, ...]]:
    """A line per placement and warm-up, under `HEADER`."""
    _, rate, warmup = own(content)
    return [
        (
            place.placement,
            str(place.warmup),
            "unknown" if place.level is None else end_said(place.level.middle, content),
            "" if place.level is None else interval_said(place.level, content),
            f"{place.level.n if place.level else 0} of {len(place.chains)}",
            margin_said(place.level, rate) if place.warmup == warmup else "",
            str(sum(len(chain["tried"]) for chain in place.chains)),
        )
        for place in places(content)
    ]


def interval_said(level: Level, content: Row) -> str:
    return f"{end_said(level.low, content)} to {end_said(level.high, content)}"


def end_said(rate: float, content: Row) -> str:
    """A rate of a level: `0.0031`, `none` or `above 1`."""
    if rate == 0:
        return "none"
    return f"above {content['search']['high']:.3g}" if rate == math.inf else f"{rate:.3g}"


def margin_said(level: Level | None, rate: float, where: str = "") -> str:
    """How far a rate is from the boundary.

    >>> level = Level(middle=3.1e-3, low=2.8e-3, high=3.5e-3, n=3, coverage=0.75)
    >>> margin_said(level, 1e-3, " the boundary"), margin_said(level, 6.2e-3), margin_said(level, 3e-3)
    ('3.1 times (2.8 to 3.5) below the boundary', '2 times (1.8 to 2.2) above', 'inside the interval')
    """
    if level is None:
        return "unknown"
    if level.low >= rate * (1 - SAME):
        return f"{_times(level.middle / rate)} ({_span(level.low / rate, level.high / rate)}) below{where}"
    if level.high <= rate * (1 + SAME):
        ends = _span(rate / level.high, rate / level.low if level.low else math.inf)
        return f"{_times(rate / level.middle if level.middle else math.inf)} ({ends}) above{where}"
    return f"inside the interval{where and ' of' + where}"


def _times(factor: float) -> str:
    return "far" if factor == math.inf else f"{short(factor)} times"


def _span(low: float, high: float) -> str:
    return f"at least {short(low)} times" if high == math.inf else f"{short(low)} to {short(high)}"


def short(factor: float) -> str:
    """Two digits, and no powers of ten."""
    return f"{factor:.2g}" if factor < 100 else f"{factor:,.0f}"


def boundary_said(found: Row | None) -> str:
    """What one chain found."""
    if found is None:
        return "not decided yet"
    if found["kind"] == "between":
        return f"trains up to {found['low']:.3g}, not at {found['high']:.3g}"
    if found["kind"] == "above":
        return f"trains up to {found['low']:.3g}, the highest rate"
    return "stopped by a failed run" if found["kind"] == "stopped" else "none trained"


def trial_said(one: Row) -> str:
    """One training: how it ended, steps, final loss, where it broke."""
    parts = [f"{one['steps']} steps"] if one.get("steps") else []
    parts += [f"final loss {one['final_loss']:.3f}"] if one.get("final_loss") is not None else []
    parts += [f"broke at step {one['broke_at']}"] if one.get("broke_at") is not None else []
    return ", ".join([one["outcome"], *parts, *([one["error"]] if one.get("error") else [])])


def subtitle(content: Row) -> str:
    model, data, training = (content["base"][name] for name in ("model", "data", "training"))
    return (
        f"{model['layers']} layers, width {model['width']}, {model['heads']} heads; sequences of {data['length']}"
        f" ({data['level']} level), batch {training['batch']}, {training['optimizer']}; each training at most"
        f" {training['steps']} steps; seeds {', '.join(map(str, content['seeds']))}. Cost: {cost(content)}."
    )


def cost(content: Row) -> str:
    """`290 runs, 41,200 updates, 31 minutes of training on one thread each`."""
    spent = content["cost"]
    minutes = spent["seconds"] / 60
    time = f"{minutes:,.0f} minutes" if minutes >= 3 else f"{spent['seconds']:.0f} seconds"
    return f"{spent['runs']:,} runs, {spent['updates']:,} updates, {time} of training on one thread each"


def about_interval(content: Row) -> str:
    """What the interval is."""
    known = [place.level for place in places(content) if place.level is not None]
    n = max((level.n for level in known), default=0)
    if n < 2:
        return "the bracket of one seed, between the largest rate that trained and the smallest above it that did not."
    coverage = next(level.coverage for level in known if level.n == n) or 0
    return (
        "from the brackets' lower ends to their upper ends, by the bootstrap of the median over seeds;"
        f" of {n} seeds such an interval holds the median at most {coverage:.0%} of the time."
    )
