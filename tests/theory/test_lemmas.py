"""The setting of the theory against its equations written out, and the lemmas against the paper's formulas."""

import math

import pytest
import torch
from torch import Tensor

from isograd.papers.theory.lemmas import WORDS, layer_norm, lemma_1, lemma_3, profile


def by_hand(placement: str, seed: int, layers: int, width: int, tokens: int) -> tuple[float, float]:
    """|s|^2 / d and |dL/dW_2| of the last layer of one stack, token by token, all of it in autograd."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    def ln(v: Tensor) -> Tensor:
        centred = v - v.sum() / width
        return centred * math.sqrt(width) / centred.square().sum().sqrt()

    draw = torch.Generator().manual_seed(seed)
    x = list(normal(tokens, width))
    table = normal(WORDS, width) / math.sqrt(width)
    labels = torch.randint(WORDS, (tokens,), generator=draw)
    for _ in range(layers):
        value, first, second = ((normal(width, width) / math.sqrt(width)).requires_grad_() for _ in range(3))
        if placement == "post-ln":
            attended = sum(v @ value for v in x) / tokens
            h = [ln(v + attended) for v in x]
            sums = [v + (v @ first).clamp(min=0) @ second for v in h]
            x = [ln(s) for s in sums]
        else:
            attended = sum(ln(v) @ value for v in x) / tokens
            h = [v + attended for v in x]
            sums = x = [v + (ln(v) @ first).clamp(min=0) @ second for v in h]
    last = x if placement == "post-ln" else [ln(v) for v in x]
    logits = [table @ v for v in last]
    loss = sum(row.exp().sum().log() - row[y] for row, y in zip(logits, labels, strict=True)) / tokens
    (gradient,) = torch.autograd.grad(loss, second)
    size = sum(float(s.detach().square().sum()) for s in sums) / tokens / width
    return size, math.sqrt(float(gradient.square().sum()))


@pytest.mark.parametrize("placement", ["post-ln", "pre-ln"])
def test_the_setting_by_its_equations(placement: str) -> None:
    """Each depth of the one pass is what a stack of that depth gives by itself."""
    found = profile(placement, 3, layers=4, width=24, tokens=5)
    for layers in (1, 2, 4):
        size, gradient = by_hand(placement, 3, layers, 24, 5)
        assert found.square_norms[layers - 1] == pytest.approx(size, rel=1e-12)
        assert found.gradients[layers - 1] == pytest.approx(gradient, rel=1e-10)


def test_the_first_layer_in_closed_form() -> None:
    """Pre-LN, l = 1: 1 of the input, 1/n of the mean of n tokens, 1/2 of the feed-forward."""
    sizes = [profile("pre-ln", seed, layers=1, width=256, tokens=8).square_norms[0] for seed in range(40)]
    assert sum(sizes) / 40 == pytest.approx(1 + 1 / 8 + 1 / 2, abs=0.02)


def test_lemma_3_by_the_formula_of_its_proof() -> None:
    """J = sqrt(d) / |y| (I - y y' / |y|^2) (I - 1 1' / d) with y the centred x."""
    x = torch.randn(32, dtype=torch.float64) * 3 + 2
    y, one, eye = x - x.mean(), torch.ones(32, dtype=torch.float64), torch.eye(32, dtype=torch.float64)
    formula = (
        math.sqrt(32) / y.norm() * (eye - torch.outer(y, y) / y.square().sum()) @ (eye - torch.outer(one, one) / 32)
    )
    jacobian = torch.autograd.functional.jacobian(layer_norm, x)
    torch.testing.assert_close(jacobian, formula, rtol=0, atol=1e-12)
    assert float(torch.linalg.svdvals(formula)[0]) == pytest.approx(1 / float(x.std(unbiased=False)), rel=1e-12)


def test_lemmas_and_their_controls() -> None:
    x = torch.linspace(-40, 40, 80_001, dtype=torch.float64)
    density = torch.exp(-(x**2) / 8) / math.sqrt(8 * math.pi)  # of N(0, 2^2)
    gelu = 2 * torch.trapezoid(density * torch.nn.functional.gelu(x).square(), x) / 2**2
    assert abs(lemma_1("relu", 1).value - 1) < 0.01
    assert lemma_1("gelu", 1).value == pytest.approx(float(gelu), abs=0.01) and not 0.98 < gelu < 1.02
    assert abs(lemma_3("layernorm", 1).value) < 1e-10 and lemma_3("rmsnorm", 1).value < -0.1


def test_the_curve_of_lemma_1_is_half_the_width() -> None:
    curve = lemma_1("relu", 1).curve
    assert curve.y == pytest.approx([x / 2 for x in curve.x], rel=0.01)
