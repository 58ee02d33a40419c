"""What the losses alone say: a rise without return, a rest far above their baseline, a loss too low."""

import math
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean, median

from isograd.diagnose.watch import causes
from isograd.diagnose.watch.baseline import Baseline
from isograd.diagnose.watch.causes import GROWN, Cause, History
from isograd.diagnose.watch.collapse import LEARNS
from isograd.diagnose.watch.steps import WeightsMoved
from isograd.diagnose.watch.trained import Undone
from isograd.diagnose.watch.writers import Row, alarm
from isograd.outcome import BREAK, LAST, NEAR

ABOVE = 1.5  # times the first loss: a mean of the first ten that is higher has risen
STAYS = 50  # readings after which a rise is one without return
LEAPT = 15  # the same where weights or gradients leapt there
CLIMBS = 1.25  # times: the second half of a rise over the first
RESTS = 150  # readings within which a loss at rest has not moved
LOW = (
    0.1  # times the unigram entropy, of tokens: no text is that predictable to a model that sees only what comes before
)
EARLY = 30  # readings
SETTLED = 120  # readings after which a loss that has not come below the unigram entropy is looked into
FIRST_STEPS = 300  # readings in which no run has reason to lose most of its weights
FLAT = 2.0  # standard errors
CHANCE = 6.0  # standard deviations of a mean of ten, which the lowest of many lies below the others


