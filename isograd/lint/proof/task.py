"""What a recorded model is trained on when a change is tried: its own loss where it has one, else a small task.

    task = task_of(checked)
    task.name                                      # "next token"
    for data, target in task.batches(seed=1): ...

A task is fitted to what the model takes and gives. Tokens: sequences in which a token follows from the one
before, or repeats the one three before it, to be continued (a causal model) or restored where a third was replaced.
Numbers that come out as they went in: waves to be freed of noise. All else: a function of the inputs, to be fitted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from isograd.lint.checked_model import CheckedModel
from isograd.trace.record import Trace, record

SEQUENCES, PICTURES = 8, 4
LENGTH = 24  # positions that sequences are cut to, where the model takes fewer
BATCHES = 4  # different ones, seen in turn; of tokens none is seen twice
FRESH = 40
TOKENS = 32  # different ones at most
FOLLOWS = 0.5  # of the tokens that follow from the one before
REPLACED = 1 / 3
FEATURES = 16

Batch = tuple[dict[int, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Attributes:
    name: in words.
    unit: of the loss, with a space in front.
    trace: of the model on batches of the task's size, operation by operation that of the check.
    wanted: the values that the loss reads.
    batches: of a seed, the values of the inputs and the target.
    loss: of the wanted values and the target.
    """

    name: str
    unit: str
    trace: Trace
    wanted: tuple[int, ...]
    batches: Callable[[int], list[Batch]]
    loss: Callable[[list[Tensor], Tensor], Tensor]


def task_of(checked: CheckedModel) -> Task | str:
    """The task, or why there is none, in words. The loss that the user gave goes before all."""
    scored = checked.loss_trace if checked.loss is not None else None
    if scored is not None and scored is not checked.trace:
        return _own(scored, "your loss")
    trace = _larger(checked)
    losses = [v for v in trace.outputs.values() if trace[v].ndim == 0 and trace[v].is_floating_point()]
    if losses:
        return _own(trace, "the model's own loss", losses[0])
    output = _output(trace)
    if output is None:
        return "the output has no numbers to fit"
    ids, numbers = _ids(checked, trace), _numbers(trace)
    classes = trace[output].shape[-1]
    shapes = {tuple(trace[v].shape) for v in ids}
    if ids and tuple(trace[output].shape[:-1]) in shapes and trace[output].ndim == 3 and classes >= 4:
        return _tokens(checked, trace, ids, output)
    if not ids and not numbers:
        return "no input is a token or a number"
    if numbers and trace[numbers[0]].shape == trace[output].shape and trace[output].ndim > 2:
        return _denoising(trace, numbers, output)
    return _fitting(trace, ids, numbers, output)


