"""More layers that write nothing: the same function, of the same class; refused where it would be another."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from isograd.convert.graft import graft, graft_folder, proven
from isograd.errors import GraftError
from tests.build import in_turn
from tests.interop.graft.families import FAMILIES, IDS, POST_LN, family, logits, of


@in_turn("name, new", [name for name in FAMILIES if name not in POST_LN], ["copy", "init"])
def test_new_layers_change_nothing(name: str, new: str) -> None:
    model = family(name)
    before = logits(model)
    made = graft(model, "layers=5", new=new)
    assert type(made.model) is type(model) and made.model.config.num_hidden_layers == 5
    assert torch.equal(logits(made.model), before)  # x + 0: not a bit is another
    assert made.exact
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("name", of("gpt2", "gemma2"))
def test_a_new_layer_learns(name: str) -> None:
    """Its last writers get a gradient; one step later everything in it has one."""
    model = graft(family(name), "layers=6").model.train()
    old = {n for n, _ in family(name).named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(2):
        optimizer.zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        moved = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
        if step:
            assert old <= moved and len(moved) == sum(1 for _ in model.parameters())
        optimizer.step()


def test_the_proof_sees_a_new_layer_that_writes() -> None:
    """The negative control: one weight of a new layer's last projection that is not 0."""
    model = family("llama")
    made: Any = graft(model, "layers=4", insert="top").model
    assert proven(model, made, about="identity").passed
    with torch.no_grad():
        made.model.layers[-1].mlp.down_proj.weight[0, 0] = 1e-3
    report = proven(model, made, about="off")
    assert not report.passed and "logits differ" in report.failures()[0]


@pytest.mark.parametrize(
    ("insert", "new"),
    [("even", (1, 4)), *(pytest.param(*one, marks=pytest.mark.slow) for one in (("top", (3, 4)), ("bottom", (0, 1))))],
)
def test_where_new_layers_go(insert: str, new: tuple[int, ...]) -> None:
    made: Any = graft(family("llama"), "layers=5", insert=insert).model
    silent = [i for i, layer in enumerate(made.model.layers) if not layer.mlp.down_proj.weight.any()]
    assert tuple(silent) == new


def test_a_layer_keeps_its_kind() -> None:
    """Gemma 2 attends in a window in every other layer; a copy attends as the layer that it was copied from."""
    model = family("gemma2")
    kinds = model.config.layer_types
    made = graft(model, "layers=6").model
    assert made.config.layer_types == [kind for kind in kinds for _ in range(2)] and len(set(kinds)) == 2


def test_a_folder(tmp_path: Path) -> None:
    family("gpt2").save_pretrained(tmp_path / "before")
    made = graft_folder(tmp_path / "before", tmp_path / "after", "layers=4")
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "after", output_loading_info=True)
    assert not any(info.values()) and loaded.config.n_layer == 4
    assert torch.equal(logits(loaded), logits(family("gpt2"))) and torch.equal(logits(made.model), logits(loaded))
    assert (tmp_path / "after/parity.json").is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["after", "before"]
    with pytest.raises(FileExistsError):
        graft_folder(tmp_path / "before", tmp_path / "after", "layers=4")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("layers", "expected NAME=VALUE"),
        ("layrs=4", "did you mean 'layers'"),
        ("layers=3", "the model has 3"),
        ("layers=x", "whole number"),
    ],
)
def test_a_change_that_is_none(change: str, said: str) -> None:
    with pytest.raises(GraftError, match=said):
        graft(family("gpt2"), change)
