"""Whether the weights move: an optimizer that does not step, layers that are left out, gradients that add up.

What is looked at are a few entries of each parameter, those with the largest gradients in the first reading, now and
then: at the first reading, at the twelfth, and every fifty. Any other reading costs a comparison of identities.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from isograd.diagnose.watch import causes
from isograd.diagnose.watch.layers import plain
from isograd.diagnose.watch.steps import OptimizerSettings
from isograd.diagnose.watch.writers import Row, alarm

FIRST = 12  # readings after which what has not moved will not
EVERY = 50  # readings from one later look to the next
ENTRIES = 8  # of each parameter
SAME = 3  # readings with the same gradient tensors
TRIES = 20  # readings
PROPORTIONAL = 0.999  # cosine of what backward has just brought with the gradient before: then nothing can be said
LEFT = 0.05  # of a gradient that is the one before


class Updates:
    """Follows the parameters of a model that is not sharded; each signal is reported once.

    updates    no parameter has moved
    frozen     all parameters of a layer with gradients have not; or they want none, below others that do
    gradient   a layer gets no gradient, or zeros
    zero-grad  gradients hold those of the steps before
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Mapping[str, Sequence[nn.Parameter]],
        every: int,
        settings: causes.Ask = lambda: None,
    ) -> None:
        """Parameters by the address of their layer, in the order of depth; `every` so many steps are read."""
        self._settings = settings
        self._named = {plain(name): p for name, p in model.named_parameters()}
        self._layers = {address: list(of) for address, of in layers.items()}
        alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        self._possible = not any(isinstance(p, DTensor) for p in self._named.values())
        self._reported: set[str] = set()
        self._count = 0
        self._places: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
        self._dead: dict[str, bool] = {}
        self._adds_up = False
        self._zeroed = Zeroed(self._named) if alone and self._possible and every == 1 else None

    def look(self, step: int) -> list[Row]:
        """After backward, before the optimizer's step; the warnings that are new."""
        if not self._possible:
            return []
        self._count += 1
        found: list[Row] = []
        if self._zeroed is not None:
            self._adds_up |= self._zeroed.accumulates()
            self._zeroed = None if self._zeroed.done else self._zeroed
        if self._count in (1, FIRST // 2, FIRST):
            self._gradients()
        if self._count == 1:
            self._remember()
        elif self._count == FIRST or (self._count > FIRST and (self._count - FIRST) % EVERY == 0):
            found += self._moved(step)
            self._remember()
        if self._adds_up and self._count >= FIRST and not found:  # an optimizer of other weights zeroes others, too
            found.append(_not_zeroed(step))
        if self._count == FIRST:
            found += self._no_gradient(step)
        new = [row for row in found if row["signal"] not in self._reported]
        self._reported |= {row["signal"] for row in new}
        self._adds_up &= not self._reported
        return new

    @torch.no_grad()
    def _remember(self) -> None:
        for name, p in self._named.items():
            if name not in self._places and p.grad is not None and not p.grad.is_sparse:
                g = p.grad.detach().flatten()
                self._places[name] = g.abs().topk(min(ENTRIES, g.numel())).indices
        self._before = {name: self._named[name].detach().flatten()[at] for name, at in self._places.items()}

    @torch.no_grad()
    def _moved(self, step: int) -> list[Row]:
        still = {
            name for name, before in self._before.items()
            if torch.equal(self._named[name].detach().flatten()[self._places[name]], before)
        }  # fmt: skip
        finite = all(p.grad is None or bool(torch.isfinite(p.grad.sum())) for p in self._named.values())
        still = {name for name in still if self._wants(name)}
        if not still or not finite:
            return []
        if len(still) == len(self._before):
            return [_no_updates(step, FIRST - 1 if self._count == FIRST else EVERY, self._settings())]
        still -= {name for name in still if self._rounds(name)}
        names = {id(p): name for name, p in self._named.items()}
        stuck = [
            address
            for address, of in self._layers.items()
            if (mine := [names[id(p)] for p in of if names.get(id(p)) in self._before]) and {*mine} <= still
        ]
        return [_stuck(step, stuck, len(self._layers))] if stuck and self._count == FIRST else []

    def _wants(self, name: str) -> bool:
        """Whether a weight that stands still says anything: it has a gradient, and its steps are not rounded away."""
        p = self._named[name]
        rounded = p.dtype in (torch.float16, torch.bfloat16) and p.ndim < 2
        return p.grad is not None and bool(p.grad.any()) and not rounded

    def _rounds(self, name: str) -> bool:
        """Whether it is in 16 bits and the optimizer has it: that its update is rounded away is another's to say."""
        optimizer = getattr(self._settings, "optimizer", None)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]} if optimizer is not None else set()
        p = self._named[name]
        return p.dtype in (torch.float16, torch.bfloat16) and id(p) in held

    @torch.no_grad()
    def _gradients(self) -> None:
        """Which layers have none, or only zeros, at all looks so far."""
        for address, of in self._layers.items():
            dead = not any(p.grad is not None and bool(p.grad.any()) for p in of)
            self._dead[address] = dead and self._dead.get(address, True)

    def _no_gradient(self, step: int) -> list[Row]:
        dead = [address for address, is_dead in self._dead.items() if is_dead]
        wanted = {address: any(p.requires_grad for p in of) for address, of in self._layers.items()}
        cut = [address for address in dead if wanted[address]]
        others = any(p.grad is not None and bool(p.grad.any()) for p in self._named.values())
        if cut and (len(cut) < len(self._layers) or others):
            return [_no_gradient_row(step, cut, list(self._layers))]
        order = list(self._layers)
        lowest = next((i for i, address in enumerate(order) if wanted[address]), len(order))
        above = [address for address in order[lowest:] if not wanted[address]]
        return [_left_frozen(step, above, len(order))] if above else []


