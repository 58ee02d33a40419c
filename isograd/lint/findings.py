"""Findings of the linter, and all of them together."""

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from isograd.errors import many
from isograd.files import PAGES, explanation

if TYPE_CHECKING:
    from isograd.lint.proof.trial import Edit, Proof
    from isograd.lint.source import Source

Severity = Literal["error", "warning", "info"]
Kind = Literal["fact", "suspicion"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")  # the most severe first


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing found.

    Attributes:
        code: a stable name, as "final-norm-missing"; the documentation has a page of this name.
        severity: "error" where the model is not what it seems to be or will not train, "warning" where it may be meant,
            "info" for what is good to know.
        address: of the module or parameter.
        measured: the number that was compared.
        message: what was found.
        remedy: what to do about it.
        kind: "fact", shown by a computation that anybody can repeat, or "suspicion", of a design.
        page: the page of the code in the documentation.
        proof: of a suspicion, what training with and without the change has shown.
        source: the line of code that it is about, where there is one.
        edit: of a suspicion, the change to be tried.
        at: the value of the trace whose making it is about.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("page",)

    code: str = ""
    severity: Severity = "error"
    address: str
    measured: float
    message: str
    remedy: str
    kind: Kind = "fact"
    proof: "Proof | None" = None
    source: "Source | None" = None
    edit: "Edit | None" = field(default=None, repr=False, compare=False)
    at: int | None = field(default=None, repr=False, compare=False)

    @property
    def page(self) -> str:
        return f"{PAGES}/{self.code}.md"

    def as_dict(self) -> dict[str, Any]:
        fields = ("code", "severity", "kind", "address", "measured", "message", "remedy", "page")
        plain = {name: getattr(self, name) for name in fields}
        return plain | {name: part and part.as_dict() for name in ("proof", "source") for part in [getattr(self, name)]}


@dataclass(frozen=True, kw_only=True)
class Findings:
    """All findings about a model, the most severe first, and the placement of every sublayer.

    Attributes:
        model: the name of its class, or what the user called it.
        placements: address -> placement.
        formulas: address -> the sublayer as a formula.
        findings: see `Finding`.
        missed: what could not be checked, and why.
        scheme: names of the inits that a model at initialization follows, "" where none does or it is trained.
        explain: code -> what it means and what to do, of the codes that were found.
        fixed: with `fix=True` a copy of the model with the changes that were confirmed.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("explain",)

    model: str
    placements: dict[str, str]
    formulas: dict[str, str]
    findings: tuple[Finding, ...]
    missed: tuple[str, ...] = ()
    scheme: str = ""
    fixed: Any = field(default=None, repr=False, compare=False)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings}

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def explain(self) -> dict[str, str]:
        return {code: explanation(code) for code in sorted(self.codes)}

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "placements": self.placements,
            "formulas": self.formulas,
            "findings": [finding.as_dict() for finding in self.findings],
            "missed": list(self.missed),
            "scheme": self.scheme,
            "explain": self.explain,
        }

    def __str__(self) -> str:
        lines = [f"{self.model}: {many(len(self.placements), 'sublayer')}, {many(len(self), 'finding')}"]
        for one in self.findings:
            lines += ["", f"{one.severity}: {one.code} at {one.address or 'the model'}"]
            lines += [f"  {line}" for line in (one.source.shown(Path.cwd()) if one.source else ())]
            lines += _wrapped(one.message, "  ", "  ")
            lines += _wrapped(one.proof.says, "  ", "  ") if one.proof else []
            for line in cures(one.remedy):
                lines += [f"  {line}"] if " = " in line and line[:1] == " " else _wrapped(line, "  ", "     ")
        return "\n".join(lines)


WIDTH = 100  # of what is printed from Python


def _wrapped(line: str, first: str, rest: str) -> list[str]:
    indent = first + " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.lstrip(),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def cures(remedy: str) -> list[str]:
    """What to do, a line for each way where there are several, and code on a line of its own.

    >>> cures("lower it; or warm up: scheduler = Linear(optimizer), and scheduler.step() after it")
    ['-> 1. lower it', '-> 2. warm up:', '     scheduler = Linear(optimizer)', '   and scheduler.step() after it']
    """
    ways = remedy.split("; or ")
    lines = []
    for at, way in enumerate(ways, 1):
        first, *code = re.split(r": (?=scheduler = )|(?<=\)), (?=and scheduler)", way)
        lines.append(f"-> {f'{at}. ' if len(ways) > 1 else ''}{first}{':' if code else ''}")
        lines += [f"     {one}" if " = " in one else f"   {one}" for one in code]
    return lines


def by_harm(found: Iterable[Finding], stops: Collection[str] = ()) -> tuple[Finding, ...]:
    """Errors of `stops`, other errors, warnings, infos; one code's together, the largest number first."""
    findings = list(found)
    first = {code: at for at, code in reversed([*enumerate(f.code for f in findings)])}

    def key(finding: Finding) -> tuple[int, int, int, float]:
        goes_on = finding.severity != "error" or finding.code not in stops
        return SEVERITIES.index(finding.severity), int(goes_on), first[finding.code], -finding.measured

    return tuple(sorted(findings, key=key))
