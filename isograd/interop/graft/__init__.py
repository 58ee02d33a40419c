"""A model changed in its structure: exact changes with a parity report, others with the loss before and after.

    grafted = graft(AutoModelForCausalLM.from_pretrained("gpt2"), "layers=24")
    grafted.model.save_pretrained("deeper")           # the same stock class; computes what it did

A change is a row of `CHANGES`, NAME=VALUE. What a model is made of is found by computation (`isograd.trace`).
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from isograd.errors import GraftError, hint
from isograd.files import new_folder
from isograd.interop.checkpoints.folder import copy_companions
from isograd.interop.checkpoints.vocabulary import load_tokenizer
from isograd.interop.graft.found import Subject
from isograd.interop.graft.layers import insert
from isograd.interop.graft.moves import How, Moved
from isograd.interop.graft.proof import proven
from isograd.interop.parity import ParityError, ParityReport, hashes
from isograd.trace.load import load_model


@dataclass(frozen=True, kw_only=True)
class Change:
    """A row of `CHANGES`.

    Attributes:
        value: what stands after the sign, in words.
        move: a subject, the value and what the call says -> the new model.
    """

    value: str
    move: Callable[[Subject, str, How], Moved]

    @property
    def about(self) -> str:
        """The first line of the move's docstring."""
        return (self.move.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change that was made: as it was written, one line on it, and its proof."""

    change: str
    said: str
    parity: ParityReport


@dataclass(frozen=True, kw_only=True)
class Grafted:
    """The changed model, in eval mode, and what was done, step by step."""

    model: PreTrainedModel
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join(f"{step.change}: {step.said}\n{step.parity}" for step in self.steps)


def layers(subject: Subject, value: str, how: How) -> Moved:
    """the number of layers: new ones write 0 at first"""
    count = _number(value, "layers")
    now = subject.layers.count
    if count <= now:
        raise GraftError(f"layers={count}: the model has {now}; expected more")
    return insert(subject, count, how)


CHANGES: Mapping[str, Change] = {"layers": Change(value="N", move=layers)}


def graft(model: PreTrainedModel, *changes: str, **how: Any) -> Grafted:
    """The model with these changes, in order; `model` stays as it is.

    Args:
        changes: rows of `CHANGES`, as "layers=24".
        how: fields of `How`.

    Raises:
        GraftError: a change that this model cannot take, with the reason.
        ParityError: a change that should leave the function as it is, and did not.
    """
    made = _grafted(model, changes, How(**how))
    own = copy.deepcopy(made.model)  # what was not changed shares the memory of `model`
    return Grafted(model=own, steps=made.steps)


def graft_folder(name: str | Path, out: str | Path, *changes: str, date: str | None = None, **how: Any) -> Grafted:
    """The model in `name` with these changes into the new folder `out`: model, tokenizer, parity.json.

    Args:
        name: a folder, or a name on the hub.
        date: stands in the report if it is given.

    Raises:
        ModelError, GraftError: no model there, or one that cannot take a change.
        ParityError: a change that should leave the function as it is, and did not; nothing is written.
    """
    model = load_model(str(name)).eval()
    if not isinstance(model, PreTrainedModel):
        raise GraftError(f"{name}: a {type(model).__name__}, expected a model of transformers' own or of isograd's")
    made = _grafted(model, changes, How(**how))
    with new_folder(out) as part:
        made.model.save_pretrained(part)
        _keep_tokenizer(name, part)
        written = type(made.model).from_pretrained(part)
        report = proven(
            model,
            written,
            about=f"{type(written).__name__}, {'; '.join(changes)}",
            notes=[f"{step.change}: {step.said}" for step in made.steps],
            files=hashes(part),
            source=hashes(name) if Path(name).is_dir() else {},
            date=date,
        )
        report.write(part)
    return Grafted(model=written, steps=made.steps)


def _grafted(model: PreTrainedModel, changes: tuple[str, ...], how: How) -> Grafted:
    if not changes:
        raise GraftError("no change: expected NAME=VALUE, as layers=24")
    steps = []
    for change, row, value in [(change, *_row(change)) for change in changes]:
        moved = row.move(Subject(model), value, how)
        report = proven(model, moved.model, about=change)
        if not report.passed:
            raise ParityError(report)
        steps.append(Step(change=change, said=moved.said, parity=report))
        model = moved.model
    return Grafted(model=model, steps=tuple(steps))


def _row(change: str) -> tuple[Change, str]:
    name, sign, value = change.partition("=")
    if not (sign and value):
        raise GraftError(f"{change!r}: expected NAME=VALUE, as layers=24")
    if name not in CHANGES:
        raise GraftError(f"unknown change {name!r}: {hint(name, CHANGES)}")
    return CHANGES[name], value


def _number(value: str, name: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise GraftError(f"{name}={value}: expected a whole number of at least 1")
    return int(value)


def _keep_tokenizer(name: str | Path, folder: Path) -> None:
    if Path(name).is_dir():
        copy_companions(next(f for f in (Path(name), Path(name) / "model") if (f / "config.json").is_file()), folder)
    elif (tokenizer := load_tokenizer(name)) is not None:
        tokenizer.save_pretrained(folder)
