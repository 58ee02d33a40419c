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
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_map

from isograd.errors import InputsError
from isograd.lint.findings import Finding, Severity
from isograd.lint.step.kept import Kept
from isograd.lint.step.rates import Course, course
from isograd.lint.step.recorder import CLASSES, Forward, LossCall, LossMode, Recorder, Step
from isograd.lint.step.setup import Setup, moved
from isograd.trace.record import answer

BATCHES = 24  # of an epoch that are looked at
UPDATES = 4
SECONDS = 40.0  # after which no further update begins
PROBES = 6  # changed inputs that a loss is formed for
FEWEST, SLOW = 4, 5.0  # changes, after which seconds end it
SEED = 0
WIDE = 10_000_000  # predictions of a loss, from which on experiments are made with fewer rows
FEW = 4  # rows


@dataclass(kw_only=True)
class Seen:
    """A run, and what was done with it.

    Attributes:
        epochs: the first batches of two epochs.
        record: of the updates.
        failed: what an update raised.
        digests: of the weights of this process before the updates and after them, where there are several.
    """

    setup: Setup
    kept: Kept
    epochs: tuple[list[Any], list[Any]] = ([], [])
    record: Recorder
    failed: str = ""
    missed: list[str] = field(default_factory=list)
    digests: list[dict[str, str]] = field(default_factory=list)

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

    def of_kind(self, *names: str) -> list[LossCall]:
        return [call for call in self.record.losses if call.name in names]

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

    def formed(self, batch: Any, *, counted: bool = False, seed: int = SEED) -> LossMode:
        """The losses of a batch, formed with the same random numbers each time; nothing learns from it.

        Args:
            counted: also measure which predictions move the whole loss.
        """
        mode = LossMode(self.setup.model, without_gradients=True, live=counted)
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(counted):
            torch.manual_seed(seed)
            with mode, self._reads(mode):
                whole = self.setup.loss_of(batch)
            for call in mode.losses:
                call.count(whole)
        return mode

    def answered(self, batch: Any, seed: int = SEED) -> tuple[float, list[Tensor], list[Tensor]]:
        """The loss of a batch in evaluation, what the model gave for it, and the loss's gradients by that."""
        model, made = self.record.called or self.setup.model, list[Tensor]()
        modes = [(module, module.training) for module in model.modules()]
        hook = model.register_forward_hook(
            lambda module, given, out: made.extend(x for x in [answer(out)] if x is not None)
        )
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.manual_seed(seed)
                self.setup.model.eval()
                loss = self.setup.loss_of(batch)
                graded = [x for x in made if x.requires_grad]
                slopes = torch.autograd.grad(loss, graded, allow_unused=True) if loss.requires_grad and graded else ()
        finally:
            hook.remove()
            for module, training in modes:
                module.training = training
        return float(loss.detach()), [x.detach() for x in made], [s.detach() for s in slopes if s is not None]

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
    def reading(self) -> "Reading | None":
        """How the predictions of the main loss, over classes, lie to ids of the batch; None where there are none."""
        for batch in self.batches[:3]:
            try:
                found = (self.wide and _of_few(self, batch)) or reading_of(self, batch)
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
            part = [batches[(at + i) % len(batches)] for i in range(wanted)]
            setup.update([moved(batch, setup.device) for batch in part])
            record.scaler_is(setup.scaler)
            if time.perf_counter() - began > SECONDS:
                break


@dataclass(kw_only=True)
class Reading:
    """Predictions over classes, and ids of the batch that are their targets.

    Attributes:
        name: of the ids in the batch.
        offset: the target of row k of a sequence is id k + offset; None where targets are none of the ids.
        share: of the rows for which that holds.
        ahead: how many places the target lies after the last id that its prediction reads: 1 for the next token; None
            where predictions read ids on both sides.
        both: whether predictions read later ids.
        visible: share of the targets that a prediction reads, of those that were tried.
        tried: so many.
        crossed: whether one sequence moves predictions that stand where other sequences' targets do, at equal steps:
            (time, batch) flattened beside (batch, time).
        alone: whether they are the only ids that the model looks up: no source beside a target.
    """

    name: str
    ids: Tensor
    offset: int | None
    share: float
    ahead: int | None
    both: bool
    visible: float
    tried: int
    crossed: bool = False
    alone: bool = True


def reading_of(seen: Seen, batch: Any) -> Reading | None:
    """By comparing targets with ids, and by changing single ids: see `Reading`."""
    mode = seen.formed(batch, counted=True)
    calls = [call for call in mode.losses if call.name in CLASSES]
    if not calls:
        return None
    which = max(range(len(calls)), key=lambda i: calls[i].given.numel())
    given, target, counts = calls[which].rows
    found = None
    leaves = [leaf for leaf in seen.leaves(batch).values() if leaf.ndim > 1 and not leaf.is_floating_point()]
    looked_up = {leaf.untyped_storage().data_ptr() for leaf in leaves} & mode.looked_up
    for name, ids in seen.leaves(batch).items():
        if (
            ids.is_floating_point()
            or ids.ndim != 2
            or len(target) % len(ids)
            or ids.shape[1] < 4
            or ids.dtype == torch.bool
        ):
            continue
        length = len(target) // len(ids)
        if abs(length - ids.shape[1]) > 2:
            continue
        rows = target.view(len(ids), length)
        asked = counts.view(len(ids), length)
        looked = ids.untyped_storage().data_ptr() in mode.looked_up
        offset, share = offset_of(ids, rows, asked)
        if not looked and looked_up:
            continue
        dynamic = _changed(seen, batch, ids, which, given, rows, asked, offset)
        if dynamic is None:
            continue
        ahead, both, visible, tried = dynamic
        one = Reading(
            name=name,
            ids=ids,
            offset=offset,
            share=share,
            ahead=ahead,
            both=both,
            visible=visible,
            tried=tried,
            crossed=offset is not None and _crossed(seen, batch, ids, which, given, len(ids)),
            alone=len(looked_up) < 2,
        )
        if found is None or (one.offset is not None and found.offset is None):
            found = one
    return found


