"""Whether the weights move: an optimizer that does not step, layers that are left out, gradients that add up.

What is looked at are a few entries of each parameter, those with the largest gradients in the first reading, now and
then: at the first reading, at the twelfth, every fifty, and twelve after more parameters want gradients. Any other
reading costs a comparison of identities.
"""

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from isograd.diagnose.watch import causes
from isograd.diagnose.watch.layers import plain
from isograd.diagnose.watch.steps import OptimizerSettings
from isograd.diagnose.watch.writers import Row, alarm
from isograd.errors import many
from isograd.lint.initial.weights import REGISTER, UNREGISTERED, in_python
from isograd.lint.step.rules.optimizer import FREEZE, MOST, with_adapters

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
    frozen     all parameters of a layer with gradients have not, or any that no optimizer holds; or a layer wants
               none, below others that do
    gradient   a layer gets no gradient, or zeros; or factors are zero, and so are their gradients
    base       most matrices below adapters train, too
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
        self._kept = {f"{at} {i}": (p, at, kind) for at, kind, ps in in_python(model) for i, p in enumerate(ps)}
        self._all = self._named | {name: p for name, (p, _, _) in self._kept.items()}
        self._possible = not any(isinstance(p, DTensor) for p in self._named.values())
        self._reported: set[str] = set()
        self._count = 0
        self._places: dict[str, Tensor] = {}
        self._before: dict[str, tuple[int, Tensor]] = {}  # with the reading
        self._next, self._wanted = FIRST, 0
        self._ungraded: dict[int, Tensor] = {}  # parameters without a gradient in the first reading
        self._dead: dict[str, bool] = {}
        self._zero: set[str] = set()
        self._adds_up = False
        self._zeroed = Zeroed(self._named) if alone and self._possible and every == 1 else None

    def look(self, step: int, loss: Tensor | float = 0.0) -> list[Row]:
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
        wanted = sum(p.requires_grad for p in self._all.values())
        if wanted > self._wanted:
            self._remember(again=False)
            self._next = min(self._next, self._count + FIRST - 1)
        self._wanted = wanted
        if self._count == self._next:
            found += self._moved(step)
            self._remember(again=True)
            self._next = self._count + EVERY
        if self._adds_up and self._count >= FIRST and not found:  # an optimizer of other weights zeroes others, too
            found.append(_not_zeroed(step))
        if self._count == FIRST:
            found += self._no_gradient(step, loss)
            found += self._base_trains(step)
        new = [row for row in found if row["signal"] not in self._reported]
        self._reported |= {row["signal"] for row in new}
        self._adds_up &= not self._reported
        return new

    @torch.no_grad()
    def _remember(self, *, again: bool) -> None:
        """What they are now; without `again` of those that had no gradient before."""
        for name, p in self._all.items():
            if name not in self._places and p.grad is not None and not p.grad.is_sparse:
                g = p.grad.detach().flatten()
                self._places[name] = g.abs().topk(min(ENTRIES, g.numel())).indices
        for name, at in self._places.items():
            if again or name not in self._before:
                self._before[name] = self._count, self._all[name].detach().flatten()[at]

    @torch.no_grad()
    def _moved(self, step: int) -> list[Row]:
        old = {name: at for name, at in self._before.items() if self._count - at[0] >= FIRST - 1}
        still = {
            name for name, (_, before) in old.items()
            if torch.equal(self._all[name].detach().flatten()[self._places[name]], before)
        }  # fmt: skip
        finite = all(p.grad is None or bool(torch.isfinite(p.grad.sum())) for p in self._all.values())
        still = {name for name in still if self._wants(name)}
        if not still or not finite:
            return []
        if len(still) == len(old):
            return [_no_updates(step, self._count - min(since for since, _ in old.values()), self._settings())]
        held = {id(p) for optimizer in _optimizers() for group in optimizer.param_groups for p in group["params"]}
        loose = {name for name in still if id(self._all[name]) not in held}
        low = {name for name in still if self._all[name].element_size() < 4}  # rounded away, or copied from float32
        earlier = {name for name in still if id(self._all[name]) in getattr(self._settings, "earlier", ())}
        still, loose = still - (low - loose) - earlier, loose - low - earlier
        names = {id(p): name for name, p in self._named.items()}
        of_layers = {a: {n for p in of if (n := names.get(id(p))) in self._before} for a, of in self._layers.items()}
        stuck = [a for a, mine in of_layers.items() if mine and mine <= (still if self._count == FIRST else loose)]
        alone = [n for n in self._all if n in loose and not any(n in of_layers[a] for a in stuck)]
        only_loose = all(of_layers[a] <= loose for a in stuck)
        return [self._stuck(step, stuck, alone, loose=only_loose)] if stuck or alone else []

    def _base_trains(self, step: int) -> list[Row]:
        """Adapters have gradients, and so do most matrices of the base below them."""
        adapters, base, trained = with_adapters(self._named)
        graded = [n for n in trained if base[n].grad is not None]
        if not any(p.grad is not None for p in adapters.values()) or len(graded) <= MOST * len(base):
            return []
        symptom = f"{len(graded)} of {len(base)} matrices of the base train beside the adapters"
        return [
            alarm(
                step, "base", graded[0], symptom, "they were not frozen, or are trained again since a restart", FREEZE
            )
        ]

    def _wants(self, name: str) -> bool:
        """Whether a weight that stands still says anything: it has a gradient, and its steps are not rounded away."""
        p = self._all[name]
        rounded = p.dtype in (torch.float16, torch.bfloat16) and p.ndim < 2
        return p.requires_grad and p.grad is not None and bool(p.grad.any()) and not rounded

    def _stuck(self, step: int, stuck: Sequence[str], alone: Sequence[str], *, loose: bool) -> Row:
        """Layers, and parameters of none of them that no optimizer holds."""
        cause, remedy = (
            "no optimizer holds them" if loose else "the optimizer does not hold their parameters, or their rate is 0",
            "pass model.parameters() to the optimizer (add_param_group for what is unfrozen later), or set"
            " requires_grad_(False) on what is to stay",
        )
        where = [*stuck, *alone][0]
        for _, where, kind in [self._kept[name] for name in alone if name in self._kept][:1]:
            cause, remedy = f"{where} is a Python {kind}: {UNREGISTERED}", REGISTER
        what = [f"{_some(stuck)} ({len(stuck)} of {len(self._layers)} layers)"] if stuck else []
        what += [f"{many(len(alone), 'parameter')} ({alone[0]}{', ..' if alone[1:] else ''})"] if alone else []
        return alarm(step, "frozen", where, f"{' and '.join(what)} have gradients, and do not move", cause, remedy)

    @torch.no_grad()
    def _gradients(self) -> None:
        """Which layers have none, or only zeros, at all looks so far; and which matrices are zero as well."""
        for address, of in self._layers.items():
            self._dead[address] = not any(map(_graded, of)) and self._dead.get(address, True)
        zero = {
            name for name, p in self._named.items()
            if p.ndim > 1 and p.requires_grad and p.grad is not None and not p.grad.any() and not p.any()
        }  # fmt: skip
        self._zero = zero if self._count == 1 else self._zero & zero
        if self._count == 1:
            without = [p for p in self._named.values() if p.grad is None]
            self._ungraded = {id(p): p.detach().flatten()[:ENTRIES].clone() for p in without}

    def _no_gradient(self, step: int, loss: Tensor | float) -> list[Row]:
        factors = [n for n in self._zero if any(self._factors(n, other) for other in self._zero - {n})]
        if factors:
            return [_both_zero(step, sorted(factors))]
        dead = [address for address, is_dead in self._dead.items() if is_dead]
        wanted = {address: any(p.requires_grad for p in of) for address, of in self._layers.items()}
        cut = [address for address in dead if wanted[address] and not any(map(self._goes, self._layers[address]))]
        others = any(map(_graded, self._named.values()))
        if cut and (len(cut) < len(self._layers) or others or float(loss) != 0.0):
            return [_no_gradient_row(step, cut, list(self._layers), any_other=others)]
        order = list(self._layers)
        lowest = next((i for i, address in enumerate(order) if wanted[address]), len(order))
        above = [address for address in order[lowest:] if not wanted[address]]
        return [_left_frozen(step, above, len(order))] if above else []

    def _goes(self, p: nn.Parameter) -> bool:
        """Whether it moves without a gradient that can be seen, as where each is updated during backward."""
        before = self._ungraded.get(id(p))
        return before is not None and not torch.equal(p.detach().flatten()[:ENTRIES], before)

    def _factors(self, one: str, other: str) -> bool:
        """Whether two matrices stand beside each other, as lora_A.weight and lora_B.weight, and can be multiplied."""
        apart = [x for x, y in zip(one.split("."), other.split("."), strict=False) if x != y]
        a, b = self._named[one], self._named[other]
        beside = one.count(".") == other.count(".") and len(apart) == 1 and not apart[0].isdigit()
        return beside and bool({a.shape[0], a.shape[-1]} & {b.shape[0], b.shape[-1]})


