"""Proof by trying: the recorded computation is trained with and without a change, side by side.

    trial = Trial(checked, budget=10.0)
    proof = trial.of(Edit(values={branch: lambda made, of: made + of(x)}, says="x + f(x)"))
    proof.verdict                                  # "confirmed", "overturned" or "untried"

Both begin with the same parameters and see the same data. A third arm, the model as it is with every parameter moved by
one thousandth, is the control: a change that does not differ more than that has shown nothing.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from isograd.lint.checked_model import CheckedModel
from isograd.lint.proof.task import Task, task_of
from isograd.trace.record import Operation, Trace, Value, filled

Verdict = Literal["confirmed", "overturned", "untried"]
Made = Callable[..., Tensor]  # of the value made, and of a lookup `of` of others

PLANS = ((40, 20), (20, 10))  # steps, and those by which a rate is chosen, on a seed of its own; the second in a hurry
RATES = (1e-3, 4e-3, 1.6e-2)
SEEDS = (1, 2, 3)
WARMUP = 4
LAST = 0.5  # of the steps, at the end, whose mean counts
MARGIN = 0.01  # of what the better arm has learned: less is no difference
LEARNED = 0.03  # of the first loss: arms that learn less say nothing
CONTROL = 1e-3  # relative: how far the control's parameters are moved
APART = 1.0  # times the control's difference, its root mean square


@dataclass(frozen=True, kw_only=True, eq=False)
class Edit:
    """What a remedy changes in the recorded computation.

    Attributes:
        says: the change in words, as code where it can be.
        values: value -> what stands in its place: a function of it and of a lookup of other values.
        readers: value -> the operations for which alone it is replaced; all where it has no entry.
        parameters: name -> what it begins with, a function of its tensor and a generator.
    """

    says: str
    values: Mapping[int, Made] = field(default_factory=dict)
    readers: Mapping[int, frozenset[int]] = field(default_factory=dict)
    parameters: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a trial has shown.

    Attributes:
        verdict: "confirmed" where the change trains better in every seed, "overturned" where it does not.
        says: the result in one line.
        change: what was changed, in words.
        task: what was trained.
        gains: by seed, the loss of the model as it is over the last steps minus that with the change, in nats or in
            parts of the variance.
        control: the largest difference that moving all parameters by a thousandth makes.
        as_is, changed: losses by step, the median of the seeds.
        rates: the learning rates of the two, each the best of three.
        seconds: of processor time.
    """

    verdict: Verdict
    says: str
    change: str = ""
    task: str = ""
    gains: tuple[float, ...] = ()
    control: float = 0.0
    as_is: tuple[float, ...] = ()
    changed: tuple[float, ...] = ()
    rates: tuple[float, float] | tuple[()] = ()
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {name: list(part) if isinstance(part, tuple) else part for name, part in vars(self).items()}


class Untried(Exception):  # noqa: N818
    """Why a change cannot be tried, in one line."""


