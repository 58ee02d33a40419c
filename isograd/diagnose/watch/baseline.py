"""What a loss is measured against: the loss of the best prediction that does not look at the inputs.

    cross-entropy of tokens, of classes    the entropy of their frequencies, -sum p ln p
    a regression                           min over c of mean loss(c, target): the variance of the targets, for MSE
    anything else                          unknown: None

Of labels that are token ids the frequencies are known from the labels alone. Which loss it is of classes and of numbers
is measured, not assumed: the batch is run once more, and the loss is the one that its outputs and targets give.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isograd.trace.record import tensors, unwrapped

LABELS = ("labels", "shift_labels", "targets", "target", "y", "label")
OTHER = 2.0  # times: a loss farther from each that the outputs give is one of something else
SAME = 0.1  # the log of the ratio of two losses that are one, but for dropout
OWN = "the model's own"
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
        kind: of the loss: "tokens", "classes" or "binary" (cross-entropies), "mse", "half-mse", "rmse", "l1", "huber";
            "given": any other, whose value the user has said.
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
        return 1.0 if self.kind in ENTROPIES else self.value

    @property
    def scale(self) -> float:
        """What counts as much as one nat of a cross-entropy of one nat or more."""
        return min(1.0, max(self.value, 0.1)) if self.kind in ENTROPIES else self.value

    @property
    def name(self) -> str:
        return ENTROPIES.get(self.kind) or REGRESSIONS.get(self.kind, ("", "its baseline"))[1]

    def number(self, loss: float) -> str:
        """A loss as it is printed beside this one."""
        return f"{loss:.2f}" if self.kind in ENTROPIES else f"{loss:.3g}"

    def __str__(self) -> str:
        return f"{self.name} ({self.number(self.value)}{' nats' if self.kind in ENTROPIES else ''})"


class Targets:
    """Collects the targets of batches, and gives their baseline.

    >>> targets = Targets()
    >>> targets.add({"labels": torch.arange(4).repeat(10, 100)})
    >>> str(targets.baseline())
    'the entropy of the token frequencies (1.39 nats)'
    """

    def __init__(self, unigram_entropy: float | None = None, kind: str | None = None) -> None:
        """`unigram_entropy` of the labels, where it is known: then nothing is collected; `kind`: of the loss."""
        self._known = None if unigram_entropy is None else Baseline(kind="tokens", value=unigram_entropy)
        self._kind = kind
        self._tries = 0
        self._asked = self._other = False  # whether the loss is one of these targets at all
        self._counts = TokenCounts()
        self._numbers = StepNumbers()

    def recognize(self, model: nn.Module, batch: Any, loss: Tensor | float) -> None:
        """Which loss it is, of classes and of numbers; `model` as it was when it gave this loss for this batch.

        The batch is run once more, without gradients; weights, modes, buffers and random numbers stay as they are.
        """
        targets = [] if self._known else targets_of(batch)
        if not targets or is_tokens(targets[0]) or self._kind is not None or self._tries >= TRIES:
            return
        self._tries += 1
        with suppress(Exception):  # somebody else's model: what does not run is not recognized
            self._kind = kind_of(losses_of(model, batch), float(loss))

    def add(self, batch: Any) -> None:
        """The next batch."""
        for target in [] if self._known else targets_of(batch):
            if is_tokens(target) or self._kind == "classes":
                self._counts.add(target)
            elif self._kind is not None:
                self._numbers.add(target)

    def baseline(self) -> Baseline | None:
        """None where the loss is not known, and below ten labels of a kind, or `ENOUGH` targets."""
        if self._known is not None or self._other:
            return self._known
        kind = self._kind or "tokens"
        value = self._counts.entropy() if kind in ("tokens", "classes") else self._numbers.best(kind)
        return None if value is None or value <= 0 else Baseline(kind=kind, value=value)

    def meant(self, model: nn.Module, batch: Any, loss: float) -> bool:
        """Whether the loss is one of these targets, asked once: a preference loss (DPO) is formed of a model that is
        given labels, too. Where nothing tells, it is.
        """
        if not self._asked and self._known is None and targets_of(batch):
            self._asked = True
            with suppress(Exception):  # as in `recognize`
                given = [value / loss for value in losses_of(model, batch).values() if value > 0 and loss > 0]
                self._other = bool(given) and all(max(by, 1 / by) > OTHER for by in given)
        return not self._other

    def of(self, batch: Any) -> Baseline | None:
        """The best constant of one batch by itself: what knows no inputs cannot come below it there."""
        alone, targets = Targets(), targets_of(batch)
        kind = self._kind or ("tokens" if targets and is_tokens(targets[0]) else None)
        if kind is None:
            return None
        alone._kind = kind
        alone.add(batch)
        value = alone._counts.plain() if kind in ("tokens", "classes") else alone._numbers.lowest(kind)
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


def losses_of(model: nn.Module, batch: Any) -> dict[str, float]:
    """What each known loss is of a batch, or of several on average, by its name; the model stays as it is."""
    from isograd.diagnose.watch.overflow import call

    parts = list(batch) if isinstance(batch, list) and batch and not isinstance(batch[0], Tensor) else [batch]
    with left_alone(model):
        found = [dict(_losses(call(unwrapped(model), part), targets_of(part))) for part in parts]
    return {name: sum(one[name] for one in found) / len(found) for name in found[0] if all(name in x for x in found)}


@contextmanager
def left_alone(model: nn.Module) -> Iterator[None]:
    """Runs inside keep no gradient, and leave modes, buffers, attributes and random numbers as they were."""
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    held = [(module, dict(vars(module))) for module in model.modules()]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    with torch.no_grad(), torch.random.fork_rng([d for d in devices if d is not None]):
        try:
            yield
        finally:
            for buffer, before in buffers:
                buffer.copy_(before)
            for module, attributes in held:
                vars(module).clear()
                vars(module).update(attributes)


def kind_of(given: Mapping[str, float], loss: float) -> str | None:
    """The kind of the loss that comes out, of those that are known; None where none is near."""
    name = nearest(given, loss)
    return None if name is None or name == OWN else name.partition(",")[0]


def nearest(given: Mapping[str, float], loss: float) -> str | None:
    """The name of the loss that has this value; None where none is near.

    >>> nearest({"mse": 2.125, "l1": 1.25}, 2.1), nearest({"mse": 2.125, "l1": 1.25}, 77.0)
    ('mse', None)
    """
    apart = [(abs(math.log(value / loss)), name) for name, value in given.items() if value > 0 and loss > 0]
    by, name = min(apart, default=(math.inf, None))
    return name if by < SAME else None


def _losses(output: Any, targets: list[Tensor]) -> Iterator[tuple[str, float]]:
    values = dict(tensors(output))
    for place, x in values.items():
        if x.is_floating_point() and x.ndim and targets:
            y = targets[0].to(x.device)
            for name, value in (_cross_entropies if not y.is_floating_point() else _of_numbers)(x.float(), y):
                yield f"{name}, {place}", float(value)
    own = values.get("loss")
    if own is not None and own.ndim == 0:
        yield OWN, float(own)


def _cross_entropies(x: Tensor, y: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Of classes, and of ids at every position, as they are or of the next one."""
    if y.ndim == 1 and x.ndim == 2 and len(x) == len(y) and x.shape[1] > int(y.max()):
        yield "classes", functional.cross_entropy(x, y)
        yield "classes, of log-probabilities", functional.nll_loss(x, y)
    elif x.shape[:-1] == y.shape and x.shape[-1] > int(y.max()):
        yield "tokens", functional.cross_entropy(x.flatten(0, -2), y.flatten())
        if y.ndim == 2:
            yield "tokens, the next", functional.cross_entropy(x[:, :-1].flatten(0, 1), y[:, 1:].flatten())
    elif x.numel() == y.numel():
        yield from _of_numbers(x, y.to(x.dtype))


