"""The data: finite, different from batch to batch and from epoch to epoch, with targets that say something."""

import math
import random
import warnings
from collections import Counter
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from isograd.lint.step.losses import CLASSES, NUMBERS
from isograd.lint.step.reading import replaced
from isograd.lint.step.seen import Results, Seen, finding, mark, tensors_in
from isograd.trace.inputs import evaluating, run
from isograd.trace.record import answer

FAR = 20.0  # of a mean or a standard deviation
COPIED = 0.9999
UNRELATED = 0.1  # of a correlation
FAR_ROWS = 64  # of the data, in equal steps
ROWS_WITHOUT = 4  # targets, at least
AGAIN = 8  # rows that are read twice
SMALL = 10_000_000  # entries of what a data set holds
REPEATED = 0.1  # of the rows of a contrastive batch
FEWER = 8  # times as many rows as weights
SHARED = 8  # records that two workers give, at least
SEQUENTIAL = ("SequentialSampler",)


def look(seen: Seen) -> Results:
    """All of the data."""
    batches, again = seen.epochs
    if not batches:
        yield finding("data-empty", "error", "the data gives no batch", "pass data that can be iterated", 0.0)
        return
    yield from _read_again(seen)  # before another rule reads rows
    yield from _finite(seen)
    if all(tensors_in(b) for b in batches):
        yield from _repeated(seen, [mark(b) for b in batches], [mark(b) for b in again])
    yield from _targets(seen)
    yield from _numbers(seen)
    yield from _drawn(seen)
    yield from _rows_without(seen)
    yield from _workers(seen)
    yield from _negatives(seen)


def _finite(seen: Seen) -> Results:
    for at, batch in enumerate(seen.batches):
        for name, leaf in seen.leaves(batch).items():
            if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
                share = float((~torch.isfinite(leaf)).float().mean())
                if "mask" in name or "bias" in name:
                    continue
                yield finding(
                    "data-not-finite",
                    "error",
                    f"{share:.1%} of {name or 'the batch'} is NaN or inf in batch {at + 1}",
                    "drop or fill such rows where the data is read",
                    share,
                )
                return


def _repeated(seen: Seen, marks: list[str], again: list[str]) -> Results:
    count = len(marks)
    if count > 2 and len(set(marks)) == 1:
        yield finding(
            "same-batch",
            "error",
            f"the first {count} batches are equal",
            "take the next batch in every step",
            float(count),
        )
        return
    doubled = count - len(set(marks))
    if count > 3 and doubled > count / 4:
        yield finding(
            "same-batch",
            "warning",
            f"{doubled} of the first {count} batches of an epoch have been in it before",
            "draw without replacement, or seed the workers apart",
            doubled / count,
        )
    rows = [row for batch in seen.batches[:4] for row in _equal_rows(batch)]
    if rows and min(rows) > 0.99:
        yield finding(
            "same-rows", "error", "all rows of a batch are equal", "draw a new sample for each row", min(rows)
        )
    loader = seen.setup.data
    drawn = getattr(loader, "sampler", None)
    if isinstance(drawn, WeightedRandomSampler) and FEWER * len(drawn.weights) < len(loader.dataset):  # type: ignore[attr-defined]
        every, some = len(loader.dataset), len(drawn.weights)  # type: ignore[attr-defined]
        message = f"WeightedRandomSampler has {some} weights for {every} rows: all but the first {some} are never drawn"
        remedy = "give it one weight per row: class_weights[labels]"
        yield finding("rows-never-drawn", "warning", message, remedy, some / every)
    sampler = type(drawn).__name__
    same = len(marks) > 2 and marks == again
    if same and sampler in ("RandomSampler", "WeightedRandomSampler"):
        yield finding(
            "epochs-alike",
            "warning",
            f"two epochs begin with the same {count} batches in the same order, though {sampler} shuffles",
            "do not seed its generator anew in every epoch",
            1.0,
        )
    elif same:  # the loop may call set_epoch, which is not seen here
        why = "unless set_epoch is called" if sampler == "DistributedSampler" else "(nothing shuffles)"
        yield f"{count} batches, each its own; a second epoch has the same order {why}"
    else:
        yield f"{count} batches, each its own{'; a second epoch has another order' if again else ''}"


