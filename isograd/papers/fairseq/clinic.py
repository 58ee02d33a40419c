"""Transformer-Clinic, ADMIN's code, a fork of fairseq 0.8: its skips, called ratios, and its init_type."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from isograd.errors import InteropError

SKIPS = ("attention_ratio_change", "self_ratio_change", "encoder_ratio_change", "fc_ratio_change")
INITS = ("default", "adaptive", "adaptive-profiling")  # values of init_type with these equations


def skips(side: str) -> dict[str, str]:
    """Our modules of a layer -> theirs; self-attention's is called otherwise in the decoder."""
    attention = "attention_ratio_change" if side == "encoder" else "self_ratio_change"
    return {
        "attn.combine.skip": attention,
        "cross.combine.skip": "encoder_ratio_change",
        "ffn.combine.skip": "fc_ratio_change",
    }


def canonical(name: str) -> str:
    """The name that a skip has on its side, where it stands under the other one."""
    mine, other = SKIPS[:2] if name.startswith("encoder") else SKIPS[1::-1]
    return name.removesuffix(other) + mine if name.endswith(other) else name


def named(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The skips of a model of one stack, which are numbered in forward order (`omega.<i>`), under their names."""
    numbers = sorted(int(match[1]) for name in state if (match := re.fullmatch(r"omega\.(\d+)", name)))
    prefix = "decoder." if any(name.startswith("decoder.") for name in state) else "encoder.sentence_encoder."
    kinds = ("attention_ratio_change", "fc_ratio_change")
    return {
        f"{prefix}layers.{place // 2}.{kinds[place % 2]}": state[f"omega.{number}"]
        for place, number in enumerate(numbers)
    }


def is_admin(options: Mapping[str, Any]) -> bool:
    """Whether the options say that sublayers have skips.

    Raises:
        InteropError: another init_type, whose coefficients isograd has no place for.
    """
    init = str(options.get("init_type") or "default")
    if init not in (*INITS, "None"):
        raise InteropError(
            f"init_type={init!r}: isograd has no place for its coefficients; expected {', '.join(INITS)}"
        )
    return init.startswith("adaptive")
