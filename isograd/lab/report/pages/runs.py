"""The page of runs: what each arm came to, and the figures that its kind of run has. From the folders of runs alone."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from isograd.errors import many
from isograd.files import read_rows, write_json, write_text
from isograd.lab.report import equal_loss, figures, kept_weights
from isograd.lab.report.compared import Compared, corrected, section
from isograd.lab.report.figures import DEPTH_CHARTS, Maker, Subject
from isograd.lab.report.page import (
    Page,
    Section,
    Table,
    csv_of,
    csv_of_rows,
    figure_of,
    in_words,
    page_in_words,
    settings_table,
    warnings_table,
    write_page,
)
from isograd.lab.report.pages import finetuning, lr_range
from isograd.lab.report.references import bibtex
from isograd.lab.report.runs import (
    ArmFiles,
    Row,
    arms_of,
    at_end,
    at_start,
    curves,
    find_runs,
    kind_of,
    losses_of,
    measure_of,
    must_be_arm,
    presented,
    reference_of,
)
from isograd.lab.report.settings import differing, settings, subtitle
from isograd.lab.report.shape import must_be_installed
from isograd.lab.report.style import Output
from isograd.lab.statistics import compare, mean_interval
from isograd.lab.study.labels import flat
from isograd.lab.train.tasks import TASKS, Column
from isograd.lab.train.tasks.base import GRADIENT, LABEL, RATIO, SIZE, SPEED


def write_report(
    folders: Sequence[Path],
    out: Path,
    title: str | None = None,
    everything: bool = False,
    reference: str | None = None,
    output: Output | None = None,
) -> Path:
    """Write report.html, results.csv, results.json and the main figure into `out`, from the files in `folders`.

    Args:
        folders: run folders, in the order of the table; seeds of one recipe are taken together.
        title: None: what the page is about.
        everything: write every figure, every table, the curves of all runs and the papers' BibTeX, too.
        reference: label or placement of the arm that others are measured against; None: the first pre-ln, or first.
        output: of the figures' files.

    Returns:
        the path of the page.

    Raises:
        ValueError: none of the folders holds a run.
    """
    arms = arms_of(folders)
    if not arms:
        raise ValueError(f"no runs to report on in {', '.join(map(str, folders)) or 'no folders'}")
    return write_arms(arms, out, title, everything, reference, output)


def write_arms(
    arms: Sequence[ArmFiles],
    out: Path,
    title: str | None = None,
    everything: bool = False,
    reference: str | None = None,
    output: Output | None = None,
    called: Mapping[str, str] | None = None,
) -> Path:
    """`write_report` of arms that are read already.

    Args:
        called: what the page calls an arm, by its label, placement or name.
    """
    out.mkdir(parents=True, exist_ok=True)
    page = _page(arms, title, reference, everything, called)
    if output and output.figures:
        return write_page(page, out / "report.html", output)
    more = differing(arms)
    results = [_result(arm, run.run, run.outcome, more) for arm in arms for run in arm.runs]
    write_json(out / "results.json", results)
    write_text(out / "results.csv", csv_of_rows([dict(flat(row)) for row in results]))
    if everything:
        write_text(out / "curves.csv", csv_of(curves(arms)))
        write_text(out / "references.bib", bibtex(arm.first.resolved.get("paper") for arm in arms))
    return write_page(page, out / "report.html", output, main_figure_only=not everything)


def draw(
    folders: Path | Sequence[Path],
    figure: str = "gradients",
    *,
    arms: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    reference: str | None = None,
    style: str = "paper",
    width: float | None = None,
    height: float | None = None,
    font: str | None = None,
) -> Figure:
    """One figure of runs, as a matplotlib figure to change and save.

    >>> from isograd.lab.report.pages.runs import draw
    >>> figure = draw("runs/compare", "gradients:last", arms=["pre-ln", "normformer"], width=3.3)  # doctest: +SKIP
    >>> figure.axes[0].set_ylim(1e-4, 1e-2)  # doctest: +SKIP
    >>> figure.savefig("gradients.pdf")  # doctest: +SKIP

    Args:
        folders: of runs, or a folder of runs.
        figure: its name (`loss`, `gradients`, `histories`, ...); with `:2` or `:words` the one panel of this number or
            heading.
        arms: by placement or label, in this order; (): all.
        labels: what the legend calls an arm, by its placement or label.
        reference: what others are measured against, as in `write_report`.
        style: "screen", "paper" or "gray".
        width: inches; None: 3.25, of the screen 8.4.
        height: inches; None: as the panels need.
        font: a family that is installed.

    Raises:
        ValueError: no runs there.
        UserError: no such figure, panel, arm or font.
    """
    paths = [Path(folders)] if isinstance(folders, str | Path) else [Path(folder) for folder in folders]
    found = arms_of(find_runs(paths))
    if not found:
        raise ValueError(f"no runs in {', '.join(map(str, paths))}")
    chosen = [must_be_arm(found, name) for name in arms] or found
    if font is not None:
        must_be_installed(font)
    output = Output(style=style, width=width, height=height, font=font)
    return figure_of(_page(chosen, None, reference, True, labels), figure, output)


def _page(
    arms: Sequence[ArmFiles],
    title: str | None,
    reference: str | None,
    everything: bool,
    called: Mapping[str, str] | None = None,
) -> Page:
    theirs = reference_of(arms, reference) if reference else None
    of, arms = arms, presented(arms, called)
    reference = next((arm.label for arm, own in zip(arms, of, strict=True) if own is theirs), reference)
    text = next((run.resolved["data"] for arm in arms for run in arm.runs if run.resolved.get("data")), None)
    about = Subject(arms=arms, entropy=_entropy(arms), reference=reference)
    made = f"Made by isograd from the files of {many(sum(len(arm.runs) for arm in arms), 'run')}. `results.csv` and"
    made += " `results.json`: a row per run."
    made += " `curves.csv`: every curve; `references.bib`: the papers." if everything else ""
    name = next((run.run.get("name") for arm in arms for run in arm.runs if run.run.get("name")), None)
    alone = f"Run: {name or arms[0].label}" if len(arms) == 1 else None
    page = Page(
        title=title or alone or title_of(arms),
        headline=headline(arms),
        warnings=warnings(arms),
        subtitle=subtitle(arms, text),
        sections=[
            Section(name="results", title="Results", sentence=_caption(arms, about.entropy), table=results_table(arms)),
            *filter(None, (maker(about) for maker in makers(arms))),
            Section(name="warnings", title="Warnings during the runs", table=_warned(arms)),
            Section(name="formulas", title="Placements", sentence=_FORMULA, table=_formulas(arms)),
            Section(name="settings", title="Settings and provenance", table=settings_table(settings(arms, text))),
        ],
        made=made,
    )
    return page_in_words(page, TASKS[arms[0].task].words)


def _warned(arms: Sequence[ArmFiles]) -> Table:
    """What warnings.jsonl of each run says."""
    runs = [(arm.label, str(run.run["seed"]), run.folder / "warnings.jsonl") for arm in arms for run in arm.runs]
    rows = [{"placement": who, "seed": seed} | row for who, seed, path in runs for row in read_rows(path)]
    return warnings_table(rows, "placement", "seed")


def _entropy(arms: Sequence[ArmFiles]) -> float | None:
    facts = (run.resolved.get("data") or {} for arm in arms for run in arm.runs)
    return next((one["unigram_entropy"] for one in facts if one.get("unigram_entropy") is not None), None)


_FORMULA = (
    "A sublayer computes x ← post(skip · x + scale · out(f(pre(x)))), with one more norm inside f where a placement has"
    " one; LN is the norm."
)


def _formulas(arms: Sequence[ArmFiles]) -> Table:
    lines: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for arm in arms:
        built = arm.first.resolved
        name, said = built.get("placement"), [line for line in (built.get("formulas") or {}).values() if line]
        if name is None or name in seen or not said:
            continue
        seen.add(name)
        said += [f"{built['final']}  after the last layer"] if built.get("final") else []
        about = " ".join(filter(None, [f"{built.get('about') or ''}.", built.get("note")]))
        facts = filter(None, [*(built.get("legend") or []), f"init: {built.get('init')}", built.get("paper")])
        lines += [(name, said[0], about, "; ".join(facts)), *(("", line, "", "") for line in said[1:])]
    return Table(header=("placement", "formula", "about", "symbols, initialization, paper"), lines=lines, left=4)


def _result(arm: ArmFiles, run: Row, outcome: Row, more: Sequence[str]) -> Row:
    """A row of results.json: settings, those in which the arms differ (`more`) under their dotted keys, the outcome."""
    model, training = run["model"], run["training"]
    task, encoder = TASKS[arm.task], model.get("encoder_layers")
    found = {
        "arm": arm.label,
        "task": arm.task,
        "placement": model["placement"],
        "encoder_layers": (model["layers"] if encoder is None else encoder) if len(task.stacks) > 1 else None,
        "layers": model["layers"] if "model.layers" in task.needed else None,
        "lr": training["lr"],
        "warmup": training["warmup"],
        "steps": training["steps"],
        "seed": run["seed"],
    }
    values = dict(flat(run))
    known = {"model.placement", "model.layers", "training.lr", "training.warmup", "training.steps"}
    found |= {key: values.get(key) for key in more if key not in known}
    return found | {k: v for k, v in outcome.items() if k != "provenance"}


# --------------------------------------------------------------------------------------- the table, by the kind of run


def _ratio_of(stack: str) -> Callable[[ArmFiles], str]:
    """At step 1, and over the last 50 steps."""
    return lambda arm: " → ".join(_geometric(arm.level(when, stack)) for when in (at_start, at_end))


def _geometric(values: Sequence[float]) -> str:
    return f"{statistics.geometric_mean(values):.2g}" if values and min(values) > 0 else "–"


def _speed(arm: ArmFiles) -> str:
    found = arm.values("tokens_per_second")
    return f"{statistics.median(found):,.0f}" if found else "–"


def _size(arm: ArmFiles) -> str:
    found = arm.values("parameters")
    return f"{found[0]:,.0f}" if found else "–"


def _range_end(arm: ArmFiles) -> str:
    """What became of a rising rate: "diverged", or "2 diverged, 1 stable" over seeds that differ."""
    counts = Counter(end.how if end else "not trained" for end in map(lr_range.end_of, arm.runs))
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {how}" for how, n in counts.most_common())


def _rate(arm: ArmFiles) -> str:
    return spread([end.rate for end in map(lr_range.end_of, arm.runs) if end], "{:.3g}")


def spread(values: Sequence[float], form: str) -> str:
    """ "1.890", or "1.890 (1.881 to 1.902)": the mean and its interval, of two values both; or a dash."""
    if not values:
        return "–"
    mean = form.format(statistics.fmean(values))
    low, high = mean_interval(values) or (min(values), max(values))
    return mean if len(values) == 1 else f"{mean} ({form.format(low)} to {form.format(high)})"


CELLS: Mapping[str, Callable[[ArmFiles], str]] = {  # what a task's column names and no outcome.json holds
    "label": lambda arm: arm.label,
    "outcome": lambda arm: arm.outcome,
    "gradient_ratio": lambda arm: " → ".join(_geometric(arm.values(f"gradient_ratio_{at}")) for at in ("start", "end")),
    "gradient_ratio_encoder": _ratio_of("encoder"),
    "tokens_per_second": _speed,
    "parameters": _size,
    "exp_validation_loss": lambda arm: spread([math.exp(min(x, 700)) for x in arm.values("validation_loss")], "{:.2f}"),
    "kept_weights": kept_weights.cell,
    **finetuning.CELLS,
    "range_outcome": _range_end,
    "range_rate": _rate,
}
_RANGE_COLUMNS = (
    LABEL,
    Column(name="outcome", short="outcome", field="range_outcome"),
    Column(name="learning rate reached", short="LR", field="range_rate"),
    replace(RATIO, spare=3),
    replace(SPEED, spare=2),
    SIZE,
)


def compared(about: Subject) -> Section | None:
    """Every arm against the reference arm, seed by seed; None of a single seed."""
    theirs, measure = reference_of(about.arms, about.reference), measure_of(about.arms)
    if theirs is None:
        return None
    found = [
        Compared(
            mine=arm.label,
            theirs=theirs.label,
            found=compare(losses_of(arm, measure), losses_of(theirs, measure)),
            unit=" nats",
        )
        for arm in about.arms
        if arm is not theirs and len(arm.runs) > 1
    ]
    title = f"Against {theirs.label}, seed by seed"
    return section("comparison", title, corrected(found), "median difference (nats)", loss_words(measure))


def loss_words(measure: str) -> dict[str, str]:
    name = {"final_loss": "training"}.get(measure, "validation")
    return {word: f"{word} {name} loss than" for word in ("lower", "higher")}


_FIRST_LAST = (
    "First/last gradient ratio: mean |gradient| of W_2 in the first layer over that in the last, before clipping, at"
    " step 1 → over the last 50 steps; 1 where gradients are of one size."
)
_OUTCOMES = (
    "Collapsed: the loss is at rest and not 0.10 nat below the unigram entropy, the loss of a model that knows only how"
    " often each token occurs (1 nat = 1.44 bits). Diverged: a loss was not finite, or rose and did not come"
    " back. Undecided: the run is too short to tell."
)
RANGE_TEST = "range-test"
_RANGE_CAPTION = (
    "Learning rate reached: that of the step at which the loss diverged, or returned to the unigram entropy"
    " (the loss of a model that knows only how often each token occurs); the highest one where the run was stable."
    f" Not trained: the loss was never 0.10 nat below the unigram entropy. {_FIRST_LAST}"
)
CHARTS: Mapping[str, Maker] = {  # above those over depth; which of them a page has, `Task.charts` says
    "validation": figures.validation,
    "loss": figures.loss,
    "comparison": compared,
    "equal-loss": equal_loss.section,
    "lr-range": lr_range.curves,
    "scores": finetuning.scores,
    "worth": finetuning.worth,
}


def makers(arms: Sequence[ArmFiles]) -> tuple[Maker, ...]:
    """Of the page's sections, in their order, the main figure first."""
    if kind_name(arms) == RANGE_TEST:
        return lr_range.curves, lr_range.ratio_section, *DEPTH_CHARTS.values()
    return *(CHARTS[name] for name in TASKS[arms[0].task].charts), *DEPTH_CHARTS.values()


