"""Coefficients into plain weights: the same function without them, exact but for rounding.

What a sublayer reads is x, what it writes x' = post(skip * x + gain * out(f(pre(x)))). From the last sublayer to the
first, each one is asked to write w * x' in place of x' (w = 1 at the end of a tower), and asks the one below for what
it must then read:

    post there        its gamma and beta times w; the sum stays as it is, so it reads skip * x
    no post           gain times w, skip times w; it reads skip * w * x
    gain              into W_O, b_O (W_2, b_2), or into gamma and beta of `out`
    reads r * x       the columns of W_Q, W_K, W_V (W_1, and the gate) over r; of cross-attention W_Q alone: its keys
                      and values read the memory, which stays as it is
    heads             the columns of W_O; as fairseq released it, rows of W_O and b_O

What the first sublayer reads is the embedding's affair (`isograd.interop.fold_embedding`). Liu et al. 2020, arXiv
2004.08249, promise it for ADMIN; the rest follows from the same lines.
"""

import copy

import torch
from torch import Tensor, nn

from isograd.errors import FoldError
from isograd.interop.fold_embedding import fold_embeddings
from isograd.interop.fold_placement import folded_config
from isograd.models import IsogradConfig, IsogradModel, IsogradPreTrainedModel
from isograd.placement import Site
from isograd.transformer.attention import Attention
from isograd.transformer.feedforward import FeedForward, GatedFeedForward
from isograd.transformer.parameters import Coefficient, Linear, roles
from isograd.transformer.sublayer import Add, Constant, LearnedAdd, ScaledAdd, Sublayer

__all__ = ["NEAR_ZERO", "FoldError", "fold"]

NEAR_ZERO = 1e-6  # of the largest entry: what is divided by less leaves the range of half precision


def fold(model: IsogradPreTrainedModel, *, untie: bool = False) -> IsogradPreTrainedModel:
    """The model of the plain placement that computes the same; `model` stays as it is.

    Folded in fp64 and cast back to the dtype of each weight. For inference and export: gradients, weight decay and
    the optimizer see another model, and hidden states inside the stack are multiples of what they were.

    Args:
        untie: where the coefficient of the first sublayer has to go into token tables that are shared, give each its
            own copy: the head, and the encoder.

    Raises:
        FoldError: nothing to fold; an entry near zero; a norm that reads what would be scaled; a table that is shared;
            modules that isograd did not put there; no placement in the catalogue has the norms that are left.
    """
    config = folded_config(model.config)
    work = _double(model)
    with torch.no_grad():
        wanted = {tower.stack: _fold_tower(tower) for tower in work.modules() if isinstance(tower, IsogradModel)}
        fold_embeddings(work, wanted, config, untie=untie)
    return _cast(work, model, config)


def _fold_tower(tower: IsogradModel) -> Tensor | None:
    """The factor that the first sublayer wants of the embedding, None for 1."""
    wanted: Tensor | None = None
    for sublayer in reversed([module for module in tower.layers.modules() if isinstance(module, Sublayer)]):
        wanted = _fold_sublayer(sublayer, wanted)
    return wanted


def _fold_sublayer(sublayer: Sublayer, wanted: Tensor | None) -> Tensor | None:
    """Write `wanted` times what was written; the factor wanted of what is read."""
    branch = sublayer.branch
    assert isinstance(branch, Attention | FeedForward)
    skip, gain = _coefficients(sublayer.combine, branch.out.out_features)
    if not isinstance(sublayer.post, nn.Identity):
        _scale(sublayer.post, wanted)
    else:
        skip, gain = _times(skip, wanted), _times(gain, wanted)
    if isinstance(branch, Attention):
        _fold_heads(branch, sublayer.site)
    _scale(branch.out if isinstance(sublayer.out, nn.Identity) else sublayer.out, gain)
    if skip is not None:
        _read_scaled(sublayer, skip)
    return skip


def _read_scaled(sublayer: Sublayer, factor: Tensor) -> None:
    """The branch reads factor * x from now on, and finds what it found."""
    at = _said(sublayer.site)
    if not isinstance(sublayer.pre, nn.Identity):
        raise FoldError(
            f"the skip of {at} cannot be folded: a norm in front of the branch reads the same stream, and no weights"
            " undo its scale there; keep the model as it is"
        )
    least, largest = float(factor.abs().min()), float(factor.abs().max())
    if not least >= NEAR_ZERO * largest > 0:  # nor where either is not a number
        raise FoldError(
            f"the skip of {at} cannot be folded: its smallest entry is {least:.1e}, its largest {largest:.1e}, and the"
            f" branch's columns are divided by it (at least {NEAR_ZERO:g} of the largest)"
        )
    for projection in _readers(sublayer.branch):
        projection.weight.div_(factor)


