"""What a loss is measured against: the loss of the best prediction that does not look at the inputs.

    cross-entropy of tokens, of classes    the entropy of their frequencies, -sum p ln p
    a regression                           min over c of mean loss(c, target): the variance of the targets, for MSE
    anything else                          unknown: None

Of labels that are token ids the frequencies are known from the labels alone. Which loss it is of classes and of numbers
is measured, not assumed: the batch is run once more, and the loss is the one that its outputs and targets give.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LABELS = ("labels", "shift_labels", "targets", "target", "y", "label")
SAME = 0.1  # the log of the ratio of two losses that are one, but for dropout
TRIES = 3  # batches on which the loss may be recognized
ENTRIES = 1 << 18  # of targets that are kept
ENOUGH = 32  # targets from which on their best constant is known
CONSTANTS = 65  # quantiles of the targets that are tried as constants

Elementwise = Callable[[Tensor, Tensor], Tensor]
REGRESSIONS: dict[str, tuple[Elementwise, str]] = {
    "mse": (lambda x, y: (x - y).square(), "the variance of its targets"),
    "half-mse": (lambda x, y: (x - y).square() / 2, "half the variance of its targets"),
    "l1": (lambda x, y: (x - y).abs(), "the mean absolute deviation of its targets"),
    "huber": (lambda x, y: functional.smooth_l1_loss(x, y, reduction="none"), "the Huber loss of the best constant"),
    "rmse": (lambda x, y: (x - y).square(), "the standard deviation of its targets"),
}  # fmt: skip
ENTROPIES = {
    "tokens": "the entropy of the token frequencies",
    "classes": "the entropy of the class frequencies",
    "binary": "the entropy of the label frequencies",
}


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The loss of the best constant prediction.

    Attributes:
        kind: of the loss: "tokens", "classes" or "binary" (cross-entropies), "mse", "half-mse", "rmse", "l1", "huber".
        value: in the loss's own unit; nats, of a cross-entropy.

    >>> Baseline(kind="mse", value=250.0).scale, Baseline(kind="tokens", value=5.0).scale
    (250.0, 1.0)
    >>> str(Baseline(kind="classes", value=2.303))
    'the entropy of the class frequencies (2.30 nats)'
    """

    kind: str
    value: float

    @property
    def unit(self) -> float:
        """What the loss is divided by to be compared with a cross-entropy: 1 of nats."""
        return self.value if self.kind in REGRESSIONS else 1.0

    @property
    def scale(self) -> float:
        """What counts as much as one nat of a cross-entropy of one nat or more."""
        return self.value if self.kind in REGRESSIONS else min(1.0, max(self.value, 0.1))

    @property
    def name(self) -> str:
        return REGRESSIONS[self.kind][1] if self.kind in REGRESSIONS else ENTROPIES[self.kind]

    def __str__(self) -> str:
        return f"{self.name} ({self.value:.3g})" if self.kind in REGRESSIONS else f"{self.name} ({self.value:.2f} nats)"


class Targets:
    """Collects the targets of batches, and gives their baseline.

    >>> targets = Targets()
    >>> targets.add({"labels": torch.arange(4).repeat(10, 100)})
    >>> targets.baseline()
    Baseline(kind='tokens', value=1.386...)
    """

    def __init__(self, unigram_entropy: float | None = None) -> None:
        """`unigram_entropy` of the labels, where it is known: then nothing is collected."""
        self._known = None if unigram_entropy is None else Baseline(kind="tokens", value=unigram_entropy)
        self._kind: str | None = None
        self._tries = 0
        self._counts = TokenCounts()
        self._numbers = Numbers()

    def recognize(self, model: nn.Module, batch: Any, loss: Tensor | float) -> None:
        """Which loss it is, of classes and of numbers; `model` as it was when it gave this loss for this batch.

        The batch is run once more, without gradients; weights, modes, buffers and random numbers stay as they are.
        """
        targets = [] if self._known else targets_of(batch)
        if not targets or is_tokens(targets[0]) or self._kind is not None or self._tries >= TRIES:
            return
        self._tries += 1
        with suppress(Exception):  # somebody else's model: what does not run is not recognized
            self._kind = kind_of(outputs_of(model, batch), targets[0], float(loss))

    def add(self, batch: Any) -> None:
        """The next batch."""
        for target in [] if self._known else targets_of(batch):
            if is_tokens(target) or self._kind == "classes":
                self._counts.add(target)
            elif self._kind is not None:
                self._numbers.add(target)

    def baseline(self) -> Baseline | None:
        """None where the loss is not known, and below ten labels of a kind, or `ENOUGH` targets."""
        if self._known is not None:
            return self._known
        kind = self._kind or "tokens"
        value = self._counts.entropy() if kind in ("tokens", "classes") else self._numbers.best(kind)
        return None if value is None or value <= 0 else Baseline(kind=kind, value=value)


def targets_of(batch: Any) -> list[Tensor]:
    """The targets of a batch, or of several: the entry of a mapping by its usual name, or the last of some tensors."""
    if isinstance(batch, Mapping):
        found = next((batch[name] for name in LABELS if name in batch), None)
        return [found] if isinstance(found, Tensor) else []
    if not isinstance(batch, list | tuple) or not batch:
        return []
    if all(isinstance(one, Tensor) for one in batch):
        rows = {len(one) if one.ndim else None for one in batch}
        return [batch[-1]] if len(batch) > 1 and len(rows) == 1 else []
    return [target for one in batch for target in targets_of(one)]


def is_tokens(target: Tensor) -> bool:
    """Whether labels are ids at every position, (batch, time) or (batch, height, width)."""
    return target.ndim > 1 and not target.is_floating_point() and not target.is_complex()


