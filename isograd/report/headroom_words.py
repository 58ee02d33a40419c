"""What a search for the largest rate that trains has found, in words: a line of a table each, and sentences.

Reads the content of headroom.json (see `isograd.study.headroom`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isograd.study.boundary import Level

Row = Mapping[str, Any]
HEADER = ("placement", "warm-up", "trains up to LR", "interval", "seeds", "your LR", "runs")


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
    return [
        (
            place.placement,
            str(place.warmup),
            middle_of(place.level, content),
            interval_of(place.level, content),
            f"{place.level.n if place.level else 0} of {len(place.chains)}",
            margin_of(place.level, own(content)[1]) if place.warmup == own(content)[2] else "",
            str(sum(len(chain["tried"]) for chain in place.chains)),
        )
        for place in places(content)
    ]


def middle_of(level: Level | None, content: Row) -> str:
    if level is None:
        return "unknown"
    return _end(level.middle, content, f"none")


def interval_of(level: Level | None, content: Row) -> str:
    if level is None:
        return ""
    return f"{_end(level.low, content, 'none')} to {_end(level.high, content, 'none')}"


def _end(rate: float, content: Row, none: str) -> str:
    if rate == 0:
        return none
    return f"above {content['search']['high']:.3g}" if rate == math.inf else f"{rate:.3g}"


def margin_of(level: Level | None, rate: float) -> str:
    """How far the user's rate is from the boundary: `3.1 x below (2.8 to 3.5)`."""
    if level is None:
        return "unknown"
    if level.low >= rate * (1 - 1e-9):
        return f"{_times(level.middle / rate)} below ({_span(level.low / rate, level.high / rate)})"
    if level.high <= rate * (1 + 1e-9):
        if level.middle == 0:
            return f"more than {_times(rate / level.high)} above"
        return f"{_times(rate / level.middle)} above ({_span(rate / level.high, _over(rate, level.low))})"
    return "within the interval"


def _over(rate: float, end: float) -> float:
    return rate / end if end else math.inf


def _times(factor: float) -> str:
    return "far" if factor == math.inf else f"{factor:.2g} ×" if factor < 100 else f"{factor:,.0f} ×"


def _span(low: float, high: float) -> str:
    return f"at least {low:.2g}" if high == math.inf else f"{low:.2g} to {high:.2g}"


def findings(content: Row) -> list[str]:
    """The user's own setting, placements at each warm-up, warm-ups of each placement, and what is odd."""
    return [*_own(content), *_by_warmup(content), *_by_placement(content), *oddities(content)]


def _own(content: Row) -> Iterator[str]:
    placement, rate, warmup = own(content)
    here = [place for place in places(content) if place.warmup == warmup]
    here.sort(key=lambda place: place.placement != placement)
    if not here:
        yield f"Your warm-up of {warmup} was not tried: add it to --warmups to see the margin of your LR {rate:g}."
    for place in here:
        mine = "your LR" if place.placement == placement else "at your LR"
        yield f"{place.placement}, warm-up {warmup}: {mine} {rate:g} is {_margin_said(place.level, rate, content)}."


def _margin_said(level: Level | None, rate: float, content: Row) -> str:
    if level is None:
        return "not placed: no chain has found a boundary"
    n, trains = f"(n = {level.n})", f"{middle_of(level, content)} [{interval_of(level, content)}]"
    if level.low >= rate * (1 - 1e-9):
        where = "below the boundary"
    elif level.high <= rate * (1 + 1e-9):
        where = "above the boundary, where nothing trains"
    else:
        return f"within the interval of the boundary, {trains} {n}"
    return f"{margin_of(level, rate).replace('below', where).replace('above', where)}, {trains} {n}"


def _by_warmup(content: Row) -> Iterator[str]:
    """At each warm-up the placement that bears most, unless intervals overlap."""
    for warmup in content["warmups"]:
        known = [(p.placement, p.level) for p in places(content) if p.warmup == warmup and p.level is not None]
        if len(known) > 1:
            yield f"Warm-up {warmup}: {_most(known, 'bears')}"


