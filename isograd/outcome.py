"""How a run ended, by its losses: one rule, wherever an outcome is named.

    excess = loss - unigram loss        nats; 0 is what a model reaches that knows token frequencies and no context

The unigram loss is that of the same batches, or of the held-out text. Of the final loss (the mean of the last 20 rows):

    finished    excess < -0.1: the model reads context
    diverged    a loss was not finite; or the loss was thrown 0.5 nat above its lowest, and has not come back
    collapsed   the loss is at rest, and not below the unigram entropy: the model predicts from token frequencies alone
    undecided   none of these can be decided yet: still falling, or not there for long enough

At rest is a loss that has stayed where it is for `PATIENCE` steps at the full rate, and for twice as long as it took to
come there (a small rate does everything later), and that would not come down in as many steps again. Where the layers'
gradients have come `VANISHED` times apart, `SOON` steps are enough: no such stack has come back. Distances are in
nats, and smaller by the same factor where the entropy is below one nat.

What goes wrong with the process ("failed", "interrupted") is not decided here.
"""

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise, repeat
from statistics import fmean, median
from typing import Any, Literal

OutcomeName = Literal["finished", "diverged", "collapsed", "undecided", "failed", "interrupted"]
ENDED: tuple[OutcomeName, ...] = ("finished", "diverged", "collapsed", "undecided")  # the run trained all its steps

LAST = 20  # rows whose mean loss is the final loss
WINDOW = 10  # rows whose mean is followed on the way
NEAR = 0.10  # nats around the unigram loss
BREAK = 0.5  # nats above the lowest mean so far
PATIENCE = 240  # steps at the full rate; stacks that train well have stayed at the unigram loss for 225
TIMES = 2.0  # times what it took to come there
VANISHED = 100.0  # times apart, by `CollapseWatch.apart`; of those that train 58 at most
SOON = 40  # steps at the full rate
SURE = 2.0  # standard errors
LITTLE = 0.05  # of the reference: a gain that is none


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a verdict rests on; None where it does not apply.

    Attributes:
        final_loss: mean of the last 20 rows, nats.
        excess: final loss above the unigram loss of the same batches, nats.
        held_out_excess: held-out loss above the unigram loss of the held-out text.
        since: the step since which the loss has been where it is, and `stayed` how many steps at the full rate.
        fall: nats per 100 steps at the full rate, over the last two thirds of that time.
        apart: how far the gradients of the layers had come apart in the last step; None where nobody watched them.
        needed: about how many more steps at the full rate would decide.
    """

    final_loss: float | None = None
    excess: float | None = None
    held_out_excess: float | None = None
    since: int | None = None
    stayed: float | None = None
    fall: float | None = None
    apart: float | None = None
    needed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An outcome, why in one sentence, and the numbers behind it."""

    outcome: OutcomeName
    reason: str
    numbers: Numbers

    def as_dict(self) -> dict[str, Any]:
        """What outcome.json keeps."""
        return {"outcome": self.outcome, "reason": self.reason, "judged": asdict(self.numbers)}


