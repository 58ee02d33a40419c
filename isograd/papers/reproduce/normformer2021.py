"""Shleifer, Weston, Ott 2021, NormFormer: gradients, learned scales, stability, and what the added norms are worth."""

import math

from isograd.lab.statistics import median
from isograd.papers.reproduce import judge
from isograd.papers.reproduce.data import CAPTIONS, WIKIPEDIA, WIKITEXT2, glue
from isograd.papers.reproduce.item import Chart, Full, Item, Ours, Published, Rows, Runs, Verdict
from isograd.papers.reproduce.measures import overhead, scores, stability, training
from isograd.papers.reproduce.xiong2020 import BERT, TUNING

_TWO, _ONE = "quoted: two public notes", "quoted: one public note"
_ABSTRACT = "quoted: the abstract, by others"
_LOSS = Chart(
    name="loss",
    title="Validation loss at the end",
    sentence="The median over seeds, and a line from the lowest to the highest.",
    x="arm",
    y="validation_loss",
    kind="bars",
    y_label="validation loss (nats per token)",
)

# ----------------------------------------------------------------- twelve layers on characters: one pool of runs

_CHAR = ("training.valid_every=50", "training.valid_sequences=256", "training.probe_every=10")
_HERE = "character model of 12 layers, width 64, 300 updates of 512 characters, 3 seeds"
_DIFFERS = (
    "0.6M parameters and 0.15M characters in place of 125M parameters and GPU months; characters of image captions; the"
    " rates 6e-4, 1e-3 and 3e-3 of the paper are 1e-3, 1.7e-3 and 5e-3 here; no warm-up, constant rate, Adam."
)
_PRE, _NF, _WITH = "Pre-LN", "NormFormer", "NormFormer with ResScale"
_CHAR_ARMS = {
    _PRE: ("pre-ln",),
    _WITH: ("normformer-resscale",),
    _NF: ("normformer",),
    f"{_WITH}, no norm after attention": ("normformer-resscale-no-out",),
    f"{_WITH}, no norm in the feed-forward": ("normformer-resscale-no-mid",),
    f"{_WITH}, no HeadScale": ("normformer-resscale-no-heads",),
    f"{_WITH}, norms on Q, K, V": ("normformer-resscale-qkv",),
    f"{_NF}, heads scaled after W_O": ("normformer-fairseq",),
    "Post-LN, warm-up 150, lr 1e-3": ("post-ln", "training.warmup=150", "training.lr=1e-3"),
    "Pre-LN, width 68": ("pre-ln", "model.width=68"),
}
_SETTINGS = {  # name -> overrides, and what the paper has of it: baseline and NormFormer
    "lr 1.7e-3": (("training.lr=1.7e-3",), ("lr 1e-3", 16.80, 16.33)),
    "lr 5e-3": ((), ("lr 3e-3", 16.37, 15.88)),
    "longer warm-up": (("training.warmup=100",), ("longer warm-up", 16.50, 16.06)),
    "GPT-3's rate": (("training.lr=1e-3",), ("GPT-3's settings", 16.29, 15.88)),
}


def _char(*names: str) -> tuple[Runs, ...]:
    arms = {name: _CHAR_ARMS[name] for name in names}
    return (Runs(recipe="normformer2021/gradients-small", arms=arms, overrides=_CHAR),)


def _lower(rows: Rows, mine: str, theirs: str, least: float = 0.0) -> Verdict:
    return judge.paired(rows, "validation_loss", mine, theirs, "lower", unit="nats", least=least)


def _ablation(rows: Rows) -> Verdict:
    """All of it against the baseline; what each part's removal costs stands beside it."""
    found = _lower(rows, _WITH, _PRE)
    whole = judge.by_seed(judge.of_arm(rows, _WITH), "validation_loss")
    costs = []
    for arm in [_NF, *(name for name in _CHAR_ARMS if name.startswith(f"{_WITH}, "))]:
        own = judge.by_seed(judge.of_arm(rows, arm), "validation_loss")
        label = f"loss above all of it, {'no ResScale' if arm == _NF else arm.removeprefix(f'{_WITH}, ')}"
        costs.append(judge.measured(label, [own[seed] - whole[seed] for seed in own if seed in whole], "nats"))
    return Verdict(verdict=found.verdict, reason=found.reason, ours=(*found.ours, *costs))