class Zeroed:
    """Whether gradients are set to zero, or None, between steps.

    A new tensor each time says so at once. Where it is the same one, a hook on one small parameter adds up what
    backward brings, for a few readings: without `zero_grad` the gradient is more than that. The hook changes nothing.
    """

    def __init__(self, named: Mapping[str, nn.Parameter]) -> None:
        self._named = named
        self._probe: nn.Parameter | None = None
        self._gradient: Tensor | None = None
        self._same = 0
        self._fresh: Tensor | None = None
        self._before: Tensor | None = None
        self._tries = 0
        self._hook: Any = None
        self._verdicts: list[bool] = []
        self.done = False

    def accumulates(self) -> bool:
        """At each reading, until `done`."""
        if self.done:
            return False
        if self._probe is None:
            graded = [p for p in self._named.values() if p.grad is not None and p.numel() >= ENTRIES and p.grad.any()]
            self._probe = min(graded, key=lambda p: p.numel(), default=None)
        if self._probe is None or self._probe.grad is None:
            return False
        self._same = self._same + 1 if self._gradient is self._probe.grad else 0
        first, self._gradient = self._gradient is None, self._probe.grad
        if not first and self._same == 0:
            self._end()  # it was set to None in between
        elif self._hook is not None:
            return self._compare()
        elif self._same >= SAME:
            self._hook = self._probe.register_hook(self._add)
        return False

    def _add(self, gradient: Tensor) -> None:
        fresh = gradient.detach()
        self._fresh = fresh.clone() if self._fresh is None else self._fresh + fresh

    @torch.no_grad()
    def _compare(self) -> bool:
        assert self._probe is not None and self._probe.grad is not None
        now = self._probe.grad.flatten().double()
        if self._fresh is not None and self._before is not None:
            fresh = self._fresh.flatten().double()
            if float(torch.nn.functional.cosine_similarity(fresh, self._before, dim=0).abs()) < PROPORTIONAL:
                self._verdicts.append(_left_over(now, fresh, self._before))
        self._fresh, self._before = None, now.clone()
        self._tries += 1
        if len(self._verdicts) < SAME and self._tries < TRIES:
            return False
        self._end()
        return len(self._verdicts) == SAME and all(self._verdicts)

    def _end(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._gradient = self._hook = self._fresh = self._before = None
        self.done = True


def _left_over(now: Tensor, fresh: Tensor, before: Tensor) -> bool:
    """Whether a gradient is what backward has just brought, times a loss scale, and some of the one before (clipped).

    >>> a, b = torch.tensor([1.0, 2, 0, 1]).double(), torch.tensor([0.0, 1, 3, -1]).double()
    >>> _left_over(a + 0.5 * b, a, b), _left_over(8 * a, a, b), _left_over(a + b * b, a, b)
    (True, False, False)
    """
    parts = torch.stack([fresh, before], dim=1)
    found = torch.linalg.lstsq(parts, now[:, None]).solution[:, 0]
    rest = (now - parts @ found).norm()
    return bool(found[1].abs() * before.norm() > LEFT * now.norm() and rest < 0.01 * now.norm())


def _not_zeroed(step: int) -> Row:
    return alarm(
        step, "zero-grad", None,
        "gradients hold those of the steps before",
        "optimizer.zero_grad() is missing, or it zeroes other parameters than the model's",
        "call optimizer.zero_grad() after each optimizer.step(); where they are to add up, watch.step once per update",
    )  # fmt: skip


def _no_updates(step: int, readings: int, settings: OptimizerSettings | None) -> Row:
    symptom = f"no weight has moved in {readings} readings, and gradients are there"
    return alarm(step, "updates", None, symptom, *causes.no_updates(settings))


def _stuck(step: int, stuck: Sequence[str], layers: int) -> Row:
    return alarm(
        step, "frozen", stuck[0],
        f"{_some(stuck)} ({len(stuck)} of {layers} layers) have gradients, and do not move",
        "the optimizer does not hold their parameters, or their rate is 0",
        "pass model.parameters() to the optimizer, or set requires_grad_(False) on what is to stay",
    )  # fmt: skip


def _left_frozen(step: int, above: Sequence[str], layers: int) -> Row:
    return alarm(
        step, "frozen", above[0],
        f"{_some(above)} ({len(above)} of {layers} layers) have requires_grad=False, and layers before them do not",
        "requires_grad is False there",
        "set requires_grad_(True) on them, unless they are meant to stay as they are",
    )  # fmt: skip


def _no_gradient_row(step: int, cut: Sequence[str], order: Sequence[str]) -> Row:
    first = [*cut] == [*order[: len(cut)]]
    cause = (
        f"the graph is cut after {cut[-1]} (detach(), no_grad(), .data, a tensor made anew)"
        if first
        else "their output is not used, is multiplied by zero, or is detached"
    )
    return alarm(
        step, "gradient", cut[-1] if first else cut[0],
        f"{_some(cut)} ({len(cut)} of {len(order)} layers) get no gradient",
        cause,
        "take the detach() or no_grad() out of the forward pass, and add each branch to what it read",
    )  # fmt: skip


def _some(addresses: Sequence[str]) -> str:
    return addresses[0] if len(addresses) == 1 else f"{addresses[0]} to {addresses[-1]}"
