"""What a headroom map says, in sentences; no winner but by the rule of `isograd.statistics`."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

from isograd.report.headroom_words import Place, Row, end_said, margin_said, own, places, short
from isograd.statistics import Comparison, caution, compare, side_by_side
from isograd.study.boundary import Boundary, log_middle


def findings(content: Row) -> list[str]:
    """The user's own setting, placements at each warm-up, warm-ups of each placement, and what is odd."""
    return [*_own(content), *_compared(content), *oddities(content)]


def lead(content: Row) -> str:
    """What to know first: whether all is decided, and the user's own margin."""
    open_ends = sum(chain["boundary"] is None for chain in content["chains"])
    many = f"{open_ends} of {len(content['chains'])} chains are not decided yet. " if open_ends else ""
    return many + next(_own(content))


def _own(content: Row) -> Iterator[str]:
    placement, rate, warmup = own(content)
    here = [place for place in places(content) if place.warmup == warmup]
    if not here:
        yield f"Your warm-up of {warmup} is not among those tried; LR {rate:g} has no margin here."
        return
    mine = next((place.level for place in here if place.placement == placement), None)
    if mine is not None:
        margin = margin_said(mine, rate, f" the boundary of {placement}")
        where = f", which is {end_said(mine.middle, content)}" if mine.middle else ""
        yield f"Your LR {rate:g} with warm-up {warmup} is {margin}{where} (n = {mine.n})."
    others = [place for place in here if place.placement != placement and place.level is not None]
    said = [f"{place.placement} {margin_said(place.level, rate)}" for place in others]
    if said:
        which = "The same setting" if mine is not None else f"Your LR {rate:g} with warm-up {warmup}"
        yield f"{which}, against {'other' if mine is not None else 'the'} boundaries: {', '.join(said)}."
    elif mine is None:
        yield f"No boundary is known yet at your warm-up of {warmup}."


def _compared(content: Row) -> Iterator[str]:
    """At each warm-up the placement of the highest boundary, for each placement its warm-up, against all others."""
    groups = [
        *((f"Warm-up {w}", "placement", [p for p in places(content) if p.warmup == w]) for w in content["warmups"]),
        *((who, "warmup", [p for p in places(content) if p.placement == who]) for who in content["placements"]),
    ]
    known = [(said, by, _sorted(group)) for said, by, group in groups if len(_sorted(group)) > 1]
    pairs = [pair for _, _, group in known for pair in combinations(group, 2)]
    found = side_by_side([compare(_by_seed(one), _by_seed(other)) for one, other in pairs])
    of = {(_who(one), _who(other)): result for (one, other), result in zip(pairs, found, strict=True)}
    for said, by, (best, *others) in known:
        yield f"{said}: {_most(best, [(other, of[_who(best), _who(other)]) for other in others], by)}."
    yield from filter(None, [caution(found)])


def _sorted(group: Sequence[Place]) -> list[Place]:
    """Those with a boundary, the highest first."""
    return sorted((p for p in group if p.level is not None), key=lambda p: -p.level.middle if p.level else 0.0)


def _by_seed(place: Place) -> dict[int, float]:
    """The logarithm of each chain's boundary."""
    found = {chain["seed"]: chain["boundary"] for chain in place.chains if chain["boundary"] is not None}
    ends = {seed: Boundary(kind=one["kind"], low=one["low"], high=one["high"]) for seed, one in found.items()}
    return {seed: middle for seed, one in ends.items() if (middle := log_middle(one)) is not None}


def _who(place: Place) -> tuple[str, int]:
    return place.placement, place.warmup


def _most(best: Place, others: Sequence[tuple[Place, Comparison]], by: str) -> str:
    """Whose boundary is the highest, and of each other one what the rule says."""
    name = {"placement": lambda p: p.placement, "warmup": lambda p: f"warm-up {p.warmup}"}[by]
    groups: dict[str, list[str]] = {}
    for other, found in others:
        few = found.verdict == "too few seeds" and found.count_said()
        counted = f", {found.count_said()}" if few else ""
        groups.setdefault(found.verdict, []).append(f"{name(other)} ({_ratio(best, other)}{counted})")
    said = [f"{_WORDS[verdict]} {', '.join(whom)}" for verdict, whom in groups.items()]
    n = best.level.n if best.level else 0
    return "; ".join([f"highest {name(best)} (n = {n})", *said])


_WORDS = {
    "higher": "above",
    "lower": "by its seeds below",  # its median is above: seeds that differ by little outweigh it
    "no difference seen": "no difference seen from",
    "too few seeds": "too few seeds for a verdict against",
}


def _ratio(best: Place, other: Place) -> str:
    """How many times it is above the other; where it is open, at least."""
    assert best.level is not None and other.level is not None
    top, middle = best.level, other.level.middle
    if middle == 0:
        return "none trains"
    if middle == math.inf:
        return "open, too"
    known = top.low if top.middle == math.inf else top.middle
    return f"{'at least ' if top.middle == math.inf else ''}{short(known / middle)} times"


def oddities(content: Row) -> Iterator[str]:
    """Chains that are not monotone, stopped, or never told."""
    for chain in content["chains"]:
        who = f"{chain['placement']}, warm-up {chain['warmup']}, seed {chain['seed']}"
        yield from (f"{who}{said}" for said in _odd(chain))


def _odd(chain: Row) -> Iterator[str]:
    found = chain["boundary"]
    if found is None:
        yield ": not decided yet."
        return
    if found["again"]:
        yield f" is not monotone: trained again at {_rates(found['again'])}, above {found['high']:.3g}, which did not."
    if found["under"]:
        yield f" is not monotone: broke at {_rates(found['under'])}, below rates that trained."
    if found["kind"] == "between" and _verdict_at(chain, found["high"]) in ("undecided", "slow"):
        yield f": {found['high']:.3g} is undecided; with more training.steps its boundary may lie higher."
    if found["kind"] == "stopped":
        failed = next(one for one in chain["tried"] if one["verdict"] == "failed")
        yield f" stopped: the run at {failed['lr']:.3g} failed ({failed.get('error', 'no more is known')})."
    if found["kind"] == "none":
        yield f": {_none(found)}"


def _verdict_at(chain: Row, rate: float) -> str | None:
    return next((one["verdict"] for one in chain["tried"] if one["lr"] == rate), None)


def _none(found: Row) -> str:
    if found["high"] is None:
        return f"too slow to tell at every rate up to {found['low']:.3g}; more steps are needed."
    if found["low"] is None:
        return f"none trained, and {found['high']:.3g} was the lowest rate; a loss as noisy as 0.5 nat breaks at any."
    return f"none trained; {found['low']:.3g} is too slow to tell, {found['high']:.3g} too large."


def _rates(rates: Sequence[float]) -> str:
    return _listed([f"{rate:.3g}" for rate in rates])


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