def _gradients(rows: Rows) -> Verdict:
    """ln(first/last) over all of training: below 0 in Post-LN, above in Pre-LN, NormFormer's between them."""
    own = [row for row in rows if row.get("what") == "ratio" and row["panel"] == "all of training"]
    post, pre = ([row["log_ratio"] for row in judge.of_arm(own, arm)] for arm in (_POST, _PRE))
    return judge.both(
        judge.beyond("ln(first/last layer) of Post-LN", post, 0.0, "lower"),
        judge.beyond("ln(first/last layer) of Pre-LN", pre, 0.0, "higher"),
        judge.paired(own, "log_ratio", _NF, _PRE, "lower", what="ln(first/last layer)"),
        judge.paired(own, "log_ratio", _NF, _POST, "higher", what="ln(first/last layer)"),
    )


_POST = "Post-LN, warm-up 150, lr 1e-3"


def _scales(rows: Rows) -> Verdict:
    """Three of the paper's four observations as numbers; the spread of the head scales has no threshold."""
    own = [row for row in rows if row.get("what") == "summary"]
    early, after, top, spread = (
        [row[name] for row in own if name in row] for name in ("early_late", "highest_after", "top", "head_spread")
    )
    found = judge.both(
        judge.beyond("feed-forward norm weights, first third over last third of the layers", early, 1.0, "lower"),
        judge.beyond("largest mean weight of a norm after attention", after, 1.0, "lower"),
        judge.beyond("ResScale of the last layer minus the mean", top, 0.0, "lower"),
    )
    return Verdict(
        verdict=found.verdict,
        reason=found.reason,
        ours=(*found.ours, judge.measured("head scales of a layer, highest minus lowest", spread)),
    )


def _robust(rows: Rows) -> Verdict:
    """Better in every setting."""
    return judge.both(*(_lower(rows, f"{_WITH}, {name}", f"{_PRE}, {name}") for name in _SETTINGS))


def _width(rows: Rows) -> Verdict:
    """NormFormer's gain against that of more width."""
    found = _lower(rows, _WITH, "Pre-LN, width 68")
    base = judge.measured(
        "validation loss, Pre-LN", [*judge.by_seed(judge.of_arm(rows, _PRE), "validation_loss").values()]
    )
    return Verdict(verdict=found.verdict, reason=found.reason, ours=(*found.ours, base))


def _placement(rows: Rows) -> Verdict:
    """Whether the two placements of HeadScale are less than 0.05 nats apart."""
    mine, theirs = (
        judge.by_seed(judge.of_arm(rows, arm), "validation_loss") for arm in (f"{_NF}, heads scaled after W_O", _NF)
    )
    gaps = [abs(mine[seed] - theirs[seed]) for seed in mine if seed in theirs]
    found = judge.beyond("gap of the validation losses of the two placements", gaps, 0.05, "lower", "nats")
    levels = (
        judge.measured(f"validation loss, {name}", [*of.values()], "nats")
        for name, of in ((f"{_NF}, scaled after W_O", mine), (_NF, theirs))
    )
    return Verdict(verdict=found.verdict, reason=found.reason, ours=(*found.ours, *levels))


