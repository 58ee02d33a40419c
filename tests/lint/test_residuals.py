"""Residuals that are no plain sum: what `isograd check` calls them, and what is wrong beside each."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isograd
from tests.lint.faults.plain import POSITIONS, VOCABULARY, WIDTH, Decoder, PostLayer, PreLayer, pre, started


class HighwayLayer(PreLayer):
    """(1 - t) x + t f(norm(x)), t by a matrix of x (Srivastava et al. 2015)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attn_gate, self.ffn_gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def mixed(self, x: Tensor, u: Tensor, t: Tensor) -> Tensor:
        return (1 - t) * x + t * u

    def forward(self, x: Tensor) -> Tensor:
        x = self.mixed(x, self.attn(self.attn_norm(x)), torch.sigmoid(self.attn_gate(x)))
        return self.mixed(x, self.ffn(self.ffn_norm(x)), torch.sigmoid(self.ffn_gate(x)))


class MovedLayer(HighwayLayer):
    def mixed(self, x: Tensor, u: Tensor, t: Tensor) -> Tensor:
        return x + t * (u - x)


class LerpLayer(HighwayLayer):
    def mixed(self, x: Tensor, u: Tensor, t: Tensor) -> Tensor:
        return torch.lerp(x, u, t)


class ForgottenLayer(HighwayLayer):
    """A gate on the branch, and nothing of x beside it."""

    def mixed(self, x: Tensor, u: Tensor, t: Tensor) -> Tensor:
        return t * u


class SphereLayer(PreLayer):
    """nGPT: everything has length 1, and x moves a trained share of the way to the branch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.attn_norm, self.ffn_norm
        self.attn_norm_rate, self.ffn_norm_rate = (nn.Parameter(torch.full((WIDTH,), 0.2)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for branch, rate in ((self.attn, self.attn_norm_rate), (self.ffn, self.ffn_norm_rate)):
            begin, end = F.normalize(x, dim=-1), F.normalize(branch(x), dim=-1)
            x = F.normalize(begin + rate.abs() * (end - begin), dim=-1)
        return x


def placements(model: nn.Module) -> set[str]:
    return set(isograd.check(model).placements.values())


def codes(model: nn.Module) -> set[str]:
    findings = isograd.check(model)
    assert findings.missed == ()
    return findings.codes


@pytest.mark.parametrize("layer", [HighwayLayer, MovedLayer, LerpLayer])
def test_a_gate_between_x_and_the_branch_is_a_shortcut(layer: type[nn.Module]) -> None:
    model = pre(layer=layer)
    found = isograd.check(model)
    assert codes(model) == set() and set(found.placements.values()) == {"gated"}
    assert found.formulas["layers.1.ffn"] == "(1 - g) x + g ffn(pre(x))"


def test_a_gate_without_x_is_none() -> None:
    assert "shortcut-missing" in codes(pre(layer=ForgottenLayer))


def test_a_walk_on_the_sphere_is_ngpt() -> None:
    model = pre(layer=SphereLayer)
    assert codes(model) == set() and placements(model) == {"ngpt"}


def test_norms_divided_by_the_root_of_the_layer() -> None:
    class Layer(PreLayer):
        factor = 1.0

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attn(self.attn_norm(x) * self.factor)
            return x + self.ffn(self.ffn_norm(x) * self.factor)

    model, same = pre(layer=Layer), pre(layer=Layer)
    for at, (layer, other) in enumerate(zip(model.layers, same.layers, strict=True), start=1):
        layer.factor, other.factor = 1 / math.sqrt(at), 0.5
    assert placements(model) == {"layernorm-scaling"} and codes(model) == set()
    assert placements(same) == {"pre-ln"}  # one number for all is no law of depth


@pytest.mark.parametrize(
    ("posts", "said"), [({0, 1}, set()), ({1}, {"placement-mixed"}), ({2, 3}, {"placement-mixed"})]
)
def test_the_first_layers_may_be_post_ln(posts: set[int], said: set[str]) -> None:
    """Mix-LN, and what is none: one odd layer, or the last ones."""
    layers = [(PostLayer if at in posts else PreLayer)() for at in range(6)]
    model = started(Decoder(layers, nn.LayerNorm(WIDTH)))
    assert codes(model) == said


def test_a_macaron_layer_may_end_in_a_norm() -> None:
    class Layer(PreLayer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.ff1, self.ff1_norm, self.end_norm = type(self.ffn)(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            x = x + 0.5 * self.ff1(self.ff1_norm(x))
            x = x + self.attn(self.attn_norm(x))
            return self.end_norm(x + 0.5 * self.ffn(self.ffn_norm(x)))

    model = started(Decoder([Layer() for _ in range(4)], None))
    found = isograd.check(model)
    assert codes(model) == set()
    assert {found.placements[f"layers.{i}.ffn"] for i in range(4)} == {"pre+post"}


class TurnedNormLayer(nn.Module):
    """An MLP-Mixer's, whose first norm is taken over the tokens, or over the features."""

    def __init__(self, over_tokens: bool) -> None:
        super().__init__()
        self.over_tokens = over_tokens
        self.norm1, self.norm2 = nn.LayerNorm(POSITIONS if over_tokens else WIDTH), nn.LayerNorm(WIDTH)
        self.tokens = nn.Sequential(nn.Linear(POSITIONS, 64), nn.GELU(), nn.Linear(64, POSITIONS))
        self.features = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x.transpose(1, 2)) if self.over_tokens else self.norm1(x).transpose(1, 2)
        x = x + self.tokens(h).transpose(1, 2)
        return x + self.features(self.norm2(x))


@pytest.mark.parametrize("over_tokens", [False, True])
def test_a_norm_over_turned_axes(over_tokens: bool) -> None:
    body = nn.Sequential(*[TurnedNormLayer(over_tokens) for _ in range(4)])
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), body, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
    ids = torch.randint(VOCABULARY, (2, POSITIONS), generator=torch.Generator().manual_seed(0))
    assert ("norm-axis" in isograd.check(model.eval(), ids).codes) == over_tokens


def test_a_share_of_the_first_layers_values() -> None:
    """v = (1 - a) v + a v_1: a cancels in the first layer, and nothing is turned."""

    class Layer(PreLayer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.share_norm = nn.Parameter(torch.tensor(0.5))

    class Model(Decoder):
        def forward(self, input_ids: Tensor) -> Tensor:
            x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
            first = None
            for layer in self.layers:
                h = layer.attn_norm(x)
                q, k, v = (p(h).unflatten(-1, (4, -1)) for p in (layer.attn.query, layer.attn.key, layer.attn.value))
                first = v if first is None else first
                v = (1 - layer.share_norm) * v + layer.share_norm * first
                y = F.scaled_dot_product_attention(*(z.transpose(1, 2) for z in (q, k, v)), is_causal=True)
                x = x + layer.attn.out(y.transpose(1, 2).flatten(2))
                x = x + layer.ffn(layer.ffn_norm(x))
            logits: Tensor = self.head(self.final_norm(x))
            return logits

    found = isograd.check(started(Model([Layer() for _ in range(4)], nn.LayerNorm(WIDTH))))
    assert [(f.code, f.severity) for f in found if f.severity != "info"] == []


@pytest.mark.parametrize(("lr", "said"), [(1e-3, set()), (0.05, {"lr-high"}), (1.0, {"lr-high"})])
def test_a_rate_that_no_adam_trains_with(lr: float, said: set[str]) -> None:
    assert isograd.check(pre(), lr=lr, warmup=0).codes == said
