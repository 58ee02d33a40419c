"""A model compared with another one of the same parts."""

import re
from collections.abc import Iterator

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.rules import Phase, rule

APART = 1.25  # times the other's size


@rule(Phase.INIT, "init-differs", "model-differs")
def differs(checked: CheckedModel) -> Iterator[Finding]:
    """Parameters that begin with another size than those of the same name in the other model; other placements."""
    other = checked.against
    if other is None:
        return
    mine, theirs = checked.parameters, other.parameters
    groups: dict[str, list[tuple[str, float]]] = {}
    for name in (n for n in mine if n in theirs):
        own, its = (p[name].float().square().mean().sqrt().item() for p in (mine, theirs))
        if max(own, its) > APART * min(own, its) + 1e-12:
            groups.setdefault(re.sub(r"\d+", "*", name), []).append((name, own / its if its else float("inf")))
    for pattern, found in groups.items():
        name, ratio = found[0]
        yield Finding(
            code="init-differs",
            severity="warning",
            address=name,
            measured=ratio,
            message=f"{pattern} is initialized {ratio:.3g} times as large as in the other model"
            f" ({many(len(found), 'parameter')})",
            remedy="initialize it as the other model does, or leave it out with --ignore init-differs",
        )
    unlike = [n for n in mine if n not in theirs] + [n for n in theirs if n not in mine]
    unlike += [n for n in mine if n in theirs and mine[n].shape != theirs[n].shape]
    if unlike:
        yield _structure(unlike[0], len(unlike), f"{many(len(unlike), 'parameter')} differ in name or shape")
    places, others = checked.anatomy.placements, other.anatomy.placements
    moved = [a for a in places if a in others and places[a] != others[a]]
    if moved:
        what = f"{places[moved[0]]} here, {others[moved[0]]} in the other model ({many(len(moved), 'sublayer')})"
        yield _structure(moved[0], len(moved), what)


def _structure(address: str, count: int, message: str) -> Finding:
    return Finding(
        code="model-differs",
        severity="warning",
        address=address,
        measured=float(count),
        message=message,
        remedy="compare the two classes at this address",
    )
