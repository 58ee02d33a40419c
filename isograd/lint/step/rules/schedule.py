"""The schedule of the rate, simulated to the end of the run."""

import itertools
import math
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from isograd.errors import many
from isograd.lint.step.rates import Course, course
from isograd.lint.step.seen import Results, Seen, finding

EARLY = 0.25  # of a run that is left when the rate is gone
GONE = 0.01  # of the peak


def look(seen: Seen) -> Results:
    """All of the schedule."""
    rates = [max(s.rates) for s in seen.steps if not any(map(math.isnan, s.rates))]
    ours = [s for s in seen.schedulers if isinstance(s, LRScheduler)]
    if not ours:
        if rates and max(rates) == 0:
            yield finding(
                "lr-zero",
                "error",
                f"the rate is 0 in the first {len(rates)} updates",
                "set lr, or step the schedule",
                0.0,
            )
        elif rates:
            yield (
                f"constant at {rates[-1]:.3g}"
                if len(set(rates)) == 1
                else f"set by the loop: {rates[0]:.3g} to {rates[-1]:.3g} in the first updates"
            )
        return
    for scheduler in ours:
        yield from _one(seen, scheduler)


def per_update(seen: Seen, scheduler: Any) -> float:
    """How many times a schedule was stepped in an update."""
    updates = max(1, seen.updates)
    return sum(s is scheduler for _, s, _ in seen.record.scheduled) / updates


def _one(seen: Seen, scheduler: Any) -> Results:
    setup, times = seen.setup, per_update(seen, scheduler)
    steps, name = setup.steps, type(scheduler).__name__
    if isinstance(scheduler, ReduceLROnPlateau):
        yield f"{name}: its rates depend on what is measured in the run"
        return
    if times == 0:
        yield from _not_stepped(seen, scheduler)
        return
    if times > 1.5 and steps and steps > 1 and _lasts(course(scheduler, steps * round(times)), steps, round(times)):
        yield f"{name}, stepped {times:.0f} times in an update, and long enough for that: it lasts to the end"
        return
    if times > 1.5:
        what = f"{times:.0f} times in an update"
        if round(times) == setup.accumulate or setup.kind != "loop":
            what += f" of {round(times)} micro-batches"
        yield finding(
            "schedule-per-batch",
            "error",
            f"{name} is stepped {what}: it is over after 1/{times:.0f} of its steps",
            "step it once, after optimizer.step()",
            times,
        )
        return
    if not steps or steps < 2:
        yield f"{name}, stepped once per update; give steps= to see its whole course"
        return
    made = next(c for s, c in seen.courses if s is scheduler)
    if made.peak <= 0:
        yield finding(
            "lr-zero", "error", f"{name} keeps the rate at 0 throughout", "look at its factors and its lr", 0.0
        )
        return
    if made.ended is not None and made.ended[0] < steps - 2:
        yield finding(
            "schedule-ends-early",
            "error",
            f"{name} cannot be stepped after update {made.ended[0]:,} of {steps:,}: {made.ended[1]}",
            f"build it for {steps:,} steps",
            made.ended[0] / steps,
        )
        return
    yield from _course(made, name, steps, scheduler)


def _course(made: Course, name: str, steps: int, scheduler: Any) -> Results:
    rates, peak = made.rates[:steps], made.peak
    last = next((i for i in range(len(rates) - 1, -1, -1) if rates[i] > GONE * peak), 0)
    lands = 2 * (rates[-1] - min(rates)) < rates[-2] - rates[-1]  # cycles that end at the lowest rate are meant
    rising = all(b >= a for a, b in itertools.pairwise(rates)) and rates[-1] > 1.05 * rates[0]
    if rising and rates[-1] > rates[int(0.9 * len(rates)) - 1] * 1.001:
        yield finding(
            "warmup-too-long",
            "error",
            f"{name} still rises at the end: after {steps:,} updates the rate is {rates[-1]:.3g}",
            "give the warm-up in updates, a few percent of the run",
            rates[-1],
        )
    elif len(rates) - 1 - last > EARLY * steps:
        yield finding(
            "schedule-ends-early",
            "warning",
            f"{name} is below 1% of its peak from update {last + 1:,} of {steps:,} on",
            f"build it for {steps:,} steps",
            (last + 1) / steps,
        )
    elif (length := _length(scheduler)) and length < steps and (turns := _turns(rates, peak)) and not lands:
        message = f"{name} is built for {length:,} steps and stepped {steps:,} times: the rate falls and rises again"
        message += f" {many(turns, 'time')}, and ends at {rates[-1] / peak:.0%} of its peak"
        remedy = f"build it for {steps:,} steps; if it is stepped once per epoch, show that by step=; for cycles take"
        remedy += " CosineAnnealingWarmRestarts"
        yield finding("schedule-ends-early", "warning", message, remedy, length / steps)
    elif length and length - max(0, scheduler.last_epoch) > 2 * steps and rates[-1] > 0.5 * peak and _falls(scheduler):
        yield finding(
            "schedule-too-long",
            "warning",
            f"{name} is built for {length:,} steps and the run has {steps:,}: the rate ends at"
            f" {rates[-1] / peak:.0%} of its peak",
            f"build it for {steps:,} steps",
            length / steps,
        )
    else:
        low = min(rates[made.warmup :], default=0.0)
        what = f"{name}: peak {peak:.3g} at update {made.warmup:,}, {rates[-1]:.3g} at the end ({steps:,})"
        yield f"{what}, lowest {low:.3g}"


