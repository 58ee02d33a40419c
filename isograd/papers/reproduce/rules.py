"""The rules that an item's row names: each takes the rows of its runs and what the row of the table says of it.

A rule is one of `judge`, or of what is judged in one paper alone. `Conditions` puts several together.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import correlation, fmean
from typing import Any

from isograd.errors import RecipeError, hint
from isograd.lab.statistics import exponent, median, median_interval
from isograd.papers.reproduce import judge
from isograd.papers.reproduce.item import Direction, Judgement, Ours, Row, Rows
from isograd.papers.reproduce.judge import by_seed, measured, of_arm


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Several conditions, all of which must hold.

    Args:
        conditions: name of a rule and its arguments; `where` (column -> value) takes some of the rows.
        beside: what is shown and not judged: arguments of `level`.
        counted: the reason counts the conditions that hold, and tells of the others alone.
    """

    conditions: Sequence[tuple[str, Mapping[str, Any]]]
    beside: Sequence[Mapping[str, Any]] = ()
    counted: bool = False

    def must_be_rules(self, item: str) -> None:
        """Refuse a rule that is not there, or arguments that it does not take: before the runs, not after them."""
        for name, given in self.conditions:
            if name not in RULES:
                raise RecipeError(f"{item}: unknown rule {name!r}; {hint(name, RULES)}")
            signature = inspect.signature(RULES[name])
            try:
                signature.bind([], **{str(key): value for key, value in given.items() if key != "where"})
            except TypeError as error:
                raise RecipeError(f"{item}: rule {name}: {error}; it takes {', '.join(signature.parameters)}") from None

    def __call__(self, rows: Rows) -> Judgement:
        found = []
        for name, given in self.conditions:
            own = _where(rows, **given.get("where", {}))
            found.append(RULES[name](own, **{key: value for key, value in given.items() if key != "where"}))
        whole = (judge.every if self.counted else judge.both)(*found)
        more = [one for given in self.beside for one in [level(rows, **given)] if one.n or not given.get("known")]
        return replace(whole, ours=(*whole.ours, *more))


def _where(rows: Rows, **where: object) -> list[Row]:
    return [row for row in rows if all(row.get(key) == value for key, value in where.items())]


def level(
    rows: Rows,
    column: str,
    arm: str = "",
    *,
    label: str = "",
    unit: str = "",
    where: Mapping[str, object] | None = None,
    less: str = "",
    known: bool = False,
) -> Ours:
    """The median of a column over seeds, of an arm or of all; a run that diverged has the worst value.

    Args:
        less: an arm of the same column, whose value with the same seed is taken away.
        known: left out where no row has it.
    """
    own = _where(rows, **(where or {}))
    of = of_arm(own, arm) if arm else own
    if less:
        mine, theirs = (by_seed(of_arm(own, name), column) for name in (arm, less))
        values = [mine[seed] - theirs[seed] for seed in mine if seed in theirs]
    elif len({row.get("seed") for row in of}) == len(of):
        values = [*by_seed(of, column).values()]
    else:  # several of a seed, such as one for each depth
        values = [float(row[column]) for row in of if row.get(column) is not None]
    return measured(label or f"{column.replace('_', ' ')}, {arm}", values, unit)


def column(
    rows: Rows, name: str, label: str, threshold: float, expect: judge.Side, arm: str = "", unit: str = ""
) -> Judgement:
    """Whether a column lies above (below) a threshold."""
    own = of_arm(rows, arm) if arm else rows
    values = [float(row[name]) for row in own if row.get(name) is not None]
    return judge.beyond(label, values, threshold, expect, unit)


def gap(rows: Rows, name: str, mine: str, theirs: str, most: float, label: str, unit: str = "nats") -> Judgement:
    """Whether two arms are less than so much apart with every seed."""
    a, b = (by_seed(of_arm(rows, arm), name) for arm in (mine, theirs))
    apart = [abs(a[seed] - b[seed]) for seed in a if seed in b]
    return judge.beyond(label, apart, most, "lower", unit)