class Trial:
    """Trials of one model; what it does as it is, is trained once.

    Args:
        budget: seconds of processor time for all trials together; None for as long as they take.
    """

    def __init__(self, checked: CheckedModel, budget: float | None) -> None:
        self.checked = checked
        self.budget = budget
        self.begun = time.process_time()
        self._runs: dict[tuple[Edit | int, float, int, int], list[float]] = {}

    def of(self, edit: Edit | None) -> Proof:
        """Train with and without a change. Nothing is raised: what cannot be tried says why."""
        begun = time.process_time()
        if edit is None:
            return Proof(verdict="untried", says="not tried: no change is known that undoes it")
        if self.budget == 0:
            return Proof(
                verdict="untried", says="not tried: no trial was asked for; --prove tries it", change=edit.says
            )
        try:
            return self._tried(edit, begun)
        except Untried as reason:
            return Proof(verdict="untried", says=f"not tried: {reason}", change=edit.says)
        except Exception as error:  # an edit that does not fit, or a computation that does not replay
            line = " ".join(str(error).split())[:120]
            return Proof(
                verdict="untried",
                says=f"not tried: the change does not run ({type(error).__name__}: {line})",
                change=edit.says,
                seconds=round(time.process_time() - begun, 2),
            )

    def _tried(self, edit: Edit, begun: float) -> Proof:
        unit = self.task.unit
        steps, searched = self._plan()
        rates = self._best_rate(None, searched), self._best_rate(edit, searched)
        as_is, changed, control = list[list[float]](), list[list[float]](), list[list[float]]()
        gains, learned = list[float](), 0.0
        for seed in SEEDS:  # one in which the change is not better is enough
            as_is.append(self._run(None, rates[0], seed, steps))
            changed.append(self._run(edit, rates[1], seed, steps))
            gains.append(_end(as_is[-1]) - _end(changed[-1]))
            first = median(curve[0] for curve in (*as_is, *changed))
            learned = first - min(median(map(_end, as_is)), median(map(_end, changed)))
            if not gains[-1] > MARGIN * learned:
                break
            if seed == SEEDS[0]:
                self._afford(
                    steps, f"with one seed the change ({edit.says}) is better, {gains[0]:.2g}{unit}; more seeds"
                )
        else:
            control = [self._run(None, rates[0], seed, steps, 1) for seed in SEEDS]
        noise = (sum((_end(a) - _end(c)) ** 2 for a, c in zip(as_is, control, strict=False)) / len(SEEDS)) ** 0.5
        least = max(MARGIN * learned, APART * noise)
        better = sum(g > least for g in gains)
        outcome = f"with the change ({edit.says}) the loss after {steps} steps is"
        verdict: Verdict = "overturned"
        if not learned > LEARNED * abs(first):
            verdict, says = "untried", f"tried for {steps} steps: neither learned anything"
        elif better == len(SEEDS):
            verdict, says = "confirmed", f"{outcome} {median(gains):.2g}{unit} lower ({better} of {better} seeds)"
        elif gains[-1] < -least:
            says = f"no harm seen: {outcome} {-gains[-1]:.2g}{unit} higher (1 of {len(gains)} seeds)"
        else:
            says = f"no harm seen: {outcome} not {least:.2g}{unit} lower in {len(gains) - better} of {len(gains)} seeds"
        return Proof(
            verdict=verdict,
            says=f"{says}; task: {self.task.name}",
            change=edit.says,
            task=self.task.name,
            gains=tuple(round(g, 4) for g in gains),
            control=round(noise, 4),
            as_is=_middle(as_is),
            changed=_middle(changed),
            rates=rates,
            seconds=round(time.process_time() - begun, 2),
        )

    @cached_property
    def task(self) -> Task:
        if self.checked.large and self.budget is not None:
            raise Untried("the model has more than 50M parameters; --prove tries it")
        made = task_of(self.checked)
        if isinstance(made, str):
            raise Untried(made)
        return made

    @cached_property
    def program(self) -> "Program":
        return Program(self.task.trace)

    def _plan(self) -> tuple[int, int]:
        """The first plan whose runs fit into the seconds that are left, by the time of one step.

        Raises:
            Untried: none does.
        """
        if self.budget is None:
            return PLANS[0]
        needed = 0.0
        for seeds in (len(SEEDS), 1):  # all of them, or the first, with which most trials end
            for steps, searched in PLANS:
                known = any(key[0] == 0 and key[3] == steps for key in self._runs)  # as it is, and the control
                runs = seeds * (1 if known else 3) - (seeds == 1 and not known)
                needed = self.step * (runs * steps + (1 if known else 2) * len(RATES) * searched)
                if needed <= self._left:
                    return steps, searched
        raise Untried(f"it takes {needed:.0f} s, and {self._left:.0f} s are left; --prove tries it")

    @property
    def _left(self) -> float:
        """Seconds of the budget."""
        return max(0.0, (self.budget or 0.0) - (time.process_time() - self.begun))

    def _afford(self, steps: int, what: str) -> None:
        """
        Raises:
            Untried: the seeds after the first, and the control, do not fit into the seconds that are left.
        """
        needed = self.step * steps * (3 * len(SEEDS) - 2)
        if self.budget is not None and needed > self._left:
            raise Untried(f"{what} take {needed:.0f} s, and {self._left:.0f} s are left; --prove tries them")

    @cached_property
    def step(self) -> float:
        """Seconds of one step."""
        self._run(None, RATES[0], 0, 1)
        before = time.process_time()
        self._run(None, RATES[0], 0, 2)
        return (time.process_time() - before) / 2

    def _best_rate(self, edit: Edit | None, steps: int) -> float:
        ends = {rate: _end(self._run(edit, rate, 0, steps)) for rate in RATES}
        return min(ends, key=lambda rate: ends[rate])

    def _run(self, edit: Edit | None, rate: float, seed: int, steps: int, moved: int = 0) -> list[float]:
        key = (edit or moved, rate, seed, steps)  # which keeps the edit alive
        if key not in self._runs:
            self._runs[key] = self._trained(edit, rate, seed, steps, moved)
        return self._runs[key]

    def _trained(self, edit: Edit | None, rate: float, seed: int, steps: int, moved: int) -> list[float]:
        """Losses by step, NaN from where it diverged."""
        task, program = self.task, self.program
        draw = torch.Generator().manual_seed(seed)
        fresh = seed > 0 and self.checked.at_init
        trained = {name: self.checked.model.get_parameter(name).requires_grad for name in program.parameters.values()}
        parameters: dict[int, Tensor] = {}
        for value, name in program.parameters.items():
            start = task.trace[value].detach().clone()
            if fresh and start.ndim == 2 and start.is_floating_point():
                start = start[:, torch.randperm(start.shape[1], generator=draw)]  # another draw of the same init
            if moved:
                start = start * (1 + CONTROL * torch.randn(start.shape, generator=draw))
            if edit and name in edit.parameters:
                start = edit.parameters[name](start, torch.Generator().manual_seed(seed)).to(start)
            parameters[value] = start.detach().clone().requires_grad_(start.is_floating_point() and trained[name])
        learning = [p for p in parameters.values() if p.requires_grad]
        optimizer = torch.optim.AdamW(learning, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, foreach=True)
        batches, losses = task.batches(seed), list[float]()
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / WARMUP)
            data, target = batches[step % len(batches)]
            loss = task.loss(program.run(parameters | data, task.wanted, edit), target)
            losses.append(loss.item())
            if not loss.isfinite():
                return losses + [float("inf")] * (steps - len(losses))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(learning, 1.0)
            optimizer.step()
        return losses