def _workers(seen: Seen) -> Results:
    """Two workers of a DataLoader: do they give the same records of a stream, or draw the same random numbers?"""
    loader = seen.setup.data
    if not isinstance(loader, DataLoader) or loader.num_workers < 2:
        return
    if isinstance(loader.dataset, IterableDataset):
        given = [[row for b in seen.batches[at :: loader.num_workers] for row in _row_marks(b)] for at in range(2)]
        one, other = map(set, given)
        shared = len(one & other)
        if shared >= SHARED and shared > 0.3 * min(len(one), len(other)) and len(given[0]) - len(one) < shared / 4:
            message = f"of the first {len(one)} records of worker 0 {shared} came from worker 1, too: each of the"
            message += f" {loader.num_workers} workers reads the whole stream"
            remedy = "give each worker its share in __iter__: islice(records, info.id, None, info.num_workers),"
            remedy += " info = torch.utils.data.get_worker_info()"
            yield finding("workers-alike", "error", message, remedy, float(shared))
        return
    at, beside = [*islice(loader.sampler, 2), None, None][:2]
    if loader.batch_size is None or beside is None:
        return
    if len({mark(loader.collate_fn([loader.dataset[at]])) for _ in range(2)}) == 1:
        return
    options = {name: getattr(loader, name) for name in ("collate_fn", "worker_init_fn", "multiprocessing_context")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two workers, where there is one core
        drawn, after = (  # of the first worker, the second, the first
            [*map(mark, DataLoader(loader.dataset, batch_sampler=rows, num_workers=2, **options))]
            for rows in ([[at]] * 4, [[beside], [beside], [at]])
        )
    first, same, again, alike = drawn  # after another row it is not the first again, as where readings are counted
    if first != again and first == same and again == alike and after[2] != first:
        message = "one row of the data, read twice, is drawn anew, and two workers draw the same two: each has a copy"
        message += " of one generator in one state"
        remedy = "draw from the generators of torch, numpy or random, which a DataLoader seeds for each worker, or seed"
        remedy += " the dataset's own in worker_init_fn by torch.initial_seed()"
        yield finding("workers-alike", "error", message, remedy)


def _read_again(seen: Seen) -> Results:
    """Rows that are others when they are read once more with the same random numbers, since they are given away as the
    memory that the data holds, and edited there.
    """
    rows = getattr(seen.setup.data, "dataset", None)
    if rows is None or isinstance(rows, IterableDataset):
        return

    def read() -> tuple[list[str], set[int], dict[int, str]]:
        """Marks of the rows, where these lie in memory, and what the data holds by its place in memory."""
        torch.manual_seed(0), np.random.seed(0), random.seed(0)  # restored with all else
        given = [rows[at] for at in some]
        there = {x.untyped_storage().data_ptr() for x in tree_leaves(given) if isinstance(x, Tensor)}
        marks = [mark(row) for row in given]
        return marks, there, {place: mark([x]) for place, x in _held(rows).items() if place in there}

    try:
        some = [int(at) for at in islice(iter(seen.setup.data.sampler), AGAIN)]  # type: ignore[attr-defined]
        (first, _, before), (again, _, after) = read(), read()
    except Exception:  # a data set of its own kind
        return
    changed = sum(a != b for a, b in zip(first, again, strict=True))
    if changed and any(before[place] != after[place] for place in before.keys() & after.keys()):
        message = f"{changed} of {len(some)} rows of the data are others when they are read again: they lie in the"
        message += " data set's own memory, and reading them writes to it"
        remedy = "change a copy: row = self.rows[i].clone() (copy.deepcopy of a dict), then edit it"
        yield finding("data-changes", "error", message, remedy, changed / len(some))


def _held(rows: Any) -> dict[int, Tensor]:
    """The tensors and arrays of numbers that a data set holds, by their place in memory; no large ones, nor files."""
    own = vars(rows) if hasattr(rows, "__dict__") else {}
    leaves = [x for name, held in own.items() if name != "dataset" for x in tree_leaves(held)]
    arrays = [
        x for x in leaves if isinstance(x, np.ndarray) and not isinstance(x, np.memmap) and x.dtype.kind in "fiub"
    ]
    found = [x for x in leaves if isinstance(x, Tensor)] + [torch.from_numpy(x) for x in arrays]
    inner = own.get("dataset")
    small = {x.untyped_storage().data_ptr(): x for x in found if x.layout == torch.strided and x.numel() <= SMALL}
    return small | ({} if inner is None else _held(inner))


def _negatives(seen: Seen) -> Results:
    """Rows of a batch whose own partner stands in it once more, as a negative of the others: of scores (rows, rows)
    whose diagonal is right.
    """
    call = seen.main
    if call is None or call.name != "cross_entropy" or call.target.is_floating_point() or call.given.ndim != 2:
        return
    count, repeated = 0, 0
    for batch in seen.batches[:4]:
        with suppress(Exception), evaluating(seen.setup.model):
            for one in seen.formed(batch).losses[:1]:
                n = len(one.target)
                if not torch.equal(one.target.cpu(), torch.arange(n)) or one.given.shape[1] < n or n < 4:
                    return
                columns, rows = one.given[:, :n].float(), [x for x in tensors_in(batch) if x.ndim > 1 and len(x) == n]
                kinds = [x.flatten(1).unique(dim=0, return_inverse=True)[1] for x in rows]
                same = [kind[:, None] == kind for kind in kinds]
                if not same:
                    return
                gaps = torch.cdist(columns.T, columns.T) + torch.eye(n, device=columns.device) * columns.abs().max() * n
                alike = torch.stack(same).any(0).to(gaps.device) & (gaps < 1e-4 * columns.norm(dim=0))
                repeated += int(alike.any(0).sum())
                count += n
    if count and repeated > count * REPEATED:
        yield finding(
            "false-negatives",
            "warning",
            f"{repeated} of {count} rows have a partner that stands in the same batch once more, where it counts as a"
            " negative",
            "draw batches in which no partner is twice, or leave equal ones out of the negatives:"
            " scores.masked_fill(equal & ~eye, -inf)",
            repeated / count,
        )


def _row_marks(batch: Any) -> list[str]:
    leaves = [leaf for leaf in tensors_in(batch) if leaf.ndim]
    return [mark([leaf[row] for leaf in leaves if len(leaf) > row]) for row in range(len(leaves[0]) if leaves else 0)]


def _equal_rows(batch: Any) -> list[float]:
    some = [leaf for leaf in tensors_in(batch)[:1] if leaf.ndim > 1 and len(leaf) > 2 and leaf[0].numel() > 3]
    return [float((leaf[1:] == leaf[:1]).flatten(1).all(1).float().mean()) for leaf in some]


def _drawn(seen: Seen) -> Results:
    """Targets that are drawn anew each time, as the noise of a diffusion model: is it in what the model reads?"""
    call = seen.main
    if call is None or call.name not in NUMBERS or not seen.batches:
        return
    try:
        one, other = (seen.formed(seen.batches[0], seed=seed) for seed in (0, 1))
    except Exception:
        return
    a, b = (max(m.losses, key=lambda c: c.given.numel(), default=None) for m in (one, other))
    if a is None or b is None or a.target.shape != b.target.shape or torch.equal(a.target, b.target):
        return
    change = (a.target - b.target).flatten().double()
    best = 0.0
    for x, y in zip(one.read, other.read, strict=False):
        if x.numel() == change.numel() and x.is_floating_point() and x.shape == y.shape:
            moved = (x - y).flatten().double()
            if float(moved.std()) > 0 and float(change.std()) > 0:
                best = max(best, abs(float(torch.corrcoef(torch.stack([moved, change]))[0, 1])))
    same = [x for x in one.read if x.numel() == change.numel()]
    if same and best < UNRELATED and change.numel() > 500:
        yield finding(
            "target-unrelated",
            "error",
            "the target is drawn anew for each batch, and what the model reads does not change with it"
            f" (correlation {best:.2f}): it cannot be predicted",
            "draw the noise once, and use the same for the input and for the target",
            best,
        )


def _targets(seen: Seen) -> Results:
    """Of classes: present, several, not sorted by class; of all that a loss has got."""
    calls = [c for c in seen.record.losses if c.name in CLASSES and not c.target.is_floating_point()]
    empty = [c for c in calls if c.training and not int(c.rows[2].sum())]
    first = seen.main
    if empty:
        yield finding(
            "batch-without-targets",
            "error",
            f"{len(empty)} of {len(calls)} losses have no target that counts: 0 / 0, or nothing to learn",
            "leave such batches out, or cut them so that an answer is in them",
            len(empty) / len(calls),
        )
    if first is None or first.name not in CLASSES or first.target.is_floating_point():
        yield from _sorted_batches(seen)
        return
    rows = [c.rows for c in calls if c.given.shape[-1] == first.given.shape[-1] and int(c.rows[2].sum())]
    if not rows:
        return
    classes = rows[0][0].shape[-1]
    present = [set(t[m].tolist()) for _, t, m in rows]
    every = set().union(*present)
    sizes = [int(m.sum()) for _, _, m in rows]
    if len(every) == 1 and sum(sizes) > 8 and _from_data(seen, next(iter(every))):
        yield finding(
            "targets-constant",
            "error",
            f"all {sum(sizes)} targets seen are class {next(iter(every))}",
            "print the targets where they are made: another column, a default or padding was read",
            float(sum(sizes)),
        )
    elif len(every) > 1 and all(len(p) == 1 for p in present) and min(sizes) > 3:
        yield finding(
            "data-sorted",
            "error",
            f"each batch has targets of one class only, and {len(every)} classes occur: the data is sorted",
            "shuffle the data: DataLoader(..., shuffle=True)",
            float(len(every)),
        )
    else:
        counted = Counter(x for _, t, m in rows for x in t[m].tolist())
        top = counted.most_common(1)[0][1] / sum(counted.values())
        ignored = 1 - sum(sizes) / max(1, sum(len(t) for _, t, _ in rows))
        what = f"{len(every):,} of {classes:,} classes occur, the most frequent in {top:.0%}"
        yield what + (
            f"; {ignored:.0%} of the positions have no target" if ignored else "; every position has a target"
        )
    yield from _sorted_batches(seen)


def _rows_without(seen: Seen) -> Results:
    """Rows of a causal model that have no target and, read otherwise, leave the loss as it is: they teach nothing."""
    read = seen.reading
    if read is None or read.offset is None or read.both:
        return
    bare: list[bool] = []
    for batch, _, counts in seen.counted:
        ids = seen.leaves(batch)[read.name]
        if len(counts) % len(ids) == 0:
            here = ~counts.view(len(ids), -1).any(1) & (ids != ids[:, :1]).any(1)  # a row of padding fills a batch up
            other = replaced(batch, ids, torch.where(here[:, None], ids.flip(1), ids))
            wholes = [seen.formed(one).whole for one in (batch, other) if here.any()]
            bare += here.tolist() if not wholes or torch.allclose(wholes[0], wholes[1], rtol=1e-6) else []
    if sum(bare) >= ROWS_WITHOUT and sum(bare) > len(bare) / 10:
        message = f"{sum(bare)} of {len(bare)} rows have no target that counts: with other ids there the loss is equal"
        remedy = "look how targets are marked in such a row: a marker of the answer is not found where it is tokenized"
        remedy += " otherwise within the text, or a prompt fills the row"
        yield finding("batch-without-targets", "warning", message, remedy, sum(bare) / len(bare))


def _from_data(seen: Seen, value: int) -> bool:
    """Whether a batch holds this constant: a loss may make it, where the first of several candidates is right."""
    leaves = [x for batch in seen.batches[:2] for x in tensors_in(batch) if x.numel() > 1 and x.dtype != torch.bool]
    return any(bool(((x == value) | (x == -100)).all()) for x in leaves)


def _sorted_batches(seen: Seen) -> Results:
    """Labels in the order of their classes: neighbours alike, or none of the classes that stand further back."""
    labels = [label for batch in seen.batches for label in [_label(batch)] if label is not None]
    if len(labels) < 4 or len(whole := torch.cat(labels).long()) < 32:
        return
    far = _far(seen)
    if far is not None and len(whole.unique()) == 1 and len(far.unique()) > 1:
        yield finding(
            "data-sorted",
            "error",
            f"the first {len(whole)} labels are {int(whole[0])}, and later ones are others: the data is sorted by"
            " class",
            "shuffle the data: DataLoader(..., shuffle=True)",
            float(len(whole)),
        )
    if not 1 < whole.unique().numel() <= len(whole) / 4:
        return
    same = float((whole[1:] == whole[:-1]).float().mean())
    share = torch.bincount(whole - whole.min()).float() / len(whole)
    chance = float((share * share).sum())
    if same > 0.9 and same > chance + 5 * math.sqrt(chance * (1 - chance) / len(whole)) + 0.2:
        yield finding(
            "data-sorted",
            "warning",
            f"{same:.0%} of neighbours have the same class, and {chance:.0%} would by chance",
            "shuffle the data: DataLoader(..., shuffle=True)",
            same,
        )


def _far(seen: Seen) -> Tensor | None:
    """Labels from all over the data, where a loader goes through it in order."""
    loader = seen.setup.data
    if type(getattr(loader, "sampler", None)).__name__ not in SEQUENTIAL:
        return None
    try:
        count = len(loader.dataset)  # type: ignore[attr-defined]
        rows = [loader.dataset[int(i)] for i in torch.linspace(0, count - 1, FAR_ROWS).long()]  # type: ignore[attr-defined]
        return _label(loader.collate_fn(rows))  # type: ignore[attr-defined]
    except Exception:  # a data set of its own kind
        return None


def _label(batch: Any) -> Tensor | None:
    """Classes, or zeros and ones, a number for each row."""
    leaves = [x for x in tensors_in(batch) if x.ndim == 1 and x.dtype != torch.bool and len(x) > 1]
    whole = [x for x in leaves if not x.is_floating_point() or bool(((x == 0) | (x == 1)).all())]
    rows = [x for x in tensors_in(batch) if x.ndim > 1]  # without: tokens of all rows one after the other
    return whole[-1] if whole and (rows or len(whole) == 1) else None


def _numbers(seen: Seen) -> Results:
    """Inputs and targets that are numbers: of a size that a network takes, and no target among the inputs."""
    call = seen.main
    if call is not None and call.name in NUMBERS:
        targets = torch.cat([c.target.flatten().float() for c in seen.record.losses if c.name in NUMBERS][:50])
        mean, std = float(targets.mean()), float(targets.std())
        if std == 0 and targets.numel() > 8:
            yield finding(
                "targets-constant",
                "error",
                f"all {targets.numel()} targets seen are {mean:g}",
                "print the targets where they are made",
                1.0,
            )
        elif max(abs(mean), std) > FAR or (std < 1 / FAR / 5 and abs(mean) < 1):
            yield finding(
                "targets-scale",
                "warning",
                f"targets have mean {mean:.3g} and standard deviation {std:.3g}; a network begins near 0 and 1",
                "subtract their mean, divide by their standard deviation, and undo it after prediction",
                std,
            )
        else:
            yield f"targets have mean {mean:.2g} and standard deviation {std:.2g}"
    for name, sizes in _floats(seen).items():
        mean, std = float(sizes.mean()), float(sizes.std())
        if max(abs(mean), std) > FAR:
            yield finding(
                "inputs-scale",
                "warning",
                f"{name or 'the input'} has mean {mean:.3g} and standard deviation {std:.3g}; a network takes about"
                " 0 and 1",
                "normalize it: (x - mean) / std, with those of the training data",
                std,
            )
    yield from _copied(seen)


def _floats(seen: Seen) -> dict[str, Tensor]:
    """Numbers that a model reads: what its forward passes got."""
    found: dict[str, Tensor] = {}
    inputs = next((f.inputs for f in seen.forwards if f.inputs is not None), None)
    given = {id(t) for t in tensors_in(inputs)} if inputs is not None else set()
    for forward in seen.forwards[:4]:
        if forward.inputs is None:
            continue
        args, kwargs = forward.inputs
        for name, leaf in [*((f"input {i}" if i else "", a) for i, a in enumerate(args)), *kwargs.items()]:
            if (
                isinstance(leaf, Tensor)
                and leaf.is_floating_point()
                and leaf.numel() > 8
                and "mask" not in name
                and leaf.ndim > 1
                and id(leaf) in given
            ):
                found.setdefault(name, leaf.detach().float())
    return {
        name: leaf[torch.isfinite(leaf)]
        for name, leaf in found.items()
        if not name.startswith(("time", "pos", "label", "target"))
    }


def _copied(seen: Seen) -> Results:
    """A target that stands among the inputs of its own row."""
    inputs = next((f.inputs for f in seen.forwards if f.inputs is not None), None)
    call = next((c for c in seen.record.losses if c.update == 0), None)
    if inputs is None or call is None or call.name not in (*NUMBERS, *CLASSES, "binary_cross_entropy_with_logits"):
        return
    target = call.target.detach().float()
    for leaf in tensors_in(inputs):
        if not leaf.is_floating_point() or leaf.ndim < 2 or len(leaf) != len(target) or len(leaf) < 8:
            continue
        if leaf.shape == call.target.shape and torch.equal(leaf, call.target):
            continue  # an autoencoder
        mine = leaf.detach().float().flatten(1)
        theirs = target.flatten(1) if target.ndim > 1 else target[:, None]
        if mine.shape[1] > 4096 or theirs.shape[1] > 64:
            continue
        a = (mine - mine.mean(0)) / mine.std(0).clamp(min=1e-9)
        b = (theirs - theirs.mean(0)) / theirs.std(0).clamp(min=1e-9)
        alike = (a.T @ b / (len(a) - 1)).abs()
        alike[mine.std(0) < 1e-6] = 0
        if float(alike.max()) > COPIED:
            where = divmod(int(alike.argmax()), alike.shape[1])
            if not _read(seen.setup.model, inputs, leaf, where, call.target.shape):
                return  # the next values of a series, before a causal model
            yield finding(
                "target-in-inputs",
                "error",
                f"target {where[1]} equals entry {where[0]} of the inputs of its row (correlation"
                f" {float(alike.max()):.4f})",
                "take the column of the target out of the inputs, or cut windows so that they end before it",
                float(alike.max()),
            )
            return


def _read(model: nn.Module, inputs: Any, leaf: Tensor, where: tuple[int, int], shape: torch.Size) -> bool:
    """Whether a prediction moves with an entry of the inputs; where no output has the shape of the targets, it may."""
    args, kwargs = inputs
    if (args and kwargs) or not any(part is leaf for part in (args or kwargs.values())):
        return True
    other = leaf.detach().clone()
    other.flatten(1)[:, where[0]] += 1.0
    made = []
    for given in (leaf, other):
        parts = [given if part is leaf else part for part in (args or kwargs.values())]
        out = answer(run(model, tuple(parts) if args else dict(zip(kwargs, parts, strict=True))))
        if out is None or out.shape != shape:
            return True
        made.append(out.reshape(len(out), -1)[:, where[1]])
    return not torch.equal(*made)