def alike(rows: Rows, mine: str, theirs: str, within: float) -> Judgement:
    """The interval of the paired difference lies so near to zero; opposite where it lies beyond."""
    a, b = (by_seed(of_arm(rows, arm), "validation_loss") for arm in (mine, theirs))
    apart = [a[seed] - b[seed] for seed in a if seed in b]
    found = measured(f"validation loss, {mine} less {theirs}", apart, "nats")
    interval = median_interval(apart) if len(apart) > 1 else None
    verdict: Direction = "not seen"
    if interval and interval.low >= -within and interval.high <= within:
        verdict = "same direction"
    elif interval and (interval.low > within or interval.high < -within):
        verdict = "opposite"
    reason = f"{mine} the validation loss is {found.value or 0:+.3g} nats apart (n = {found.n})."
    return Judgement(verdict=verdict, reason=reason, ours=(found,))


def trains(rows: Rows, arms: Sequence[str]) -> Judgement:
    """Every run of these arms trains."""
    return judge.trains(rows, yes=arms)


FAR = 0.3  # nats


def fails(rows: Rows, arm: str, beside: str) -> Judgement:
    """No run of the arm trains, and its validation loss is above another arm's by more than 0.3 nats with every seed.

    So short a run that stays at token frequencies is undecided, not collapsed; "opposite": every run trains.
    """
    outcomes = [row["outcome"] for row in of_arm(rows, arm) if "outcome" in row]
    trained = outcomes.count("finished")
    apart = judge.paired(rows, "validation_loss", beside, arm, "lower", unit="nats", least=FAR)
    verdict: Direction = "not seen"
    if outcomes and trained == len(outcomes):
        verdict = "opposite"
    elif not trained and apart.verdict == "same direction":
        verdict = "same direction"
    reason = f"{arm} trains with {trained} of {len(outcomes)} seeds; {apart.reason}"
    counted = Ours(label=f"trains, {arm}", value=trained, n=len(outcomes), unit="runs")
    return Judgement(verdict=verdict, reason=reason, ours=(counted, *apart.ours))


def buckets(rows: Rows, mine: str, theirs: str, what: str) -> Judgement:
    """One arm above another in each range."""
    of: dict[str, list[Row]] = {}
    for row in rows:
        if "bucket" in row:
            of.setdefault(str(row["bucket"]), []).append(row)
    found = [judge.paired(own, "value", mine, theirs, "higher", what=what.format(name)) for name, own in of.items()]
    return judge.every(*found)


