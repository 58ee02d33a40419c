"""Liu et al. 2020, ADMIN: vanishing gradients are not why Post-LN fails; how far a small change carries is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import correlation, fmean

from isograd.papers.reproduce import judge
from isograd.papers.reproduce.data import CAPTIONS, MULTI30K
from isograd.papers.reproduce.item import Chart, Direction, Full, Item, Ours, Published, Rows, Runs, Verdict
from isograd.papers.reproduce.judge import of_arm
from isograd.papers.reproduce.measures import stacks, translations

_NOTES = "quoted: two public notes"


def _seeds(rows: Rows) -> list[int]:
    return sorted({int(row["seed"]) for row in rows})


def _of(rows: Rows, **where: object) -> Rows:
    return [row for row in rows if all(row.get(key) == value for key, value in where.items())]


# -- output changes


LEAST_FIT = 0.95  # of R^2
LAWS: dict[str, tuple[str, Callable[[float], float]]] = {  # the paper's, of N sublayers
    "Post-LN": ("a + b N", lambda n: n),
    "Pre-LN": ("a + b ln N", math.log),
    "ADMIN": ("a + b ln N", math.log),
}


def _output_changes(rows: Rows) -> Verdict:
    found = []
    for direction in ("random", "gradient"):
        growth: dict[str, list[float]] = {}
        for arm, (law, of) in LAWS.items():
            curves = [_of(rows, direction=direction, arm=arm, seed=seed) for seed in _seeds(rows)]
            growth[arm] = [curve[-1]["relative"] for curve in curves]
            found.append(_fit(f"R^2 of {law}, {arm}, {direction}", of, curves))
        for arm in ("Pre-LN", "ADMIN"):
            ratios = [post / other for post, other in zip(growth["Post-LN"], growth[arm], strict=True)]
            label = f"growth from 6 to 96 sublayers, Post-LN over {arm}, {direction}"
            found.append(judge.beyond(label, ratios, 1.0, "higher"))
    return judge.every(*found)


def _fit(label: str, law: Callable[[float], float], curves: Sequence[Rows]) -> Verdict:
    """R^2 of a + b law(N) to the mean of the curves of all seeds."""
    x = [law(row["sublayers"]) for row in curves[0]]
    fit = correlation(x, [fmean(row["change"] for row in at) for at in zip(*curves, strict=True)]) ** 2
    return Verdict(
        verdict="same direction" if fit > LEAST_FIT else "not seen",
        reason=f"{label} is {fit:.3f}, against {LEAST_FIT}.",
        ours=(Ours(label=label, value=fit, n=len(curves)),),
    )


# -- gradients at initialization


def _factors(rows: Rows, arm: str, stack: str, layers: int) -> list[float]:
    """(first / last)^(1 / (L - 1)) of each seed."""
    first = _of(rows, arm=arm, stack=stack, layers=layers, layer=1)
    return [row["relative"] ** (1 / (layers - 1)) for row in first]


def _vanishing(rows: Rows) -> Verdict:
    """Decoders of Post-LN alone lose a tenth or more per layer."""
    layers = stacks.DEPTHS[-1]
    found = []
    for arm, pair in stacks.PAIRS.items():
        for stack, placement in zip(("encoder", "decoder"), pair, strict=True):
            vanishes = (stack, placement) == ("decoder", "post-ln")
            label = f"gradient per layer going down, {stack} of {arm}"
            values = _factors(rows, arm, stack, layers)
            found.append(judge.beyond(label, values, 0.9, "lower" if vanishes else "higher"))
    return judge.every(*found)


# -- runs

TRANSLATION = (  # of admin2020/18l-small: as few updates as still tell who trains
    "training.tokens=1024",
    "training.steps=340",
    "training.warmup=50",
    "training.probe_every=50",
    "training.valid_every=0",
    "training.valid_pairs=500",
    "training.precision=fp32",
    "search.pairs=200",
    "search.beam=1",
)
FLOAT32 = (
    "2026-11-23: in float32. The runs before were in bfloat16, which a processor without its instructions emulates"
    " at a seventh of the speed."
)
_FOUR = "training.accumulation=1"  # 8192 tokens on each of 4 devices
_AT = {"Post-LN": "post-ln", "Pre-LN": "pre-ln", "ADMIN": "admin"}
_OF_BOTH = ("pre-ln", "model.encoder_placement=post-ln")
_SCALED = "training.lr=8e-3"  # the paper's 1e-3 at width 512, by 1 / width
HYBRID = {
    "Post-LN": ("post-ln",),
    "Post-LN encoder, Pre-LN decoder": _OF_BOTH,
    "Pre-LN encoder, Post-LN decoder": ("post-ln", "model.encoder_placement=pre-ln"),
    "Pre-LN": ("pre-ln",),
    "Post-LN encoder, Pre-LN decoder, lr 8e-3": (*_OF_BOTH, _SCALED),
    "Pre-LN, lr 8e-3": ("pre-ln", _SCALED),
}


def deep(name: str, encoder: int, decoder: int) -> tuple[str, ...]:
    """An arm of this placement and these depths."""
    return (_AT[name], *(() if encoder == decoder else (f"model.encoder_layers={encoder}",)), f"model.layers={decoder}")


def runs(arms: Mapping[str, Sequence[str]], *more: str) -> tuple[Runs, ...]:
    return (Runs(recipe="admin2020/18l-small", arms=arms, overrides=(*TRANSLATION, *more)),)


FAR = 0.3  # nats
FAILS = (
    " To fail is to train with no seed, and to have a validation loss above that of the arm that trains beside it by"
    " more than 0.3 nats with every seed."
)


def fails(rows: Rows, arm: str, beside: str) -> Verdict:
    """No run of the arm trains, and its validation loss is above another arm's by more than 0.3 nats with every seed.

    So short a run that stays at token frequencies is undecided, not collapsed; "opposite": every run trains.
    """
    outcomes = [row["outcome"] for row in of_arm(rows, arm) if "outcome" in row]
    trained, apart = (
        outcomes.count("finished"),
        judge.paired(rows, "validation_loss", beside, arm, "lower", unit="nats", least=FAR),
    )
    verdict: Direction = "not seen"
    if outcomes and trained == len(outcomes):
        verdict = "opposite"
    elif not trained and apart.verdict == "same direction":
        verdict = "same direction"
    reason = f"{arm} trains with {trained} of {len(outcomes)} seeds; {apart.reason}"
    counted = Ours(label=f"trains, {arm}", value=trained, n=len(outcomes), unit="runs")
    return Verdict(verdict=verdict, reason=reason, ours=(counted, *apart.ours))


def _hybrid(rows: Rows) -> Verdict:
    hybrid = "Post-LN encoder, Pre-LN decoder"
    factors = [row["decoder_factor"] for row in of_arm(rows, hybrid) if row.get("decoder_factor")]
    failing = [fails(rows, f"{hybrid}{rate}", f"Pre-LN{rate}") for rate in ("", ", lr 8e-3")]
    whole = judge.every(
        judge.beyond("gradient per layer going down, the hybrid's decoder", factors, 0.9, "higher"),
        judge.trains(rows, yes=["Pre-LN"]),
        judge.trains(rows, yes=["Pre-LN, lr 8e-3"]),
        failing[1],
        fails(rows, "Post-LN", "Pre-LN"),
    )
    return replace(whole, verdict="opposite") if {one.verdict for one in failing} == {"opposite"} else whole


DEPTHS = (6, 12, 18)
TABLE_2: tuple[tuple[str, int, float | str], ...] = (
    ("Post-LN", 6, 27.80),
    ("Pre-LN", 6, 27.27),
    ("ADMIN", 6, 27.90),
    ("Post-LN", 12, "failed"),
    ("Pre-LN", 12, 28.26),
    ("ADMIN", 12, 28.58),
    ("Post-LN", 18, "failed"),
    ("Pre-LN", 18, 28.38),
    ("ADMIN", 18, 29.03),
)


def _depth(rows: Rows) -> Verdict:
    return judge.every(
        *(judge.trains(rows, yes=[f"{name}, {n}+{n}"]) for name in ("ADMIN", "Pre-LN") for n in DEPTHS),
        judge.trains(rows, yes=["Post-LN, 6+6"]),
        *(fails(rows, f"Post-LN, {n}+{n}", f"ADMIN, {n}+{n}") for n in DEPTHS[1:]),
    )


def _bleu(rows: Rows) -> Verdict:
    return judge.every(
        *(judge.paired(rows, "bleu", f"ADMIN, {n}+{n}", f"Pre-LN, {n}+{n}", "higher", what="BLEU") for n in (3, 6)),
        judge.paired(rows, "bleu", "ADMIN, 6+6", "ADMIN, 3+3", "higher", what="BLEU"),
    )


def _dependencies(rows: Rows) -> Verdict:
    """beta_ii^2 of the upper half of the encoder: Post-LN above Pre-LN, ADMIN below Post-LN."""
    own = {arm: _of(rows, arm=arm) for arm in _AT}
    found = []
    for when in ("init", "trained"):
        column = f"encoder {when}"
        for other in ("Pre-LN", "ADMIN"):
            both = [
                {"arm": arm, "seed": row["seed"], "own share": row[column]}
                for arm in ("Post-LN", other)
                for row in own[arm]
                if column in row
            ]
            what = f"mean beta_ii^2 of the upper half, {'at initialization' if when == 'init' else when}"
            found.append(judge.paired(both, "own share", "Post-LN", other, "higher", what=what))
    return judge.every(*found)


def _updates(rows: Rows) -> Verdict:
    adam = [row for row in of_arm(rows, "Adam") if "outcome" in row]
    found = [
        judge.beyond(
            "first over last layer, gradient, first update", [row["gradient_ratio"] for row in adam], 0.5, "lower"
        ),
        judge.beyond("first over last layer, Adam's update", [row["update_ratio"] for row in adam], 0.8, "higher"),
    ]
    found += [
        judge.paired(rows, "validation_loss", "Adam", arm, "lower", unit="nats", least=0.2)
        for arm in _SGD
        if arm != "Adam"
    ]
    return judge.every(*found)


_SGD = {
    "Adam": ("post-ln", "model.layers=6"),
    "SGD, lr 0.1": ("post-ln", "model.layers=6", "training.optimizer=sgd", "training.lr=0.1"),
    "SGD, lr 1": ("post-ln", "model.layers=6", "training.optimizer=sgd", "training.lr=1"),
}


def _skips(rows: Rows) -> Verdict:
    own = [row for row in rows if "encoder_exponent" in row]
    found = []
    for stack in ("encoder", "decoder"):
        values = [row[f"{stack}_exponent"] for row in own]
        found += [
            judge.beyond(f"exponent of the skip over depth, {stack}", values, 0.4, "higher"),
            judge.beyond(f"exponent of the skip over depth, {stack}", values, 0.6, "lower"),
        ]
    moved = [max(row["encoder_moved"], row["decoder_moved"]) for row in own]
    return judge.every(*found, judge.beyond("largest change of a skip by training", moved, 0.0, "higher"))


def _linear(rows: Rows) -> Verdict:
    return judge.every(
        *(judge.trains(rows, yes=[f"ADMIN, beta2 {beta}"]) for beta in BETAS),
        *(fails(rows, f"Post-LN, beta2 {beta}", f"ADMIN, beta2 {beta}") for beta in BETAS),
    )


BETAS = (0.99, 0.999)
_LINEAR = {
    f"{name}, beta2 {beta}": (_AT[name], f"training.betas=[0.9, {beta}]")
    for name in ("Post-LN", "ADMIN")
    for beta in BETAS
}


ITEMS = (
    Item(
        id="admin2020/vanishing-init",
        title="Whose gradients vanish at initialization: Post-LN's decoder alone",
        claim="At initialization gradients vanish towards the input in decoders of Post-LN, and neither in its encoders"
        " nor in Pre-LN.",
        published=(
            Published(label="gradients vanish", value="Post-LN decoders only, by the cross-attention", tag=_NOTES),
        ),
        size_paper="depth not known here; the paper's models have 6 to 18 layers in each stack, width 512",
        size_here="6 and 18 layers in each stack, width 256, random tokens, 3 seeds",
        minutes=0.2,
        differs="Width; random tokens in place of WMT14; W_2 stands for its layer.",
        rule="Same direction: at 18+18 layers the gradient of W_2 falls by more than a tenth per layer going down,"
        " (first/last)^(1/17) < 0.9, in both stacks that are Post-LN decoders, and by less in the six others (each the"
        " interval of the median over seeds).",
        judge=_vanishing,
        measure=stacks.gradients_at_init,
        charts=(
            Chart(
                name="gradients",
                title="Gradient of W_2 by layer, over that of the last layer, 18+18 layers",
                sentence="Where a line falls to the left, gradients vanish towards the input.",
                x="layer",
                y="relative",
                panel="stack",
                where={"layers": 18},
                log_y=True,
                y_label="|gradient of W_2| over the last layer's",
            ),
        ),
    ),
    Item(
        id="admin2020/output-change-fig4",
        title="Sensitivity to weight perturbations, by depth: linear or logarithmic",
        claim="The change of the output under a small change of all weights grows as N, the number of sublayers, in"
        " Post-LN, and as ln N in Pre-LN and ADMIN, along a random direction and along the gradient.",
        published=(
            Published(label="R^2 of the linear fit, Post-LN", value=0.99, tag=_NOTES),
            Published(label="R^2 of the logarithmic fit, Pre-LN and ADMIN", value=0.99, tag=_NOTES),
        ),
        size_paper="depths not known here; the released code moves weights by 1e-4 sign(noise) or 1e-6 sign(gradient)",
        size_here="a decoder-only stack of 3 to 48 layers, width 64, float64, steps 1e-5 and 1e-6, 5 seeds",
        minutes=0.2,
        differs="A decoder-only stack at initialization on random tokens, in float64; the gradient is that of a"
        " language model's loss.",
        rule="Same direction: along both directions R^2 of a + b N of Post-LN and of a + b ln N of Pre-LN and of ADMIN,"
        " fitted to the mean over seeds, is above 0.95, and from 6 to 96 sublayers Post-LN's change grows by a larger"
        " factor than that of either (the interval of the median over seeds).",
        judge=_output_changes,
        measure=stacks.output_changes,
        charts=(
            Chart(
                name="output-change",
                title="Mean square change of the last hidden state over that at 6 sublayers",
                x="sublayers",
                y="relative",
                panel="direction",
                log_x=True,
                log_y=True,
                x_label="sublayers N",
                y_label="change, relative to N = 6",
            ),
        ),
    ),
    Item(
        id="admin2020/hybrid-table1",
        title="A Post-LN encoder with a Pre-LN decoder, and the reverse: vanishing or not, trains or not",
        claim="A Post-LN encoder with a Pre-LN decoder has no vanishing gradients and still fails at 18 layers, so"
        " vanishing is not the root cause.",
        published=(Published(label="the hybrid, 18 layers", value="no vanishing gradients, diverges", tag=_NOTES),),
        size_paper="18+18 layers, width 512, WMT14 En-De",
        size_here="18+18 layers, width 64, 340 updates of 1,024 tokens, 3 seeds",
        minutes=32,
        differs="Width, data, updates and batch; a warm-up of 50 and a constant rate of 1e-3, beside it 8e-3, the"
        " paper's by 1/width; table 1's own numbers are not at hand.",
        rule="Same direction: with every seed the gradient of W_2 in the hybrid's decoder falls by less than a tenth"
        " per layer going down at the first update; at 8e-3 the hybrid fails where Pre-LN"
        " trains; and at 1e-3 Post-LN fails and Pre-LN trains."
        " Opposite: the hybrid trains at both rates with every seed." + FAILS,
        judge=_hybrid,
        corpus=MULTI30K,
        runs=runs(HYBRID),
        measure=stacks.gradients_of_runs,
        run_charts=("loss",),
        charts=(
            Chart(
                name="factors",
                title="Gradient of W_2 per layer going down the decoder, at the first update",
                sentence="1: level; 0.8: a fifth is lost in each layer.",
                kind="bars",
                x="arm",
                y="decoder_factor",
                y_label="(first / last layer)^(1 / 17)",
            ),
        ),
        full=Full(
            recipe="admin2020/wmt14-en-de",
            overrides=(
                "model.layers=18",
                'arms=[["post-ln"], ["pre-ln"], ["admin"], ["pre-ln", "model.encoder_placement=post-ln"],'
                ' ["post-ln", "model.encoder_placement=pre-ln"]]',
            ),
            devices=4,
        ),
    ),
    Item(
        id="admin2020/depth-table2",
        title="Post-LN, Pre-LN and ADMIN at 6, 12 and 18 layers in each stack: who trains, and BLEU",
        claim="Post-LN fails from 12 layers in each stack on, where ADMIN and Pre-LN train.",
        published=tuple(
            Published(label=f"BLEU, WMT14 En-De, {name}, {n}+{n}", value=value, tag="quoted: RealFormer's reprint")
            for name, n, value in TABLE_2
        ),
        size_paper="6+6, 12+12, 18+18 layers, width 512, 4.5 million pairs, 100 epochs",
        size_here="6+6, 12+12, 18+18 layers, width 64, 340 updates of 1,024 tokens, 3 seeds",
        minutes=32,
        differs="Width, data, updates and batch: who trains can be compared, BLEU of so short runs cannot.",
        rule="Same direction: with every seed ADMIN and Pre-LN train at all three depths and Post-LN at 6+6, and"
        " Post-LN fails at 12+12 and at 18+18." + FAILS,
        judge=_depth,
        corpus=MULTI30K,
        runs=runs({f"{name}, {n}+{n}": deep(name, n, n) for n in DEPTHS for name in _AT}),
        run_charts=("loss",),
        charts=(
            Chart(
                name="depth",
                title="Validation loss",
                kind="bars",
                x="arm",
                y="validation_loss",
                y_label="validation loss (nats per token)",
            ),
        ),
        full=Full(recipe="admin2020/wmt14-en-de", overrides=(_FOUR,), devices=4),
    ),
    Item(
        id="admin2020/bleu",
        title="BLEU of Post-LN, Pre-LN and ADMIN where all three train, and of a deeper ADMIN",
        claim="At equal depth ADMIN translates better than Pre-LN, and deeper ADMIN better than shallow.",
        published=tuple(
            Published(label=f"BLEU, WMT14 En-De, {name}, {n}+{n}", value=value, tag="quoted: RealFormer's reprint")
            for name, n, value in TABLE_2
            if n < DEPTHS[-1]
        ),
        size_paper="6+6 and 12+12 layers, width 512, 4.5 million pairs, 100 epochs",
        size_here="3+3 and 6+6 layers, width 128, eight epochs of 29,000 pairs, 3 seeds",
        minutes=280,
        differs="Width, depth, data and updates; Post-LN and ADMIN with 400 updates of warm-up, Pre-LN without.",
        rule="Same direction: with every seed BLEU of ADMIN is above that of Pre-LN at 3+3 and at 6+6, and that of"
        " ADMIN at 6+6 above that at 3+3 (each the interval of the median paired difference over seeds).",
        judge=_bleu,
        corpus=MULTI30K,
        runs=(
            Runs(
                recipe="multi30k",
                arms={
                    f"{name}, {n}+{n}": (*deep(name, n, n), *(("training.warmup=0",) if name == "Pre-LN" else ()))
                    for name, n in (("Post-LN", 3), ("Pre-LN", 3), ("ADMIN", 3), ("Pre-LN", 6), ("ADMIN", 6))
                },
                overrides=("model.width=128", "model.ffn=512", "training.precision=fp32"),
            ),
        ),
        measure=translations.scores,
        run_charts=("loss",),
        charts=(
            Chart(name="bleu", title="BLEU of 500 validation pairs", kind="bars", x="arm", y="bleu", y_label="BLEU"),
        ),
    ),
    Item(
        id="admin2020/dependency-map",
        title="What the stream is made of: the dependency map beta_ij before and after training",
        claim="In Post-LN each sublayer's own branch keeps a large share of the stream, beta_ii^2, where in Pre-LN it"
        " falls as 1/i, and ADMIN begins near Pre-LN.",
        published=(
            Published(label="beta_ii^2, Pre-LN", value="about 1/i", tag=_NOTES),
            Published(label="beta_ii^2, Post-LN", value="stays large", tag=_NOTES),
        ),
        size_paper="depth not known here; width 512, WMT14 En-De",
        size_here="6+6 layers, width 64, at initialization and after 340 updates of 1,024 tokens, 3 seeds",
        minutes=6.5,
        differs="Width, data and updates; the parts are followed exactly, with every norm's statistics held, where"
        " the paper takes them for independent.",
        rule="Same direction: the mean beta_ii^2 over the upper half of the encoder is higher in Post-LN than in"
        " Pre-LN and than in ADMIN, at initialization and after training, with every seed.",
        judge=_dependencies,
        corpus=MULTI30K,
        runs=runs({name: deep(name, 6, 6) for name in _AT}),
        measure=stacks.dependencies,
        charts=(
            Chart(
                name="map",
                title="beta_ij^2 of the encoder: the share of branch j (0: the embedding) in the stream after"
                " sublayer i",
                kind="map",
                x="part",
                y="sublayer",
                value="beta2",
                panel="panel",
                where={"stack": "encoder"},
                x_label="branch j",
                y_label="sublayer i",
                value_label="share of the variance, 0 to 1",
            ),
        ),
        revised=(FLOAT32,),
    ),
    Item(
        id="admin2020/adam-updates",
        title="Adam makes updates equal where gradients vanish; SGD does not, and fails",
        claim="Adam's updates are of one size in all layers although Post-LN's gradients vanish, while SGD's vanish"
        " with them and train far worse.",
        published=(
            Published(label="updates under Adam", value="equal over layers, although gradients vanish", tag=_NOTES),
        ),
        size_paper="Post-LN, depth not known here; width 512",
        size_here="Post-LN, 6+6 layers, width 64, 340 updates of 1,024 tokens, 3 seeds",
        minutes=5.4,
        differs="Width, data and updates; SGD has momentum 0.9 and two rates.",
        rule="Same direction: at the first update the first decoder layer's gradient of W_2 is less than half of the"
        " last one's, Adam's relative change of the first layer is at least 0.8 of the last one's, and Adam's"
        " validation loss is lower than SGD's at either rate by more than 0.2 nats with every seed.",
        judge=_updates,
        corpus=MULTI30K,
        runs=runs(_SGD),
        measure=stacks.updates_of_runs,
        run_charts=("loss",),
        charts=(
            Chart(
                name="sizes",
                title="First update: gradient and relative change of W_2 in the decoder, over the last layer's",
                x="layer",
                y="relative",
                panel="size",
                where={"when": "first update"},
                log_y=True,
                y_label="over the last layer's",
            ),
            Chart(
                name="sizes-end",
                title="The same at the last update",
                x="layer",
                y="relative",
                panel="size",
                where={"when": "last probe"},
                log_y=True,
                y_label="over the last layer's",
            ),
        ),
        revised=(FLOAT32,),
    ),
    Item(
        id="admin2020/omegas",
        title="ADMIN's skips by depth, as profiled and as trained",
        claim="ADMIN's profiled skips grow as the square root of depth, in encoder and decoder apart, and are trained"
        " on with everything else.",
        published=(
            Published(
                label="exponent over depth, encoder, 100+100 layers",
                value=0.517,
                tag="code: admin-torch's profile file",
            ),
            Published(
                label="exponent over depth, decoder, 100+100 layers",
                value=0.495,
                tag="code: admin-torch's profile file",
            ),
            Published(label="skip of sublayer 30, encoder", value=3.306, tag="code: admin-torch's profile file"),
            Published(label="skip of sublayer 50, encoder", value=4.280, tag="code: admin-torch's profile file"),
        ),
        size_paper="100+100 layers, width 512, WMT17 En-De",
        size_here="18+18 layers, width 64, 340 updates of 1,024 tokens, 3 seeds",
        minutes=4.9,
        differs="Depth, width, data; the exponent is fitted from the sixth sublayer on, the reference's from the"
        " twentieth.",
        rule="Same direction: the exponent of the profiled skips over depth lies between 0.4 and 0.6 in both stacks,"
        " and training moves at least one skip (each the interval of the median over seeds).",
        judge=_skips,
        corpus=MULTI30K,
        runs=runs({"ADMIN": deep("ADMIN", 18, 18)}),
        measure=stacks.skips,
        charts=(
            Chart(
                name="skips",
                title="ADMIN's skip by sublayer",
                x="sublayer",
                y="skip",
                line="when",
                panel="stack",
                log_x=True,
                log_y=True,
                x_label="sublayer",
                y_label="skip",
            ),
        ),
        revised=(FLOAT32,),
    ),
    Item(
        id="admin2020/linear-decay",
        title="No warm-up, the rate falling linearly: ADMIN trains where Post-LN fails",
        claim="With a linear decay and no warm-up at a small rate a deep ADMIN trains, and the same Post-LN fails.",
        published=(
            Published(
                label="no-warm-up variant",
                value="linear decay, LR 1e-4 to 5e-4, beta2 0.99, 0.995 or 0.999, warm-up 1",
                tag="code: Transformer-Clinic",
            ),
        ),
        size_paper="6+6 layers, width 512, IWSLT14, 90 epochs",
        size_here="a causal character model of 18 layers, width 64, 200 updates of 512 characters, 3 seeds",
        minutes=2.7,
        differs="A language model in place of translation, deeper and narrower, Adam in place of RAdam; 0 updates of"
        " warm-up.",
        rule="Same direction: with either beta2 ADMIN trains and Post-LN fails, with every seed." + FAILS,
        judge=_linear,
        corpus=CAPTIONS,
        runs=(
            Runs(
                recipe="admin-trains-36-layers",
                arms=_LINEAR,
                overrides=("model.layers=18", "training.lr=5e-4", "training.warmup=0", "training.decay=linear"),
            ),
        ),
        run_charts=("loss",),
        full=Full(
            recipe="admin2020/iwslt14",
            overrides=("training.warmup=1", "training.decay=linear", "training.lr=5e-4", "training.betas=[0.9, 0.999]"),
        ),
    ),
)