class Program:
    """The operations of a trace as a function of its parameters and inputs, through which gradients go."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.parameters = dict(trace.names)
        self._kept: dict[int, Tensor] = {}
        self._steps: dict[tuple[int, ...], list[tuple[int, Operation]]] = {}

    def run(self, given: Mapping[int, Tensor], wanted: tuple[int, ...], edit: Edit | None) -> list[Tensor]:
        """What the wanted values become of the values given."""
        changes = edit.values if edit else {}
        readers = edit.readers if edit else {}
        known: dict[int, Tensor] = dict(given)
        swapped: dict[int, Tensor] = {}

        def of(value: int) -> Tensor:
            if value in swapped and value not in readers:  # a shortcut carries the changed stream
                return swapped[value]
            if value in known:
                return known[value]
            if value not in self._kept:
                self._kept[value] = self.trace[value].detach().clone()  # out of inference mode
            return self._kept[value]

        for value in changes:
            if value in given:
                swapped[value] = changes[value](known[value], of)
        for at, operation in self._between(given, wanted):
            here = {v: swapped[v] for v in operation.reads if v in swapped and at in readers.get(v, (at,))}
            made = _called(operation, here, of)
            for value, tensor in zip(operation.makes, made, strict=True):
                known[value] = tensor
                if value in changes:
                    swapped[value] = changes[value](tensor, of)
        return [swapped[v] if v in swapped and v not in readers else of(v) for v in wanted]

    def _between(self, given: Mapping[int, Tensor], wanted: tuple[int, ...]) -> list[tuple[int, Operation]]:
        key = tuple(sorted(given)) + wanted
        if key not in self._steps:
            needed = {id(o) for o in self.trace.between(given, wanted)}
            self._steps[key] = [(at, o) for at, o in enumerate(self.trace.operations) if id(o) in needed]
        return self._steps[key]


def _called(operation: Operation, here: Mapping[int, Tensor], of: Callable[[int], Tensor]) -> list[Tensor]:
    def fill(place: Any) -> Any:
        if not isinstance(place, Value):
            return place
        tensor = here[place.index] if place.index in here else of(place.index)
        return tensor.clone() if operation.function._schema.is_mutable else tensor

    args = [filled(part, fill) for part in operation.args]
    kwargs = {name: filled(part, fill) for name, part in operation.kwargs.items()}
    made = operation.function(*args, **kwargs)
    return [made] if isinstance(made, Tensor) else [t for t in tree_leaves(made) if isinstance(t, Tensor)]


def _end(curve: list[float]) -> float:
    """The mean of the last losses; the worst there is where one is no number."""
    last = curve[-max(1, int(LAST * len(curve))) :]
    return sum(last) / len(last) if all(x == x and abs(x) < 1e6 for x in last) else 1e6


def _middle(curves: list[list[float]]) -> tuple[float, ...]:
    return tuple(round(median(losses), 4) for losses in zip(*curves, strict=True))


def normed(of_value: int | None = None) -> Made:
    """A norm over the last axis in the place of a value, or of another that it was made of."""

    def made(x: Tensor, of: Callable[[int], Tensor]) -> Tensor:
        read = x if of_value is None else of(of_value)
        return F.layer_norm(read, read.shape[-1:]).reshape(x.shape)

    return made


def plus(*terms: tuple[float, int]) -> Made:
    """A value plus others times their factors."""

    def made(x: Tensor, of: Callable[[int], Tensor]) -> Tensor:
        return x + sum(factor * of(value).reshape(x.shape) for factor, value in terms if factor)

    return made


def times(factor: float) -> Made:
    return lambda x, of: x * factor


def scaled(factor: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    return lambda tensor, draw: tensor * factor


def drawn(std: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Numbers of mean 0."""
    return lambda tensor, draw: torch.randn(tensor.shape, generator=draw) * std
