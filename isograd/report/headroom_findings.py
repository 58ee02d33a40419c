"""What a headroom map says, in sentences; no winner where intervals overlap."""

import math
from collections.abc import Iterator, Sequence

from isograd.report.headroom_words import Row, end_said, margin_said, own, places, short
from isograd.study.boundary import Level
from isograd.study.paired import FEWEST


def findings(content: Row) -> list[str]:
    """The user's own setting, placements at each warm-up, warm-ups of each placement, and what is odd."""
    return [*_own(content), *_by_warmup(content), *_by_placement(content), *oddities(content)]


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


def _by_warmup(content: Row) -> Iterator[str]:
    """At each warm-up the placement that bears most, unless intervals overlap."""
    for warmup in content["warmups"]:
        known = [(p.placement, p.level) for p in places(content) if p.warmup == warmup and p.level is not None]
        if len(known) > 1:
            yield f"Warm-up {warmup}: {_most(known, 'bears the largest LR')}"


def _by_placement(content: Row) -> Iterator[str]:
    for placement in content["placements"]:
        mine = [place for place in places(content) if place.placement == placement]
        known = [(f"warm-up {place.warmup}", place.level) for place in mine if place.level is not None]
        if len(known) > 1:
            yield f"{placement}: {_most(known, 'lets it bear the largest LR')}"


def _most(known: Sequence[tuple[str, Level]], bears: str) -> str:
    """Whoever bears most, or those that cannot be told from it; then those whose intervals are apart from its own."""
    (best, top), *others = sorted(known, key=lambda one: -one[1].middle)
    near = [name for name, level in others if level.overlaps(top)]
    less = [f"{name} {_ratio(top, level)}" for name, level in others if not level.overlaps(top)]
    n = min(level.n for _, level in known)
    if n < FEWEST:
        return f"highest {best}, but {'one seed tells' if n == 1 else f'{n} seeds tell'} no difference."
    said = f"no difference seen (n = {n}) between {_listed([best, *near])}" if near else f"{best} {bears} (n = {n})"
    return f"{said}{f'; less, intervals apart from that of {best}: ' if less else ''}{', '.join(less)}."


def _ratio(top: Level, level: Level) -> str:
    """How many times less; where the top is open, at least."""
    if level.middle == 0:
        return "(none trains)"
    known = top.low if top.middle == math.inf else top.middle
    return f"({'at least ' if top.middle == math.inf else ''}{short(known / level.middle)} times)"


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
    if found["kind"] == "stopped":
        failed = next(one for one in chain["tried"] if one["verdict"] == "failed")
        yield f" stopped: the run at {failed['lr']:.3g} failed ({failed.get('error', 'no more is known')})."
    if found["kind"] == "none":
        yield f": {_none(found)}"


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
