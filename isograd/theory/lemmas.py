"""Xiong et al. 2020, Lemmas 1 to 3, measured."""

from functools import lru_cache

import torch
from torch import Tensor

from isograd.theory.claim import Measured
from isograd.theory.fit import farthest, over_seeds
from isograd.theory.setting import layer_norm, profile

WIDTHS = (64, 128, 256, 512, 1024)
SAMPLES = 1_000_000
GROWTH = (0.5, 1.5)  # of |x_l|^2 / d per layer: Lemma 2 for Pre-LN
LEVEL = (1.40, 1.62)  # of |x_l|^2 / d: Lemma 2 for Post-LN, 3/2 with what finite widths and seeds leave

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
    return Measured(value=farthest(curve.y, *LEVEL), curve=curve)


@lru_cache
def lemma_2_growth(subject: str, seeds: int) -> Measured:
    """(|x_l|^2 / d - 1) / l, the value of the layer that lies farthest from the middle of the bounds."""
    curve = over_seeds(*_square_norms(subject, seeds))
    growth = [(y - 1) / layer for layer, y in zip(curve.x, curve.y, strict=True)]
    return Measured(value=farthest(growth, *GROWTH), curve=curve)


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