_CHARACTERS = (
    Item(
        id="normformer2021/gradients-fig3",
        title="Gradients by layer through training: Post-LN, Pre-LN, NormFormer",
        claim="Gradients rise with the layer in Post-LN and fall with it in Pre-LN; NormFormer's lie in between.",
        published=(
            Published(label="Post-LN", value="rises with depth (curve)", tag="quoted: a review and a note"),
            Published(label="Pre-LN", value="falls with depth (curve)", tag="quoted: a review and a note"),
            Published(label="NormFormer", value="in between (curve)", tag="quoted: a review and a note"),
        ),
        size_paper="125M parameters, 12 layers, width 768; mean |gradient| of the second feed-forward matrix",
        size_here=_HERE,
        minutes=2.8,
        differs=f"{_DIFFERS} Post-LN at 1e-3 with a warm-up of 150, without which it does not train.",
        rule="Same direction, of the mean |gradient| of W_2 over all of training: the first layer's over the last"
        " layer's is below 1 in Post-LN, above 1 in Pre-LN, and in NormFormer lower than in Pre-LN and higher than in"
        " Post-LN, each by the interval of the median over seeds.",
        judge=_gradients,
        corpus=CAPTIONS,
        runs=_char(_PRE, _NF, _POST),
        measure=training.layer_gradients,
        charts=(
            Chart(
                name="layers",
                title="Mean |gradient| of W_2 by layer",
                sentence="Mean over seeds, and a band from the lowest to the highest.",
                x="layer",
                y="gradient",
                panel="panel",
                where={"what": "layer"},
                y_label="mean |gradient| of W₂",
                log_y=True,
            ),
        ),
        run_charts=("histories",),
        full=Full(recipe="normformer2021/clm-125m", devices=8),
    ),
    Item(
        id="normformer2021/scales-fig4",
        title="What NormFormer's scales learn, by layer",
        claim="Norm weights inside the feed-forward are smaller in early layers, those after attention are below 1 in"
        " all layers, head scales are widely spread, and ResScale drops in the top layers.",
        published=(
            Published(
                label="norm in the feed-forward", value="smaller in early layers", tag="quoted: a review and a note"
            ),
            Published(label="norm after attention", value="below 1 in all layers", tag="quoted: a review and a note"),
            Published(label="head scales", value="widely spread, no trend", tag="quoted: a review and a note"),
            Published(label="ResScale", value="drops in the top layers", tag="quoted: a review and a note"),
        ),
        size_paper="125M parameters, 12 layers, after training",
        size_here=_HERE,
        minutes=1,
        differs=f"{_DIFFERS} After 300 updates scales have hardly begun to move.",
        rule="Same direction, at the end of training: the mean weight of the feed-forward norms in the first third of"
        " the layers is below that in the last third; the largest mean weight of a norm after attention is below 1;"
        " ResScale of the last layer is below the mean of all layers. Each by the interval of the median over seeds.",
        judge=_scales,
        corpus=CAPTIONS,
        runs=_char(_WITH),
        measure=training.learned_scales,
        charts=(
            Chart(
                name="scales",
                title="Learned scales by layer, mean over a layer's values",
                sentence="Mean over seeds, and a band from the lowest to the highest value in a layer; 1 at the start.",
                x="layer",
                y="value",
                panel="panel",
                low="low",
                high="high",
                where={"what": "layer"},
                y_label="learned scale",
            ),
        ),
        full=Full(recipe="normformer2021/clm-125m", overrides=('arms=[["normformer-resscale"]]',), devices=8),
    ),
    Item(
        id="normformer2021/ablation",
        title="NormFormer with ResScale minus each of its parts",
        claim="Each part of NormFormer contributes, HeadScale and ResScale most; all of it lowers the perplexity of"
        " Pre-LN.",
        published=(
            Published(label="perplexity, all of it", value=15.88, tag=_TWO),
            Published(label="perplexity, no norm after attention", value=15.92, tag=_TWO),
            Published(label="perplexity, no norm in the feed-forward", value=16.14, tag=_TWO),
            Published(label="perplexity, no ResScale", value=16.20, tag=_TWO),
            Published(label="perplexity, no HeadScale", value=16.22, tag=_TWO),
            Published(label="perplexity, norms on Q, K, V as well", value=15.88, tag=_TWO),
            Published(label="perplexity, Pre-LN", value=16.37, tag=_TWO),
        ),
        size_paper="125M parameters, 470 V100 hours each",
        size_here=_HERE,
        minutes=7.1,
        differs=_DIFFERS,
        rule="Same direction: the validation loss of NormFormer with ResScale is lower than that of Pre-LN by the"
        " interval of the median paired difference. The cost of each part's removal is shown, not judged.",
        judge=_ablation,
        corpus=CAPTIONS,
        runs=_char(*(name for name in _CHAR_ARMS if name in (_PRE, _WITH, _NF) or name.startswith(f"{_WITH}, "))),
        charts=(_LOSS,),
        run_charts=("validation",),
        full=Full(recipe="normformer2021/ablations-125m", devices=8),
    ),
    Item(
        id="normformer2021/robustness",
        title="NormFormer beside Pre-LN under other rates and a longer warm-up",
        claim="NormFormer with ResScale is better than Pre-LN at every rate and warm-up tried.",
        published=tuple(
            Published(label=f"perplexity, {name}, {arm}", value=value, tag=_ONE)
            for _, (name, *values) in _SETTINGS.values()
            for arm, value in zip((_PRE, "NormFormer"), values, strict=True)
        ),
        size_paper="125M parameters",
        size_here=_HERE,
        minutes=7,
        differs=f"{_DIFFERS} Longer warm-up: 100 of 300 updates, against none.",
        rule="Same direction: in each of the four settings the validation loss of NormFormer with ResScale is lower"
        " than that of Pre-LN, by the interval of the median paired difference; opposite: higher in each of them.",
        judge=_robust,
        corpus=CAPTIONS,
        runs=(
            Runs(
                recipe="normformer2021/gradients-small",
                arms={
                    f"{arm}, {name}": (placement, *words)
                    for name, (words, _) in _SETTINGS.items()
                    for arm, placement in ((_PRE, "pre-ln"), (_WITH, "normformer-resscale"))
                },
                overrides=_CHAR,
            ),
        ),
        charts=(_LOSS,),
        full=Full(recipe="normformer2021/ablations-125m", devices=8),
    ),
    Item(
        id="normformer2021/width-768-780",
        title="Are the gains more parameters? A wider Pre-LN",
        claim="NormFormer's few parameters are worth far more than as many, or many more, spent on width.",
        published=(
            Published(label="perplexity, gain of NormFormer (0.1M parameters)", value=0.83, tag="quoted: a review"),
            Published(label="perplexity, gain of width 780 (127M parameters)", value=0.08, tag="quoted: a review"),
        ),
        size_paper="125M parameters, width 768; Pre-LN of width 780",
        size_here=f"{_HERE}; Pre-LN of width 68",
        minutes=2.9,
        differs=f"{_DIFFERS} Width 68 is 6 % wider, where 780 is 1.6 %: the next that four heads divide.",
        rule="Same direction: the validation loss of NormFormer with ResScale at width 64 is lower than that of Pre-LN"
        " at width 68, by the interval of the median paired difference.",
        judge=_width,
        corpus=CAPTIONS,
        runs=_char(_PRE, "Pre-LN, width 68", _WITH),
        charts=(_LOSS,),
        full=Full(recipe="normformer2021/width-768-780", devices=8),
    ),
    Item(
        id="normformer2021/head-scale-placement",
        title="Heads scaled before W_O, as in the paper, or after it, as in the released code",
        claim="For a language model it does not matter where the heads are scaled.",
        published=(
            Published(
                label="perplexity, after W_O against before",
                value="within 0.02",
                tag="quoted: the author, fairseq 3973",
            ),
        ),
        size_paper="not known",
        size_here=_HERE,
        minutes=1.6,
        differs=_DIFFERS,
        rule="Same direction: the validation losses are less than 0.05 nats apart, by the interval of the median over"
        " seeds; opposite: more.",
        judge=_placement,
        corpus=CAPTIONS,
        runs=_char(_NF, f"{_NF}, heads scaled after W_O"),
        charts=(_LOSS,),
        full=Full(
            recipe="normformer2021/clm-125m", overrides=('arms=[["normformer"], ["normformer-fairseq"]]',), devices=8
        ),
    ),
)

