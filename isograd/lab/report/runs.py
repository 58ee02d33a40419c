"""What a report reads of runs: which folders hold some, their files, and arms that differ only in their seed."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from isograd.errors import UserError
from isograd.files import is_locked, read_json, read_object, read_rows
from isograd.lab.report.style import Look, look_of, looks
from isograd.lab.study.faults import FILES, fault
from isograd.lab.study.labels import labels, names
from isograd.lab.train.tasks import TASKS
from isograd.placement import CATALOGUE

Row = dict[str, Any]
Floats = list[float]
SeedsCurve = tuple[Floats, Floats, Floats, Floats]  # x; over seeds the mean, the lowest, the highest
DEEPEST = 3  # levels below a folder that are looked through
_DRAWN = ("gradient_mean_abs", "residual_rms", "branch_skip_ratio")


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The files of one run."""

    run: Row
    folder: Path = Path()
    resolved: Row = field(default_factory=dict)
    outcome: Row = field(default_factory=dict)
    metrics: list[Row] = field(default_factory=list)
    quantities: list[Row] = field(default_factory=list)
    validation: list[Row] = field(default_factory=list)

    @cached_property
    def by_place(self) -> dict[tuple[str | None, str | None], list[Row]]:
        """The rows of quantities by kind and stack; None for what a row does not name."""
        places: dict[tuple[str | None, str | None], list[Row]] = {}
        for row in self.quantities:
            places.setdefault((row.get("kind"), row.get("stack")), []).append(row)
        return places


@dataclass(frozen=True, kw_only=True)
class ArmFiles:
    """Runs of one recipe with different seeds."""

    label: str
    runs: Sequence[RunFiles]
    look: Look = field(default_factory=lambda: look_of(""))  # its colour and dash in every figure

    @property
    def first(self) -> RunFiles:
        return self.runs[0]

    @property
    def task(self) -> str:
        return self.first.run.get("task") or "language"

    @property
    def placement(self) -> str:
        return self.first.run["model"]["placement"]

    @property
    def outcomes(self) -> list[str]:
        return [r.outcome["outcome"] for r in self.runs]

    @property
    def outcome(self) -> str:
        """ "collapsed", or "2 finished, 1 collapsed" over seeds that differ."""
        counts = Counter(self.outcomes)
        return self.outcomes[0] if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.most_common())

    @property
    def in_epochs(self) -> bool:
        """Whether every validation knows its epoch."""
        return all(row.get("epoch") is not None for run in self.runs for row in run.validation)

    def values(self, name: str) -> list[float]:
        """A number of the outcome over the seeds that have it."""
        return [r.outcome[name] for r in self.runs if r.outcome.get(name) is not None]

    def curve(self) -> SeedsCurve:
        """Steps, and the loss over the seeds at each, averaged over a short window."""
        by_step: dict[int, list[float]] = {}
        for run in self.runs:
            for step, loss in smoothed([(r["step"], r["loss"]) for r in run.metrics if r["loss"] is not None]):
                by_step.setdefault(step, []).append(loss)
        return _over_seeds([([step], by_step[step]) for step in sorted(by_step)])

    def validation(self, name: str, x: str | None = None) -> SeedsCurve:
        """Where, and a number of the first, second, ... validation over the seeds that got so far.

        Args:
            x: "step", "seconds" or "epoch"; None: epochs where they are known, else steps. In seconds the line ends
                with the first seed that does: the others' mean would jump in time.
        """
        x = x or ("epoch" if self.in_epochs else "step")
        points: list[tuple[list[float], list[float]]] = []
        for rows in zip_longest(*(run.validation for run in self.runs)):
            known = [row for row in rows if row is not None and None not in (row.get(name), row.get(x))]
            if x == "seconds" and points and len(known) < len(points[0][0]):
                break
            if known:
                points.append(([row[x] for row in known], [row[name] for row in known]))
        return _over_seeds(points)

    def profile(
        self, name: str, kind: str, when: Callable[[int, int], bool], stack: str
    ) -> tuple[list[int], list[float]]:
        """Layers, and the mean of a quantity over seeds and over the steps that `when(step, last)` picks."""
        by_layer: dict[int, list[float]] = {}
        for run in self.runs:
            last = max((r["step"] for r in run.quantities), default=0)
            for row in _rows(run, name, kind, stack):
                if when(row["step"], last):
                    by_layer.setdefault(row["layer"], []).append(row[name])
        layers = sorted(by_layer)
        return layers, [statistics.fmean(by_layer[layer]) for layer in layers]

    def profile_of_seeds(self, name: str, kind: str, when: Callable[[int, int], bool], stack: str) -> SeedsCurve:
        """Layers, and the mean over seeds and steps, the lowest and the highest of the seeds' means over steps."""
        layers, mean = self.profile(name, kind, when, stack)
        own = [dict(zip(*replace(self, runs=[run]).profile(name, kind, when, stack), strict=True)) for run in self.runs]
        values = [[of[layer] for of in own if layer in of] for layer in layers]
        return [float(layer) for layer in layers], mean, list(map(min, values)), list(map(max, values))

    def histories(self, name: str, kind: str, stack: str) -> dict[int, tuple[list[int], list[float]]]:
        """For each layer, first to last: observed steps, and the mean of a quantity over seeds at each."""
        found: dict[int, dict[int, list[float]]] = {}
        for run in self.runs:
            for row in _rows(run, name, kind, stack):
                found.setdefault(row["layer"], {}).setdefault(row["step"], []).append(row[name])
        return {
            layer: (sorted(of), [statistics.fmean(of[step]) for step in sorted(of)])
            for layer, of in sorted(found.items())
        }

    def ratio(self, name: str, kind: str, stack: str) -> tuple[list[int], list[float]]:
        """Observed steps, and the first layer's value over the last layer's, mean over seeds."""
        by_step: dict[int, list[float]] = {}
        for run in self.runs:
            ends: dict[int, dict[int, float]] = {}
            for row in _rows(run, name, kind, stack):
                ends.setdefault(row["step"], {})[row["layer"]] = row[name]
            for step, of in ends.items():
                if of[max(of)]:
                    by_step.setdefault(step, []).append(of[min(of)] / of[max(of)])
        steps = sorted(by_step)
        return steps, [statistics.fmean(by_step[s]) for s in steps]

    def level(self, when: Callable[[int, int], bool], stack: str) -> list[float]:
        """For each seed that has it: mean |gradient| of W_2 in a stack's first layer over that in its last."""
        found = []
        for run in self.runs:
            layers, values = replace(self, runs=[run]).profile("gradient_mean_abs", "ffn", when, stack)
            if layers and values[-1]:
                found.append(values[0] / values[-1])
        return found


