"""The paper's size of an item: what its runs need, and whether they can be started here.

hours = FLOP of all runs / (devices x 100 TFLOP/s)      a third of an A100's peak in bf16, sustained
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isograd.errors import DataError, UserError
from isograd.files import write_json
from isograd.lab.recipes import path_of
from isograd.lab.study.labels import labels
from isograd.lab.study.plan import load_study
from isograd.lab.train.forecast.forecast import Forecast, forecast
from isograd.lab.train.forecast.memory import available_memory
from isograd.lab.train.recipe import load_run, read_recipe
from isograd.lab.train.run import Run
from isograd.lab.train.tasks.language import TextRun
from isograd.lab.train.tasks.translation import TranslationRun
from isograd.papers.reproduce.data import found
from isograd.papers.reproduce.item import Item
from isograd.papers.reproduce.plan import Asked, words_of

RATE = 1e14  # FLOP per second of one device
FOLDER = "full"


@dataclass(frozen=True, kw_only=True)
class FullRun:
    """A run of the paper's size, its forecast, and its folder."""

    label: str
    run: Run
    forecast: Forecast
    folder: Path

    @property
    def hours(self) -> float:
        return self.forecast.flops / (RATE * self.forecast.devices) / 3600


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an item takes at the paper's size.

    Attributes:
        remote: what of it is not a file here, and is looked for on the hub when it starts.
        lacking: a file that is not here, in a line; "" where there is none.
    """

    recipe: str
    devices: int
    runs: Sequence[FullRun]
    reading: Sequence[str]
    remote: Sequence[str]
    lacking: str

    @property
    def hours(self) -> float:
        return sum(one.hours for one in self.runs)

    @property
    def memory(self) -> int:
        """Bytes of each device, at most."""
        return max(one.forecast.memory.total for one in self.runs)

    def as_dict(self) -> dict[str, Any]:
        """Plain data; memory in bytes."""
        return {
            "recipe": self.recipe,
            "devices": self.devices,
            "hours": self.hours,
            "memory": self.memory,
            "reading": [*self.reading],
            "remote": [*self.remote],
            "lacking": self.lacking or None,
            "runs": [{"run": one.label, "hours": one.hours, **one.forecast.as_dict()} for one in self.runs],
        }


def needs(item: Item, asked: Asked, devices: int | None = None) -> Needs:
    """The forecast of every run of the paper's size.

    Args:
        devices: None: as many as the item says.

    Raises:
        UserError: the item has no recipe of the paper's size.
        RecipeError: an override that the recipe does not take; a batch that does not divide by so many devices.
    """
    if item.full is None:
        raise UserError(f"{item.id} has no recipe of the paper's size")
    full, many = item.full, devices or item.full.devices
    settings, lacking = {}, ""
    if full.corpus and asked.data:
        there, what = found(full.corpus, asked.data)
        settings, lacking = there or {}, "" if there else what
    runs = _runs(full.recipe, [*words_of(settings), *full.overrides, *asked.overrides], asked.seeds)
    folder = asked.out / FOLDER / item.id
    named = labels([run.as_dict() for run in runs])
    several = len({run.seed for run in runs}) > 1
    return Needs(
        recipe=full.recipe,
        devices=many,
        runs=[
            FullRun(
                label=f"{name}, seed {run.seed}" if several else name,
                run=run,
                forecast=forecast(run, many),
                folder=folder / run.folder_name(),
            )
            for run, name in zip(runs, named, strict=True)
        ],
        reading=list(dict.fromkeys(source for run in runs for source in _sources(run))),
        remote=list(dict.fromkeys(name for run in runs for name in _on_the_hub(run))),
        lacking=lacking or next(filter(None, map(_absent, runs)), ""),
    )


def _runs(recipe: str, words: Sequence[str], seeds: Sequence[int] | None) -> list[Run]:
    """Each arm of the recipe with each seed; one where it has neither arms nor axes."""
    path = path_of(recipe)
    content = read_recipe(path)
    if content.get("arms") or content.get("axes"):
        chosen = [f"seeds={list(seeds)}"] if seeds else []
        return [cell.run for cell in load_study(path, [*words, *chosen]).cells]
    return [load_run(path, [*words, f"seed={seed}"]) for seed in seeds] if seeds else [load_run(path, words)]


def _sources(run: Run) -> list[str]:
    if isinstance(run, TranslationRun):
        return [*run.pairs.train, *run.pairs.valid]
    if isinstance(run, TextRun):
        sources = [run.data.source] if isinstance(run.data.source, str) else [*run.data.source]
        return [*sources, *([run.data.valid] if run.data.valid else [])]
    return []


def _absent(run: Run) -> str:
    """A file that the run reads and that is not here; names that may be of a data set on the hub are none."""
    from isograd.text import is_file

    files = [source for source in _sources(run) if is_file(source)]
    if isinstance(run, TranslationRun):
        files = [*filter(None, [run.pairs.codes]), *run.pairs.dictionaries]
    return next((f"{name}: no such file" for name in files if not Path(name).exists()), "")


def _on_the_hub(run: Run) -> list[str]:
    """What the run reads and what is no file here, nor looks like one."""
    from isograd.text import is_file

    languages = (run.pairs.source, run.pairs.target) if isinstance(run, TranslationRun) else ()
    ends = ["", *(f".{language}{packed}" for language in languages for packed in ("", ".gz", ".xz"))]
    names = {name: name.partition(":")[0] for name in _sources(run) if not is_file(name)}
    names = {name: base for name, base in names.items() if base not in ("embedded", "numbers")}
    return [name for name, base in names.items() if not any(Path(f"{base}{end}").exists() for end in ends)]


def _refuse_unread(runs: Sequence[FullRun]) -> None:
    """Refuse parallel text that is neither here nor on the hub, before anything is started."""
    from isograd.lab.data.pairs import find_pairs

    asked = {one.run.pairs: None for one in runs if isinstance(one.run, TranslationRun)}
    try:
        for pairs in asked:
            for role, names in (("train", pairs.train), ("valid", pairs.valid)):
                for name in names:
                    find_pairs(name, pairs.source, pairs.target, role)
    except DataError as error:
        raise UserError(f"data is missing: {error}") from error


def must_start(found: Needs, chosen: bool) -> None:
    """Refuse what cannot be started here.

    Args:
        chosen: the number of devices is the user's, so that a machine without GPUs may take its processors.

    Raises:
        UserError: devices, memory or data are missing; with what is needed and what there is.
    """
    import torch

    gpus = torch.cuda.device_count()
    if gpus < found.devices and (gpus or not chosen):
        have = f"{gpus} GPU{'s' * (gpus > 1)}" if gpus else "no GPU"
        raise UserError(
            f"the paper's size takes {found.devices} GPU{'s' * (found.devices > 1)}, and this machine has {have};"
            " --world-size N takes another number of devices"
        )
    available, where = available_memory()
    each = available if gpus else available / found.devices
    if found.memory > each:
        raise UserError(
            f"the forecast does not fit: {found.memory / 2**30:,.1f} GiB on each of {found.devices} devices,"
            f" and {where} has {each / 2**30:,.1f} GiB for each"
        )
    if found.lacking:
        raise UserError(f"data is missing: {found.lacking}")
    _refuse_unread(found.runs)


def command_of(one: FullRun, devices: int) -> list[str]:
    """What trains this run on so many devices; its whole recipe is written beside its folder."""
    recipe = one.folder.with_name(f"{one.folder.name}.yaml")
    recipe.parent.mkdir(parents=True, exist_ok=True)
    write_json(recipe, one.run.as_dict())  # JSON is YAML
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)]
    return [*launch, "-m", "isograd", "train", str(recipe), "--out", str(one.folder)]
