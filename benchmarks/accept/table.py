"""The table: every sentence with a number in README and docs/measured.md, the main ones of docs, and the rule of each.

A rule is written before the run. Where a sentence counts runs, the count must come out; a number that depends on
rounding (another processor, another Python, whose embedded text differs) has limits.
"""

import tomllib
from typing import Any

from benchmarks.accept import items, rules
from benchmarks.accept.jobs import JOBS
from benchmarks.accept.row import Folders, Measured, Row
from benchmarks.accept.state import ROOT
from benchmarks.accept.table_docs import DOCS

README = "README.md"
MEASURED = "docs/measured.md"
HELD = (README, MEASURED)  # pages that say no number without a row
STABLE = ("pre-ln", "normformer")
SEEDS = "seeds 0, 1, 2"
STUDY = "seeds 1, 2, 3"
HELD_OUT = 3.37  # nats: what the token frequencies of the embedded text give on its held-out part (Python 3.11)


def _python(folders: Folders) -> Measured:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    return Measured(said=f"requires-python {needed}", holds=needed == ">=3.11")


def _default_compare(folders: Folders) -> Measured:
    from isograd.lab.study.compare import plan

    arms = plan(ROOT / "runs/compare")
    kinds = {(arm.run.model.layers, arm.run.data.source) for arm in arms}
    said = ", ".join(f"{layers} layers on {source!r}" for layers, source in kinds)
    return Measured(said=f"{len(arms)} arms: {said}", holds=kinds == {(12, "embedded")})


def _compare_minutes(folders: Folders) -> Measured:
    seconds = float((folders["compare-12"].parent / "cpu-seconds").read_text()) / 3
    return Measured(said=f"{seconds / 60:.1f} minutes of CPU time for one seed", holds=seconds <= 2 * 5 * 60)


def _minutes(folders: Folders) -> Measured:
    jobs = {name for row in ROWS if row.tier != "full" for name in row.jobs}
    minutes = sum(JOBS[name].minutes for name in jobs)
    return Measured(said=f"{len(jobs)} commands, {minutes:.0f} minutes of one core", holds=minutes <= 120)


def _auto_classes(folders: Folders) -> Measured:
    import transformers

    import isograd.models  # noqa: F401  # registers them
    from isograd import IsogradConfig

    names = ("CausalLM", "MaskedLM", "Seq2SeqLM", "SequenceClassification")
    found = [name for name in names if IsogradConfig in getattr(transformers, f"AutoModelFor{name}")._model_mapping]
    return Measured(said=", ".join(found), holds=len(found) == 4)


def _families(folders: Folders) -> Measured:
    from tests.lint.families import FAMILIES
    from tests.lint.faults import FAULTS

    return Measured(
        said=f"{len(FAMILIES)} families, {len(FAULTS)} faults", holds=(len(FAMILIES), len(FAULTS)) == (45, 21)
    )


_WARMUP_CELLS = {
    **dict.fromkeys(rules.grid(["post-ln"], warmup=[0]), (5, 9)),
    **dict.fromkeys(rules.grid(["post-ln"], warmup=[50]), (3, 9)),
    **dict.fromkeys(rules.grid(["post-ln"], warmup=[150]), (1, 9)),
    **dict.fromkeys(rules.grid(["admin"], warmup=[0]), (3, 9)),
    **dict.fromkeys(rules.grid(["admin"], warmup=[50, 150]), (0, 9)),
    **dict.fromkeys(rules.grid(["pre-ln", "normformer", "deepnorm"]), (0, 27)),
}
_DEPTH_CELLS = {
    **dict.fromkeys(rules.grid(["post-ln"], layers=[24]), (4, 6)),
    **dict.fromkeys(rules.grid(["post-ln"], layers=[48]), (6, 6)),
    **dict.fromkeys(rules.grid(["post-ln"], layers=[6, 12]), (0, 6)),
    **dict.fromkeys(rules.grid(["pre-ln", "normformer", "admin", "deepnorm"]), (0, 24)),
}
_MARGINS = {
    "Post-LN, warm-up 50, over 1e-3": (lambda rates: rates["post-ln", 50] / 1e-3, 1.2, 2.0),
    "Pre-LN, warm-up 50, over 1e-3": (lambda rates: rates["pre-ln", 50] / 1e-3, 60, 150),
}


