"""The page of the maximum stable learning rate: a map over warm-up, boundaries, every run. From headroom.json alone.

See `isograd.lab.study.headroom` for what stands in that file.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

from matplotlib.axes import Axes

from isograd.errors import UserError
from isograd.files import read_json, write_json, write_text
from isograd.lab.report import compared
from isograd.lab.report.compared import Compared
from isograd.lab.report.page import Page, Section, Table, csv_of_rows, page_in_words, settings_table, write_page
from isograd.lab.report.runs import ArmFiles, RunFiles
from isograd.lab.report.settings import settings, subtitle
from isograd.lab.report.style import (
    COLOURS,
    INK,
    Drawing,
    Look,
    Output,
    drawing,
    heading,
    is_first,
    label,
    log,
    look_of,
)
from isograd.lab.statistics import compare
from isograd.lab.study.boundary import Boundary, BoundaryInterval, RateSearch, RateVerdict, log_middle
from isograd.lab.study.labels import listed
from isograd.lab.train.tasks import DEFAULT, TASKS

Row = Mapping[str, Any]
HEADROOM = "headroom.json"
SAME = 1e-9  # rates nearer than this, relatively, are one


@dataclass(frozen=True, kw_only=True)
class Place:
    """A placement at a warm-up, with its chains; `level` is None where no chain has found a boundary."""

    placement: str
    warmup: int
    level: BoundaryInterval | None
    chains: Sequence[Row]

    def __str__(self) -> str:
        return f"{self.placement}, {self.warmup}"


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


def _level(row: Row | None) -> BoundaryInterval | None:
    """JSON has no infinity: an open end is null."""
    if row is None:
        return None
    ends = {name: math.inf if row[name] is None else row[name] for name in ("middle", "low", "high")}
    return BoundaryInterval(**ends, n=row["n"], coverage=row["coverage"])


def own(content: Row) -> tuple[str, float, int]:
    """The user's own placement, peak rate and warm-up."""
    base = content["base"]
    return base["model"]["placement"], base["training"]["lr"], base["training"]["warmup"]


def read_headroom(folder: Path) -> dict[str, Any]:
    """What a search has found so far.

    Raises:
        ValueError: there is no headroom.json, or it is not what `isograd study --find max-lr` writes.
        UserError: it is of an earlier version.
    """
    path = folder / HEADROOM
    try:
        content: dict[str, Any] = read_json(path)
        words = {one["verdict"]: None for chain in content["chains"] for one in chain["tried"]}
        if unknown := [word for word in words if word not in get_args(RateVerdict)]:
            raise UserError(f"{path}: verdict {unknown[0]!r} is of an earlier version of isograd; search again")
        RateSearch(**content["search"])
        _page(content, None)
        list(_results(content))
    except FileNotFoundError as error:
        raise ValueError(f"{folder}: no {HEADROOM} in it") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise ValueError(f"{path}: not what study --find max-lr writes ({type(error).__name__}: {error})") from error
    return content


def write_headroom(
    folder: Path, out: Path | None = None, title: str | None = None, output: Output | None = None
) -> Path:
    """Write report.html, the map, tables, results.csv and results.json, from headroom.json in `folder`.

    Args:
        out: where to; None: `report/` in the folder.
        output: of the figure's files.

    Returns:
        the path of the page.

    Raises:
        ValueError: as `read_headroom`.
    """
    content = read_headroom(folder)
    page = write_page(_page(content, title), (out or folder / "report") / "report.html", output)
    results = list(_results(content))
    write_json(page.with_name("results.json"), results)
    write_text(page.with_name("results.csv"), csv_of_rows(results))
    return page


