"""Designs over depth and side by side, read as what they are."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isograd
from isograd.lint.leaks.inputs import others
from tests.lint.faults.plain import HEADS, WIDTH, Decoder, PreLayer, join, pre, split, started


def checked(model: nn.Module, inputs: Any = None) -> Any:
    findings = isograd.check(model, inputs)
    assert findings.missed == ()
    return findings


def serious(findings: Any) -> list[str]:
    return [f.code for f in findings if f.severity != "info"]


class TokenMixing(PreLayer):
    """A feed-forward over time in place of attention, and over which axis its norm goes."""

    TIME = 10

    def __init__(self, *, over_time: bool) -> None:
        super().__init__()
        del self.attn
        self.attn_norm = nn.LayerNorm(self.TIME if over_time else WIDTH)
        self.mixing = nn.Sequential(nn.Linear(self.TIME, 24), nn.GELU(), nn.Linear(24, self.TIME))

    def forward(self, x: Tensor) -> Tensor:
        of_channels = self.attn_norm.normalized_shape == (WIDTH,)
        y = self.attn_norm(x).mT if of_channels else self.attn_norm(x.mT)
        x = x + self.mixing(y).mT
        return x + self.ffn(self.ffn_norm(x))


@pytest.mark.parametrize("over_time", [True, False])
def test_a_norm_over_time_of_a_transposed_stream_is_reported(over_time: bool) -> None:
    torch.manual_seed(0)
    layers = [TokenMixing(over_time=over_time) for _ in range(3)]
    model = nn.Sequential(nn.Linear(6, WIDTH), *layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)).eval()
    assert serious(checked(model, torch.randn(2, 10, 6))) == (["norm-axis"] if over_time else [])


class Averaged(Decoder):
    """Each layer reads an average, with trained weights, of the embedding and all earlier layers."""

    def __init__(self, how: str) -> None:
        super().__init__([PreLayer() for _ in range(4)], nn.LayerNorm(WIDTH))
        self.how = how
        self.mixing_norm = nn.ParameterList(torch.full((i + 2,), 1 / (i + 2)) for i in range(4))

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        states = [x]
        for layer, weights in zip(self.layers, self.mixing_norm, strict=True):
            states.append(layer(x))
            every = torch.stack(states)
            if self.how == "einsum":
                x = torch.einsum("n,nbtd->btd", weights, every)
            elif self.how == "tensordot":
                x = torch.tensordot(weights, every, dims=1)
            else:
                x = (weights[:, None, None, None] * every).sum(0)
        return self.head(self.final_norm(x))


@pytest.mark.parametrize("how", ["einsum", "tensordot", "sum"])
def test_averages_over_depth_are_a_denseformer(how: str) -> None:
    torch.manual_seed(0)
    findings = checked(started(Averaged(how)))
    assert list(findings.placements.values()) == ["denseformer"] * 8
    assert [f.code for f in findings if f.severity != "info" and f.kind == "fact"] == []


class SideBySide(PreLayer):
    def __init__(self, *, alone: bool) -> None:
        super().__init__()
        self.alone = alone

    def forward(self, x: Tensor) -> Tensor:
        y = self.attn_norm(x)
        return x + self.attn(y) + self.ffn(y if self.alone else self.ffn_norm(x))


@pytest.mark.parametrize("alone", [True, False])
def test_branches_side_by_side_stand_in_one_formula(alone: bool) -> None:
    torch.manual_seed(0)
    model = started(Decoder([SideBySide(alone=alone) for _ in range(3)], nn.LayerNorm(WIDTH)))
    if alone:
        layer: Any
        for layer in model.layers:
            del layer.ffn_norm
    assert set(checked(model).formulas.values()) == {"x + attn(pre(x)) + ffn(pre(x))"}


class Summary(Decoder):
    """Tokens that attend to themselves and to all others, which stay, through one norm of both."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        first = torch.tanh(x[:, :2])
        layer: Any
        for layer in self.layers:
            every = layer.attn_norm(torch.cat([first, x], dim=1))
            q, k, v = layer.attn.query(every[:, :2]), layer.attn.key(every), layer.attn.value(every)
            first = first + layer.attn.out(join(F.scaled_dot_product_attention(split(q), split(k), split(v))))
            first = first + layer.ffn(layer.ffn_norm(first))
        return self.head(self.final_norm(first))


def test_a_norm_of_a_token_beside_others_is_before_the_branch() -> None:
    torch.manual_seed(0)
    findings = checked(started(Summary([PreLayer() for _ in range(3)], nn.LayerNorm(WIDTH))))
    assert set(findings.placements.values()) == {"pre-ln"}, findings.formulas
    assert serious(findings) == []


