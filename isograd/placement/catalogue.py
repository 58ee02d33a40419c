"""The catalogue: one entry per placement, in the order of the papers.

To add your own, write an entry and register it:

    from isograd.placement import Norm, Placement, Residual, register
    around = Residual(pre=Norm(), out=Norm())
    register("sandwich", Placement(each=around, final=Norm(), about="norms around the branch"))
"""

import difflib
import re
from dataclasses import replace

from isograd.errors import UnknownPlacement
from isograd.placement import laws
from isograd.placement.flags import flagged
from isograd.placement.formula import ByKind, HeadScale, Init, Learned, Norm, Placement, ProjectionNorm, Residual

N = Norm()
_PRE = Residual(pre=N)

_ATTN = Residual(pre=N, out=N, head_scale=HeadScale())
_FFN = Residual(pre=N, mid=N)
_FFN_RESSCALE = replace(_FFN, skip=Learned())

_NORMFORMER = Placement(
    each=ByKind(attn=_ATTN, cross=_PRE, ffn=_FFN),
    final=N,
    about="pre-ln with HeadScale, a norm after attention and a norm inside the feed-forward",
    paper="Shleifer et al. 2021, arXiv 2110.09456",
    note="HeadScale before W_O, as the paper writes it. Its effect on gradients shows at high learning rates, "
    "not at init.",
)
_NORMFORMER_FAIRSEQ = replace(
    _NORMFORMER,
    each=ByKind(attn=replace(_ATTN, head_scale=HeadScale(reads="output")), cross=_PRE, ffn=_FFN),
    about="normformer as it was released: HeadScale on blocks of the output of W_O",
    paper="Shleifer et al. 2021, fairseq examples/normformer",
    note="Not the paper's function: the scale acts after the heads have been mixed (fairseq issue 3973).",
)


def _with_resscale(placement: Placement) -> Placement:
    each = placement.each
    assert isinstance(each, ByKind)
    return replace(
        placement,
        each=replace(each, ffn=_FFN_RESSCALE),
        about=placement.about + ", and a learned skip on the feed-forward",
        note="ResScale helps small models; the paper leaves it out from 1.3B parameters on.",
    )


def _ablation(about: str, note: str, *, attn: Residual = _ATTN, ffn: Residual = _FFN_RESSCALE) -> Placement:
    """normformer-resscale with one thing changed, from the paper's table of ablations."""
    return Placement(
        each=ByKind(attn=attn, cross=_PRE, ffn=ffn),
        final=N,
        about=f"normformer-resscale {about}",
        paper="Shleifer et al. 2021, arXiv 2110.09456, ablations",
        note=f"The paper at 125M: PPL 15.88 with everything, {note}; pre-ln 16.37.",
    )