def kind_name(arms: Sequence[ArmFiles]) -> str:
    names = {kind_of(arm.first.run) for arm in arms}
    return names.pop() if len(names) == 1 else arms[0].task


def title_of(arms: Sequence[ArmFiles]) -> str:
    """Of a page of several arms."""
    if kind_name(arms) == RANGE_TEST:
        return "LR range test"
    return TASKS[arms[0].task].captions.get("title", "Placements compared")


def columns(arms: Sequence[ArmFiles]) -> tuple[Column, ...]:
    return _RANGE_COLUMNS if kind_name(arms) == RANGE_TEST else TASKS[arms[0].task].columns


def legend(arms: Sequence[ArmFiles]) -> str:
    """Of the table in a terminal."""
    if kind_name(arms) == RANGE_TEST:
        return f"LR: the learning rate reached; g1/gL: {GRADIENT}"
    return TASKS[arms[0].task].captions["table"]


def results_table(arms: Sequence[ArmFiles]) -> Table:
    """A line per arm; over seeds the mean and Student's interval of it (of two, both; of ratios the geometric mean)."""
    return Table(
        header=[column.name for column in columns(arms)],
        lines=[tuple(_cell(column, arm) for column in columns(arms)) for arm in arms],
        looks=[arm.look for arm in arms],
        verdict="outcome",
        left=2,
    )


