"""The claims that came after Xiong et al.: of ADMIN, NormFormer, DeepNorm, and what follows from them."""

import math

from isograd.theory import depth, gradients
from isograd.theory.claim import Axes, Case, Claim
from isograd.theory.fit import exponent
from isograd.theory.lines import factor, from_first, power
from isograd.theory.xiong import ATTENTION, XIONG

LIU = "Liu et al. 2020, arXiv 2004.08249"
NORMFORMER = "Shleifer et al. 2021, arXiv 2110.09456"
DEEPNET = "Wang et al. 2022, arXiv 2203.00555"

_OWN = "decoder-only, width 128, 4 heads, feed-forward 512, ReLU, each placement's own start, random tokens"
_SMALL = "decoder-only, width 64, 4 heads, feed-forward 256, ReLU, each placement's own start, float64"
_TOWERS = "encoder-decoder of 6 + 6, 12 + 12 and 24 + 24 layers, width 256, 4 heads, random tokens"

# what O(ln N) sublayers would show as a power of L over these depths: 0.33
LOGARITHM = round(exponent(depth.DEPTHS, [math.log(2 * layers) for layers in depth.DEPTHS]), 2)

LATER_CLAIMS = (
    Claim(
        name="last-layer-exponents",
        title="the gradient of the last feed-forward in later placements",
        source=f"{XIONG}, the mechanism of Theorem 1; {NORMFORMER}; {DEEPNET}; the exponents: derived here",
        statement="The last layer's gradient falls as L^-1/2 in NormFormer, whose stream grows as Pre-LN's, and in"
        " DeepNorm, where the skip (2L)^(1/4) and the start (8L)^(-1/4) each take L^-1/4; with GPT-2's start the stream"
        " does not grow, and the gradient stays.",
        number="p of |dL/dW_2| ~ L^p",
        how=f"{ATTENTION}; depths 2 to 48",
        cases=(
            Case(placement="normformer", predicted=-0.5, low=-0.54, high=-0.40, foil="post-ln"),
            Case(placement="deepnorm", predicted=-0.5, low=-0.56, high=-0.42, foil="deepnorm, plain start"),
            Case(placement="gpt2", predicted=0.0, low=-0.05, high=0.05, foil="pre-ln"),
        ),
        measure=gradients.attention_exponent,
        seeds=8,
        axes=Axes(x="layers L", y="|gradient of W₂|, last layer", log_x=True, log_y=True),
        theory=power("L"),
    ),
    Claim(
        name="hidden-state-growth",
        title="the stream with real attention",
        source=f"{XIONG}, Lemma 2; {NORMFORMER}",
        statement="The mean square of the stream grows about linearly with the layer where nothing normalises it"
        " (Pre-LN, NormFormer), and is the norm's where something does (Post-LN, DeepNorm).",
        number="p of mean x_l^2 ~ l^p",
        how=f"{ATTENTION}; 48 layers",
        cases=(
            Case(placement="post-ln", predicted=0.0, low=-0.01, high=0.01, foil="pre-ln"),
            Case(placement="deepnorm", predicted=0.0, low=-0.01, high=0.01, foil="gpt2"),
            Case(placement="pre-ln", predicted=1.0, low=0.8, high=1.2, foil="post-ln"),
            Case(placement="normformer", predicted=1.0, low=0.8, high=1.2, foil="gpt2"),
        ),
        measure=gradients.stream_exponent,
        seeds=4,
        axes=Axes(x="layer l", y="mean square of the stream", log_x=True, log_y=True),
        theory=power("l"),
    ),
    Claim(
        name="decoder-vanishing",
        title="gradients vanish in a Post-LN decoder that reads an encoder",
        source=f"{LIU}, Theorem 1; {XIONG}, appendix, for the factor",
        statement="Going down the decoder of a Post-LN encoder-decoder the gradient of W_2 falls by about sqrt(2/3) per"
        " layer. Here it is the cross-attention that does it: it adds variance v to a stream of variance 1 and sends no"
        " gradient down that stream, so that 1 / sqrt(1 + v) is left; v = 1/2 with W_Q, W_K, W_V started as one.",
        number="factor per layer, going down",
        how=f"{_TOWERS}; Xavier uniform, W_Q, W_K, W_V as one matrix",
        cases=(Case(placement="post-ln", predicted=round(math.sqrt(2 / 3), 3), low=0.80, high=0.83, foil="pre-ln"),),
        measure=gradients.per_layer("decoder"),
        seeds=4,
        axes=Axes(x="layers below the last", y="|gradient of W₂| / last layer's", log_y=True),
        theory=factor,
    ),
    Claim(
        name="decoder-vanishing-xavier",
        title="the same, with every matrix started by Xavier",
        source=f"{LIU}, Theorem 1; the factor: derived here",
        statement="With W_V drawn by Xavier's rule by itself the cross-attention adds variance v = 1, and"
        " 1 / sqrt(1 + v) = sqrt(1/2) per layer is left: the factor is that of the start, not one of Post-LN.",
        number="factor per layer, going down",
        how=f"{_TOWERS}; Xavier normal, every matrix apart",
        cases=(
            Case(
                placement="post-ln",
                subject="post-ln, xavier-normal",
                predicted=round(math.sqrt(1 / 2), 3),
                low=0.68,
                high=0.73,
                foil="post-ln",
            ),
        ),
        measure=gradients.per_layer("decoder"),
        seeds=4,
        axes=Axes(x="layers below the last", y="|gradient of W₂| / last layer's", log_y=True),
        theory=factor,
    ),
    Claim(
        name="encoder-level",
        title="gradients are level in the encoder of the same model",
        source=f"{LIU}, Theorem 1 and its discussion",
        statement="In the encoder of a Post-LN encoder-decoder the gradient of W_2 does not vanish.",
        number="factor per layer, going down",
        how=f"{_TOWERS}; Xavier uniform, W_Q, W_K, W_V as one matrix",
        cases=(Case(placement="post-ln", predicted=1.0, low=0.95, high=1.01, foil="pre-ln"),),
        measure=gradients.per_layer("encoder"),
        seeds=4,
        axes=Axes(x="layers below the last", y="|gradient of W₂| / last layer's", log_y=True),
        theory=factor,
    ),
    Claim(
        name="mismatch-12",
        title="first over last layer at the start, 12 layers",
        source=f"{NORMFORMER}, figure 3; {DEEPNET}",
        statement="At the start Pre-LN's gradients are larger in the first layer than in the last, NormFormer's too,"
        " and more so (it evens them out in training at high rates, not at the start); DeepNorm's are level.",
        number="|dL/dW_2| of the first layer over that of the last",
        how=f"{_OWN}; 12 layers",
        cases=(
            Case(placement="pre-ln", predicted=2.2, low=1.7, high=2.8, foil="deepnorm"),
            Case(placement="normformer", predicted=3.8, low=2.8, high=4.6, foil="pre-ln"),
            Case(placement="deepnorm", predicted=1.0, low=0.85, high=1.2, foil="pre-ln"),
        ),
        measure=gradients.first_over_last(12),
        seeds=8,
        axes=Axes(x="layer", y="|gradient of W₂| / last layer's", log_y=True),
    ),
    Claim(
        name="mismatch-48",
        title="first over last layer at the start, 48 layers",
        source=f"{NORMFORMER}, figure 3; {DEEPNET}",
        statement="The mismatch of Pre-LN grows with depth; DeepNorm has none.",
        number="|dL/dW_2| of the first layer over that of the last",
        how=f"{_OWN}; 48 layers",
        cases=(
            Case(placement="pre-ln", predicted=4.5, low=3.5, high=5.8, foil="deepnorm"),
            Case(placement="deepnorm", predicted=1.0, low=0.85, high=1.2, foil="pre-ln"),
        ),
        measure=gradients.first_over_last(48),
        seeds=8,
        axes=Axes(x="layer", y="|gradient of W₂| / last layer's", log_y=True),
    ),
    Claim(
        name="admin-skip",
        title="the skips that ADMIN's profile finds",
        source=f"{LIU}, its initialisation",
        statement="ADMIN's skip grows as sqrt(i) with the sublayer i: each branch adds about the same variance.",
        number="p of skip_i ~ i^p, from sublayer 20 on",
        how=f"{ATTENTION}; 48 layers",
        cases=(Case(placement="admin", predicted=0.5, low=0.45, high=0.56, foil="admin, skip 1"),),
        measure=depth.skip_exponent,
        seeds=8,
        axes=Axes(x="sublayer i", y="skip", log_x=True, log_y=True),
        theory=power("i"),
    ),
    Claim(
        name="amplification",
        title="how far a small change of all weights carries",
        source=f"{LIU}, Theorem 2 and its corollaries; admin-torch; {DEEPNET}",
        statement="The output of a stack moves by O(N) where every weight moves by a small sign in Post-LN, by O(log N)"
        " in Pre-LN and ADMIN, by O(1) in DeepNorm. A fit of ln N over these depths has the exponent"
        f" {LOGARITHM:g}; measured exponents of Pre-LN and ADMIN lie above it. With GPT-2's start (derived here) the"
        " stream does not grow and the change is O(N).",
        number="p of |F(x, W + e sign z) - F(x, W)|^2 / e^2 ~ L^p",
        how=f"{_SMALL}; depths 3 to 48, e = 1e-5",
        cases=(
            Case(placement="post-ln", predicted=1.0, low=1.0, foil="pre-ln"),
            Case(placement="pre-ln", predicted=LOGARITHM, high=0.75, foil="post-ln"),
            Case(placement="qk-norm", predicted=LOGARITHM, high=0.75, foil="post-ln"),
            Case(placement="normformer", predicted=LOGARITHM, high=0.75, foil="post-ln"),
            Case(placement="gpt2", predicted=1.0, low=0.8, high=1.2, foil="pre-ln"),
            Case(placement="admin", predicted=LOGARITHM, high=0.75, foil="admin, skip 1"),
            Case(placement="admin-closed", predicted=LOGARITHM, high=0.45, foil="admin-closed, skip 1"),
            Case(placement="deepnorm", predicted=0.0, low=-0.05, high=0.05, foil="deepnorm, plain start"),
        ),
        measure=depth.amplification,
        seeds=16,
        axes=Axes(x="layers L", y="mean square of the output's change / e²", log_x=True, log_y=True),
        theory=from_first(
            post_ln=("O(N)", lambda layers: layers),
            pre_ln=("O(log N)", lambda layers: math.log(2 * layers)),
            deepnorm=("O(1)", lambda _: 1.0),
        ),
    ),
)
