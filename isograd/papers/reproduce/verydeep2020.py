"""Liu, Duh, Liu, Gao 2020: sixty encoder layers, where depth pays, what it changes, back-translation."""

from collections.abc import Callable, Mapping, Sequence

from isograd.lab.statistics import median_interval
from isograd.papers.reproduce import judge
from isograd.papers.reproduce.admin2020 import FAILS, FLOAT32, TRANSLATION, deep, fails, runs
from isograd.papers.reproduce.data import MULTI30K, TATOEBA_EN_FR
from isograd.papers.reproduce.item import Chart, Direction, Full, Item, Published, Row, Rows, Runs, Verdict
from isograd.papers.reproduce.judge import by_seed, measured, of_arm
from isograd.papers.reproduce.measures import translations

_NOTE = "quoted: a public note"
_ABSTRACT = "quoted: the abstract and a leaderboard"
_ISSUE = "quoted: Transformer-Clinic, issue 9"
_SHORT = "Width, data, updates and batch: who trains can be compared, BLEU of so short runs cannot."

DEEP = {
    "Post-LN, 6+6": deep("Post-LN", 6, 6),
    "Post-LN, 60+12": deep("Post-LN", 60, 12),
    "ADMIN, 60+12": deep("ADMIN", 60, 12),
}
GRID = {
    "ADMIN, 9+9": deep("ADMIN", 9, 9),
    "ADMIN, 12+3": deep("ADMIN", 12, 3),
    "ADMIN, 15+3": deep("ADMIN", 15, 3),
    "ADMIN, 3+15": deep("ADMIN", 3, 15),
    "Post-LN, 6+6": deep("Post-LN", 6, 6),
}
LONGER = ("training.tokens=2048", "training.steps=400", "training.lr=2e-3", "training.warmup=100")
BASE, DEEPER, REVERSED = "Post-LN, 6+6", "ADMIN, 15+3", "ADMIN, 3+15"


def grid(arms: Mapping[str, Sequence[str]], *more: str) -> tuple[Runs, ...]:
    """Longer runs, whose translations say something."""
    return runs(arms, *LONGER, *more)


def _deep(rows: Rows) -> Verdict:
    return judge.every(
        judge.trains(rows, yes=["Post-LN, 6+6"]),
        judge.trains(rows, yes=["ADMIN, 60+12"]),
        fails(rows, "Post-LN, 60+12", "ADMIN, 60+12"),
    )


def _grid(rows: Rows) -> Verdict:
    return judge.paired(rows, "bleu", DEEPER, REVERSED, "higher", what="BLEU")


def _measures(rows: Rows) -> Verdict:
    return judge.every(
        judge.paired(rows, "bleu", DEEPER, BASE, "higher", what="BLEU"),
        judge.paired(rows, "chrf", DEEPER, BASE, "higher", what="chrF"),
        judge.paired(rows, "ter", DEEPER, BASE, "lower", what="TER"),
    )


def _buckets(what: str) -> Callable[[Rows], Verdict]:
    """The deeper model above the baseline in each range."""

    def judged(rows: Rows) -> Verdict:
        of: dict[str, list[Row]] = {}
        for row in rows:
            if "bucket" in row:
                of.setdefault(str(row["bucket"]), []).append(row)
        named = {what.format(bucket): own for bucket, own in of.items()}
        return judge.every(*(judge.paired(own, "value", DEEPER, BASE, "higher", what=n) for n, own in named.items()))

    return judged


def _back(rows: Rows) -> Verdict:
    return judge.every(
        *(
            judge.paired(rows, "bleu", arm, "pairs alone", "higher", what="BLEU")
            for arm in ("one to one", "one to three")
        )
    )


def _folded(rows: Rows) -> Verdict:
    return judge.every(
        judge.beyond("translations that stay the same", [row["same"] for row in rows], 99.0, "higher", unit="%"),
        judge.beyond("skips that are left", [float(row["skips_left"]) for row in rows], 0.5, "lower"),
    )


def _shallow(rows: Rows) -> Verdict:
    return judge.every(
        judge.trains(rows, yes=["Post-LN, 12+12"]),
        fails(rows, "Post-LN, 12+3", "Post-LN, 12+12"),
        *(fails(rows, f"ADMIN, 18+{n}", "ADMIN, 18+18") for n in (1, 2)),
    )


