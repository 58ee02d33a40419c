"""The claims of Xiong et al. 2020: three lemmas and the theorem."""

from isograd.theory import gradients, lemmas
from isograd.theory.claim import Axes, Case, Claim
from isograd.theory.lines import fixed, power

XIONG = "Xiong et al. 2020, arXiv 2002.04745"
THEORY = "one head, W_Q = W_K = 0, all matrices 256 x 256 from N(0, 1/d), no eps, 32 Gaussian inputs, float64"
ATTENTION = "decoder-only, width 128, 4 heads, feed-forward 512, ReLU, Xavier normal, random tokens"

XIONG_CLAIMS = (
    Claim(
        name="lemma-1",
        title="what ReLU leaves of a Gaussian vector",
        source=f"{XIONG}, Lemma 1",
        statement="X ~ N(0, s^2 I_d) has E|ReLU(X)|^2 = s^2 d / 2.",
        number="E|ReLU(X)|^2 over s^2 d / 2, the worst of five widths",
        how="a million numbers per width and seed",
        cases=(Case(placement="any", subject="relu", predicted=1.0, low=0.99, high=1.01, foil="gelu"),),
        measure=lemmas.lemma_1,
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
                placement="post-ln", predicted=1.5, low=lemmas.LEVEL[0], high=lemmas.LEVEL[1], foil="post-ln, W_2 x 1.2"
            ),
        ),
        measure=lemmas.lemma_2_level,
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
                predicted=lemmas.GROWTH,
                low=lemmas.GROWTH[0],
                high=lemmas.GROWTH[1],
                foil="pre-ln, W_2 x 0.5",
            ),
        ),
        measure=lemmas.lemma_2_growth,
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
        cases=(Case(placement="any", subject="layernorm", predicted=0.0, low=-1e-10, high=1e-10, foil="rmsnorm"),),
        measure=lemmas.lemma_3,
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
            Case(placement="post-ln", predicted=0.0, low=-0.05, high=0.05, foil="post-ln, W_1 as l^-0.5"),
            Case(placement="pre-ln", predicted=-0.5, low=-0.68, high=-0.42, foil="pre-ln, outputs as l^-0.5"),
        ),
        measure=gradients.theory_exponent,
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
            Case(placement="post-ln", predicted=0.0, low=-0.05, high=0.05, foil="post-ln, W_1 as l^-0.5"),
            Case(placement="pre-ln", predicted=-0.5, low=-0.65, high=-0.42, foil="pre-ln, outputs as l^-0.5"),
        ),
        measure=gradients.attention_exponent,
        seeds=8,
        axes=Axes(x="layers L", y="|gradient of W₂|, last layer", log_x=True, log_y=True),
        theory=power("L"),
    ),
)
