"""Does an implementation of a residual compute what the paper says? A suite that others run against theirs."""

from isograd.lint.conform.equations import Equation
from isograd.lint.conform.mistakes import MISTAKES, Mistake
from isograd.lint.conform.setting import Adapter, Own, Setting, designs, kind_of, meanings, weights_of
from isograd.lint.conform.suite import conform
from isograd.lint.conform.verdict import Conformance, Row

__all__ = [
    "MISTAKES",
    "Adapter",
    "Conformance",
    "Equation",
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