def _profile(rows: Rows) -> Verdict:
    return judge.both(judge.trains(rows, yes=_PROFILED), _alike(rows))


def _alike(rows: Rows) -> Verdict:
    """The interval of the paired difference lies within 0.05 nats of zero; opposite where it lies beyond."""
    mine, theirs = (by_seed(of_arm(rows, arm), "validation_loss") for arm in _PROFILED)
    apart = [mine[seed] - theirs[seed] for seed in mine if seed in theirs]
    found = measured("validation loss, profiled at 0.1 less profiled at 0.2", apart, "nats")
    interval = median_interval(apart) if len(apart) > 1 else None
    verdict: Direction = "not seen"
    if interval and interval.low >= -ALIKE and interval.high <= ALIKE:
        verdict = "same direction"
    elif interval and (interval.low > ALIKE or interval.high < -ALIKE):
        verdict = "opposite"
    reason = f"profiled at 0.1 the validation loss is {found.value or 0:+.3g} nats apart (n = {found.n})."
    return Verdict(verdict=verdict, reason=reason, ours=(found,))


ALIKE = 0.05  # nats
_PROFILED = ("profiled at 0.1", "profiled at 0.2")
_DROPOUT = ("model.dropout=0.2", "model.embedding_dropout=0.2")
_SIXTEEN = ("training.accumulation=8",)  # the script's: 3200 tokens on each of 16 devices, 8 times
_CURVES = (Published(label="the curves", value="values not at hand", tag="memory"),)


def _curve(name: str, title: str, x_label: str, y_label: str, log_x: bool) -> Chart:
    return Chart(
        name=name,
        title=title,
        sentence=f"Ranges with fewer than {translations.FREQUENT} are left out; a point stands at the beginning of"
        " its range.",
        x="from",
        y="value",
        log_x=log_x,
        x_label=x_label,
        y_label=y_label,
    )


def _bars(name: str, title: str, y: str, y_label: str) -> Chart:
    return Chart(name=name, title=title, kind="bars", x="arm", y=y, y_label=y_label)


