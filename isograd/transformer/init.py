"""Initialization: one scheme per name, acting on one leaf at a time by its role.

A scheme is called from `_init_weights` and uses `torch.nn.init` functions only: transformers guards those, so that
loaded weights are never drawn again. Norm weights are 1, biases 0, coefficients
their `init`, in every scheme.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import init

from isograd.transformer.norms import FreeNorm, LayerNorm, PointwiseCurve, RMSNorm
from isograd.transformer.parameters import Coefficient, Embedding, Linear
from isograd.transformer.streams import Connection, Ends


def xavier_uniform(leaf: Linear | Embedding, config: Any) -> None:
    """Xavier uniform, W_Q, W_K, W_V as one fused (3d, d) matrix: gain 1/sqrt(2). Tables N(0, 1/d).

    ADMIN's code (Transformer-Clinic) and, but for the feed-forward, fairseq.
    """
    if isinstance(leaf, Embedding) or leaf.role == "head":
        _table(leaf, leaf.weight.shape[1] ** -0.5 * leaf.init_gain)
        return
    fused = 2**-0.5 if leaf.role in ("query", "key", "value") else 1.0
    init.xavier_uniform_(leaf.weight, gain=fused * leaf.init_gain)
    _zero_bias(leaf)


def xavier_normal(leaf: Linear | Embedding, config: Any) -> None:
    """Xavier normal N(0, 2 / (fan_in + fan_out)), every projection apart. Tables N(0, 1/d). DeepNet, Xiong et al."""
    if isinstance(leaf, Embedding) or leaf.role == "head":
        _table(leaf, leaf.weight.shape[1] ** -0.5 * leaf.init_gain)
        return
    init.xavier_normal_(leaf.weight, gain=leaf.init_gain)
    _zero_bias(leaf)


def normal(leaf: Linear | Embedding, config: Any) -> None:
    """N(0, initializer_range^2) for every matrix and table. GPT-2, BERT, RoBERTa."""
    if isinstance(leaf, Embedding):
        _table(leaf, config.initializer_range * leaf.init_gain)
        return
    init.normal_(leaf.weight, std=config.initializer_range * leaf.init_gain)
    _zero_bias(leaf)


def small_init(leaf: Linear | Embedding, config: Any) -> None:
    """N(0, 2 / (5 d)), d the width, for every matrix and table; the head N(0, 1/d). Nguyen and Salazar 2019, arXiv
    1910.05895, for attention; OLMo's "full_megatron" at 1/sqrt(2.5 d).
    """
    std = (config.hidden_size if leaf.role == "head" else 2.5 * config.hidden_size) ** -0.5 * leaf.init_gain
    if isinstance(leaf, Embedding):
        _table(leaf, std)
        return
    init.normal_(leaf.weight, std=std)
    _zero_bias(leaf)


def unit(leaf: Linear | Embedding, config: Any) -> None:
    """N(0, 1/d), then rows of length 1; of W_O and W_2 columns. nGPT (Loshchilov et al. 2024, arXiv 2410.01131)."""
    init.normal_(leaf.weight, std=config.hidden_size**-0.5)
    if not getattr(leaf.weight, "_is_hf_initialized", False):  # loaded
        with torch.no_grad():
            leaf.weight.copy_(F.normalize(leaf.weight, dim=0 if leaf.role in ("attn_out", "ffn_out") else 1))
    if isinstance(leaf, Linear):
        _zero_bias(leaf)
    elif leaf.padding_idx is not None:
        init.zeros_(leaf.weight[leaf.padding_idx])


def fairseq(leaf: Linear | Embedding, config: Any) -> None:
    """fairseq 0.12: `xavier_uniform`, but W_1, W_2 and the biases of all but W_O keep torch's U(+-1/sqrt(fan_in))."""
    if isinstance(leaf, Embedding) or leaf.role in ("head", "attn_out"):
        xavier_uniform(leaf, config)
        return
    bound = leaf.in_features**-0.5
    if leaf.role in ("query", "key", "value"):
        init.xavier_uniform_(leaf.weight, gain=2**-0.5 * leaf.init_gain)
    else:
        init.uniform_(leaf.weight, -bound * leaf.init_gain, bound * leaf.init_gain)
    if leaf.bias is not None:
        init.uniform_(leaf.bias, -bound, bound)


SCHEMES: dict[str, Callable[[Linear | Embedding, Any], None]] = {
    "xavier-uniform": xavier_uniform,
    "xavier-normal": xavier_normal,
    "normal": normal,
    "small-init": small_init,
    "unit": unit,
    "fairseq": fairseq,
}


def initialize(module: nn.Module, config: Any, scheme: str) -> None:
    """Draw the parameters that `module` itself owns (called once per module of the tree)."""
    if isinstance(module, Linear | Embedding):
        SCHEMES[scheme](module, config)
    elif isinstance(module, Coefficient):
        init.constant_(module.weight, module.init)
    elif isinstance(module, LayerNorm | RMSNorm | FreeNorm | PointwiseCurve):
        _draw_norm(module)
    elif isinstance(module, Connection | Ends):
        module.draw()


def _draw_norm(module: LayerNorm | RMSNorm | FreeNorm | PointwiseCurve) -> None:
    if isinstance(module, PointwiseCurve):
        init.constant_(module.slope, module.slope_init)
        if module.shift is not None:
            init.zeros_(module.shift)
    if module.weight is not None:
        init.constant_(module.weight, getattr(module, "init", 1.0))
    if isinstance(bias := getattr(module, "bias", None), Tensor):
        init.zeros_(bias)


def _table(leaf: Linear | Embedding, std: float) -> None:
    init.normal_(leaf.weight, std=std)
    if isinstance(leaf, Embedding) and leaf.padding_idx is not None:
        init.zeros_(leaf.weight[leaf.padding_idx])


def _zero_bias(leaf: Linear) -> None:
    if leaf.bias is not None:
        init.zeros_(leaf.bias)
