"""The setting with real attention: isograd's own models at their start, and one batch of random tokens.

A subject is a placement, or a placement with one thing undone: "deepnorm, plain start" has DeepNorm's skips and the
weights of a plain Xavier start; "admin, skip 1" has not been profiled; "post-ln, xavier-normal" starts by that scheme
in place of the model's own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from isograd.diagnose.quantities import terms, variance
from isograd.models import IsogradConfig, IsogradForCausalLM, IsogradForSeq2SeqLM
from isograd.placement import Placement, get, sites
from isograd.transformer.parameters import Coefficient, Linear
from isograd.transformer.start import STARTS
from isograd.transformer.sublayer import ScaledAdd, Sublayer

WORDS = 1000


def decoder(subject: str, layers: int, dtype: torch.dtype = torch.float32, **shape: Any) -> IsogradForCausalLM:
    """A decoder-only model of that many layers, started by Xavier's normal; ADMIN's skips are still to be profiled."""
    shape = {"start": "xavier-normal"} | shape
    model = IsogradForCausalLM(_config(subject, num_hidden_layers=layers, is_decoder=True, **shape)).to(dtype)
    return _undone(model, _change(subject))


def encoder_decoder(subject: str, layers: int, **shape: Any) -> IsogradForSeq2SeqLM:
    """As many layers in each tower, started as the placement or the model's default says."""
    model = IsogradForSeq2SeqLM(_config(subject, num_hidden_layers=layers, encoder_layers=layers, **shape))
    return _undone(model, _change(subject))


def placement_of(subject: str) -> str:
    return subject.partition(", ")[0]


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """What is drawn inside comes from this seed; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def tokens(*shape: int) -> Tensor:
    """Random ids."""
    return torch.randint(WORDS, shape)


@torch.no_grad()
def profile_skips(model: IsogradForCausalLM, ids: Tensor, write: bool = True) -> list[float]:
    """ADMIN's skips by its recursion, in one forward pass that sets each before its sum is formed.

        skip_1 = 1,   skip_{i+1} = sqrt( Var[skip_i x_{i-1}] + Var[f_i(x_{i-1})] )

    With `write=False` the model keeps its skips, and the same running value is told of it.
    """
    skips, following = [], 1.0

    def before_the_sum(combine: nn.Module, args: tuple[Tensor, Tensor]) -> None:
        nonlocal following
        skips.append(following)
        if write:
            combine.skip.weight.fill_(following)  # type: ignore[union-attr, operator]
        following = float(sum(variance(term) for term in terms(combine, *args))) ** 0.5

    sums = [module.combine for module in model.modules() if isinstance(module, Sublayer)]
    handles = [combine.register_forward_pre_hook(before_the_sum) for combine in sums]
    model.model(ids)
    for handle in handles:
        handle.remove()
    return skips


def prepared(subject: str, layers: int, ids: Tensor, **shape: Any) -> IsogradForCausalLM:
    """A decoder, ADMIN's skips profiled on the batch."""
    model = decoder(subject, layers, **shape)
    if model.config.entry().calibrate and not _change(subject):
        profile_skips(model, ids)
    return model


def of_depths(
    subject: str, depths: Sequence[int], ids: Tensor, **shape: Any
) -> list[tuple[IsogradForCausalLM, Sequence[int]]]:
    """Models, each with the depths that it stands for when it is cut.

    Where no number of the placement asks how deep the stack is, a shallow stack is the beginning of a deep one, and
    one model serves all depths; else each depth has a model of its own.
    """
    if _same_at_any_depth(get(placement_of(subject)), max(depths)):
        return [(prepared(subject, max(depths), ids, **shape), depths)]
    return [(prepared(subject, layers, ids, **shape), (layers,)) for layers in depths]


@torch.no_grad()
def streams(model: IsogradForCausalLM, ids: Tensor, depths: Sequence[int]) -> list[Tensor]:
    """What runs through the stack after so many layers, before any final norm."""
    found: list[Tensor] = []
    handles = [
        model.model.layers[depth - 1].register_forward_hook(lambda _, args, out: found.append(out)) for depth in depths
    ]
    model.model(ids)
    for handle in handles:
        handle.remove()
    return found


@contextmanager
def cut(model: IsogradForCausalLM, layers: int) -> Iterator[IsogradForCausalLM]:
    """The model with its first layers only, the final norm and the head behind them."""
    whole = model.model.layers
    model.model.layers = whole[:layers]
    try:
        yield model
    finally:
        model.model.layers = whole


def _same_at_any_depth(placement: Placement, layers: int) -> bool:
    """Whether every number of a stack is that of the same site in a deeper one."""
    pairs = zip(sites(layers), sites(2 * layers), strict=False)
    return all(placement.at(a) == placement.at(b) and placement.start.at(a) == placement.start.at(b) for a, b in pairs)


def _config(subject: str, **shape: Any) -> IsogradConfig:
    width = shape.setdefault("hidden_size", 128)
    scheme = {"start": _change(subject)} if _change(subject) in STARTS else {}
    return IsogradConfig(
        **(
            {
                "placement": placement_of(subject),
                "vocab_size": WORDS,
                "num_attention_heads": 4,
                "intermediate_size": 4 * width,
                "hidden_act": "relu",
                "max_position_embeddings": 64,
                "position_embedding_type": "sinusoidal",
                "scale_embedding": True,
                "tie_word_embeddings": False,
            }
            | shape
            | scheme
        )
    )


def _change(subject: str) -> str:
    return subject.partition(", ")[2]


@torch.no_grad()
def _undone(model: Any, change: str) -> Any:
    if change == "plain start":
        for module in model.modules():
            if isinstance(module, Linear):
                module.weight /= module.gain
    elif change == "skip 1":
        for module in model.modules():
            if isinstance(module, ScaledAdd):
                module.skip = 1.0
            elif isinstance(module, Coefficient):
                module.weight.fill_(1.0)
    elif change and change not in STARTS:
        raise ValueError(f"{change!r} is nothing to change; expected 'plain start', 'skip 1' or a scheme of starts")
    return model