def _graded(p: nn.Parameter) -> bool:
    return p.requires_grad and p.grad is not None and bool(p.grad.any())


def _optimizers() -> list[Optimizer]:
    """All of this process."""
    return [one for one in gc.get_objects() if issubclass(type(one), Optimizer) and hasattr(one, "param_groups")]


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
            graded = [p for p in self._named.values() if p.numel() >= ENTRIES and _graded(p)]
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


class Thrown:
    """Whether gradients are set to zero between the backward passes of each of the first updates, and so are lost.

    Looks at a small parameter before and after each pass. Where weights have moved in between (SAM) gradients were
    used; where gradients may be meant for something else, the looking is to `stop`.
    """

    def __init__(self, held: Sequence[nn.Parameter]) -> None:
        """`held`: by the only optimizer."""
        self._held = [p for p in held if p.requires_grad and p.numel() >= ENTRIES and type(p.data) is Tensor]
        self._probe = min(self._held, key=lambda p: p.numel(), default=nn.Parameter(torch.zeros(0)))
        self._kept: Tensor | None = None  # the gradient after the last pass
        self._weights: list[tuple[nn.Parameter, Tensor, Tensor]] = []  # then, those with the largest gradients
        self._passes = self._lost = self._updates = 0
        self._read: list[Tensor] = []  # by the passes of this update
        self.looks = bool(self._held)

    def stop(self) -> None:
        self.looks, self._kept, self._read = False, None, []

    def called_with(self, leaves: Sequence[Any]) -> None:
        """Of inputs with gradients, as of an attack on them, backward passes are no parts of an update; nor are those
        of data that another pass has read, as for the norms of its parts.
        """
        own = [x for x in leaves if isinstance(x, Tensor)]
        again = bool(own) and all(any(_overlap(x, y) for y in self._read) for x in own)
        self._read += own
        if again or any(x.requires_grad for x in own):
            self.stop()

    def before(self) -> None:
        """A backward pass."""
        if self._kept is not None and not _graded(self._probe):
            moved = any(not torch.equal(p.detach().flatten()[at], was) for p, at, was in self._weights)
            used = moved or not self._kept.isfinite().all()
            self._passes, self._lost = (0, 0) if used else (self._passes, self._passes)

    def after(self) -> None:
        if self.looks and self._probe.grad is not None and _graded(self._probe):
            self._passes += 1
            self._kept = self._probe.grad.flatten().clone()
            graded = [p for p in self._held if p.grad is not None and not p.grad.is_sparse]
            places = [(p, p.grad.flatten().abs().topk(ENTRIES).indices) for p in graded if p.grad is not None]
            self._weights = [(p, at, p.detach().flatten()[at]) for p, at in places]

    def update(self, step: int) -> list[Row]:
        """Before the optimizer's step; the warning, once."""
        if self._kept is None:
            return []
        last, passes, gone = self._kept, self._passes, not _graded(self._probe)
        now = last if gone or self._probe.grad is None else self._probe.grad.flatten()
        as_last = torch.cosine_similarity(now.double(), last.double(), dim=0) > PROPORTIONAL  # else kept elsewhere
        lost = (passes if gone else self._lost) if as_last and last.isfinite().all() else 0
        self._kept, self._passes, self._lost, self._updates, self._read = None, 0, 0, self._updates + 1, []
        if lost and self._updates < SAME:
            return []
        self.stop()
        where = "backward() and optimizer.step()" if gone else "the micro-batches of an update"
        what = many(passes, "backward pass", "backward passes")
        return [alarm(
            step, "zero-grad", None,
            f"the gradients of {lost} of {what} are thrown away before each optimizer.step()",
            f"zero_grad() is called between {where}",
            "call optimizer.zero_grad() once per update, right after optimizer.step()",
        )] if lost else []  # fmt: skip