def _page(content: Row, title: str | None) -> Page:
    search, arm = content["search"], _base(content)
    how = (
        f"{_SEARCH} between {search['low']:.3g} and {search['high']:.3g}, until its ends are at most"
        f" {search['precision']:g} times apart. {_VERDICTS}"
    )
    page = Page(
        title=title or "Maximum stable learning rate",
        headline=headline(content),
        warnings=list(oddities(content)),
        subtitle=f"{subtitle([arm], content['data'])} Cost: {cost(content)}.",
        sections=[
            Section(
                name="headroom",
                title="Runs and boundaries",
                sentence="Each mark is one run at that peak learning rate; seeds stand a little apart. Line: the"
                f" boundary, median over seeds. Band: {_about_interval(content)}",
                figure=partial(headroom_map, content),
                table=boundaries(content),
            ),
            Section(
                name="comparisons",
                title="Placements and warm-ups, seed by seed",
                table=compared.table(comparisons(content), "lower boundary by"),
                verdicts=verdicts(content),
                folded=True,
            ),
            Section(name="runs", title="Every run", sentence=how, table=_trials(content), folded=True),
            Section(
                name="settings",
                title="Settings and provenance",
                table=settings_table([("cost", cost(content)), *settings([arm], content["data"])]),
            ),
        ],
        made="Made by `study --find max-lr` from `headroom.json`. `results.csv` and `results.json`: a row per run.",
    )
    return page_in_words(page, TASKS[content["base"].get("task") or DEFAULT].words)


_SEARCH = (
    "A chain is a placement, a warm-up and a seed. It begins at your learning rate, goes up or down by factors of four"
    " until one rate trains and a larger one does not, and halves that bracket on the log scale,"
)
_VERDICTS = (
    "Each rate is a run of its own, from scratch, with the recipe's number of steps: a longer one may diverge later."
    " Finished: and did not diverge on the way. Diverged: a mean of ten losses lay 0.5 nat above the lowest before, or"
    " returned to the unigram entropy after it had been 0.10 nat below, or was not finite. Collapsed: at rest at the"
    " unigram entropy. Undecided: too few steps to tell. Slow: undecided below a rate that trains."
)


# -------------------------------------------------------------------------------------------------------------- tables


def boundaries(content: Row) -> Table:
    """A line per placement and warm-up."""
    _, rate, warmup = own(content)
    found = places(content)
    columns: dict[str, Callable[[Place], str]] = {
        "placement": lambda place: place.placement,
        "warm-up": lambda place: str(place.warmup),
        "boundary (LR)": lambda place: _end(place.level.middle, content) if place.level else "unknown",
        "interval": lambda place: (
            f"{_end(place.level.low, content)} to {_end(place.level.high, content)}" if place.level else ""
        ),
        "seeds": lambda place: f"{place.level.n if place.level else 0} of {len(place.chains)}",
        "your LR": lambda place: margin(place.level, rate) if place.warmup == warmup else "",
        "runs": lambda place: str(sum(len(chain["tried"]) for chain in place.chains)),
    }
    return Table.of(found, columns, looks=[look_of(place.placement) for place in found])


def _trials(content: Row) -> Table:
    """Every run, chain by chain, and what each chain found."""
    rows = [{**chain, **one} for chain in content["chains"] for one in sorted(chain["tried"], key=_rate_of)]
    columns: dict[str, Any] = {
        "placement": "placement",
        "warm-up": lambda row: str(row["warmup"]),
        "seed": lambda row: str(row["seed"]),
        "chain": lambda row: chain_said(row["boundary"]),
        "LR": lambda row: f"{row['lr']:.3g}",
        "verdict": "verdict",
        "steps": lambda row: str(row.get("steps") or ""),
        "final loss": lambda row: "" if row.get("final_loss") is None else f"{row['final_loss']:.3f}",
        "diverged at": "broke_at",
        "error": "error",
    }
    return Table.of(rows, columns, verdict="verdict", left=4)


def _rate_of(trial: Row) -> float:
    return float(trial["lr"])


def _end(rate: float, content: Row) -> str:
    """A rate of a level: `0.0031`, `none` or `above 1`."""
    if rate == 0:
        return "none"
    return f"above {content['search']['high']:.3g}" if rate == math.inf else f"{rate:.3g}"


