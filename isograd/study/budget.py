"""What each cell of a study may spend, and the updates that this pays for."""

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from isograd.errors import RecipeError
from isograd.train.run import Run, with_steps

Unit = Literal["steps", "tokens", "seconds"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What each cell may spend: updates, tokens, or seconds of this machine."""

    unit: Unit
    amount: float

    def __str__(self) -> str:
        return f"{self.amount:,g} {self.unit}"


def budget_of(content: Any, recipe: Path) -> Budget | None:
    """The `budget` of a recipe; None where it has none.

    Raises:
        RecipeError: another unit, several, or no number.
    """
    if content is None:
        return None
    units = get_args(Unit)
    if not isinstance(content, Mapping) or len(content) != 1 or next(iter(content)) not in units:
        raise RecipeError(f"{recipe}: budget is one of {', '.join(units)}, such as budget: {{steps: 300}}")
    unit, amount = next(iter(content.items()))
    if isinstance(amount, str):  # 1e6 is text in YAML
        with suppress(ValueError):
            amount = float(amount)
    if type(amount) not in (int, float) or not 0 < amount <= sys.float_info.max:
        raise RecipeError(f"{recipe}: budget: {unit} is {amount!r}; it must be a number above 0")
    return Budget(unit=unit, amount=amount)


def provided(content: dict[str, Any], budget: Budget | None) -> dict[str, Any]:
    """With as many updates as a budget can come to, lest a schedule be refused for the recipe's own number of them."""
    training = content.get("training") or {}
    if budget is None or budget.unit == "seconds" or not isinstance(training, Mapping):
        return content
    return {**content, "training": {**training, "steps": math.ceil(budget.amount)}}


def paid(run: Run, budget: Budget | None) -> Run:
    """The run with the updates that a budget pays; one in seconds is known once speeds are measured."""
    if budget is None or budget.unit == "seconds":
        return run
    if budget.unit == "steps":
        return with_steps(run, math.ceil(budget.amount))
    return with_steps(run, math.ceil(budget.amount / run.tokens_per_update))
