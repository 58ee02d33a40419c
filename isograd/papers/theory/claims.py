"""All claims, in the order of the papers: the rows of two tables, and how they are judged. No torch: `measures.py`."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isograd.errors import UnknownClaim
from isograd.lab.recipes import read_table
from isograd.papers.theory.claim import Axes, Case, CaseResult, Claim
from isograd.papers.theory.curves import THEORIES


def _of(row: Mapping[str, Any]) -> Claim:
    theory = {"theory": THEORIES[row["theory"]]} if "theory" in row else {}
    return Claim(**{**row, "cases": tuple(map(_case, row["cases"])), "axes": Axes(**row["axes"]), **theory})


def _case(row: Mapping[str, Any]) -> Case:
    predicted = row["predicted"]
    return Case(**{**row, "predicted": tuple(predicted) if isinstance(predicted, list) else predicted})


def _rows(name: str) -> list[Claim]:
    return [_of(row) for row in read_table(Path(__file__).with_name(name))]


RESIDUAL_CLAIMS = _rows("residual_claims.yaml")
CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (*_rows("claims.yaml"), *RESIDUAL_CLAIMS)}


def chosen(names: Sequence[str]) -> list[Claim]:
    """The claims of these names, each once and in the order of the papers; all where none is named.

    Raises:
        UnknownClaim: a name that no claim has; the message names the nearest one.
    """
    for name in names:
        if name not in CLAIMS:
            near = difflib.get_close_matches(name, CLAIMS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "choose among " + ", ".join(CLAIMS)
            raise UnknownClaim(f"unknown claim {name!r}: {hint}")
    return [claim for claim in CLAIMS.values() if not names or claim.name in names]


def verdicts(claims: Sequence[Claim], seeds: int | None = None) -> Iterator[CaseResult]:
    """Measure every case of these claims."""
    for claim in claims:
        for case in claim.cases:
            yield claim.verdict(case, seeds)


def negative_controls(claims: Sequence[Claim], seeds: int | None = None) -> Iterator[CaseResult]:
    """Measure every negative control of these claims; none of these verdicts may hold."""
    for claim in claims:
        for case in claim.cases:
            yield claim.control(case, seeds)