# ------------------------------------------------------------------------------------------------- figure 5, overhead


def _stable(rows: Rows) -> Verdict:
    """Both protocols; the ratio of the rates, seed by seed, beside the paper's."""
    found, ratios = [], []
    for protocol, words in (("rising", "rate at divergence"), ("constant", "largest constant rate")):
        own = [row for row in rows if row.get("what") == protocol]
        said = judge.paired(own, "log_rate", _NF, _PRE, "higher", what=f"ln of the {words}")
        found.append(Verdict(verdict=said.verdict, reason=said.reason))
        mine, theirs = (judge.by_seed(judge.of_arm(own, arm), "rate") for arm in (_NF, _PRE))
        both = [mine[seed] / theirs[seed] for seed in mine if seed in theirs]
        ratios += [judge.measured(f"{words}, {name}", [*of.values()]) for name, of in ((_PRE, theirs), (_NF, mine))]
        ratios.append(judge.measured(f"{words}, NormFormer over Pre-LN", both))
    both_ways = judge.both(*found)
    return Verdict(verdict=both_ways.verdict, reason=both_ways.reason, ours=tuple(ratios))


def _overhead(rows: Rows) -> Verdict:
    """The step takes longer by the interval over rounds; what the forecast says of memory stands beside it."""
    steps = [row for row in rows if row["what"] == "step"]
    found = judge.paired(steps, "log_seconds", _NF, _PRE, "higher", what="ln of a step's CPU seconds")
    shares = [
        judge.measured(f"more CPU time per step, {arm}", [row["more_time"] for row in judge.of_arm(steps, arm)], "%")
        for arm in (_NF, _WITH)
    ]
    sizes = [row for row in rows if row["what"] == "size" and row["arm"] == _NF]
    more = [
        Ours(label=f"more {what}, {row['size'].upper()}", value=row[column], unit="%", n=1)
        for what, column, kept in (
            ("parameters", "more_parameters", True),
            ("memory", "more_memory", True),
            ("memory without gradient checkpointing", "more_memory", False),
        )
        for row in sizes
        if row["checkpointing"] is kept
    ]
    return Verdict(verdict=found.verdict, reason=found.reason, ours=(*shares, *more))