class HybridLayer(PreLayer):
    """h = x + attn(x) with norms on queries, keys and values; y = norm(h); x <- y + ffn(y)."""

    sided = True

    def __init__(self) -> None:
        super().__init__()
        self.sides_norm = nn.ModuleList(nn.LayerNorm(WIDTH // HEADS) for _ in range(3))
        if not self.sided:
            self.sides_norm = nn.ModuleList(nn.Identity() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        projections = (self.attn.query, self.attn.key, self.attn.value)
        q, k, v = (norm(split(project(x))) for norm, project in zip(self.sides_norm, projections, strict=True))
        y = self.attn_norm(x + self.attn.out(join(F.scaled_dot_product_attention(q, k, v, is_causal=True))))
        return y + self.ffn(y)


class BareSidesLayer(HybridLayer):
    sided = False


@pytest.mark.parametrize(("layer", "names"), [(HybridLayer, {"hybridnorm"}), (BareSidesLayer, {"post-ln", "none"})])
def test_norms_on_every_side_and_on_the_sum_are_hybridnorm(layer: type[PreLayer], names: set[str]) -> None:
    torch.manual_seed(0)
    model = started(Decoder([layer() for _ in range(3)], nn.LayerNorm(WIDTH)))
    assert set(checked(model).placements.values()) == names


def everywhere(time: int) -> Tensor:
    return torch.ones(time, time, dtype=torch.bool)


def test_logits_that_read_both_ways_are_named_and_no_alarm() -> None:
    """Masked tokens or a mask forgotten: only the author knows; a name that says it is one of masked tokens does."""
    torch.manual_seed(0)
    findings = checked(pre(3, visible=everywhere))
    assert serious(findings) == [] and "bidirectional-logits" in findings.codes
    model = pre(3, visible=everywhere)
    model.__class__ = type("MaskedLM", (Decoder,), {})
    assert "bidirectional-logits" not in checked(model).codes
    assert "bidirectional-logits" not in checked(pre(3)).codes


def own_init(depth: int) -> Decoder:
    """The matrices of the layers as nn.Linear begins them."""
    model = pre(depth)
    for module in model.layers.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    return model


def test_the_init_of_linear_in_two_layers_is_no_law_of_depth() -> None:
    """W_2 has four times the inputs of W_1, so half its standard deviation: 1 / sqrt(2 * 2) of it."""
    torch.manual_seed(0)
    assert serious(checked(own_init(2))) == []


@pytest.mark.parametrize(("out", "down"), [(1.0, 1.0), (8**-0.5, 8**-0.5), (8**-0.5, 1.0), (1.0, 8**-0.5)])
def test_depth_scales_both_writes_or_none(out: float, down: float) -> None:
    torch.manual_seed(0)
    model = pre(4)
    with torch.no_grad():
        for each in model.layers:
            each.attn.out.weight.mul_(out)  # type: ignore[union-attr]
            each.ffn.down.weight.mul_(down)  # type: ignore[union-attr]
    found = [f for f in isograd.check(model, prove=False) if f.severity != "info"]
    assert [f.code for f in found] == ([] if out == down else ["init-std"])


class ConvLayer(PreLayer):
    """A Conformer's: a convolution over time between attention and feed-forward, with a shortcut around it or not."""

    def __init__(self, *, shortcut: bool) -> None:
        super().__init__(visible=everywhere)
        self.shortcut, self.conv_norm = shortcut, nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)
        self.over_time = nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)

    def convolved(self, x: Tensor) -> Tensor:
        return self.narrow(F.silu(self.over_time(F.glu(self.wide(self.conv_norm(x).mT), dim=1)))).mT

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        x = x + self.convolved(x) if self.shortcut else self.convolved(x)
        return x + self.ffn(self.ffn_norm(x))


@pytest.mark.parametrize("shortcut", [True, False])
def test_a_convolution_without_a_shortcut_is_one_finding(shortcut: bool) -> None:
    torch.manual_seed(0)
    layers = [ConvLayer(shortcut=shortcut) for _ in range(3)]
    model = nn.Sequential(nn.Linear(6, WIDTH), *layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)).eval()
    findings = checked(model, torch.randn(2, 10, 6))
    assert serious(findings) == ([] if shortcut else ["shortcut-missing"])
    assert shortcut or "convolution" in str(findings)


def test_other_ids_are_made_where_the_ids_are() -> None:
    """A GPU was another device than torch's default; here the default is."""
    ids = torch.tensor([[1, 5, 6, 7], [1, 7, 5, 6]])
    with torch.device("meta"):
        other = others(SimpleNamespace(config=SimpleNamespace(bos_token_id=1)), ids)  # type: ignore[arg-type]
    assert other.device == ids.device and torch.equal(other == ids, ids == 1)