def paired(arm: ArmFiles, reference: ArmFiles) -> dict[int, tuple[RunFiles, RunFiles]]:
    """The runs of two arms with the same seed, by seed."""
    theirs = {run.run["seed"]: run for run in reference.runs}
    return {run.run["seed"]: (run, theirs[run.run["seed"]]) for run in arm.runs if run.run["seed"] in theirs}


def measure_of(arms: Sequence[ArmFiles]) -> str:
    """The loss by which arms are compared: on held-out data where every run that finished has one."""
    ended = [run.outcome for arm in arms for run in arm.runs if run.outcome["outcome"] == "finished"]
    return "validation_loss" if all(end.get("validation_loss") is not None for end in ended) else "final_loss"


def losses_of(arm: ArmFiles, measure: str) -> dict[int, float]:
    """The loss of each seed that has come to an end; infinite where it diverged."""
    ends = {run.run["seed"]: run.outcome for run in arm.runs}
    found = {seed: math.inf if end["outcome"] == "diverged" else end.get(measure) for seed, end in ends.items()}
    return {seed: loss for seed, loss in found.items() if loss is not None}


def reference_of(arms: Sequence[ArmFiles], named: str | None = None) -> ArmFiles | None:
    """What the other arms are measured against: the one `named` by label or placement, else the first pre-ln or first.

    None where there is none of that name, or no arm.
    """
    if named is not None:
        return arm_of(arms, named)
    return next((arm for arm in arms if arm.placement == "pre-ln"), arms[0] if arms else None)


def arm_of(arms: Sequence[ArmFiles], named: str) -> ArmFiles | None:
    """The first arm of this label, placement, or name on a page ("Pre-LN"); None where there is none."""
    exact = next((arm for arm in arms if named in (arm.label, arm.placement)), None)
    shown = {name.lower(): arm for arm, name in zip(arms, names([arm.first.run for arm in arms]), strict=True)}
    return exact or shown.get(named.lower())


def presented(arms: Sequence[ArmFiles], called: Mapping[str, str] | None = None) -> list[ArmFiles]:
    """These arms under the names that a page has for them: "Pre-LN, lr 5e-3", without what all of them share.

    Args:
        called: other names, by label, placement or name.

    Raises:
        UserError: there is no arm of a name in `called`.
    """
    found = [replace(arm, label=name) for arm, name in zip(arms, names([arm.first.run for arm in arms]), strict=True)]
    for who, name in (called or {}).items():
        arm = must_be_arm(arms, who)
        found[list(arms).index(arm)] = replace(arm, label=name)
    return found


def must_be_arm(arms: Sequence[ArmFiles], named: str) -> ArmFiles:
    """See `arm_of`.

    Raises:
        UserError: with the labels that there are.
    """
    arm = arm_of(arms, named)
    if arm is None:
        raise UserError(f"no arm has the name {named!r}; there are {'; '.join(arm.label for arm in arms)}")
    return arm


def stacks(arms: Iterable[ArmFiles]) -> list[str]:
    """The stacks of these models, in the order in which text runs through them."""
    arms = list(arms)
    named = {stack for arm in arms for run in arm.runs for _, stack in run.by_place if stack is not None}
    return sorted(named, key="encoder decoder".find) or list(TASKS[arms[0].task].stacks)


