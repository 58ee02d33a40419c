"""Placements by fairseq's flags, made from their names: any of Post-LN and Pre-LN with any of NormFormer's changes.

    fairseq-pre-AF            pre-ln with scale_attn and scale_fc
    fairseq-post-R            post-ln with scale_resids
    fairseq-pre-AHF-nofinal   without the norm after the last layer
    fairseq-post-final        with one more norm there, as torch.nn.Transformer has

| letter | fairseq's option | here |
| --- | --- | --- |
| A | scale_attn | a norm on what the attention wrote |
| H | scale_heads | a number per head, on blocks of the output of W_O |
| P | | the same before W_O, as the paper writes it |
| F | scale_fc | a norm before W_2 |
| R | scale_resids | a trainable skip on the feed-forward |

Cross-attention has none of them. No registration is needed: a name says all, so a saved model loads anywhere.
"""

import re
from dataclasses import replace
from functools import cache

from isograd.placement.formula import ByKind, HeadScale, Learned, Norm, Placement, Residual

NAME = re.compile(r"fairseq-(?P<norm>post|pre)(?:-(?P<flags>A?[HP]?F?R?))?(?P<end>-nofinal|-final)?")
_OPTION = {"A": "scale_attn", "H": "scale_heads", "P": "HeadScale before W_O", "F": "scale_fc", "R": "scale_resids"}


def flagged_name(*, pre: bool, flags: str, final: bool | None = None) -> str:
    """The name that says this; `final`: whether a norm follows the last layer, by default in Pre-LN alone.

    >>> flagged_name(pre=True, flags="AF")
    'fairseq-pre-AF'
    """
    name = f"fairseq-{'pre' if pre else 'post'}" + (f"-{flags}" if flags else "")
    return name if final in (None, pre) else f"{name}-final" if final else f"{name}-nofinal"


@cache
def flagged(name: str) -> Placement | None:
    """The placement that a name says, None for a name of another kind."""
    said = NAME.fullmatch(name)
    if not said or said["flags"] == "" or said["end"] == ("-final" if said["norm"] == "pre" else "-nofinal"):
        return None
    flags, pre = said["flags"] or "", said["norm"] == "pre"
    final = pre if said["end"] is None else not pre
    around = Residual(pre=Norm()) if pre else Residual(post=Norm())
    heads = HeadScale() if "P" in flags else HeadScale(reads="output") if "H" in flags else None
    changes = " with " + ", ".join(_OPTION[letter] for letter in flags) if flags else ""
    return Placement(
        each=ByKind(
            attn=replace(around, out=Norm() if "A" in flags else None, head_scale=heads),
            cross=around,
            ffn=replace(around, mid=Norm() if "F" in flags else None, skip=Learned() if "R" in flags else 1.0),
        ),
        final=Norm() if final else None,
        about=("pre-ln" if pre else "post-ln")
        + changes
        + ("" if final == pre else ", a final norm" if final else ", no final norm"),
        paper="fairseq 0.12, its options",
    )