def _of_numbers(x: Tensor, y: Tensor) -> Iterator[tuple[str, Tensor]]:
    if x.numel() != y.numel() or len(x) != len(y):
        return
    x, y = x.flatten(), y.float().flatten()
    if y.min() >= 0 and y.max() <= 1 and torch.equal(y, y.round()):
        yield "binary", functional.binary_cross_entropy_with_logits(x, y)
        if x.min() >= 0 and x.max() <= 1:
            yield "binary, of probabilities", functional.binary_cross_entropy(x, y)
    for kind, (each, _) in REGRESSIONS.items():
        mean = each(x, y).mean()
        yield kind, mean.sqrt() if kind == "rmse" else mean


class StepNumbers:
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

        >>> numbers = StepNumbers()
        >>> numbers.add(torch.arange(101.0)), round(numbers.best("mse"))
        (None, 858)
        """
        if self._kept < ENOUGH:
            return None
        if self._best is None or self._kept >= 2 * self._best[0]:
            lowest = self.lowest(kind)
            correction = 1.0 if kind == "binary" else self._kept / (self._kept - 1)
            self._best = (self._kept, lowest * (math.sqrt(correction) if kind == "rmse" else correction))
        return self._best[1]

    def lowest(self, kind: str) -> float:
        """Of these rows by themselves."""
        rows = torch.cat(self._rows)
        rows = rows[torch.isfinite(rows).all(dim=1)]
        if kind == "binary":
            p = rows.mean(dim=0).clamp(1e-9, 1 - 1e-9)
            return float(-(p * p.log() + (1 - p) * (1 - p).log()).mean())
        constants = [rows.mean(dim=0), *rows.sort(dim=0).values[:: max(1, len(rows) // CONSTANTS)]]
        each = REGRESSIONS[kind][0]
        lowest = torch.stack([each(c.expand_as(rows), rows).mean(dim=0) for c in constants]).amin(dim=0).mean()
        return math.sqrt(float(lowest)) if kind == "rmse" else float(lowest)


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
        plain, kinds, total = self.plain(), int((self._counts > 0).sum()), int(self._counts.sum())
        return None if plain is None or total < 10 * kinds else plain + (kinds - 1) / (2 * total)

    def plain(self) -> float | None:
        """Of these labels by themselves, -sum p ln p."""
        self._count()
        some = self._counts[self._counts > 0].double()
        total = float(some.sum())
        return math.log(total) - float((some * some.log()).sum()) / total if len(some) else None