def _rows(run: RunFiles, name: str, kind: str, stack: str) -> Iterator[Row]:
    """The rows of a stack's sublayers that have a quantity. A row that names no stack is of the only one."""
    whole = [("layer", None)] if kind == "ffn" else []  # the layers of a model that is not isograd's
    for place in ((kind, stack), (kind, None), *whole):
        yield from (row for row in run.by_place.get(place, ()) if row.get(name) is not None)


def _over_seeds(points: Sequence[tuple[Sequence[float], Sequence[float]]]) -> SeedsCurve:
    mean, values = statistics.fmean, [y for _, y in points]
    return [mean(x) for x, _ in points], [mean(y) for y in values], list(map(min, values)), list(map(max, values))


def at_start(step: int, last: int) -> bool:
    return step == 1


def at_end(step: int, last: int) -> bool:
    return step > last - 50


def read_run(folder: Path) -> RunFiles:
    """The files of a run; what a run has not written yet is empty. Without an outcome it is "running" while a process
    trains it, else "interrupted"."""
    return RunFiles(
        folder=folder,
        run=read_object(folder / "run.json"),
        resolved=read_object(folder / "resolved.json"),
        outcome=read_object(folder / "outcome.json") or {"outcome": "running" if is_locked(folder) else "interrupted"},
        metrics=read_rows(folder / "metrics.jsonl"),
        quantities=read_rows(folder / "quantities.jsonl"),
        validation=read_rows(folder / "validation.jsonl"),
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
    shown = looks(group[0].run["model"]["placement"] for group in groups.values())
    return [
        ArmFiles(label=label, runs=group, look=look)
        for label, group, look in zip(named, groups.values(), shown, strict=True)
    ]


def smoothed(points: Sequence[tuple[int, float]], window: int = 10) -> list[tuple[int, float]]:
    """Each value replaced by the mean of the last `window` values."""
    losses = [loss for _, loss in points]
    return [
        (step, statistics.fmean(losses[max(0, i + 1 - window) : i + 1]))
        for i, (step, _) in enumerate(points)
        if math.isfinite(losses[i])
    ]


def curves(arms: Iterable[ArmFiles]) -> Iterator[tuple[Any, ...]]:
    """Every curve of every run in one tidy table, the header first: a line per run, step and quantity.

    Of sublayers what the figures draw: the feed-forward ones' mean |gradient|, the stream and the branch's share.
    """
    yield ("run", "arm", "placement", "seed", "step", "quantity", "value")
    for label, run in ((arm.label, run) for arm in arms for run in arm.runs):
        who = (run.folder.name, label, run.run["model"]["placement"], run.run["seed"])
        named = {"loss": "validation_loss", "bleu": "validation_bleu"}
        rows = [(row, {name: row.get(name) for name in ("loss", "lr", "grad_norm")}) for row in run.metrics]
        rows += [(row, {named[name]: row.get(name) for name in named}) for row in run.validation]
        for row in run.quantities:
            if row.get("kind") == "ffn":
                place = f"{row.get('stack') or 'stack'}.{row['layer']}.ffn"
                rows.append((row, {f"{place}.{name}": row.get(name) for name in _DRAWN}))
        for row, values in rows:
            yield from ((*who, row["step"], name, value) for name, value in values.items() if value is not None)


def find_runs(folders: Iterable[Path], also: Callable[[Path], bool] = lambda folder: False) -> list[Path]:
    """The run folders among and below `folders`, each once.

    A run folder holds a file of a run's. Those below one folder stand in the catalogue's order of their placements,
    then by name; a run that is named itself stands where it is named.

    Args:
        also: what else is taken where it is named itself.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        below = [folder] if _is_run(folder) or also(folder) else sorted(_below(folder, DEEPEST), key=_place)
        for run in below:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in FILES)


def _below(folder: Path, levels: int) -> Iterator[Path]:
    for inner in folder.iterdir() if levels else ():
        if inner.is_dir() and not inner.name.startswith("."):
            yield from [inner] if _is_run(inner) else _below(inner, levels - 1)


def _place(folder: Path) -> tuple[int, str]:
    try:
        placement = read_json(folder / "run.json")["model"]["placement"]
    except (OSError, ValueError, TypeError, KeyError):
        placement = None
    names = list(CATALOGUE)
    return names.index(placement) if placement in names else len(names), str(folder)


def readable(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Those run folders whose files can be reported on, and of each other one what is wrong, in a line.

    What a kill leaves behind is no fault: a run without an outcome, a last row cut off.
    """
    wrong = {folder: fault(folder) for folder in folders}
    return [folder for folder in folders if wrong[folder] is None], [line for line in wrong.values() if line]


def by_kind(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """Readable run folders by what can stand on one page; see `kind`."""
    kinds: dict[str, list[Path]] = {}
    for folder in folders:
        kinds.setdefault(kind_of(read_object(folder / "run.json")), []).append(folder)
    return kinds


def kind_of(run: Row) -> str:
    """The task of a run; "range-test" where its learning rate rises until the loss diverges."""
    return "range-test" if run["training"].get("stop_when_broken") is True else run.get("task") or "language"