def _over(warmup: int) -> Any:
    return lambda rates: rates["normformer", warmup] / rates["pre-ln", warmup]


_NORMFORMER = {
    "warm-up 0": (_over(0), 2.0, 6.0),
    "warm-up 50": (_over(50), 0.2, 1.0),
    "warm-up 100": (_over(100), 0.5, 2.0),
}

_COMPARE = (
    "`make compare` trains the same 12-layer model with the norms placed differently, on text that every Python"
    " carries (nothing is downloaded but the packages), in a few minutes on two CPU cores."
)
_ACCEPT = (
    "`make accept` measures them again, by rules written before the runs, on two cores within an hour; `make"
    " accept-full` adds what takes longer or needs other data: acceptance."
)
_SETTING = (
    "Unless something else is said: a character model of width 64 on the text that every Python carries,"
    " sequences of 32, batch 16, Adam at a constant LR of 1e-3 after the warm-up, seeds 0, 1, 2."
)
_COUNTED = (
    "A run learns nothing if its final loss, the mean of the last 20 steps, is not 0.10 nat below what token"
    " frequencies alone give on the same batches."
)
_CONTESTANTS = (
    ("isograd, early_stopping", "isograd, folded"),
    ("isograd, early_stopping", "CTranslate2"),
    ("generate, admin", "generate, BartForConditionalGeneration"),
)
_SHALLOW = (
    "At 12 layers (300 steps) Post-LN without warm-up ends 0.45 to 0.71 nat above Post-LN with 150 steps of it (3"
    " seeds); Pre-LN, NormFormer, ADMIN and DeepNorm train without any in 3 of 3 runs each."
)
_DEEP_COLD = (
    "At 36 layers (200 steps) and without warm-up Post-LN learns nothing in 3 of 3 runs, and Pre-LN and NormFormer"
    " train in 3 of 3."
)
_DEEP_EDGE = (
    "ADMIN hardly trains there without warm-up, ending 0.10 to 0.36 nat below token frequencies; DeepNorm trains, 0.72"
    " to 0.79 nat below (3 runs each)."
)
_DEEP_WARM = (
    "With 100 steps of warm-up Post-LN still learns nothing there in 3 of 3 runs, and the four others train in 3 of 3"
    " each."
)
_WARNING = (
    "The early warning was raised in all 7 of these 48 runs that collapsed and in none that finished (one is"
    " undecided): watch."
)
_CAPTIONS = (
    "On captions (Multi30k) ADMIN and DeepNorm learn nothing at 36 layers without warm-up, in 3 of 3 runs each:"
    " compare."
)
_STUDY = (
    "Over three learning rates from 3e-4 to 3e-3 (135 runs of 12 layers, seeds 1 to 3) Post-LN learns nothing in 5 of"
    " 9 runs without warm-up, in 3 of 9 with 50 steps and in 1 of 9 with 150, where 1 more learns nothing that holds on"
    " held-out text; ADMIN in 3 of 9 without, else in none; Pre-LN, NormFormer and DeepNorm never: warm-up."
)
_BEST = (
    "Each at its own best setting, Post-LN ends 0.21 to 0.35 nat above Pre-LN with each of 3 seeds; three seeds"
    " are too few for a test, corrected by Holm's method or not, so this is no proof, and of the other placements"
    " no order is claimed."
)
_DEPTH = (
    "With 100 steps of warm-up and two rates (120 runs, seeds 1 to 3) Post-LN learns nothing in 4 of 6 runs at 24"
    " layers and in 6 of 6 at 48, and trains at 6 and 12; the others train in all of theirs: depth."
)
_STABLE = (
    "After 50 steps of warm-up a rate of 1e-3 is 1.5 times below Post-LN's largest stable one in runs of 200"
    " steps, and 99 times below Pre-LN's (medians of 3 seeds): maximum stable learning rate."
)
_LR = (
    "Whether NormFormer tolerates higher rates than Pre-LN depends on the experiment: in an LR range test it"
    " reaches at least 1.7 times Pre-LN's rate with each of 3 seeds; trained from scratch at one rate, its"
    " largest stable one is 4.0, 0.5 and 1.2 times Pre-LN's after 0, 50 and 100 steps of warm-up (ratios of medians),"
    " above it with each of 3 seeds only in the first case."
)
_GRADIENTS = (
    "The first/last gradient ratio of NormFormer is below 0.75 times Pre-LN's at LR 5e-3 with each of 3 seeds; at 1e-3"
    " it is 0.8 to 1.6 times Pre-LN's."
)
_THEORY = (
    "The papers' claims about initialization are measured at up to 48 layers: every verdict of"
    " `isograd reproduce theory` holds but those that are recorded as false, and every negative control is"
    " refused: theory."
)
_NUMBERS = "Of 500 unseen German number words at least 495 are translated exactly after 1,200 updates (one run)."
_EXPORT = (
    "A trained ADMIN translator of number words, folded into Post-LN weights and exported to BART and to"
    " CTranslate2, gives the same 500 translations: export."
)
_MULTI30K = "On Multi30k a model of 7 million parameters reaches 33.7 BLEU on test2016 (one run): translation."
_IWSLT = (
    "On a part of IWSLT14 Post-LN without warm-up collapses in 3 of 3 runs; on Multi30k, at 18 + 18 and at 60 +"
    " 12 layers, it collapses even with it, where ADMIN, DeepNorm and Pre-LN train (one run each)."
)
_WIKI = (
    "On 62 million characters of Wikipedia a small BERT and a small GPT with Post-LN collapse without warm-up in"
    " 3 of 3 runs each, and train with it; with Pre-LN they need none."
)
_BLIMP = (
    "A causal model of 2.3 million parameters reaches 58.0 ± 0.2 % on BLiMP (one run; untrained 52.7): pre-training."
)
_GLUE = (
    "Fine-tuned, a masked one has a median of 0.699 on MRPC over 5 seeds (0.681 from scratch, majority class"
    " 0.674), and 0.520 on RTE, no better than from scratch (0.516) or than the majority class (0.527)."
)
_CHECK = (
    "Of 45 families of models `isograd check` finds the placement, and of 21 known faults each one, with nothing"
    " reported of its healthy twin: check."
)