def margin(level: BoundaryInterval | None, rate: float, where: str = "") -> str:
    """How far a rate is from the boundary.

    >>> level = BoundaryInterval(middle=3.1e-3, low=2.8e-3, high=3.5e-3, n=3, coverage=0.75)
    >>> margin(level, 1e-3, " the boundary"), margin(level, 6.2e-3), margin(level, 3e-3)
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
    return "far" if factor == math.inf else f"{_short(factor)} times"


def _span(low: float, high: float) -> str:
    return f"at least {_short(low)} times" if high == math.inf else f"{_short(low)} to {_short(high)}"


def _short(factor: float) -> str:
    """Two digits, and no powers of ten."""
    return f"{factor:.2g}" if factor < 100 else f"{factor:,.0f}"


def chain_said(found: Row | None) -> str:
    """What one chain found."""
    if found is None:
        return "not decided yet"
    if found["kind"] == "between":
        return f"trains up to {found['low']:.3g}, not at {found['high']:.3g}"
    if found["kind"] == "above":
        return f"trains up to {found['low']:.3g}, the highest rate"
    return "stopped by a failed run" if found["kind"] == "stopped" else "none trained"


def _base(content: Row) -> ArmFiles:
    """The recipe of all runs, once with each seed, at the rates that may be tried."""
    search, outcome = content["search"], {"provenance": content["provenance"]}
    training = content["base"]["training"] | {"lr": f"{search['low']:.3g} to {search['high']:.3g}"}
    base = content["base"] | {"training": training}
    return ArmFiles(label="", runs=[RunFiles(run=base | {"seed": seed}, outcome=outcome) for seed in content["seeds"]])


def cost(content: Row) -> str:
    """`290 runs, 41,200 updates, 31 minutes of training on one thread each`."""
    spent = content["cost"]
    minutes = spent["seconds"] / 60
    time = f"{minutes:,.0f} minutes" if minutes >= 3 else f"{spent['seconds']:.0f} seconds"
    return f"{spent['runs']:,} runs, {spent['updates']:,} updates, {time} of training on one thread each"


def _about_interval(content: Row) -> str:
    known = [place.level for place in places(content) if place.level is not None]
    n = max((level.n for level in known), default=0)
    if n < 2:
        return "the bracket of one seed, between the largest rate that trained and the smallest above it that did not."
    coverage = next(level.coverage for level in known if level.n == n) or 0
    return (
        "from the brackets' lower ends to their upper ends, by the bootstrap of the median over seeds;"
        f" of {n} seeds such an interval covers the median at most {coverage:.0%} of the time."
    )


def _results(content: Row) -> Iterator[dict[str, Any]]:
    """A row per run."""
    for chain in content["chains"]:
        who = {name: chain[name] for name in ("placement", "warmup", "seed")}
        found = chain["boundary"] or {}
        ends = {"boundary": found.get("kind"), "boundary_low": found.get("low"), "boundary_high": found.get("high")}
        for one in chain["tried"]:
            names = ("lr", "verdict", "outcome", "steps", "final_loss", "broke_at", "seconds", "cell", "error")
            yield who | {name: one.get(name) for name in names} | ends


# ----------------------------------------------------------------------------------------------------------- sentences


def headline(content: Row) -> str:
    """Whether all is decided, and the user's own margin."""
    open_ends = sum(chain["boundary"] is None for chain in content["chains"])
    many = f"{open_ends} of {len(content['chains'])} chains are not decided yet. " if open_ends else ""
    placement, rate, warmup = own(content)
    here = [place for place in places(content) if place.warmup == warmup]
    if not here:
        return f"{many}Your warm-up of {warmup} was not tried; LR {rate:g} has no margin here."
    known = [place for place in here if place.level is not None]
    mine = next((place.level for place in known if place.placement == placement), None)
    if mine is None:
        others = ", ".join(f"{place.placement} {margin(place.level, rate)}" for place in known)
        said = f"Your LR {rate:g} with warm-up {warmup}, against the boundaries: {others}." if known else ""
        return many + (said or f"No boundary is known yet at your warm-up of {warmup}.")
    where = f", which is {_end(mine.middle, content)}" if mine.middle else ""
    said = margin(mine, rate, f" the boundary of {placement}")
    return f"{many}Your LR {rate:g} with warm-up {warmup} is {said}{where} (n = {mine.n})."


def comparisons(content: Row) -> list[Compared]:
    """At each warm-up every two placements, of each placement every two warm-ups: against the higher boundary."""
    known = [place for place in places(content) if place.level is not None]
    groups = [
        *([p for p in known if p.warmup == warmup] for warmup in content["warmups"]),
        *([p for p in known if p.placement == name] for name in content["placements"]),
    ]
    pairs = [pair for group in groups for pair in combinations(sorted(group, key=_height), 2)]
    found = [
        Compared(
            mine=other.placement if best.warmup == other.warmup else f"warm-up {other.warmup}",
            theirs=best.placement if best.warmup == other.warmup else f"warm-up {best.warmup}",
            where=f"warm-up {best.warmup}" if best.warmup == other.warmup else best.placement,
            found=compare(_by_seed(other), _by_seed(best)),
            size=_ratio(best, other),
        )
        for best, other in pairs
    ]
    return compared.corrected(found)


