"""Does an implementation of a residual compute what the paper says? A suite that others run against theirs."""

from isograd.lint.conform.mistakes import MISTAKES, Mistake
from isograd.lint.conform.suite import (
    Adapter,
    Conformance,
    Own,
    Row,
    Setting,
    conform,
    designs,
    kind_of,
    meanings,
    weights_of,
)

__all__ = [
    "MISTAKES",
    "Adapter",
    "Conformance",
    "Mistake",
    "Own",
    "Row",
    "Setting",
    "conform",
    "designs",
    "kind_of",
    "meanings",
    "weights_of",
]