def _of_few(seen: Seen, batch: Any) -> Reading | None:
    """`reading_of` the first rows, where all tensors have as many and the loss is formed of fewer."""
    leaves = tree_leaves(batch)
    counts = {len(x) if isinstance(x, Tensor) and x.ndim else 0 for x in leaves}
    if len(counts) != 1 or not counts.pop() > FEW:
        return None
    with suppress(Exception):
        return reading_of(seen, tree_map(lambda x: x[:FEW], batch))
    return None


def offset_of(ids: Tensor, rows: Tensor, asked: Tensor) -> tuple[int | None, float]:
    """By how many places targets lie after their row, clearly better than any other number; and for what share.

    >>> x = torch.arange(40).view(2, 20) * 7 % 11
    >>> offset_of(x, x.roll(-1, 1), torch.ones(2, 20).bool())[0], offset_of(x, x * 0, torch.ones(2, 20).bool())[0]
    (1, None)
    """
    shares = {}
    length, width = rows.shape[1], ids.shape[1]
    for offset in range(-2, 5):
        low, high = max(0, -offset), min(length, width - offset)
        mine = asked[:, low:high]
        if high <= low or int(mine.sum()) < 4:
            continue
        equal = (rows[:, low:high] == ids[:, low + offset : high + offset])[mine]
        shares[offset] = float(equal.float().mean())
    if not shares:
        return None, 0.0
    best = max(shares, key=lambda o: shares[o])
    second = max((s for o, s in shares.items() if o != best), default=0.0)
    return (best, shares[best]) if shares[best] > 0.9 and second < shares[best] - 0.1 else (None, shares[best])


def _changed(
    seen: Seen,
    batch: Any,
    ids: Tensor,
    which: int,
    given: Tensor,
    rows: Tensor,
    asked: Tensor,
    offset: int | None,
) -> tuple[int | None, bool, float, int] | None:
    """What changes where one id of each sequence is another."""
    count, width = ids.shape
    length = rows.shape[1]
    values = ids.unique()
    if len(values) < 2:
        return None
    size = given.float().abs().max() * 1e-5
    gaps: list[int] = []
    shown = tried = earlier = probes = 0
    began = time.perf_counter()
    for at in range(PROBES):
        if probes >= FEWEST and time.perf_counter() - began > SLOW:
            break
        place = min(width - 2, 1 + (width - 2) * (at + 1) // (PROBES + 1))
        places = [(place + row) % max(width - 2, 1) + 1 for row in range(count)]
        other = ids.clone()
        for row, p in enumerate(places):
            other[row, p] = values[(torch.searchsorted(values, ids[row, p]) + 1 + at) % len(values)]
        mode = seen.formed(_with(batch, ids, other))
        calls = [call for call in mode.losses if call.name in CLASSES]
        if len(calls) <= which or calls[which].rows[0].shape != given.shape:
            return None
        moves = (calls[which].rows[0].float() - given.float()).abs().amax(-1).view(count, length) > size
        for row, p in enumerate(places):
            if other[row, p] == ids[row, p]:
                continue
            where = moves[row].nonzero().flatten()
            if not len(where):
                continue
            probes += 1
            first = int(where[0])
            gaps.append(first - p)
            earlier += first < p - 1
            if offset is not None and 0 <= p - offset < length and bool(asked[row, p - offset]):
                tried += 1
                shown += bool(moves[row, p - offset])
    if not probes:
        return None
    both = earlier > probes / 2
    gap = max(set(gaps), key=gaps.count)
    ahead = None if both or offset is None else gap + offset
    return ahead, both, shown / tried if tried else 0.0, tried


def _crossed(seen: Seen, batch: Any, ids: Tensor, which: int, given: Tensor, count: int) -> bool:
    other = ids.clone()
    other[0] = ids[0].roll(1)
    calls = [call for call in seen.formed(_with(batch, ids, other)).losses if call.name in CLASSES]
    if len(calls) <= which or calls[which].rows[0].shape != given.shape or count < 2:
        return False
    size = given.float().abs().max() * 1e-5
    moved = ((calls[which].rows[0].float() - given.float()).abs().amax(-1) > size).nonzero().flatten()
    length = len(given) // count
    return len(moved) > 2 and bool((moved % count == 0).all()) and bool((moved >= length).any())


def _with(batch: Any, old: Tensor, new: Tensor) -> Any:
    """The batch with another tensor in one place."""
    return tree_map(lambda leaf: new if leaf is old else leaf, batch)


def tensors_in(batch: Any) -> list[Tensor]:
    """Its dense tensors, and the values of sparse ones."""
    found = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    return [leaf.coalesce().values() if leaf.layout == torch.sparse_coo else leaf for leaf in found if _flat(leaf)]


def _flat(leaf: Tensor) -> bool:
    return leaf.layout in (torch.strided, torch.sparse_coo)


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
