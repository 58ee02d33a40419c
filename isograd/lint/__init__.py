"""A linter for Transformers: finds wiring and initialization bugs."""

from isograd.lint.check import check
from isograd.lint.findings import Finding, Findings

__all__ = ["Finding", "Findings", "check"]
