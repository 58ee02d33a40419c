"""All claims, in the order of the papers, and how they are judged."""

import difflib
from collections.abc import Iterator, Sequence

from isograd.errors import UnknownClaim
from isograd.theory.claim import Claim, Verdict
from isograd.theory.later import LATER_CLAIMS
from isograd.theory.xiong import XIONG_CLAIMS

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (*XIONG_CLAIMS, *LATER_CLAIMS)}


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


def verdicts(claims: Sequence[Claim], seeds: int | None = None) -> Iterator[Verdict]:
    """Measure every case of these claims."""
    for claim in claims:
        for case in claim.cases:
            yield claim.verdict(case, seeds)


def foils(claims: Sequence[Claim], seeds: int | None = None) -> Iterator[Verdict]:
    """Measure every foil of these claims; none of these verdicts may hold."""
    for claim in claims:
        for case in claim.cases:
            yield claim.foiled(case, seeds)