CATALOGUE: dict[str, Placement] = {
    "post-ln": Placement(
        each=Residual(post=N),
        about="the norm on the sum, as in the original Transformer",
        paper="Vaswani et al. 2017, arXiv 1706.03762",
        note="Needs warm-up; deep stacks fail even with it.",
    ),
    "pre-ln": Placement(
        each=_PRE,
        final=N,
        about="the norm inside the residual, before the branch, and one final norm",
        paper="Xiong et al. 2020, arXiv 2002.04745",
        note="Trains without warm-up.",
    ),
    "gpt2": Placement(
        each=_PRE,
        final=N,
        init=Init(base="normal", gain={"attn_out": laws.gpt2_init, "ffn_out": laws.gpt2_init}),
        about="pre-ln with W_O and W_2 initialized smaller with depth",
        paper="Radford et al. 2019, section 2.3",
        note="Weights are drawn from N(0, 0.02^2).",
    ),
    "normformer": _NORMFORMER,
    "normformer-resscale": _with_resscale(_NORMFORMER),
    "normformer-resscale-no-out": _ablation(
        "without the norm after attention", "15.92 without this norm", attn=replace(_ATTN, out=None)
    ),
    "normformer-resscale-no-mid": _ablation(
        "without the norm inside the feed-forward", "16.14 without this norm", ffn=replace(_FFN_RESSCALE, mid=None)
    ),
    "normformer-resscale-no-heads": _ablation(
        "without HeadScale", "16.22 without HeadScale", attn=replace(_ATTN, head_scale=None)
    ),
    "normformer-resscale-qkv": _ablation(
        "with three more norms, on queries, keys and values",
        "15.88 with three norms more, and 5 % slower",
        attn=replace(_ATTN, projections=ProjectionNorm(of=("query", "key", "value"))),
    ),
    "normformer-fairseq": _NORMFORMER_FAIRSEQ,
    "normformer-fairseq-resscale": _with_resscale(_NORMFORMER_FAIRSEQ),
    "admin": Placement(
        each=Residual(post=N, skip=Learned()),
        calibrate="admin",
        about="post-ln with a trainable skip per sublayer, set from a profile of the first batch",
        paper="Liu et al. 2020, arXiv 2004.08249",
        note="Still wants warm-up when deep: 36 layers at LR 1e-3 collapse without it, and train with 100 steps of it "
        "or at 3e-4.",
    ),
    "admin-closed": Placement(
        each=Residual(post=N, skip=Learned(init=laws.admin_closed_skip)),
        about="admin with the later closed form in place of the profile",
        paper="Liu et al., admin-torch (the author's later release)",
        note="One initial value for all sublayers of a stack; no profile needed.",
    ),
    "deepnorm": Placement(
        each=Residual(post=N, skip=laws.deepnorm_skip),
        init=Init(
            base="xavier-normal",
            gain=dict.fromkeys(("value", "attn_out", "ffn_in", "ffn_out"), laws.deepnorm_init),
        ),
        about="post-ln with a constant skip above 1 and a smaller init of the branch",
        paper="Wang et al. 2022, arXiv 2203.00555",
        note="Constants differ for encoder-only, decoder-only, and the two stacks of an encoder-decoder.",
    ),
    "qk-norm": Placement(
        each=ByKind(attn=replace(_PRE, projections=ProjectionNorm(of=("query", "key"), over="head")), ffn=_PRE),
        final=N,
        about="pre-ln with a norm on the queries and one on the keys of each head",
        paper="Dehghani et al. 2023, arXiv 2302.05442",
        note="Bounds the attention's logits, whose growth precedes many divergences. ViT-22B's norms have no bias and"
        " its sublayers run side by side; here they are pre-ln's.",
    ),
}


def get(name: str) -> Placement:
    """The entry of that name, or the one that a name of fairseq's flags says (`isograd.placement.flags`).

    Raises:
        KeyError: no such entry; the message names the nearest one.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    if (made := flagged(name)) is not None:
        return made
    near = _nearest(name)
    hint = f"did you mean {near!r}?" if near else "choose one of " + ", ".join(CATALOGUE)
    raise UnknownPlacement(
        f"unknown placement {name!r}: {hint} ('isograd list' shows all; one of your own must be registered first)"
    )


def _nearest(name: str) -> str | None:
    """However the norm is spelt (prenorm, pre_layer_norm); never a post-norm for a pre-norm, nor the reverse."""
    spelt = {_spelt(one): one for one in CATALOGUE if {one[:3], name.lower()[:3]} != {"pre", "pos"}}
    near = difflib.get_close_matches(_spelt(name), spelt, n=1, cutoff=0.6)
    return spelt[near[0]] if near else None


def _spelt(name: str) -> str:
    return re.sub("(layer)?norm", "ln", re.sub(r"\W|_", "", name.lower()))


def register(name: str, placement: Placement, *, overwrite: bool = False) -> Placement:
    """Add a placement to the catalogue, for this process.

    A model saved with it carries the placement itself, and loads where nobody has registered it.

    Raises:
        ValueError: the name is taken (pass `overwrite=True` to replace it).
    """
    if name in CATALOGUE and not overwrite:
        raise ValueError(f"placement {name!r} is in the catalogue already; pass overwrite=True to replace it")
    CATALOGUE[name] = placement
    return placement