def judge(
    losses: Sequence[float],
    unigram: float | Sequence[float] | None,
    *,
    steps: Sequence[int] | None = None,
    rates: Sequence[float] | None = None,
    held_out: float | None = None,
    held_out_unigram: float | None = None,
    comparable: bool = True,
    broke_at: int | None = None,
    apart: float | None = None,
) -> Verdict:
    """The outcome of a run that trained to its end.

    Args:
        losses: of the logged steps, nats.
        unigram: the unigram loss of each of them, or the entropy of the token frequencies; None where the loss is not
            one of tokens: then a run whose losses are finite has finished, and its task's score says how well.
        steps: their numbers; None: 1, 2, ...
        rates: their learning rates, so that a warm-up counts for what it is; None: all the same.
        held_out: loss of the final weights on held-out text, None where there is none.
        held_out_unigram: what token frequencies give there; None: as in training.
        comparable: False where the training loss holds more than the cross-entropy (label smoothing, a second head):
            then the held-out loss says where it is, and the training loss how it moves.
        broke_at: the step at which `LossWatch` stopped the run, None where it did not.
        apart: `CollapseWatch.apart` after the last step, None where it was not watched.

    >>> [judge([loss] * 300, 3.0).outcome for loss in (2.0, 3.0, 5.0, math.nan)]
    ['finished', 'collapsed', 'collapsed', 'diverged']
    >>> judge([3.0] * 60, 3.0).outcome, judge([3.0] * 60, 3.0, apart=500.0).outcome
    ('undecided', 'collapsed')
    >>> judge([3.0] * 40, 3.0).outcome, judge([5 - 0.05 * step for step in range(40)], 3.0).outcome
    ('undecided', 'undecided')
    >>> [judge([2.0] * 100 + [6.0] * 300 + back, 3.0).outcome for back in ([], [2.0] * 20)]
    ['diverged', 'finished']
    >>> judge([0.7] * 300, None).outcome, judge([0.7, math.nan], None).outcome
    ('finished', 'diverged')
    """
    steps = range(1, len(losses) + 1) if steps is None else steps
    bad = next((step for step, loss in zip(steps, losses, strict=True) if not math.isfinite(loss)), None)
    if bad is not None:
        return _verdict("diverged", f"the loss of step {bad} was not finite", Numbers())
    if held_out is not None and not math.isfinite(held_out):
        return _verdict("diverged", "the held-out loss is not finite", Numbers())
    if not losses:
        return _verdict("undecided", "no step was trained", Numbers())
    if unigram is None:
        return _verdict("finished", "every loss was finite; the score says what was learned", Numbers())
    levels = [unigram] * len(losses) if isinstance(unigram, int | float) else list(unigram)
    away = None
    if held_out is not None:
        away = held_out - (fmean(levels) if held_out_unigram is None else held_out_unigram)
    final = fmean(losses[-LAST:])
    curve = _Curve(losses, levels, steps, rates, away if not comparable else None)
    excess = curve.end if comparable else None
    numbers = Numbers(final_loss=final, excess=excess, held_out_excess=away, apart=apart)
    if broke_at is not None:
        return _stopped(LossWatch(math.nan).follow(losses, levels).rose, broke_at, numbers)
    return _thrown(curve, numbers) or _below(curve, numbers) or _not_below(curve, numbers, comparable)


def in_units(verdict: Verdict, unit: float, baseline: str) -> Verdict:
    """A verdict on losses that were divided by `unit`, in the loss's own unit and with its own `baseline`.

    `judge` counts in nats. Of another loss what it reaches without inputs (the variance of the targets, of MSE) takes
    the place of the unigram entropy, and one nat: 0.10 below it is a tenth of that variance.

    >>> verdict = judge([loss / 4.0 for loss in [1.0] * 300], 1.0)
    >>> in_units(verdict, 4.0, "the variance of its targets").reason
    'the final loss is 3 below the variance of its targets'
    """

    def own(match: re.Match[str]) -> str:
        sign = "+" if match[1] == "+" else ""
        return f"{float(match[1] + match[2]) * unit:{sign}.3g}{match[3] if unit == 1 else ''}"

    reason = re.sub(r"([+-]?)(\d+\.\d+)( nats?|(?=\)))", own, verdict.reason)
    for word, ours in (("the unigram entropy", baseline), ("from token frequencies alone", "the same for every input")):
        reason = reason.replace(word, ours)
    scaled = ("final_loss", "excess", "held_out_excess", "fall")
    known = {name: value * unit for name in scaled if (value := getattr(verdict.numbers, name)) is not None}
    return replace(verdict, reason=reason, numbers=replace(verdict.numbers, **known))


def _verdict(outcome: OutcomeName, reason: str, numbers: Numbers) -> Verdict:
    return Verdict(outcome=outcome, reason=reason, numbers=numbers)


class LossWatch:
    """Follows the losses of a run, and says where it broke: what stops a run that is to stop there.

    That is at a loss that is not finite; at a mean of ten losses 0.5 nat above the lowest such mean before; or, once a
    mean has been 0.10 nat below the unigram loss, at one that has come back to it: there a collapsed stack may lie for
    ever, whatever the rate.

    Attributes:
        broke_at: the step (from 1), None as long as it has not broken.
        learnt: whether a mean before that was 0.10 nat below the unigram loss.
        rose: whether it broke because it rose, and did not only come back.

    >>> watch = LossWatch(4.0)
    >>> watch.follow([3.0] * 10 + [2.0] * 10 + [2.4] * 30).broke_at, watch.follow([2.8] * 10).broke_at, watch.learnt
    (None, 53, True)
    """

    def __init__(self, unigram_entropy: float) -> None:
        self.unigram_entropy = unigram_entropy
        self.broke_at: int | None = None
        self.learnt = False
        self.rose = False
        self._steps = 0
        self._lowest = math.inf
        self._last: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # loss, and above the unigram loss

    def follow(self, losses: Iterable[float], unigram: Iterable[float] | None = None) -> "LossWatch":
        """The losses of the steps that come next, and the unigram losses of their batches; None: the entropy."""
        levels = repeat(self.unigram_entropy) if unigram is None else unigram
        for loss, level in zip(losses, levels, strict=False):
            self._steps += 1
            self._last.append((loss, loss - level))
            if self.broke_at is None:
                self._look(loss)
        return self

    def _look(self, loss: float) -> None:
        if not math.isfinite(loss):
            self.broke_at = self._steps
        elif len(self._last) == WINDOW:
            mean, excess = (math.fsum(values) / WINDOW for values in zip(*self._last, strict=True))
            self.rose = mean >= self._lowest + BREAK
            if self.rose or (self.learnt and excess >= 0):
                self.broke_at = self._steps
            self._lowest = min(self._lowest, mean)
            self.learnt |= excess < -NEAR


