"""What a report reads of a run's folder, and arms that differ only in their seed taken together."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isograd.study.labels import labels
from isograd.train.metrics import read_rows

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The files of one run."""

    folder: Path
    run: Row
    resolved: Row
    outcome: Row
    metrics: list[Row]
    quantities: list[Row]


@dataclass(frozen=True, kw_only=True)
class ArmFiles:
    """Runs of one recipe with different seeds."""

    label: str
    runs: Sequence[RunFiles]

    @property
    def first(self) -> RunFiles:
        return self.runs[0]

    @property
    def outcomes(self) -> list[str]:
        return [r.outcome["outcome"] for r in self.runs]

    def values(self, name: str) -> list[float]:
        """A number of the outcome over the seeds that have it."""
        return [r.outcome[name] for r in self.runs if r.outcome.get(name) is not None]

    def curve(self) -> tuple[list[int], list[float], list[float], list[float]]:
        """Steps, and mean, lowest and highest loss over the seeds at each, averaged over a short window."""
        by_step: dict[int, list[float]] = {}
        for run in self.runs:
            for step, loss in smoothed([(r["step"], r["loss"]) for r in run.metrics if r["loss"] is not None]):
                by_step.setdefault(step, []).append(loss)
        steps = sorted(by_step)
        return steps, *([f(by_step[s]) for s in steps] for f in (statistics.fmean, min, max))  # type: ignore[return-value]

    def profile(self, name: str, kind: str, when: Callable[[int, int], bool]) -> tuple[list[int], list[float]]:
        """Layers, and the mean of a quantity over seeds and over the steps that `when(step, last)` picks."""
        by_layer: dict[int, list[float]] = {}
        for run in self.runs:
            last = max((r["step"] for r in run.quantities), default=0)
            for row in run.quantities:
                if row["kind"] == kind and row.get(name) is not None and when(row["step"], last):
                    by_layer.setdefault(row["layer"], []).append(row[name])
        layers = sorted(by_layer)
        return layers, [statistics.fmean(by_layer[layer]) for layer in layers]

    def ratio(self, name: str, kind: str) -> tuple[list[int], list[float]]:
        """Observed steps, and the first layer's value over the last layer's, mean over seeds."""
        by_step: dict[int, list[float]] = {}
        for run in self.runs:
            ends: dict[int, dict[int, float]] = {}
            for row in run.quantities:
                if row["kind"] == kind and row.get(name) is not None:
                    ends.setdefault(row["step"], {})[row["layer"]] = row[name]
            for step, of in ends.items():
                if of[max(of)]:
                    by_step.setdefault(step, []).append(of[min(of)] / of[max(of)])
        steps = sorted(by_step)
        return steps, [statistics.fmean(by_step[s]) for s in steps]


def at_start(step: int, last: int) -> bool:
    return step == 1


def at_end(step: int, last: int) -> bool:
    return step > last - 50


def read_run(folder: Path) -> RunFiles:
    """The files of a run; what a run has not written yet is empty."""
    return RunFiles(
        folder=folder,
        run=_json(folder / "run.json"),
        resolved=_json(folder / "resolved.json"),
        outcome=_json(folder / "outcome.json") or {"outcome": "interrupted"},
        metrics=read_rows(folder / "metrics.jsonl"),
        quantities=read_rows(folder / "quantities.jsonl"),
    )


def arms_of(folders: Iterable[Path]) -> list[ArmFiles]:
    """Runs grouped by everything but the seed, in the order of the folders; folders without a run are left out."""
    groups: dict[str, list[RunFiles]] = {}
    for run in map(read_run, folders):
        if not run.run:
            continue
        recipe = {k: v for k, v in run.run.items() if k not in ("seed", "name")}
        groups.setdefault(json.dumps(recipe, sort_keys=True), []).append(run)
    named = labels([group[0].run for group in groups.values()])
    return [ArmFiles(label=label, runs=group) for label, group in zip(named, groups.values(), strict=True)]


def smoothed(points: Sequence[tuple[int, float]], window: int = 10) -> list[tuple[int, float]]:
    """Each value replaced by the mean of the last `window` values."""
    losses = [loss for _, loss in points]
    return [
        (step, statistics.fmean(losses[max(0, i + 1 - window) : i + 1]))
        for i, (step, _) in enumerate(points)
        if math.isfinite(losses[i])
    ]


def _json(path: Path) -> Row:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
