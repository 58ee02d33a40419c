"""Two numbers that grow with the sublayers of a stack: ADMIN's skip, and how far a small change carries."""

from collections.abc import Sequence
from functools import lru_cache

import torch

from isograd.models import IsogradForCausalLM
from isograd.theory.claim import Measured
from isograd.theory.fit import exponent, over_seeds
from isograd.theory.networks import decoder, drawn_from, of_depths, profile_skips, streams, tokens

DEPTHS = (3, 6, 12, 18, 24, 36, 48)
STEP = 1e-5  # of the perturbation
FROM = 20  # the sublayer from which ADMIN's exponent is fitted: the first ones still show the embedding's variance


@lru_cache
def skip_exponent(subject: str, seeds: int, layers: int = 48) -> Measured:
    """p of skip_i ~ i^p from sublayer 20 on, by ADMIN's profile."""
    curves = [_skips(subject, layers, seed) for seed in range(seeds)]
    curve = over_seeds(range(1, 2 * layers + 1), curves)
    return Measured(value=exponent(curve.x[FROM - 1 :], curve.y[FROM - 1 :]), curve=curve)


@lru_cache
def amplification(subject: str, seeds: int, depths: tuple[int, ...] = DEPTHS) -> Measured:
    """p of mean |F(x, W + e sign(z)) - F(x, W)|^2 / e^2 ~ L^p, z normal, e = 1e-5, all matrices of the layers moved."""
    curve = over_seeds(depths, [output_changes(subject, depths, seed) for seed in range(seeds)])
    return Measured(value=exponent(curve.x, curve.y), curve=curve)


@torch.no_grad()
def output_changes(subject: str, depths: Sequence[int], seed: int, step: float = STEP) -> list[float]:
    """At each depth the mean square of the change of the last hidden state, over step^2, in float64."""
    found = []
    with drawn_from(seed):
        ids = tokens(4, 32)
        for model, served in of_depths(subject, depths, ids, hidden_size=64, dtype=torch.float64, start=None):
            before = streams(model, ids, served)
            _move(model, step)
            after = streams(model, ids, served)
            found += [model.model.norm(y) - model.model.norm(x) for x, y in zip(before, after, strict=True)]
    return [float(change.square().mean()) / step**2 for change in found]


def _move(model: IsogradForCausalLM, step: float) -> None:
    """Every matrix of the layers by step * sign(z), z normal."""
    for parameter in model.model.layers.parameters():
        if parameter.ndim == 2:
            parameter.add_(torch.randn_like(parameter).sign(), alpha=step)


def _skips(subject: str, layers: int, seed: int) -> list[float]:
    with drawn_from(seed):
        ids = tokens(8, 32)
        return profile_skips(decoder(subject, layers), ids, write=", " not in subject)
