"""What the suite says of an implementation: a row for each check, and the mistakes that explain what failed."""

from dataclasses import dataclass, field
from typing import Any, Literal

from isograd.lint.conform.mistakes import Mistake


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
