"""Gradients of W_2 and the stream at initialization: in the theory's setting, and with real attention."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from isograd.lab.statistics import exponent
from isograd.models import IsogradForCausalLM
from isograd.papers.theory.claim import Curve, Measured
from isograd.papers.theory.curves import geometric_mean, over_seeds
from isograd.papers.theory.lemmas import profile
from isograd.papers.theory.networks import cut, drawn_from, encoder_decoder, of_depths, prepared, tokens

DEPTHS = (2, 4, 6, 8, 12, 16, 24, 32, 48)
DEPTHS_OF_BOTH = (6, 12, 24)  # layers of each stack of the encoder-decoders


@lru_cache
def theory_exponent(subject: str, seeds: int, depths: tuple[int, ...] = DEPTHS) -> Measured:
    """p of |dL/dW_2 of the last layer| ~ L^p in the setting of the theory."""
    gradients = [profile(subject, seed, layers=depths[-1]).gradients for seed in range(seeds)]
    return _exponent(over_seeds(depths, [[found[depth - 1] for depth in depths] for found in gradients]))


@lru_cache
def attention_exponent(subject: str, seeds: int, depths: tuple[int, ...] = DEPTHS) -> Measured:
    """The same with real attention, one sequence of 32 tokens."""
    return _exponent(over_seeds(depths, [_last_gradients(subject, depths, seed) for seed in range(seeds)]))


@lru_cache
def stream_exponent(subject: str, seeds: int, layers: int = 48) -> Measured:
    """p of mean s_l^2 ~ l^p, s_l the last sum of layer l, before any norm on it, with real attention."""
    x = range(1, layers + 1)
    return _exponent(over_seeds(x, [_square_means(subject, layers, seed) for seed in range(seeds)]))


def first_over_last(layers: int) -> Callable[[str, int], Measured]:
    """First over last layer's |dL/dW_2|, the geometric mean over seeds; a curve over the layers."""

    @lru_cache
    def measure(subject: str, seeds: int) -> Measured:
        found = [of_layers(subject, layers, seed) for seed in range(seeds)]
        ratio = geometric_mean([norms[0] / norms[-1] for norms in found])
        curves = [[norm / norms[-1] for norm in norms] for norms in found]
        return Measured(value=ratio, curve=over_seeds(range(1, layers + 1), curves))

    return measure


def per_layer(stack: str, depths: tuple[int, ...] = DEPTHS_OF_BOTH) -> Callable[[str, int], Measured]:
    """(first / last)^(1 / (L - 1)) of |dL/dW_2| in one stack, going down: geometric mean over depths and seeds.

    The curve is that of the deepest: layers counted from the top, gradients over the last layer's.
    """

    @lru_cache
    def measure(subject: str, seeds: int) -> Measured:
        found = {n: [of_stacks(subject, n, seed)[stack] for seed in range(seeds)] for n in depths}
        factors = [(norms[0] / norms[-1]) ** (1 / (n - 1)) for n in depths for norms in found[n]]
        downwards = [[norm / norms[-1] for norm in reversed(norms)] for norms in found[depths[-1]]]
        return Measured(value=geometric_mean(factors), curve=over_seeds(range(depths[-1]), downwards))

    return measure


@lru_cache(maxsize=256)
def of_stacks(subject: str, layers: int, seed: int, encoder: str | None = None) -> dict[str, list[float]]:
    """|dL/dW_2| of each layer of an encoder-decoder, by stack; `encoder`: its placement, if it is another."""
    own = {"encoder_options": {"placement": encoder}} if encoder else {}
    with drawn_from(seed):
        model = encoder_decoder(subject, layers, hidden_size=256, **own)
        source, target, labels = (tokens(8, 32) for _ in range(3))
        model(input_ids=source, decoder_input_ids=target, labels=labels).loss.backward()
    return {stack: [_norm(m) for m in _second(getattr(model, stack).layers)] for stack in ("encoder", "decoder")}


def _exponent(curve: Curve) -> Measured:
    return Measured(value=exponent(curve.x, curve.y), curve=curve)


def _last_gradients(subject: str, depths: Sequence[int], seed: int) -> list[float]:
    """At each depth. No gradient below the last W_2 is asked for, so the backward pass costs next to nothing."""
    found = []
    with drawn_from(seed):
        ids = tokens(1, 33)
        for model, served in of_depths(subject, depths, ids):
            model.requires_grad_(False)
            found += [_last_gradient(model, layers, ids) for layers in served]
    return found


def _last_gradient(model: IsogradForCausalLM, layers: int, ids: Tensor) -> float:
    with cut(model, layers):
        matrix = _second(model.model.layers)[-1].requires_grad_()
        (gradient,) = torch.autograd.grad(model(input_ids=ids, labels=ids).loss, matrix)
        matrix.requires_grad_(False)
    return float(gradient.norm())


@lru_cache(maxsize=64)
def of_layers(subject: str, layers: int, seed: int) -> list[float]:
    """|dL/dW_2| of each layer of a decoder, with the placement's own init."""
    with drawn_from(seed):
        ids = tokens(8, 33)
        model = prepared(subject, layers, ids, init=None)
        model(input_ids=ids, labels=ids).loss.backward()
    return [_norm(matrix) for matrix in _second(model.model.layers)]


@torch.no_grad()
def _square_means(subject: str, layers: int, seed: int) -> list[float]:
    """Of the last sum of each layer: the stream itself where no norm follows, what the norm takes where one does."""
    found: list[float] = []
    with drawn_from(seed):
        ids = tokens(8, 32)
        model = prepared(subject, layers, ids)
        for layer in model.model.layers:
            sums = layer.get_submodule("ffn.combine")
            sums.register_forward_hook(lambda _, args, out: found.append(float(out.square().mean())))
        model.model(ids)
    return found


def _second(layers: nn.ModuleList) -> Sequence[Tensor]:
    """W_2 of every layer."""
    return [layer.get_parameter("ffn.branch.out.weight") for layer in layers]


def _norm(matrix: Tensor) -> float:
    assert matrix.grad is not None
    return float(matrix.grad.norm())
