"""Claims about the residual connections of 2020 to 2026: a row each, in the order of the catalogue.

Statements are those of the papers, or follow from their equations. What is false here is kept as a case that says why.
"""

from isograd.papers.theory.claim import Axes, Case, Claim
from isograd.papers.theory.curves import fixed, power

THEORY = "the setting of Xiong et al.'s theorem; 48 layers"
SMALL = "decoder-only, width 64, 4 heads, feed-forward 256, ReLU, each placement's own init, float64, 4 x 32 tokens"
WIDER = "decoder-only, width 128, 4 heads, feed-forward 512, ReLU, each placement's own init, random tokens"
_LAYER, _SUBLAYER = "layer", "sublayer n"

RESIDUAL_CLAIMS = (
    Claim(
        name="keel-shares",
        title="KEEL's branches are small beside its skip",
        source="KEEL 2026, arXiv 2601.19895; the number: derived here",
        statement="The skip of KEEL is the number of sublayers 2L, so the shares beta_ii^2 of its branches sum to at"
        " most"
        " 1 / (2L) where a branch has variance 1: 0.0104 at 48 layers. Post-LN's sum to more than 20.",
        number="sum of beta_ii^2 over the sublayers",
        how=f"{SMALL}; 48 layers",
        cases=(
            Case(placement="keel", predicted=0.0104, high=0.0105, control="keel, outputs x 4"),
            Case(placement="post-ln", predicted=24.0, low=20.0, control="post-ln, outputs as l^-0.5"),
        ),
        seeds=4,
        axes=Axes(x="layers L", y="sum of βᵢᵢ²", log_y=True),
    ),
    Claim(
        name="keel-gradients",
        title="KEEL's gradients are level",
        source="KEEL 2026, arXiv 2601.19895; the interval: derived here",
        statement="At initialization the first and the last layer of KEEL have the same gradient.",
        number="|dL/dW_2| of the first layer over that of the last",
        how=f"{WIDER}; 48 layers",
        cases=(Case(placement="keel", predicted=1.0, low=0.9, high=1.1, control="keel, W_1 as l^-0.5"),),
        seeds=4,
        axes=Axes(x=_LAYER, y="|gradient of W₂| / last layer's", log_y=True),
    ),
    Claim(
        name="keel-sensitivity",
        title="KEEL's sensitivity to a small change of all weights falls with depth",
        source="KEEL 2026, arXiv 2601.19895; the exponent: derived here",
        statement="The output's change falls at least as L^-1/2; it falls as L^-1, since each branch has a share of"
        " 1 / (2L)^2.",
        number="p of |F(x, W + e sign z) - F(x, W)|^2 / e^2 ~ L^p",
        how=f"{SMALL}; depths 3 to 48, e = 1e-5",
        cases=(Case(placement="keel", predicted=-1.0, high=-0.5, control="keel, skips x 0.01"),),
        seeds=4,
        axes=Axes(x="layers L", y="mean square of the output's change / e²", log_x=True, log_y=True),
        theory=power("L"),
    ),
    Claim(
        name="branch-norm-scale",
        title="a norm after the branch makes its size that of no weight",
        source="Kim et al. 2025, arXiv 2502.02732; Ding et al. 2021, arXiv 2105.13290",
        statement="With W_O and W_2 of every layer multiplied by 100 the logits hardly change: what remains is the"
        " eps of"
        " the norm.",
        number="largest change of a logit over the logits' root mean square",
        how=f"{SMALL}; 12 layers",
        cases=tuple(
            Case(placement=placement, predicted=0.0, high=1e-3, control=f"{placement}, eps x 100000")
            for placement in ("sandwich", "peri-ln")
        ),
        seeds=2,
        axes=Axes(x="", y="largest change of a logit", log_y=True),
    ),
    Claim(
        name="branch-norm-growth",
        title="the stream grows by 1 per sublayer where what is added has variance 1",
        source="Kim et al. 2025, arXiv 2502.02732; OLMo 2 team 2024, arXiv 2501.00656; derived here",
        statement="With a norm on what each branch wrote the mean square of the stream after n sublayers is n above"
        " that of"
        " the embedding (1 + n in Peri-LN). In OLMo 2, too: activations do not stay level, they grow as sqrt(n).",
        number="(E x_n^2 - E x_0^2) / n, of the sublayer that lies farthest from 1",
        how=f"{SMALL}; 12 layers",
        cases=tuple(
            Case(placement=placement, predicted=1.0, low=0.85, high=1.15, control=f"{placement}, outputs as l^-0.5")
            for placement in ("peri-ln", "sandwich", "olmo2")
        ),
        seeds=8,
        axes=Axes(x=_SUBLAYER, y="(E xₙ² - E x₀²) / n"),
        theory=fixed("1", lambda _: 1.0),
    ),
    Claim(
        name="layernorm-scaling-growth",
        title="LayerNorm Scaling keeps the stream small",
        source="Sun et al. 2025, arXiv 2502.05795; the numbers: derived here",
        statement="With the norm's output times 1 / sqrt(l) in layer l the stream grows as 1 + v ln L: below 10 at 48"
        " layers, where Pre-LN's is above 40.",
        number="|x_L|^2 / d after the last layer",
        how=THEORY,
        cases=(
            Case(
                placement="layernorm-scaling", predicted=5.5, high=10.0, control="layernorm-scaling, outputs as l^0.5"
            ),
            Case(placement="pre-ln", predicted=49.0, low=40.0, control="pre-ln, outputs as l^-0.5"),
        ),
        seeds=4,
        axes=Axes(x="layer l", y="|x_l|² / d", log_x=True, log_y=True),
    ),
    Claim(
        name="layerscale-sensitivity",
        title="LayerScale's sensitivity to a small change of all weights is the square of its scale",
        source="Touvron et al. 2021, arXiv 2103.17239; the square: derived here",
        statement="With scales of 1e-4 the output moves 1e-8 as much, within a factor of 2, as with scales of 1."
        " False at"
        " 12 layers, since at 1 the stream grows and its final norm divides by that; between 1e-4 and 1e-2 it is true.",
        number="change at 1e-4 over that at the larger scale, times the square of their ratio",
        how=f"{SMALL}; 12 layers, e = 1e-5",
        cases=(
            Case(
                placement="layerscale",
                subject="layerscale, scales x 100",
                predicted=1.0,
                low=0.5,
                high=2.0,
                control="layerscale, scales x 100, scales noise 0.02",
            ),
            Case(
                placement="layerscale",
                subject="layerscale, scales x 10000",
                predicted=1.0,
                low=0.5,
                high=2.0,
                control="layerscale, scales x 10000, outputs as l^-0.5",
                refuted="with scales of 1 the stream grows, and its final norm divides the change by that",
            ),
        ),
        seeds=8,
        axes=Axes(x="larger scale / 1e-4", y="change at 1e-4 / change, times the ratio squared"),
    ),
    Claim(
        name="identity-at-init",
        title="a stack that begins as its embedding",
        source="Bachlechner et al. 2020, arXiv 2003.04887; De and Smith 2020, arXiv 2002.10444; Huang et al. 2020",
        statement="Where branches begin at 0 a stack of L layers and one of 2L give the same logits, bit for bit."
        " True of"
        " ReZero and SkipInit; false of T-Fixup, which is often named with them: its branches begin small, not at 0.",
        number="largest difference of a logit over the logits' root mean square",
        how=f"{SMALL}; 6 and 12 layers, the 6 being the first of the 12",
        cases=(
            *(
                Case(placement=placement, predicted=0.0, low=0.0, high=0.0, control=f"{placement}, scales noise 0.1")
                for placement in ("rezero", "skipinit")
            ),
            Case(
                placement="t-fixup",
                predicted=0.0,
                low=0.0,
                high=0.0,
                control="t-fixup, outputs x 2",
                refuted="its branches begin small, not at 0",
            ),
        ),
        seeds=2,
        axes=Axes(x="", y="largest difference of a logit"),
    ),
    Claim(
        name="variance-gate-level",
        title="a^2 + b^2 = 1 keeps the variance of the stream",
        source="Muse Spark 2026, as released; derived here",
        statement="With sqrt(1 - b^2) on the skip and b on a branch of variance 1 the stream keeps its variance"
        " within 10 %"
        " at every depth. True where the embedding has variance 1; from token vectors drawn with a std of 0.02 the"
        " stream"
        " grows to 1 first.",
        number="E x_n^2 / E x_0^2 - 1, of the sublayer that lies farthest from 0",
        how=f"{SMALL}, but width 128 and no positions; 12 layers",
        cases=(
            Case(
                placement="variance-gate",
                predicted=0.0,
                low=-0.1,
                high=0.1,
                control="variance-gate, outputs as l^-0.5",
            ),
            Case(
                placement="variance-gate",
                subject="variance-gate, normal",
                predicted=0.0,
                low=-0.1,
                high=0.1,
                control="variance-gate, normal, outputs as l^-0.5",
                refuted="token vectors of std 0.02 have a variance of 0.05, and the gate draws the stream to 1",
            ),
        ),
        seeds=8,
        axes=Axes(x=_SUBLAYER, y="E xₙ² / E x₀² - 1"),
    ),
    Claim(
        name="residual-gradients",
        title="ResiDual's first gradient, in a model of one stack",
        source="Xie et al. 2023, arXiv 2304.14802; Pre-LN as the measure: derived here",
        statement="The gradient of ResiDual's first layer is at least that of Pre-LN's, at every depth.",
        number="|dL/dW_2| of the first layer over that of Pre-LN, at the depth where it is least",
        how=f"{WIDER}; 6, 12 and 24 layers",
        cases=(Case(placement="residual", predicted=1.0, low=1.0, control="residual, outputs x 10"),),
        seeds=4,
        axes=Axes(x="layers L", y="|gradient of W₂| / Pre-LN's, first layer", log_x=True),
    ),
    Claim(
        name="residual-decoder-gradients",
        title="ResiDual's first gradient, in a decoder that reads an encoder",
        source="Xie et al. 2023, arXiv 2304.14802; Pre-LN as the measure: derived here",
        statement="The gradient of the first layer of ResiDual's decoder is at least that of Pre-LN's, at every depth."
        " False here at 24 + 24 layers; yet it does not vanish as Post-LN's does, which is ResiDual without the sum"
        " that is added at the end.",
        number="|dL/dW_2| of the decoder's first layer over that of Pre-LN",
        how="encoder-decoder of 24 + 24 layers, width 256, 4 heads, random tokens",
        cases=(
            Case(
                placement="residual",
                predicted=1.0,
                low=1.0,
                control="residual, sum x 0",
                refuted="the branches read the Post-LN stream, whose share of the gradient vanishes",
            ),
        ),
        seeds=3,
        axes=Axes(x="layers of each stack", y="|gradient of W₂| / Pre-LN's, first layer"),
    ),
    Claim(
        name="siamesenorm-limits",
        title="SiameseNorm has Pre-LN and Post-LN as its limits",
        source="SiameseNorm 2026, arXiv 2602.08064",
        statement="With the norms of the stream P at 0 SiameseNorm is Pre-LN, with those of Q at 0 it is Post-LN with"
        " SiameseNorm's factor on the branch, where the norm on what the branches read is left out.",
        number="largest difference of a logit over the logits' root mean square",
        how=f"{SMALL}; 6 layers",
        cases=tuple(
            Case(
                placement="siamesenorm",
                subject=f"siamesenorm, {stream} at 0",
                predicted=0.0,
                high=1e-12,
                control=f"siamesenorm, {stream} at 0.1",
            )
            for stream in ("P", "Q")
        ),
        seeds=2,
        axes=Axes(x="", y="largest difference of a logit"),
    ),
    Claim(
        name="first-input-direction",
        title="with x_0 in every sum and outputs at 0 the stream keeps its direction",
        source="nanochat 2026, as released",
        statement="Where W_O and W_2 begin at 0, x <- r x + z x_0 changes the length of the stream and not its"
        " direction.",
        number="1 - cos(x_n, x_0), of the position that has turned farthest",
        how=f"{SMALL}; 12 layers",
        cases=(Case(placement="x0-scalars", predicted=0.0, high=1e-6, control="x0-scalars, outputs noise 0.01"),),
        seeds=2,
        axes=Axes(x=_SUBLAYER, y="1 - cos(xₙ, x₀)"),
    ),
    Claim(
        name="begins-as-pre-ln",
        title="streams that begin as Pre-LN",
        source="Zhu et al. 2024, arXiv 2409.19606, for 1, 2, 4 and 8 copies",
        statement="At initialization hyper-connections are Pre-LN with the same weights, for any number of copies:"
        " all copies"
        " are equal, and what the final norm divides out leaves its eps.",
        number="largest difference of a logit over the logits' root mean square",
        how=f"{SMALL}; 6 layers",
        cases=(
            *(
                Case(placement=placement, predicted=0.0, high=1e-5, control=f"{placement}, writes x 2")
                for placement in ("hyper-connections-static", "hyper-connections")
            ),
        ),
        seeds=2,
        axes=Axes(x="copies n", y="largest difference of a logit", log_x=True),
    ),
    Claim(
        name="affine-begins-as-pre-ln",
        title="an affine shortcut begins as Pre-LN",
        source="Zaya 2025, as released",
        statement="With offsets 0 and factors 1 the affine shortcut is Pre-LN with the same weights, bit for bit.",
        number="largest difference of a logit over the logits' root mean square",
        how=f"{SMALL}; 6 layers",
        cases=(
            Case(
                placement="affine-shortcut",
                predicted=0.0,
                low=0.0,
                high=0.0,
                control="affine-shortcut, scales noise 0.1",
            ),
        ),
        seeds=2,
        axes=Axes(x="", y="largest difference of a logit"),
    ),
    Claim(
        name="mhc-doubly-stochastic",
        title="mHC's mix is doubly stochastic",
        source="Xie et al. 2025, arXiv 2512.24880; the tolerance: derived here",
        statement="After 20 steps of Sinkhorn and Knopp rows and columns of the mix sum to 1 within 1e-3. True at"
        " initialization, and of logits drawn from N(0, 1); false where that noise is added to a mix near the"
        " identity, as"
        " it begins here: close to a permutation the steps converge slowly.",
        number="the sum of a row or column that lies farthest from 1",
        how=f"{SMALL}; 12 layers",
        cases=(
            Case(placement="mhc", predicted=1.0, low=0.999, high=1.001, control="mhc, mix noise 8"),
            Case(
                placement="mhc",
                subject="mhc, mix at 0, mix noise 1",
                predicted=1.0,
                low=0.999,
                high=1.001,
                control="mhc, mix at 0, mix noise 1, sinkhorn x 0.05",
            ),
            Case(
                placement="mhc",
                subject="mhc, mix noise 1",
                predicted=1.0,
                low=0.999,
                high=1.001,
                control="mhc, mix noise 1, sinkhorn x 0.05",
                refuted="near a permutation 20 steps of Sinkhorn and Knopp are too few",
            ),
        ),
        seeds=4,
        axes=Axes(x="connection", y="sum of the farthest row or column"),
    ),
    Claim(
        name="mhc-product",
        title="no product of mHC's mixes makes the stream grow",
        source="Xie et al. 2025, arXiv 2512.24880; the tolerance: derived here",
        statement="The mixes of 96 connections multiply to rows and columns that sum to 1 within 0.05, where those of"
        " hyper-connections with the same noise pass 10. Noise on mixes near the identity takes mHC's just outside.",
        number="the sum of a row or column of the product that lies farthest from 1",
        how=f"{SMALL}; 48 layers",
        cases=(
            Case(
                placement="mhc",
                subject="mhc, mix at 0, mix noise 1",
                predicted=1.0,
                low=0.95,
                high=1.05,
                control="hyper-connections-static, mix noise 1",
            ),
            Case(
                placement="mhc",
                subject="mhc, mix noise 1",
                predicted=1.0,
                low=0.95,
                high=1.05,
                control="hyper-connections-static, mix noise 0.5",
                refuted="near a permutation 20 steps of Sinkhorn and Knopp are too few",
            ),
        ),
        seeds=4,
        axes=Axes(x="connections", y="sum of the farthest row or column"),
    ),
    Claim(
        name="streams-without-a-mix",
        title="copies without a mix grow as Pre-LN's stream",
        source="HY-V4 2026 and Qwen4-exp 2026, as released; derived here",
        statement="Copies that are never mixed are plain sums, and grow about linearly in mean square, as Pre-LN's"
        " stream"
        " does. True of independent streams; gated streams grow more slowly up to 48 layers, since the gate, which"
        " begins"
        " at 1/2, halves what a branch reads.",
        number="p of E S_l^2 ~ l^p",
        how=f"{SMALL}; 48 layers",
        cases=(
            Case(
                placement="independent-streams",
                predicted=1.0,
                low=0.8,
                high=1.2,
                control="independent-streams, outputs as l^-0.5",
            ),
            Case(
                placement="gated-streams",
                predicted=1.0,
                low=0.8,
                high=1.2,
                control="gated-streams, outputs as l^-0.5",
                refuted="the gate halves what branches read, so that each adds a quarter of the variance",
            ),
        ),
        seeds=4,
        axes=Axes(x="layer l", y="mean square of the copies", log_x=True, log_y=True),
        theory=power("l"),
    ),
    Claim(
        name="attention-over-depth",
        title="attention over depth begins as the mean",
        source="Moonshot AI 2026, arXiv 2603.15031",
        statement="With queries of 0 every sublayer reads the plain mean of its sources, of their norms where these"
        " are what"
        " is summed.",
        number="largest difference of what is read to the mean, over the mean's largest entry",
        how=f"{SMALL}; 6 layers",
        cases=tuple(
            Case(placement=placement, predicted=0.0, high=1e-12, control=f"{placement}, queries noise 0.1")
            for placement in ("attention-residuals", "attention-residuals-inkling")
        ),
        seeds=2,
        axes=Axes(x=_SUBLAYER, y="difference to the mean"),
    ),
    Claim(
        name="qk-norm-bound",
        title="QK-norm bounds the attention's logits",
        source="Henry et al. 2020, arXiv 2010.04245; Dehghani et al. 2023, arXiv 2302.05442",
        statement="With a norm over each head no logit exceeds sqrt(d_head) times the largest weights of the two norms,"
        " whatever the weights: here W_Q is multiplied by 1000.",
        number="largest |logit| over that bound",
        how=f"{SMALL}; 6 layers",
        cases=tuple(
            Case(
                placement=placement,
                subject=f"{placement}, W_Q x 1000",
                predicted=1.0,
                high=1.0,
                control="pre-ln, W_Q x 1000",
            )
            for placement in ("qk-norm", "qk-norm-heads", "qk-norm-free")
        ),
        seeds=4,
        axes=Axes(x=_LAYER, y="largest |logit| / bound", log_y=True),
    ),
    Claim(
        name="gate-variance",
        title="a gate that begins at 1/2 leaves a quarter of the attention's variance",
        source="Qiu et al. 2025, arXiv 2505.06708; the number: derived here",
        statement="At initialization the gated attention's output has 1/4 of the variance that it has without the gate,"
        " within 5 %. True where W_g is drawn from N(0, 0.02^2) at width 64; false with Xavier's init, and by the same"
        " arithmetic from some width 550 on with N(0, 0.02^2): what the gate reads has variance 1, so the sigmoid's"
        " argument"
        " has std s = 0.02 sqrt(d), and E sigmoid^2 is about 1/4 + s^2/16.",
        number="variance of the attention's output over that without the gate, mean over layers",
        how=f"{SMALL}; 6 layers",
        cases=(
            Case(
                placement="gated-attention",
                subject="gated-attention, normal",
                predicted=0.25,
                low=0.2375,
                high=0.2625,
                control="gated-attention, normal, gates x 30",
            ),
            Case(
                placement="gated-attention",
                predicted=0.25,
                low=0.2375,
                high=0.2625,
                control="gated-attention, gates x 3",
                refuted="Xavier's W_g gives the sigmoid's argument a std of 1, and E sigmoid^2 is 0.29",
            ),
        ),
        seeds=8,
        axes=Axes(x=_LAYER, y="variance with the gate / without"),
    ),
    Claim(
        name="qk-clip",
        title="QK-clip brings the logits of a batch to its threshold",
        source="Kimi team 2025, arXiv 2507.20534",
        statement="After it has acted on W_Q and W_K no logit of the same batch is above the threshold: an attention"
        " alone.",
        number="largest logit over the threshold, on the same batch",
        how=f"{SMALL}; 1 layer, W_Q x 1000",
        cases=(
            Case(
                placement="qk-clip",
                subject="qk-clip, W_Q x 1000",
                predicted=1.0,
                high=1.0001,
                control="pre-ln, W_Q x 1000",
            ),
        ),
        seeds=4,
        axes=Axes(x=_LAYER, y="largest logit / threshold"),
    ),
    Claim(
        name="qk-clip-stack",
        title="QK-clip in a stack",
        source="Kimi team 2025, arXiv 2507.20534; the stack: derived here",
        statement="The same in a stack of 6 layers. False: clipping a layer changes what the layers after it read,"
        " and with"
        " it their logits; the next step clips again.",
        number="largest logit over the threshold, on the same batch",
        how=f"{SMALL}; 6 layers, W_Q x 1000",
        cases=(
            Case(
                placement="qk-clip",
                subject="qk-clip, W_Q x 1000",
                predicted=1.0,
                high=1.0001,
                control="pre-ln, W_Q x 1000",
                refuted="a clipped layer changes what the layers after it read",
            ),
        ),
        seeds=4,
        axes=Axes(x=_LAYER, y="largest logit / threshold"),
    ),
    Claim(
        name="qk-clip-idle",
        title="QK-clip leaves alone what is below its threshold",
        source="Kimi team 2025, arXiv 2507.20534",
        statement="Where no logit is above the threshold no weight changes, bit for bit.",
        number="largest change of a weight",
        how=f"{SMALL}; 6 layers",
        cases=(Case(placement="qk-clip", predicted=0.0, low=0.0, high=0.0, control="qk-clip, W_Q x 1000"),),
        seeds=4,
        axes=Axes(x=_LAYER, y="largest change of a weight"),
    ),
    Claim(
        name="ngpt-sphere",
        title="nGPT's vectors have length 1",
        source="Loshchilov et al. 2024, arXiv 2410.01131",
        statement="Every vector that runs through an nGPT stack has length 1.",
        number="| |h| - 1 | of the vector that is farthest from it",
        how=f"{SMALL}; 6 layers",
        cases=(Case(placement="ngpt", predicted=0.0, high=1e-6, control="ngpt, lengths x 1.01"),),
        seeds=2,
        axes=Axes(x=_SUBLAYER, y="||h| - 1|"),
    ),
    Claim(
        name="ngpt-angle",
        title="nGPT moves by three degrees a sublayer",
        source="Loshchilov et al. 2024, arXiv 2410.01131; the angle: derived here",
        statement="With a scale of 0.05 and a branch at a right angle to the stream, a sublayer turns it by atan(0.05"
        " / 0.95)"
        " = 3.01 degrees.",
        number="mean angle between the stream before and after a sublayer, of the one farthest from 3",
        how=f"{SMALL}; 6 layers",
        cases=(Case(placement="ngpt", predicted=3.01, low=2.7, high=3.3, control="ngpt, scales x 2"),),
        seeds=4,
        axes=Axes(x=_SUBLAYER, y="angle in degrees"),
        theory=fixed("atan(0.05 / 0.95)", lambda _: 3.0128),
    ),
)
