"""The rate of a run, simulated to its end."""

import warnings
from dataclasses import dataclass
from typing import Any

from isograd.lint.step.kept import kept

MOST = 200_000  # updates that are simulated


@dataclass(kw_only=True)
class Course:
    """The rates of a run.

    Attributes:
        rates: of the group with the most parameters, before each update.
        peaks: the highest rate of each group.
        ended: the update at which the schedule could not go on, and what it said.
    """

    rates: list[float]
    peaks: list[float]
    ended: tuple[int, str] | None = None

    @property
    def peak(self) -> float:
        return max(self.rates)

    @property
    def warmup(self) -> int:
        """Updates until the peak."""
        return self.rates.index(self.peak)


def course(scheduler: Any, updates: int) -> Course:
    """What a schedule gives, stepped once per update; everything is put back."""
    groups = scheduler.optimizer.param_groups
    largest = max(range(len(groups)), key=lambda i: len(groups[i]["params"]))
    made = Course(rates=[float(groups[largest]["lr"])], peaks=[float(g["lr"]) for g in groups])
    with kept(scheduler, *({k: v for k, v in g.items() if k != "params"} for g in groups)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = [dict(g) for g in groups]
        for update in range(min(updates, MOST)):
            try:
                scheduler.step()
            except Exception as error:
                made.ended = update, (str(error).splitlines() or [type(error).__name__])[0][:120]
                break
            made.rates.append(float(groups[largest]["lr"]))
            made.peaks = [max(peak, float(g["lr"])) for peak, g in zip(made.peaks, groups, strict=True)]
        for group, old in zip(groups, before, strict=True):
            group.update(old)
    return made
