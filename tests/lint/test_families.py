"""`isograd check` on the families that people use: the right placement, and no alarm that the docs do not explain."""

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import isograd
from isograd.lint.check import CODES
from isograd.lint.findings import Findings
from isograd.trace.anatomy import Anatomy, find_anatomy
from isograd.trace.inputs import guess_inputs
from tests.build import few
from tests.lint.families import BEGIN, END, FAMILIES, Family, gallery

DOCS = Path(__file__).parents[2] / "docs"


def built(family: Family) -> nn.Module:
    torch.manual_seed(0)
    return family.build()


def found(model: nn.Module) -> Counter[tuple[str, str]]:
    """(kind, placement) -> how many sublayers."""
    return counted(find_anatomy(model, guess_inputs(model)))


def counted(anatomy: Anatomy) -> Counter[tuple[str, str]]:
    return Counter((s.kind, s.placement) for s in anatomy.sublayers)


def checked(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[Findings, Counter[tuple[str, str]]]:
    """What is said of a model, and what was found in it for that."""
    seen: list[Anatomy] = []

    def find(*arguments: Any) -> Anatomy:
        seen.append(find_anatomy(*arguments))
        return seen[-1]

    monkeypatch.setattr(import_module("isograd.lint.check"), "find_anatomy", find)
    return isograd.check(model), counted(seen[0])


@pytest.mark.parametrize("name", few(FAMILIES, 3))
def test_every_sublayer_has_its_placement_and_nothing_else_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES[name]
    findings, sublayers = checked(built(family), monkeypatch)
    assert findings.missed == ()
    assert findings.codes == set(family.findings), str(findings)
    expected = {(kind, family.placements[kind]): count for kind, count in family.counts.items()}
    assert sublayers == expected
    assert Counter(findings.placements.values()) == Counter(p for (_, p), n in expected.items() for _ in range(n))


@pytest.mark.parametrize(
    "name", few(["opt", "olmo2", "gemma2", "bert", "bart", "t5", "vit", "bitnet", "cohere", "dinov2"], ["opt", "t5"])
)
def test_weights_that_have_moved_are_placed_the_same_and_not_judged_by_a_start(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES[name]
    model, draw = built(family), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(torch.rand(p.shape, generator=draw) + 0.5).add_(torch.randn(p.shape, generator=draw) * 0.02)
    findings, sublayers = checked(model, monkeypatch)
    assert sublayers == {(kind, family.placements[kind]): count for kind, count in family.counts.items()}
    assert findings.codes == set(family.findings) - {"init-std", "initial-loss"}


def test_the_same_classes_in_two_placements() -> None:
    """Negative control for reading names: both have modules of one class under one name."""
    one, other = built(FAMILIES["opt"]), built(FAMILIES["opt-post"])
    names = [{n for n, _ in m.named_modules() if "layers" in n} for m in (one, other)]
    assert names[0] == names[1] and found(one) != found(other)


def test_the_gallery_of_the_docs_is_this_table() -> None:
    page = (DOCS / "check.md").read_text()
    assert page.split(BEGIN)[1].split(END)[0].strip() == gallery(), "python -m tests.lint.families writes it"
    assert all(set(family.findings) <= CODES for family in FAMILIES.values())