def begins(rows: Rows, arm: str, theirs: str, x: str, expect: judge.Side, what: str, unit: str = "") -> Judgement:
    """Where an effect begins: the first place on an axis from which on its interval leaves zero, to the axis' end."""
    own = sorted((row for row in rows if row.get("what") == "effect" and row["arm"] == arm), key=lambda row: row[x])
    sides = [judge.sided(row["low"], row["high"], expect) for row in own]
    last: Direction = sides[-1] if own else "not seen"
    side = expect if last == "same direction" else "higher" if expect == "lower" else "lower"
    since = next((row[x] for i, row in enumerate(own) if {*sides[i:]} == {last}), 0)
    seen = (
        f"{side} than {theirs} from {x} {since:,g} on" if last != "not seen" else f"not apart from {theirs} at the end"
    )
    ours = tuple(
        Ours(
            label=f"{what}, {arm} less {theirs}, {x} {row[x]:,g}",
            value=row["effect"],
            unit=unit,
            **{name: row[name] for name in ("n", "low", "high")},
        )
        for row in [*own[: -1 : max(1, len(own) // 4)], *own[-1:]]
    )
    return Judgement(verdict=last, reason=f"{what[:1].upper()}{what[1:]}: {arm} is {seen}.", ours=ours)


# ------------------------------------------------------------------------------------------------- of one paper alone


def bounded(rows: Rows, arms: Sequence[str], most: float) -> Judgement:
    """Xiong: delta at epsilon 0.1 of |x|², which the theorem asks for, over the targets of all seeds."""
    found = []
    for arm in arms:
        deltas = [row["delta_squares"] for row in of_arm(rows, arm, epsilon=0.1)]
        ours, pooled = measured(f"delta of {arm} at epsilon 0.1, by seed", deltas), fmean(deltas)
        above = ours.low is not None and ours.low > most
        verdict: Direction = "same direction" if pooled <= most else "opposite" if above else "not seen"
        reason = f"Delta of {arm} at epsilon 0.1 over the targets of all seeds: {pooled:.4g}; the paper's is {most}."
        found.append(Judgement(verdict=verdict, reason=reason, ours=(ours,)))
    return judge.both(*found)


def sooner(rows: Rows, mine: str, theirs: str) -> Judgement:
    """NormFormer: the share of the baseline's steps; of its time, and the gain in loss, beside it."""
    own = _where(rows, what="equal loss")
    steps, times = (
        [float(row[name]) for row in own if row.get(name) is not None] for name in ("share_of_steps", "share_of_time")
    )
    found = judge.beyond(f"steps to {theirs}'s final loss, as a share of its own", steps, 1.0, "lower")
    gain = judge.paired(rows, "validation_loss", mine, theirs, "lower", unit="nats")
    there = [share for share in steps if math.isfinite(share)]
    said = f"{theirs}'s final loss is reached with {len(there)} of {len(steps)} seeds"
    said += f", after {median(there):.2f} of its steps in the median of these" if there else ""
    time = measured(f"time to {theirs}'s final loss, as a share of its own", times)
    reason = f"{said}. {gain.reason[:1].upper()}{gain.reason[1:]}"
    return Judgement(verdict=found.verdict, reason=reason, ours=(*found.ours, time, *gain.ours))


def tuned(rows: Rows, mine: str, theirs: str, by: Sequence[int], least: float = 0.0) -> Judgement:
    """Each arm at its own best rate, which some seeds choose and the others judge.

    Args:
        mine, theirs: what the names of an arm at all its rates begin with, before ", lr ".
        by: the seeds that choose.
        least: as of `judge.paired`.
    """
    best = {}
    for name in (mine, theirs):
        losses = {
            arm: by_seed(of_arm(rows, arm), "validation_loss") for arm in dict.fromkeys(row["arm"] for row in rows)
        }
        own = {arm: of for arm, of in losses.items() if arm.startswith(f"{name}, lr ")}
        best[name] = min(own, key=lambda arm: median([own[arm].get(seed, math.inf) for seed in by]))
    others = [row for row in rows if row["seed"] not in by]
    return judge.paired(others, "validation_loss", best[mine], best[theirs], "lower", unit="nats", least=least)


def stable(rows: Rows, mine: str, theirs: str) -> Judgement:
    """NormFormer: both protocols; the ratio of the rates, seed by seed, beside the paper's."""
    found, ratios = [], []
    for protocol, words in (("rising", "rate at divergence"), ("constant", "largest constant rate")):
        own = _where(rows, what=protocol)
        said = judge.paired(own, "log_rate", mine, theirs, "higher", what=f"ln of the {words}")
        found.append(Judgement(verdict=said.verdict, reason=said.reason))
        a, b = (by_seed(of_arm(own, arm), "rate") for arm in (mine, theirs))
        ratios += [measured(f"{words}, {name}", [*of.values()]) for name, of in ((theirs, b), (mine, a))]
        ratios.append(measured(f"{words}, {mine} over {theirs}", [a[seed] / b[seed] for seed in a if seed in b]))
    return replace(judge.both(*found), ours=tuple(ratios))


def overhead(rows: Rows, mine: str, theirs: str, also: str) -> Judgement:
    """NormFormer: the step takes longer by the interval over rounds; the forecast of memory stands beside it."""
    steps = _where(rows, what="step")
    found = judge.paired(steps, "log_seconds", mine, theirs, "higher", what="ln of a step's CPU seconds")
    shares = [level(steps, "more_time", arm, label=f"more CPU time per step, {arm}", unit="%") for arm in (mine, also)]
    more = [
        Ours(label=f"more {what}, {row['size'].upper()}", value=row[name], unit="%", n=1)
        for what, name, kept in (
            ("parameters", "more_parameters", True),
            ("memory", "more_memory", True),
            ("memory without gradient checkpointing", "more_memory", False),
        )
        for row in _where(rows, what="size", arm=mine)
        if row["checkpointing"] is kept
    ]
    return replace(found, ours=(*shares, *more))


LEAST_FIT = 0.95  # of R^2
LAWS: dict[str, tuple[str, Callable[[float], float]]] = {  # ADMIN's, of N sublayers
    "Post-LN": ("a + b N", lambda n: n),
    "Pre-LN": ("a + b ln N", math.log),
    "ADMIN": ("a + b ln N", math.log),
}


def output_changes(rows: Rows) -> Judgement:
    """ADMIN: the laws fit, and Post-LN's change grows more than the others'; the exponents beside them."""
    found, shown = [], []
    for direction in ("random", "gradient"):
        growth: dict[str, list[float]] = {}
        for arm, (law, of) in LAWS.items():
            seeds = sorted({int(row["seed"]) for row in rows})
            curves = [_where(rows, direction=direction, arm=arm, seed=seed) for seed in seeds]
            growth[arm] = [curve[-1]["relative"] for curve in curves]
            found.append(_fit(f"R^2 of {law}, {arm}, {direction}", of, curves))
            powers = [exponent([at["sublayers"] for at in curve], [at["change"] for at in curve]) for curve in curves]
            shown.append(measured(f"p of change ~ N^p, {arm}, {direction}", powers))
        for arm in ("Pre-LN", "ADMIN"):
            ratios = [post / other for post, other in zip(growth["Post-LN"], growth[arm], strict=True)]
            label = f"growth from 6 to 96 sublayers, Post-LN over {arm}, {direction}"
            found.append(judge.beyond(label, ratios, 1.0, "higher"))
    whole = judge.every(*found)
    return replace(whole, ours=(*whole.ours, *shown))


def _fit(label: str, law: Callable[[float], float], curves: Sequence[Rows]) -> Judgement:
    """R^2 of a + b law(N) to the mean of the curves of all seeds."""
    x = [law(row["sublayers"]) for row in curves[0]]
    fit = correlation(x, [fmean(row["change"] for row in at) for at in zip(*curves, strict=True)]) ** 2
    return Judgement(
        verdict="same direction" if fit > LEAST_FIT else "not seen",
        reason=f"{label} is {fit:.3f}, against {LEAST_FIT}.",
        ours=(Ours(label=label, value=fit, n=len(curves)),),
    )


def vanishing(rows: Rows, layers: int, pairs: Mapping[str, Sequence[str]]) -> Judgement:
    """ADMIN: decoders of Post-LN alone lose a tenth or more per layer. (first / last)^(1 / (L - 1)) of each seed."""
    found = []
    for arm, pair in pairs.items():
        for stack, placement in zip(("encoder", "decoder"), pair, strict=True):
            vanishes = (stack, placement) == ("decoder", "post-ln")
            first = _where(rows, arm=arm, stack=stack, layers=layers, layer=1)
            values = [row["relative"] ** (1 / (layers - 1)) for row in first]
            label = f"gradient per layer going down, {stack} of {arm}"
            found.append(judge.beyond(label, values, 0.9, "lower" if vanishes else "higher"))
    return judge.every(*found)


def dependencies(rows: Rows) -> Judgement:
    """ADMIN: beta_ii^2 of the upper half of the encoder: Post-LN above Pre-LN, ADMIN below Post-LN."""
    found = []
    for when in ("init", "trained"):
        for other in ("Pre-LN", "ADMIN"):
            both = [row for row in rows if f"encoder {when}" in row]
            what = f"mean beta_ii^2 of the upper half, {'at initialization' if when == 'init' else when}"
            found.append(judge.paired(both, f"encoder {when}", "Post-LN", other, "higher", what=what))
    return judge.every(*found)


RULES: dict[str, Callable[..., Judgement]] = {
    "paired": judge.paired,
    **{
        rule.__name__: rule
        for rule in (column, gap, alike, trains, fails, buckets, begins, bounded, sooner, stable, overhead)
    },
    **{rule.__name__: rule for rule in (output_changes, vanishing, dependencies, tuned)},
}