def _cell(column: Column, arm: ArmFiles) -> str:
    return spread(arm.values(column.field), column.form) if column.form else CELLS[column.field](arm)


def _caption(arms: Sequence[ArmFiles], entropy: float | None) -> str:
    most = max(len(arm.runs) for arm in arms)
    seeds = " Of two seeds the mean, and both." if most == 2 else ""
    if most > 2:
        seeds = " Of several seeds the mean, and its 95 % interval (Student’s t)."
    known = "" if entropy is None else f" Unigram entropy here: {entropy:.3f} nats."
    return _about_table(arms) + seeds + known


def _about_table(arms: Sequence[ArmFiles]) -> str:
    if kind_name(arms) == RANGE_TEST:
        return _RANGE_CAPTION
    task = TASKS[arms[0].task]
    own = task.captions["page"]
    return own if task.scored else f"{own} {_OUTCOMES} {_FIRST_LAST}"


# ------------------------------------------------------------------------------------------------------------ sentences


def headline(arms: Sequence[ArmFiles]) -> str:
    """What trained, in one sentence. Who differs from whom is a verdict."""
    return in_words(_headline(arms), TASKS[arms[0].task].words)


def _headline(arms: Sequence[ArmFiles]) -> str:
    if TASKS[arms[0].task].scored:
        return finetuning.headline(arms)
    if kind_name(arms) == RANGE_TEST:
        highest = max(arms, key=lambda arm: max([end.rate for end in map(lr_range.end_of, arm.runs) if end], default=0))
        return f"Highest learning rate reached: {_rate(highest)}, by {highest.label}."
    measure = TASKS[arms[0].task].judged
    lost = [arm for arm in arms if "finished" not in arm.outcomes]
    if len(arms) > 1 and {outcome for arm in arms for outcome in arm.outcomes} == {"undecided"}:
        return f"Too short to tell whether any arm trains{_missing(arms)}."
    trained = [arm for arm in arms if arm.values(measure) and arm not in lost]
    parts = [f"{len(trained)} of {len(arms)} arms trained{_range(trained, measure)}"] if len(arms) > 1 else []
    parts += list(_not_finished(arms))
    if len(arms) == 1 and trained:
        parts = [f"{arms[0].label}: {arms[0].outcome}{_range(trained, measure)}"]
    return f"{'; '.join(parts)}."