def _falls(scheduler: Any) -> bool:
    """Whether a schedule is one that comes down as it ends; ConstantLR and LinearLR may be a part of a longer one."""
    parts = getattr(scheduler, "_schedulers", None)
    return _falls(parts[-1]) if parts else not isinstance(getattr(scheduler, "total_iters", None), int)


def _lasts(whole: Course, steps: int, times: int) -> bool:
    """Whether a schedule stepped several times in an update is there to the end, and comes down once at most."""
    rates = whole.rates[: steps * times : times]
    left = list(itertools.takewhile(lambda rate: rate <= GONE * whole.peak, reversed(rates)))
    return whole.ended is None and len(left) <= EARLY * steps and not _turns(rates, whole.peak)


def _turns(rates: list[float], peak: float) -> int:
    """How often a rate rises above half of its peak after it has fallen below a tenth of it.

    >>> _turns([0.0, 1.0, 0.5, 0.0, 0.5, 1.0, 0.5, 0.0, 0.4], 1.0)
    1
    """
    high = [rate > peak / 2 for rate in rates if rate < peak / 10 or rate > peak / 2]
    return sum(b > a for a, b in itertools.pairwise(high[high.index(True) :]))


def _length(scheduler: Any) -> int | None:
    for name in ("T_max", "total_steps", "total_iters"):
        value = getattr(scheduler, name, None)
        if isinstance(value, int) and value > 1:
            return value
    given = [getattr(of, "keywords", {}).get("num_training_steps") for of in getattr(scheduler, "lr_lambdas", ())]
    if given and isinstance(given[0], int):  # of transformers
        return given[0]
    inner = getattr(scheduler, "_schedulers", None)
    if inner and getattr(scheduler, "_milestones", None):
        last = _length(inner[-1])
        return None if last is None else scheduler._milestones[-1] + last
    return None


def _not_stepped(seen: Seen, scheduler: Any) -> Results:
    """A schedule that the update does not step: of epochs, or forgotten."""
    setup, name = seen.setup, type(scheduler).__name__
    if setup.step is None and setup.kind == "loop":
        return
    try:
        batches = len(setup.data)  # type: ignore[arg-type]
    except TypeError:
        batches = 0
    epochs = max(1, round((setup.steps or 0) * setup.accumulate / batches)) if batches and setup.steps else 0
    length = _length(scheduler)
    rates = [max(s.rates) for s in seen.steps]
    by_epoch = course(scheduler, epochs).rates if 1 < epochs < 1000 else []
    changes = by_epoch and min(by_epoch) < 0.8 * max(by_epoch)
    fits = length is not None and epochs and length <= 2 * epochs
    meant = length is not None and setup.steps and epochs < length / 2 and 0.5 < length / setup.steps < 2
    if length is None and setup.steps and by_epoch and by_epoch[-1] >= max(by_epoch):
        whole = course(scheduler, setup.steps)  # over epochs it only rises; does it fall again over updates?
        meant, length = whole.rates[-1] < 0.5 * whole.peak and whole.warmup >= epochs, setup.steps
    if (changes or fits) and not meant and rates and max(rates) > 0:
        yield f"{name} is not stepped by an update: taken for a schedule of epochs"
        return
    if meant and setup.kind == "Lightning":
        yield finding(
            "schedule-not-stepped",
            "error",
            f"{name} is built for updates ({length:,} of them) and is stepped once per epoch: {epochs} times in the"
            " run",
            'return it with {"scheduler": scheduler, "interval": "step"}',
            epochs / (length or 1),
        )
        return
    what = f"; the rate stays at {max(rates):.3g}" if rates else ""
    yield finding(
        "schedule-not-stepped",
        "error",
        f"{name} is never stepped in {seen.updates} updates{what}",
        "call scheduler.step() after optimizer.step()",
        0.0,
    )
