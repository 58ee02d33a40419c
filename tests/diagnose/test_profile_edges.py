"""What the depth profile leaves alone, what it says of models that lack something, and that it holds for families."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from isograd.diagnose import profile
from isograd.diagnose.depth_profile.rows import largest_entry
from isograd.errors import ProfileError
from tests import build
from tests.lint.families import FAMILIES


class Layers(nn.Module):
    """Pre-LN feed-forward layers; `blocked` cuts the graph, as code under no_grad does."""

    def __init__(self, blocked: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(3)
        )
        self.blocked = blocked

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.detach() if self.blocked else x


def test_the_model_is_left_as_it_is() -> None:
    model = build.model("causal").train()
    model.model.layers[0].requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    flags = [p.requires_grad for p in model.parameters()]
    state = torch.random.get_rng_state()
    profile(model)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in model.named_parameters())
    assert [p.requires_grad for p in model.parameters()] == flags
    assert model.training and not any(m._forward_hooks for m in model.modules())


def test_frozen_and_half_precision_weights_have_gradients_too() -> None:
    model = build.model("causal", dtype=torch.bfloat16).requires_grad_(False)
    found = profile(model)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert found.rows == profile(model.float()).rows
    assert all(row.gradient_norm for row in found.rows)


def test_one_seed_one_profile() -> None:
    model = FAMILIES["bert"].build()
    assert profile(model, seed=3) == profile(model, seed=3)
    assert profile(model, seed=3).loss != profile(model, seed=4).loss


def test_dropout_is_off() -> None:
    quiet, noisy = (build.model("causal", hidden_dropout=p) for p in (0.0, 0.5))
    noisy.load_state_dict(quiet.state_dict())
    assert profile(quiet).rows == profile(noisy.train()).rows


def test_no_sublayers() -> None:
    with pytest.raises(ProfileError, match="no sublayers found in Sequential"):
        profile(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (torch.randn(3, 4),))


def test_without_gradients_the_forward_pass_is_there() -> None:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    whole, cut = Layers(), Layers(blocked=True)
    cut.load_state_dict(whole.state_dict())
    found, less = profile(whole, (x,)), profile(cut, (x,))
    assert not found.missing and list(less.missing) == ["gradients"]
    assert "does not require grad" in less.missing["gradients"]
    assert less.loss is None and less.ratios == {}
    for row, other in zip(found.rows, less.rows, strict=True):
        assert other.gradient_norm is None and row.gradient_norm is not None
        assert (row.residual_rms, row.dependency, row.amplification) == (
            other.residual_rms,
            other.dependency,
            other.amplification,
        )


def test_a_model_without_logits_has_a_stated_surrogate() -> None:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    model = Layers()
    found = profile(model, (x,), seed=4)
    targets = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(4))
    loss = functional.mse_loss(model(x), targets)
    assert (found.objective, found.ln_classes) == ("random targets", None)
    assert found.loss == pytest.approx(loss.item(), rel=1e-6)
    assert found.loss != pytest.approx(functional.mse_loss(model(x), torch.zeros_like(x)).item(), rel=1e-2)


def test_labels_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"labels of shape \(3,\) for logits of \(2, 16, 101\)"):
        profile(FAMILIES["bert"].build(), labels=torch.tensor([1, 2, 3]))


def test_padding_is_no_target() -> None:
    model = FAMILIES["gpt2"].build()
    ids = build.tokens(2, 8)
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    labels = ids.masked_fill(mask == 0, -100)[:, 1:]
    expected = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    found = profile(model, {"input_ids": ids, "attention_mask": mask})
    assert found.loss == pytest.approx(expected.item(), rel=1e-5)
    assert found.loss != pytest.approx(profile(model, {"input_ids": ids}).loss, rel=1e-6)


def test_the_largest_entry_and_its_place() -> None:
    x = torch.ones(2, 5, 8)
    x[1, 3, 6] = -400.0
    facts = {"largest": 400.0, "largest_over_median": 400.0, "largest_channel": 6, "largest_position": 3}
    assert largest_entry(x, 1) == facts
    assert largest_entry(x, None)["largest_position"] == 8  # second sequence of five, fourth place


FEW = ["llama", "gemma2", "olmo2", "mixtral", "gpt-neox", "bloom", "t5", "vit", "swinv2", "torch-transformer"]


@pytest.mark.parametrize("name", [*FEW, "x-transformers", "x-transformers-sandwich", "timm-vit"])
def test_families_have_whole_profiles(name: str) -> None:
    """Nothing missing, nothing that is no number, and JSON takes it."""
    found = profile(FAMILIES[name].build())
    assert not found.missing
    for row in found.rows:
        without = {field for field, value in vars(row).items() if value is None}
        attention = {field for field in vars(row) if field.startswith("attention") or field == "largest_logit"}
        assert without == (set() if row.kind in ("attn", "cross") else attention), row.address
        assert all(math.isfinite(v) for v in vars(row).values() if isinstance(v, float))
    content: dict[str, Any] = json.loads(json.dumps(found.as_dict()))
    assert [row["address"] for row in content["rows"]] == [row.address for row in found.rows]
    assert sum(stack["sublayers"] for stack in content["stacks"]) == len(found.rows)


@pytest.mark.parametrize("head", ["causal", "masked", "seq2seq", "classify"])
def test_labels_among_the_inputs_ask_for_the_models_own_loss(head: str) -> None:
    """Which of ours forms no logits beside it; the number of classes is known all the same."""
    model, given = build.model(head), build.labelled(head)
    found = profile(model, given)
    assert (found.objective, found.missing) == ("given labels", {})
    assert found.loss == pytest.approx(model(**given).loss.item(), rel=1e-5)
    assert found.ln_classes == pytest.approx(math.log(3 if head == "classify" else 41))
    assert all(row.gradient_norm is not None for row in found.rows)


def test_a_decoder_that_reads_its_labels_past() -> None:
    model, ids = FAMILIES["marian"].build(), build.tokens(2, 8)
    found = profile(model, {"input_ids": ids, "labels": ids})
    assert found.loss == pytest.approx(model(input_ids=ids, labels=ids).loss.item(), rel=1e-5)
    assert {stack.name for stack in found.stacks} == {"encoder", "decoder"}