def _overlap(x: Tensor, y: Tensor) -> bool:
    """Whether they share memory."""
    spans = [range(z.data_ptr(), z.data_ptr() + z.numel() * z.element_size()) for z in (x, y) if z.is_contiguous()]
    return len(spans) == 2 and max(s.start for s in spans) < min(s.stop for s in spans)


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


def _left_frozen(step: int, above: Sequence[str], layers: int) -> Row:
    return alarm(
        step, "frozen", above[0],
        f"{_some(above)} ({len(above)} of {layers} layers) have requires_grad=False, and layers before them do not",
        "requires_grad is False there",
        "set requires_grad_(True) on them, unless they are meant to stay as they are",
    )  # fmt: skip


def _both_zero(step: int, names: Sequence[str]) -> Row:
    more = f", and of {len(names) - 2} more matrices," if names[2:] else ""
    return alarm(
        step, "gradient", names[0],
        f"weights and gradients of {names[0]} and {names[1]}{more} have been exactly 0 since the first step",
        "two factors of one product that both begin at 0 keep each other there: neither ever moves",
        "initialize one of the two at random (of an adapter A, by nn.init.kaiming_uniform_), and leave the other at 0",
    )  # fmt: skip


def _no_gradient_row(step: int, cut: Sequence[str], order: Sequence[str], *, any_other: bool) -> Row:
    first = [*cut] == [*order[: len(cut)]]
    cause = (
        f"the graph is cut after {cut[-1]} (detach(), no_grad(), .data, a tensor made anew)"
        if first
        else "their output is not used, is multiplied by zero, or is detached"
    )
    if not any_other:
        cause = "the loss does not depend on any parameter: a factor that is 0, or a detach()"
    return alarm(
        step, "gradient", cut[-1] if first else cut[0],
        f"{_some(cut)} ({len(cut)} of {len(order)} layers) get no gradient",
        cause,
        "take the detach() or no_grad() out of the forward pass, and add each branch to what it read",
    )  # fmt: skip


def _some(addresses: Sequence[str]) -> str:
    return addresses[0] if len(addresses) == 1 else f"{addresses[0]} to {addresses[-1]}"