_STABILITY = (
    Item(
        id="normformer2021/lr-stability-fig5",
        title="How high the learning rate may rise: Pre-LN and NormFormer, by two protocols",
        claim="NormFormer is stable up to a higher learning rate than Pre-LN.",
        published=(Published(label="ratio of the rates at divergence, rising rate", value="1.4 to 1.6", tag=_ONE),),
        size_paper="125M parameters; the rate rises until the loss diverges",
        size_here="character model of 12 layers, width 64; rising to 0.2 in 1,000 updates; constant: runs of 200; 3"
        " seeds",
        minutes=18,
        differs="0.6M parameters, characters of image captions, Adam. The protocols differ: a rising rate passes each"
        " value with weights that the lower ones have trained, and is past it after one update; a constant rate meets"
        " the fresh weights and stays.",
        rule="Same direction: by both protocols, the rate at divergence of a rising rate and the largest constant rate"
        " that trains without warm-up, NormFormer's is above Pre-LN's by the interval of the median paired log-ratio."
        " A run that is stable to the end counts with the highest rate.",
        judge=_stable,
        corpus=CAPTIONS,
        runs=(
            Runs(
                recipe="normformer2021/lr-stability-small",
                arms={_PRE: ("pre-ln",), _NF: ("normformer",)},
                overrides=("training.steps=1000", "training.warmup=1000", "training.lr=0.2"),
            ),
        ),
        measure=stability.stable_rates,
        charts=(
            Chart(
                name="rates",
                title="Rate at divergence, and largest constant rate",
                x="arm",
                y="rate",
                kind="bars",
                panel="what",
                y_label="learning rate",
            ),
        ),
        run_charts=("lr-range",),
        full=Full(
            recipe="normformer2021/clm-125m",
            overrides=(
                'arms=[["pre-ln"], ["normformer"]]',
                "training.lr=3e-2",
                "training.steps=1500",
                "training.warmup=1500",
                "training.decay=constant",
                "training.stop_when_broken=true",
            ),
            devices=8,
        ),
    ),
    Item(
        id="normformer2021/overhead",
        title="What NormFormer costs: time of a step, memory, parameters",
        claim="NormFormer costs a few percent of time and memory, and next to no parameters.",
        published=(
            Published(label="more memory", value="2 to 6 %", tag=_ONE),
            Published(label="more time per step", value="2 to 6 %", tag=_ONE),
            Published(label="more parameters", value="0.4 %", tag=_ABSTRACT),
        ),
        size_paper="125M to 2.7B parameters on GPUs",
        size_here="2 layers of the 125M shape, 512 tokens, fp32, 9 rounds; all four shapes by forecast",
        minutes=0.4,
        differs="CPU time of one core, where a norm costs more beside a product than on a GPU; memory is a forecast of"
        " a training step of the paper's recipes, in bf16, on each of 8 devices.",
        rule="Same direction: a NormFormer step takes more CPU time than a Pre-LN step, by the interval of the median"
        " over rounds in which the two take turns.",
        judge=_overhead,
        measure=overhead.overhead,
        charts=(
            Chart(
                name="time",
                title="CPU time of a step above Pre-LN's",
                x="arm",
                y="more_time",
                kind="bars",
                where={"what": "step"},
                y_label="more CPU time (%)",
            ),
        ),
        full=Full(recipe="normformer2021/clm-125m", devices=8),
        details="By count NormFormer adds 0.07 % of the parameters at 125M and 0.03 % at 2.7B, not 0.4 %.",
    ),
)

# --------------------------------------------------------------------------------------- causal models: table 2, speed

