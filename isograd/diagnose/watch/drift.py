"""What goes apart slowly: weights that 16 bits hold still, a run that is not the one it continues, processes; a mode
that is left, and a warm-up that the run does not outlast.
"""

import math
from array import array
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from isograd.diagnose.watch.steps import TrainedBy
from isograd.diagnose.watch.writers import PER_STEP, Row, alarm
from isograd.files import read_rows
from isograd.lint.step.rules.update import by_mode

HALF = (torch.float16, torch.bfloat16)
MATRICES, ENTRIES = 16, 256
BEGINS, ENDS = 12, 62  # readings between which weights are compared: copies in float32 would have moved them
LOST = 0.5  # of the entries
FIRST, LAST = 5, 20  # readings of a run that goes on, and of the one before
AGAIN = 0.25  # of a loss, above which it is another
NOISE = 6.0  # standard errors
STAYS = 10  # readings in evaluation mode
LEAST = 40  # readings of a run whose schedule is judged
RISING = 0.9  # of the readings, after which the rate still rises
ASKED = 0.9  # of the rate that was asked for
NOTHING = 1e-5  # of the highest rate
LONG = 0.8  # of the updates
EVERY = 100  # readings from one comparison of processes to the next


class Rounded:
    """Weights in 16 bits of which most stand still over `ENDS` - `BEGINS` readings, although they have gradients.

    An update below half of what the next number is away is lost, and so is the next one. A copy of the weights in
    float32 adds them up.
    """

    def __init__(self, model: nn.Module) -> None:
        some = [p for p in model.parameters() if p.dtype in HALF and p.ndim > 1 and not isinstance(p, DTensor)]
        self._weights = some[:: max(1, len(some) // MATRICES)][:MATRICES]
        self._places = [torch.linspace(0, p.numel() - 1, min(ENTRIES, p.numel())).long() for p in self._weights]
        self._before: list[Tensor] = []
        self._graded: list[Tensor] = []
        self._count = 0

    @torch.no_grad()
    def look(self, step: int, rate: float | None) -> list[Row]:
        """At each reading, after backward; the warning, once."""
        if not self._weights or rate == 0.0:
            return []
        self._count += 1
        if self._count == BEGINS:
            self._before = self._now()
            self._graded = [self._graded_at(p, at) for p, at in zip(self._weights, self._places, strict=True)]
        if self._count != ENDS:
            return []
        pairs = zip(self._before, self._now(), self._graded, strict=True)
        still = torch.cat([(a == b)[g] for a, b, g in pairs]).float()
        kind = str(self._weights[0].dtype).removeprefix("torch.")
        self._weights = []
        if not len(still) or float(still.mean()) <= LOST:
            return []
        share = float(still.mean())
        return [
            alarm(
                step,
                "rounded",
                None,
                f"{share:.0%} of the weights in {kind} have not moved in {ENDS - BEGINS} updates, and have gradients",
                "their updates are below half a step of that type, and are rounded away",
                "keep weights in float32 and compute under torch.autocast, or round stochastically",
                share=share,
            )
        ]

    def _now(self) -> list[Tensor]:
        return [
            p.detach().flatten()[at.to(p.device)].clone() for p, at in zip(self._weights, self._places, strict=True)
        ]

    def _graded_at(self, p: Tensor, at: Tensor) -> Tensor:
        return torch.zeros(len(at), dtype=torch.bool) if p.grad is None else p.grad.flatten()[at.to(p.device)] != 0


class Continued:
    """Whether the losses go on where the rows in the folder end.

    >>> Continued([2.1, 2.0, 2.2, 2.1, 2.0]).look(6, [4.0, 3.9, 4.1, 4.0, 3.8])[0]["signal"]
    'resume'
    >>> Continued([2.1, 2.0, 2.2, 2.1, 2.0]).look(6, [2.1, 2.2, 1.9, 2.0, 2.3])
    []
    """

    def __init__(self, losses: Sequence[float]) -> None:
        """The last losses of before."""
        self._losses = [loss for loss in losses if math.isfinite(loss)][-LAST:]

    @classmethod
    def of(cls, folder: Path | None) -> "Continued":
        rows = [] if folder is None else read_rows(folder / PER_STEP)
        return cls([row["loss"] for row in rows[-LAST:] if isinstance(row.get("loss"), int | float)])

    def look(self, step: int, losses: Sequence[float]) -> list[Row]:
        """With all losses so far; the warning, once."""
        if len(self._losses) < FIRST or len(losses) != FIRST:
            return []
        before, now = fmean(self._losses), fmean(losses)
        spread = math.sqrt(fmean((x - before) ** 2 for x in self._losses) / FIRST)
        if now <= before + max(AGAIN * abs(before), NOISE * spread):
            return []
        return [
            alarm(
                step,
                "resume",
                None,
                f"the loss begins at {now:.3g}, and the rows in this folder end at {before:.3g}",
                "this run is not the one that it continues: its weights, or the optimizer's state, were not loaded",
                "load model, optimizer and schedule of the checkpoint; or give a new run a folder of its own",
                before=before,
                now=now,
            )
        ]


class Mode:
    """Whether updates that began in training mode go on in evaluation mode, in a model for which that matters.

    All modules have to be in evaluation mode: of norms or parts alone it is a way of freezing them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._noisy = sorted({type(m).__name__ for m in by_mode(model)})
        self._leaves = [m for m in model.modules() if not any(m.children())] if self._noisy else []
        self._trains, self._count = False, 0

    def look(self, step: int) -> list[Row]:
        """At each reading; the warning, once."""
        if any(m.training for m in self._leaves):
            self._trains, self._count = True, 0
            return []
        self._count += self._trains
        if self._count != STAYS:
            return []
        self._leaves = []
        return [alarm(
            step, "eval-mode", None,
            f"the last {STAYS} updates were made in evaluation mode, those before in training mode",
            f"model.eval() was called, and model.train() was not: {', '.join(self._noisy)} stays in evaluation mode",
            "call model.train() after each evaluation",
        )]  # fmt: skip


def still_rising(step: int, rates: Sequence[float], asked: float) -> list[Row]:
    """Whether the rate of all readings only rose, up to the end of the run, and never came to the one asked for.

    >>> rates = [1e-6 * step for step in range(60)]
    >>> len(still_rising(60, rates, 2e-3)), still_rising(60, rates, 6e-5), still_rising(30, rates[:30], 2e-3)
    (1, [], [])
    """
    count = len(rates)
    if count < LEAST or rates[-1] >= ASKED * asked or any(b < a for a, b in pairwise(rates)):
        return []
    steeper = rates[-1] - rates[count // 2] > 4 * (rates[count // 2] - rates[0])  # a search for a rate, or its growth
    if rates[-1] <= 1.001 * rates[int(RISING * count)] or steeper:
        return []
    return [alarm(
        step, "schedule", None,
        f"the learning rate still rises when the run ends: it is {rates[-1]:.2g} of the {asked:.2g} asked for",
        "the warm-up is longer than the run, or the run was stopped within it",
        "give the warm-up in updates: a few percent of the run",
    )]  # fmt: skip


class Rates:
    """The learning rates of all readings: the largest of the groups, and whether they have fallen to nothing.

    A group at a rate of exactly 0 beside others that are not is frozen, and left out.
    """

    def __init__(self, trained_by: TrainedBy) -> None:
        self._trained_by = trained_by
        self.largest = array("d")
        self._of: Optimizer | None = None
        self._peaks: list[float] = []
        self._since = 0  # readings in a row in which some group was far below its highest rate
        self._done = False

    def look(self, step: int, largest: float | None) -> list[Row]:
        """At each reading, with the largest rate; the warning, once."""
        optimizer = self._trained_by.optimizer
        if optimizer is None or largest is None:
            return []
        self.largest.append(largest)
        if self._done:
            return []
        rates = [float(group.get("lr") or 0.0) for group in optimizer.param_groups]
        if optimizer is not self._of or len(rates) != len(self._peaks):
            self._of, self._peaks, self._since = optimizer, rates, 0
        self._peaks = [max(pair) for pair in zip(rates, self._peaks, strict=True)]
        low = [r < NOTHING * p for r, p in zip(rates, self._peaks, strict=True) if p and (r or not largest)]
        self._since = self._since + 1 if any(low) else 0
        if self._since < LEAST or self._since < LONG * len(self.largest):
            return []
        self._done = True
        which = "the learning rate" if all(low) else f"the rate of {sum(low)} of {len(rates)} parameter groups"
        return [alarm(
            step, "schedule", None,
            f"{which} has been below 1/100,000 of its peak for {self._since} of {len(self.largest)} updates",
            "the schedule ended long before the run, or a factor is multiplied into the rate at every step"
            " instead of once",
            "build the schedule for all updates of the run, and compute each group's rate from its first one",
        )]  # fmt: skip


class Ranks:
    """Whether weights that were equal on all processes still are; every process has to look."""

    def __init__(self, model: nn.Module) -> None:
        whole = [(n, p) for n, p in model.named_parameters() if not isinstance(p, DTensor)]
        self._named = whole[:: max(1, len(whole) // MATRICES)][:MATRICES]
        self._count, self._equal = 0, [False] * len(self._named)

    @torch.no_grad()
    def look(self, step: int) -> list[Row]:
        """At each reading; the warning, once."""
        if not self._named or not (distributed.is_available() and distributed.is_initialized()):
            return []
        self._count += 1
        if self._count > 1 and self._count % EVERY != BEGINS:
            return []
        mine = torch.stack([p.detach().double().square().sum() for _, p in self._named])
        every = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
        distributed.all_gather(every, mine)
        equal = [bool(all(one[i] == every[0][i] for one in every)) for i in range(len(self._named))]
        apart = [name for (name, _), was, now in zip(self._named, self._equal, equal, strict=True) if was and not now]
        self._equal = equal if self._count == 1 else self._equal
        if not apart:
            return []
        self._named = []
        return [
            alarm(
                step,
                "ranks",
                apart[0],
                f"weights that were equal on all {len(every)} processes differ now",
                "gradients are not averaged over processes, or one of them left a step out",
                "call the wrapped model (DDP); step and skip alike on every process",
            )
        ]