def verdicts(content: Row) -> list[str]:
    """Of all others against what is highest under each condition."""
    found = comparisons(content)
    highest = {one.where: one.theirs for one in reversed(found)}
    return list(compared.verdicts([one for one in found if one.theirs == highest[one.where]], _WORDS, found))


_WORDS = {  # higher: its median is below, but seeds that differ by little outweigh it
    "lower": "lower boundary than",
    "higher": "by its seeds a higher boundary than",
}


def findings(content: Row) -> list[str]:
    """The user's margin, verdicts, and what is odd."""
    return [headline(content), *verdicts(content), *oddities(content)]


def _height(place: Place) -> float:
    return -place.level.middle if place.level else 0.0


def _by_seed(place: Place) -> dict[int, float]:
    """The logarithm of each chain's boundary."""
    found = {chain["seed"]: chain["boundary"] for chain in place.chains if chain["boundary"] is not None}
    ends = {seed: Boundary(kind=one["kind"], low=one["low"], high=one["high"]) for seed, one in found.items()}
    return {seed: middle for seed, one in ends.items() if (middle := log_middle(one)) is not None}


def _ratio(best: Place, other: Place) -> str:
    """How many times it is above the other; where it is open, at least."""
    assert best.level is not None and other.level is not None
    top, middle = best.level, other.level.middle
    if middle == 0:
        return "none trains"
    if middle == math.inf:
        return "open, too"
    known = top.low if top.middle == math.inf else top.middle
    return f"{'at least ' if top.middle == math.inf else ''}{_short(known / middle)} times"


def oddities(content: Row) -> Iterator[str]:
    """Chains that are not monotone, stopped, or never decided."""
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
        yield f" is not monotone: diverged at {_rates(found['under'])}, below rates that trained."
    at_end = next((one["verdict"] for one in chain["tried"] if one["lr"] == found["high"]), None)
    if found["kind"] == "between" and at_end in ("undecided", "slow"):
        yield f": {found['high']:.3g} is undecided; with more training.steps its boundary may lie higher."
    if found["kind"] == "stopped":
        failed = next(one for one in chain["tried"] if one["verdict"] == "failed")
        yield f" stopped: the run at {failed['lr']:.3g} failed ({failed.get('error', 'unknown error')})."
    if found["kind"] == "none":
        yield f": {_none(found)}"


def _none(found: Row) -> str:
    if found["high"] is None:
        return f"too slow to tell at every rate up to {found['low']:.3g}; more steps are needed."
    if found["low"] is None:
        return f"none trained, and {found['high']:.3g} was the lowest rate; noise of 0.5 nat counts as a divergence."
    return f"none trained; {found['low']:.3g} is too slow to tell, {found['high']:.3g} too large."


def _rates(rates: Sequence[float]) -> str:
    return listed([f"{rate:.3g}" for rate in rates])


# ----------------------------------------------------------------------------------------------------------------- map

_BAD: Look = {"markeredgecolor": INK, "color": INK}
_MARKS: dict[str, Look] = {  # differ in form, too; what trained has the placement's colour
    "finished": {"marker": "o", "markersize": 3.4, "label": "finished"},
    "diverged": {"marker": "x", "markersize": 4.2, "label": "diverged", **_BAD},
    "collapsed": {"marker": "_", "markersize": 5.5, "markeredgewidth": 1.6, "label": "collapsed", **_BAD},
    "undecided": {"marker": "s", "markersize": 3.6, "markerfacecolor": "none", "label": "undecided", **_BAD},
    "slow": {"marker": "v", "markersize": 3.6, "markerfacecolor": "none", "label": "too slow to tell", **_BAD},
}


