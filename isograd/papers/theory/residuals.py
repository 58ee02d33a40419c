"""What the residual connections of 2020 to 2026 promise, measured at initialization.

Most of these promises are equations (copies that are equal, rows that sum to 1, vectors of length 1): measured is the
largest difference over everything that runs through a small model in float64.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isograd.lab.statistics import exponent
from isograd.models import IsogradForCausalLM
from isograd.papers.theory.amplification import dependencies, output_changes
from isograd.papers.theory.claim import Measured
from isograd.papers.theory.curves import farthest, geometric_mean, over_interval, over_seeds
from isograd.papers.theory.gradients import of_layers, of_stacks
from isograd.papers.theory.networks import cut, decoder, drawn_from, placement_of, tokens
from isograd.placement import Norm
from isograd.transformer.attention import Attention
from isograd.transformer.norms import make_norm
from isograd.transformer.sublayer import ScaledAdd, Sublayer

SMALL: dict[str, Any] = {"hidden_size": 64, "dtype": torch.float64, "init": None}
THRESHOLD = 100.0  # of QK-clip
COPIES = (1, 2, 4, 8)

Number = Callable[[IsogradForCausalLM, Tensor], list[float]]  # of a model and a batch: one per layer or sublayer
Measure = Callable[[str, int], Measured]


def worst(layers: int, of: Number, low: float = 0.0, high: float = 0.0, **shape: Any) -> Measure:
    """The number, of whichever layer and seed, that lies farthest from the middle of [low, high]."""

    @lru_cache
    def measure(subject: str, seeds: int) -> Measured:
        found = [_of_model(subject, layers, seed, of, **shape) for seed in range(seeds)]
        every = [value for one in found for value in one]
        return Measured(value=farthest(every, low, high), curve=over_seeds(range(1, len(found[0]) + 1), found))

    return measure


def mean(layers: int, of: Number, **shape: Any) -> Measure:
    """The mean over layers, and its interval over seeds."""

    @lru_cache
    def measure(subject: str, seeds: int) -> Measured:
        found = [_of_model(subject, layers, seed, of, **shape) for seed in range(seeds)]
        return over_interval(list(map(fmean, found)), over_seeds(range(1, len(found[0]) + 1), found))

    return measure


def worst_mean(layers: int, of: Number, low: float, high: float, **shape: Any) -> Measure:
    """The mean over seeds of the layer whose mean lies farthest from the middle of [low, high]."""

    @lru_cache
    def measure(subject: str, seeds: int) -> Measured:
        found = [_of_model(subject, layers, seed, of, **shape) for seed in range(seeds)]
        curve = over_seeds(range(1, len(found[0]) + 1), found)
        return Measured(value=farthest(curve.y, low, high), curve=curve)

    return measure


def _of_model(subject: str, layers: int, seed: int, of: Number, **shape: Any) -> list[float]:
    with drawn_from(seed), torch.no_grad():
        ids = tokens(4, 32)
        return of(decoder(subject, layers, **(SMALL | shape)), ids)


# What runs through a stack.


@torch.no_grad()
def states(model: IsogradForCausalLM, ids: Tensor) -> list[Tensor]:
    """What the first sublayer is given, and what each one leaves; of a state of several tensors the first."""
    found: list[Tensor] = []
    sublayers = _sublayers(model)
    handles = [sublayers[0].register_forward_pre_hook(lambda _, args: found.append(_first(args[0])))]
    handles += [one.register_forward_hook(lambda _, args, out: found.append(_first(out))) for one in sublayers]
    model.model(ids)
    for handle in handles:
        handle.remove()
    return found


def _first(state: Any) -> Tensor:
    return state if isinstance(state, Tensor) else state[0]


def _levels(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    return [float(x.square().mean()) for x in states(model, ids)]


def growth(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """(E x_n^2 - E x_0^2) / n after each sublayer n."""
    begin, *after = _levels(model, ids)
    return [(level - begin) / n for n, level in enumerate(after, 1)]


def drift(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """E x_n^2 over E x_0^2 after each sublayer n, less 1."""
    begin, *after = _levels(model, ids)
    return [level / begin - 1 for level in after]


def lengths(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """||h| - 1| of the vector that is farthest from length 1."""
    return [float((x.norm(dim=-1) - 1).abs().max()) for x in states(model, ids)]


def angles(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """The mean angle between a vector before and after a sublayer, in degrees."""
    cosines = [F.cosine_similarity(a, b, dim=-1) for a, b in pairwise(states(model, ids))]
    return [float(torch.rad2deg(torch.acos(cosine)).mean()) for cosine in cosines]


def turned(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """1 - cos(x_n, x_0) after each sublayer n, of the position that has turned farthest."""
    begin, *after = states(model, ids)
    return [1 - float(F.cosine_similarity(x, begin, dim=-1).min()) for x in after]


def level_exponent(layers: int) -> Measure:
    """p of E x_l^2 ~ l^p after layer l; of several copies the mean over all."""

    @lru_cache
    def measure(subject: str, seeds: int) -> Measured:
        found = [_of_model(subject, layers, seed, lambda *given: _levels(*given)[2::2]) for seed in range(seeds)]
        curve = over_seeds(range(1, layers + 1), found)
        return Measured(value=exponent(curve.x, curve.y), curve=curve)

    return measure


# What a sublayer reads, computes and mixes.


@torch.no_grad()
def logits(model: IsogradForCausalLM, ids: Tensor) -> list[tuple[Attention, Tensor]]:
    """q k^T / sqrt(d_head) of each attention (batch, heads, time, time), of what its norms on q and k gave."""
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    norms = [norm for one in attentions for norm in (one.query_norm, one.key_norm)]
    written: dict[nn.Module, Tensor] = {}
    handles = [norm.register_forward_hook(lambda norm, args, out: written.update({norm: out})) for norm in norms]
    model.model(ids)
    for handle in handles:
        handle.remove()
    return [(one, _scores(one, written[one.query_norm], written[one.key_norm])) for one in attentions]


def _scores(attention: Attention, query: Tensor, key: Tensor) -> Tensor:
    query, key = (x.reshape(*x.shape[:2], -1, attention.head_size).transpose(1, 2) for x in (query, key))
    return query @ key.transpose(2, 3) * attention.scaling


def logits_over_bound(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """The largest |logit| of each layer over sqrt(d_head) max|g_q| max|g_k|, g the norms' weights and constants."""
    found = []
    for attention, scores in logits(model, ids):
        bound = attention.head_size**0.5 * _gain(attention.query_norm) * _gain(attention.key_norm)
        found.append(float(scores.abs().max()) / bound)
    return found