def _by_placement(content: Row) -> Iterator[str]:
    for placement in content["placements"]:
        known = [
            (f"warm-up {p.warmup}", p.level)
            for p in places(content)
            if p.placement == placement and p.level is not None
        ]
        if len(known) > 1:
            yield f"{placement}: {_most(known, 'lets it bear')}"


def _most(known: Sequence[tuple[str, Level]], verb: str) -> str:
    """Whoever bears the largest rate, with those whose intervals overlap its own; then the others."""
    (best, top), *others = sorted(known, key=lambda one: -one[1].middle)
    near = [name for name, level in others if level.overlaps(top)]
    below = [(name, level) for name, level in others if not level.overlaps(top)]
    n = min(level.n for _, level in known)
    said = f"no difference seen (n = {n}) between {_listed([best, *near])}" if near else f"{best} {verb} the largest LR"
    parts = [f"{name} {_ratio(top, level)}" for name, level in below]
    return f"{said}{'; below, intervals apart: ' if parts else ''}{', '.join(parts)}."


def _ratio(top: Level, level: Level) -> str:
    """How many times less; where the top is open, at least."""
    if level.middle == 0:
        return "(none trained)"
    known = top.low if top.middle == math.inf else top.middle
    return f"({'at least ' if top.middle == math.inf else ''}{known / level.middle:.2g} times)"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def oddities(content: Row) -> Iterator[str]:
    """Chains that are not monotone, stopped, or never told."""
    for chain in content["chains"]:
        found = chain["boundary"]
        who = f"{chain['placement']}, warm-up {chain['warmup']}, seed {chain['seed']}"
        if found is None:
            yield f"{who}: not decided yet."
            continue
        if found["again"]:
            rates = _listed([f"{rate:.3g}" for rate in found["again"]])
            yield f"{who} is not monotone: trained again at {rates}, above {found['high']:.3g}, where it did not."
        if found["under"]:
            rates = _listed([f"{rate:.3g}" for rate in found["under"]])
            yield f"{who} is not monotone: broke at {rates}, below rates that trained."
        if found["kind"] == "stopped":
            failed = next(one for one in chain["tried"] if one["verdict"] == "failed")
            yield f"{who} stopped: the run at {failed['lr']:.3g} failed ({failed.get('error', 'no more is known')})."
        if found["kind"] == "none" and found["high"] is None:
            yield f"{who}: too slow to tell at every rate up to {found['low']:.3g}; take more steps."
        elif found["kind"] == "none" and found["low"] is not None:
            yield f"{who}: none trained; {found['low']:.3g} is too slow to tell, {found['high']:.3g} too large."


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
    """One training: steps, final loss, where it broke."""
    parts = [f"{one['steps']} steps"] if one.get("steps") else []
    parts += [f"final loss {one['final_loss']:.3f}"] if one.get("final_loss") is not None else []
    parts += [f"broke at step {one['broke_at']}"] if one.get("broke_at") is not None else []
    return ", ".join([one["outcome"], *parts, *([one["error"]] if one.get("error") else [])])


def lead(content: Row) -> str:
    """The first thing to know: the user's own margin, else how much was searched."""
    decided = sum(chain["boundary"] is not None for chain in content["chains"])
    many = f"{decided} of {len(content['chains'])} chains are decided. " if decided < len(content["chains"]) else ""
    first = next(_own(content))
    return f"{many}{first[0].upper()}{first[1:]}"


def subtitle(content: Row) -> str:
    model, data, training = (content["base"][name] for name in ("model", "data", "training"))
    return (
        f"{model['layers']} layers, width {model['width']}, {model['heads']} heads; sequences of {data['length']}"
        f" ({data['level']} level), batch {training['batch']}, {training['optimizer']}; each training at most"
        f" {training['steps']} steps; seeds {', '.join(map(str, content['seeds']))}. Cost: {cost(content)}."
    )


def interval_said(content: Row) -> str:
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


def cost(content: Row) -> str:
    """`290 runs, 41,200 updates, 31 CPU minutes`."""
    spent = content["cost"]
    minutes = spent["seconds"] / 60
    time = f"{minutes:.0f} CPU minutes" if minutes >= 3 else f"{spent['seconds']:.0f} CPU seconds"
    return f"{spent['runs']:,} runs, {spent['updates']:,} updates, {time}"
