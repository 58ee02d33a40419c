"""The two norms and the empty slot.

LayerNorm (v - mean) / sqrt(var + eps) * weight + bias, biased variance over the width; RMSNorm v / sqrt(mean(v^2) +
eps) * weight. Both are torch's fused kernels under the role "norm".
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from isograd.placement.formula import Norm


class LayerNorm(nn.LayerNorm):
    role = "norm"


class RMSNorm(nn.RMSNorm):
    role = "norm"

    def forward(self, x: Tensor) -> Tensor:
        """In the dtype of x. Under autocast a float32 gain on a bfloat16 x would leave the fused kernel."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


NORMS: dict[str, type[nn.Module]] = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}


def make_norm(norm: Norm | None, width: int, config: Any) -> nn.Module:
    """The module for a norm slot of a placement; an unused slot is `Identity`."""
    if norm is None:
        return nn.Identity()
    kind = config.norm if norm.kind == "model" else norm.kind
    return NORMS[kind](width, eps=config.norm_eps)
