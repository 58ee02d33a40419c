"""The norms and the empty slot.

LayerNorm (v - mean) / sqrt(var + eps) * weight + bias, biased variance over the width; RMSNorm v / sqrt(mean(v^2) +
eps) * weight. Both are torch's fused kernels under the role "norm"; what else a `Norm` can say is `FreeNorm`'s and
`Curve`'s.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isograd.placement.formula import Norm


class LayerNorm(nn.LayerNorm):
    role = "norm"


class RMSNorm(nn.RMSNorm):
    role = "norm"

    def forward(self, x: Tensor) -> Tensor:
        """In the dtype of x, with the weight as exact as it is stored, as torch's own has it.

        A float32 weight on a bfloat16 x, as under autocast, would leave the fused kernel: x is cast instead.
        """
        if self.weight is None or self.weight.dtype == x.dtype:
            return super().forward(x)
        wide = torch.promote_types(x.dtype, self.weight.dtype)
        return F.rms_norm(x.to(wide), self.normalized_shape, self.weight.to(wide), self.eps).to(x.dtype)


NORMS: dict[str, type[nn.Module]] = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}


class FreeNorm(nn.Module):
    """scale * (weight * n(x) + bias), n(x) of unit variance, mean square or length over the last axis.

    Args:
        kind: "layernorm", "rmsnorm", "l2" or "none".
        shape: of the weight; its last axis is the one that is normalized.
    """

    role = "norm"

    def __init__(self, kind: str, shape: tuple[int, ...], norm: Norm, eps: float, *, bias: bool = True) -> None:
        super().__init__()
        assert isinstance(norm.init, float) and not callable(norm.scale)
        self.kind = kind
        self.eps = eps
        self.scale = shape[-1] ** 0.5 if norm.scale == "root" else norm.scale
        self.centered = norm.centered
        self.init = norm.init - 1.0 if norm.centered else norm.init
        self.weight = nn.Parameter(torch.full(shape, self.init)) if norm.affine else None
        self.bias = nn.Parameter(torch.zeros(shape)) if norm.affine and kind == "layernorm" and bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = self._normalized(x)
        if self.weight is not None:
            y = y * (self.weight + 1.0) if self.centered else y * self.weight
        if self.bias is not None:
            y = y + self.bias
        return (y if self.scale == 1.0 else y * self.scale).to(x.dtype)

    def _normalized(self, x: Tensor) -> Tensor:
        if self.kind == "none":
            return x
        if self.kind == "l2":
            return F.normalize(x, dim=-1)
        form = F.layer_norm if self.kind == "layernorm" else F.rms_norm
        return form(x, x.shape[-1:], eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.kind}, scale={self.scale:.4g}, centered={self.centered}"


class PointwiseCurve(nn.Module):
    """scale * (weight * g(slope x + shift) + bias): g tanh without a shift (DyT), or erf (Derf). Normalizes nothing."""

    role = "norm"

    def __init__(self, kind: str, shape: tuple[int, ...], norm: Norm) -> None:
        super().__init__()
        assert isinstance(norm.init, float) and isinstance(norm.scale, float) and isinstance(norm.slope, float)
        self.init = norm.init
        self.scale = norm.scale
        self.slope_init = norm.slope
        self.curve: Callable[[Tensor], Tensor] = torch.tanh if kind == "dyt" else torch.erf
        self.slope = nn.Parameter(torch.full((1,), norm.slope))
        self.shift = nn.Parameter(torch.zeros(1)) if kind == "derf" else None
        self.weight = nn.Parameter(torch.full(shape, norm.init)) if norm.affine else None
        self.bias = nn.Parameter(torch.zeros(shape)) if norm.affine else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.slope * x
        y = self.curve(y if self.shift is None else y + self.shift)
        if self.weight is not None and self.bias is not None:
            y = torch.addcmul(self.bias, self.weight, y)
        return (y if self.scale == 1.0 else y * self.scale).to(x.dtype)


def make_norm(norm: Norm | None, width: int | tuple[int, ...], config: Any) -> nn.Module:
    """The module for a norm slot of a placement; an unused slot is `Identity`.

    Args:
        width: of what is normalized; a shape where the weight has more axes than the last.
    """
    if norm is None:
        return nn.Identity()
    kind = config.norm if norm.kind == "model" else norm.kind
    shape = width if isinstance(width, tuple) else (width,)
    if kind in ("dyt", "derf"):
        return PointwiseCurve(kind, shape, norm)
    if kind in ("l2", "none") or len(shape) > 1 or norm.centered or (norm.scale, norm.init) != (1.0, 1.0):
        return FreeNorm(kind, shape, norm, config.norm_eps, bias=config.norm_bias)
    return model_norm(kind, shape, config, affine=norm.affine)


def model_norm(kind: str, shape: tuple[int, ...], config: Any, *, affine: bool = True) -> nn.Module:
    """torch's fused norm of a kind, a LayerNorm without a bias where the configuration says so."""
    words = {} if config.norm_bias or kind != "layernorm" else {"bias": False}
    return NORMS[kind](shape, eps=config.norm_eps, elementwise_affine=affine, **words)
