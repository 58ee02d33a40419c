"""Results as rows of text, for the terminal and the page."""

import statistics
from collections import Counter
from collections.abc import Sequence

from isograd.report.runs import ArmFiles

HEADER = (
    "placement",
    "outcome",
    "final loss",
    "validation",
    "gradient first/last",
    "tokens/s",
    "parameters",
)
SHORT = ("placement", "outcome", "final", "valid", "g1/gL", "tok/s", "params")  # for a terminal


def rows(arms: Sequence[ArmFiles]) -> list[tuple[str, ...]]:
    """One row per arm; over several seeds the mean, and lowest to highest behind it (of ratios the geometric mean)."""
    return [
        (
            arm.label,
            outcome(arm),
            spread(arm.values("final_loss"), "{:.3f}"),
            spread(arm.values("validation_loss"), "{:.3f}"),
            f"{_mean(arm, 'gradient_ratio_start')} → {_mean(arm, 'gradient_ratio_end')}",
            f"{statistics.median(arm.values('tokens_per_second')):,.0f}" if arm.values("tokens_per_second") else "–",
            f"{arm.values('parameters')[0]:,.0f}" if arm.values("parameters") else "–",
        )
        for arm in arms
    ]


def _mean(arm: ArmFiles, name: str) -> str:
    values = arm.values(name)
    return f"{statistics.geometric_mean(values):.2g}" if values and min(values) > 0 else "–"


def outcome(arm: ArmFiles) -> str:
    """ "collapsed", or "2 finished, 1 collapsed" over seeds that differ."""
    counts = Counter(arm.outcomes)
    if len(counts) == 1:
        return arm.outcomes[0]
    return ", ".join(f"{n} {name}" for name, n in counts.most_common())


def spread(values: Sequence[float], form: str) -> str:
    """ "1.890", or "1.890 (1.881 to 1.902)", or a dash."""
    if not values:
        return "–"
    mean = form.format(statistics.fmean(values))
    if len(values) == 1:
        return mean
    return f"{mean} ({form.format(min(values))} to {form.format(max(values))})"


def summary(arms: Sequence[ArmFiles]) -> str:
    """What happened, in two sentences. Nobody is called best: that takes seeds and intervals."""
    failed = [a for a in arms if not any(o == "finished" for o in a.outcomes)]
    trained = [a for a in arms if a.values("final_loss") and a not in failed]
    parts = []
    if failed:
        parts.append("; ".join(f"{a.label}: {outcome(a)}" for a in failed) + ".")
    if trained:
        finals = [r.outcome["final_loss"] for a in trained for r in a.runs if r.outcome["outcome"] == "finished"]
        names = "; ".join(a.label if len({*a.outcomes}) == 1 else f"{a.label} ({outcome(a)})" for a in trained)
        parts.append(f"Trained: {names}, with final losses from {min(finals):.3f} to {max(finals):.3f} nats.")
    seeds = len({r.run["seed"] for a in arms for r in a.runs})
    if seeds == 1:
        parts.append("One seed: differences of a few hundredths between trained arms mean nothing.")
    elif len(trained) > 1:
        parts.append(f"{seeds} seeds: where the ranges of two arms overlap, no difference was seen.")
    both = [(a.values("final_loss"), a.values("validation_loss")) for a in trained]
    if any(seen and held_out and statistics.fmean(held_out) - statistics.fmean(seen) > 0.5 for seen, held_out in both):
        parts.append("Validation is far above training: the text is small and learnt by heart; compare validation.")
    return " ".join(parts)
