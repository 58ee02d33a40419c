"""ADMIN's profile: one forward pass that sets each skip before its sum is formed.

    skip_1 = 1,   skip_{i+1} = sqrt( Var[skip_i * x_{i-1}] + Var[f_i(x_{i-1})] )

Var is the population variance over all elements of a tensor together, in float32; encoder and decoder count apart,
each from 1. Liu et al. 2020, arXiv 2004.08249, in the order of their code (Transformer-Clinic): sublayer i already
runs with its own skip when later ones are profiled.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from isograd.diagnose.quantities import exact, terms
from isograd.models import IsogradModel, IsogradPreTrainedModel
from isograd.placement import Tower
from isograd.transformer.parameters import Coefficient
from isograd.transformer.sublayer import LearnedAdd, Sublayer


def calibrate(
    model: IsogradPreTrainedModel,
    batch: Mapping[str, Tensor],
    *,
    padding: bool = True,
    again: bool = False,
) -> dict[Tower, list[float]]:
    """Profile `batch` and set the learned skips of `model`; all else stays bitwise as it was.

    The pass runs on float32 copies (float64 ones for a float64 model) in the model's own mode, so dropout is on for a
    model in training mode, as in the original. Weights, gradients, buffers and the random state are left untouched;
    the skips are noted in `model.config.calibration`.

    Args:
        model: a model whose placement asks for a calibration.
        batch: inputs of the model, one batch of real data.
        padding: count pad positions in the variances, as the original does, an encoder's as zeros behind the
            embedding; False leaves them out by the masks.
        again: allow a second profile.

    Returns:
        tower -> skips in forward order.

    Raises:
        ValueError: the placement has nothing to calibrate, or a variance is not finite.
        RuntimeError: the model has been calibrated before and `again` is False.
    """
    config = model.config
    if config.entry().calibrate != "admin":
        raise ValueError(f"placement {config.placement!r} has nothing to calibrate; 'admin' has")
    if config.calibration is not None and not again:
        raise RuntimeError("this model has been calibrated already, and training may have moved its skips since;"
                           " pass again=True to profile it anew")  # fmt: skip
    towers = [m for m in model.modules() if isinstance(m, IsogradModel)]
    profiles = [_Profile(tower, _mask_of(tower.tower, model, batch), padding) for tower in towers]
    _forward(model, batch, profiles)
    with torch.no_grad():
        for profile in profiles:
            profile.write()
    skips: dict[Tower, list[float]] = {p.tower: p.skips for p in profiles}
    config.calibration = {"method": "admin", **skips}
    return skips


class _Profile:
    """The running value of one tower."""

    def __init__(self, model: IsogradModel, mask: Tensor | None, padding: bool) -> None:
        self.tower: Tower = model.tower
        self.embedding = model.embedding
        self.combines = [m.combine for m in model.modules() if isinstance(m, Sublayer)]
        self.mask = None if padding else mask
        empty = padding and mask is not None and mask.ndim == 2 and self.tower == "encoder"
        self.empty = ~mask[..., None] if empty and mask is not None else None
        self.skips: list[float] = []
        self.next = 1.0

    def clear_pads(self, embedding: nn.Module, args: tuple[Tensor, ...], x: Tensor) -> Tensor:
        """fairseq's encoders have zeros there; it matters behind a norm on the embedding, and to no other position."""
        return x if self.empty is None else x.masked_fill(self.empty, 0.0)

    def set_skip(self, combine: nn.Module, args: tuple[Tensor, Tensor]) -> None:
        """Before the sum: give this sublayer the running value, then move the value on."""
        self.skips.append(self.next)
        _skip(combine).fill_(self.next)
        skip, branch = terms(combine, *args)
        self.next = (self._variance(skip) + self._variance(branch)) ** 0.5
        if not self.next < float("inf"):
            raise ValueError(f"the profile is not finite at sublayer {len(self.skips)} of the {self.tower}")

    def write(self) -> None:
        for combine, skip in zip(self.combines, self.skips, strict=True):
            _skip(combine).fill_(skip)

    def _variance(self, x: Tensor) -> float:
        x = exact(x if self.mask is None else x[self.mask])
        return float(x.var(unbiased=False))


def _forward(model: IsogradPreTrainedModel, batch: Mapping[str, Tensor], profiles: list[_Profile]) -> None:
    """One pass over copies of the parameters; hooks, random state and device as they were afterwards."""
    copies = {n: _copy(p) for n, p in model.named_parameters()}
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    device = model.device
    devices = [device] if device.type == "cuda" else []
    inputs = {name: value.to(device) for name, value in batch.items()}
    with torch.random.fork_rng(devices=devices), torch.no_grad(), ExitStack() as hooks:
        for profile in profiles:
            hooks.callback(profile.embedding.register_forward_hook(profile.clear_pads).remove)
            for combine in profile.combines:
                hooks.callback(combine.register_forward_pre_hook(profile.set_skip).remove)
        torch.func.functional_call(model, (copies, buffers), kwargs=inputs, tie_weights=True)


def _skip(combine: nn.Module) -> Tensor:
    assert isinstance(combine, LearnedAdd) and isinstance(combine.skip, Coefficient)
    return combine.skip.weight


def _copy(parameter: nn.Parameter) -> Tensor:
    return parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)


def _mask_of(tower: Tower, model: IsogradPreTrainedModel, batch: Mapping[str, Any]) -> Tensor | None:
    name = "decoder_attention_mask" if model.config.is_encoder_decoder and tower == "decoder" else "attention_mask"
    mask = batch.get(name)
    return None if mask is None else mask.bool().to(model.device)
