"""What the suite says of an implementation: a row for each check, and what explains those that failed: known mistakes,
alone or two at once, or what makes the difference go away.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import torch
from torch import Tensor

from isograd.lint.conform.driven import Driven, difference_of
from isograd.lint.conform.mistakes import Mistake, possible
from isograd.lint.conform.setting import kind_of, meanings


@dataclass(frozen=True, kw_only=True)
class Row:
    """One check."""

    check: str
    status: Literal["passed", "failed", "skipped"]
    difference: float | None = None
    tolerance: float | None = None
    found: str = ""


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """The verdict: true where nothing failed. `str()` has a line for each check and for each mistake recognized."""

    placement: str
    adapter: str
    rows: tuple[Row, ...]
    mistakes: tuple[Mistake, ...] = ()
    remedies: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return all(row.status != "failed" for row in self.rows)

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        said = [f"{self.placement}: {self.adapter}"]
        for row in self.rows:
            number = "" if row.difference is None else f" {row.difference:.1e} (at most {row.tolerance:.0e})"
            said.append(f"  {row.status} {row.check}{number}{': ' if row.found else ''}{row.found}")
        return "\n".join([*said, *self.lines()])

    def lines(self) -> list[str]:
        """What is wrong and what to do, a line each."""
        return [f"{one.name}: {one.found} -> {one.remedy}" for one in self.mistakes] + list(self.remedies)

    def as_dict(self) -> dict[str, Any]:
        return {
            "placement": self.placement,
            "adapter": self.adapter,
            "passed": self.passed,
            "checks": [vars(row) for row in self.rows],
            "mistakes": [{"name": one.name, "found": one.found, "remedy": one.remedy} for one in self.mistakes],
            "remedies": list(self.remedies),
        }


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
