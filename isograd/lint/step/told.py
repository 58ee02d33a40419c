"""What a group of rules says: sentences of what is well, and findings."""

from collections.abc import Callable, Iterator

from isograd.lint.findings import Finding, Severity
from isograd.lint.step.seen import Seen

Told = Iterator[Finding | str]
Look = Callable[[Seen], Told]


def finding(
    code: str, severity: Severity, message: str, remedy: str, measured: float = 1.0, address: str = ""
) -> Finding:
    return Finding(code=code, severity=severity, address=address, measured=measured, message=message, remedy=remedy)
