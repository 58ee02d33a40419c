"""The fault benchmark is right about itself: each fault changes its model, a twin does not, edits hit their place."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from benchmarks.faults import tables
from benchmarks.faults.base import BASES, BY_NAME, Base, batch, build, edited, held_out, logits_of, loss_of
from benchmarks.faults.catalogue import FAULTS
from benchmarks.faults.causes import CAUSES
from benchmarks.faults.checking import Row, faulty
from benchmarks.faults.clean import DESIGNS, Clean, variants
from benchmarks.faults.codes import ACCEPTED
from benchmarks.faults.fault import Fault
from benchmarks.faults.loops import BREAK, HEALTHY, LOOP_CAUSES, MISTAKES, Loop
from benchmarks.faults.training import again, says
from tests.build import few

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


@pytest.mark.parametrize("pair", few(pairs(SHOWN), 4), ids="-".join)
def test_a_fault_changes_the_function(pair: tuple[str, str]) -> None:
    name, fault = pair
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


def weights(loop: Loop) -> Tensor:
    return torch.cat([p.detach().flatten() for p in loop.model.parameters()])


def after_steps(kind: type[Loop], steps: int, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    monkeypatch.setattr(kind, "steps", steps)
    loop = kind(BY_NAME["torch_encoder"])
    loop.run(None)
    return weights(loop)


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.name())
def test_a_mistake_in_a_loop_is_one_method_of_it(kind: type[Loop]) -> None:
    own = [name for name, value in vars(kind).items() if callable(value)]
    assert all(hasattr(Loop, name) for name in own)
    assert 1 <= len(own) + len(kind.edits) <= 4
    assert kind.cause in LOOP_CAUSES
    assert len(kind.on) >= 3


def test_a_loop_is_the_same_twice_and_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "steps", 30)
    one, two = Loop(BY_NAME["torch_encoder"]), Loop(BY_NAME["torch_encoder"])
    losses = one.run(None)
    assert losses == two.run(None)
    assert torch.equal(weights(one), weights(two))
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*MISTAKES, *HEALTHY[1:]], ids=lambda kind: kind.name())
def test_a_loop_of_another_name_trains_otherwise(kind: type[Loop], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        right = after_steps(Loop, BREAK + 2, patch)
    assert not torch.equal(after_steps(kind, BREAK + 2, monkeypatch), right)


def row(fault: str, **more: Any) -> Row:
    return Row(fault=fault, cause=FAULTS[fault].cause, base=SHOWN, **more)


def test_a_table_counts_what_is_right() -> None:
    rows = [row("mask-forgotten", right=True, first=True, silent=False), row("mask-forgotten"), row("one-layer-frozen")]
    assert [(x.title, x.right, x.first, x.silent, x.n) for x in tables.lines(rows)] == [
        ("masks", 1, 1, 1, 2),
        ("frozen", 0, 0, 1, 1),
        ("all", 1, 1, 2, 3),
    ]
    assert tables.share(40, 50) == "40 of 50, 80 % (67 .. 89)"  # Wilson's, by hand: 0.670 .. 0.888


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [row("mask-forgotten", right=True, found="a b", seconds=1.5), row("one-layer-frozen", crash="x, y")]
    tables.write(tmp_path / "rows.csv", [asdict(one) for one in rows])
    assert tables.read_as(Row, tmp_path / "rows.csv") == rows


@dataclass(frozen=True)
class Said:
    """A finding, as far as a remedy reads one."""

    code: str
    address: str
    remedy: str


def test_a_remedy_changes_what_its_finding_names_and_nothing_else() -> None:
    base, fault = BY_NAME[SHOWN], FAULTS["one-layer-twenty-times"]
    twin, model = build(base), faulty(base, fault)
    again(base, model, ["layers.2.attention.wo.weight"], every_layer=False, seed=5)
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, twin.get_parameter(name))}
    assert changed == {"layers.2.attention.wo.weight", "layers.2.feed_forward.w2.weight"}  # the latter is wrong still
    assert model.get_parameter("layers.2.attention.wo.weight").std() < 0.01
    assert model.get_parameter("layers.2.feed_forward.w2.weight").std() > 0.1
    assert says("init-large", Said("init-std", "", "use one init scheme"))
    assert not says("init-large", Said("init-std", "", "change it to what most do"))
