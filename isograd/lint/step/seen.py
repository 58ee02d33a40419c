"""What preflight has seen of a run: batches, real updates, and what a loss reads and rewards.

Everything is done once, and put back; the groups of rules read it.
"""

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils._pytree import tree_flatten_with_path, tree_leaves

from isograd.errors import InputsError
from isograd.lint.findings import Finding, Severity
from isograd.lint.step.kept import Kept
from isograd.lint.step.losses import CLASSES, LossCall, LossMode
from isograd.lint.step.rates import Course, course
from isograd.lint.step.reading import Reading, of_few, reading_of
from isograd.lint.step.recorder import Forward, Recorder, Step
from isograd.lint.step.setup import Setup, moved
from isograd.trace.inputs import evaluating
from isograd.trace.record import answer

BATCHES = 24  # of an epoch that are looked at
UPDATES = 4
SECONDS = 40.0  # after which no further update begins
SEED = 0
FLAT = (torch.strided, torch.sparse_coo)
WIDE = 10_000_000  # predictions of a loss, from which on experiments are made with fewer rows


@dataclass(kw_only=True)
class Seen:
    """A run, and what was done with it.

    Attributes:
        epochs: the first batches of two epochs.
        record: of the updates.
        failed: what an update raised.
        digests: of the weights of this process before the updates and after them, where there are several.
        parts: the micro-batches of the first update, where they are known.
    """

    setup: Setup
    kept: Kept
    epochs: tuple[list[Any], list[Any]] = ([], [])
    record: Recorder
    failed: str = ""
    missed: list[str] = field(default_factory=list)
    digests: list[dict[str, str]] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)

    @property
    def batches(self) -> list[Any]:
        return self.epochs[0]

    @property
    def steps(self) -> list[Step]:
        return self.record.steps

    @property
    def forwards(self) -> list[Forward]:
        return self.record.forwards

    @property
    def updates(self) -> int:
        return len({step.update for step in self.steps})

    @cached_property
    def main(self) -> LossCall | None:
        """The loss with the most predictions in the first update."""
        calls = [call for call in self.record.losses if call.update == 0 and call.part <= 1] or self.record.losses
        first = [call for call in calls if call.part == calls[0].part] if calls else []
        return max(first, key=lambda call: call.given.numel(), default=None)

    @property
    def wide(self) -> bool:
        """Whether one pass is dear for the classes alone, as of a vocabulary of 200,000."""
        return self.main is not None and self.main.given.numel() > WIDE

    @cached_property
    def schedulers(self) -> list[Any]:
        """Those of the setup, and others that were stepped."""
        seen = {id(s): s for s in self.setup.schedulers} | {id(s): s for _, s, _ in self.record.scheduled}
        return [*seen.values()]

    @cached_property
    def courses(self) -> list[tuple[Any, Course]]:
        """Each schedule, and what it gives over the run."""
        known = [s for s in self.schedulers if isinstance(s, LRScheduler) and not isinstance(s, ReduceLROnPlateau)]
        return [(s, course(s, self.setup.steps or UPDATES)) for s in known]

    def peak(self, group: dict[str, Any]) -> float:
        """The highest rate of a group in the run, as far as it is known."""
        found = [float(group.get("lr", math.nan))]  # an optimizer of one's own may have none
        for scheduler, made in self.courses:
            found += [p for g, p in zip(scheduler.optimizer.param_groups, made.peaks, strict=False) if g is group]
        for step in self.steps:
            found += [r for g, r in zip(step.optimizer.param_groups, step.rates, strict=False) if g is group]
        return max(found)

    def leaves(self, batch: Any) -> dict[str, Tensor]:
        """The dense tensors of a batch by their place in it."""
        found, _ = tree_flatten_with_path(batch)
        named = {"".join(_step(p) for p in path).lstrip("."): leaf for path, leaf in found}
        named = {f"entry {name}" if name.isdigit() else name: leaf for name, leaf in named.items()}
        return {name: leaf for name, leaf in named.items() if isinstance(leaf, Tensor) and leaf.layout == torch.strided}

    def formed(self, batch: Any, *, counted: bool = False, seed: int = SEED, **nudges: Any) -> LossMode:
        """The losses of a batch, formed with the same random numbers each time; nothing learns from it.

        Args:
            counted: also measure which predictions move the whole loss.
        """
        mode = LossMode(self.setup.model, without_gradients=True, live=counted)
        vars(mode).update(nudges)  # `nudge` and `apart`
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(counted):
            torch.manual_seed(seed)
            with mode, self._reads(mode):
                mode.whole = self.setup.loss_of(batch)
            for call in mode.losses:
                call.count(mode.whole)
        return mode

    def answered(self, batch: Any, seed: int = SEED) -> tuple[float, list[Tensor], list[Tensor]]:
        """The loss of a batch in evaluation, what the model gave for it, and the loss's gradients by that."""
        model, made = self.record.called or self.setup.model, list[Tensor]()
        hook = model.register_forward_hook(
            lambda module, given, out: made.extend(x for x in [answer(out)] if x is not None)
        )
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), evaluating(self.setup.model):
                torch.manual_seed(seed)
                loss = self.setup.loss_of(batch)
                graded = [x for x in made if x.requires_grad]
                slopes = torch.autograd.grad(loss, graded, allow_unused=True) if loss.requires_grad and graded else ()
        finally:
            hook.remove()
        return float(loss.detach()), [x.detach() for x in made], [s.detach() for s in slopes if s is not None]

    def nudged(self, batch: Any, **nudges: Any) -> tuple[LossMode, float, bool]:
        """The losses of a batch, how far nudges move the whole loss, and whether its gradient stays."""
        plain, other = self.formed(batch, counted=True), self.formed(batch, counted=True, **nudges)
        before, after = (self.gradient(mode.whole) for mode in (plain, other))
        same = before.keys() == after.keys() and all(torch.allclose(after[k], before[k], 1e-4) for k in before)
        return plain, float(other.whole.detach() - plain.whole.detach()), same

    def gradient(self, loss: Tensor) -> dict[int, Tensor]:
        """Of a loss, by the parameters that have one."""
        wanted = [p for p in self.setup.model.parameters() if p.requires_grad]
        slopes = torch.autograd.grad(loss, wanted, allow_unused=True)
        return {id(p): slope for p, slope in zip(wanted, slopes, strict=True) if slope is not None}

    @contextmanager
    def _reads(self, mode: LossMode) -> Iterator[None]:
        """Numbers that the model is called with are kept in the mode."""

        def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
            mode.read += [
                x.detach() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.is_floating_point()
            ]

        hook = self.setup.model.register_forward_pre_hook(keep, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    @cached_property
    def counted(self) -> list[tuple[Any, Tensor, Tensor]]:
        """The first batches, the targets of their largest loss over classes, and which of these move the whole loss."""
        found = []
        with suppress(Exception):  # a loss that wants what is not there
            for batch in self.batches[: 1 if self.wide else 4]:
                calls = [call for call in self.formed(batch, counted=True).losses if call.name in CLASSES]
                found.append((batch, *max(calls, key=lambda call: call.given.numel()).rows[1:]))
        return found

    @cached_property
    def reading(self) -> Reading | None:
        """How the predictions of the main loss, over classes, lie to ids of the batch; None where there are none."""
        for batch in self.batches[:3]:
            try:
                found = (self.wide and of_few(self, batch)) or reading_of(self, batch)
            except Exception as error:  # a loss that wants gradients, or another's own code
                self.missed.append(f"what the loss reads: {type(error).__name__}: {' '.join(str(error).split())}"[:160])
                return None
            if found is not None:
                return found
        return None


def _step(part: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(part, name):
            return f".{getattr(part, name)}"
    return f".{part}"


def look(setup: Setup) -> Seen:
    """Take batches, and make some real updates; what they change is put back when `Seen.kept` is restored.

    Raises:
        InputsError: the data raises, or the model has parameters without a shape.
    """
    if any(map(is_lazy, (*setup.model.parameters(), *setup.model.buffers()))):
        raise InputsError("the model has lazy modules: call it once on a batch, before the optimizer is made")
    roots = (
        setup,
        setup.model,
        *setup.optimizers,
        *setup.schedulers,
        setup.scaler,
        setup.data,
        setup.step,
        setup.given,
    )
    kept = Kept(*(root for root in roots if root is not None))
    kept.also = setup.undo
    missed = [f"the position in {name}: an iterator that has begun cannot go back" for name in sorted(kept.lost)]
    began = time.perf_counter()
    record = Recorder(setup.model, setup.optimizers or None, counts=setup.train is not None)
    seen = Seen(setup=setup, kept=kept, record=record, missed=missed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            try:
                _take(setup, seen)
            except Exception as error:
                raise InputsError(f"data raised {_said(error)}") from error
            digests = [digest(setup.model)]
            try:
                _updates(setup, seen, record, began)
            except (Exception, SystemExit) as error:  # a program that does not run is reported as that
                seen.failed = _said(error)
        except BaseException:
            kept.restore()
            raise
    seen.digests = [*digests, digest(setup.model)] if digests[0] else []
    kept.restore()
    return seen


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _take(setup: Setup, seen: Seen) -> None:
    """The first batches of two epochs."""
    if iter(setup.data) is setup.data:
        seen.missed.append("the position in the data: it is an iterator, and cannot go back; pass what makes it")
        seen.epochs = setup.batches(max(BATCHES, UPDATES * setup.accumulate)), []
    else:
        first = setup.batches(BATCHES)
        if setup.train is not None and hasattr(setup.data, "set_epoch"):  # as the trainer does
            setup.data.set_epoch(1)
        seen.epochs = first, setup.batches(BATCHES)
        if setup.train is not None and hasattr(setup.data, "set_epoch"):
            setup.data.set_epoch(0)


def _updates(setup: Setup, seen: Seen, record: Recorder, began: float) -> None:
    record.scaler_is(setup.scaler)
    with record:
        if setup.train is not None:
            setup.train(UPDATES)
            return
        wanted = setup.accumulate
        batches = (
            seen.batches if len(seen.batches) >= wanted * UPDATES else setup.batches(wanted * UPDATES) or seen.batches
        )
        for update in range(UPDATES):
            record.update = update
            at = update * wanted
            part = [moved(batches[(at + i) % len(batches)], setup.device) for i in range(wanted)]
            seen.parts = seen.parts or part
            setup.update(part)
            record.scaler_is(setup.scaler)
            if time.perf_counter() - began > SECONDS:
                break


def tensors_in(batch: Any) -> list[Tensor]:
    """Its dense tensors, and the values of sparse ones."""
    found = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    return [
        leaf.coalesce().values() if leaf.layout == torch.sparse_coo else leaf for leaf in found if leaf.layout in FLAT
    ]


def mark(batch: Any) -> str:
    """What tells batches apart: a digest of their tensors."""
    found = hashlib.sha256()
    for tensor in tensors_in(batch):
        found.update(str(tuple(tensor.shape)).encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def digest(model: nn.Module) -> dict[str, str]:
    """Of each parameter that is whole on every process; nothing where there is one process."""
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return {}
    found = {}
    for name, p in model.named_parameters():
        if not isinstance(p, DTensor):
            data = p.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            found[name] = hashlib.sha256(data).hexdigest()
    return found


Results = Iterator[Finding | str]  # of a group of rules: findings, and sentences of what is well
Rules = Callable[[Seen], Results]


def finding(
    code: str, severity: Severity, message: str, remedy: str, measured: float = 1.0, address: str = ""
) -> Finding:
    return Finding(code=code, severity=severity, address=address, measured=measured, message=message, remedy=remedy)
