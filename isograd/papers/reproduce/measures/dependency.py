"""Which branches a residual stream is made of: ADMIN's map beta_ij (Liu et al. 2020, arXiv 2004.08249).

A sum is linear in its terms, and so is a norm whose statistics are held: the stream after sublayer i is a sum of parts,

    x_i = sum_j c_ij,   c_ij: what became of the branch of sublayer j (j = 0: of the embedding),

    beta_ij^2 = mean over tokens of |c_ij|^2 / |x_i|^2,   both less their mean over the width,

the variance of part j in a stream whose variance is 1. Rows come to 1 where the parts are uncorrelated. Norms' biases
are a part of their own. Unlike `beta_ii^2` from variances alone (`shares` of theory) no independence is
assumed, so it can be read of a trained model.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isograd.models import IsogradModel, IsogradPreTrainedModel
from isograd.placement import Stack
from isograd.transformer.norms import LayerNorm, RMSNorm
from isograd.transformer.sublayer import Sublayer


@dataclass(frozen=True, kw_only=True)
class DependencyMap:
    """Of one stack.

    Attributes:
        kinds: of its N sublayers, "attn", "cross" or "ffn".
        rows: N rows: beta_ij^2 of j = 0 (the embedding), 1, .., i.
        biases: the same of all norms' biases together, by row.
        remainder: largest |x_i - sum_j c_ij| over the largest |x_i|: 0 but for rounding.
    """

    stack: Stack
    kinds: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]
    biases: tuple[float, ...]
    remainder: float

    @property
    def own(self) -> list[float]:
        """beta_ii^2, each branch's share where it enters."""
        return [row[-1] for row in self.rows]


@torch.no_grad()
def dependency_map(model: nn.Module, batch: Mapping[str, Tensor], stack: Stack = "decoder") -> DependencyMap:
    """The map of one batch, of a copy of the model in float64 and without dropout.

    Args:
        model: one of isograd's.
        batch: its inputs; places that their mask calls padding do not count.

    Raises:
        ValueError: the model has no such stack, or another stream than the plain one.
    """
    copied = copy.deepcopy(model).double().eval()
    found = [m for m in copied.modules() if isinstance(m, IsogradModel) and m.stack == stack]
    if not found:
        raise ValueError(f"{type(model).__name__} has no {stack}")
    pair = isinstance(copied, IsogradPreTrainedModel) and copied.config.is_encoder_decoder and stack == "decoder"
    mask = batch.get("decoder_attention_mask" if pair else "attention_mask")
    parts = _Parts(None if mask is None else mask.bool())
    with parts.followed(found[0]):
        copied(**batch)
    return DependencyMap(
        stack=stack,
        kinds=tuple(parts.kinds),
        rows=tuple(parts.rows),
        biases=tuple(parts.biases),
        remainder=parts.remainder,
    )


class _Parts:
    """The parts of the stream, the norms' biases first, as it runs through a stack."""

    def __init__(self, mask: Tensor | None) -> None:
        self.mask = mask
        self.parts: list[Tensor] = []
        self.kinds: list[str] = []
        self.rows: list[tuple[float, ...]] = []
        self.biases: list[float] = []
        self.remainder = 0.0

    @contextmanager
    def followed(self, stack: IsogradModel) -> Iterator[None]:
        with ExitStack() as hooks:
            hooks.callback(stack.embedding.register_forward_hook(self.begin).remove)
            for sublayer in (m for m in stack.modules() if isinstance(m, Sublayer)):
                if not sublayer.stream.plain:
                    raise ValueError("the map is of one stream that each sublayer adds to; this placement's is another")
                hooks.callback(sublayer.combine.register_forward_hook(self.add).remove)
                hooks.callback(sublayer.post.register_forward_hook(self.normalize).remove)
                hooks.callback(sublayer.register_forward_hook(self.measure).remove)
            yield

    def begin(self, embedding: nn.Module, args: Any, x: Tensor) -> None:
        self.parts = [torch.zeros_like(x), x]

    def add(self, combine: nn.Module, args: tuple[Tensor, Tensor], total: Tensor) -> None:
        nothing = torch.zeros_like(total)
        self.parts = [*(combine.forward(part, nothing) for part in self.parts), combine.forward(nothing, args[1])]

    def normalize(self, norm: nn.Module, args: tuple[Tensor], x: Tensor) -> None:
        """(c - mean c) / std of the whole, times the weight; RMSNorm without the mean."""
        if isinstance(norm, nn.Identity):
            return
        if not isinstance(norm, LayerNorm | RMSNorm):
            raise ValueError(f"a map through {type(norm).__name__} is not known; LayerNorm and RMSNorm are")
        eps = norm.eps if norm.eps is not None else torch.finfo(x.dtype).eps
        centre = _centred if isinstance(norm, LayerNorm) else _as_is
        over = (centre(args[0]).square().mean(-1, keepdim=True) + eps).rsqrt()
        scale = over if norm.weight is None else over * norm.weight
        self.parts = [centre(part) * scale for part in self.parts]
        if isinstance(norm, LayerNorm) and norm.bias is not None:
            self.parts[0] = self.parts[0] + norm.bias

    def measure(self, sublayer: nn.Module, args: Any, x: Tensor) -> None:
        assert isinstance(sublayer, Sublayer)
        whole = _centred(x).square().sum(-1)
        shares = [_centred(part).square().sum(-1) / whole for part in self.parts]
        means = [float((share if self.mask is None else share[self.mask]).mean()) for share in shares]
        self.kinds.append(sublayer.site.kind)
        self.biases.append(means[0])
        self.rows.append(tuple(means[1:]))
        apart = float((x - torch.stack(self.parts).sum(0)).abs().max() / x.abs().max())
        self.remainder = max(self.remainder, apart)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def _as_is(x: Tensor) -> Tensor:
    return x