_CLM = (
    "training.steps=500",
    "training.lr=4e-3",
    "training.warmup=50",
    "training.valid_every=50",
    "training.valid_sequences=128",
    "training.precision=fp32",
    "training.probe_every=50",
)
_S, _M = "4 layers, width 64", "6 layers, width 128"
_CLM_ARMS = {_PRE: ("pre-ln",), _WITH: ("normformer-resscale",)}
_CLM_DIFFERS = (
    "0.8M and 2.2M parameters and 0.5M tokens of Wikipedia in place of 125M to 2.7B parameters and 300B tokens of a"
    " private mix; sequences of 64; rate 4e-3, warm-up 50, then linear. So early in training only the order can be"
    " compared."
)


def _clm(size: str, group: str = "") -> Runs:
    layers, width = (4, 64) if size == _S else (6, 128)
    shape = (f"model.layers={layers}", f"model.width={width}")
    return Runs(recipe="normformer2021/clm-small", arms=_CLM_ARMS, overrides=(*_CLM, *shape), group=group or size)


def _table2(rows: Rows) -> Verdict:
    """Perplexity at both sizes; zero-shot means beside it."""
    found = []
    for size in (_S, _M):
        own = [row for row in rows if row["group"] == size]
        one = judge.paired(own, "perplexity", _WITH, _PRE, "lower", what=f"perplexity ({size})")
        shots = [
            judge.measured(
                f"mean zero-shot accuracy ({size}), {arm}",
                [row["zero_shot"] for row in judge.of_arm(own, arm) if "zero_shot" in row],
                "%",
            )
            for arm in (_PRE, _WITH)
        ]
        found.append(Verdict(verdict=one.verdict, reason=one.reason, ours=(*one.ours, *(s for s in shots if s.n))))
    return judge.both(*found)


def _sooner(rows: Rows) -> Verdict:
    """The share of the baseline's steps; of its time, and the gain in loss, beside it."""
    own = [row for row in rows if row.get("what") == "equal loss"]
    steps, times = (
        [float(row[name]) for row in own if row.get(name) is not None] for name in ("share_of_steps", "share_of_time")
    )
    found = judge.beyond("steps to Pre-LN's final loss, as a share of its own", steps, 1.0, "lower")
    gain, there = _lower(rows, _WITH, _PRE), [share for share in steps if math.isfinite(share)]
    said = f"Pre-LN's final loss is reached with {len(there)} of {len(steps)} seeds"
    said += f", after {median(there):.2f} of its steps in the median of these" if there else ""
    time = judge.measured("time to Pre-LN's final loss, as a share of its own", times)
    reason = f"{said}. {gain.reason[:1].upper()}{gain.reason[1:]}"
    return Verdict(verdict=found.verdict, reason=reason, ours=(*found.ours, time, *gain.ours))


