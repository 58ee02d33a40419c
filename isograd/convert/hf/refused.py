"""Why a class of transformers has no counterpart here, where that can be said."""

from typing import Any

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")
_REASONS = {  # what a class's name begins with
    "its attention scores get a trained bias by relative position, which isograd's attention has not": (
        "T5",
        "MT5",
        "UMT5",
        "LongT5",
        "SwitchTransformers",
        "MPNet",
    ),
    "its attention scores are sums of products with relative positions (disentangled attention)": (
        "Deberta",
        "DebertaV2",
    ),
    "its attention scores get a bias by distance (ALiBi)": ("Bloom", "Mpt"),
    "its layers are recurrent or state spaces, not attention": ("Mamba", "Rwkv", "FalconMamba", "RecurrentGemma"),
    "its attention compresses keys and values (multi-head latent attention)": ("Deepseek",),
    "its token vectors are factorized and its layers share their weights": ("Albert",),
}


def reason(theirs: Any) -> str | None:
    """Of a model of transformers, one line; None where nothing more is known than that no family has its class."""
    name, config = type(theirs).__name__, theirs.config
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantised; load it in floating point (`model.dequantize()`) and save that"
    if hasattr(config, "vision_config") or hasattr(config, "audio_config"):
        return "it reads more than text; name its text model"
    for why, prefixes in _REASONS.items():
        if any(name.startswith(f"{prefix}{rest}") for prefix in prefixes for rest in ("For", "V", "Model", "LM")):
            return why
    if any(getattr(config, option, None) for option in _EXPERTS):
        return "its feed-forwards are mixtures of experts, and isograd's are one branch each"
    return None
