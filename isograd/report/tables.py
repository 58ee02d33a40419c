"""Results as rows of text, for the terminal and the page."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isograd.report import kept, tuned
from isograd.report.ramps import end_of, is_ramp
from isograd.report.runs import ArmFiles, at_end, at_start


@dataclass(frozen=True, kw_only=True)
class Column:
    """What stands above a column on the page and in a terminal, and in it."""

    name: str
    short: str
    cell: Callable[[ArmFiles], str]


def _number(name: str, form: str) -> Callable[[ArmFiles], str]:
    return lambda arm: spread(arm.values(name), form)


def _level(tower: str) -> Callable[[ArmFiles], str]:
    """At step 1, and over the last 50 steps."""
    return lambda arm: f"{_geometric(arm.level(at_start, tower))} → {_geometric(arm.level(at_end, tower))}"


def _ratio(arm: ArmFiles) -> str:
    return f"{_geometric(arm.values('gradient_ratio_start'))} → {_geometric(arm.values('gradient_ratio_end'))}"


def _speed(arm: ArmFiles) -> str:
    speeds = arm.values("tokens_per_second")
    return f"{statistics.median(speeds):,.0f}" if speeds else "–"


def _perplexity(arm: ArmFiles) -> str:
    return spread([math.exp(min(loss, 700)) for loss in arm.values("validation_loss")], "{:.2f}")


def _size(arm: ArmFiles) -> str:
    sizes = arm.values("parameters")
    return f"{sizes[0]:,.0f}" if sizes else "–"


def kind_of(arms: Sequence[ArmFiles]) -> str:
    """The task of these runs; "ramp" where their learning rate rises until the loss breaks."""
    return "ramp" if all(map(is_ramp, arms)) else arms[0].task


def _ends(arm: ArmFiles) -> str:
    """What became of a rising rate: "broke", or "2 broke, 1 held" over seeds that differ."""
    counts = Counter(end.how if end else "not trained" for end in map(end_of, arm.runs))
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {how}" for how, n in counts.most_common())


def _rate(arm: ArmFiles) -> str:
    return spread([end.rate for end in map(end_of, arm.runs) if end], "{:.3g}")


_NAMES = (
    Column(name="placement", short="placement", cell=lambda arm: arm.label),
    Column(name="outcome", short="outcome", cell=lambda arm: arm.outcome),
)
_FINAL = Column(name="final loss", short="final", cell=_number("final_loss", "{:.3f}"))
_VALID = Column(name="validation", short="valid", cell=_number("validation_loss", "{:.3f}"))
_GRADIENT = Column(name="gradient first/last", short="g1/gL", cell=_ratio)
_SPEED = Column(name="tokens/s", short="tok/s", cell=_speed)
_SIZE = Column(name="parameters", short="params", cell=_size)
COLUMNS = {
    "ramp": (
        _NAMES[0],
        Column(name="outcome", short="outcome", cell=_ends),
        Column(name="learning rate reached", short="LR", cell=_rate),
        _GRADIENT,
        _SPEED,
        _SIZE,
    ),
    "language": (*_NAMES, _FINAL, _VALID, _GRADIENT, _SPEED, _SIZE),
    "masked": (
        *_NAMES,
        _FINAL,
        _VALID,
        Column(name="perplexity", short="ppl", cell=_perplexity),
        _GRADIENT,
        _SPEED,
        _SIZE,
    ),
    "translation": (
        *_NAMES,
        Column(name="validation loss", short="valid", cell=_number("validation_loss", "{:.3f}")),
        Column(name="perplexity", short="ppl", cell=_number("perplexity", "{:.2f}")),
        Column(name="BLEU", short="BLEU", cell=_number("bleu", "{:.1f}")),
        Column(name="weights", short="weights", cell=kept.cell),
        Column(name="training loss", short="train", cell=_number("final_loss", "{:.3f}")),
        Column(name="gradient first/last, encoder", short="g1/gL enc", cell=_level("encoder")),
        Column(name="decoder", short="g1/gL dec", cell=_ratio),
        _SPEED,
    ),
}


COLUMNS["classification"] = (
    Column(name="fine-tuning", short="fine-tuning", cell=lambda arm: arm.label),
    _NAMES[1],
    Column(name="median", short="median", cell=tuned.median),
    Column(name="lowest to highest", short="range", cell=tuned.ends),
    Column(name="mean, 95 % of it", short="mean [95 %]", cell=tuned.mean),
    Column(name="failed runs", short="failed", cell=tuned.failures),
    Column(name="majority line", short="majority", cell=tuned.majority),
    Column(name="median on test", short="test", cell=tuned.test),
    _VALID,
)

DISPENSABLE = {  # what a narrow terminal is spared, first things first
    "ramp": ("params", "tok/s", "g1/gL"),
    "language": ("params", "valid", "tok/s"),
    "masked": ("params", "ppl", "tok/s", "final"),
    "classification": ("valid", "outcome", "test", "mean [95 %]"),
    "translation": ("train", "weights", "g1/gL enc", "tok/s", "ppl", "g1/gL dec"),
}


def columns(arms: Sequence[ArmFiles]) -> tuple[Column, ...]:
    """The columns of a table of these arms."""
    return COLUMNS[kind_of(arms)]


def rows(arms: Sequence[ArmFiles]) -> list[tuple[str, ...]]:
    """One row per arm; over several seeds the mean, and lowest to highest behind it (of ratios the geometric mean)."""
    return [tuple(column.cell(arm) for column in columns(arms)) for arm in arms]


def _geometric(values: Sequence[float]) -> str:
    return f"{statistics.geometric_mean(values):.2g}" if values and min(values) > 0 else "–"


def spread(values: Sequence[float], form: str) -> str:
    """ "1.890", or "1.890 (1.881 to 1.902)", or a dash."""
    if not values:
        return "–"
    mean = form.format(statistics.fmean(values))
    if len(values) == 1:
        return mean
    return f"{mean} ({form.format(min(values))} to {form.format(max(values))})"


def summary(arms: Sequence[ArmFiles]) -> str:
    """What happened, in two sentences. Who differs from whom is said in the findings."""
    if kind_of(arms) == "ramp":
        return _RAMP
    if kind_of(arms) == "classification":
        return tuned.summary(arms)
    failed = [a for a in arms if not any(o == "finished" for o in a.outcomes)]
    trained = [a for a in arms if a.values(_JUDGED[a.task]) and a not in failed]
    parts = []
    if failed:
        parts.append("; ".join(f"{a.label}: {a.outcome}{_missing(a)}" for a in failed) + ".")
    if trained:
        parts.append(f"Trained: {_names(trained, len(arms))}, with {_range(trained)}.")
    parts += [kept.summary(arms)] if arms[0].task == "translation" else []
    parts += kept.warnings(arms)
    seeds = len({r.run["seed"] for a in arms for r in a.runs})
    if seeds == 1:
        parts.append("One seed: differences of a few hundredths between trained arms mean nothing.")
    both = [(a.values("final_loss"), a.values("validation_loss")) for a in trained]
    if any(seen and held_out and statistics.fmean(held_out) - statistics.fmean(seen) > 0.5 for seen, held_out in both):
        parts.append("Validation is far above training: the text is small and learnt by heart; compare validation.")
    return " ".join(filter(None, parts))


def _missing(arm: ArmFiles) -> str:
    """How many more steps an undecided arm needs, where that is known."""
    short = [run.outcome for run in arm.runs if run.outcome["outcome"] == "undecided"]
    needed = [(outcome.get("judged") or {}).get("needed") for outcome in short]
    known = [steps for steps in needed if steps is not None]
    return f" (about {max(known):,} more steps would tell)" if known else ""


_RAMP = "The learning rate rose until the loss broke, or to its end: what is compared is how far it came, and no loss."


def _names(trained: Sequence[ArmFiles], of: int) -> str:
    """Each arm by its label; of many arms how many, and those by name of which not every seed trained."""
    mixed = {a.label: f"{a.label} ({a.outcome})" for a in trained if len({*a.outcomes}) > 1}
    if len(trained) <= 6:
        return "; ".join(mixed.get(a.label, a.label) for a in trained)
    return "; ".join([f"{len(trained)} of {of} arms", *mixed.values()])


_JUDGED = {  # the number that an outcome is told by
    "language": "final_loss",
    "masked": "final_loss",
    "translation": "validation_loss",
    "classification": "validation_loss",
}


def _range(trained: Sequence[ArmFiles]) -> str:
    """From the lowest to the highest end of the runs that finished."""
    ends = [r.outcome for a in trained for r in a.runs if r.outcome["outcome"] == "finished"]
    task = trained[0].task
    losses = [end[_JUDGED[task]] for end in ends if end.get(_JUDGED[task]) is not None]
    kind = "validation" if task == "translation" else "final"
    several = f"losses from {min(losses):.3f} to" if len(losses) > 1 else "loss"
    said = f"{kind} {several} {max(losses):.3f} nats"
    scores = [end["bleu"] for end in ends if end.get("bleu") is not None]
    return said + (f" and BLEU from {min(scores):.1f} to {max(scores):.1f}" if scores else "")
