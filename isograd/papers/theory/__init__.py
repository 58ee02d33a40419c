"""The papers' theory, made to run: claims, and the verdicts of measuring them."""

from isograd.papers.theory.claim import Case, Claim, Curve, Line, Measured, Verdict
from isograd.papers.theory.claims import CLAIMS, chosen, negative_controls, verdicts

__all__ = [
    "CLAIMS",
    "Case",
    "Claim",
    "Curve",
    "Line",
    "Measured",
    "Verdict",
    "chosen",
    "negative_controls",
    "verdicts",
]