_FIRST_SIGHT = (
    "Of 426 models that somebody wrote without sight of its rules, `isograd check` names the fault in 105 of 185 (95 %"
    " interval 50 to 64 %), and it has an alarm on 21 of 241 without one (6 to 13 %): at first sight."
)
_FAULTS = (
    "Of 226 mistakes put into plain models of four styles that no rule was tuned on, it names the cause of 159 by an"
    " error or a warning, and of 42 more it says that the change was tried and no harm was seen; it has no alarm on 54"
    " such models without a mistake: faults."
)

_PREDICTED = (
    "Of 145 runs at depths and a width that its rule was not fitted on, 43 collapsed: `collapse-predicted` flags 31 of"
    " them before the first step (recall 0.72, 95 % interval 0.57 to 0.83), and no run that trained (precision 0.89 or"
    " more, at 95 %); the early warning was raised in all 43 and in no other: collapse-predicted, watch."
)

_RUNS = ("compare-12", "compare-36-cold", "compare-36-warm")


def _collapse(job: str, cells: dict[tuple[str, int], tuple[int, int]]) -> rules.Rule:
    """Of the arms (placement, warm-up) of a comparison so many runs learn nothing."""
    named = {(("model.placement", p), ("training.warmup", w)): counts for (p, w), counts in cells.items()}
    return rules.unlearned(lambda folders: rules.runs_of(folders[job]), named)


def _stored(name: str) -> Any:
    return lambda folders: rules.stored(name)


def _ledger(job: str) -> Any:
    return lambda folders: rules.runs_of(folders[job])


def _studied(rows: Any, number: int, cells: Any) -> rules.Rule:
    def whole(folders: Folders) -> Measured:
        found = len(rows(folders))
        return Measured(said=f"{found} runs", holds=found == number)

    return rules.every(whole, rules.unlearned(rows, cells))


