"""The two norms and the empty slot.

LayerNorm (v - mean) / sqrt(var + eps) * weight + bias, biased variance over the width; RMSNorm v / sqrt(mean(v^2) +
eps) * weight. Both are torch's fused kernels under the role "norm".
"""

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


def make_norm(norm: Norm | None, width: int, config: Any) -> nn.Module:
    """The module for a norm slot of a placement; an unused slot is `Identity`."""
    if norm is None:
        return nn.Identity()
    kind = config.norm if norm.kind == "model" else norm.kind
    return NORMS[kind](width, eps=config.norm_eps)
