"""Findings for machines: commands of a GitHub workflow, and SARIF 2.1.0, each beside the class of its module."""

import hashlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from isograd.lint.findings import Finding, Findings

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, kw_only=True)
class SourcePlace:
    """A line of a file, relative to the root of the sources."""

    file: str
    line: int


def places(
    model: nn.Module, findings: Findings, made_by: Any = None, root: Path | None = None
) -> dict[str, SourcePlace]:
    """Where the module of each finding is written, by its address.

    It is the class of the module, or of the nearest one around it, whose file lies below `root`; else the function that
    makes the model. What is of installed packages alone has no place.

    Args:
        made_by: the function or class that the model was made by.
        root: of the sources; None takes the working directory.
    """
    top, found = (root or Path.cwd()).resolve(), {}
    for address in dict.fromkeys(finding.address for finding in findings):
        around = [type(module) for module in _around(model, address)]
        known = (_place(one, top) for one in (*around, made_by) if one is not None)
        if (place := next(filter(None, known), None)) is not None:
            found[address] = place
    return found


def _around(model: nn.Module, address: str) -> list[nn.Module]:
    """The module that is at an address, or holds the parameter there, and those around it; the innermost first."""
    modules = [model]
    for name in address.split(".") if address else ():
        inner = getattr(modules[0], name, None)
        if not isinstance(inner, nn.Module):
            break
        modules.insert(0, inner)
    return modules


def _place(thing: Any, root: Path) -> SourcePlace | None:
    try:
        file, (_, line) = inspect.getsourcefile(thing), inspect.getsourcelines(thing)
    except (TypeError, OSError):  # made while the program runs
        return None
    path = Path(file or "").resolve()
    if not path.is_relative_to(root) or "site-packages" in path.parts:
        return None
    return SourcePlace(file=path.relative_to(root).as_posix(), line=line)


def github(findings: Findings, where: Mapping[str, SourcePlace]) -> str:
    """A workflow command per finding, which GitHub shows beside the line in a pull request."""
    lines = [_command(finding, where.get(finding.address)) for finding in findings]
    lines += [f"::notice title=isograd::{_data(f'could not look at {line}')}" for line in findings.missed]
    return "\n".join(lines)


def _command(finding: Finding, place: SourcePlace | None) -> str:
    """
    >>> one = Finding(code="norm-eps", severity="warning", address="h.0", measured=1, message="50% off", remedy="fix")
    >>> _command(one, SourcePlace(file="a.py", line=3))
    '::warning file=a.py,line=3,title=isograd%3A norm-eps::h.0: 50%25 off; fix'
    """
    where = {"file": place.file, "line": str(place.line)} if place else {}
    properties = {**where, "title": f"isograd: {finding.code}"}
    said = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{_COMMANDS[finding.severity]} {said}::{_data(_sentence(finding))}"


def _sentence(finding: Finding) -> str:
    return f"{finding.address or 'the model'}: {finding.message}; {finding.remedy}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def sarif(findings: Findings, where: Mapping[str, SourcePlace], version: str) -> dict[str, Any]:
    """A log of the Static Analysis Results Interchange Format 2.1.0, for code scanning and editors."""
    codes = list(dict.fromkeys(finding.code for finding in findings))
    rules = [{"id": code, "help": {"text": f"docs/check/{code}.md of isograd"}} for code in codes]
    missed = [{"level": "note", "message": {"text": f"could not look at {line}"}} for line in findings.missed]
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "isograd", "semanticVersion": version, "rules": rules}},
        "results": [_result(one, codes.index(one.code), where.get(one.address), findings.model) for one in findings],
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": missed}],
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(finding: Finding, rule: int, place: SourcePlace | None, model: str) -> dict[str, Any]:
    logical = [{"fullyQualifiedName": f"{model}:{finding.address}", "kind": "member"}]
    location: dict[str, Any] = {"logicalLocations": logical}
    if place is not None:
        artifact = {"uri": place.file, "uriBaseId": "%SRCROOT%"}
        location["physicalLocation"] = {"artifactLocation": artifact, "region": {"startLine": place.line}}
    mark = hashlib.sha256(f"{model} {finding.code} {finding.address}".encode()).hexdigest()
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": _sentence(finding)},
        "locations": [location],
        "partialFingerprints": {"isogradFinding/v1": mark},
        "properties": {"measured": finding.measured if math.isfinite(finding.measured) else None},
    }
