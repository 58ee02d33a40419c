"""A linter for Transformers: what is wired or started otherwise than it seems."""

from isograd.lint.check import check
from isograd.lint.findings import Finding, Findings

__all__ = ["Finding", "Findings", "check"]