_CAUSAL = (
    Item(
        id="normformer2021/clm-table2",
        title="Causal language models of two sizes: perplexity and mean zero-shot accuracy",
        claim="At every size NormFormer has a lower perplexity and a higher mean zero-shot accuracy than Pre-LN.",
        published=(
            Published(label="perplexity, 125M, Pre-LN, high rate", value=21.09, tag=_TWO),
            Published(label="perplexity, 125M, NormFormer with ResScale", value=20.11, tag=_TWO),
            Published(label="perplexity, 355M, Pre-LN to NormFormer with ResScale", value="14.85 to 14.52", tag=_ONE),
            Published(label="perplexity, 1.3B, Pre-LN to NormFormer", value="12.21 to 11.94", tag=_TWO),
            Published(label="perplexity, 2.7B, Pre-LN to NormFormer", value="10.92 to 10.55", tag=_TWO),
            Published(label="mean zero-shot, 125M", value="50.9 to 52.3", unit="%", tag=_TWO),
            Published(label="mean zero-shot, 1.3B", value="63.6 to 64.7", unit="%", tag=_TWO),
            Published(label="mean zero-shot, 2.7B", value="66.3 to 68.7", unit="%", tag=_TWO),
        ),
        size_paper="125M, 355M, 1.3B, 2.7B parameters; 300B tokens; HellaSwag, PIQA, WinoGrande, StoryCloze,"
        " OpenBookQA",
        size_here=f"{_S} and {_M}; 500 updates of 1,024 tokens; 3 seeds; the first {scores.DOCUMENTS} documents of the"
        " four tasks that can be had",
        minutes=18,
        differs=f"{_CLM_DIFFERS} Zero-shot accuracies of such models are at chance; StoryCloze is given out on request"
        " only.",
        rule="Same direction: at both sizes the perplexity of NormFormer with ResScale is lower than Pre-LN's, by the"
        " interval of the median paired difference. Zero-shot means are shown, not judged.",
        judge=_table2,
        corpus=WIKIPEDIA,
        runs=(_clm(_S), _clm(_M)),
        measure=scores.perplexities,
        charts=(
            Chart(
                name="perplexity",
                title="Validation perplexity",
                x="arm",
                y="perplexity",
                kind="bars",
                panel="group",
                y_label="perplexity",
            ),
        ),
        full=Full(recipe="normformer2021/clm-1.3b", devices=8),
    ),
    Item(
        id="normformer2021/equal-loss",
        title="How soon NormFormer is at Pre-LN's final loss, in steps and in time",
        claim="NormFormer reaches the perplexity of its baseline in a fraction of the compute.",
        published=(
            Published(label="1.3B, time to equal perplexity", value="24 % less", tag=_ABSTRACT),
            Published(label="1.3B, perplexity at equal compute", value="0.27 lower", tag=_ABSTRACT),
            Published(label="causal, compute to equal perplexity", value="about 60 %", tag=_ONE),
        ),
        size_paper="125M to 1.3B parameters",
        size_here=f"{_M}; 500 updates of 1,024 tokens; 3 seeds",
        minutes=8,
        differs=f"{_CLM_DIFFERS} Time is of runs that share a machine: compare steps, and the overhead of a step.",
        rule="Same direction: the steps that NormFormer with ResScale takes to Pre-LN's final validation loss are"
        " fewer than Pre-LN's own, by the interval of the median share; not reached counts as infinite.",
        judge=_sooner,
        corpus=WIKIPEDIA,
        runs=(_clm(_M),),
        measure=training.steps_to_equal_loss,
        charts=(_LOSS,),
        run_charts=("equal-loss",),
        full=Full(recipe="normformer2021/clm-1.3b", devices=8),
    ),
    Item(
        id="normformer2021/wikitext",
        title="A WikiText model: NormFormer beside Pre-LN",
        claim="On WikiText-103 NormFormer reaches the baseline's perplexity in 70 % of the steps; the final gap is"
        " small.",
        published=(
            Published(label="perplexity, Pre-LN", value=18.70, tag=_ONE),
            Published(label="perplexity, NormFormer", value=18.65, tag=_ONE),
            Published(label="steps to the baseline's level", value="70 %", tag=_ONE),
        ),
        size_paper="WikiText-103, 103M words; size not known",
        size_here=f"WikiText-2; {_S}; 500 updates of 1,024 tokens; 3 seeds",
        minutes=3.1,
        differs="WikiText-2, a fiftieth of WikiText-103, in BPE of 8,192; 0.8M parameters; 0.5M tokens; rate 4e-3.",
        rule="Same direction: the steps that NormFormer with ResScale takes to Pre-LN's final validation loss are"
        " fewer than Pre-LN's own, by the interval of the median share; not reached counts as infinite.",
        judge=_sooner,
        corpus=WIKITEXT2,
        runs=(_clm(_S, group="WikiText-2"),),
        measure=training.steps_to_equal_loss,
        charts=(_LOSS,),
        run_charts=("equal-loss",),
    ),
)

# -------------------------------------------------------------------------------------------------- masked: table 3

_MLM_ARMS = {
    _PRE: ("pre-ln", "training.warmup=0", "training.lr=3e-3"),
    _NF: ("normformer", "training.warmup=0", "training.lr=3e-3"),
}
_MASKED = Runs(recipe="xiong2020/bert-small", arms=_MLM_ARMS, overrides=BERT, corpus=WIKIPEDIA, group="pretrained")
_GLUE = {"cola": "CoLA", "sst-2": "SST-2", "mrpc": "MRPC", "rte": "RTE", "sts-b": "STS-B"}
_MORE = {"mnli": "MNLI", "qnli": "QNLI", "qqp": "QQP"}


def _tuned(tasks: dict[str, str]) -> tuple[Runs, ...]:
    tuned = (
        Runs(recipe=f"glue/{task}", overrides=TUNING, corpus=glue(folder), group=folder, upon="pretrained")
        for task, folder in tasks.items()
    )
    return (_MASKED, *tuned)