def _larger(checked: CheckedModel) -> Trace:
    """The model's trace on more sequences, where it computes the same; else that of the check."""
    tensors = [t for t in tree_leaves(checked.inputs) if isinstance(t, Tensor) and t.ndim]
    sequences = tensors[0].shape[0]
    if checked.time_first or any(t.shape[0] != sequences for t in tensors):
        return checked.trace
    wanted = PICTURES if any(t.ndim > 3 for t in tensors) else SEQUENCES
    times = max(1, -(-wanted // sequences))
    long = max((t.shape[1] for t in tensors if t.ndim == 2 and not t.is_floating_point()), default=0)

    def sized(part: Any, length: int) -> Any:
        if not isinstance(part, Tensor) or not part.ndim:
            return part
        shorter = part[:, :length] if part.ndim > 1 and part.shape[1] == long else part
        return shorter.repeat(times, *[1] * (part.ndim - 1))[:wanted]

    for length in (LENGTH, long) if long > LENGTH else (long,):
        try:
            trace = record(checked.model, tree_map(partial(sized, length=length), checked.inputs))
        except Exception:  # of a fixed number of sequences, or of positions
            continue
        if _alike(trace, checked.trace):
            return trace
    return checked.trace


def _alike(trace: Trace, other: Trace) -> bool:
    """Whether two traces are of the same operations, in the order of the same values."""
    pairs = zip(trace.operations, other.operations, strict=False)
    return len(trace.operations) == len(other.operations) and all(
        a.name == b.name and a.makes == b.makes and a.reads == b.reads for a, b in pairs
    )


def _own(trace: Trace, name: str, value: int | None = None) -> Task:
    end = next(iter(trace.outputs.values())) if value is None else value
    return Task(
        name=f"{name}, the same batch each step",
        unit="",
        trace=trace,
        wanted=(end,),
        batches=lambda seed: [({}, torch.zeros(()))],
        loss=lambda made, _: made[0].float().mean(),
    )


def _output(trace: Trace) -> int | None:
    outputs = {at: v for at, v in trace.outputs.items() if trace[v].is_floating_point() and trace[v].ndim}
    return outputs.get("logits", next(iter(outputs.values()), None))


def _ids(checked: CheckedModel, trace: Trace) -> list[int]:
    """Inputs that look up in a table, of sequences."""
    looked = trace.above([v for o in checked.dataflow.lookups for v in o.reads[1:]])
    return [
        v
        for at, v in trace.inputs.items()
        if v in looked and "mask" not in at and not trace[v].is_floating_point() and trace[v].ndim == 2
    ]


def _numbers(trace: Trace) -> list[int]:
    return [
        v for at, v in trace.inputs.items() if trace[v].is_floating_point() and "mask" not in at and trace[v].ndim > 1
    ]


def _tokens(checked: CheckedModel, trace: Trace, ids: list[int], output: int) -> Task:
    shape = tuple(trace[output].shape[:-1])
    mine = [v for v in ids if tuple(trace[v].shape) == shape][-1]  # the decoder's, of two
    seen = torch.cat([trace[v].flatten() for v in ids]).unique()
    seen = seen[seen < trace[output].shape[-1]][:TOKENS]
    causal = is_causal(trace, mine, output, seen)

    def batches(seed: int) -> list[Batch]:
        draw = torch.Generator().manual_seed(1000 + seed)
        follows = torch.randperm(len(seen), generator=draw)
        made = []
        for _ in range(FRESH):
            whole = _sequences(shape[0], shape[1] + 1, follows, draw)
            read = whole[:, :-1]
            if not causal:
                noise = torch.randint(len(seen), read.shape, generator=draw)
                read = torch.where(torch.rand(read.shape, generator=draw) < REPLACED, noise, read)
            data = {mine: seen[read]}
            for value in ids:
                if value != mine:
                    length = trace[value].shape[1]
                    data[value] = seen[whole[:, :-1].repeat(1, -(-length // shape[1]))[:, :length]]
            made.append(
                ({v: x.to(trace[v].dtype) for v, x in data.items()}, seen[whole[:, 1:] if causal else whole[:, :-1]])
            )
        return made

    return Task(
        name="next token" if causal else "restoring tokens",
        unit=" nats",
        trace=trace,
        wanted=(output,),
        batches=batches,
        loss=lambda made, target: F.cross_entropy(made[0].float().flatten(0, -2), target.flatten()),
    )


def _sequences(count: int, length: int, follows: Tensor, draw: torch.Generator) -> Tensor:
    rows = torch.randint(len(follows), (count, length), generator=draw)
    chosen = torch.rand(count, length, generator=draw) < FOLLOWS
    for t in range(3, length):
        rows[:, t] = torch.where(chosen[:, t], follows[rows[:, t - 1]], rows[:, t - 3])
    return rows


@torch.no_grad()
def is_causal(trace: Trace, ids: int, output: int, seen: Tensor) -> bool:
    """Whether outputs stay when the last token is another one."""
    other = trace[ids].clone()
    other[:, -1] = torch.where(other[:, -1] == seen[0], seen[-1], seen[0])
    try:
        moved = trace.replay({ids: other}, [output])[0]
    except Exception:
        return False
    gap = (moved - trace[output]).abs()[:, :-1].amax()
    return bool(gap <= 1e-5 * trace[output].abs().max())


def _waves(shape: torch.Size, draw: torch.Generator) -> Tensor:
    """Sums of a few sines along every axis but the first, of variance 1."""
    x = torch.zeros(shape)
    for _ in range(3):
        phase = torch.rand(shape[0], *[1] * (len(shape) - 1), generator=draw) * 2 * math.pi
        for axis in range(1, len(shape)):
            places = torch.linspace(0, 1, shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
            phase = phase + 2 * math.pi * 3 * torch.rand(1, generator=draw) * places
        x = x + phase.sin()
    return x / x.std().clamp_min(1e-6)


def _denoising(trace: Trace, numbers: list[int], output: int) -> Task:
    def batches(seed: int) -> list[Batch]:
        draw = torch.Generator().manual_seed(1000 + seed)
        made = []
        for _ in range(BATCHES):
            clean = _waves(trace[numbers[0]].shape, draw)
            noisy = (clean + torch.randn(clean.shape, generator=draw)) / math.sqrt(2)
            data = {v: noisy.to(trace[v]) for v in numbers if trace[v].shape == clean.shape}
            made.append((data, clean))
        return made

    return _of_numbers("removing noise", trace, output, batches)


def _fitting(trace: Trace, ids: list[int], numbers: list[int], output: int) -> Task:
    shape = trace[output].shape

    def batches(seed: int) -> list[Batch]:
        draw = torch.Generator().manual_seed(1000 + seed)
        tables = {v: torch.randn(int(trace[v].max()) + 1, FEATURES, generator=draw) for v in ids}
        made, out = list[Batch](), None
        mixes: dict[int, Tensor] = {}
        for _ in range(BATCHES):
            data, mixed = dict[int, Tensor](), torch.zeros(1)
            for value in (*ids, *numbers):
                x = trace[value]
                if value in tables:
                    data[value] = torch.randint(len(tables[value]), x.shape, generator=draw).to(x.dtype)
                    data[value] = torch.where(x == x.max(), x, data[value]) if len(tables[value]) < 3 else data[value]
                    rows = tables[value][data[value].long()]
                else:
                    rows = _waves(x.shape, draw)
                    data[value] = (rows * x.std().clamp_min(1e-3) + x.mean()).to(x)
                rows = rows.flatten(1)
                if value not in mixes:
                    mixes[value] = torch.randn(rows.shape[1], FEATURES, generator=draw) / rows.shape[1] ** 0.5
                mixed = mixed + rows @ mixes[value]
            if out is None:
                out = torch.randn(FEATURES, shape[1:].numel(), generator=draw) / FEATURES**0.5
            made.append((data, (2 * mixed.tanh() @ out)))
        whole = torch.cat([target for _, target in made])
        mean, std = whole.mean(0), whole.std(0).clamp_min(1e-3)
        if len(made[0][1]) != shape[0]:  # sequences do not stand in front
            return [(data, torch.randn(shape, generator=draw)) for data, _ in made[:1]]
        return [(data, ((target - mean) / std).reshape(shape)) for data, target in made]

    return _of_numbers("fitting a function of the inputs", trace, output, batches)


def _of_numbers(name: str, trace: Trace, output: int, batches: Callable[[int], list[Batch]]) -> Task:
    return Task(
        name=name,
        unit=" of the variance",
        trace=trace,
        wanted=(output,),
        batches=batches,
        loss=lambda made, target: F.mse_loss(made[0].float(), target.to(made[0].device).float()),
    )
