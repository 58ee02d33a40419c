"""A curve of final losses over learning rates: its best rate, and how much a wrong one costs."""

import math
from collections.abc import Mapping
from typing import Literal

Edge = Literal["lowest", "highest", "only"]


def best_rate(losses: Mapping[float, float]) -> tuple[float, Edge | None] | None:
    """The learning rate of the lowest loss (the lower of two equal ones), and whether it ends the sweep.

    At an end of the sweep the true optimum may lie outside: the arm is not tuned.

    Args:
        losses: for each rate, such as the median over seeds; infinite where it diverged.

    Returns:
        None where nothing but divergence was seen.

    >>> best_rate({3e-4: 2.2, 1e-3: 2.0, 3e-3: math.inf})
    (0.001, None)
    >>> best_rate({3e-4: 2.2, 1e-3: 2.0})
    (0.001, 'highest')
    """
    rates = sorted(losses)
    best = min(rates, key=losses.__getitem__, default=None)
    if best is None or losses[best] == math.inf:
        return None
    if len(rates) == 1:
        return best, "only"
    ends: dict[float, Edge] = {rates[0]: "lowest", rates[-1]: "highest"}
    return best, ends.get(best)


def sensitivity(losses: Mapping[float, float], start: float) -> float | None:
    """The mean over the rates of min(loss, start), less the lowest loss: LR sensitivity (Wortsman et al. 2023).

    0 where every rate trains as well as the best one; start - lowest where all others fail. It depends on the rates
    that were swept, which should be even in log(rate): compare it between arms of one sweep only.

    Args:
        losses: for each rate; infinite where it diverged, which counts as `start`.
        start: the loss at the start of training.

    Returns:
        None where no rate ends below `start`: a lowest loss, against which to compare, is not known.

    >>> round(sensitivity({1e-4: 3.0, 1e-3: 2.0, 1e-2: math.inf}, start=4.0), 12)
    1.0
    """
    lowest = min(losses.values(), default=math.inf)
    if not lowest < start:
        return None
    return math.fsum(min(loss, start) for loss in losses.values()) / len(losses) - lowest
