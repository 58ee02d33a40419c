"""`isograd.watch` in every loop, broken and healthy: a row each."""

import hashlib
import inspect
import math
import time
from dataclasses import dataclass
from typing import Any

import isograd
from benchmarks.faults.base import BY_NAME, Base, evaluate
from benchmarks.faults.codes import named
from benchmarks.faults.loops import HEALTHY, MISTAKES, Loop

WATCH_TAKES = inspect.signature(isograd.watch).parameters


@dataclass(frozen=True, kw_only=True)
class Watched:
    """One run under the watch, with the settings of a user who has read its first example."""

    loop: str
    cause: str  # "" of a healthy one
    base: str
    found: str = ""  # signals, in the order of their first warnings
    step: float = math.nan  # of the first warning
    right: bool = False  # one of them names the cause
    first: bool = False  # the first of them does
    loss: float = math.nan  # on other text, after the last step; NaN: not run to it, infinite: no number
    crash: str = ""
    seconds: float = 0.0

    @property
    def detected(self) -> bool:
        return bool(self.found)

    @property
    def held_out(self) -> bool:
        return BY_NAME[self.base].held_out

    @property
    def new(self) -> bool:
        """The loop itself was held out, too."""
        return held_out(self.loop)


def held_out(loop: str) -> bool:
    """A third of the loops, by a hash of their names: they are not run while rules are developed. The plain loop, which
    the others are compared with, is none of them.
    """
    return loop != Loop.name() and int(hashlib.sha256(loop.encode()).hexdigest(), 16) % 3 == 0


def watched(base: Base, kind: type[Loop], seed: int = 0) -> tuple[Watched, list[Any]]:
    """The row, and the warnings."""
    begun = time.process_time()
    loop = kind(base, seed)
    options: dict[str, Any] = {"optimizer": loop.optimizer} if "optimizer" in WATCH_TAKES else {}
    watch = isograd.watch(loop.model, **options)
    losses: list[float] = []
    crash = ""
    try:  # a mistake that is named need not be watched any further
        losses = loop.run(watch, lambda: any(named(kind.cause, one) for one in watch.warnings))
    except Exception as problem:  # a crash is a result
        crash = f"{type(problem).__name__}: {problem}"[:200]
    watch.close()
    names = [str(one["signal"]) for one in watch.warnings]
    found = list(dict.fromkeys(names))
    loss = evaluate(base, loop.model) if len(losses) == loop.steps else math.nan
    if losses and not math.isfinite(losses[-1]):
        loss = math.inf
    row = Watched(
        loop=kind.name(),
        cause=kind.cause,
        base=base.name,
        found=" ".join(found),
        step=float(watch.warnings[0]["step"]) if names else math.nan,
        right=any(named(kind.cause, one) for one in watch.warnings),
        first=bool(found) and named(kind.cause, watch.warnings[0]),
        loss=round(loss, 4),
        crash=crash,
        seconds=round(time.process_time() - begun, 2),
    )
    return row, list(watch.warnings)


def loops(base: Base) -> list[type[Loop]]:
    return [kind for kind in (*MISTAKES, *HEALTHY) if base.name in kind.on]
