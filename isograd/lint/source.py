"""The line of the user's code that a finding is about.

An operation knows the line from which it was called (`isograd.trace.record.Operation.lines`). A parameter that nothing
reads has the line where its module makes it, and what has no line at all the class of its module.
"""

import inspect
import linecache
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Any

from torch import nn

from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.trace.record import INSTALLED, Operation


@dataclass(frozen=True, kw_only=True)
class Source:
    """A line of code.

    Attributes:
        file, line, text: where, and what stands there.
        columns: in the text, the first and the last but one of the call; (0, 0) where they are not known.
        by: of a line in an installed package, the nearest line outside of all that leads there.
    """

    file: str
    line: int
    text: str
    columns: tuple[int, int] = (0, 0)
    by: "Source | None" = None

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"columns": list(self.columns), "by": self.by and self.by.as_dict()}

    def own(self) -> "Source":
        """The user's own line."""
        return self.by or self

    def shown(self, root: Path) -> list[str]:
        """The line as compilers show it: where it is, its text, and what of it is meant."""
        path = Path(self.file)
        file = path.relative_to(root) if path.is_relative_to(root) else path
        margin = " " * len(str(self.line))
        start, end = self.columns
        marks = [f"{margin} | {' ' * start}{'^' * (end - start)}"] if end > start else []
        lines = [f"{margin}--> {file}:{self.line}", f"{self.line} | {self.text}", *marks]
        return lines if self.by is None else [*lines, *self.by.shown(root)]


def source_of(checked: CheckedModel, finding: Finding) -> Source | None:
    """The line of what a finding names; None where the program has none, as for code typed into a shell."""
    operation = _operation(checked, finding)
    lines = _call(checked, finding) or (operation.lines if operation is not None else ())
    if lines:
        inner, *by = (_source(*one) for one in lines)
        return Source(**vars(inner) | {"by": by[0]}) if by else inner
    return _made(checked.model, finding.address)


def _call(checked: CheckedModel, finding: Finding) -> tuple[tuple[CodeType, int, int], ...]:
    """Where the module of a finding, or the outermost in it, is called that gives the value which a change replaces."""
    if finding.at is not None or finding.edit is None or not finding.edit.values:
        return ()
    value = min(finding.edit.values)
    ports = checked.trace.ports.get(value, [])
    givers = [a for a, number in ports if number < 0 and a and f"{a}.".startswith(f"{finding.address}.")]
    return checked.trace.called.get(min(givers, key=len), ()) if givers else ()


def _operation(checked: CheckedModel, finding: Finding) -> Operation | None:
    trace, address = checked.trace, finding.address
    values = [finding.at] if finding.at is not None else list(finding.edit.values if finding.edit else ())
    for value in values:
        if (made := trace.made_by(value)) is not None and made.lines:
            return made
    for value, name in trace.names.items():
        if name == address:
            return next((o for o in trace.read_by(value) if o.lines), None)
    sublayer = next((s for s in checked.anatomy.sublayers if s.address == address), None)
    if sublayer is not None and (made := trace.made_by(sublayer.total)) is not None and made.lines:
        return made
    inside = [o for o in trace.operations if o.lines and address and f"{o.module}.".startswith(f"{address}.")]
    return next(iter(inside), None)


def _source(code: CodeType, instruction: int, line: int) -> Source:
    file = code.co_filename
    whole = linecache.getline(file, line).rstrip()
    text = whole.lstrip()
    first, last, start, end = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    cut, columns = len(whole) - len(text), (0, 0)
    if start is not None and end is not None and first == last == line and whole.isascii():
        columns = start - cut, end - cut
    return Source(file=file, line=line, text=text, columns=columns)


def _made(model: nn.Module, address: str) -> Source | None:
    """Where a module assigns the attribute that an address ends in, else where its class begins."""
    module, name = model, ""
    for name in address.split(".") if address else ():
        inner = getattr(module, name, None)
        if not isinstance(inner, nn.Module):
            break
        module = inner
    return place_of(type(module), rf"\bself\.{re.escape(name)}\s*[:=]" if name else None)


def place_of(thing: Any, pattern: str | None = None) -> Source | None:
    """The first line of a class or function, or the first in it that matches; None in an installed package."""
    try:
        file, (lines, first) = inspect.getsourcefile(thing), inspect.getsourcelines(thing)
    except (TypeError, OSError):  # made while the program runs
        return None
    if str(file).startswith(INSTALLED):
        return None
    at = next((i for i, text in enumerate(lines) if pattern and re.search(pattern, text)), 0)
    return Source(file=str(file), line=first + at, text=lines[at].strip())
