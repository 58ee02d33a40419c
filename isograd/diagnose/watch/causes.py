"""What made a loss rise, stand still or never fall, by how far the weights went and how the optimizer is set."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from isograd.diagnose.watch.steps import OptimizerSettings, WeightsMoved
from isograd.outcome import one_digit

Cause = tuple[str, str]  # the cause, the remedy
Ask = Callable[[], OptimizerSettings | None]

ABOUT = 13  # readings in which a rise begins, up to where it is seen
LEAP = 5.0  # times the usual step
ROSE = 3.0  # times the rate before
LATE = 12  # readings: as a mean of ten sees a rise, after it has begun
GENTLE = 0.005  # of their size: how far trained weights may go in their first step
WARM = 20  # steps of warm-up that are advised for trained weights
GROWN = 10.0  # times the usual gradient: then the step before the rise was one of its own
FAR = 0.2  # of their size: weights that go so far in each of the first steps forget where they began
NOT_FAR = 0.02  # at most: such steps do not make a loss rise by themselves
SLOW = 6e-5  # of their size: a matrix would take ten thousand steps to become another one
BLOWN = 2.5  # times their first size: matrices that only grew
SHRUNK = 0.3
TINY_CLIP = 1e-3  # Adam's second moment, over the gradient
EFFECTIVE = 0.1  # of plain descent: how far weights go over rate times gradient


@dataclass(frozen=True, kw_only=True)
class SeenStep:
    """A reading: its step, the norm of all gradients, how far the weights went to it, the rate of the step to come."""

    step: int
    norm: float
    moved: WeightsMoved | None
    rate: float | None = None


class History:
    """The last readings."""

    def __init__(self, most: int = 200) -> None:
        self._seen: deque[SeenStep] = deque(maxlen=most)

    def add(self, step: int, norm: float, moved: WeightsMoved | None, rate: float | None = None) -> None:
        self._seen.append(SeenStep(step=step, norm=norm, moved=moved, rate=rate))

    def latest(self) -> WeightsMoved | None:
        return self._seen[-1].moved if self._seen else None

    def by(self, start: int | None = None, end: int | None = None) -> float | None:
        """How far weights usually went, over their size; None where that is not known."""
        some = [one.moved.by for one in list(self._seen)[start:end] if one.moved is not None]
        return median(some) if some else None

    def onset(self) -> Cause | None:
        """What was first out of the ordinary where a loss has just begun to rise: a step, a gradient, or neither."""
        seen = list(self._seen)
        before, last = seen[:-ABOUT], seen[-ABOUT:]
        rose = self.rose()
        if rose is not None:
            return rose
        usual = self.by(end=-ABOUT)
        if usual is None or len(before) < ABOUT:
            return None
        norm = median(one.norm for one in before)
        leaps = [one for one in last if one.moved is not None and one.moved.by > LEAP * usual]
        large = [one for one in last if one.norm > GROWN * norm]
        if leaps and not (large and large[0].step < leaps[0].step):
            return _leapt(leaps, usual, known=last[0].rate is not None)
        if large:
            return steep(large[0].step, max(one.norm for one in large) / norm)
        return None

    def rose(self) -> Cause | None:
        """A rate that rose from one reading to the next, within those in which a loss began to rise."""
        pairs = [*pairwise(self._seen)][1:][-ABOUT - LATE :]  # not the first ones of a warm-up
        jumps = [(a.rate, b) for a, b in pairs if a.rate and b.rate and b.rate >= ROSE * a.rate]
        if not jumps:
            return None
        before, at = jumps[0]
        return (
            f"the learning rate rose from {before:.3g} to {at.rate:.3g} at step {at.step}",
            f"fix its schedule, and resume from an earlier checkpoint, at lr={before:.3g}",
        )

    def highest_rate(self) -> float | None:
        """So far; None where it is not known."""
        return max((one.rate for one in self._seen if one.rate is not None), default=None)

    def furthest(self) -> float | None:
        """The largest step, over the size of the weights."""
        return max((one.moved.by for one in self._seen if one.moved is not None), default=None)

    def gentle(self) -> float | None:
        """A rate at which weights go `GENTLE` of their size in a step, by the steps so far; None without rates."""
        pairs = [(a.rate, b.moved.by) for a, b in pairwise(self._seen) if b.moved is not None and a.rate]
        ratios = [by / rate for rate, by in pairs if by > 0]
        rates = [one.rate for one in self._seen if one.rate]
        if not rates:
            return None
        return one_digit(min(GENTLE / max(ratios), max(rates) / 3) if ratios else max(rates) / 30)


def _leapt(leaps: Sequence[SeenStep], usual: float, *, known: bool) -> Cause:
    """`known`: the rates are, and did not rise."""
    step, times = leaps[0].step, max(one.moved.by for one in leaps if one.moved is not None) / usual
    if len(leaps) == 1:
        rate, look = ("", "") if known else (", or the rate was that high for one step", "; print the rate")
        return (
            f"up to step {step} weights jumped {times:.0f} times their usual step, once: other weights were loaded"
            f" there (a restart without its checkpoint){rate}",
            f"look at what the loop does there: load model and optimizer of the checkpoint{look}",
        )
    if known:
        return (
            f"from step {step} on weights went up to {times:.0f} times their usual step, for {len(leaps)} steps, at the"
            " same learning rate: the optimizer's state was lost or is another's, or something else writes weights",
            "look at what the loop does there: load the optimizer of the checkpoint, too",
        )
    return (
        f"the learning rate jumped: from step {step} on weights went up to {times:.0f} times their usual step, for"
        f" {len(leaps)} steps",
        "print the rate of optimizer.param_groups there, and fix its schedule; resume from an earlier checkpoint",
    )


def undone(before: float, now: float, history: History) -> Cause:
    """Of updates that undo what a trained model knew of its first batch."""
    rate = history.highest_rate()
    return (
        f"the learning rate{'' if rate is None else f' {rate:g}'} is too high for trained weights: the first batch had"
        f" {before:.2f} before the first update, and has {now:.2f} now",
        f"load the weights of before, and {slower(history)}",
    )


def slower(history: History) -> str:
    """A rate to try for trained weights, or by how much to lower one that is not known."""
    gentle, by = history.gentle(), history.furthest()
    if gentle is not None:
        return f"train at lr={gentle:g} with {WARM} steps of warm-up"
    times = "a hundredfold" if not by else f"{max(3.0, by / GENTLE):.0f}-fold"
    return (
        f"train at a rate lowered {times}, with {WARM} steps of warm-up;"
        " isograd.watch(model, optimizer=optimizer) says which rate it is"
    )


def steep(step: int, times: float) -> Cause:
    return (
        f"a step with a gradient {times:.0f} times the usual (step {step}), of a batch or a rate that was too much",
        "clip gradients (torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)) and look at that batch",
    )


STEADY: Cause = (
    "weights changed as usual while the loss jumped: the data changed there",
    "look at the batches there: the loader, the tokenizer, the order of the files",
)


def never_fell(by: float | None, climbs: bool, settings: OptimizerSettings | None) -> Cause:
    """Of a loss that has risen from the first steps on; `climbs`: and goes on rising, as what is maximized does."""
    lower = "lower the learning rate tenfold, and warm it up"
    minimize = "minimize the loss itself: loss.backward() of the loss, not of its negative, and maximize=False"
    if settings is not None and settings.maximizes:
        return "the loss is maximized: the optimizer has maximize=True", "make the optimizer with maximize=False"
    if by is None:
        return (
            "the loss has hardly ever fallen: it is maximized (a sign), or the rate is far too high",
            "minimize the loss itself (loss.backward(), maximize=False), and lower the rate",
        )
    if by > FAR or (by > NOT_FAR and not climbs):
        return (
            f"the learning rate is far too high: weights change by {by:.0%} of their size per step{_rate(settings)}",
            lower,
        )
    return f"the loss is maximized (a sign is turned): it rises with ordinary steps ({by:.1%} of the weights)", minimize


def hardly_move(moved: WeightsMoved, settings: OptimizerSettings | None) -> Cause:
    """Of a loss that stands still, or nearly, because the weights do."""
    cause = f"the weights hardly move ({moved.by:.1g} of their size in a step)"
    if settings is None:
        return cause, (
            "look at the rate and its schedule, the norm of clipping and Adam's eps: one of them is far off;"
            " isograd.watch(model, optimizer=optimizer) says which"
        )
    clipped = settings.second is not None and settings.second < TINY_CLIP * moved.gradient
    clipped |= settings.descends and moved.rate < EFFECTIVE * settings.rate
    if clipped:
        return (
            f"{cause}: gradients are clipped to nearly nothing before the update",
            "clip at a norm near the usual one: clip_grad_norm_(model.parameters(), 1.0)",
        )
    if settings.second is not None and settings.eps > 10 * settings.second:
        return (
            f"{cause}: Adam's eps ({settings.eps:g}) is far larger than the gradients ({settings.second:.1g}), and"
            " divides each step",
            "set eps=1e-8",
        )
    return (
        f"{cause}: the learning rate is {settings.rate:.2g}",
        "raise it, or look at its schedule: scheduler.step() once per update, and a warm-up shorter than the run",
    )


def grown(moved: WeightsMoved, early: float | None, settings: OptimizerSettings | None) -> Cause:
    """Of a loss that never came below the unigram entropy, while the matrices blew up."""
    how = "" if early is None else f", by {early:.0%} of their size in each of the first steps"
    return (
        f"the learning rate is too high: matrices have grown {moved.size:.1f}-fold{how}{_rate(settings)}",
        "lower it tenfold, and warm it up over the first hundred steps",
    )


def shrunk(moved: WeightsMoved, settings: OptimizerSettings | None) -> Cause:
    """Of weights that decay faster than they learn."""
    numbers = "the weight decay"
    if settings is not None:
        each = (
            f"{settings.rate * settings.decay:.1%} of each weight a step" if settings.decoupled else "in each gradient"
        )
        numbers = f"weight_decay={settings.decay:g} (at rate {settings.rate:g}: {each})"
    return (
        f"{numbers} is stronger than what is learned",
        "set weight_decay to 0.1 or less, and to 0 for norm weights and biases",
    )


def no_updates(settings: OptimizerSettings | None) -> Cause:
    """Of weights of which none moves."""
    if settings is None:
        return (
            "optimizer.step() is not called, its rate is 0, or it holds other parameters (of a copy, or made before the"
            " model was replaced)",
            "make the optimizer of this model's parameters() after it is built and moved, call optimizer.step() after"
            " backward(), and print optimizer.param_groups[0]['lr']",
        )
    if settings.holds == 0.0:
        return (
            "the optimizer holds none of this model's parameters (those of a copy, or it was made before the model was"
            " replaced)",
            "make the optimizer of this model's parameters() after it is built and moved",
        )
    if settings.rate == 0.0:
        return (
            "the learning rate is 0",
            "look at its schedule: scheduler.step() once per update, a warm-up that does not begin at 0 for good, a"
            " decay that ends with the run",
        )
    return (
        "optimizer.step() is not called, or skips each step (a gradient scaler whose scale overflows)",
        "call optimizer.step() after backward()",
    )


def _rate(settings: OptimizerSettings | None) -> str:
    return "" if settings is None else f", at LR {settings.rate:g}"
