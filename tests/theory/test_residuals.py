"""What is measured of the later residuals, against a second source: by hand, or another door of the model."""

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from isograd.papers.theory import residuals
from isograd.papers.theory.networks import PARTS, changed, decoder, drawn_from, edit, tokens

SHAPE: dict[str, Any] = {"hidden_size": 32, "dtype": torch.float64, "init": None}


def made(subject: str, layers: int = 2, **shape: Any) -> tuple[Any, torch.Tensor]:
    with drawn_from(1):
        return decoder(subject, layers, **(SHAPE | shape)), tokens(2, 9)


@torch.no_grad()
def test_states_are_those_between_the_layers() -> None:
    model, ids = made("peri-ln")
    found = residuals.states(model, ids)
    x = model.model.first(model.model.embedding(model.model.embedding.tokens(ids), torch.arange(9)[None]))
    torch.testing.assert_close(found[0], x)
    after = model.model(ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(found[2], after[1])
    levels = [float((x**2).mean()) for x in found]
    assert residuals.growth(model, ids)[3] == pytest.approx((levels[4] - levels[0]) / 4)
    assert residuals.drift(model, ids)[1] == pytest.approx(levels[2] / levels[0] - 1)


@torch.no_grad()
def test_logits_give_the_attention_weights() -> None:
    """Through the norms of each kind, and after the back-end that writes the product out."""
    for placement in ("pre-ln", "qk-norm", "qk-norm-heads", "qk-norm-free", "qk-norm-width"):
        model, ids = made(placement)
        model.set_attn_implementation("eager")
        weights = model(ids, output_attentions=True).attentions
        for (_, scores), expected in zip(residuals.logits(model, ids), weights, strict=True):
            torch.testing.assert_close(residuals._causal(scores).softmax(-1), expected)


@torch.no_grad()
def test_the_bound_is_reached_where_queries_are_keys() -> None:
    """q = k: |q|^2 / sqrt(d_head) = sqrt(d_head) at each position with itself, so the share of the bound is 1."""
    model, ids = made("qk-norm")
    for layer in model.model.layers:
        layer.attn.branch.key.load_state_dict(layer.attn.branch.query.state_dict())
        layer.attn.branch.query_norm.weight.fill_(3.0)
    assert residuals.logits_over_bound(model, ids) == pytest.approx([1.0, 1.0], abs=1e-4)  # eps


@torch.no_grad()
def test_a_gate_of_a_half_leaves_a_quarter() -> None:
    model, ids = made("gated-attention, gates x 0")
    assert residuals.gate_shares(model, ids) == pytest.approx([0.25, 0.25])
    assert model.model.layers[0].attn.branch.gate is not None


@torch.no_grad()
def test_mixes_by_hand() -> None:
    model, _ = made("hyper-connections-static, mix noise 1, n = 3")
    streams = [sublayer.stream for layer in model.model.layers for sublayer in (layer.attn, layer.ffn)]
    found = residuals.mixes(model)
    assert [tuple(mix.shape) for mix in found] == [(3, 3)] * 4
    for mix, stream in zip(found, streams, strict=True):
        torch.testing.assert_close(mix, stream.alpha[:, 1:].T)
    model, ids = made("mhc, mix at 0, mix noise 1")
    stream = model.model.layers[0].attn.stream
    stream.factors.zero_()
    c = torch.softmax(stream.base[8:].view(4, 4), -1)
    for _ in range(200):
        c = c / c.sum(0, keepdim=True)
        c = c / c.sum(1, keepdim=True)
    torch.testing.assert_close(residuals.mixes(model)[0], c.T, atol=1e-4, rtol=0)
    product = torch.linalg.multi_dot(residuals.mixes(model)[::-1])
    sums = torch.cat([product.sum(0), product.sum(1)])
    assert residuals.sums_of_product(model, ids)[-1] == pytest.approx(float(sums[(sums - 1).abs().argmax()]))


@torch.no_grad()
def test_angles_and_lengths_by_hand() -> None:
    model, ids = made("ngpt")
    one, two = residuals.states(model, ids)[:2]
    by_hand = torch.rad2deg(
        torch.atan2((two - one * (one * two).sum(-1, keepdim=True)).norm(dim=-1), (one * two).sum(-1))
    )
    assert residuals.angles(model, ids)[0] == pytest.approx(float(by_hand.mean()), abs=1e-6)
    pre, ids = made("pre-ln")
    x = residuals.states(pre, ids)[0]
    assert residuals.lengths(pre, ids)[0] == pytest.approx(float((x.norm(dim=-1) - 1).abs().max()))


@torch.no_grad()
def test_outputs_are_enlarged_by_100() -> None:
    model, ids = made("pre-ln")
    other = copy.deepcopy(model)
    for layer in other.model.layers:
        layer.attn.branch.out.weight *= 100
        layer.ffn.branch.out.weight *= 100
    before, after = model(ids).logits, other(ids).logits
    expected = float((after - before).abs().max() / before.square().mean().sqrt())
    assert residuals.outputs_enlarged(model, ids) == pytest.approx([expected])


@torch.no_grad()
def test_depth_attention_reads_no_mean_once_its_queries_are_trained() -> None:
    model, ids = made("attention-residuals, queries at 0.3")
    found = residuals.unequal_sources(model, ids)
    assert found[0] == 0 and all(value > 1e-3 for value in found[1:])


@torch.no_grad()
def test_qk_clip_scales_by_the_square_root() -> None:
    model, ids = made("qk-clip, W_Q x 1000", layers=1)
    attention = model.model.layers[0].attn.branch
    before, largest = (
        attention.query.weight.clone(),
        residuals._causal(residuals.logits(model, ids)[0][1]).amax((0, 2, 3)),
    )
    assert residuals.clipped(model, ids) == pytest.approx([1.0])
    ratio = attention.query.weight[::8, 0] / before[::8, 0]  # the first row of each head
    torch.testing.assert_close(ratio, (residuals.THRESHOLD / largest.clamp(min=residuals.THRESHOLD)).sqrt())


@pytest.mark.parametrize("name", PARTS)
@torch.no_grad()
def test_each_part_that_can_be_changed_changes_the_output(name: str) -> None:
    of = {"gates": "gated-attention", "eps": "sandwich", "lengths": "ngpt", "scales": "layerscale", "sum": "residual"}
    of |= dict.fromkeys(("writes", "mix"), "hyper-connections-static") | {
        "sinkhorn": "mhc, mix noise 3",
        "skips": "keel",
    }
    of |= dict.fromkeys("PQ", "siamesenorm") | {"queries": "attention-residuals"}
    if name == "cross":
        pytest.skip("of an encoder-decoder: test_one_matrix_scaled")
    base = of.get(name, "pre-ln")
    by = " noise 0.5" if name == "queries" else " x 0.05"
    model, ids = made(base)
    assert (made(f"{base}, {name}{by}")[0](ids).logits - model(ids).logits).abs().max() > 1e-9


def test_noise_and_numbers() -> None:
    with drawn_from(0):
        x = torch.ones(10_000)
        found = edit("outputs noise 0.5")
        assert found is not None and found[0] == "outputs"
        assert float(found[1](x, 1).std()) == pytest.approx(0.5, rel=0.03)
    at = edit("P at 0.25")
    assert at is not None and torch.equal(at[1](x, 3), torch.full_like(x, 0.25)) and edit("upside down") is None
    with pytest.raises(ValueError, match="'nothing x 2' is nothing to change"):
        changed(made("pre-ln")[0], "pre-ln, nothing x 2")


@torch.no_grad()
def test_copies_of_another_number() -> None:
    for n in (1, 3):
        model, ids = made(f"hyper-connections, n = {n}")
        assert model.config.entry().stream.copies == n
        assert residuals.states(model, ids)[1].shape[-2] == n


@torch.no_grad()
def test_limits_of_siamesenorm_by_hand() -> None:
    """Q alone in one layer without n_in: x <- x + f(norm(x)) twice, then norm(x) before the head."""
    model, ids = made("siamesenorm, P at 0", layers=1)
    stack = model.model
    stack.stream.norm_post.weight.zero_()
    for sublayer in (stack.layers[0].attn, stack.layers[0].ffn):
        sublayer.pre = torch.nn.Identity()
    stack.norm = torch.nn.Identity()
    x = stack.embedding(stack.embedding.tokens(ids), torch.arange(9)[None])
    mask = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    x = x + stack.layers[0].attn.branch(F.layer_norm(x, (32,)), mask=mask)[0]
    x = x + stack.layers[0].ffn.branch(F.layer_norm(x, (32,)))
    torch.testing.assert_close(model(ids).logits, model.lm_head(F.layer_norm(x, (32,))))
    assert residuals.one_of_two_streams("siamesenorm, P at 0", 1).value < 1e-12
