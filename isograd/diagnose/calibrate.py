"""ADMIN's profile: one forward pass that sets each skip before its sum is formed.

    skip_1 = 1,   skip_{i+1} = sqrt( Var[skip_i * x_{i-1}] + Var[f_i(x_{i-1})] )

Var is the population variance over all elements of a tensor together, in float32; encoder and decoder count apart,
each from 1. Liu et al. 2020, arXiv 2004.08249, in the order of their code (Transformer-Clinic): sublayer i already
runs with its own skip when later ones are profiled.

Where several processes each have a part of the batch, n, mean and variance of the parts are put together at each sum:

    n Var = sum_p n_p (Var_p + (mean_p - mean)^2)
"""

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from isograd.diagnose.quantities import exact
from isograd.models import IsogradModel, IsogradPreTrainedModel
from isograd.placement import Stack
from isograd.trace.anatomy import SMALL, function_of
from isograd.transformer.kernels import make_dropout
from isograd.transformer.parameters import Coefficient
from isograd.transformer.stack import InputEmbedding
from isograd.transformer.sublayer import LearnedAdd, Sublayer

DEEP = 12  # sublayers: shallower stacks train whatever their skips are
Moments = tuple[int, float, float]  # how many elements, their mean, their variance


class CalibrationWarning(UserWarning):
    """The profile leaves a deep stack as Post-LN is."""


def calibrate(
    model: IsogradPreTrainedModel,
    batch: Mapping[str, Tensor],
    *,
    padding: bool = True,
    again: bool = False,
    distributed: bool | None = None,
    dropout: float | None = None,
) -> dict[Stack, list[float]]:
    """Profile `batch` and set the learned skips of `model`; all else stays bitwise as it was.

    The pass runs without autocast in float32 (float64 for a float64 model; on copies of parameters that are in 16
    bits), in the model's own mode, so dropout is on for a model in training mode, as in the original. It needs less
    memory than a training step on the same batch: no logits, nothing for a backward pass. Weights, gradients, buffers
    and the random state are left untouched; the skips are noted in `model.config.calibration`.

    Parameters that lie in shards (FSDP2's `fully_shard`) are gathered layer by layer as in any forward pass, and it
    runs in the precision that they compute in.

    Args:
        model: a model whose placement asks for a calibration.
        batch: inputs of the model, one batch of real data: the first micro-batch of the run.
        padding: count pad positions in the variances, as the original does, an encoder's as zeros after the
            embedding; False leaves them out by the masks.
        again: allow a second profile.
        distributed: each process calls this with its own part of one batch; variances are those of the whole, and all
            processes end with the same skips. None: where parameters lie in shards.
        dropout: on the embedding and on each branch's output during the pass; None: the model's own.

    Returns:
        stack -> skips in forward order.

    Raises:
        ValueError: the placement has nothing to calibrate, or a variance is not finite.
        RuntimeError: the model has been calibrated before and `again` is False.

    Warns:
        CalibrationWarning: skips of a deep stack stay around 1 or come out below it, mostly since the embedding is too
            small: the model would train as Post-LN does.
    """
    config = model.config
    if not config.calibrated_stacks():
        raise ValueError(f"placement {config.placement!r} has nothing to calibrate; 'admin' has")
    if config.calibration is not None and not again:
        raise RuntimeError("this model has been calibrated already, and training may have moved its skips since;"
                           " pass again=True to profile it anew")  # fmt: skip
    in_parts = _is_sharded(model) if distributed is None else distributed
    stacks = [m for m in model.modules() if isinstance(m, IsogradModel) and m.config.entry().calibrate]
    profiles = [_Profile(stack, _mask_of(stack.stack, model, batch), padding, in_parts) for stack in stacks]
    with nullcontext() if dropout is None else _dropping(model, dropout):
        _forward(model, batch, profiles)
    with torch.no_grad():
        for profile in profiles:
            profile.write()
    skips: dict[Stack, list[float]] = {p.stack: p.skips for p in profiles}
    for own in (config, *(stack.config for stack in stacks)):  # an encoder with options of its own has a copy
        own.calibration = {"method": "admin", **skips}
    for profile in profiles:
        if (said := profile.concern()) is not None:
            warnings.warn(said, CalibrationWarning, stacklevel=2)
    return skips