def _readers(branch: nn.Module) -> list[Linear]:
    """The projections that read the stream."""
    if isinstance(branch, Attention):
        return [branch.query] if branch.is_cross else [branch.query, branch.key, branch.value]
    assert isinstance(branch, FeedForward)
    return [branch.into, branch.gate] if isinstance(branch, GatedFeedForward) else [branch.into]


def _fold_heads(branch: Attention, site: Site) -> None:
    """HeadScale into W_O, or where a norm stands before it into the values, which attention only mixes."""
    if not isinstance(branch.heads, Coefficient):
        return
    factor = branch.heads.weight.flatten().repeat_interleave(branch.head_size)
    if branch.heads_read_output:
        _scale(branch.out, factor)
    elif isinstance(branch.mid, nn.Identity):
        branch.out.weight.mul_(factor)
    elif isinstance(branch.value_norm, nn.Identity):
        _scale(branch.value, factor)
    elif not branch.normed_by_head:
        _scale(branch.value_norm, factor)
    else:
        raise FoldError(
            f"HeadScale of {_said(site)} cannot be folded: it stands between two norms, and the one on the"
            " values has one gain for all heads"
        )


def _coefficients(combine: nn.Module, width: int) -> tuple[Tensor | None, Tensor | None]:
    """skip and gain as vectors of the width, None for the constant 1."""
    if isinstance(combine, LearnedAdd):
        return _vector(combine.skip, width), _vector(combine.scale, width)
    if isinstance(combine, ScaledAdd):
        return _constant(combine.skip, width), _constant(combine.scale, width)
    assert isinstance(combine, Add)
    return None, None


def _vector(module: nn.Module, width: int) -> Tensor | None:
    if isinstance(module, Coefficient):
        return module.weight.detach().expand(width)
    return _constant(module.value, width) if isinstance(module, Constant) else None


def _constant(value: float, width: int) -> Tensor | None:
    return None if value == 1.0 else torch.full((width,), value, dtype=torch.float64)


def _scale(module: nn.Module, factor: Tensor | None) -> None:
    """What a projection or a norm writes, times the factor: rows of its weight, and its offset."""
    if factor is None:
        return
    weight, bias = module.weight, getattr(module, "bias", None)
    assert isinstance(weight, Tensor)
    weight.mul_(factor if weight.ndim == 1 else factor[:, None])
    if bias is not None:
        bias.mul_(factor)


def _times(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a * b


def _double(model: IsogradPreTrainedModel) -> IsogradPreTrainedModel:
    """A copy in fp64 on the CPU, of modules that are isograd's own: no other one reads the stream then."""
    work = _built(type(model), model.config)
    kinds = {name: type(module) for name, module in work.named_modules()}
    for name, module in model.named_modules():
        if kinds.get(name) is not type(module):
            raise FoldError(
                f"{name} ({type(module).__name__}) is not of a model that isograd builds, and what it reads is not"
                " known; merge or remove it first"
            )
    state = {name: value.to("cpu", torch.float64, copy=True) for name, value in model.state_dict().items()}
    return _filled(work, state)


def _cast(work: IsogradPreTrainedModel, model: IsogradPreTrainedModel, config: IsogradConfig) -> IsogradPreTrainedModel:
    """The folded weights in a model of the new configuration, each in the dtype that it had, where the model is."""
    out, state = _built(type(model), config), work.state_dict()
    role_of = roles(work)
    lost = {name for name in set(state) - set(out.state_dict()) if role_of.get(name) != "coefficient"}
    assert not lost, lost
    dtypes = {name: value.dtype for name, value in model.state_dict().items()}
    _filled(out, {name: state[name].to(dtypes.get(name, model.dtype)) for name in out.state_dict()})
    if hasattr(model, "generation_config"):
        out.generation_config = copy.deepcopy(model.generation_config)
    return out.to(model.device).train(model.training)


def _built(kind: type[IsogradPreTrainedModel], config: IsogradConfig) -> IsogradPreTrainedModel:
    """Modules without weights, which are not drawn for nothing."""
    with torch.device("meta"):
        return kind(copy.deepcopy(config))


def _filled(model: IsogradPreTrainedModel, state: dict[str, Tensor]) -> IsogradPreTrainedModel:
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    return model


def _said(site: Site) -> str:
    return f"{site.kind} in layer {site.layer} of the {site.stack}"
