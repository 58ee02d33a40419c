"""The papers' theory, made to run: claims, and the verdicts of measuring them."""

from isograd.papers.theory.claim import Case, CaseResult, Claim, Curve, Line, Measured
from isograd.papers.theory.claims import CLAIMS, chosen, negative_controls, verdicts

__all__ = [
    "CLAIMS",
    "Case",
    "CaseResult",
    "Claim",
    "Curve",
    "Line",
    "Measured",
    "chosen",
    "negative_controls",
    "verdicts",
]
