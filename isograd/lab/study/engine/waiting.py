"""Which job is begun next: the longest, lest one worker be at work at the end while the others have nothing to do."""

import math
from collections.abc import Mapping
from dataclasses import replace

from isograd.lab.train.run import Model, Run


class Waiting:
    """Jobs that have not begun. Seed by seed, so that a first whole grid is there early.

    Within a seed: first those of a kind (the same settings with another seed) that has not ended yet, most work first;
    then those whose kind took longest. What is alike stays in order, and all does where one worker does everything.
    """

    def __init__(self, runs: Mapping[int, Run], workers: int) -> None:
        self._runs = dict(runs)
        self._alone = workers == 1
        self._kinds = {index: replace(run, seed=0).key() for index, run in runs.items()}
        self._took: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def take(self) -> int:
        """The next one, which no longer waits."""
        first, run = next(iter(self._runs.items()))
        of_seed = [index for index, one in self._runs.items() if one.seed == run.seed]
        longest = max(of_seed, key=lambda i: (self._took.get(self._kinds[i], math.inf), _work(self._runs[i])))
        taken = first if self._alone else longest
        del self._runs[taken]
        return taken

    def took(self, index: int, seconds: float) -> None:
        """A job has ended."""
        self._took[self._kinds[index]] = seconds


def _work(run: Run) -> float:
    """Updates x tokens x layers x width^2: no seconds, but in their order."""
    layers = (run.layers or 1) + (run.encoder_layers or 0)
    width = run.model.width if isinstance(run.model, Model) else 1
    return float(run.training.steps * run.tokens_per_update * layers * width**2)
