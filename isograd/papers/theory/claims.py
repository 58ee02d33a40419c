"""All claims, in the order of the papers: a row each; and how they are judged. No torch: see `measures.py`."""

import difflib
import math
from collections.abc import Iterator, Sequence

from isograd.errors import UnknownClaim
from isograd.lab.statistics import exponent
from isograd.papers.theory.claim import Axes, Case, Claim, Verdict
from isograd.papers.theory.curves import factor, fixed, from_first, power
from isograd.papers.theory.residual_claims import RESIDUAL_CLAIMS

XIONG = "Xiong et al. 2020, arXiv 2002.04745"
THEORY = "one head, W_Q = W_K = 0, all matrices 256 x 256 from N(0, 1/d), no eps, 32 Gaussian inputs, float64"
ATTENTION = "decoder-only, width 128, 4 heads, feed-forward 512, ReLU, Xavier normal, random tokens"
LIU = "Liu et al. 2020, arXiv 2004.08249"
NORMFORMER = "Shleifer et al. 2021, arXiv 2110.09456"
DEEPNET = "Wang et al. 2022, arXiv 2203.00555"

_OWN = "decoder-only, width 128, 4 heads, feed-forward 512, ReLU, each placement's own init, random tokens"
_SMALL = "decoder-only, width 64, 4 heads, feed-forward 256, ReLU, each placement's own init, float64"
_STACKS = "encoder-decoder of 6 + 6, 12 + 12 and 24 + 24 layers, width 256, 4 heads, random tokens"

PRE_LN_GROWTH = (0.5, 1.5)  # of |x_l|^2 / d per layer: Lemma 2 for Pre-LN
POST_LN_LEVEL = (1.40, 1.62)  # of |x_l|^2 / d: Lemma 2 for Post-LN, 3/2 with what finite widths and seeds leave
AMPLIFIED = (3, 6, 12, 18, 24, 36, 48)  # layers, of the claims about a change of the output
# what O(ln N) sublayers would show as a power of L over these depths: 0.33
LOGARITHM = round(exponent(AMPLIFIED, [math.log(2 * layers) for layers in AMPLIFIED]), 2)

