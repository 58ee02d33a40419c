"""What the losses alone say: a rise without return, a rest far above what token frequencies give, a loss too low."""

import math
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean, median

from isograd.diagnose.watch import causes
from isograd.diagnose.watch.causes import GROWN, Cause, History
from isograd.diagnose.watch.collapse import LEARNS
from isograd.diagnose.watch.steps import Moved
from isograd.diagnose.watch.writers import Row, alarm
from isograd.outcome import BREAK, LAST, NEAR

ABOVE = 1.5  # times the first loss: a mean of the first ten that is higher has risen
STAYS = 50  # readings after which a rise is one without return
LEAPT = 15  # the same where weights or gradients leapt there
CLIMBS = 1.25  # times: the second half of a rise over the first
RESTS = 150  # readings within which a loss at rest has not moved
LOW = 0.1  # times the unigram entropy: no text is that predictable to a model that sees only what comes before
EARLY = 30  # readings
SETTLED = 120  # readings after which a loss that has not come below that of token frequencies is looked into
FIRST_STEPS = 300  # readings in which no run has reason to lose most of its weights
FLAT = 2.0  # standard errors
CHANCE = 6.0  # standard deviations of a mean of ten, which the lowest of many lies below the others


class Losses:
    """Follows the losses of a run; each of four signals is reported once.

    rise   the mean of ten losses has stayed for `STAYS` readings above its lowest by 0.5 nat (less below one nat of
           entropy), by a quarter of all that had been gained and by more than noise, and would not be back in as many
    stall  the loss has not come halfway down to that of token frequencies, and has not moved for `RESTS` readings;
           where the entropy is not known: it has not gone below what it was in its first readings. Or it is not
           halfway down, falling or not, and the weights hardly move; or still above the entropy, and matrices blew up
    decay  the matrices have shrunk to a third, and the loss is not below the entropy
    low    the mean of the last twenty is below a tenth of the entropy
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
        self.baseline: tuple[str, float | None] | None = None  # the loss without inputs, in words and as a number

    @property
    def first(self) -> float | None:
        """The loss before any update."""
        return self._first[0] if self._first else None

    def follow(
        self, step: int, loss: float, norm: float, entropy: float | None, moved: Moved | None = None
    ) -> list[Row]:
        """The next reading; the warnings that are new.

        Args:
            moved: how far the weights went in the step before it.
        """
        if not math.isfinite(loss):
            return []
        self._last.append(loss)
        self._means.append(loss)
        self._history.add(step, norm, moved)
        self._count += 1
        if self._count <= 12:
            self._early = self._history.by()
        if not self._first and loss > 0:
            self._lowest = ABOVE * loss  # means begin with the tenth reading, when it may have blown up already
        if len(self._first) < 10:
            self._first.append(loss)
        found = [self._rise(step, loss, norm, entropy), self._stall(step, entropy), self._low(step, entropy)]
        found.append(self._decay(step, entropy))
        new = [row for row in found if row is not None]
        self._reported |= {row["signal"] for row in new}
        return new

    def _rise(self, step: int, loss: float, norm: float, entropy: float | None) -> Row | None:
        usual = median(self._usual) if self._usual else math.inf
        if self._since is None and math.isfinite(norm):
            self._usual.append(norm)
        if len(self._means) < 10 or "rise" in self._reported:
            return None
        mean, start = fmean(self._means), fmean(self._first)
        far = max(BREAK * min(1.0, max(entropy or 1.0, 0.1)), 0.25 * (start - self._lowest))
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
        return None if coming_back and self._onset is None else self._risen_row(step, mean)

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
            remedy = "go back to a checkpoint before, and go on with a lower rate"
        lowest = min(self._lowest, self._first[0])
        symptom = f"the loss rose from {lowest:.2f} to {mean:.2f} about step {since} and has not come back"
        numbers = {"since": since, "lowest": lowest, "loss": mean, "gradient_grown": grown}
        return alarm(step, "rise", None, symptom, cause, remedy, **numbers)

    def _stall(self, step: int, entropy: float | None) -> Row | None:
        if "stall" in self._reported or len(self._last) < SETTLED or self._since is not None:
            return None
        level = fmean(list(self._last)[-LAST:])
        found = self._still(level, entropy) or self._blown(level, entropy)
        if found is None:
            return None
        above = f", {level - entropy:+.2f} from the entropy of the token frequencies" if entropy is not None else ""
        symptom = f"the loss has hardly moved for {min(RESTS, len(self._last))} readings ({level:.2f}{above})"
        return alarm(step, "stall", None, symptom, *found, loss=level)

    def _still(self, level: float, entropy: float | None) -> Cause | None:
        """Not halfway down to what token frequencies give: because the weights hardly move, or for no known cause."""
        start = fmean(self._first)
        far = level > start - 0.02 * abs(start)
        if entropy is not None:  # with label smoothing a loss that trains lies above, but it has come down
            far = level > max(entropy + 2 * NEAR, entropy + 0.5 * (start - entropy))
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

    def _blown(self, level: float, entropy: float | None) -> Cause | None:
        """Not below what token frequencies give, and matrices that only grew."""
        moved = self._history.latest()
        if entropy is None or moved is None or level < entropy - LEARNS or moved.size < causes.BLOWN:
            return None
        return causes.grown(moved, self._early, self._settings())

    def _decay(self, step: int, entropy: float | None) -> Row | None:
        moved = self._history.latest()
        if "decay" in self._reported or entropy is None or moved is None or not LAST <= self._count <= FIRST_STEPS:
            return None
        level = fmean(list(self._last)[-LAST:])
        if moved.size > causes.SHRUNK or level < entropy - LEARNS:
            return None
        symptom = f"matrices have shrunk to {moved.size:.0%} of their first size, and the loss is {level:.2f}"
        return alarm(step, "decay", None, symptom, *causes.shrunk(moved, self._settings()), size=moved.size)

    def _low(self, step: int, entropy: float | None) -> Row | None:
        if "low" in self._reported or entropy is None or len(self._last) < LAST:
            return None
        mean = fmean(list(self._last)[-LAST:])
        if mean >= LOW * entropy:
            return None
        return alarm(
            step,
            "low",
            None,
            f"the loss ({mean:.3f}) is below a tenth of the entropy of the labels ({entropy:.2f} nats)",
            "the model sees what it is to predict (labels not shifted, no causal mask), or it sees the same data again",
            "check that labels are the next tokens, and that attention is causal (isograd check)",
            loss=mean,
        )


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