def _gain(norm: Any) -> float:
    weight = getattr(norm, "weight", None)
    return (1.0 if weight is None else float(weight.abs().max())) * getattr(norm, "scale", 1.0)


def gate_shares(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """The variance of each attention's output over that without its gate."""
    found: list[float] = []

    def beside(attention: Any, args: Any, kwargs: Any, out: Any) -> None:
        gate, attention.gate = attention.gate, None
        found.append(float(out[0].var() / attention.forward(*args, **kwargs)[0].var()))
        attention.gate = gate

    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_hook(beside, with_kwargs=True)
    model.model(ids)
    return found


def unequal_sources(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """What a sublayer reads, less the mean of its sources (of their norms where these are summed), over that mean."""
    found: list[float] = []

    def beside(sublayer: Any, args: Any) -> None:
        stream, sources = sublayer.stream, args[0] if isinstance(args[0], tuple) else (args[0],)
        mean = torch.stack(sources)
        if stream.norm_values and stream.query is not None:
            mean = F.rms_norm(mean, mean.shape[-1:], eps=stream.eps)
        mean = mean.mean(0)
        found.append(float((stream.read(args[0])[0] - mean).abs().max() / mean.abs().max()))

    for module in model.modules():
        if isinstance(module, Sublayer) and not module.stream.plain:
            module.register_forward_pre_hook(beside)
    model.model(ids)
    return found


def mixes(model: IsogradForCausalLM) -> list[Tensor]:
    """C^T of each connection of hyper-connections: what it makes of copies that are unit vectors."""
    found = []
    for module in model.modules():
        if isinstance(module, Sublayer) and not module.stream.plain:
            stream: Any = module.stream
            unit = torch.eye(stream.copies, model.config.hidden_size, dtype=torch.float64)[None, None]
            _, (mixed, _) = stream.read(unit)
            found.append(mixed[0, 0, :, : stream.copies])
    return found


def _sums(matrix: Tensor) -> float:
    """The sum of a row or a column that lies farthest from 1."""
    return farthest([*matrix.sum(0).tolist(), *matrix.sum(1).tolist()], 1, 1)


def sums_of_mixes(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """Of each connection's mix the sum of a row or column that is farthest from 1."""
    return [_sums(mix) for mix in mixes(model)]


def sums_of_product(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """The same of the product of all mixes up to each connection."""
    whole, found = None, []
    for mix in mixes(model):
        whole = mix if whole is None else mix @ whole
        found.append(_sums(whole))
    return found


# One model beside another.


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference over the other's root mean square."""
    return float((one - other).abs().max() / other.square().mean().sqrt())


def outputs_enlarged(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """The largest change of a logit, over their root mean square, where W_O and W_2 are multiplied by 100."""
    before = model(ids).logits
    for sublayer in _sublayers(model):
        sublayer.branch.out.weight.mul_(100.0)
    return [_apart(model(ids).logits, before)]


def deeper(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """The largest difference of a logit between the stack and its first half, over their root mean square."""
    with cut(model, len(model.model.layers) // 2) as half:
        logits = half(ids).logits
    return [_apart(model(ids).logits, logits)]


def as_pre_ln(copies: Sequence[int] = ()) -> Measure:
    """The largest difference of a logit to Pre-LN with the same weights, over their root mean square.

    Args:
        copies: numbers of copies of the stream to measure it for; none: as the subject has it.
    """

    @lru_cache
    def measure(subject: str, seeds: int) -> Measured:
        subjects = [f"{subject}, n = {n}" for n in copies] or [subject]
        found = [[_beside_pre_ln(one, seed) for one in subjects] for seed in range(seeds)]
        return Measured(value=max(map(max, found)), curve=over_seeds(copies or (4,), found))

    return measure


@torch.no_grad()
def _beside_pre_ln(subject: str, seed: int) -> float:
    with drawn_from(seed):
        ids, model, twin = tokens(4, 32), decoder(subject, 6, **SMALL), decoder("pre-ln", 6, **SMALL)
    twin.load_state_dict({name: p for name, p in model.state_dict().items() if ".stream." not in name})
    return _apart(model(ids).logits, twin(ids).logits)


@lru_cache
def one_of_two_streams(subject: str, seeds: int) -> Measured:
    """The largest difference of SiameseNorm, without the norm on what branches read, to Pre-LN where P's norms are at
    some number (0, as claimed), or to Post-LN with SiameseNorm's factor where Q's are; over the root mean square.
    """
    found = [[_siamese(subject, seed)] for seed in range(seeds)]
    return Measured(value=max(map(max, found)), curve=over_seeds((1,), found))


@torch.no_grad()
def _siamese(subject: str, seed: int) -> float:
    name, _, number = subject.partition(", ")[2].partition(" at ")
    with drawn_from(seed):
        ids, model = tokens(4, 32), decoder(subject, 6, **SMALL)
        twin = decoder({"P": "pre-ln", "Q": "post-ln"}[name], 6, **SMALL)
    ends: Any = model.model.stream
    (ends.norm_post if name == "P" else ends.norm).weight.fill_(float(number))
    weights = {at: p for at, p in model.state_dict().items() if ".stream." not in at and ".norm." not in at}
    for one, other in zip(_sublayers(model), _sublayers(twin), strict=True):
        one.pre = nn.Identity()
        if name == "Q":
            other.combine = ScaledAdd(1.0, one.combine.scale)
    if name == "Q":
        twin.model.first = make_norm(Norm(), model.config.hidden_size, model.config).double()
    model.model.norm = nn.Identity()
    twin.load_state_dict({at: p for at, p in weights.items() if ".pre." not in at and ".post." not in at}, strict=False)
    return _apart(model(ids).logits, twin(ids).logits)


def _sublayers(model: IsogradForCausalLM) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, Sublayer)]


# QK-clip, as it acts after a step.


def clipped(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """The largest logit of each layer over the threshold, on the batch that QK-clip has just acted on."""
    model.train()(input_ids=ids)
    model.constrain()
    return [float(_causal(scores).max()) / THRESHOLD for _, scores in logits(model, ids)]


def _causal(scores: Tensor) -> Tensor:
    return scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)


def touched(model: IsogradForCausalLM, ids: Tensor) -> list[float]:
    """The largest change of a weight of each layer by QK-clip."""
    before = {name: p.clone() for name, p in model.named_parameters()}
    model.train()(input_ids=ids)
    model.constrain()
    moved = {name: float((p - before[name]).abs().max()) for name, p in model.named_parameters()}
    layers = range(len(model.model.layers))
    return [max(by for name, by in moved.items() if f".layers.{layer}." in name) for layer in layers]


# Sensitivity and gradients.


@lru_cache
def layerscale_square(subject: str, seeds: int, layers: int = 12) -> Measured:
    """The output's change under a small change of all weights, LayerScale at 1e-4, over that of the subject, whose
    scales are larger by a factor; times that factor squared.
    """
    factor = float(subject.partition("scales x ")[2].partition(",")[0])
    found = []
    for seed in range(seeds):
        small, large = (output_changes(one, (layers,), seed)[0] for one in (placement_of(subject), subject))
        found.append(small / large * factor**2)
    return Measured(value=geometric_mean(found), curve=over_seeds((factor,), [[one] for one in found]))


@lru_cache
def shares_of_branches(subject: str, seeds: int, layers: int = 48) -> Measured:
    """sum_i beta_ii^2 over the sublayers, beta_ii^2 = Var[branch] / (Var[branch] + Var[skip x])."""
    found = [dependencies(subject, (layers,), seed) for seed in range(seeds)]
    return over_interval([one for (one,) in found], over_seeds((layers,), found))


@lru_cache
def first_of_one_stack(subject: str, seeds: int) -> Measured:
    """|dL/dW_2| of the first layer over that of Pre-LN, at the depth where it is least; the mean over seeds."""
    return _first_over_pre_ln(subject, seeds, (6, 12, 24), lambda *of: of_layers(*of)[0])


@lru_cache
def first_of_decoder(subject: str, seeds: int) -> Measured:
    """The same of a decoder that reads an encoder as deep, 24 layers."""
    return _first_over_pre_ln(subject, seeds, (24,), lambda *of: of_stacks(*of)["decoder"][0])


def _first_over_pre_ln(
    subject: str, seeds: int, depths: tuple[int, ...], first: Callable[[str, int, int], float]
) -> Measured:
    found = [[first(subject, n, seed) / first("pre-ln", n, seed) for n in depths] for seed in range(seeds)]
    return over_interval(list(map(min, found)), over_seeds(depths, found))
