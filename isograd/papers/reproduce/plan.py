"""The runs of an item, planned: its cells, what they read, and why it cannot be run where it cannot. No torch."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isograd.errors import RecipeError
from isograd.lab.recipes import path_of
from isograd.lab.study.labels import said
from isograd.lab.study.plan import ARM, CELLS, Cell, load_study
from isograd.papers.reproduce.data import found
from isograd.papers.reproduce.item import Item, Runs

ITEMS = "items"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says of all items.

    Attributes:
        data: `--data`; None: the embedded texts.
        seeds: in place of each item's own.
        overrides: of every run, such as training.steps=20.
    """

    out: Path
    data: Path | None = None
    seeds: tuple[int, ...] | None = None
    overrides: tuple[str, ...] = ()
    jobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Member:
    """A cell in an item: the runs that it belongs to, and the name of its arm."""

    cell: Cell
    group: str
    arm: str


@dataclass(frozen=True, kw_only=True)
class Planned:
    """An item's runs.

    Attributes:
        stages: cells; those that fine-tune come after what they fine-tune.
        settings: what the item's corpus sets; {} where it has none.
        reading: the corpora's names.
        lacking: why it cannot be run; "" where it can.
        compare: the same runs as `isograd compare`; "" where that cannot say them.
    """

    item: Item
    members: list[Member] = field(default_factory=list)
    stages: list[list[Cell]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    reading: list[str] = field(default_factory=list)
    lacking: str = ""
    compare: str = ""

    @property
    def cells(self) -> list[Cell]:
        return [cell for stage in self.stages for cell in stage]


def plan_item(item: Item, asked: Asked) -> Planned:
    """The item's runs.

    Raises:
        RecipeError: an override that its recipes do not take.
    """
    if item.missing:
        return Planned(item=item, lacking=item.missing)
    there = {name: found(corpus, asked.data) for name, corpus in item.corpora.items()}
    for settings, what in there.values():
        if settings is None:
            return Planned(item=item, lacking=what)
    of = {name: settings or {} for name, (settings, _) in there.items()}
    members: list[Member] = []
    for runs in item.runs:
        corpus = runs.corpus or item.corpus
        own = of[corpus.name] if corpus else {}
        above = [member for member in members if member.group == runs.upon]
        members += _cells(runs, own, asked) if runs.upon is None else _upon(runs, own, above, asked)
    upon = {runs.group for runs in item.runs if runs.upon is not None}
    stages = [_once(member.cell for member in members if (member.group in upon) == later) for later in (False, True)]
    return Planned(
        item=item,
        members=members,
        stages=[stage for stage in stages if stage],
        settings=of[item.corpus.name] if item.corpus else {},
        reading=[what for _, what in there.values()],
        compare=_compare(item, of, asked),
    )


def _compare(item: Item, of: Mapping[str, Mapping[str, Any]], asked: Asked) -> str:
    """With FOLDER for that of `--data`, and a file's own name: a page holds no paths of a machine."""
    if len(item.runs) != 1 or not item.runs[0].arms or item.runs[0].upon is not None:
        return ""
    (runs,) = item.runs
    if Path(runs.recipe).is_absolute():
        return ""
    corpus = runs.corpus or item.corpus
    words = [*words_of(of[corpus.name] if corpus else {}), *runs.overrides, *asked.overrides]
    arms = " ".join(f"--arm {shlex.join(arm)}" for arm in runs.arms.values())
    seeds = " ".join(map(str, asked.seeds or runs.seeds))
    line = f"isograd compare {runs.recipe} {shlex.join(words)} {arms} --seeds {seeds}"
    return (
        line.replace(str(asked.data.resolve()), asked.data.name if asked.data.is_file() else "FOLDER")
        if asked.data
        else line
    )


def _once(cells: Iterable[Cell]) -> list[Cell]:
    return list({cell.name: cell for cell in cells}.values())


def _cells(runs: Runs, settings: Mapping[str, Any], asked: Asked) -> Iterator[Member]:
    words = [*words_of(settings), *runs.overrides, *asked.overrides]
    words.append(f"seeds={json.dumps(asked.seeds or runs.seeds)}")
    if runs.arms:
        words.append(f"arms={json.dumps([*map(list, runs.arms.values())])}")
    study = load_study(path_of(runs.recipe), words)
    named = dict(zip(study.axes[ARM], runs.arms, strict=True)) if runs.arms else {}
    for cell in study.cells:
        label = cell.values.get(ARM, "")
        others = [said(key, value) for key, value in cell.values.items() if key in study.axes and key != ARM]
        arm = ", ".join(filter(None, [named.get(label, label), *others]))
        yield Member(cell=replace(cell, values={**cell.values, ARM: arm}), group=runs.group, arm=arm)


def _upon(runs: Runs, settings: Mapping[str, Any], above: Sequence[Member], asked: Asked) -> Iterator[Member]:
    """Each model above, fine-tuned with the seed that it was trained with."""
    if not above:
        raise RecipeError(f"no runs of the group {runs.upon!r} stand before those upon them")
    for member in above:
        run, model = member.cell.run, (asked.out / CELLS / member.cell.name / "model").resolve()
        arms = {
            ", ".join(filter(None, [member.arm, name])): [run.model.placement, *words]
            for name, words in (runs.arms or {"": ()}).items()
        }
        overrides = (f"glue.model={json.dumps(str(model))}", *runs.overrides)
        one = replace(runs, arms=arms, overrides=overrides, seeds=(run.seed,))
        yield from _cells(one, settings, replace(asked, seeds=(run.seed,), overrides=()))


def words_of(settings: Mapping[str, Any]) -> list[str]:
    """Settings as overrides."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def folder_of(item: Item, out: Path) -> Path:
    """Where the item's result stands."""
    return out / ITEMS / item.id
