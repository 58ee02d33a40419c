"""Other residuals in isograd's own class: a trained scale on every branch, copies of the stream, RMSNorm."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isograd.convert.graft.found import GraftSubject, State
from isograd.convert.graft.moves import How, Moved, one_of, whole
from isograd.convert.graft.ours import ours, placed, residuals_of, state_of
from isograd.errors import GraftError
from isograd.models import IsogradConfig, IsogradPreTrainedModel
from isograd.placement import Learned, Norm, Residual, Site
from isograd.placement.streams import Hyper


def scale(subject: GraftSubject, value: str, how: How) -> Moved:
    """a trained vector on every branch, at what the constant was (exact, ours)"""
    one_of(value, "scale", "layerscale")
    model = ours(subject.model)

    def rule(site: Site, before: Residual) -> Residual:
        if not isinstance(before.scale, float) or not isinstance(before.skip, float):
            raise GraftError(f"{site.kind} of layer {site.layer} has a trained coefficient already")
        return replace(before, scale=Learned(init=before.scale))

    made = placed(model, f"{model.config.placement}-layerscale", rule, state_of(model))
    return Moved(model=made, said="a trained vector on every branch, at what the constant was")


def streams(subject: GraftSubject, value: str, how: How) -> Moved:
    """Pre-LN to hyper-connections with N copies of the stream (exact, ours)

    At the paper's init the copies stay equal, and their sum, n times the stream, would meet the final norm's eps at
    another scale: the last sublayer's mix and write are divided by n.
    """
    copies = whole(value, "streams")
    model = ours(subject.model)
    config: IsogradConfig = model.config
    plain = residuals_of(config)
    bad = [s for s, r in plain.items() if r.post or (r.skip, r.scale) != (1.0, 1.0)]
    if bad or not config.entry().stream.plain:
        where = f"{bad[0].kind} of layer {bad[0].layer}" if bad else "its stream"
        raise GraftError(f"{where} is not x + f(norm(x)): hyper-connections are equal to Pre-LN alone")
    made = placed(
        model,
        "hyper-connections",
        lambda site, before: before,
        state_of(model),
        stream=Hyper(maps="computed", copies=copies),
    )
    last: Any = [module for name, module in made.named_modules() if name.endswith(".stream")][-1]
    with torch.no_grad():
        last.alpha[:, 1:].div_(copies)
        last.beta.div_(copies)
    return Moved(model=made, said=f"{copies} copies of the stream, equal at first; dynamic maps from 0")


def norm(subject: GraftSubject, value: str, how: How) -> Moved:
    """LayerNorm to RMSNorm by centring (exact, ours); any norm to DyT (measured, ours)

    The mean of a stream of which each writer has mean 0 over the width is 0, and LayerNorm then is RMSNorm. Biases of
    norms go into the projections that read them; a head that was tied keeps its own copy of the table (Ashkboos et al.
    2024, SliceGPT, arXiv 2401.15024).
    """
    if one_of(value, "norm", "rmsnorm", "dyt") == "dyt":
        from isograd.convert.graft.fitted import to_dyt

        return to_dyt(subject, how)
    model = ours(subject.model)
    _refuse_uncentred(model.config, causal=hasattr(model, "lm_head") and model.config.is_decoder)
    state = {name: t.double() for name, t in state_of(model).items()}
    head_bias = _centre(model, state)
    narrow = {name: t.to(model.dtype) for name, t in state.items()}
    made = placed(
        model,
        f"{model.config.placement}-rmsnorm",
        lambda site, before: before,
        narrow,
        norm="rmsnorm",
        tie_word_embeddings=False,
        head_bias=head_bias,
    )
    return Moved(model=made, said="LayerNorm to RMSNorm: what writes to the stream is centred, and the head is its own")


def _refuse_uncentred(config: IsogradConfig, *, causal: bool) -> None:
    """Where a writer cannot be centred, or a norm of the model's kind reads something else."""
    entry = config.entry()
    every = residuals_of(config).values()
    usual = all(n is None or (n.kind == "model" and n == Norm()) for r in every for n in (r.pre, entry.final))
    if config.norm != "layernorm" or not usual:
        raise GraftError("norm=rmsnorm: the norms are not plain LayerNorms")
    reasons = {
        "a norm is applied to the sum or on what a branch wrote, whose weight and bias put the mean back": any(
            r.post or r.out for r in every
        ),
        "a norm inside a branch reads what is not centred": any(r.mid or r.projections for r in every),
        "a branch has a trained vector of coefficients": any(isinstance(r.scale, Learned) for r in every),
        "the embedding has a norm, whose weight and bias put the mean back": config.embedding_norm or entry.first,
        "its positions are sinusoids, which are not centred": "sinusoidal" in config.position_embedding_type,
        "its stream is not plain": not entry.stream.plain,
        "its head has a LayerNorm of its own": not causal,
        "its head reads a projection": config.output_size,
    }
    if found := next((reason for reason, holds in reasons.items() if holds), None):
        raise GraftError(f"norm=rmsnorm: {found}")


def _centre(model: IsogradPreTrainedModel, state: State) -> bool:
    """Centre the writers, fold the norms' biases; whether the head has a bias now."""
    table = state["model.embedding.tokens.weight"] if "lm_head.weight" not in state else state["lm_head.weight"]
    state["lm_head.weight"] = table.clone()
    for name in list(state):
        if name.startswith("model.embedding."):
            state[name] = _centred(state[name], 0 if ".project." in name else -1)
        elif name.endswith((".branch.out.weight", ".branch.out.bias")):
            state[name] = _centred(state[name], 0)
        elif name.endswith(".pre.bias"):
            _fold_bias(state, name.removesuffix("pre.bias") + "branch.", state.pop(name))
    bias = state.pop("model.norm.bias")
    if bias.any() or "lm_head.bias" in state:
        state["lm_head.bias"] = state.get("lm_head.bias", torch.zeros(len(table)).double()) + table @ bias
    return "lm_head.bias" in state


def _fold_bias(state: State, branch: str, bias: Tensor) -> None:
    for role in ("query", "key", "value", "into", "gate"):
        if f"{branch}{role}.weight" in state and bias.any():
            if f"{branch}{role}.bias" not in state:
                raise GraftError(f"norm=rmsnorm: {branch}{role} has no bias to take the norm's")
            state[f"{branch}{role}.bias"] += state[f"{branch}{role}.weight"] @ bias


def _centred(value: Tensor, axis: int) -> Tensor:
    return value - value.mean(axis, keepdim=True)
