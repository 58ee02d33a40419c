"""The setting in which Xiong et al. 2020 prove their theorem, and nothing but it; Lemmas 1 to 3 measured in it.

One head with W_Q = W_K = 0, so that attention is the mean over positions times W_V; no W_O, no biases; W_V, W_1, W_2
all d x d and drawn from Xavier's normal, N(0, 1/d); LayerNorm with weight 1, bias 0 and no eps; ReLU. Inputs are
independent Gaussian vectors, labels are random, logits are E x with E drawn from N(0, 1/d). In float64.

    post-ln   h = LN(x + mean(x) W_V)        s = h + ReLU(h W_1) W_2          x <- LN(s)
    pre-ln    h = x + mean(LN(x)) W_V        s = h + ReLU(LN(h) W_1) W_2      x <- s,  LN(x) before the logits
    layernorm-scaling    pre-ln with LN(x) / sqrt(l) in layer l

"post-ln, W_2 x 1.3" has W_2 multiplied by 1.3, "pre-ln, outputs as l^-0.5" W_V and W_2 of layer l by l^-0.5.

Written apart from the models on purpose: it is a second source for them, and may be read beside the paper.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from isograd.papers.theory.claim import Measured
from isograd.papers.theory.claims import CLAIMS
from isograd.papers.theory.curves import farthest, over_seeds
from isograd.papers.theory.networks import scaling

WIDTH, LAYERS, TOKENS, WORDS = 256, 48, 32, 1000


@dataclass(frozen=True, kw_only=True)
class PerDepth:
    """Two numbers per depth, entry l - 1 for l layers.

    Attributes:
        square_norms: mean over positions of |s|^2 / d after l layers: the sum before the last LayerNorm in Post-LN
            (x^{post,5} of the paper), the stream itself in Pre-LN.
        gradients: Frobenius norm of the gradient of W_2 of layer l in a stack that ends with this layer.
    """

    square_norms: tuple[float, ...]
    gradients: tuple[float, ...]


@lru_cache(maxsize=256)
def profile(subject: str, seed: int, layers: int = LAYERS, width: int = WIDTH, tokens: int = TOKENS) -> PerDepth:
    """Both numbers for every depth up to `layers`, in one pass.

    A stack of l layers is the beginning of a deeper one, and the gradient of its last W_2 asks for nothing below that
    matrix: so one pass gives the last layer's gradient at every depth.
    """
    placement, _, change = subject.partition(", ")
    draw = torch.Generator().manual_seed(seed)
    x = _normal(draw, tokens, width)
    table = _normal(draw, WORDS, width) / width**0.5
    labels = torch.randint(WORDS, (tokens,), generator=draw)
    square_norms, gradients = [], []
    for layer, (value, first, second) in enumerate(_layers(draw, layers, width, change), 1):
        scale = layer**-0.5 if placement == "layernorm-scaling" else 1.0
        h, read = _attend(placement, x, value, scale)
        second.requires_grad_()
        s = h + torch.relu(read @ first) @ second
        out = layer_norm(s)
        loss = F.cross_entropy(out @ table.T, labels)
        square_norms.append(float(s.detach().square().sum(-1).mean()) / width)
        gradients.append(float(torch.autograd.grad(loss, second)[0].norm()))
        x = (out if placement == "post-ln" else s).detach()
    return PerDepth(square_norms=tuple(square_norms), gradients=tuple(gradients))


def layer_norm(x: Tensor) -> Tensor:
    """(x - mean) / std over the width, without an eps: the theory has none."""
    return F.layer_norm(x, x.shape[-1:], eps=0.0)


def _attend(placement: str, x: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """What the attention leaves on the stream, and what the feed-forward reads."""
    if placement == "post-ln":
        h = layer_norm(x + x.mean(0, keepdim=True) @ value)
        return h, h
    h = x + scale * layer_norm(x).mean(0, keepdim=True) @ value
    return h, scale * layer_norm(h)


def _layers(draw: torch.Generator, layers: int, width: int, change: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """W_V, W_1, W_2 of each layer."""
    name, factor = scaling(change)
    for layer in range(1, layers + 1):
        matrices = (_normal(draw, width, width) / width**0.5 for _ in range(3))
        scales = [factor(layer) if factor and which in _CHANGED[name] else 1.0 for which in ("W_V", "W_1", "W_2")]
        value, first, second = (matrix * scale for matrix, scale in zip(matrices, scales, strict=True))
        yield value, first, second


_CHANGED = {"outputs": ("W_V", "W_2"), "W_1": ("W_1",), "W_2": ("W_2",)}


def _normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


WIDTHS = (64, 128, 256, 512, 1024)
SAMPLES = 1_000_000

_ACTIVATIONS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu}


@lru_cache
def lemma_1(subject: str, seeds: int) -> Measured:
    """E|ReLU(X)|^2 / (sigma^2 d / 2) for X ~ N(0, sigma^2 I_d), a million numbers per width and seed; sigma = 2."""
    sigma, activation = 2.0, _ACTIVATIONS[subject]
    curves = []
    for seed in range(seeds):
        draw = torch.Generator().manual_seed(seed)
        found = []
        for width in WIDTHS:
            x = sigma * torch.randn(SAMPLES // width, width, generator=draw, dtype=torch.float64)
            found.append(float(activation(x).square().sum(-1).mean()) / sigma**2)
        curves.append(found)
    curve = over_seeds(WIDTHS, curves)
    ratios = [2 * y / x for x, y in zip(curve.x, curve.y, strict=True)]
    return Measured(value=farthest(ratios, 1, 1), curve=curve)


@lru_cache
def lemma_2_level(subject: str, seeds: int) -> Measured:
    """|x_l|^2 / d, the value of the layer that lies farthest from the middle of the tolerance."""
    curve = over_seeds(*_square_norms(subject, seeds))
    return Measured(value=farthest(curve.y, *_tolerance("lemma-2-post-ln")), curve=curve)


@lru_cache
def lemma_2_growth(subject: str, seeds: int) -> Measured:
    """(|x_l|^2 / d - 1) / l, the value of the layer that lies farthest from the middle of the bounds."""
    curve = over_seeds(*_square_norms(subject, seeds))
    growth = [(y - 1) / layer for layer, y in zip(curve.x, curve.y, strict=True)]
    return Measured(value=farthest(growth, *_tolerance("lemma-2-pre-ln")), curve=curve)


@lru_cache
def last_level(subject: str, seeds: int) -> Measured:
    """|x_L|^2 / d after the last of the layers."""
    curve = over_seeds(*_square_norms(subject, seeds))
    return Measured(value=curve.y[-1], curve=curve)


def _square_norms(subject: str, seeds: int) -> tuple[range, list[tuple[float, ...]]]:
    found = [profile(subject, seed).square_norms for seed in range(seeds)]
    return range(1, len(found[0]) + 1), found


@lru_cache
def lemma_3(subject: str, seeds: int) -> Measured:
    """|J|_2 std(x) - 1 at the worst of the inputs, J the Jacobian of the norm by autograd; means that are not 0."""
    norm = {"layernorm": layer_norm, "rmsnorm": _rms_norm}[subject]
    points = []
    for seed in range(seeds):
        draw = torch.Generator().manual_seed(seed)
        for scale in (0.1, 0.5, 1.0, 4.0, 20.0):
            x = scale * (torch.randn(64, generator=draw, dtype=torch.float64) + 1.0)
            jacobian = torch.autograd.functional.jacobian(norm, x)
            points.append((float(x.std(unbiased=False)), float(torch.linalg.matrix_norm(jacobian, 2))))
    points.sort()
    curve = over_seeds([std for std, _ in points], [[size for _, size in points]])
    return Measured(value=farthest([std * size - 1 for std, size in points], 0, 0), curve=curve)


def _rms_norm(x: Tensor) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt()


def _tolerance(claim: str) -> tuple[float, float]:
    (case,) = CLAIMS[claim].cases
    assert case.low is not None and case.high is not None
    return case.low, case.high