def _range(trained: Sequence[ArmFiles], measure: str) -> str:
    """From the lowest to the highest end of the runs that finished."""
    outcomes = [run.outcome for arm in trained for run in arm.runs if run.outcome["outcome"] == "finished"]
    losses = [end[measure] for end in outcomes if end.get(measure) is not None]
    if not losses:
        return ""
    name = "validation" if measure == "validation_loss" else "final"
    several = f"losses {min(losses):.3f} to" if len(losses) > 1 else "loss"
    scores = [end["bleu"] for end in outcomes if end.get("bleu") is not None]
    bleu = f", BLEU {min(scores):.1f} to {max(scores):.1f}" if scores else ""
    return f" ({name} {several} {max(losses):.3f} nats{bleu})"


def _not_finished(arms: Sequence[ArmFiles]) -> Iterator[str]:
    """Each other outcome once, with the arms that have it."""
    by_outcome: dict[str, list[ArmFiles]] = {}
    for arm in arms:
        if {*arm.outcomes} != {"finished"}:
            by_outcome.setdefault(arm.outcome, []).append(arm)
    for outcome, those in by_outcome.items():
        several = "all arms" if len(those) == len(arms) else f"{len(those)} arms"
        who = " and ".join(arm.label for arm in those) if len(those) < 3 else several
        yield f"{who}: {outcome}{_missing(those)}"


