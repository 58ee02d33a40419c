"""What explains a difference: known mistakes, alone or two at once, or what makes it go away."""

import math
from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor

from isograd.lint.conform.driven import Driven, difference_of
from isograd.lint.conform.mistakes import Mistake, possible
from isograd.lint.conform.setting import kind_of, meanings
from isograd.lint.conform.verdict import Row


def recognized(driven: Driven) -> tuple[Mistake, ...]:
    """The mistake, or the two, with which the equations give what the implementation gives in every case."""
    singles = possible(driven.setting.placement)
    got = {case: driven.outputs(driven.loaded(weights), driven.given[case]) for case, weights in driven.cases.items()}
    for several in [*((one,) for one in singles), *combinations(singles, 2)]:
        if all(_explains(driven, several, case, got[case]) for case in driven.cases):
            return several
    return ()


def _explains(driven: Driven, mistakes: tuple[Mistake, ...], case: str, got: list[Tensor]) -> bool:
    equation = driven.equation(driven.cases[case], *(one.name for one in mistakes))
    expected = driven.outputs(equation, driven.given[case])
    return all(difference_of(a, b) <= driven.tolerance for a, b in zip(got, expected, strict=True))


def unknown(driven: Driven, rows: list[Row]) -> str:
    worst = max((row.difference for row in rows[:3] if row.difference is not None), default=float("inf"))
    if worst < 1e-4 and driven.dtype is torch.float64:
        return (
            "float32: the largest difference is that of a cast to float32; set `dtype = torch.float32` on the"
            " adapter if it is meant"
        )
    first = next(row for row in rows if row.status == "failed")
    if first.difference is None:
        hint = " -> `isograd conform NAME --weights` lists what it gets, by name and shape"
        return first.found + (hint if first.found.startswith("load ") else "")
    if math.isinf(first.difference):
        return f"{first.check}: not finite {first.found}"
    tried = len(possible(driven.setting.placement))
    return f"{first.check}: a difference {first.found}, and none of the {tried} mistakes known of this design"


def narrowed(driven: Driven) -> Iterator[str]:
    """Where an unknown difference goes away."""
    nothing = [torch.zeros_like(u) for u in driven.us]
    weights = driven.usual
    if not _differs(driven, weights, us=nothing):
        yield "no difference where branches write 0: look at how their output is written"
    elif not _differs(driven, weights, x=torch.zeros_like(driven.x)):
        yield "no difference where x is 0: look at how x is opened and carried"
    for kind in dict.fromkeys(map(kind_of, weights)):
        fresh = {name: driven.fresh[name] if kind_of(name) == kind else value for name, value in weights.items()}
        if not _differs(driven, fresh):
            means = meanings(driven.setting.placement).get(kind)
            used = f" ({means})" if means else ""
            yield f"no difference with {kind} as initialized: look at where it is used{used}"


def _differs(
    driven: Driven, weights: dict[str, Tensor], x: Tensor | None = None, us: list[Tensor] | None = None
) -> bool:
    got, expected = driven.outputs(driven.loaded(weights), x, us), driven.outputs(driven.equation(weights), x, us)
    return any(difference_of(a, b) > driven.tolerance for a, b in zip(got, expected, strict=True))
