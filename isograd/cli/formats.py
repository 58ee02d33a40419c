"""Findings for programs, each beside the line that it is about: SARIF 2.1.0, commands of a GitHub workflow, and a short
text for a coding agent.
"""

import hashlib
import linecache
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isograd.cli.diff import rewritten
from isograd.errors import many
from isograd.files import explanation
from isograd.lint.findings import SEVERITIES, Finding, Findings
from isograd.lint.source import place_of

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
AGENT = 2000  # characters of the text for an agent, at most
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, kw_only=True)
class SourcePlace:
    """A line of a file, relative to the root of the sources."""

    file: str
    line: int


def places(findings: Findings, made_by: Any = None, root: Path | None = None) -> dict[Finding, SourcePlace]:
    """The line of each finding below the root of the sources; else where the model is made. What is of installed
    packages alone has no place.

    Args:
        made_by: the function or class that the model was made by.
        root: of the sources; None takes the working directory.
    """
    top, found = (root or Path.cwd()).resolve(), {}
    last = None if made_by is None else place_of(made_by)
    for finding in findings:
        known = [one for source in (finding.source, last) if source for one in (source, source.own())]
        for source in known:
            path = Path(source.file).resolve()
            if path.is_relative_to(top) and "site-packages" not in path.parts:
                found[finding] = SourcePlace(file=path.relative_to(top).as_posix(), line=source.line)
                break
    return found


def github(findings: Findings, where: Mapping[Finding, SourcePlace]) -> str:
    """A workflow command per finding, which GitHub shows beside the line in a pull request."""
    lines = [_command(finding, where.get(finding)) for finding in findings]
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
    shown = f"; {finding.proof.says}" if finding.proof else ""
    return f"{finding.address or 'the model'}: {finding.message}{shown}; {finding.remedy}"


def agent(findings: Findings, where: Mapping[Finding, SourcePlace]) -> str:
    """Findings with place, proof and patch, the worst first, in at most `AGENT` characters; how many were left out."""
    found, head = findings.findings, f"{_cut(findings.model, 100)}: {_counted(findings.findings) or 'nothing found'}"
    for width in (400, 200):  # of a field, where one finding alone would be too long
        blocks = [_block(finding, where.get(finding), width) for finding in found]
        for shown in range(len(found), min(len(found), 1) - 1, -1):
            text = "\n\n".join([head, *blocks[:shown], *_rest(found[shown:], findings.missed)])
            if len(text) <= AGENT:
                return text
    return text[: AGENT - 3] + "..."


def _rest(left: Sequence[Finding], missed: Sequence[str]) -> list[str]:
    """What is not in the text, and how to see it."""
    lines = [_cut(f"could not look at {line}", 120) for line in missed[:2]]
    lines += [f"could not look at {many(len(missed) - 2, 'more thing')}: --json"] if missed[2:] else []
    lines += [f"left out: {_counted(left)}. --json has all; --ignore CODE leaves a code out"] if left else []
    return ["\n".join(lines)] if lines else []


def _counted(findings: Sequence[Finding]) -> str:
    counts = {name: sum(one.severity == name for one in findings) for name in SEVERITIES}
    return ", ".join(many(count, name) for name, count in counts.items() if count)


def _block(finding: Finding, place: SourcePlace | None, width: int) -> str:
    source = finding.source and finding.source.own()
    line = f"{place.file}:{place.line}" if place else f"{source.file}:{source.line}" if source else ""
    proof = finding.proof.says if finding.proof else f"measured {finding.measured:.3g}"
    head = " ".join(filter(None, [finding.severity, finding.kind, finding.code, line]))
    fields = {"at": finding.address or "the model", "what": finding.message, "proof": proof, "fix": finding.remedy}
    return "\n".join([head, *(f"  {name}: {_cut(said, width)}" for name, said in fields.items()), *_patch(finding)])


def _patch(finding: Finding) -> list[str]:
    """The change of the line, where it is known as text, as in a diff."""
    new = None if finding.severity == "info" else rewritten(finding)
    if new is None or finding.source is None:
        return []
    lines = [f"  - {linecache.getline(finding.source.file, finding.source.line).rstrip()}", f"  + {new.rstrip()}"]
    return lines if max(map(len, lines)) <= 160 else ["  patch: --diff prints it"]


def _cut(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def sarif(findings: Findings, where: Mapping[Finding, SourcePlace], version: str) -> dict[str, Any]:
    """A log of the Static Analysis Results Interchange Format 2.1.0, for code scanning and editors."""
    codes = list(dict.fromkeys(finding.code for finding in findings))
    rules = [{"id": code, "help": {"text": explanation(code) or f"docs/check/{code}.md"}} for code in codes]
    missed = [{"level": "note", "message": {"text": f"could not look at {line}"}} for line in findings.missed]
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "isograd", "semanticVersion": version, "rules": rules}},
        "results": [_result(one, codes.index(one.code), where.get(one), findings.model) for one in findings],
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
        "properties": {
            "measured": finding.measured if math.isfinite(finding.measured) else None,
            "kind": finding.kind,
            "proof": finding.proof and finding.proof.as_dict(),
        },
    }
