"""The setting with real attention: isograd's own models at initialization, and one batch of random tokens.

A subject is a placement, or a placement with changes, each after a comma: "deepnorm, plain init" has DeepNorm's skips
and the weights of a plain Xavier init; "admin, skip 1" has not been profiled; "post-ln, xavier-normal" is drawn by that
scheme in place of the model's own; "pre-ln, outputs as l^-0.5" has W_O and W_2 of layer l scaled by l^-0.5, or the norm
after the branch where there is one; "post-ln, cross x 0.5" has W_O of the cross-attention halved.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isograd.diagnose.quantities import terms, variance
from isograd.models import IsogradConfig, IsogradForCausalLM, IsogradForSeq2SeqLM
from isograd.placement import Placement, get, sites
from isograd.transformer.init import SCHEMES
from isograd.transformer.parameters import Coefficient, Linear
from isograd.transformer.sublayer import ScaledAdd, Sublayer

WORDS = 1000


def decoder(subject: str, layers: int, dtype: torch.dtype = torch.float32, **shape: Any) -> IsogradForCausalLM:
    """A decoder-only model of that many layers, drawn from Xavier's normal; ADMIN's skips are still to be profiled."""
    shape = {"init": "xavier-normal"} | shape
    model = IsogradForCausalLM(_config(subject, num_hidden_layers=layers, is_decoder=True, **shape)).to(dtype)
    return changed(model, subject)


def encoder_decoder(subject: str, layers: int, **shape: Any) -> IsogradForSeq2SeqLM:
    """As many layers in each stack, initialized as the placement or the model's default says."""
    model = IsogradForSeq2SeqLM(_config(subject, num_hidden_layers=layers, encoder_layers=layers, **shape))
    return changed(model, subject)


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

    With `write=False` the model keeps its skips, and the same running value is reported of it.
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
    if model.config.entry().calibrate and "skip 1" not in changes_of(subject):
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


@contextmanager
def shares(model: IsogradForCausalLM) -> Iterator[list[float]]:
    """Of each sum that runs inside Var[branch] / (Var[branch] + Var[shortcut]), ADMIN's beta_ii^2, in their order."""
    found: list[float] = []

    def at_the_sum(combine: nn.Module, args: tuple[Tensor, Tensor]) -> None:
        shortcut, branch = (float(variance(term)) for term in terms(combine, *args))
        found.append(branch / (branch + shortcut))

    sums = [module.combine for module in model.modules() if isinstance(module, Sublayer)]
    handles = [combine.register_forward_pre_hook(at_the_sum) for combine in sums]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


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
    """The model with its first layers only, the final norm and the head after them."""
    whole = model.model.layers
    model.model.layers = whole[:layers]
    try:
        yield model
    finally:
        model.model.layers = whole


def _same_at_any_depth(placement: Placement, layers: int) -> bool:
    """Whether every number of a stack is that of the same site in a deeper one."""
    pairs = zip(sites(layers), sites(2 * layers), strict=False)
    return all(placement.at(a) == placement.at(b) and placement.init.at(a) == placement.init.at(b) for a, b in pairs)


def _config(subject: str, **shape: Any) -> IsogradConfig:
    width = shape.setdefault("hidden_size", 128)
    schemes = [change for change in changes_of(subject) if change in SCHEMES]
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
            | ({"init": schemes[-1]} if schemes else {})
        )
    )


def changes_of(subject: str) -> list[str]:
    return subject.split(", ")[1:]


@torch.no_grad()
def changed(model: Any, subject: str) -> Any:
    """The model with the changes of a subject made to its weights and constants."""
    for change in changes_of(subject):
        name, number = scaling(change)
        if change == "plain init":
            for module in model.modules():
                if isinstance(module, Linear):
                    module.weight /= module.init_gain
        elif change == "skip 1":
            for module in model.modules():
                if isinstance(module, ScaledAdd):
                    module.skip = 1.0
                elif isinstance(module, Coefficient):
                    module.weight.fill_(1.0)
        elif number is not None and name in _MATRICES:
            for module in model.modules():
                if isinstance(module, Sublayer):
                    _scale(module, name, number(module.site.layer))
        elif change not in SCHEMES:
            raise ValueError(
                f"{change!r} is nothing to change; expected 'plain init', 'skip 1', an init scheme, or one of"
                f" {', '.join(_MATRICES)} with 'x NUMBER' or 'as l^NUMBER'"
            )
    return model


def scaling(change: str) -> tuple[str, Callable[[int], float] | None]:
    """What is scaled, and by which factor in layer l = 1, 2, ...; None where the change is no scaling.

    >>> name, factor = scaling("outputs as l^-0.5")
    >>> name, factor(4), scaling("W_2 x 0.5")[1](4), scaling("skip 1")[1]
    ('outputs', 0.5, 0.5, None)
    """
    for word, law in ((" as l^", lambda layer, number: layer**number), (" x ", lambda layer, number: number)):
        name, found, number = change.partition(word)
        if found:
            return name, partial(law, number=float(number))
    return change, None


_MATRICES = ("outputs", "W_1", "W_2", "cross")


def _scale(sublayer: Sublayer, name: str, factor: float) -> None:
    """The matrix that writes on the stream, or the norm after it; with "W_1" the feed-forward's first matrix."""
    kind = sublayer.site.kind
    if name == "outputs" or (name == "W_2" and kind == "ffn") or (name == "cross" and kind == "cross"):
        norm = sublayer.out
        (sublayer.branch.out if isinstance(norm, nn.Identity) else norm).weight.mul_(factor)  # type: ignore[union-attr, operator]
    elif name == "W_1" and kind == "ffn":
        sublayer.branch.into.weight.mul_(factor)  # type: ignore[union-attr, operator]