def headroom_map(content: Row) -> Drawing:
    """Every run as a mark, the boundary over seeds as a line in its band, the user's own setting as a star."""
    by_name: dict[str, list[Place]] = {}
    for place in places(content):
        by_name.setdefault(place.placement, []).append(place)
    drawn = drawing(len(by_name), height=3.4, sharey=True, beside=min(3, len(by_name)))
    rates = [one["lr"] for chain in content["chains"] for one in chain["tried"]] + [own(content)[1]]
    low, high = min(rates) / 1.7, max(rates) * 1.7
    warmups = sorted(content["warmups"])
    reach = (warmups[-1] - warmups[0]) or max(warmups[-1], 10)
    for axes, (name, mine) in zip(drawn.panels, by_name.items(), strict=True):
        heading(axes, name)
        colour = look_of(name)["color"]
        _region(axes, [(place, place.level) for place in mine if place.level is not None], colour, reach, low, high)
        for place in mine:
            _marks(axes, place, colour, reach / 60)
        _star(axes, mine, content)
        label(axes, "warm-up (steps)", "peak learning rate" if is_first(axes) else "")
        log(axes)
        axes.set_ylim(low, high)
        axes.set_xlim(warmups[0] - 0.08 * reach, warmups[-1] + 0.08 * reach)
        axes.set_xticks(warmups)
    return drawn


def _region(
    axes: Axes, known: Sequence[tuple[Place, BoundaryInterval]], colour: str, reach: float, low: float, high: float
) -> None:
    """What trains, up to the boundary; of a single warm-up a step as wide as the panel."""
    if not known:
        return
    aside = (-0.08 * reach, 0.08 * reach) if len(known) == 1 else (0.0,)
    points = [(place.warmup + step, place, level) for place, level in known for step in aside]
    x = [at for at, _, _ in points]
    middle, below, above = (
        [min(max(getattr(level, name), low), high) for _, _, level in points] for name in ("middle", "low", "high")
    )
    floor = [min(max(_too_slow(place, level), low), high) for _, place, level in points]
    upper = [max(pair) for pair in zip(floor, middle, strict=True)]
    axes.fill_between(x, floor, upper, color=colour, alpha=0.13, linewidth=0, label="trains")
    axes.fill_between(x, below, above, color=colour, alpha=0.22, linewidth=0, label="interval of the boundary")
    axes.plot(x, middle, color=colour, linewidth=1.8, label="boundary, median over seeds", zorder=3)
    for place, level in known:
        if level.middle in (0, math.inf):
            up = level.middle > 0
            look: Look = {"color": colour, "markersize": 7, "linestyle": "none", "zorder": 5}
            axes.plot([place.warmup], [high / 1.12 if up else low * 1.12], marker="^" if up else "v", **look)


def _too_slow(place: Place, level: BoundaryInterval) -> float:
    """The largest rate that was too slow below the boundary; what lies under it was not seen to train."""
    slow = (one["lr"] for chain in place.chains for one in chain["tried"] if one["verdict"] == "slow")
    return max((rate for rate in slow if rate < level.low), default=0)


def _marks(axes: Axes, place: Place, colour: str, apart: float) -> None:
    """Seeds a little apart from each other."""
    for i, chain in enumerate(place.chains):
        x = place.warmup + apart * (i - (len(place.chains) - 1) / 2)
        for one in chain["tried"]:
            if (look := _MARKS.get(one["verdict"])) is not None:
                axes.plot([x], [one["lr"]], linestyle="none", zorder=4, **(Look(color=colour) | look))


def _star(axes: Axes, mine: Sequence[Place], content: Row) -> None:
    """The user's own setting, with its margin where that warm-up was tried."""
    _, rate, warmup = own(content)
    look: Look = {"marker": "*", "markersize": 12, "color": COLOURS[4], "markeredgecolor": INK}
    axes.plot([warmup], [rate], linestyle="none", zorder=6, markeredgewidth=0.8, label="your setting", **look)
    level = next((place.level for place in mine if place.warmup == warmup), None)
    if level is not None:
        right = warmup <= sum(axes.get_xlim()) / 2
        text = re.sub(r" \(.*?\)", "", margin(level, rate)).replace(" times", "×")
        where: dict[str, Any] = {"textcoords": "offset points", "ha": "left" if right else "right", "zorder": 7}
        axes.annotate(text, (warmup, rate), (8 if right else -8, -12), fontsize="medium", color=INK, **where)
