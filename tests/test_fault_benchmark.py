"""The fault benchmark is right about itself: each fault changes its model, a twin does not, edits hit their place."""

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from benchmarks.faults.base import BASES, BY_NAME, Base, batch, build, edited, held_out, logits_of, loss_of
from benchmarks.faults.catalogue import FAULTS
from benchmarks.faults.causes import CAUSES
from benchmarks.faults.checking import faulty
from benchmarks.faults.clean import DESIGNS, Clean, variants
from benchmarks.faults.codes import ACCEPTED
from benchmarks.faults.fault import Fault

SHOWN = "mini_llama"  # the base of the default suite


def pairs(*names: str) -> list[tuple[str, str]]:
    return [(name, fault.name) for name in names for fault in FAULTS.values() if name in fault.bases]


def outputs(base: Base, model: nn.Module) -> Tensor:
    given = batch(base, torch.Generator().manual_seed(3), 8)
    return logits_of(model.eval()(*given["inputs"])).detach()


def test_there_are_sixty_faults_each_on_three_bases_and_each_with_a_cause() -> None:
    assert len(FAULTS) >= 60
    assert [fault.name for fault in FAULTS.values() if len(fault.bases) < 3] == []
    assert {fault.cause for fault in FAULTS.values()} == set(CAUSES)
    assert set(ACCEPTED) <= set(CAUSES)
    assert all(bool(fault.edits) + bool(fault.change) + bool(fault.optimizer) == 1 for fault in FAULTS.values())


def test_every_edit_finds_its_place_once() -> None:
    for base in BASES:
        clean = edited(base, ())
        for name in (fault for shown, fault in pairs(base.name) if FAULTS[fault].edits):
            assert edited(base, FAULTS[name].edits_of(base)) != clean
        for edits in DESIGNS[base.name].values():
            assert edited(base, edits) != clean


def test_an_edit_without_its_place_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times in the source"):
        edited(BY_NAME[SHOWN], [("no such line", "")])
    with pytest.raises(ValueError, match="times in the source, expected once"):
        edited(BY_NAME[SHOWN], [("self", "")])


def test_held_out_is_decided_by_the_names() -> None:
    assert held_out() == {"nano_gpt", "hf_llama", "einsum_lm", "torch_seq2seq"}


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_a_twin_is_built_again_bit_for_bit_and_its_loss_is_that_of_no_knowledge(base: Base) -> None:
    one, two = build(base), build(base)
    assert torch.equal(outputs(base, one), outputs(base, two))
    assert not torch.equal(outputs(base, one), outputs(base, build(base, seed=1)))
    labels = 16 if base.kind == "image" else 64
    loss = float(loss_of(one, batch(base, torch.Generator().manual_seed(0))).detach())
    assert abs(loss - torch.tensor(labels).log()) < 1.0
    for slot in base.slots.values():
        assert one.get_parameter(slot.name.format(l=base.layers - 1)).dim() >= 1


def test_the_patched_llama_computes_what_transformers_does() -> None:
    base = BY_NAME["hf_llama"]
    patched = build(base)
    stock = LlamaForCausalLM(patched.config)
    stock.load_state_dict(patched.state_dict())
    torch.testing.assert_close(outputs(base, patched), outputs(base, stock), atol=1e-5, rtol=0)


def changes(base: Base, fault: Fault) -> bool:
    """Whether the fresh model's outputs are others than its twin's."""
    model, twin = outputs(base, faulty(base, fault)), outputs(base, build(base))
    return model.shape != twin.shape or not torch.allclose(model, twin, atol=1e-6)


@pytest.mark.parametrize(("name", "fault"), pairs(SHOWN))
def test_a_fault_changes_the_function(name: str, fault: str) -> None:
    assert changes(BY_NAME[name], FAULTS[fault]) != FAULTS[fault].training


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), pairs(*(base.name for base in BASES if base.name != SHOWN)))
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_fault_changes_the_function_of_every_base(name: str, fault: str) -> None:
    assert changes(BY_NAME[name], FAULTS[fault]) != FAULTS[fault].training


@pytest.mark.parametrize("clean", [c for c in variants() if c.base == SHOWN], ids=lambda clean: clean.name)
def test_a_design_without_a_fault_runs(clean: Clean) -> None:
    assert torch.isfinite(outputs(BY_NAME[clean.base], clean.build())).all()


@pytest.mark.slow
@pytest.mark.parametrize("clean", [c for c in variants() if c.name != "float64"], ids=lambda c: f"{c.base} {c.name}")
def test_every_design_without_a_fault_runs(clean: Clean) -> None:
    assert torch.isfinite(outputs(BY_NAME[clean.base], clean.build())).all()
