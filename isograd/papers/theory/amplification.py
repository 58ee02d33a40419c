"""Two numbers that grow with the sublayers of a stack: ADMIN's skip, and the sensitivity to weight perturbations."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import fmean

import torch
from torch import Tensor
from torch.func import functional_call

from isograd.lab.statistics import exponent
from isograd.models import IsogradForCausalLM
from isograd.papers.theory.claim import Curve, Measured
from isograd.papers.theory.curves import over_interval, over_seeds, r_squared
from isograd.papers.theory.networks import (
    changes_of,
    cut,
    decoder,
    drawn_from,
    of_depths,
    profile_skips,
    shares,
    streams,
    tokens,
)

DEPTHS = (3, 6, 12, 18, 24, 36, 48)  # layers
SUBLAYERS = tuple(2 * layers for layers in DEPTHS)
STEP = 1e-5  # of the perturbation
FROM = 20  # the sublayer from which ADMIN's exponent is fitted: the first ones still show the embedding's variance


@lru_cache
def skip_exponent(subject: str, seeds: int, layers: int = 48) -> Measured:
    """p of skip_i ~ i^p from sublayer 20 on, by ADMIN's profile."""
    curves = [_skips(subject, layers, seed) for seed in range(seeds)]
    curve = over_seeds(range(1, 2 * layers + 1), curves)
    return Measured(value=exponent(curve.x[FROM - 1 :], curve.y[FROM - 1 :]), curve=curve)


@lru_cache
def amplification(subject: str, seeds: int) -> Measured:
    """p of mean |F(x, W + e sign(z)) - F(x, W)|^2 / e^2 ~ L^p, z normal, e = 1e-5, all matrices of the layers moved."""
    found = _changes(subject, seeds)
    return over_interval([exponent(DEPTHS, changes) for changes, _ in found], _curve(DEPTHS, found))


@lru_cache
def dependency(subject: str, seeds: int) -> Measured:
    """q of the same change ~ (sum_i beta_ii^2)^q, over depths; beta_ii^2: a branch's share of its sum's variance."""
    found = _changes(subject, seeds)
    x = [fmean(of) for of in zip(*(shares for _, shares in found), strict=True)]
    return over_interval([exponent(shares, changes) for changes, shares in found], _curve(x, found))


def explained(law: Callable[[float], float]) -> Callable[[str, int], Measured]:
    """R^2 of the least-squares fit a + b law(N) to the mean change, N = 2 L sublayers."""

    @lru_cache
    def measure(subject: str, seeds: int) -> Measured:
        curve = _curve(SUBLAYERS, _changes(subject, seeds))
        return Measured(value=r_squared([law(n) for n in curve.x], curve.y), curve=curve)

    return measure


@lru_cache
def log_over_root(subject: str, seeds: int) -> Measured:
    """By how much R^2 of a + b ln N exceeds that of a + b sqrt(N), seed by seed."""
    found = _changes(subject, seeds)
    logs, roots = (list(map(law, SUBLAYERS)) for law in (math.log, math.sqrt))
    differences = [r_squared(logs, changes) - r_squared(roots, changes) for changes, _ in found]
    return over_interval(differences, _curve(SUBLAYERS, found))


def gradient_changes(subject: str, depths: Sequence[int], seed: int, step: float = STEP / 10) -> list[float]:
    """At each depth the same change where every matrix moves by step * sign(dL/dW), L the loss of random tokens."""
    changes = []
    with drawn_from(seed):
        ids = tokens(4, 32)
        for model, served in of_depths(subject, depths, ids, hidden_size=64, dtype=torch.float64, init=None):
            changes += [_along_the_gradient(model, layers, ids, step) for layers in served]
    return changes


def _along_the_gradient(model: IsogradForCausalLM, layers: int, ids: Tensor, step: float) -> float:
    with cut(model, layers) as shallow:
        stack = shallow.model
        matrices = {name: p for name, p in stack.named_parameters() if p.ndim == 2 and name.startswith("layers.")}
        gradients = torch.autograd.grad(shallow(input_ids=ids, labels=ids).loss, list(matrices.values()))
        with torch.no_grad():
            moved = {n: p + step * g.sign() for (n, p), g in zip(matrices.items(), gradients, strict=True)}
            before = stack(ids).last_hidden_state
            after = functional_call(stack, moved, (ids,)).last_hidden_state
    return float((after - before).square().mean()) / step**2


def output_changes(subject: str, depths: Sequence[int], seed: int, step: float = STEP) -> list[float]:
    """At each depth the mean square of the change of the last hidden state, over step^2, in float64."""
    return _probed(subject, depths, seed, step)[0]


def dependencies(subject: str, depths: Sequence[int], seed: int) -> list[float]:
    """At each depth sum_i beta_ii^2 over its sublayers, beta_ii^2 = Var[branch] / (Var[branch] + Var[shortcut])."""
    return _probed(subject, depths, seed, STEP)[1]


@lru_cache(maxsize=64)
def _changes(subject: str, seeds: int) -> list[tuple[list[float], list[float]]]:
    """Of each seed the changes and the sums of beta_ii^2."""
    return [_probed(subject, DEPTHS, seed, STEP) for seed in range(seeds)]


def _curve(x: Sequence[float], found: Sequence[tuple[list[float], list[float]]]) -> Curve:
    return over_seeds(x, [changes for changes, _ in found])


@torch.no_grad()
def _probed(subject: str, depths: Sequence[int], seed: int, step: float) -> tuple[list[float], list[float]]:
    changes, sums = [], []
    with drawn_from(seed):
        ids = tokens(4, 32)
        for model, served in of_depths(subject, depths, ids, hidden_size=64, dtype=torch.float64, init=None):
            with shares(model) as found:
                before = streams(model, ids, served)
            sums += [sum(found[: 2 * layers]) for layers in served]
            _move(model, step)
            after = streams(model, ids, served)
            changes += [model.model.norm(y) - model.model.norm(x) for x, y in zip(before, after, strict=True)]
    return [float(change.square().mean()) / step**2 for change in changes], sums


def _move(model: IsogradForCausalLM, step: float) -> None:
    """Every matrix of the layers by step * sign(z), z normal."""
    for parameter in model.model.layers.parameters():
        if parameter.ndim == 2:
            parameter.add_(torch.randn_like(parameter).sign(), alpha=step)


def _skips(subject: str, layers: int, seed: int) -> list[float]:
    with drawn_from(seed):
        ids = tokens(8, 32)
        return profile_skips(decoder(subject, layers), ids, write="skip 1" not in changes_of(subject))