def _missing(arms: Sequence[ArmFiles]) -> str:
    """How many more steps undecided arms need, where that is known."""
    short = [run.outcome for arm in arms for run in arm.runs if run.outcome["outcome"] == "undecided"]
    needed = [(outcome.get("judged") or {}).get("needed") for outcome in short]
    known = [steps for steps in needed if steps is not None]
    return f" (about {max(known):,} more steps would tell)" if known else ""


def warnings(arms: Sequence[ArmFiles]) -> list[str]:
    """What a reader must not miss."""
    return [in_words(line, TASKS[arms[0].task].words) for line in _warnings(arms)]


def _warnings(arms: Sequence[ArmFiles]) -> list[str]:
    found = list(kept_weights.warnings(arms))
    if TASKS[arms[0].task].scored or kind_name(arms) == RANGE_TEST:
        return []
    if len(arms) > 1 and len({run.run["seed"] for arm in arms for run in arm.runs}) == 1:
        found.append("One seed: differences of a few hundredths between arms mean nothing.")
    if easier := [arm.label for arm in arms if _is_easier(arm)]:
        found.append(
            f"The validation text is easier than the training text: its loss is more than 0.2 nats lower"
            f" ({', '.join(easier)}). Of a single document it is the last twentieth; data.valid names another."
        )
    if any(_overfits(arm) for arm in arms):
        found.append("Overfitting: the validation loss is far above the training loss; compare validation losses.")
    return found


def _is_easier(arm: ArmFiles) -> bool:
    """Not where dropout or label smoothing raise the loss in training."""
    seen, held_out = arm.values("final_loss"), arm.values("validation_loss")
    if TASKS[arm.task].foreign and TASKS[arm.task].name == "own":
        return False  # a batch of another size, or dropout, may do that
    raised = arm.first.run["model"].get("dropout") or arm.first.run["training"].get("label_smoothing")
    return bool(seen and held_out and not raised) and statistics.fmean(seen) - statistics.fmean(held_out) > 0.2 * _unit(
        arm
    )


def _overfits(arm: ArmFiles) -> bool:
    seen, held_out = arm.values("final_loss"), arm.values("validation_loss")
    return bool(seen and held_out) and statistics.fmean(held_out) - statistics.fmean(seen) > 0.5 * _unit(arm)


def _unit(arm: ArmFiles) -> float:
    """What stands for a nat in the arm's loss; without a baseline nothing does."""
    data, task = arm.first.resolved.get("data") or {}, TASKS[arm.task]
    return float(data.get("unit") or (math.inf if task.foreign and task.name != "own-language" else 1.0))


def findings(arms: Sequence[ArmFiles], reference: str | None = None) -> Iterator[str]:
    """The verdicts of all sections, each once."""
    about = Subject(arms=arms, entropy=_entropy(arms), reference=reference)
    sections = filter(None, (maker(about) for maker in makers(arms)))
    words = TASKS[arms[0].task].words
    yield from dict.fromkeys(in_words(line, words) for one in sections for line in one.verdicts)