class Onset:
    """Since when the loss is no longer where it was at its best: from where a run would be replayed.

    A loss that is not finite; or a mean of ten losses `BREAK` above the lowest such mean, counted from the first loss
    that was halfway there; or, once that mean has been `NEAR` below the unigram loss, one that has come back to it.

    Attributes:
        since: that step; None where there is none, also where the loss has recovered.

    >>> onset = Onset()
    >>> [onset.follow(step, loss, 4.0).since for step, loss in enumerate([3.0] * 20 + [9.0] * 12 + [2.0] * 20, 1)][::10]
    [None, None, 21, 21, None, None]
    """

    def __init__(self) -> None:
        self.since: int | None = None
        self._lowest = math.inf
        self._low = self._below = 0  # the last steps with a loss near its lowest, and below the unigram loss
        self._learnt = False
        self._last: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    def follow(self, step: int, loss: float, level: float) -> "Onset":
        """The next step; `level` is the unigram loss, and not a number where the loss is none of tokens."""
        if not math.isfinite(loss):
            self.since = self.since or step
            return self
        self._last.append((loss, loss - level))
        if len(self._last) < WINDOW:
            return self
        mean, excess = (math.fsum(values) / WINDOW for values in zip(*self._last, strict=True))
        self._lowest = min(self._lowest, mean)
        self._learnt |= excess < -NEAR
        if loss <= self._lowest + BREAK / 2:
            self._low = step
        if loss - level < -NEAR:
            self._below = step
        thrown, back = mean >= self._lowest + BREAK, self._learnt and excess >= 0
        self.since = self._low + 1 if thrown else self._below + 1 if back else None
        return self


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a run went on the scale of its own loss, whatever that measures: what a replay compares with.

        gain = reference - best      of the mean of ten losses; noise is that of such a mean

    The reference is what a prediction without inputs gives (unigram entropy of tokens, entropy of class frequencies,
    variance of targets), and the run's own first loss where that is not known. A run has broken where a loss is not
    finite, where the end has lost a quarter of the gain, or where there was no gain: nothing beyond noise and `LITTLE`
    of the reference. One that goes on from before has *finished* where its end has lost no more than a quarter of the
    gain; one that goes on from where nothing was gained, where it has gained something.

    Attributes:
        since: the first step that is no longer near the best; None where the run has not broken.
        learned: whether there was a gain.
        known: whether the reference is that of a prediction without inputs.
    """

    reference: float
    best: float
    noise: float
    since: int | None
    learned: bool
    known: bool

    @classmethod
    def of(cls, losses: Mapping[int, float], level: float | None = None) -> "Course":
        """Of a run whose losses are these, by step.

        Args:
            level: the reference; None: the first loss.

        >>> steps = range(1, 101)
        >>> fell = {n: 1.0 / n for n in steps}
        >>> Course.of(fell).since, Course.of(fell | {n: 5.0 for n in steps if n > 60}).since
        (None, 61)
        >>> Course.of({n: 2.0 for n in steps}).since, Course.of(fell | {70: 9.0}).since
        (1, None)
        """
        steps, values = [*losses], [*losses.values()]
        bad = next((i for i, loss in enumerate(values) if not math.isfinite(loss)), None)
        finite = values[:bad]
        if not finite:
            return cls(
                reference=math.nan if level is None else level,
                best=math.nan, noise=0.0, since=steps[0] if steps else None, learned=False, known=level is not None,
            )  # fmt: skip
        known = level is not None and math.isfinite(level)
        reference = level if level is not None and known else finite[0]
        ends = range(min(WINDOW, len(finite)), len(finite) + 1)
        means = [fmean(finite[max(0, i - WINDOW) : i]) for i in ends]
        low = min(range(len(means)), key=means.__getitem__)
        best, upto = means[low], ends[low]
        noise = max(SURE * _noise(finite[max(0, upto - 50) : upto]) / math.sqrt(WINDOW), 1e-9 * abs(reference))
        gain = reference - best
        learned = gain > max(2 * noise, LITTLE * abs(reference))
        lost = means[-1] - best > max(gain / 4 if learned else LITTLE * abs(reference), 4 * noise)
        since = None
        if lost or (bad is not None and learned):
            near = best + max(gain / 10 if learned else 0.0, 2 * noise)
            last = next(i for i in reversed(range(len(means))) if means[i] <= near)
            since = steps[min(ends[last], len(steps) - 1)] if lost else steps[len(finite)]
        elif not learned:
            since = steps[0]
        return cls(reference=reference, best=best, noise=noise, since=since, learned=learned, known=known)

    def finished(self, losses: Sequence[float]) -> bool:
        """Whether a run that goes on from before the break trains to its end, by its losses there."""
        if len(losses) < WINDOW or not all(map(math.isfinite, losses)):
            return False
        own = 0.0 if self.learned else 2 * SURE * _noise(losses) / math.sqrt(WINDOW)
        return fmean(losses[-WINDOW:]) <= self.bound - own

    def said(self) -> str:
        """What is asked of a run that has finished, in words."""
        what = "a prediction without inputs" if self.known else "its own first loss (no baseline is known)"
        beside = f"{what}: {self.reference:.4g}"
        if self.learned:
            return f"the last {WINDOW} losses at most {self.bound:.4g} (best: {self.best:.4g}; {beside})"
        return f"the last {WINDOW} losses below {self.bound:.4g} ({beside})"

    @property
    def bound(self) -> float:
        """Of the mean of the last losses of a run that has finished."""
        if self.learned:
            return self.best + max((self.reference - self.best) / 4, 2 * self.noise)
        return self.reference - LITTLE * abs(self.reference)


def lr_reached(rows: Sequence[Mapping[str, Any]], unigram: float | Sequence[float]) -> dict[str, Any]:
    """ "broke_at" (step or None); "lr_reached": the rate of that step, or of the last one; None if it never learnt.

    Args:
        rows: of metrics.jsonl, from the first step on.
        unigram: the unigram loss of each, or the entropy.
    """
    levels = [unigram] * len(rows) if isinstance(unigram, int | float) else unigram
    watch = LossWatch(math.nan).follow([row["loss"] for row in rows], levels)
    reached = rows[(watch.broke_at or len(rows)) - 1]["lr"]
    return {"broke_at": watch.broke_at, "lr_reached": reached if watch.learnt else None}


def reached(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """Where the loss first comes down to `target`, None if it never does; between two points on a straight line.

    Args:
        points: where (a step, or seconds), and the loss there.

    >>> reached([(10, 4.0), (20, 3.0), (30, 3.5), (40, 2.5)], 3.25)
    17.5
    >>> reached([(10, 4.0), (20, 3.0)], 2.9) is None
    True
    """
    before: tuple[float, float] | None = None
    for x, loss in points:
        if loss <= target:
            if before is None:
                return x  # there at the first look: no later than this
            part = (before[1] - target) / (before[1] - loss)
            return before[0] + part * (x - before[0])
        before = (x, loss)
    return None


def one_digit(rate: float) -> float:
    """A rate, rounded down.

    >>> one_digit(3.9e-4), one_digit(1e-3)
    (0.0003, 0.001)
    """
    power = 10.0 ** math.floor(math.log10(rate) + 1e-9)
    return float(f"{math.floor(rate / power + 1e-9) * power:.1g}")


class Stay:
    """How long a run that goes on has been at the unigram loss: `judge` for the early warning, which sees no rates.

    Attributes:
        losses: the last ones.
        since: the step at which their mean came within 0.10 nat; None where it is not there, or has gone below.

    >>> stay = Stay()
    >>> [step for step in range(1, 301) if stay.follow(step, 3.0, unigram_entropy=3.0)][0], stay.since
    (260, 20)
    """

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=LAST)
        self.since: int | None = None

    @property
    def mean(self) -> float:
        return math.fsum(self.losses) / len(self.losses) if all(map(math.isfinite, self.losses)) else math.nan

    def follow(self, step: int, loss: float, unigram_entropy: float) -> bool:
        """The loss of a step; whether the stay has been long enough for a collapse."""
        self.losses.append(loss)
        if len(self.losses) < LAST:
            return False
        near = NEAR * min(1.0, max(unigram_entropy, 0.1))
        if not self.mean >= unigram_entropy - near:  # below, or not a number
            self.since = None
        elif self.since is None and self.mean <= unigram_entropy + near:
            self.since = step
        return self.since is not None and step - self.since >= max(PATIENCE, TIMES * self.since)


class _Curve:
    """The excess by row, and where it rests.

    Attributes:
        end: mean excess of the last rows.
        near, far: `NEAR` and `BREAK`, smaller below one nat of entropy; `near` two standard errors of `end` at least.
        means: of the last `WINDOW` rows at each row; the first ones are of fewer.
        time: steps at the full rate until each row.
    """

    def __init__(
        self,
        losses: Sequence[float],
        levels: Sequence[float],
        steps: Sequence[int],
        rates: Sequence[float] | None,
        away: float | None,
    ) -> None:
        self.steps = steps
        self.level = fmean(levels[-LAST:])
        self.excess = [loss - level for loss, level in zip(losses, levels, strict=True)]
        if away is not None:
            shift = away - fmean(self.excess[-LAST:])
            self.excess = [one + shift for one in self.excess]
        gaps = [after - before for before, after in pairwise([0, *steps])]
        full = max(rates, default=0.0) if rates else 0.0
        shares = [rate / full for rate in rates] if rates and full > 0 else [1.0] * len(gaps)
        self.time = list(accumulate(gap * share for gap, share in zip(gaps, shares, strict=True)))
        self.means = [fmean(self.excess[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(self.excess))]
        self.end = fmean(self.excess[-LAST:])
        self.noise = _noise(self.excess)
        scale = min(1.0, max(self.level, 0.1))
        self.near = max(scale * NEAR, SURE * self.noise / math.sqrt(min(LAST, len(losses))))
        self.far = max(scale * BREAK, 5 * self.near)
        chance = 2 * SURE * self.noise / math.sqrt(WINDOW)  # the lowest of many means
        below = self.last_below(-max(scale * NEAR, chance))
        self._below = None if below is None or below >= len(losses) - LAST else below
        self.lowest = min(self.excess[0], *self.means[WINDOW - 1 :] or [self.end])

    def stayed(self, row: int) -> float:
        """Steps at the full rate since a row."""
        return self.time[-1] - (self.time[row - 1] if row else 0.0)

    def last_below(self, value: float) -> int | None:
        """The last row whose mean was below."""
        return next((i for i in reversed(range(len(self.means))) if self.means[i] < value), None)

    def after(self, row: int | None) -> int:
        """The next row, the first one after none."""
        return 0 if row is None else min(row + 1, len(self.means) - 1)

    @property
    def learned(self) -> bool:
        """Whether a mean of `LAST` rows lay below the unigram loss before, by more than noise does in so many rows."""
        return self._below is not None

    def came(self) -> int:
        """The row since which the loss is where it is: the first one there; where it was below, the first after."""
        if self._below is not None:
            return self.after(self._below)
        there = max(0.0, self.end) + self.near
        return next((i for i, mean in enumerate(self.means) if mean <= there), len(self.means) - 1)

    def fall(self, row: int) -> tuple[float, float]:
        """Nats per step at the full rate from the last two thirds since a row, and its standard error.

        From the medians of two halves: one spike more or less changes nothing.
        """
        begin = row + (len(self.excess) - row) // 3
        middle = (begin + len(self.excess)) // 2
        first, second = self.excess[begin:middle], self.excess[middle:]
        between = (self.time[-1] - self.time[begin]) / 2
        if len(first) < 2 or between <= 0:
            return 0.0, math.inf
        error = 1.25 * self.noise * math.sqrt(1 / len(first) + 1 / len(second))
        return (median(first) - median(second)) / between, error / between


def _noise(values: Sequence[float]) -> float:
    """Standard deviation of one row, robustly, from the differences of neighbours in the last hundred."""
    apart = [abs(after - before) for before, after in pairwise(values[-100:])]
    return median(apart) / 0.954 if apart else 0.0  # of normal noise the median |difference| is 0.6745 sqrt(2) of it


def _stopped(rose: bool, broke_at: int, numbers: Numbers) -> Verdict:
    """A run that was to stop where its loss breaks."""
    if rose:
        return _verdict("diverged", f"stopped at step {broke_at}: the loss rose {BREAK} nat above its lowest", numbers)
    return _verdict("collapsed", f"stopped at step {broke_at}: the loss came back to the unigram entropy", numbers)


def _thrown(curve: _Curve, numbers: Numbers) -> Verdict | None:
    """Whether the loss lies far above its lowest, and has not come back."""
    up = curve.end - curve.lowest
    if up < curve.far:
        return None
    row = curve.after(curve.last_below(curve.lowest + curve.far / 2))
    stayed = curve.stayed(row)
    fall, error = curve.fall(row)
    since = curve.steps[row]
    numbers = replace(numbers, since=since, stayed=stayed, fall=_per_hundred(fall))
    said = f"{_nats(up)} above its lowest since step {since}"
    if fall > SURE * error and fall * stayed >= up - curve.far:
        needed = math.ceil((up - curve.far) / fall)
        return _undecided(numbers, needed, f"the loss is {said}, and still coming back")
    if stayed < PATIENCE:
        return _undecided(numbers, math.ceil(PATIENCE - stayed), f"the loss is {said}; it may come back")
    return _verdict("diverged", f"the loss is {said}, and has not come back", numbers)


def _below(curve: _Curve, numbers: Numbers) -> Verdict | None:
    """Whether the model reads context: on the training batches at the end, or on held-out text."""
    held_out = numbers.held_out_excess
    trained = numbers.excess is not None or held_out is None
    if trained and len(curve.excess) >= WINDOW and curve.end <= -curve.near:
        reason = f"the final loss is {_nats(-curve.end)} below the unigram entropy"
        if held_out is not None and held_out > -curve.near:
            reason += f"; the held-out loss is not ({held_out:+.2f}): overfitting"
        return _verdict("finished", reason, numbers)
    if held_out is not None and held_out <= -curve.near and not (trained and curve.learned):
        return _verdict("finished", f"the held-out loss is {_nats(-held_out)} below the unigram entropy", numbers)
    return None


def _not_below(curve: _Curve, numbers: Numbers, comparable: bool) -> Verdict:
    """Collapsed, where the loss is at rest; else what is missing."""
    if not comparable and numbers.held_out_excess is None:
        missing = "the training loss holds more than the cross-entropy, and there is no held-out loss to judge by"
        return _verdict("undecided", missing, numbers)
    row = curve.came()
    stayed, before = curve.stayed(row), curve.time[row - 1] if row else 0.0
    vanished = numbers.apart is not None and numbers.apart >= VANISHED
    wanted = SOON if vanished else PATIENCE if curve.learned else max(PATIENCE, TIMES * before)
    fall, error = curve.fall(row)
    numbers = replace(numbers, since=curve.steps[row], stayed=stayed, fall=_per_hundred(fall))
    to_go = curve.end + curve.near  # nats to where it would read context
    falls = (fall + SURE * error) * stayed >= min(to_go, 2 * curve.near)
    where = _where(curve, numbers)
    if falls and fall > SURE * error:
        said = f"{where}, and still falls by {_nats(100 * fall)} per 100 steps"
        return _undecided(numbers, max(1, math.ceil(to_go / fall)), said)
    if stayed < wanted:
        said = f"{where}, and came there {stayed:.0f} steps ago"
        return _undecided(numbers, math.ceil(wanted - stayed), said)
    if falls and not vanished:
        return _undecided(numbers, math.ceil(stayed), f"{where}; whether it still falls, its noise does not let tell")
    what = "learned nothing" if curve.end > curve.near else "predicts from token frequencies alone"
    gradients = "; gradients vanish towards the input" if vanished else ""
    return _verdict("collapsed", f"{where} since step {curve.steps[row]}: the model {what}{gradients}", numbers)


def _where(curve: _Curve, numbers: Numbers) -> str:
    whose = "loss" if numbers.excess is not None else "held-out loss"
    if curve.end > curve.near:
        return f"the {whose} is {_nats(curve.end)} above the unigram entropy"
    came_back = " has come back to" if curve.learned else " is at"
    return f"the {whose}{came_back} the unigram entropy ({curve.end:+.2f} nat)"


def _undecided(numbers: Numbers, needed: int, said: str) -> Verdict:
    numbers = replace(numbers, needed=needed)
    return _verdict("undecided", f"{said}; about {needed:,} more steps would tell", numbers)


def _per_hundred(fall: float) -> float:
    return 100 * fall


def _nats(value: float) -> str:
    return f"{value:.2f} nat" + "s" * (round(value, 2) != 1)