_ROWS = (
    Claim(
        name="lemma-1",
        title="what ReLU leaves of a Gaussian vector",
        source=f"{XIONG}, Lemma 1",
        statement="X ~ N(0, s^2 I_d) has E|ReLU(X)|^2 = s^2 d / 2.",
        number="E|ReLU(X)|^2 over s^2 d / 2, the worst of five widths",
        how="a million numbers per width and seed",
        cases=(Case(placement="any", subject="relu", predicted=1.0, low=0.99, high=1.01, control="gelu"),),
        seeds=2,
        axes=Axes(x="width d", y="E|ReLU(X)|² / s²", log_x=True, log_y=True),
        theory=fixed("d / 2", lambda d: d / 2),
    ),
    Claim(
        name="lemma-2-post-ln",
        title="the stream of Post-LN stays as it is",
        source=f"{XIONG}, Lemma 2",
        statement="In Post-LN the sum before the last LayerNorm has E|x_l|^2 = 3/2 d after every layer.",
        number="|x_l|^2 / d, of the layer that lies farthest out",
        how=f"{THEORY}; 48 layers",
        cases=(
            Case(
                placement="post-ln",
                predicted=1.5,
                low=POST_LN_LEVEL[0],
                high=POST_LN_LEVEL[1],
                control="post-ln, W_2 x 1.2",
            ),
        ),
        seeds=24,
        axes=Axes(x="layer l", y="|x_l|² / d"),
        theory=fixed("3/2", lambda _: 1.5),
    ),
    Claim(
        name="lemma-2-pre-ln",
        title="the stream of Pre-LN grows",
        source=f"{XIONG}, Lemma 2",
        statement="In Pre-LN (1 + l/2) d <= E|x_l|^2 <= (1 + 3l/2) d after every layer l.",
        number="(|x_l|^2 / d - 1) / l, of the layer that lies farthest out",
        how=f"{THEORY}; 48 layers",
        cases=(
            Case(
                placement="pre-ln",
                predicted=PRE_LN_GROWTH,
                low=PRE_LN_GROWTH[0],
                high=PRE_LN_GROWTH[1],
                control="pre-ln, W_2 x 0.5",
            ),
        ),
        seeds=24,
        axes=Axes(x="layer l", y="|x_l|² / d", log_x=True, log_y=True),
        theory=fixed("between 1 + l/2 and 1 + 3l/2", lambda x: 1 + x / 2, lambda x: 1 + 1.5 * x),
    ),
    Claim(
        name="lemma-3",
        title="the Jacobian of LayerNorm",
        source=f"{XIONG}, Lemma 3 (its proof gives equality)",
        statement="The spectral norm of LayerNorm's Jacobian at x is 1 / std(x).",
        number="|J|_2 std(x) - 1, of the worst input",
        how="by autograd in float64, 64 features, five scales per seed, inputs whose mean is not 0",
        cases=(Case(placement="any", subject="layernorm", predicted=0.0, low=-1e-10, high=1e-10, control="rmsnorm"),),
        seeds=4,
        axes=Axes(x="std(x)", y="spectral norm of the Jacobian", log_x=True, log_y=True),
        theory=fixed("1 / std(x)", lambda x: 1 / x),
    ),
    Claim(
        name="theorem-1",
        title="the gradient of the last feed-forward, in the setting of the theorem",
        source=f"{XIONG}, Theorem 1",
        statement="An upper bound, for the last layer only: |dL/dW_2 of layer L| is O(d sqrt(ln d)) in Post-LN,"
        " whatever L, and O(d sqrt(ln d / L)) in Pre-LN. Measured is the exponent of L itself, which the bound does"
        " not promise: in Pre-LN it is steeper than -1/2, since the stream grows faster than its lower bound.",
        number="p of |dL/dW_2| ~ L^p",
        how=f"{THEORY}; depths 2 to 48",
        cases=(
            Case(placement="post-ln", predicted=0.0, low=-0.05, high=0.05, control="post-ln, W_1 as l^-0.5"),
            Case(placement="pre-ln", predicted=-0.5, low=-0.68, high=-0.42, control="pre-ln, outputs as l^-0.5"),
        ),
        seeds=24,
        axes=Axes(x="layers L", y="|gradient of W₂|, last layer", log_x=True, log_y=True),
        theory=power("L"),
    ),
    Claim(
        name="theorem-1-attention",
        title="the gradient of the last feed-forward, with real attention",
        source=f"{XIONG}, Theorem 1 and figure 3",
        statement="The same upper bound for the last layer only, outside the assumptions under which it is proved.",
        number="p of |dL/dW_2| ~ L^p",
        how=f"{ATTENTION}; depths 2 to 48",
        cases=(
            Case(placement="post-ln", predicted=0.0, low=-0.05, high=0.05, control="post-ln, W_1 as l^-0.5"),
            Case(placement="pre-ln", predicted=-0.5, low=-0.65, high=-0.42, control="pre-ln, outputs as l^-0.5"),
        ),
        seeds=8,
        axes=Axes(x="layers L", y="|gradient of W₂|, last layer", log_x=True, log_y=True),
        theory=power("L"),
    ),
    Claim(
        name="last-layer-exponents",
        title="the gradient of the last feed-forward in later placements",
        source=f"{XIONG}, the mechanism of Theorem 1; {NORMFORMER}; {DEEPNET}; the exponents: derived here",
        statement="The last layer's gradient falls as L^-1/2 in NormFormer, whose stream grows as Pre-LN's, and in"
        " DeepNorm, where the skip (2L)^(1/4) and the init gain (8L)^(-1/4) each take L^-1/4; with GPT-2's init the"
        " stream does not grow, and the gradient stays.",
        number="p of |dL/dW_2| ~ L^p",
        how=f"{ATTENTION}; depths 2 to 48",
        cases=(
            Case(
                placement="normformer", predicted=-0.5, low=-0.54, high=-0.40, control="normformer, outputs as l^-0.5"
            ),
            Case(placement="deepnorm", predicted=-0.5, low=-0.56, high=-0.42, control="deepnorm, plain init"),
            Case(placement="gpt2", predicted=0.0, low=-0.05, high=0.05, control="gpt2, W_1 as l^-0.5"),
        ),
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
            Case(placement="post-ln", predicted=0.0, low=-0.02, high=0.02, control="post-ln, outputs as l^-0.5"),
            Case(placement="deepnorm", predicted=0.0, low=-0.02, high=0.02, control="admin"),
            Case(placement="pre-ln", predicted=1.0, low=0.8, high=1.2, control="pre-ln, outputs as l^-0.5"),
            Case(placement="normformer", predicted=1.0, low=0.8, high=1.2, control="normformer, outputs as l^-0.5"),
        ),
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
        " gradient down that stream, so that 1 / sqrt(1 + v) is left; v = 1/2 with W_Q, W_K, W_V drawn as one.",
        number="factor per layer, going down",
        how=f"{_STACKS}; Xavier uniform, W_Q, W_K, W_V as one matrix",
        cases=(
            Case(
                placement="post-ln",
                predicted=round(math.sqrt(2 / 3), 3),
                low=0.80,
                high=0.83,
                control="post-ln, cross x 0.5",
            ),
        ),
        seeds=4,
        axes=Axes(x="layers below the last", y="|gradient of W₂| / last layer's", log_y=True),
        theory=factor,
    ),
    Claim(
        name="decoder-vanishing-xavier",
        title="the same, with every matrix drawn by Xavier's rule",
        source=f"{LIU}, Theorem 1; the factor: derived here",
        statement="With W_V drawn by Xavier's rule by itself the cross-attention adds variance v = 1, and"
        " 1 / sqrt(1 + v) = sqrt(1/2) per layer is left: the factor is that of the init, not one of Post-LN.",
        number="factor per layer, going down",
        how=f"{_STACKS}; Xavier normal, every matrix apart",
        cases=(
            Case(
                placement="post-ln",
                subject="post-ln, xavier-normal",
                predicted=round(math.sqrt(1 / 2), 3),
                low=0.68,
                high=0.73,
                control="post-ln, xavier-normal, cross x 0.5",
            ),
        ),
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
        how=f"{_STACKS}; Xavier uniform, W_Q, W_K, W_V as one matrix",
        cases=(Case(placement="post-ln", predicted=1.0, low=0.95, high=1.01, control="pre-ln"),),
        seeds=4,
        axes=Axes(x="layers below the last", y="|gradient of W₂| / last layer's", log_y=True),
        theory=factor,
    ),
    Claim(
        name="mismatch-12",
        title="first over last layer at initialization, 12 layers",
        source=f"{NORMFORMER}, figure 3; {DEEPNET}",
        statement="At initialization Pre-LN's gradients are larger in the first layer than in the last, NormFormer's"
        " too, and more so (it evens them out in training at high rates, not at initialization); DeepNorm's are level.",
        number="|dL/dW_2| of the first layer over that of the last",
        how=f"{_OWN}; 12 layers",
        cases=(
            Case(placement="pre-ln", predicted=2.2, low=1.7, high=2.8, control="pre-ln, outputs as l^-0.5"),
            Case(placement="normformer", predicted=3.8, low=2.8, high=4.6, control="normformer, outputs as l^-0.5"),
            Case(placement="deepnorm", predicted=1.0, low=0.85, high=1.2, control="deepnorm, W_1 as l^-0.5"),
        ),
        seeds=8,
        axes=Axes(x="layer", y="|gradient of W₂| / last layer's", log_y=True),
    ),
    Claim(
        name="mismatch-48",
        title="first over last layer at initialization, 48 layers",
        source=f"{NORMFORMER}, figure 3; {DEEPNET}",
        statement="The mismatch of Pre-LN grows with depth; DeepNorm has none.",
        number="|dL/dW_2| of the first layer over that of the last",
        how=f"{_OWN}; 48 layers",
        cases=(
            Case(placement="pre-ln", predicted=4.5, low=3.5, high=5.8, control="pre-ln, outputs as l^-0.5"),
            Case(placement="deepnorm", predicted=1.0, low=0.85, high=1.2, control="deepnorm, W_1 as l^-0.5"),
        ),
        seeds=8,
        axes=Axes(x="layer", y="|gradient of W₂| / last layer's", log_y=True),
    ),
    Claim(
        name="admin-skip",
        title="the skips that ADMIN's profile finds",
        source=f"{LIU}, its initialization",
        statement="ADMIN's skip grows as sqrt(i) with the sublayer i: each branch adds about the same variance.",
        number="p of skip_i ~ i^p, from sublayer 20 on",
        how=f"{ATTENTION}; 48 layers",
        cases=(Case(placement="admin", predicted=0.5, low=0.45, high=0.56, control="admin, outputs as l^-0.5"),),
        seeds=8,
        axes=Axes(x="sublayer i", y="skip", log_x=True, log_y=True),
        theory=power("i"),
    ),
    Claim(
        name="amplification",
        title="sensitivity to a small change of all weights, against the shares of the branches",
        source=f"{LIU}, Theorem 2",
        statement="Where every weight moves by a small sign, the output of a stack moves by C times the sum of"
        " beta_ii^2, the share that each branch has in the variance of its sum. The two sides are measured apart: the"
        " change by two forward passes, the shares from the activations of one.",
        number="q of |F(x, W + e sign z) - F(x, W)|^2 / e^2 ~ (sum beta_ii^2)^q",
        how=f"{_SMALL}; depths 3 to 48, e = 1e-5",
        cases=tuple(
            Case(placement=placement, predicted=1.0, low=0.75, high=1.25, control=f"{placement}, outputs as l^-0.5")
            for placement in ("post-ln", "pre-ln", "qk-norm", "admin", "admin-closed")
        ),
        seeds=16,
        axes=Axes(x="sum of βᵢᵢ²", y="mean square of the output's change / e²", log_x=True, log_y=True),
        theory=power("sum"),
    ),
    Claim(
        name="amplification-depth",
        title="sensitivity to a small change of all weights, against depth",
        source=f"{LIU}, corollaries of Theorem 2; admin-torch; {DEEPNET}; the exponents: derived here",
        statement="As a power of depth, from 6 to 96 sublayers, the change is L^1 in Post-LN and L^0 in DeepNorm, as"
        " claimed. Pre-LN's and ADMIN's O(log N) is one of large N: over these depths the sum of beta_ii^2 has the"
        " exponents 0.54 and 0.51 (0.32 in ADMIN's closed form), since the first shares are not 1/i; these are"
        f" predicted, and not the {LOGARITHM:g} of ln N. With GPT-2's init (derived here) the stream does not grow and"
        " the change is O(N).",
        number="p of |F(x, W + e sign z) - F(x, W)|^2 / e^2 ~ L^p",
        how=f"{_SMALL}; depths 3 to 48, e = 1e-5",
        cases=(
            Case(placement="post-ln", predicted=1.0, low=0.8, high=1.25, control="normformer"),
            Case(placement="pre-ln", predicted=0.54, low=0.42, high=0.66, control="pre-ln, outputs as l^-0.5"),
            Case(placement="qk-norm", predicted=0.54, low=0.42, high=0.66, control="qk-norm, outputs as l^-0.5"),
            Case(placement="gpt2", predicted=1.0, low=0.8, high=1.2, control="normformer"),
            Case(placement="admin", predicted=0.51, low=0.40, high=0.62, control="admin, outputs as l^-0.5"),
            Case(
                placement="admin-closed", predicted=0.32, low=0.22, high=0.42, control="admin-closed, outputs as l^-0.5"
            ),
            Case(placement="deepnorm", predicted=0.0, low=-0.05, high=0.05, control="deepnorm, plain init"),
        ),
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
        cases=(Case(placement="post-ln", predicted=0.99, low=0.97, control="normformer"),),
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
            Case(placement=placement, predicted=0.99, low=0.97, control=f"{placement}, outputs as l^-0.5")
            for placement in ("pre-ln", "admin")
        ),
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
            Case(placement=placement, predicted=0.0, low=-0.08, high=0.08, control="gpt2")
            for placement in ("pre-ln", "admin")
        ),
        seeds=16,
        axes=Axes(x="sublayers N", y="mean square of the output's change / e²", log_x=True, log_y=True),
    ),
)
CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (*_ROWS, *RESIDUAL_CLAIMS)}


def chosen(names: Sequence[str]) -> list[Claim]:
    """The claims of these names, each once and in the order of the papers; all where none is named.

    Raises:
        UnknownClaim: a name that no claim has; the message names the nearest one.
    """
    for name in names:
        if name not in CLAIMS:
            near = difflib.get_close_matches(name, CLAIMS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "choose among " + ", ".join(CLAIMS)
            raise UnknownClaim(f"unknown claim {name!r}: {hint}")
    return [claim for claim in CLAIMS.values() if not names or claim.name in names]


def verdicts(claims: Sequence[Claim], seeds: int | None = None) -> Iterator[Verdict]:
    """Measure every case of these claims."""
    for claim in claims:
        for case in claim.cases:
            yield claim.verdict(case, seeds)


def negative_controls(claims: Sequence[Claim], seeds: int | None = None) -> Iterator[Verdict]:
    """Measure every negative control of these claims; none of these verdicts may hold."""
    for claim in claims:
        for case in claim.cases:
            yield claim.control(case, seeds)