def _table3(rows: Rows) -> Verdict:
    """The mean over tasks; perplexity and each task beside it."""
    means = [row for row in rows if row.get("what") == "mean"]
    found = judge.paired(means, "mean", _NF, _PRE, "higher", what="mean score over the tasks", unit="%")
    pretrained = [row for row in rows if row.get("group") == "pretrained"]
    ppl = [
        judge.measured(f"perplexity, {arm}", [*judge.by_seed(judge.of_arm(pretrained, arm), "perplexity").values()])
        for arm in (_PRE, _NF)
    ]
    tasks = [
        judge.measured(f"{task}, {arm}", [*judge.by_seed(judge.of_arm(means, arm), task).values()], "%")
        for task in (*_GLUE.values(), *_MORE.values())
        for arm in (_PRE, _NF)
        if any(task in row for row in means)
    ]
    return Verdict(verdict=found.verdict, reason=found.reason, ours=(*found.ours, *ppl, *tasks))


def _of_task(*tasks: tuple[str, float, float]) -> tuple[Published, ...]:
    return tuple(
        Published(label=f"{name}, Pre-LN to NormFormer", value=f"{a} to {b}", unit="%", tag=_ONE)
        for name, a, b in tasks
    )


_SCORES = Chart(
    name="scores",
    title="Scores by task",
    x="arm",
    y="score",
    kind="bars",
    panel="group",
    y_label="score (%)",
)
_MLM_DIFFERS = (
    "2.3M parameters after 0.7M tokens, 240 updates of fine-tuning at 3e-4: most tasks are near the majority class,"
    " where a mean compares little."
)

_GLUE_ITEMS = (
    Item(
        id="normformer2021/mlm-glue-table3",
        title="Masked language models: perplexity, and the mean of five GLUE tasks",
        claim="A masked NormFormer has a lower perplexity and a higher GLUE average than a masked Pre-LN.",
        published=(
            Published(label="perplexity, Pre-LN to NormFormer", value="3.42 to 3.31", tag=_ONE),
            Published(label="mean of seven tasks, Pre-LN", value=83.77, unit="%", tag=_TWO),
            Published(label="mean of seven tasks, NormFormer", value=85.69, unit="%", tag=_TWO),
            *_of_task(
                ("CoLA (accuracy)", 74.3, 82.6), ("SST-2", 92.9, 93.8), ("MRPC", 84.6, 86.0), ("RTE", 66.4, 67.9)
            ),
        ),
        size_paper="RoBERTa-base, 125M parameters; CoLA, MNLI, MRPC, QNLI, QQP, RTE, SST-2",
        size_here="6 layers, width 128, 700 updates; CoLA, SST-2, MRPC, RTE, STS-B, 240 updates each; 3 seeds",
        minutes=25,
        differs=f"{_MLM_DIFFERS} The mean is of CoLA (Matthews), SST-2, MRPC, RTE (accuracy) and STS-B (Pearson), not"
        " of the paper's seven; the paper's CoLA is in accuracy and supplies most of its gain.",
        rule="Same direction: the mean of the five scores is higher for NormFormer, by the interval of the median"
        " paired difference over pre-training seeds. Perplexities are shown beside it.",
        judge=_table3,
        runs=_tuned(_GLUE),
        measure=scores.glue_mean,
        charts=(_SCORES,),
        full=Full(recipe="normformer2021/mlm-base", devices=8),
    ),
    Item(
        id="normformer2021/glue-mnli-qnli-qqp",
        title="The other three tasks of table 3: MNLI, QNLI, QQP",
        claim="On MNLI, QNLI and QQP, too, NormFormer scores higher than Pre-LN.",
        published=_of_task(("MNLI", 85.9, 86.3), ("QNLI", 91.6, 91.9), ("QQP", 90.7, 91.3)),
        size_paper="RoBERTa-base, 125M parameters",
        size_here="6 layers, width 128, 700 updates; 240 updates each; 3 seeds",
        minutes=20,
        differs=_MLM_DIFFERS,
        rule="Same direction: the mean of the three accuracies is higher for NormFormer, by the interval of the median"
        " paired difference over pre-training seeds.",
        judge=_table3,
        runs=_tuned(_MORE),
        measure=scores.glue_mean,
        charts=(_SCORES,),
        full=Full(recipe="normformer2021/mlm-base", devices=8),
    ),
)

ITEMS = (*_CAUSAL[:1], *_GLUE_ITEMS, *_CAUSAL[1:], *_CHARACTERS, *_STABILITY)