class _Profile:
    """The running value of one stack."""

    def __init__(self, model: IsogradModel, mask: Tensor | None, padding: bool, in_parts: bool) -> None:
        self.stack: Stack = model.stack
        self.model = model
        self.combines = [m.combine for m in model.modules() if isinstance(m, Sublayer)]
        self.mask = None if padding else mask
        empty = padding and mask is not None and mask.ndim == 2 and self.stack == "encoder"
        self.empty = ~mask[..., None] if empty and mask is not None else None
        self.in_parts = in_parts
        self.skips: list[float] = []
        self.next = 1.0
        self.rms = math.nan  # of the embedding

    def clear_pads(self, embedding: nn.Module, args: tuple[Tensor, ...], x: Tensor) -> Tensor:
        """fairseq's encoders have zeros there; it matters after a norm on the embedding, and to no other position."""
        return x if self.empty is None else x.masked_fill(self.empty, 0.0)

    def sum_of(self, combine: nn.Module, args: tuple[Tensor, Tensor], untuned: Tensor) -> Tensor:
        """In place of the sum: the one with this sublayer's running value; then move the value on."""
        assert isinstance(combine, LearnedAdd)
        self.skips.append(self.next)
        skip, branch = args[0] * self.next, combine.scale(args[1])
        stream, added = self._whole([self._moments(skip), self._moments(branch)])
        if len(self.skips) == 1:
            self.rms = math.sqrt(stream[2] + stream[1] ** 2)
        self.next = (stream[2] + added[2]) ** 0.5
        if not self.next < float("inf"):
            raise ValueError(f"the profile is not finite at sublayer {len(self.skips)} of the {self.stack}")
        return skip + branch

    def write(self) -> None:
        for combine, skip in zip(self.combines, self.skips, strict=True):
            _skip(combine).fill_(skip)

    def concern(self) -> str | None:
        """What to say of skips with which a deep stack trains as Post-LN does."""
        if len(self.skips) < DEEP or function_of(self.skips) != "post-ln":
            return None
        found = f"ADMIN's skips of the {self.stack} come out as 1, {self.skips[1]:.2g}, .. {self.skips[-1]:.2g}"
        flat = f"{found}: with {len(self.skips)} sublayers this is Post-LN in function, and collapses as Post-LN does"
        if self.rms >= SMALL:
            return f"{flat}; the branches begin so small that they hardly count (init='xavier-uniform' is larger)"
        change = "embedding_norm=True puts a norm on it (model.embedding_norm in a recipe)"
        if not self.model.config.scale_embedding:
            change = "scale_embedding=True multiplies token vectors by sqrt(d) (model.scale_embedding in a recipe)"
        return (
            f"{flat}; the embedding has an RMS of {self.rms:.2g} where ADMIN needs about 1: {change}. Build the model"
            " with it, and calibrate that one"
        )

    def _moments(self, x: Tensor) -> Moments:
        x = exact(x if self.mask is None else x[self.mask])
        variance, mean = torch.var_mean(x, correction=0)
        return x.numel(), float(mean), float(variance)

    def _whole(self, own: list[Moments]) -> list[Moments]:
        """The moments of all parts together. Each process has all of them, in the same order: equal to the last bit."""
        if not self.in_parts:
            return own
        parts: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(parts, own)
        return [together(of) for of in zip(*parts, strict=True)]


def together(parts: Sequence[Moments]) -> Moments:
    """n = sum n_p,  mean = sum n_p mean_p / n,  Var = sum n_p (Var_p + (mean_p - mean)^2) / n.

    >>> together([(2, 1.0, 1.0), (2, 5.0, 1.0)])  # 0, 2 and 4, 6
    (4, 3.0, 5.0)
    """
    count = sum(n for n, _, _ in parts)
    mean = math.fsum(n * m for n, m, _ in parts) / count
    return count, mean, math.fsum(n * (v + (m - mean) ** 2) for n, m, v in parts) / count


def _forward(model: IsogradPreTrainedModel, batch: Mapping[str, Tensor], profiles: list[_Profile]) -> None:
    """One pass; hooks, random state and device as they were afterwards."""
    device = model.device
    devices = [device] if device.type == "cuda" else []
    inputs: dict[str, Any] = {name: value.to(device) for name, value in batch.items()}
    unread = {"use_cache": False, "output_logits": False}  # what a head of the vocabulary would hold
    inputs |= {name: value for name, value in unread.items() if name in inspect.signature(model.forward).parameters}
    with torch.random.fork_rng(devices=devices), torch.no_grad(), ExitStack() as hooks:
        hooks.enter_context(torch.autocast(device.type, enabled=False))
        for profile in profiles:
            hooks.callback(profile.model.embedding.register_forward_hook(profile.clear_pads).remove)
            for combine in profile.combines:
                hooks.callback(combine.register_forward_hook(profile.sum_of).remove)
        if _is_sharded(model):
            model(**inputs)
            _reshard(model)  # or the skips would be written into what is gathered, and lost
        else:
            copies = {n: p.float() for n, p in model.named_parameters() if p.dtype.itemsize < 4}
            torch.func.functional_call(model, copies, kwargs=inputs, tie_weights=True)


@contextmanager
def _dropping(model: nn.Module, p: float) -> Iterator[None]:
    """Another dropout on embeddings and branches, for a while."""
    places: list[Any] = [module for module in model.modules() if isinstance(module, Sublayer | InputEmbedding)]
    own = [place.drop for place in places]
    try:
        for place in places:
            place.drop = make_dropout(p).train(place.training)
        yield
    finally:
        for place, drop in zip(places, own, strict=True):
            place.drop = drop


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(p, DTensor) for p in model.parameters())


def _reshard(model: nn.Module) -> None:
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _skip(combine: nn.Module) -> Tensor:
    assert isinstance(combine, LearnedAdd) and isinstance(combine.skip, Coefficient)
    return combine.skip.weight


def _mask_of(stack: Stack, model: IsogradPreTrainedModel, batch: Mapping[str, Any]) -> Tensor | None:
    name = "decoder_attention_mask" if model.config.is_encoder_decoder and stack == "decoder" else "attention_mask"
    mask = batch.get(name)
    return None if mask is None else mask.bool().to(model.device)
