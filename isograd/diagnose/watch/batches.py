"""What the batches say: the same one again and again, labels that are none of the inputs' next tokens, a leak.

A leak is measured, once: where the labels are the next tokens, a changed later token must not change an earlier
output. That takes two forward passes of two sequences in evaluation mode, without gradients; random numbers, modes and
weights stay as they are.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from isograd.diagnose.watch.baseline import LABELS, is_tokens, left_alone, targets_of
from isograd.diagnose.watch.collapse import CollapseWatch
from isograd.diagnose.watch.writers import Row, alarm
from isograd.lint.step.rules.loss import mixed

LOOKED_AT = 12  # batches from the first on
SEQUENCES = 2  # that a leak is looked for in
MOST = 4096  # entries of a tensor that tell two batches apart
COPIED = 0.95  # the share of labels that are the inputs, moved
NEAR = 0.3  # above a baseline, over its scale: as far as the noise of updates drives a loss
BELOW = {True: 0.3, False: 0.1}  # the same below the unigram entropy, and below another
SUMMED = 16  # labels of a batch, from which on a sum differs clearly from a mean
PROBE = 0.1  # the share of matrices that train, up to which a head on frozen features may have nothing to learn
FARTHEST = 16  # tokens ahead that labels are looked for
WAITS = 160  # readings at the unigram loss, before odd labels are taken for its cause
INPUTS = ("input_ids", "inputs", "x", "tokens", "idx", "ids")
LEAK = 1e-3  # of the outputs' standard deviation

Pair = tuple[Tensor, Tensor]


class Batches:
    """Looks at the first batches; each signal is reported once.

    same-batch  all of the first twelve are equal
    leak        outputs depend on later tokens, and the labels are the next tokens
    loss-sum    the first loss is that of a guess times the number of labels
    labels      labels are the previous tokens; or the tokens after next; or, where the loss stays at its baseline,
                have nothing to do with the inputs
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._seen: list[str] = []
        self._one_row = True  # whether all rows of each batch are equal
        self._targets: set[float | None] = set()  # the one value of all targets of a batch; None where they differ
        self._reported: set[str] = set()
        self._mixed: list[bool] = []  # whether labels are the next tokens of another row
        self._moved: list[int | None] = []  # by how many places the labels of each batch are its inputs
        self._waited = 0
        self._given = False

    def look(self, step: int, batch: Any, collapse: CollapseWatch, loss: float) -> list[Row]:
        """The batch of a reading; the warnings that are new."""
        found: list[Row] = []
        if batch is not None and len(self._seen) < LOOKED_AT:
            pair = tokens_of(batch)
            if pair is not None:
                self._given = isinstance(batch, Mapping) and "labels" in batch  # so the model forms the loss
                self._moved.append(moved(*pair))
                self._mixed.append(self._moved[-1] is None and mixed(*pair))
                if len(self._seen) == 0:
                    found += self._leak(step, batch, pair) + self._summed(step, pair[1], loss)
            self._targets |= {same(target) for target in targets_of(batch)}
            self._seen.append(_mark(batch) if _tensors(batch) else str(step))
            self._one_row &= all(len(x) > 1 and bool((x == x[:1]).all()) for x in _tensors(batch) if x.ndim)
            if len(self._seen) == LOOKED_AT:
                found += self._same(step) or self._constant(step, batch) or self._labels(step)
        found += self._unrelated(step, collapse)
        new = [row for row in found if row["signal"] not in self._reported]
        self._reported |= {row["signal"] for row in new}
        return new

    @property
    def copied(self) -> bool:
        """Whether labels are the inputs, not moved, as far as batches were given: what a low loss may mean. Of others a
        leak is measured, and a task of little entropy has a low loss of its own.
        """
        return {*self._moved} <= {0} and not (self._given and _shifts(self._model))

    def _same(self, step: int) -> list[Row]:
        if len(set(self._seen)) > 1:
            return []
        if self._one_row:
            cause = "all rows of all batches are one: the data set gives the same for every index"
            remedy = "use the index in __getitem__, and seed a generator by it, or once in __init__"
        else:
            cause = "one batch is trained on: it is taken before the loop, or a new iterator is made in every step"
            remedy = "take the next batch: `for batch in loader:`, not `next(iter(loader))` inside the loop"
        return [
            alarm(
                step,
                "same-batch",
                None,
                f"the first {LOOKED_AT} batches are equal, to the last token",
                cause,
                remedy,
            )
        ]

    def _constant(self, step: int, batch: Any) -> list[Row]:
        """One target throughout; of classes, and of zeros and ones, that may be the first part of sorted data."""
        value = next(iter(self._targets), None) if len(self._targets) == 1 else None
        target = next(iter(targets_of(batch)), None)
        if value is None or target is None or not (is_tokens(target) or value not in (0.0, 1.0)):
            return []
        return [
            alarm(
                step, "labels", None,
                f"all targets of the first {LOOKED_AT} batches are {value:g}",
                "they are constant: another column, a default or a padding was read in their place",
                "print the targets where they are made, and give the loss the ones that are to be predicted",
            )
        ]  # fmt: skip

    def _labels(self, step: int) -> list[Row]:
        places = {*self._moved}
        if places == {-1}:
            symptom, cause = "labels are the tokens before", "they are shifted the wrong way: the model copies"
        elif places == {2} or (places == {1} and self._given and _shifts(self._model)):
            symptom, cause = "labels are the tokens after next", "they are shifted twice, in the data and in the model"
        elif len(places) == 1 and (ahead := next(iter(places))) is not None and ahead > 2:
            symptom, cause = f"labels are the tokens {ahead} places ahead", "they are cut from the wrong place"
        elif places == {None} and all(self._mixed):
            symptom = "labels are the next tokens of other rows of the batch"
            cause = "inputs and labels are not of the same samples: one of them was shuffled"
        else:
            return []
        remedy = "make labels[:, t] what is to be predicted from inputs[:, : t + 1], the token inputs[:, t + 1]"
        return [alarm(step, "labels", None, symptom, cause, remedy)]

    def _unrelated(self, step: int, collapse: CollapseWatch) -> list[Row]:
        """A loss that stays at its baseline, and labels that are not the inputs, wherever moved.

        Of a translation rightly so, but then the loss falls.
        """
        level = collapse.baseline
        if level is None or len(self._seen) < LOOKED_AT or (level.kind == "tokens" and {*self._moved} != {None}):
            return []
        mean = collapse.recent_loss  # a single batch is too noisy
        above = (mean - level.value) / level.scale
        stays = -BELOW[level.kind == "tokens"] < above < NEAR and not is_probe(self._model)
        self._waited = self._waited + 1 if stays else 0
        if self._waited < WAITS:
            return []
        if level.kind != "tokens":
            return [
                alarm(
                    step, "labels", None,
                    f"the loss ({level.number(mean)}) stays at {level}",
                    "inputs and targets are not of the same samples (one is shuffled, or of another batch), or outputs"
                    " do not depend on the inputs",
                    "print one input with its target, and shuffle both together: x, y = x[order], y[order]",
                )
            ]  # fmt: skip
        return [
            alarm(
                step, "labels", None,
                f"the loss stays at the unigram entropy ({level.value:.2f} nats), and labels are not the next"
                " tokens",
                "inputs and labels are not of the same samples (one is shuffled, or of another batch)",
                "take both from one slice: x, y = data[:, :-1], data[:, 1:], and shuffle them together",
            )
        ]  # fmt: skip

    def _summed(self, step: int, labels: Tensor, loss: float) -> list[Row]:
        """A first loss that is about that of a guess, times the number of labels."""
        count, classes = int((labels >= 0).sum()), int(labels.max()) + 1
        if count < SUMMED or classes < 3 or not 0.3 < loss / count / math.log(classes) < 4:
            return []
        return [
            alarm(
                step, "loss-sum", None,
                f"the first loss is {loss:.0f}, {count} labels times {loss / count:.2f}",
                "it is summed over tokens where a mean is meant, so the rate is as many times too high",
                "take the mean: reduction='mean', or divide by the number of labels",
            )
        ]  # fmt: skip

    def _leak(self, step: int, batch: Any, pair: Pair) -> list[Row]:
        place = moved(*pair)
        if not (place == 1 or (place == 0 and _shifts(self._model))):
            return []
        with suppress(Exception):  # somebody else's model: what it does not run on, it is not looked at with
            share = leaks(self._model, batch, pair[0])
            if share is not None and share > LEAK:
                return [
                    alarm(
                        step, "leak", None,
                        f"outputs change by {share:.2g} of their standard deviation when a later token is changed",
                        "attention (or another mixing over positions) is not causal: the model sees what it is to"
                        " predict",
                        "pass is_causal=True, or a mask torch.triu(torch.full((T, T), -inf), 1), to every layer;"
                        " isograd check names the layer",
                        share=share,
                    )
                ]  # fmt: skip
        return []