ITEMS = (
    Item(
        id="verydeep2020/60l-12l",
        title="60 encoder and 12 decoder layers beside 6 and 6: who trains (German to English)",
        claim="With 60 encoder and 12 decoder layers Post-LN fails, and ADMIN trains.",
        published=(
            Published(label="BLEU, WMT14 En-De, ADMIN 60L-12L", value=30.1, tag=_ABSTRACT),
            Published(label="sacrebleu, WMT14 En-De, ADMIN 60L-12L", value=29.5, tag=_ABSTRACT),
            Published(
                label="Post-LN 60L-12L",
                value="gradients reach NaN, perplexity near random",
                tag="quoted: a review, a note",
            ),
        ),
        size_paper="60+12 layers, width 512, 4.5 million pairs, 50 epochs",
        size_here="60+12 and 6+6 layers, width 64, 340 updates of 1,024 tokens, 3 seeds",
        minutes=20,
        differs=_SHORT + " The other direction, German to English.",
        rule="Same direction: with every seed Post-LN trains at 6+6 and fails at 60+12, and"
        " ADMIN trains at 60+12." + FAILS,
        judge=_deep,
        corpus=MULTI30K,
        runs=runs(DEEP),
        run_charts=("loss", "gradients"),
        charts=(_bars("loss-end", "Validation loss", "validation_loss", "validation loss (nats per token)"),),
        full=Full(recipe="verydeep2020/wmt14-en-de", overrides=("training.accumulation=1",), devices=8),
    ),
    Item(
        id="verydeep2020/60l-12l-en-fr",
        title="60 encoder and 12 decoder layers beside 6 and 6: who trains (English to French)",
        claim="With 60 encoder and 12 decoder layers Post-LN fails, and ADMIN trains, also from English to French.",
        published=(
            Published(label="BLEU, WMT14 En-Fr, 6L-6L", value=41.3, tag=_ABSTRACT),
            Published(label="BLEU, WMT14 En-Fr, ADMIN 60L-12L", value=43.8, tag=_ABSTRACT),
            Published(label="sacrebleu, WMT14 En-Fr, ADMIN 60L-12L", value=41.8, tag=_ABSTRACT),
            Published(label="Post-LN 60L-12L", value="diverges", tag=_ABSTRACT),
        ),
        size_paper="60+12 layers, width 512, 36 million pairs",
        size_here="60+12 and 6+6 layers, width 64, 340 updates of 1,024 tokens, 3 seeds",
        minutes=13,
        differs=_SHORT,
        rule="Same direction: with both seeds Post-LN trains at 6+6 and fails at 60+12, and"
        " ADMIN trains at 60+12." + FAILS,
        judge=_deep,
        corpus=TATOEBA_EN_FR,
        runs=(Runs(recipe="admin2020/18l-small", arms=DEEP, overrides=TRANSLATION),),
        run_charts=("loss", "gradients"),
        full=Full(recipe="verydeep2020/wmt14-en-fr", overrides=_SIXTEEN, devices=16),
    ),
    Item(
        id="verydeep2020/depth-grid",
        title="Depth in the encoder against depth in the decoder, with the paired bootstrap of every two",
        claim="Depth pays more in the encoder than in the decoder.",
        published=(
            Published(
                label="36L-36L, 48L-12L, 60L-12L, 12L-60L",
                value="a matrix of significances; values not at hand",
                tag=_NOTE,
            ),
            Published(label="depth", value="encoder depth pays more than decoder depth", tag=_NOTE),
        ),
        size_paper="36+36, 48+12, 60+12, 12+60 layers, width 512, WMT14",
        size_here="9+9, 12+3, 15+3, 3+15 and 6+6 layers, width 64, 400 updates of 2,048 tokens, 3 seeds",
        minutes=24,
        differs="A quarter of the depth, so that runs of this length write something; width, data, updates and batch.",
        rule="Same direction: BLEU of ADMIN 15+3 is higher than that of ADMIN 3+15 with every seed (the interval of the"
        " median paired difference). The bootstrap's p, over lines and for one seed, is shown and does not decide.",
        judge=_grid,
        corpus=MULTI30K,
        runs=grid(GRID),
        measure=translations.differences,
        charts=(
            Chart(
                name="matrix",
                title="BLEU of the row less that of the column, mean over seeds",
                kind="map",
                x="second",
                y="first",
                value="bleu difference",
                x_label="less",
                y_label="BLEU of",
                value_label="difference (BLEU)",
            ),
            Chart(
                name="significance",
                title="p of the paired bootstrap over 500 lines, mean over seeds",
                sentence="At 0.05 or below two systems are called different by one seed's lines.",
                kind="map",
                x="second",
                y="first",
                value="bleu p",
                x_label="second system",
                y_label="first system",
                value_label="p",
            ),
            _bars("bleu", "BLEU of 500 held-out lines", "bleu", "BLEU (sacrebleu)"),
        ),
        run_charts=("validation",),
        full=Full(
            recipe="verydeep2020/wmt14-en-fr",
            overrides=(
                'arms=[["admin", "model.encoder_layers=36", "model.layers=36"],'
                ' ["admin", "model.encoder_layers=48", "model.layers=12"],'
                ' ["admin", "model.encoder_layers=60", "model.layers=12"],'
                ' ["admin", "model.encoder_layers=12", "model.layers=60"]]',
            ),
            devices=16,
        ),
    ),
    Item(
        id="verydeep2020/ter-chrf",
        title="BLEU, chrF and TER of a deep model and the baseline",
        claim="The deep model is better than the 6L-6L baseline by every measure, not by BLEU alone.",
        published=(
            Published(label="TER and METEOR, table 1", value="not recovered", tag=_NOTE),
            Published(label="BLEU, WMT14 En-Fr, 6L-6L", value=41.3, tag=_ABSTRACT),
            Published(label="BLEU, WMT14 En-Fr, ADMIN 60L-12L", value=43.8, tag=_ABSTRACT),
        ),
        size_paper="60+12 beside 6+6 layers, width 512, WMT14",
        size_here="15+3 beside 6+6 layers, width 64, 400 updates of 2,048 tokens, 500 held-out lines, 3 seeds",
        minutes=24,
        differs="A quarter of the depth; width, data, updates and batch; chrF in place of METEOR.",
        rule="Same direction: ADMIN 15+3 has higher BLEU, higher chrF and lower TER than Post-LN 6+6, with every seed.",
        judge=_measures,
        corpus=MULTI30K,
        runs=grid(GRID),
        measure=translations.scores,
        charts=(
            _bars("bleu", "BLEU", "bleu", "BLEU"),
            _bars("chrf", "chrF", "chrf", "chrF"),
            _bars("ter", "TER: lower is better", "ter", "edits per 100 words"),
        ),
    ),
    Item(
        id="verydeep2020/meteor",
        title="METEOR of the deep model and the baseline",
        claim="The deep model is better than the 6L-6L baseline by METEOR, too.",
        published=(Published(label="METEOR, table 1", value="not recovered", tag=_NOTE),),
        size_paper="60+12 beside 6+6 layers, width 512, WMT14",
        size_here="not run",
        missing="METEOR needs WordNet, which is not here; verydeep2020/ter-chrf has BLEU, chrF and TER",
    ),
    Item(
        id="verydeep2020/word-frequency",
        title="Words by how often training has them: F1 of the deep model and the baseline",
        claim="The deep model translates frequent and rare words better than the 6L-6L baseline.",
        published=_CURVES,
        size_paper="60+12 beside 6+6 layers, width 512, WMT14",
        size_here="15+3 beside 6+6 layers, width 64, 400 updates of 2,048 tokens, 500 held-out lines, 3 seeds",
        minutes=24,
        differs="A quarter of the depth; width, data, updates and batch; the claim is from memory, its values are not"
        " at hand.",
        rule="Same direction: in every range of frequencies with at least 30 words F1 of ADMIN 15+3 is higher than"
        " that of Post-LN 6+6 with every seed.",
        judge=_buckets("F1 of words seen {} times"),
        corpus=MULTI30K,
        runs=grid(GRID),
        measure=translations.by_frequency,
        charts=(
            _curve("frequency", "F1 of words by their frequency in training", "occurrences in training", "F1", True),
        ),
    ),
    Item(
        id="verydeep2020/sentence-length",
        title="Sentences by their length: BLEU of the deep model and the baseline",
        claim="The deep model translates short and long sentences better than the 6L-6L baseline.",
        published=_CURVES,
        size_paper="60+12 beside 6+6 layers, width 512, WMT14",
        size_here="15+3 beside 6+6 layers, width 64, 400 updates of 2,048 tokens, 500 held-out lines, 3 seeds",
        minutes=24,
        differs="A quarter of the depth; width, data, updates and batch; the claim is from memory, its values are not"
        " at hand.",
        rule="Same direction: in every range of lengths with at least 30 sentences BLEU of ADMIN 15+3 is higher than"
        " that of Post-LN 6+6 with every seed.",
        judge=_buckets("BLEU of {} words"),
        corpus=MULTI30K,
        runs=grid(GRID),
        measure=translations.by_length,
        charts=(_curve("length", "BLEU by length of the reference", "words of the reference", "BLEU", False),),
    ),
    Item(
        id="verydeep2020/back-translation",
        title="Tagged back-translation: what text of the target language alone adds",
        claim="Back-translated text of the target language raises BLEU.",
        published=(
            Published(label="BLEU, WMT14 En-Fr, ADMIN 60L-12L", value=43.8, tag=_ABSTRACT),
            Published(label="the same with back-translation", value=46.4, tag=_ABSTRACT),
            Published(label="sacrebleu with back-translation", value=44.4, tag=_ABSTRACT),
            Published(label="synthetic pairs", value=21.8, unit="million", tag=_NOTE),
        ),
        size_paper="60+12 layers, width 512, 36 million pairs and 21.8 million synthetic ones",
        size_here="6+6 layers, width 64, 7,250 pairs and as many or three times as many synthetic ones, 400 updates,"
        " 3 seeds",
        minutes=22,
        differs="Depth, width, data and direction; the reverse model is ours, trained on the same quarter of the"
        " pairs, greedy, with a tag; each arm learns its own vocabulary.",
        rule="Same direction: BLEU of the model with one synthetic pair for each pair, and of that with three, is"
        " higher than that of the pairs alone, with every seed.",
        judge=_back,
        corpus=MULTI30K,
        runs=grid({"all pairs": deep("Post-LN", 6, 6)}),
        measure=translations.back_translated,
        charts=(_bars("bleu", "BLEU of 500 held-out lines; back: the other direction", "bleu", "BLEU (sacrebleu)"),),
        full=Full(recipe="verydeep2020/back-translation", overrides=_SIXTEEN, devices=16),
        details="all pairs is what the texts would give if their translations were there.",
    ),
    Item(
        id="verydeep2020/fold",
        title="A deep ADMIN folded into plain Post-LN before decoding: the same translations",
        claim="After training ADMIN's skips can be folded into the weights, so that decoding is a plain Post-LN's.",
        published=(Published(label="folding", value="promised; no number", tag="memory"),),
        size_paper="60+12 layers, width 512",
        size_here="60+12 layers, width 64, 100 held-out lines, 3 seeds",
        minutes=7.6,
        differs="Width and data.",
        rule="Same direction: more than 99 % of the translations are the same letter by letter, and no learned skip"
        " is left, with every seed.",
        judge=_folded,
        corpus=MULTI30K,
        runs=runs({"ADMIN, 60+12": DEEP["ADMIN, 60+12"]}),
        measure=translations.folded,
        charts=(_bars("speed", "Time to translate, before over after", "speed", "times as fast"),),
        revised=(FLOAT32,),
    ),
    Item(
        id="verydeep2020/shallow-decoder",
        title="A deep encoder with a shallow decoder: who fails",
        claim="A shallow decoder below a deep encoder fails where as deep a one trains: Post-LN at 12+3, ADMIN at"
        " 18+1 and 18+2.",
        published=(
            Published(label="Post-LN 12-12", value="trains", tag=_ISSUE),
            Published(label="Post-LN 12-3", value="diverges", tag=_ISSUE),
            Published(label="ADMIN 18-1, 18-2", value="diverge", tag=_ISSUE),
        ),
        size_paper="12-12, 12-3, 18-1, 18-2 layers, a user's own data",
        size_here="the same depths, width 64, 340 updates of 1,024 tokens, 3 seeds",
        minutes=20,
        differs="Width, data, updates and batch.",
        rule="Same direction: with every seed Post-LN trains at 12+12 and fails at 12+3, and"
        " ADMIN fails at 18+1 and 18+2." + FAILS,
        judge=_shallow,
        corpus=MULTI30K,
        runs=runs(
            {
                f"{name}, {encoder}+{decoder}": deep(name, encoder, decoder)
                for name, encoder, decoder in (
                    ("Post-LN", 12, 12),
                    ("Post-LN", 12, 3),
                    ("ADMIN", 18, 18),
                    ("ADMIN", 18, 1),
                    ("ADMIN", 18, 2),
                )
            }
        ),
        run_charts=("loss",),
        charts=(_bars("loss-end", "Validation loss", "validation_loss", "validation loss (nats per token)"),),
    ),
    Item(
        id="verydeep2020/profile-dropout",
        title="ADMIN profiled at one dropout and trained at another, as the released script does",
        claim="A profile at dropout 0.1 serves a run at dropout 0.2.",
        published=(
            Published(label="dropout of the profile", value=0.1, tag="code: microsoft/deepnmt"),
            Published(label="dropout of the run", value=0.2, tag="code: microsoft/deepnmt"),
        ),
        size_paper="60+12 layers, width 512, WMT14 En-Fr",
        size_here="12+12 layers, width 64, 340 updates of 1,024 tokens, 3 seeds",
        minutes=6.9,
        differs="Depth, width, data, updates and batch; the paper compares nothing: the script's choice is the claim.",
        rule="Same direction: both train with every seed, and the interval of the median paired difference of their"
        " validation losses lies within 0.05 nats of zero.",
        judge=_profile,
        corpus=MULTI30K,
        runs=runs(
            {
                "profiled at 0.1": (*deep("ADMIN", 12, 12), "training.profile_dropout=0.1"),
                "profiled at 0.2": deep("ADMIN", 12, 12),
            },
            *_DROPOUT,
        ),
        run_charts=("loss",),
        charts=(_bars("loss-end", "Validation loss", "validation_loss", "validation loss (nats per token)"),),
        full=Full(recipe="verydeep2020/wmt14-en-fr", overrides=_SIXTEEN, devices=16),
        revised=(FLOAT32,),
    ),
)
