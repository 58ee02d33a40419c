"""Designs of docs/results/designs: what the check says of those that look wrong, and of those that look right."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isograd
from benchmarks.designs import DESIGNS, MORE, Design, built, provoked, reached
from isograd.lint.proof.trial import Edit, Program, plus
from isograd.trace.record import record

RIGHT = [design for design in DESIGNS if design.changes]
WRONG = [design for design in DESIGNS if design.mended]
CODES = {
    "shift": ("future-leaks", "fact"),
    "names": ("norm-weights", "suspicion"),
    "view": ("heads-mixed", "fact"),
}


def by_name(designs: list[Design]) -> dict[str, Any]:
    return {"argvalues": designs, "ids": [design.name for design in designs]}


def serious(model: nn.Module, prove: bool) -> list[tuple[str, str, str]]:
    found = isograd.check(model, prove=prove)
    assert not found.missed
    return [(f.severity, f.code, f.kind) for f in found if f.severity != "info"]


@pytest.mark.parametrize("design", **by_name([d for d in RIGHT if d.name != "sphere"]))
def test_a_design_that_looks_wrong_has_no_finding(design: Design) -> None:
    assert not serious(built(design.build), prove=False)


@pytest.mark.slow
def test_a_suspicion_of_ngpt_is_overturned() -> None:
    """Its matrices may begin with any size: they are normalized where they are read."""
    sphere = next(d for d in RIGHT if d.name == "sphere")
    assert not serious(built(sphere.build), prove=True)


@pytest.mark.parametrize("design", **by_name(WRONG))
def test_its_mend_has_no_finding(design: Design) -> None:
    assert design.mended is not None
    assert not serious(built(design.mended), prove=False)


@pytest.mark.parametrize("design", **by_name(WRONG))
def test_a_mistake_is_suspected_at_least(design: Design) -> None:
    code, kind = CODES[design.name]
    untried = "error" if kind == "fact" else "warning"
    assert serious(built(design.build), prove=False) == [(untried, code, kind)]


@pytest.mark.slow
@pytest.mark.parametrize("design", **by_name(WRONG))
def test_a_design_that_looks_right_has_an_error(design: Design) -> None:
    assert serious(built(design.build), prove=True) == [("error", *CODES[design.name])]


@pytest.mark.slow
@pytest.mark.parametrize("design", **by_name(RIGHT))
def test_what_a_strict_reader_would_ask_for_does_not_train_better(design: Design) -> None:
    proofs = provoked(design)
    assert proofs and {proof["verdict"] for proof in proofs} == {"overturned"}


@pytest.mark.slow
def test_two_mistakes_more() -> None:
    """Of both an info is left: forty steps do not show their harm in every seed."""
    assert all(not serious(built(build), prove=True) for build in MORE.values())


def test_the_first_position_reads_the_last_token_until_mended() -> None:
    design = next(d for d in WRONG if d.name == "shift")
    assert design.mended is not None
    as_is, mended = reached(design.build), reached(design.mended)
    assert as_is[0] > 1e-4 and not any(mended[:-1]) and mended[-1] > 1e-4


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        for layer in self.layers:
            x = x + layer(x) if skip else layer(x)
        return x


def test_a_shortcut_that_is_tried_goes_through_all_layers() -> None:
    """What a change looks up is what earlier changes have made of it."""
    model, x = Stack(), torch.randn(2, 4)
    trace = record(model, x)
    made = [o.makes[0] for o in trace.operations if o.name == "linear"]
    values = {value: plus((1.0, before)) for value, before in zip(made, [*trace.inputs.values(), *made], strict=False)}
    program = Program(trace)
    given = {value: model.get_parameter(name) for value, name in program.parameters.items()}
    (changed,) = program.run(given, tuple(trace.outputs.values()), Edit(says="", values=values))
    torch.testing.assert_close(changed, model(x, skip=True))
    assert not torch.allclose(changed, model(x))