def same(target: Tensor) -> float | None:
    """The one value of at least two targets that count; None where they differ.

    >>> same(torch.tensor([7.0, 7.0])), same(torch.tensor([[4, -100], [4, -100]])), same(torch.tensor([1, 2]))
    (7.0, 4.0, None)
    """
    some = target.flatten() if target.is_floating_point() else target[target >= 0]
    return float(some[0]) if some.numel() > 1 and bool((some == some[0]).all()) else None


def tokens_of(batch: Any) -> Pair | None:
    """Inputs and labels of a batch where both are token ids of one shape, (batch, time)."""
    if isinstance(batch, Mapping):
        x = next((batch[name] for name in INPUTS if isinstance(batch.get(name), Tensor)), None)
        y = next((batch[name] for name in LABELS if isinstance(batch.get(name), Tensor)), None)
    elif isinstance(batch, list | tuple) and len(batch) == 2:
        x, y = batch
    else:
        return None
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.shape != y.shape or x.ndim != 2:
        return None
    return None if x.is_floating_point() or y.is_floating_point() or x.shape[1] <= 3 else (x, y)


def moved(x: Tensor, y: Tensor) -> int | None:
    """The d for which y[:, t] is x[:, t + d], where y is not ignored (below 0); None where there is no such d.

    >>> x = torch.arange(10)[None] % 7
    >>> [moved(x, x.roll(-d, dims=1)) for d in (0, 1, 2, -1, 4, -4)]
    [0, 1, 2, -1, 4, None]
    """
    for d in (1, 0, 2, -1, *range(3, min(FARTHEST, x.shape[1] // 2) + 1)):
        theirs = x[:, max(d, 0) : x.shape[1] + min(d, 0)]
        mine = y[:, max(-d, 0) : y.shape[1] - max(d, 0)]
        asked = mine >= 0
        share = float((mine == theirs)[asked].float().mean()) if bool(asked.any()) else 0.0
        if share > COPIED and int(asked.sum()) > min(asked.numel(), y.numel() / 2) / 2:
            return d
    return None


def leaks(model: nn.Module, batch: Any, x: Tensor) -> float | None:
    """How much earlier outputs change with a later token, in standard deviations; None where nothing depends on it."""
    rows = x[:SEQUENCES]
    at = rows.shape[1] // 2
    other = rows.clone()
    other[:, at:] = rows[:, at:].flip(1).roll(1, dims=0) if len(rows) > 1 else rows[:, at:].flip(1)
    if torch.equal(other, rows):
        return None
    with left_alone(model):
        model.eval()
        first, second = (_output(model, batch, ids) for ids in (rows, other))
    if first is None or second is None:
        return None
    apart = (first - second).abs().amax(dim=(0, 2)) / first.std()
    return None if float(apart[at:].max()) == 0.0 else float(apart[:at].max())


def _output(model: nn.Module, batch: Any, ids: Tensor) -> Tensor | None:
    """The outputs for these ids, (batch, time, features)."""
    bare = getattr(model, "_orig_mod", model)
    more = {k: v[: len(ids)] for k, v in batch.items() if k == "attention_mask"} if isinstance(batch, Mapping) else {}
    name = next((name for name in INPUTS if name in batch), None) if isinstance(batch, Mapping) else None
    try:
        found = bare(**{name: ids}, **more) if name else bare(ids)
    except TypeError:
        found = bare(ids)
    values = found.values() if isinstance(found, Mapping) else found if isinstance(found, list | tuple) else [found]
    like = [v for v in values if isinstance(v, Tensor) and v.ndim == 3 and v.shape[:2] == ids.shape]
    return like[0].float() if like else None


def _shifts(model: nn.Module) -> bool:
    """Whether the model shifts labels itself, as transformers' causal language models do."""
    bare = getattr(model, "_orig_mod", model)
    names = [c.__name__ for c in type(bare).__mro__]
    return "PreTrainedModel" in names and any("CausalLM" in name or "LMHeadModel" in name for name in names)


def _mark(batch: Any) -> str:
    """A few bytes that tell batches apart, by their content."""
    found = hashlib.sha256()
    for tensor in _tensors(batch):
        found.update(str(tuple(tensor.shape)).encode())
        found.update(tensor.detach().flatten()[:MOST].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _tensors(value: Any) -> Sequence[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for one in inner for tensor in _tensors(one)]


def is_probe(model: nn.Module) -> bool:
    """Whether little more than a head trains, on features that are frozen: it may find nothing in them."""
    wanted = [p.requires_grad for p in model.parameters() if p.ndim > 1]
    return sum(wanted) <= PROBE * len(wanted)