def labels_of(batch: Any) -> list[Tensor]:
    """The targets of a batch, or of several, that are token ids."""
    return [target for target in targets_of(batch) if is_tokens(target)]


def outputs_of(model: nn.Module, batch: Any) -> list[Tensor]:
    """What a model gives for a batch, all its tensors of numbers; it stays as it is, random numbers too."""
    from isograd.diagnose.watch.overflow import call
    from isograd.trace.record import tensors, undisturbed, unwrapped

    bare = unwrapped(model)
    devices = {p.device.index for p in bare.parameters() if p.device.type == "cuda"}
    with torch.no_grad(), torch.random.fork_rng([d for d in devices if d is not None]), undisturbed(bare):
        return [x.float() for _, x in tensors(call(bare, batch)) if x.is_floating_point() and x.ndim]


def kind_of(outputs: list[Tensor], target: Tensor, loss: float) -> str | None:
    """The loss that outputs and targets give, of those that are known; None where none gives this number.

    >>> x, y = torch.tensor([[0.5], [2.0]]), torch.tensor([1.0, 4.0])
    >>> kind_of([x], y, 2.125), kind_of([x], y, 1.25), kind_of([x], y, 77.0)
    ('mse', 'l1', None)
    """
    given = [one for output in outputs for one in _losses(output, target)]
    apart = [(abs(math.log(value / loss)), kind) for kind, value in given if value > 0 and loss > 0]
    nearest, kind = min(apart, default=(math.inf, None))
    return kind if nearest < SAME else None


def _losses(x: Tensor, y: Tensor) -> list[tuple[str, float]]:
    if not y.is_floating_point() and y.ndim == 1 and x.ndim == 2 and x.shape[1] > int(y.max()):
        both = (functional.cross_entropy(x, y), functional.nll_loss(x, y))
        return [("classes", float(value)) for value in both]
    if x.numel() != y.numel() or len(x) != len(y):
        return []
    x, y = x.flatten(), y.float().flatten()
    if y.min() >= 0 and y.max() <= 1 and torch.equal(y, y.round()):
        binary = [functional.binary_cross_entropy_with_logits(x, y)]
        binary += [functional.binary_cross_entropy(x, y)] if x.min() >= 0 and x.max() <= 1 else []
        found = [("binary", float(value)) for value in binary]
    else:
        found = []
    means = [(kind, float(each(x, y).mean())) for kind, (each, _) in REGRESSIONS.items()]
    return found + [(kind, math.sqrt(mean) if kind == "rmse" else mean) for kind, mean in means]


class Numbers:
    """Some of the targets of a regression, a row per sample."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._kept = 0
        self._best: tuple[int, float] | None = None  # from how many rows, and the loss

    def add(self, target: Tensor) -> None:
        if self._kept * target[:1].numel() < ENTRIES:
            self._rows.append(target.detach().float().cpu().reshape(len(target), -1))
            self._kept += len(target)

    def best(self, kind: str) -> float | None:
        """min over c of mean loss(c, target), of each column its own c, times n / (n - 1) of n rows.

        >>> numbers = Numbers()
        >>> numbers.add(torch.arange(101.0)), round(numbers.best("mse"))
        (None, 858)
        """
        if self._kept < ENOUGH:
            return None
        if self._best is None or self._kept >= 2 * self._best[0]:
            self._best = (self._kept, self._of(kind))
        return self._best[1]

    def _of(self, kind: str) -> float:
        rows = torch.cat(self._rows)
        rows = rows[torch.isfinite(rows).all(dim=1)]
        if kind == "binary":
            p = rows.mean(dim=0).clamp(1e-9, 1 - 1e-9)
            return float(-(p * p.log() + (1 - p) * (1 - p).log()).mean())
        constants = [rows.mean(dim=0), *rows.sort(dim=0).values[:: max(1, len(rows) // CONSTANTS)]]
        each = REGRESSIONS[kind][0]
        lowest = torch.stack([each(c.expand_as(rows), rows).mean(dim=0) for c in constants]).amin(dim=0).mean()
        value = float(lowest) * len(rows) / max(1, len(rows) - 1)
        return math.sqrt(value) if kind == "rmse" else value


class TokenCounts:
    """How often each label came, none below 0 (what losses ignore), and the entropy of that."""

    def __init__(self) -> None:
        self._counts = torch.zeros(0, dtype=torch.int64)
        self._waiting: list[Tensor] = []

    def add(self, labels: Tensor) -> None:
        """Labels of one batch, of any shape; they are counted when the entropy is asked for."""
        self._waiting.append(labels.detach().flatten())

    def _count(self) -> None:
        if not self._waiting:
            return
        ids = torch.cat(self._waiting)
        self._waiting.clear()
        counts = torch.bincount(ids[ids >= 0]).cpu()
        if len(counts) < len(self._counts):
            counts, self._counts = self._counts, counts
        counts[: len(self._counts)] += self._counts
        self._counts = counts

    def entropy(self) -> float | None:
        """-sum p ln p + (K - 1) / 2n, nats, of K kinds among n labels (Miller 1955); None below 10 labels of a kind.

        The second term is what the first one lacks on average with so few labels.

        >>> counts = TokenCounts()
        >>> counts.add(torch.arange(4).repeat(1000)), round(counts.entropy(), 3)
        (None, 1.387)
        """
        self._count()
        some = self._counts[self._counts > 0].double()
        total = float(some.sum())
        if not len(some) or total < 10 * len(some):
            return None
        return math.log(total) - float((some * some.log()).sum()) / total + (len(some) - 1) / (2 * total)
