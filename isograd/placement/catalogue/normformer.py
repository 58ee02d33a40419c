"""NormFormer and its ablations."""

from dataclasses import replace

from isograd.placement.formula import ByKind, HeadScale, Learned, Norm, Placement, ProjectionNorm, Residual

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
    group="norm inside",
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
        group="norm inside",
    )


NORMFORMER: dict[str, Placement] = {
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
}