def _held_out(rows: Any) -> rules.Rule:
    """Post-LN with 150 steps of warm-up: runs that learned something, none of which holds on held-out text."""

    def rule(folders: Folders) -> Measured:
        own = [run for run in rows(folders) if rules.arm_of(run)[:2] == ("post-ln", 150) and rules.learned(run)]
        found = sum(run["validation_loss"] > HELD_OUT - rules.NEAR for run in own)
        return Measured(said=f"{found} more of post-ln, warm-up 150, on held-out text", holds=found == 1)

    return rule


def _normformer(rows: Any) -> rules.Rule:
    seeds = rules.above_with_each_seed(rows, {0: True, 50: False, 100: False})
    return rules.every(rules.factors(rows, _NORMFORMER), seeds)


_NOTHING = "exactly so many runs end less than 0.10 nat below the loss of token frequencies on the same batches"

ROWS = [
    Row(
        name="python",
        page=README,
        sentence="Python 3.11 or newer, git and make.",
        rule="pyproject.toml says so",
        n="1 file",
        measure=_python,
        tier="slice",
    ),
    Row(
        name="make-compare",
        page=README,
        sentence=_COMPARE,
        rule="the default plan has 12 layers and the embedded text",
        n="6 arms",
        measure=_default_compare,
        tier="slice",
    ),
    Row(
        name="make-compare-minutes",
        page=README,
        sentence=_COMPARE,
        rule="one seed takes at most five minutes of two cores, in CPU time",
        n=SEEDS,
        measure=_compare_minutes,
        jobs=("compare-12",),
    ),
    Row(
        name="auto-classes",
        page="docs/api/README.md",
        sentence="The models are Hugging Face models: `save_pretrained`, `from_pretrained`, four Auto classes"
        " (`AutoModelForCausalLM`, `MaskedLM`, `Seq2SeqLM`, `SequenceClassification`, after `import isograd.models`),"
        " `generate` with a cache, gradient checkpointing, `torch.compile(fullgraph=True)`.",
        rule="transformers' four Auto classes know the configuration",
        n="4 classes",
        measure=_auto_classes,
        tier="slice",
    ),
    Row(
        name="accept-minutes",
        page=README,
        sentence=_ACCEPT,
        rule="the commands of its rows take at most 120 minutes of one core together, as measured",
        n="1 table",
        measure=_minutes,
        tier="slice",
    ),
    Row(
        name="warmup-12",
        page=MEASURED,
        sentence=_SHALLOW,
        rule="the difference is 0.3 nat or more with every seed; all others end 0.10 nat below token frequencies",
        n=f"18 runs, {SEEDS}",
        measure=rules.every(
            rules.apart("compare-12", ("post-ln", 0, 1e-3), ("post-ln", 150, 1e-3), 0.3),
            _collapse(
                "compare-12",
                {("post-ln", 150): (0, 3)} | {(p, 0): (0, 3) for p in ("pre-ln", "normformer", "admin", "deepnorm")},
            ),
        ),
        jobs=("compare-12",),
    ),
    Row(
        name="cold-36",
        page=MEASURED,
        sentence=_DEEP_COLD,
        rule=_NOTHING,
        n=f"15 runs, {SEEDS}",
        measure=_collapse(
            "compare-36-cold",
            {("post-ln", 0): (3, 3)} | {(p, 0): (0, 3) for p in STABLE},
        ),
        jobs=("compare-36-cold",),
    ),
    Row(
        name="edge-36",
        page=MEASURED,
        sentence=_DEEP_EDGE,
        rule="every seed of ADMIN ends 0.05 to 0.6 nat below token frequencies, of DeepNorm 0.5 nat or more",
        n=f"6 runs, {SEEDS}",
        measure=rules.below("compare-36-cold", {("admin", 0): (0.05, 0.6), ("deepnorm", 0): (0.5, 9)}),
        jobs=("compare-36-cold",),
    ),
    Row(
        name="warm-36",
        page=MEASURED,
        sentence=_DEEP_WARM,
        rule=_NOTHING,
        n=f"15 runs, {SEEDS}",
        measure=_collapse(
            "compare-36-warm",
            {("post-ln", 100): (3, 3)} | {(p, 100): (0, 3) for p in (*STABLE, "admin", "deepnorm")},
        ),
        jobs=("compare-36-warm",),
    ),
    Row(
        name="early-warning",
        page=MEASURED,
        sentence=_WARNING,
        rule="raised in all that collapse and in none that finish; at most two are undecided",
        n=f"48 runs, {SEEDS}",
        measure=rules.warned(_RUNS),
        jobs=_RUNS,
    ),
    Row(
        name="captions-36",
        page=MEASURED,
        sentence=_CAPTIONS,
        rule=_NOTHING,
        n=f"6 runs, {SEEDS}",
        measure=_collapse("captions-36-cold", {("admin", 0): (3, 3), ("deepnorm", 0): (3, 3)}),
        jobs=("captions-36-cold",),
        tier="full",
    ),
    Row(
        name="study-warmup-table",
        page=MEASURED,
        sentence=_STUDY,
        rule=_NOTHING,
        n=f"135 runs, {STUDY}",
        measure=rules.every(_studied(_stored("warmup"), 135, _WARMUP_CELLS), _held_out(_stored("warmup"))),
        tier="slice",
        stored=True,
    ),
    Row(
        name="study-warmup",
        page=MEASURED,
        sentence=_STUDY,
        rule=_NOTHING,
        n=f"135 runs, {STUDY}",
        measure=rules.every(_studied(_ledger("study-warmup"), 135, _WARMUP_CELLS), _held_out(_ledger("study-warmup"))),
        jobs=("study-warmup",),
        tier="full",
    ),
    Row(
        name="best-losses-table",
        page=MEASURED,
        sentence=_BEST,
        rule="the difference of the held-out losses lies within 0.20 and 0.36 with every seed",
        n=STUDY,
        measure=rules.higher(_stored("warmup"), "post-ln", "pre-ln", 0.205, 0.355),
        tier="slice",
        stored=True,
    ),
    Row(
        name="best-losses",
        page=MEASURED,
        sentence=_BEST,
        rule="the difference of the held-out losses lies within 0.15 and 0.42 with every seed",
        n=STUDY,
        measure=rules.higher(_ledger("study-warmup"), "post-ln", "pre-ln", 0.15, 0.42),
        jobs=("study-warmup",),
        tier="full",
    ),
    Row(
        name="study-depth-table",
        page=MEASURED,
        sentence=_DEPTH,
        rule=_NOTHING,
        n=f"120 runs, {STUDY}",
        measure=_studied(_stored("depth"), 120, _DEPTH_CELLS),
        tier="slice",
        stored=True,
    ),
    Row(
        name="study-depth",
        page=MEASURED,
        sentence=_DEPTH,
        rule=_NOTHING,
        n=f"120 runs, {STUDY}",
        measure=_studied(_ledger("study-depth"), 120, _DEPTH_CELLS),
        jobs=("study-depth",),
        tier="full",
    ),
    Row(
        name="stable-rates-table",
        page=MEASURED,
        sentence=_STABLE,
        rule="the factors are between 1.2 and 2.0, and between 60 and 150",
        n=STUDY,
        measure=rules.factors(_stored("headroom"), _MARGINS),
        tier="slice",
        stored=True,
    ),
    Row(
        name="stable-rates",
        page=MEASURED,
        sentence=_STABLE,
        rule="the factors are between 1.2 and 2.0, and between 60 and 150",
        n=STUDY,
        measure=rules.factors(lambda folders: rules.headroom_rows(folders["headroom"]), _MARGINS),
        jobs=("headroom",),
        tier="full",
    ),
    Row(
        name="normformer-range",
        page=MEASURED,
        sentence=_LR,
        rule="NormFormer reaches at least 1.5 times Pre-LN's rate with every seed",
        n=f"6 runs, {STUDY}",
        measure=rules.ramps("lr-range", 1.5),
        jobs=("lr-range",),
    ),
    Row(
        name="normformer-stable-table",
        page=MEASURED,
        sentence=_LR,
        rule="the ratios of the medians are between 2 and 6, 0.2 and 1, 0.5 and 2; all seeds above 1 in the first only",
        n=f"18 searches, {STUDY}",
        measure=_normformer(_stored("headroom")),
        tier="slice",
        stored=True,
    ),
    Row(
        name="normformer-stable",
        page=MEASURED,
        sentence=_LR,
        rule="the ratios of the medians are between 2 and 6, 0.2 and 1, 0.5 and 2; all seeds above 1 in the first only",
        n=f"18 searches, {STUDY}",
        measure=_normformer(lambda folders: rules.headroom_rows(folders["headroom"])),
        jobs=("headroom",),
        tier="full",
    ),
    Row(
        name="normformer-gradients",
        page=MEASURED,
        sentence=_GRADIENTS,
        rule="the ratio of the ratios is below 0.75 at 5e-3 and within 0.8 and 1.6 at 1e-3 with every seed",
        n=f"12 runs, {SEEDS}",
        measure=rules.gradient_ratios("gradients", {5e-3: (0, 0.75), 1e-3: (0.8, 1.6)}),
        jobs=("gradients",),
    ),
    Row(
        name="theory",
        page=MEASURED,
        sentence=_THEORY,
        rule="every verdict of every claim holds, or is recorded as false and is; none of a negative control holds",
        n="2 to 24 initializations each",
        measure=rules.verdicts("theory", 80),
        jobs=("theory",),
    ),
    Row(
        name="number-words",
        page=MEASURED,
        sentence=_NUMBERS,
        rule="at least 99 % of the lines are exact",
        n="500 lines, seed 0",
        measure=rules.scores("number-words-scores", exact_match=99.0),
        jobs=("number-words-scores",),
    ),
    Row(
        name="fold",
        page=MEASURED,
        sentence=_EXPORT,
        rule="the parity report holds: fp64 logits within 1e-12 of the largest",
        n="1 model, seed 0",
        measure=rules.parity("fold", 1e-12),
        jobs=("fold",),
    ),
    Row(
        name="exports",
        page=MEASURED,
        sentence=_EXPORT,
        rule="all 500 texts are equal, each by the same search rule",
        n="500 lines, seed 0",
        measure=rules.same_texts("exports", 500, _CONTESTANTS),
        jobs=("exports",),
    ),
    Row(
        name="collapse-table",
        page=MEASURED,
        sentence=_PREDICTED,
        rule="the stored table has so many runs, collapses, predictions and warnings, none of them wrong",
        n="145 runs, a setting and a seed each",
        measure=rules.collapses(lambda _: rules.RESULTS / "collapse-grid.csv", held_out=True, exact=(145, 43, 31)),
        tier="slice",
        stored=True,
    ),
    Row(
        name="collapse-new",
        page=MEASURED,
        sentence=_PREDICTED,
        rule="on new settings and seeds 9 of 10 predictions and warnings are right, 9 of 10 collapses warned of",
        n="60 runs, a setting and a seed each",
        measure=rules.collapses(lambda folders: folders["collapse-table-new"] / "table.csv", held_out=False),
        jobs=("collapse-grid-new", "collapse-table-new"),
        tier="full",
    ),
    Row(
        name="first-sight",
        page=README,
        sentence=_FIRST_SIGHT,
        rule="the stored counts, of each set before anything was mended for it, sum to these",
        n="426 models in fifteen sets",
        measure=rules.at_first_sight(named=(105, 185), alarms=(21, 241)),
        tier="slice",
        stored=True,
    ),
    Row(
        name="faults-table",
        page=README,
        sentence=_FAULTS,
        rule="the stored table has so many mistakes, causes named and models without an alarm",
        n="280 models, four bases held out by hash",
        measure=rules.causes_named(
            lambda _: rules.RESULTS / "faults/check-held-out.csv", named=159, told=201, clean=54
        ),
        tier="slice",
        stored=True,
    ),
    Row(
        name="faults-held-out",
        page=README,
        sentence=_FAULTS,
        rule="at least 150 causes are named and 195 told, and no model without a mistake has an alarm",
        n="280 models, four bases held out by hash",
        measure=rules.causes_named(
            lambda folders: folders["faults-held-out"] / "check-held-out.csv", named=150, told=195, clean=54
        ),
        jobs=("faults-held-out",),
    ),
    Row(
        name="check-counts",
        page=MEASURED,
        sentence=_CHECK,
        rule="the tests have so many families and faults",
        n="45 families, 21 faults",
        measure=_families,
        tier="slice",
    ),
    Row(
        name="check-models",
        page=MEASURED,
        sentence=_CHECK,
        rule="their tests pass",
        n="45 families, 21 faults",
        measure=rules.tests_passed("check-models", 45 + 21),
        jobs=("check-models",),
    ),
    Row(
        name="multi30k",
        page=MEASURED,
        sentence=_MULTI30K,
        rule="BLEU on test2016 is at least 32.7",
        n="1,000 lines, seed 0",
        measure=rules.scores("multi30k-scores", bleu=32.7),
        jobs=("multi30k-scores",),
        tier="full",
    ),
    Row(
        name="iwslt14",
        page=MEASURED,
        sentence=_IWSLT,
        rule="every run ends so",
        n=f"9 runs, {STUDY}",
        measure=rules.outcomes(
            "iwslt14", {("post-ln", 0): "collapsed", ("post-ln", 270): "finished", ("pre-ln", 0): "finished"}, 3
        ),
        jobs=("iwslt14",),
        tier="full",
    ),
    *(
        Row(
            name=f"collapse-{job}",
            page=MEASURED,
            sentence=_IWSLT,
            rule="every run ends so",
            n="4 runs, seed 0",
            measure=rules.outcomes(
                job,
                {("post-ln", 100): "collapsed"} | {(p, 100): "finished" for p in ("admin", "deepnorm", "pre-ln")},
                1,
            ),
            jobs=(job,),
            tier="full",
        )
        for job in ("18l", "60l-12l")
    ),
    Row(
        name="bert-small",
        page=MEASURED,
        sentence=_WIKI,
        rule="every run ends so",
        n=f"9 runs, {STUDY}",
        measure=rules.outcomes(
            "bert-small", {("post-ln", 0): "collapsed", ("post-ln", 400): "finished", ("pre-ln", 0): "finished"}, 3
        ),
        jobs=("bert-small",),
        tier="full",
    ),
    Row(
        name="clm-small",
        page=MEASURED,
        sentence=_WIKI,
        rule="every run ends so",
        n=f"9 runs, {STUDY}",
        measure=rules.outcomes(
            "clm-small", {("post-ln", 0): "collapsed", ("post-ln", 300): "finished", ("pre-ln", 0): "finished"}, 3
        ),
        jobs=("clm-small",),
        tier="full",
    ),
    Row(
        name="blimp",
        page=MEASURED,
        sentence=_BLIMP,
        rule="the accuracy is between 57.0 and 59.0 %",
        n="67,000 pairs, seed 0",
        measure=rules.zero_shot("blimp", "blimp", 57.0, 59.0),
        jobs=("blimp",),
        tier="full",
    ),
    Row(
        name="mrpc",
        page=MEASURED,
        sentence=_GLUE,
        rule="the medians are within 0.68 and 0.72, and within 0.65 and 0.70",
        n="5 seeds each, 408 rows",
        measure=rules.medians("glue-mrpc", (0.68, 0.72), (0.65, 0.70)),
        jobs=("glue-mrpc",),
        tier="full",
    ),
    Row(
        name="rte",
        page=MEASURED,
        sentence=_GLUE,
        rule="the medians are within 0.49 and 0.55",
        n="5 seeds each, 277 rows",
        measure=rules.medians("glue-rte", (0.49, 0.55), (0.49, 0.55)),
        jobs=("glue-rte",),
        tier="full",
    ),
    *DOCS,
    *items.rows(),
]

NOT_CLAIMS = {  # how sentences of these pages begin that have a number and claim nothing that is measured: why
    _SETTING: "the setting of the runs below it; recipes and defaults say it",
    _COUNTED: "a definition",
}