class Losses:
    """Follows the losses of a run; each of four signals is reported once.

    rise   the mean of ten losses has stayed for `STAYS` readings above its lowest by half of the baseline's scale, by a
           quarter of all that had been gained and by more than noise, and would not be back in as many
    stall  the loss has not come halfway down to its baseline, and has not moved for `RESTS` readings; where the
           baseline is not known: it has not gone below what it was in its first readings. Or it is not halfway down,
           falling or not, and the weights hardly move; or still above the baseline, and matrices blew up
    decay  the matrices have shrunk to a third, and the loss is not below its baseline
    low    the mean of the last twenty is below a tenth of the entropy of tokens
    """

    def __init__(self, settings: causes.Ask = lambda: None) -> None:
        """`settings` of the optimizer, asked for when a cause is looked for."""
        self._settings = settings
        self._history = History()
        self._early: float | None = None  # how far weights went in the first steps
        self._onset: Cause | None = None  # of a rise
        self._count = 0
        self._reported: set[str] = set()
        self._means: deque[float] = deque(maxlen=10)
        self._first: list[float] = []
        self._lowest = math.inf
        self._usual: deque[float] = deque(maxlen=200)  # gradient norms
        self._since: tuple[int, float] | None = None  # of a rise: its step, and the largest gradient about it
        self._jumped = False  # from one step to the next
        self._risen: list[float] = []
        self._last: deque[float] = deque(maxlen=RESTS)

    def follow(
        self,
        step: int,
        loss: float,
        norm: float,
        level: Baseline | None,
        moved: WeightsMoved | None = None,
        rate: float | None = None,
        undone: Undone | None = None,
    ) -> list[Row]:
        """The next reading; the warnings that are new.

        Args:
            level: what the loss is measured against, where that is known.
            moved: how far the weights went in the step before it.
            rate: of the step to come, where it is known.
            undone: what was known of the first batch, and has been lost.
        """
        if not math.isfinite(loss):
            return []
        self._last.append(loss)
        self._means.append(loss)
        self._history.add(step, norm, moved, rate)
        self._count += 1
        if self._count <= 12:
            self._early = self._history.by()
        if not self._first and loss > 0:
            self._lowest = ABOVE * loss  # means begin with the tenth reading, when it may have blown up already
        if len(self._first) < 10:
            self._first.append(loss)
        found = [
            self._undone(step, undone),
            self._rise(step, loss, norm, level),
            self._stall(step, level),
            self._low(step, level),
        ]
        found.append(self._decay(step, level))
        new = [row for row in found if row is not None]
        self._reported |= {row["signal"] for row in new}
        return new

    def slower(self) -> str:
        """What to do about the rate of trained weights."""
        return causes.slower(self._history)

    def _undone(self, step: int, lost: Undone | None) -> Row | None:
        if lost is None or "rise" in self._reported:
            return None
        self._reported.add("rise")
        loss = fmean(list(self._last)[-3:])
        cause, remedy = self._history.rose() or causes.undone(lost.before, lost.now, self._history)
        symptom = f"the loss rose from {_number(self._first[0])} to {_number(loss)}"
        return alarm(
            step,
            "rise",
            None,
            symptom,
            cause,
            remedy,
            since=1,
            lowest=lost.before,
            loss=loss,
            lr=self._history.gentle(),
        )

    def _rise(self, step: int, loss: float, norm: float, level: Baseline | None) -> Row | None:
        usual = median(self._usual) if self._usual else math.inf
        if self._since is None and math.isfinite(norm):
            self._usual.append(norm)
        if len(self._means) < 10 or "rise" in self._reported:
            return None
        mean, start = fmean(self._means), fmean(self._first)
        scale = level.scale if level is not None else min(1.0, abs(start))
        far = max(BREAK * scale, 0.25 * (start - self._lowest))
        far = max(far, CHANCE * _noise(self._last) / math.sqrt(10))
        if not mean >= self._lowest + far:
            if mean < self._lowest + far / 2:
                self._since, self._risen = None, []
            self._lowest = min(self._lowest, mean)
        elif self._since is None:
            self._since = (step, max([*list(self._usual)[-12:], norm]) / usual if usual else math.inf)
            last = list(self._last)[-12:]
            self._jumped = max((b - a for a, b in pairwise(last)), default=0.0) > far
            self._onset = self._history.onset()
        if self._since is None:
            return None
        self._risen.append(loss)
        enough = STAYS if self._onset is None else LEAPT
        if len(self._risen) < enough or mean < self._lowest + far or fmean(self._risen) < self._lowest + far:
            return None
        half = len(self._risen) // 2
        gained = median(self._risen[:half]) - median(self._risen[half:])
        coming_back = _falls(self._risen) and 2 * gained >= mean - self._lowest - far  # in as many readings again
        unmeasured = level is None and self._lowest < 0  # as of a policy: its size says nothing
        return None if self._onset is None and (coming_back or unmeasured) else self._risen_row(step, mean)

    def _risen_row(self, step: int, mean: float) -> Row:
        assert self._since is not None
        since, grown = self._since
        if since <= EARLY and self._lowest > 0.8 * min(self._first[0], fmean(self._first)):
            half = len(self._risen) // 2
            climbs = median(self._risen[half:]) > CLIMBS * median(self._risen[:half])
            cause, remedy = causes.never_fell(self._early, climbs, self._settings())
        elif self._onset is not None:
            cause, remedy = self._onset
        elif grown >= GROWN:
            cause, remedy = causes.steep(since, grown)
        elif self._jumped and self._history.by() is not None:
            cause, remedy = causes.STEADY
        elif self._jumped:
            cause = "with ordinary gradients the loss jumped from one step to the next: other data, or other weights"
            remedy = "look at what the loop does there: a loader that was changed, a checkpoint that was not loaded"
        else:
            cause = "the learning rate is too high for where the weights are, or the data changed there"
            remedy = "resume from an earlier checkpoint with a lower rate"
        lowest = min(self._lowest, self._first[0])
        symptom = f"the loss rose from {_number(lowest)} to {_number(mean)} about step {since} and has not come back"
        numbers = {"since": since, "lowest": lowest, "loss": mean, "gradient_grown": grown}
        return alarm(step, "rise", None, symptom, cause, remedy, **numbers)

    def _stall(self, step: int, level: Baseline | None) -> Row | None:
        if "stall" in self._reported or len(self._last) < SETTLED or self._since is not None:
            return None
        loss = fmean(list(self._last)[-LAST:])
        found = self._still(loss, level) or self._blown(loss, level)
        if found is None:
            return None
        above = (
            ""
            if level is None
            else f", {'+' if loss > level.value else ''}{level.number(loss - level.value)} from {level.name}"
        )
        symptom = f"the loss has hardly moved for {min(RESTS, len(self._last))} readings ({_number(loss)}{above})"
        return alarm(step, "stall", None, symptom, *found, loss=loss)

    def _still(self, loss: float, level: Baseline | None) -> Cause | None:
        """Not halfway down to its baseline: because the weights hardly move, or for no known cause."""
        start = fmean(self._first)
        far = loss > start - 0.02 * abs(start)
        if level is not None:  # with label smoothing a loss that trains lies above, but it has come down
            far = loss > max(level.value + 2 * NEAR * level.scale, level.value + 0.5 * (start - level.value))
        if not far:
            return None
        moved, now, before = self._history.latest(), self._history.by(-20), self._history.by(-100, -50)
        if moved is not None and now is not None and before is not None and now < causes.SLOW:
            return causes.hardly_move(moved, self._settings()) if now <= 1.5 * before else None  # a warm-up
        if len(self._last) < RESTS or _falls(list(self._last)):
            return None
        return (
            "nothing is learned: a rate far too small or too high, or labels that are not those of the inputs",
            "print the rate of optimizer.param_groups and one pair of input and label; try ten times the rate",
        )

    def _blown(self, loss: float, level: Baseline | None) -> Cause | None:
        """Not below its baseline nor on its way there, and matrices that only grew."""
        moved = self._history.latest()
        if level is None or moved is None or _learns(loss, level) or moved.size < causes.BLOWN:
            return None
        if _falls(list(self._last)):  # weights that begin small grow as they learn
            return None
        return causes.grown(moved, self._early, self._settings())

    def _decay(self, step: int, level: Baseline | None) -> Row | None:
        moved = self._history.latest()
        if "decay" in self._reported or level is None or moved is None or not LAST <= self._count <= FIRST_STEPS:
            return None
        loss = fmean(list(self._last)[-LAST:])
        if moved.size > causes.SHRUNK or _learns(loss, level):
            return None
        symptom = f"matrices have shrunk to {moved.size:.0%} of their first size, and the loss is {_number(loss)}"
        return alarm(step, "decay", None, symptom, *causes.shrunk(moved, self._settings()), size=moved.size)

    def _low(self, step: int, level: Baseline | None) -> Row | None:
        if "low" in self._reported or level is None or level.kind != "tokens" or len(self._last) < LAST:
            return None
        mean = fmean(list(self._last)[-LAST:])
        if mean >= LOW * level.value:
            return None
        return alarm(
            step,
            "low",
            None,
            f"the loss ({mean:.3f}) is below a tenth of the entropy of the labels ({level.value:.2f} nats)",
            "the model sees what it is to predict (labels not shifted, no causal mask), or it sees the same data again",
            "check that labels are the next tokens, and that attention is causal (isograd check)",
            loss=mean,
        )


def _learns(loss: float, level: Baseline) -> bool:
    return loss < level.value - LEARNS * level.scale


def _number(loss: float) -> str:
    """
    >>> _number(3.14159), _number(0.00031), _number(51234.5)
    ('3.14', '0.00031', '5.12e+04')
    """
    return f"{loss:.2f}" if 0.1 <= abs(loss) < 1000 else f"{loss:.3g}"


def _falls(losses: list[float]) -> bool:
    """Whether the second half lies below the first by more than noise does."""
    half = len(losses) // 2
    first, second = losses[:half], losses[half:]
    error = 1.25 * _noise(losses) * math.sqrt(1 / len(first) + 1 / len(second))
    return median(first) - median(second) > FLAT * error


def _noise(losses: Iterable[float]) -> float:
    """Standard deviation of one loss, robustly, from the differences of neighbours."""
    apart = [abs(after - before) for before, after in pairwise(losses)]
    return median(apart) / 0.954 if apart else 0.0
