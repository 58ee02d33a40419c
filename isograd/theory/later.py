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
            Case(placement="normformer", predicted=-0.5, low=-0.54, high=-0.40, foil="normformer, outputs as l^-0.5"),
            Case(placement="deepnorm", predicted=-0.5, low=-0.56, high=-0.42, foil="deepnorm, plain start"),
            Case(placement="gpt2", predicted=0.0, low=-0.05, high=0.05, foil="gpt2, W_1 as l^-0.5"),
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
        statement="The last sum of a layer grows about linearly in mean square where nothing normalizes the stream"
        " (Pre-LN, NormFormer), and is level, before its norm, where something does (Post-LN, DeepNorm).",
        number="p of mean s_l^2 ~ l^p",
        how=f"{ATTENTION}; 48 layers",
        cases=(
            Case(placement="post-ln", predicted=0.0, low=-0.02, high=0.02, foil="post-ln, outputs as l^-0.5"),
            Case(placement="deepnorm", predicted=0.0, low=-0.02, high=0.02, foil="admin"),
            Case(placement="pre-ln", predicted=1.0, low=0.8, high=1.2, foil="pre-ln, outputs as l^-0.5"),
            Case(placement="normformer", predicted=1.0, low=0.8, high=1.2, foil="normformer, outputs as l^-0.5"),
        ),
        measure=gradients.stream_exponent,
        seeds=4,
        axes=Axes(x="layer l", y="mean square of the last sum", log_x=True, log_y=True),
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
        cases=(
            Case(
                placement="post-ln",
                predicted=round(math.sqrt(2 / 3), 3),
                low=0.80,
                high=0.83,
                foil="post-ln, cross x 0.5",
            ),
        ),
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
                foil="post-ln, xavier-normal, cross x 0.5",
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
            Case(placement="pre-ln", predicted=2.2, low=1.7, high=2.8, foil="pre-ln, outputs as l^-0.5"),
            Case(placement="normformer", predicted=3.8, low=2.8, high=4.6, foil="normformer, outputs as l^-0.5"),
            Case(placement="deepnorm", predicted=1.0, low=0.85, high=1.2, foil="deepnorm, W_1 as l^-0.5"),
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
            Case(placement="pre-ln", predicted=4.5, low=3.5, high=5.8, foil="pre-ln, outputs as l^-0.5"),
            Case(placement="deepnorm", predicted=1.0, low=0.85, high=1.2, foil="deepnorm, W_1 as l^-0.5"),
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
        cases=(Case(placement="admin", predicted=0.5, low=0.45, high=0.56, foil="admin, outputs as l^-0.5"),),
        measure=depth.skip_exponent,
        seeds=8,
        axes=Axes(x="sublayer i", y="skip", log_x=True, log_y=True),
        theory=power("i"),
    ),
    Claim(
        name="amplification",
        title="how far a small change of all weights carries, against the shares of the branches",
        source=f"{LIU}, Theorem 2",
        statement="Where every weight moves by a small sign, the output of a stack moves by C times the sum of"
        " beta_ii^2, the share that each branch has in the variance of its sum. The two sides are measured apart: the"
        " change by two forward passes, the shares from the activations of one.",
        number="q of |F(x, W + e sign z) - F(x, W)|^2 / e^2 ~ (sum beta_ii^2)^q",
        how=f"{_SMALL}; depths 3 to 48, e = 1e-5",
        cases=tuple(
            Case(placement=placement, predicted=1.0, low=0.75, high=1.25, foil=f"{placement}, outputs as l^-0.5")
            for placement in ("post-ln", "pre-ln", "qk-norm", "admin", "admin-closed")
        ),
        measure=depth.dependency,
        seeds=16,
        axes=Axes(x="sum of βᵢᵢ²", y="mean square of the output's change / e²", log_x=True, log_y=True),
        theory=power("sum"),
    ),
    Claim(
        name="amplification-depth",
        title="how far a small change of all weights carries, against depth",
        source=f"{LIU}, corollaries of Theorem 2; admin-torch; {DEEPNET}; the exponents: derived here",
        statement="As a power of depth, from 6 to 96 sublayers, the change is L^1 in Post-LN and L^0 in DeepNorm, as"
        " claimed. Pre-LN's and ADMIN's O(log N) is one of large N: over these depths the sum of beta_ii^2 has the"
        " exponents 0.54 and 0.51 (0.32 in ADMIN's closed form), since the first shares are not 1/i; these are"
        f" predicted, and not the {LOGARITHM:g} of ln N. With GPT-2's start (derived here) the stream does not grow and"
        " the change is O(N).",
        number="p of |F(x, W + e sign z) - F(x, W)|^2 / e^2 ~ L^p",
        how=f"{_SMALL}; depths 3 to 48, e = 1e-5",
        cases=(
            Case(placement="post-ln", predicted=1.0, low=0.8, high=1.25, foil="normformer"),
            Case(placement="pre-ln", predicted=0.54, low=0.42, high=0.66, foil="pre-ln, outputs as l^-0.5"),
            Case(placement="qk-norm", predicted=0.54, low=0.42, high=0.66, foil="qk-norm, outputs as l^-0.5"),
            Case(placement="gpt2", predicted=1.0, low=0.8, high=1.2, foil="normformer"),
            Case(placement="admin", predicted=0.51, low=0.40, high=0.62, foil="admin, outputs as l^-0.5"),
            Case(placement="admin-closed", predicted=0.32, low=0.22, high=0.42, foil="admin-closed, outputs as l^-0.5"),
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
    Claim(
        name="amplification-linear",
        title="the same, fitted by a line in N",
        source=f"{LIU}, figure 4",
        statement="The change of Post-LN's output is a + b N over the number N of sublayers, with R^2 = 0.99.",
        number="R^2 of a + b N, of the mean over seeds",
        how=f"{_SMALL}; N = 6 to 96, e = 1e-5",
        cases=(Case(placement="post-ln", predicted=0.99, low=0.97, foil="normformer"),),
        measure=depth.explained(float),
        seeds=16,
        axes=Axes(x="sublayers N", y="mean square of the output's change / e²", log_x=True, log_y=True),
    ),
    Claim(
        name="amplification-log",
        title="the same, fitted by a line in ln N",
        source=f"{LIU}, figure 4",
        statement="The change of Pre-LN's and ADMIN's output is a + b ln N, with R^2 = 0.99.",
        number="R^2 of a + b ln N, of the mean over seeds",
        how=f"{_SMALL}; N = 6 to 96, e = 1e-5",
        cases=tuple(
            Case(placement=placement, predicted=0.99, low=0.97, foil=f"{placement}, outputs as l^-0.5")
            for placement in ("pre-ln", "admin")
        ),
        measure=depth.explained(math.log),
        seeds=16,
        axes=Axes(x="sublayers N", y="mean square of the output's change / e²", log_x=True, log_y=True),
    ),
    Claim(
        name="amplification-log-or-root",
        title="logarithm or square root: these depths do not tell",
        source=f"{LIU}, figure 4; the comparison: derived here",
        statement="Up to 96 sublayers a + b sqrt(N) fits Pre-LN and ADMIN as well as a + b ln N does: R^2 = 0.99 is no"
        " evidence for the logarithm.",
        number="R^2 of a + b ln N less that of a + b sqrt(N), mean over seeds",
        how=f"{_SMALL}; N = 6 to 96, e = 1e-5",
        cases=tuple(
            Case(placement=placement, predicted=0.0, low=-0.08, high=0.08, foil="gpt2")
            for placement in ("pre-ln", "admin")
        ),
        measure=depth.log_over_root,
        seeds=16,
        axes=Axes(x="sublayers N", y="mean square of the output's change / e²", log_x=True, log_y=True),
    ),
)
