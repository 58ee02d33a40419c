"""The resume: a step after save and load is the step that would have been."""

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isograd.lint.step.kept import Kept
from isograd.lint.step.seen import SEED, Results, Seen, finding
from isograd.lint.step.setup import Setup, moved

BEFORE = 3  # updates before it is saved


def look(seen: Seen) -> Results:
    """Save after some updates, load into the setup as it was before them, and compare: states, and one update more."""
    setup = seen.setup
    if setup.save is None or setup.load is None:
        return
    batches = seen.batches or setup.batches(setup.accumulate)
    if not batches:
        return
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        path = str(Path(folder, "checkpoint.pt"))
        fresh = Kept(setup, setup.model, *setup.optimizers, *setup.schedulers, setup.step, setup.save, setup.load)
        try:
            for at in range(BEFORE):
                _update(setup, batches, at)
            saved = dict(_states(setup))
            setup.save(path)
            _update(setup, batches, BEFORE)
            went_on = dict(_states(setup))
            fresh.restore()
            setup.load(path)
            loaded = dict(_states(setup))
            _update(setup, batches, BEFORE)
            resumed = dict(_states(setup))
        except Exception as error:
            yield finding(
                "resume-fails",
                "error",
                f"save and load, then one update: {type(error).__name__}:"
                f" {str(error).splitlines()[0][:150] if str(error) else ''}",
                "load what was saved",
                1.0,
            )
            return
        finally:
            fresh.restore()
    lost = sorted({_kind(name) for name in saved if not _same(saved[name], loaded.get(name))})
    apart = [name for name in went_on if _kind(name) == "model" and not _same(went_on[name], resumed.get(name))]
    if lost:
        yield finding(
            "resume-loses",
            "error",
            f"load does not bring back the state of the {' and the '.join(lost)}"
            + (": the next update differs from the one without the pause" if apart else ""),
            f"save and load {', '.join(f'{name}.state_dict()' for name in lost)}",
            float(len(lost)),
        )
    elif apart:
        yield finding(
            "resume-differs",
            "warning",
            f"the update after load differs from the one without the pause in {len(apart)} parameters, though all"
            " states are back",
            "look for state beside model, optimizer and schedule: an average of weights, a counter, random numbers",
            float(len(apart)),
            apart[0].rpartition(" ")[2],
        )
    else:
        yield "the update after save and load is bit-equal to the one without"


def _update(setup: Setup, batches: list[Any], at: int) -> None:
    torch.manual_seed(SEED + at)
    part = [batches[(at * setup.accumulate + i) % len(batches)] for i in range(setup.accumulate)]
    setup.update([moved(batch, setup.device) for batch in part])


def _kind(name: str) -> str:
    return name.partition(" ")[0]


def _states(setup: Setup) -> Iterator[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = [("model", setup.model)]
    parts += [("optimizer", one) for one in setup.optimizers]
    parts += [("scheduler", one) for one in setup.schedulers]
    parts += [] if setup.scaler is None else [("scaler", setup.scaler)]
    parts += [(f"{name}", one) for name, one in _beside(setup)]
    for number, (what, one) in enumerate(parts):
        state = one.state_dict()
        for name, value in _flat(state, ""):
            yield f"{what} {number}{name}", value.detach().clone() if isinstance(value, Tensor) else value


def _beside(setup: Setup) -> Iterator[tuple[str, nn.Module]]:
    """Modules that the loop's own update holds beside the model, as an average of its weights."""
    cells = getattr(setup.step, "__closure__", None) or ()
    names = setup.step.__code__.co_freevars if setup.step is not None and hasattr(setup.step, "__code__") else ()
    for name, cell in zip(names, cells, strict=False):
        try:
            held = cell.cell_contents
        except ValueError:
            continue
        if (
            isinstance(held, nn.Module)
            and held is not setup.model
            and not any(held is m for m in setup.model.modules())
        ):
            yield name, held


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(part, f"{name} {key}")
    elif isinstance(value, list | tuple):
        for at, part in enumerate(value):
            yield from _flat(part, f"{name} {at}")
    elif isinstance(value, Tensor | int | float | bool | str) or value is None:
        yield name, value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
    return type(a) is type(b) and bool(a == b or (a != a and b != b))
