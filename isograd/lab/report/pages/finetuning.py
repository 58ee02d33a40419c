"""Fine-tuning on a task of GLUE: an arm's scores over its seeds, and whether pre-training was worth it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from isograd.lab.evaluate.classification import Spread, ranked, spread
from isograd.lab.report.compared import Compared, corrected, section, verdicts
from isograd.lab.report.figures import Subject
from isograd.lab.report.page import Section
from isograd.lab.report.runs import ArmFiles, RunFiles
from isograd.lab.report.style import LEVEL_LINE, Drawing, Strip, drawing, heading, strips
from isograd.lab.statistics import compare, median


def spread_of(arm: ArmFiles) -> Spread | None:
    """Over the runs that have ended; None where there is none."""
    ended = _ended(arm)
    return spread([run.outcome.get("score") for run in ended], [failed(run) for run in ended]) if ended else None


def failed(run: RunFiles) -> bool:
    """Not above the majority-class baseline, or diverged."""
    return run.outcome["outcome"] == "diverged" or bool(run.outcome.get("failed"))


def as_dict(arm: ArmFiles) -> dict[str, Any]:
    """What a program reads of an arm."""
    of = spread_of(arm)
    return {"arm": arm.label, "task": arm.first.run["glue"]["task"], **(asdict(of) if of else {})}


def title(arm: ArmFiles) -> str:
    """ "accuracy of mrpc"."""
    metric = next((run.outcome["metric"] for run in arm.runs if run.outcome.get("metric")), "score")
    task = arm.first.run.get("glue", {}).get("task")
    return f"{metric} of {task}" if task else metric


# ------------------------------------------------------------------------------------------------- cells of the table


def median_score(arm: ArmFiles) -> str:
    return _shown(of.median) if (of := spread_of(arm)) else "–"


def _score_range(arm: ArmFiles) -> str:
    of = spread_of(arm)
    return f"{_shown(of.lowest)} to {_shown(of.highest)}" if of and of.n > 1 and of.lowest is not None else "–"


def _mean_score(arm: ArmFiles) -> str:
    of = spread_of(arm)
    inside = f" [{of.interval[0]:.3f}, {of.interval[1]:.3f}]" if of and of.interval else ""
    return _shown(of.mean) + inside if of else "–"


def baseline(arm: ArmFiles, part: str = "dev") -> str:
    """The score of the majority class."""
    return _shown(next((_of_part(run, "majority_scores", part) for run in _scored(arm)), None))


def _test_score(arm: ArmFiles) -> str:
    """The median of the score on the test part, where that has labels, of the runs that have not diverged."""
    found = [_of_part(run, "scores", "test") for run in _scored(arm)]
    return _shown(spread(found, [False] * len(found)).median) if found else "–"


CELLS: Mapping[str, Callable[[ArmFiles], str]] = {  # what columns of the table name
    "score_median": median_score,
    "score_range": _score_range,
    "score_mean": _mean_score,
    "score_failed": lambda arm: f"{sum(map(failed, _ended(arm)))} of {len(_ended(arm))}",
    "score_majority": lambda arm: (
        baseline(arm) + (f" (test {baseline(arm, 'test')})" if baseline(arm, "test") != "–" else "")
    ),
    "score_test": _test_score,
}


def _of_part(run: RunFiles, name: str, part: str) -> float | None:
    """The score, or its baseline, on a part; None where it is not known."""
    found: float | None = ((run.outcome.get(name) or {}).get(part) or {}).get(run.outcome.get("metric"))
    return found


def _ended(arm: ArmFiles) -> list[RunFiles]:
    return [run for run in arm.runs if run.outcome["outcome"] in ("finished", "diverged")]


def _scored(arm: ArmFiles) -> list[RunFiles]:
    return [run for run in _ended(arm) if run.outcome.get("metric")]


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


# ------------------------------------------------------------------------------------------------------------ verdicts


def headline(arms: Sequence[ArmFiles]) -> str:
    """Which runs did not get above the majority-class baseline."""
    ended = [run for arm in arms for run in _ended(arm)]
    lost = sum(map(failed, ended))
    lines = {title(arm): baseline(arm) for arm in arms if _scored(arm)}
    said = "; ".join(f"{name}: the majority-class baseline is {line}" for name, line in lines.items())
    counted = f"{lost} of {len(ended)} runs failed: not above"
    return f"{said}. {counted} it, or diverged." if said else f"{counted} the majority-class baseline, or diverged."


def compared(arms: Sequence[ArmFiles]) -> list[Compared]:
    """For each task and pre-trained model its best arm against the best arm from scratch."""
    groups: dict[tuple[str, str], list[ArmFiles]] = {}
    for arm in arms:
        glue = arm.first.run["glue"]
        if _ended(arm):
            groups.setdefault((glue["task"], glue["model"]), []).append(arm)
    pairs = []
    for group in groups.values():
        sides = [[arm for arm in group if arm.first.run["glue"]["scratch"] is kind] for kind in (False, True)]
        if all(sides):
            pairs.append((_best(sides[0]), _best(sides[1])))
    many = len({arm.first.run["glue"]["task"] for arm in arms}) > 1
    found = [
        Compared(
            mine=tuned.label,
            theirs=scratch.label,
            found=compare(_by_seed(tuned), _by_seed(scratch)),
            where=title(tuned) if many else "",
            more=[f"{median_score(tuned)} / {median_score(scratch)}", _above_baseline(tuned, scratch)],
        )
        for tuned, scratch in pairs
    ]
    return corrected(found)


def findings(arms: Sequence[ArmFiles]) -> Iterator[str]:
    yield from verdicts(compared(arms), WORDS)


WORDS = {"lower": "lower score than", "higher": "higher score than"}


def _best(arms: Sequence[ArmFiles]) -> ArmFiles:
    """The arm of the highest median."""
    return max(arms, key=lambda arm: ranked([of.median if (of := spread_of(arm)) else None])[0])


def _by_seed(arm: ArmFiles) -> dict[int, float]:
    """The score of each seed; a run without one is below all others."""
    ended = _ended(arm)
    return dict(zip([r.run["seed"] for r in ended], ranked([r.outcome.get("score") for r in ended]), strict=True))


def _above_baseline(tuned: ArmFiles, scratch: ArmFiles) -> str:
    """Whether any median is above the baseline: what a comparison must not be silent about."""
    line = next((_of_part(run, "majority_scores", "dev") for arm in (tuned, scratch) for run in _scored(arm)), None)
    medians = [of.median for of in map(spread_of, (tuned, scratch)) if of and of.median is not None]
    if line is None:
        return "–"
    return "yes" if any(one > line for one in medians) else f"neither, {line:.3f}"


# ------------------------------------------------------------------------------------------------------------ sections


def scores(about: Subject) -> Section:
    draw = partial(score_strips, about.arms)
    return Section(name="scores", title="Scores", sentence=_SCORES, figure=draw)


def worth(about: Subject) -> Section | None:
    """Pre-trained against from scratch."""
    return section(
        "pre-training",
        "Pre-trained against from scratch",
        compared(about.arms),
        "median difference of the score",
        WORDS,
        _WORTH,
        who="fine-tuning",
        more=["medians", "above the baseline"],
    )


_SCORES = (
    "A dot per seed, the bar is the median; a cross is a failed run. A run that diverged has no dot and counts below"
    " all others. Dashed: the majority-class baseline, or of a regression the mean score."
)
_WORTH = "The best arm of each side by its median."
_LEAST = 0.04  # of a score that a panel shows, so that a row or two of a dev set do not look like a finding


def score_strips(arms: Sequence[ArmFiles]) -> Drawing | None:
    """A panel per score, a row per arm: a dot per seed (a cross where it failed), a bar at the median.

    None where no run has a score.
    """
    groups: dict[str, list[ArmFiles]] = {}
    for arm in arms:
        if arm.values("score"):
            groups.setdefault(title(arm), []).append(arm)
    if not groups:
        return None
    drawn = drawing(len(groups), height=0.9 + 0.5 * max(map(len, groups.values())), rows=True, beside=1)
    for axes, (name, group) in zip(drawn.panels, groups.items(), strict=True):
        for line in dict.fromkeys(line for arm in group for line in arm.values("majority")[:1]):
            axes.axvline(line, **LEVEL_LINE, label="majority-class baseline")
        strips(axes, [_strip(arm) for arm in group])
        heading(axes, name)
        low, high = axes.get_xlim()
        more = max(0.0, _LEAST - (high - low)) / 2
        axes.set_xlim(low - more, high + more)
    return drawn


def _strip(arm: ArmFiles) -> Strip:
    scored = [run for run in arm.runs if run.outcome.get("score") is not None]
    middle = median(ranked([run.outcome.get("score") for run in _ended(arm)]))
    return Strip(
        name=_named(arm),
        colour=arm.look["color"],
        values=[run.outcome["score"] for run in scored],
        failed=[place for place, run in enumerate(scored) if _is_low(run)],
        middle=middle if math.isfinite(middle) else None,
    )


def _named(arm: ArmFiles) -> str:
    """The label, and how many runs have no score."""
    without = sum(run.outcome.get("score") is None for run in arm.runs)
    return f"{arm.label} ({without} of {len(arm.runs)} without a score)" if without else arm.label


def _is_low(run: RunFiles) -> bool:
    """As its outcome says, else by the baseline."""
    known, line = run.outcome.get("failed"), run.outcome.get("majority")
    return bool(known) if known is not None else line is not None and run.outcome["score"] <= line
