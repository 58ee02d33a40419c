"""What the losses alone say: a rise without return, a rest far above what token frequencies give, a loss too low."""

import math
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean, median

from isograd.diagnose.watch.writers import Row, alarm
from isograd.outcome import BREAK, LAST, NEAR

STAYS = 50  # readings after which a rise is one without return
RESTS = 150  # readings within which a loss at rest has not moved
LOW = 0.1  # times the unigram entropy: no text is that predictable to a model that sees only what comes before
GROWN = 10.0  # times the usual gradient: then the step before the rise was one of its own
EARLY = 30  # readings
TINY = 2e-6  # of their size in a step
FLAT = 2.0  # standard errors
CHANCE = 6.0  # standard deviations of a mean of ten, which the lowest of many lies below the others


class Losses:
    """Follows the losses of a run; each of three signals is reported once.

    rise   the mean of ten losses has stayed for `STAYS` readings above its lowest by 0.5 nat (less below one nat of
           entropy), by a quarter of all that had been gained and by more than noise, and would not be back in as many
    stall  the loss has not come halfway down to that of token frequencies, and has not moved for `RESTS` readings;
           where the entropy is not known: it has not gone below what it was in its first readings
    low    the mean of the last twenty is below a tenth of the entropy
    """

    def __init__(self) -> None:
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
        self, step: int, loss: float, norm: float, entropy: float | None, movement: float | None = None
    ) -> list[Row]:
        """The next reading; the warnings that are new.

        Args:
            movement: of the weights in one of the first steps, over their size.
        """
        if not math.isfinite(loss):
            return []
        self._last.append(loss)
        self._means.append(loss)
        if len(self._first) < 10:
            self._first.append(loss)
        found = [self._rise(step, loss, norm, entropy), self._stall(step, entropy, movement), self._low(step, entropy)]
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
        if self._since is None:
            return None
        self._risen.append(loss)
        if len(self._risen) < STAYS or mean < self._lowest + far or fmean(self._risen) < self._lowest + far:
            return None
        half = len(self._risen) // 2
        gained = median(self._risen[:half]) - median(self._risen[half:])
        coming_back = _falls(self._risen) and 2 * gained >= mean - self._lowest - far  # in as many readings again
        return None if coming_back else self._risen_row(step, mean)

    def _risen_row(self, step: int, mean: float) -> Row:
        assert self._since is not None
        since, grown = self._since
        if grown >= GROWN:
            cause = f"a step with a gradient {grown:.0f} times the usual, of a batch or a rate that was too much"
            remedy = "clip gradients (torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)) and look at that batch"
        elif since <= EARLY and self._lowest > 0.8 * fmean(self._first):
            cause = "the loss has hardly ever fallen: it is maximized (a sign), or the rate is far too high"
            remedy = "minimize the loss itself (loss.backward(), maximize=False), and lower the rate"
        elif self._jumped:
            cause = "with ordinary gradients the loss jumped from one step to the next: other data, or other weights"
            remedy = "look at what the loop does there: a loader that was changed, a checkpoint that was not loaded"
        else:
            cause = "the learning rate is too high for where the weights are, or the data changed there"
            remedy = "go back to a checkpoint before, and go on with a lower rate"
        symptom = f"the loss rose from {self._lowest:.2f} to {mean:.2f} about step {since} and has not come back"
        numbers = {"since": since, "lowest": self._lowest, "loss": mean, "gradient_grown": grown}
        return alarm(step, "rise", None, symptom, cause, remedy, **numbers)

    def _stall(self, step: int, entropy: float | None, movement: float | None) -> Row | None:
        if "stall" in self._reported or len(self._last) < RESTS or self._since is not None:
            return None
        level = fmean(list(self._last)[-LAST:])
        start = fmean(self._first)
        far = level > start - 0.02 * abs(start)
        if entropy is not None:  # with label smoothing a loss that trains lies above, but it has come down
            far = level > max(entropy + 2 * NEAR, entropy + 0.5 * (start - entropy))
        if not far or _falls(list(self._last)):
            return None
        cause = "nothing is learned: a rate far too small or too high, or labels that are not those of the inputs"
        remedy = "print the rate of optimizer.param_groups and one pair of input and label; try ten times the rate"
        if movement is not None and movement < TINY:
            cause = f"the weights hardly move ({movement:.1g} of their size in a step)"
            remedy = "look at the rate and its schedule, the norm of clipping and Adam's eps: one of them is far off"
        above = f", {level - entropy:.2f} above the entropy of the token frequencies" if entropy is not None else ""
        return alarm(
            step,
            "stall",
            None,
            f"the loss has not moved for {RESTS} readings ({level:.2f}{above})",
            cause,
            remedy,
            loss=level,
        )

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
