"""The two norms and the empty slot.

LayerNorm (v - mean) / sqrt(var + eps) * weight + bias, biased variance over the width; RMSNorm v / sqrt(mean(v^2) +
eps) * weight. Both are torch's fused kernels under the role "norm".
"""

from typing import Any

from torch import nn

from isograd.placement.formula import Norm


class LayerNorm(nn.LayerNorm):
    role = "norm"


class RMSNorm(nn.RMSNorm):
    role = "norm"


NORMS: dict[str, type[nn.Module]] = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}


def make_norm(norm: Norm | None, width: int, config: Any) -> nn.Module:
    """The module for a norm slot of a placement; an unused slot is `Identity`."""
    if norm is None:
        return nn.Identity()
    kind = config.norm if norm.kind == "model" else norm.kind
    return NORMS[kind](width, eps=config.norm_eps)
