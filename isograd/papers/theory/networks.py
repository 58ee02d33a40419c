"""The setting with real attention: isograd's own models at initialization, and one batch of random tokens.

A subject is a placement, or a placement with changes, each after a comma: "deepnorm, plain init" has DeepNorm's skips
and the weights of a plain Xavier init; "admin, skip 1" has not been profiled; "post-ln, xavier-normal" is drawn by that
scheme in place of the model's own; "pre-ln, outputs as l^-0.5" has W_O and W_2 of layer l scaled by l^-0.5, or the norm
after the branch where there is one; "post-ln, cross x 0.5" has W_O of the cross-attention halved. Beside "x NUMBER"
and "as l^NUMBER" there are "noise NUMBER", normal noise of that std, and "at NUMBER"; `PARTS` names what they change.
"hyper-connections, n = 8" has eight copies.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isograd.diagnose.quantities import terms, variance
from isograd.models import IsogradConfig, IsogradForCausalLM, IsogradForSeq2SeqLM
from isograd.placement import Placement, get, sites
from isograd.placement.stored import stored
from isograd.placement.streams import Hyper
from isograd.transformer.init import SCHEMES
from isograd.transformer.parameters import Coefficient, Linear
from isograd.transformer.streams import Ends
from isograd.transformer.streams.copies import HyperConnection, ProjectedConnection
from isograd.transformer.streams.inputs import AffineConnection
from isograd.transformer.sublayer import ScaledAdd, Sublayer

WORDS = 1000
_COPIES = re.compile(r"n = (\d+)")


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
            | _with_copies(subject, shape["num_hidden_layers"])
        )
    )


def _with_copies(subject: str, layers: int) -> dict[str, Any]:
    """The formula with another number of copies, where the subject names one."""
    found = [match for change in changes_of(subject) if (match := _COPIES.fullmatch(change))]
    entry = get(placement_of(subject))
    if not found or not isinstance(entry.stream, Hyper):
        return {}
    entry = replace(entry, stream=replace(entry.stream, copies=int(found[0][1])))
    return {"formula": {"decoder": stored(placement_of(subject), entry, layers, "decoder", 0)}}


def changes_of(subject: str) -> list[str]:
    return subject.split(", ")[1:]


@torch.no_grad()
def changed(model: Any, subject: str) -> Any:
    """The model with the changes of a subject made to its weights and constants."""
    for change in changes_of(subject):
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
        elif (found := edit(change)) is not None and found[0] in PARTS:
            _edit(model, *found)
        elif change not in SCHEMES and not _COPIES.fullmatch(change):
            raise ValueError(
                f"{change!r} is nothing to change; expected 'plain init', 'skip 1', 'n = NUMBER', an init scheme, or"
                f" one of {', '.join(PARTS)} with 'x NUMBER', 'as l^NUMBER', 'noise NUMBER' or 'at NUMBER'"
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


Edit = Callable[[Any, int], Any]  # (value, layer) -> value


def edit(change: str) -> tuple[str, Edit] | None:
    """What is changed, and how: a scaling, normal noise of that std on each entry, or all entries at a number.

    >>> name, by = edit("queries at 0.5")
    >>> name, by(torch.zeros(2), 1), edit("skip 1")
    ('queries', tensor([0.5000, 0.5000]), None)
    """
    name, factor = scaling(change)
    if factor is not None:
        return name, lambda value, layer: value * factor(layer)
    for word, by in (
        (" noise ", lambda value, layer, number: value + torch.randn_like(value) * number),
        (" at ", lambda value, layer, number: torch.full_like(value, number)),
    ):
        name, found, number = change.partition(word)
        if found:
            return name, partial(by, number=float(number))
    return None


def _edit(model: Any, name: str, by: Edit) -> None:
    for module in model.modules():
        if isinstance(module, Ends if name == "sum" else Sublayer):
            for owner, attribute in PARTS[name](module):
                value = getattr(owner, attribute)
                new = by(value, module.site.layer if isinstance(module, Sublayer) else 1)
                if isinstance(value, Tensor):
                    value.copy_(new)
                else:
                    setattr(owner, attribute, max(round(new), 1) if isinstance(value, int) else new)


Places = Sequence[tuple[Any, str]]  # owners, and which weight or constant of theirs


def _outputs(sublayer: Sublayer) -> Places:
    """The matrix that writes on the stream, or the norm after it."""
    return [(sublayer.branch.out if isinstance(sublayer.out, nn.Identity) else sublayer.out, "weight")]


def _of(kind: str, places: Callable[[Any], Places]) -> Callable[[Any], Places]:
    """Those of one kind of sublayer."""
    return lambda sublayer: places(sublayer) if sublayer.site.kind == kind else ()


def _scales(sublayer: Any) -> Places:
    """The learned coefficient on the branch."""
    stream = getattr(sublayer, "stream", None)
    return [((stream if isinstance(stream, AffineConnection) else sublayer.combine).scale, "weight")]


def _mix(sublayer: Any) -> Places:
    """Of hyper-connections: the numbers that the mix of the copies is made of."""
    return [(_Mix(sublayer.stream), "entries")]


class _Mix:
    """The mix's entries in the parameter that holds all three maps."""

    def __init__(self, stream: HyperConnection | ProjectedConnection) -> None:
        n = stream.copies
        self.entries = stream.alpha[:, 1:] if isinstance(stream, HyperConnection) else stream.base[2 * n :]


PARTS: dict[str, Callable[[Any], Places]] = {
    "outputs": _outputs,
    "W_1": _of("ffn", lambda sublayer: [(sublayer.branch.into, "weight")]),
    "W_2": _of("ffn", _outputs),
    "cross": _of("cross", _outputs),
    "W_Q": _of("attn", lambda sublayer: [(sublayer.branch.query, "weight")]),
    "gates": _of("attn", lambda sublayer: [(sublayer.branch.gate, "weight")]),
    "eps": lambda sublayer: [(sublayer.out, "eps")],
    "lengths": lambda sublayer: [(sublayer.post, "scale")],
    "scales": _scales,
    "writes": lambda sublayer: [(sublayer.stream, "beta")],
    "mix": _mix,
    "sinkhorn": lambda sublayer: [(sublayer.stream, "iterations")],
    "queries": lambda sublayer: [(sublayer.stream, "query")] if sublayer.site.slot > 1 else (),
    "skips": lambda sublayer: [(sublayer.combine, "skip")],
    "sum": lambda ends: [(ends.norm, "weight")],  # of two streams: what is added at the end
    "P": lambda sublayer: [(sublayer.post, "weight")],
    "Q": lambda sublayer: [(sublayer.stream.norm, "weight")],
}
