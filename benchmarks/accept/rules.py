"""The rules: from what a command has written to what was found, and whether a sentence holds.

A rule reads files only. Each is made once, for its row, with what the sentence says: `ends({..})` gives the rule.
"""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.accept.row import Folders, Measured

Rule = Callable[[Folders], Measured]
Run = Mapping[str, Any]
Arm = tuple[str, int, float]  # placement, warm-up, learning rate

RESULTS = Path(__file__).parents[2] / "docs/results"
NEAR = 0.10  # nats: a loss that is not so far below what token frequencies give has learned these at most


def runs_of(folder: Path) -> list[Run]:
    """The rows of results.json, of `compare`, or of the ledger, of `study`."""
    if (folder / "ledger.jsonl").exists():
        return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return json.loads((folder / "results.json").read_text())


def stored(name: str) -> list[Run]:
    """The table of a study in docs/results, numbers as numbers."""
    with (RESULTS / name / "results.csv").open(encoding="utf-8") as lines:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(lines)]


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text or None


def value(run: Run, name: str) -> Any:
    """A setting, by its dotted key or, as `compare` writes it, by the last part of it."""
    return run[name] if name in run else run[name.rpartition(".")[2]]


def arm_of(run: Run) -> Arm:
    return value(run, "model.placement"), int(value(run, "training.warmup")), float(value(run, "training.lr"))


def learned(run: Run) -> bool:
    """Whether its final loss is below what token frequencies give on the same batches, by more than 0.10 nat.

    Simpler than an outcome, and the same whatever the run's length: it needs no patience.
    """
    loss, reference = run["final_loss"], run["unigram_loss"]
    return loss is not None and math.isfinite(loss) and loss < reference - NEAR


def unlearned(
    read: Callable[[Folders], list[Run]], cells: Mapping[tuple[tuple[str, Any], ...], tuple[int, int]]
) -> Rule:
    """Of the runs with these settings so many, and no others, learn nothing but token frequencies.

    Args:
        cells: ((key, value), ..) -> (how many, of how many).
    """

    def rule(folders: Folders) -> Measured:
        runs = read(folders)
        said, holds = [], True
        for where, expected in cells.items():
            seen = [run for run in runs if all(value(run, key) == wanted for key, wanted in where)]
            found = sum(not learned(run) for run in seen), len(seen)
            holds &= found == expected
            said.append(f"{', '.join(_setting(*one) for one in where)}: {found[0]} of {found[1]}")
        return Measured(said=f"learned nothing: {'; '.join(said)}", holds=holds)

    return rule


def _setting(key: str, wanted: Any) -> str:
    names = {"training.warmup": "warm-up {:g}", "model.layers": "{:g} layers", "training.lr": "LR {:g}"}
    return names.get(key, "{}").format(wanted)


def best_losses(runs: Sequence[Run], placement: str) -> dict[int, float]:
    """By seed, at the setting with the lowest median held-out loss; a run that learned nothing is infinite."""
    own = [run for run in runs if value(run, "model.placement") == placement]
    arms = {arm_of(run): {} for run in own}
    for run in own:
        arms[arm_of(run)][int(run["seed"])] = run["validation_loss"] if learned(run) else math.inf
    return min(arms.values(), key=lambda losses: median(losses.values()))


def higher(read: Callable[[Folders], list[Run]], mine: str, theirs: str, low: float, high: float) -> Rule:
    """Each at its own best setting, mine - theirs lies between these for every seed."""

    def rule(folders: Folders) -> Measured:
        one, other = (best_losses(read(folders), placement) for placement in (mine, theirs))
        found = [one[seed] - other[seed] for seed in one]
        return Measured(
            said=f"{mine} - {theirs}: {', '.join(f'{x:+.3f}' for x in found)} nat",
            holds=all(low <= x <= high for x in found),
        )

    return rule


def stable_rates(rows: Sequence[Run]) -> dict[tuple[str, int, int], float]:
    """The largest stable rate by placement, warm-up and seed: the middle of its bracket on the log scale."""
    found = {}
    for run in rows:
        if run["boundary_low"] and run["boundary_high"]:
            middle = math.sqrt(run["boundary_low"] * run["boundary_high"])
            found[run["placement"], int(run["warmup"]), int(run["seed"])] = middle
    return found


def boundaries(rows: Sequence[Run]) -> dict[tuple[str, int], float]:
    """The same by placement and warm-up: the median over seeds."""
    rates = stable_rates(rows)
    return {group: median(x for key, x in rates.items() if key[:2] == group) for group in {key[:2] for key in rates}}


def above_with_each_seed(read: Callable[[Folders], list[Run]], expected: Mapping[int, bool]) -> Rule:
    """Whether NormFormer's largest stable rate is above Pre-LN's with every seed, by warm-up."""

    def rule(folders: Folders) -> Measured:
        rates = stable_rates(read(folders))
        seeds = sorted({seed for _, _, seed in rates})
        said, holds = [], len(seeds) >= 3
        for warmup, every_seed in expected.items():
            found = [rates["normformer", warmup, seed] / rates["pre-ln", warmup, seed] for seed in seeds]
            holds &= all(x > 1 for x in found) == every_seed
            said.append(f"warm-up {warmup}: {', '.join(f'{x:.1f}' for x in found)}")
        return Measured(said=f"by seed: {'; '.join(said)}", holds=holds)

    return rule


def headroom_rows(folder: Path) -> list[Run]:
    with (folder / "report/results.csv").open(encoding="utf-8") as lines:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(lines)]


def factors(
    read: Callable[[Folders], list[Run]],
    expected: Mapping[str, tuple[Callable[[Mapping[Any, float]], float], float, float]],
) -> Rule:
    """Numbers made of the largest stable rates, each within its limits: what -> (formula, low, high)."""

    def rule(folders: Folders) -> Measured:
        rates = boundaries(read(folders))
        found = {name: formula(rates) for name, (formula, _, _) in expected.items()}
        holds = all(low <= found[name] <= high for name, (_, low, high) in expected.items())
        return Measured(said="; ".join(f"{name}: {x:.2g}" for name, x in found.items()), holds=holds)

    return rule


def blocks(job: str) -> Rule:
    """Of the code in the docs nothing failed, and what stands by itself has run."""

    def rule(folders: Folders) -> Measured:
        rows = json.loads((folders[job] / "blocks.json").read_text(encoding="utf-8"))
        found = Counter(f"{row['kind']} {row['verdict']}" for row in rows)
        lost = [f"{row['page']}:{row['line']} {row['reason']}" for row in rows if row["verdict"] == "failed"]
        said = "; ".join([*(f"{number} {what}" for what, number in sorted(found.items())), *lost])
        return Measured(said=said, holds=not lost and found["python ran"] >= 10 and found["command parsed"] >= 100)

    return rule


def site(job: str, least: int) -> Rule:
    """The site was built, its tutorials with what they printed."""

    def rule(folders: Folders) -> Measured:
        html = folders[job] / "html"
        found = len([*html.rglob("*.html")])
        printed = (html / "tutorials/fix-post-ln.html").read_text(encoding="utf-8").count("cell_output")
        said = f"{found} pages, the first tutorial with {printed} outputs"
        return Measured(said=said, holds=found >= least and printed >= 5)

    return rule


def ramps(job: str, least: float) -> Rule:
    """NormFormer's rate over Pre-LN's of the same seed, in an LR range test; where it did not diverge, a bound."""

    def rule(folders: Folders) -> Measured:
        reached = {(run["placement"], run["seed"]): run for run in runs_of(folders[job])}
        seeds = sorted({seed for _, seed in reached})
        found = [reached["normformer", s]["lr_reached"] / reached["pre-ln", s]["lr_reached"] for s in seeds]
        bounds = [reached["normformer", s]["broke_at"] is None for s in seeds]
        said = ", ".join(f"{'at least ' * bound}{x:.2f}" for x, bound in zip(found, bounds, strict=True))
        return Measured(said=f"NormFormer over Pre-LN, by seed: {said}", holds=len(seeds) >= 3 and min(found) >= least)

    return rule


def apart(job: str, mine: Arm, theirs: Arm, least: float) -> Rule:
    """The final loss of the one arm is at least so much above that of the other, seed by seed."""

    def rule(folders: Folders) -> Measured:
        loss = {(arm_of(run), run["seed"]): run["final_loss"] for run in runs_of(folders[job])}
        seeds = sorted({seed for arm, seed in loss if arm == mine})
        found = [loss[mine, seed] - loss[theirs, seed] for seed in seeds]
        said = f"{mine[0]}, warm-up {mine[1]} - {theirs[1]}: {', '.join(f'{x:+.2f}' for x in found)} nat"
        return Measured(said=said, holds=len(seeds) >= 3 and min(found) >= least)

    return rule


def below(job: str, expected: Mapping[tuple[str, int], tuple[float, float]]) -> Rule:
    """By (placement, warm-up): how far each seed ends below token frequencies on its batches, within limits."""

    def rule(folders: Folders) -> Measured:
        said, holds = [], True
        for (placement, warmup), (low, high) in expected.items():
            own = [run for run in runs_of(folders[job]) if arm_of(run)[:2] == (placement, warmup)]
            found = [run["unigram_loss"] - run["final_loss"] for run in own]
            holds &= len(found) >= 3 and all(low <= x <= high for x in found)
            said.append(f"{placement}: {', '.join(f'{x:.2f}' for x in found)} nat")
        return Measured(said=f"below token frequencies: {'; '.join(said)}", holds=holds)

    return rule


def gradient_ratios(job: str, within: Mapping[float, tuple[float, float]]) -> Rule:
    """At each rate NormFormer's first/last gradient ratio over Pre-LN's of the same seed, within its limits."""

    def rule(folders: Folders) -> Measured:
        ratio = {(*arm_of(run), run["seed"]): run["gradient_ratio_end"] for run in runs_of(folders[job])}
        seeds = sorted({key[3] for key in ratio})
        said, holds = [], len(seeds) >= 3
        for rate, (low, high) in within.items():
            found = [ratio["normformer", 0, rate, s] / ratio["pre-ln", 0, rate, s] for s in seeds]
            holds &= all(low <= x <= high for x in found)
            said.append(f"LR {rate:g}: {', '.join(f'{x:.2f}' for x in found)}")
        return Measured(said="NormFormer over Pre-LN, by seed: " + "; ".join(said), holds=holds)

    return rule


def verdicts(job: str, number: int) -> Rule:
    """Every verdict of the theory holds, or is false where it is recorded as false, and every negative control is
    refused; at least so many of both."""

    def rule(folders: Folders) -> Measured:
        found = json.loads((folders[job] / "theory.json").read_text())
        rows, controls = found["verdicts"], found["negative_controls"]
        wrong = [row for row in rows if row["holds"] == bool(row.get("refuted"))]
        failed = [f"{row['claim']} ({row['placement']}): {row['measured']}" for row in wrong]
        false = sum(bool(row.get("refuted")) for row in rows)
        passed = [f"control of {row['claim']} ({row['placement']})" for row in controls if row["holds"]]
        said = f"{sum(row['holds'] for row in rows)} of {len(rows)} verdicts hold, {false} are recorded as false,"
        said += f" {len(controls) - len(passed)} of {len(controls)} negative controls are refused"
        whole = len(rows) >= number and len(controls) >= number
        return Measured(said="; ".join([said, *failed, *passed]), holds=whole and not failed + passed)

    return rule


def scores(job: str, **least: float) -> Rule:
    """What `isograd evaluate --json` said is at least so much."""

    def rule(folders: Folders) -> Measured:
        found = json.loads(said_by(folders[job]))
        return Measured(
            said=", ".join(f"{name} {found[name]:.2f}" for name in least) + f" ({found['lines']} lines)",
            holds=all(found[name] >= low for name, low in least.items()),
        )

    return rule


def said_by(folder: Path) -> str:
    """The stdout of a job."""
    return (folder.parent / "stdout.txt").read_text()


def same_texts(job: str, number: int, pairs: Sequence[tuple[str, str]]) -> Rule:
    """Of so many translations all are the same with each pair of contestants of `benchmarks/decoding_export.py`."""

    def rule(folders: Folders) -> Measured:
        texts = json.loads((folders[job] / "turns.json").read_text())["texts"]
        same = [sum(a == b for a, b in zip(texts[one], texts[other], strict=True)) for one, other in pairs]
        said = "; ".join(f"{one} and {other}: {many}" for (one, other), many in zip(pairs, same, strict=True))
        return Measured(
            said=f"equal, of {len(texts[pairs[0][0]])}: {said}",
            holds=all(many == number == len(texts[one]) for many, (one, _) in zip(same, pairs, strict=True)),
        )

    return rule


def parity(job: str, limit: float) -> Rule:
    """The parity report passed, and its fp64 logits differ by at most so much of the largest."""

    def rule(folders: Folders) -> Measured:
        report = json.loads((folders[job] / "parity.json").read_text())
        relative = next(row["relative"] for row in report["logits"] if row["precision"] == "fp64")
        return Measured(
            said=f"fp64 logits differ by {relative:.1e} of the largest", holds=report["passed"] and relative <= limit
        )

    return rule


def tests_passed(job: str, least: int) -> Rule:
    """A job of pytest: nothing failed, and at least so many tests ran."""

    def rule(folders: Folders) -> Measured:
        last = said_by(folders[job]).strip().splitlines()[-1]
        passed = next(
            (int(word) for word, what in zip(last.split(), last.split()[1:], strict=False) if "passed" in what), 0
        )
        return Measured(said=last, holds=passed >= least and "failed" not in last and "error" not in last)

    return rule


def causes_named(table: Callable[[Folders], Path], named: int, told: int, clean: int) -> Rule:
    """Of the held-out mistakes that do harm, at least so many causes are named by an error or a warning, so many with
    those whose change was tried without harm; models without one have no alarm.
    """

    def rule(folders: Folders) -> Measured:
        from benchmarks.faults import tables
        from benchmarks.faults.checking import Row
        from benchmarks.faults.report import judged, with_harm
        from benchmarks.faults.training import Cost

        rows = [judged(row) for row in tables.read_as(Row, table(folders))]
        harmful = with_harm(rows, tables.read_as(Cost, RESULTS / "faults/costs.csv"))
        right, healthy = sum(row.right for row in harmful), [row for row in rows if not row.cause]
        said = sum(row.told for row in harmful)
        silent = sum(row.silent and not row.crash for row in healthy)
        return Measured(
            said=f"cause named in {right} of {len(harmful)}, told in {said}, silent on {silent} of {len(healthy)}",
            holds=len(harmful) == 226 and right >= named and said >= told and silent == len(healthy) == clean,
        )

    return rule


def at_first_sight(named: tuple[int, int], alarms: tuple[int, int]) -> Rule:
    """Over all sets of models written without sight of the rules, each counted once: so many named, so many alarms."""

    def rule(folders: Folders) -> Measured:
        from isograd.lab.statistics import wilson

        with (RESULTS / "first-sight.csv").open(encoding="utf-8", newline="") as file:
            rows = [
                {key: int(row[key]) for key in ("faults", "named", "clean", "alarms")} for row in csv.DictReader(file)
            ]
        faults, right, clean, wrong = (sum(row[key] for row in rows) for key in ("faults", "named", "clean", "alarms"))
        ends = [
            f"{100 * one.low:.0f} to {100 * one.high:.0f} %" for one in (wilson(right, faults), wilson(wrong, clean))
        ]
        return Measured(
            said=f"named {right} of {faults} ({ends[0]}), alarms on {wrong} of {clean} ({ends[1]})",
            holds=((right, faults), (wrong, clean)) == (named, alarms),
        )

    return rule


def every(*rules: Rule) -> Rule:
    """All of them hold."""

    def rule(folders: Folders) -> Measured:
        found = [one(folders) for one in rules]
        return Measured(said="; ".join(one.said for one in found), holds=all(one.holds for one in found))

    return rule


def grid(placements: Sequence[str], **settings: Sequence[Any]) -> Iterator[tuple[tuple[str, Any], ...]]:
    """All combinations, as `unlearned` reads them.

    >>> list(grid(["pre-ln"], warmup=[0], layers=[24, 48]))[1]
    (('model.placement', 'pre-ln'), ('training.warmup', 0), ('model.layers', 48))
    """
    names = {"warmup": "training.warmup", "lr": "training.lr", "layers": "model.layers"}
    for placement, *values in product(placements, *settings.values()):
        yield (("model.placement", placement), *zip((names[name] for name in settings), values, strict=True))


def warned(jobs: Sequence[str]) -> Rule:
    """The early warning was raised in every run that collapsed and in none that finished; the undecided are counted."""

    def rule(folders: Folders) -> Measured:
        raised: dict[str, list[bool]] = {"collapsed": [], "finished": [], "undecided": []}
        for job in jobs:
            for run in runs_of(folders[job]):
                raised[run["outcome"]].append(run["warning"] is not None)
        said = ", ".join(f"in {sum(flags)} of {len(flags)} {outcome}" for outcome, flags in raised.items())
        right = all(raised["collapsed"]) and len(raised["collapsed"]) > 0 and not any(raised["finished"])
        return Measured(said=f"raised {said}", holds=right and len(raised["undecided"]) <= 2)

    return rule


def medians(job: str, pretrained: tuple[float, float], scratch: tuple[float, float]) -> Rule:
    """The median score over the seeds of both arms of a fine-tuning, each within its limits."""

    def rule(folders: Folders) -> Measured:
        arms = json.loads(said_by(folders[job]))["arms"]
        found = {("scratch" if "scratch" in arm["arm"] else "pre-trained"): arm["median"] for arm in arms}
        inside = [
            low <= found[name] <= high for name, (low, high) in (("pre-trained", pretrained), ("scratch", scratch))
        ]
        return Measured(said="; ".join(f"{name}: {x:.3f}" for name, x in found.items()), holds=all(inside))

    return rule


def zero_shot(job: str, task: str, low: float, high: float) -> Rule:
    """The accuracy of a task, in percent."""

    def rule(folders: Folders) -> Measured:
        rows = json.loads(said_by(folders[job]))["scores"]
        one = next(row for row in rows if row["task"] == task and row["metric"] == "acc")
        percent = 100 * one["value"]
        return Measured(
            said=f"{percent:.1f} ± {100 * one['stderr']:.1f} % (n = {one['n']:,})", holds=low <= percent <= high
        )

    return rule


def outcomes(job: str, expected: Mapping[tuple[str, int], str], seeds: int) -> Rule:
    """Every run of an arm, by placement and warm-up, has this outcome; so many seeds each."""

    def rule(folders: Folders) -> Measured:
        runs, said, holds = runs_of(folders[job]), [], True
        for (placement, warmup), outcome in expected.items():
            own = [run["outcome"] for run in runs if arm_of(run)[:2] == (placement, warmup)]
            many = own.count(outcome)
            holds &= many == len(own) == seeds
            said.append(f"{placement}, warm-up {warmup}: {outcome} {many} of {len(own)}")
        return Measured(said="; ".join(said), holds=holds)

    return rule


def table_line(job: str, line: str, rate: float = 1e-3) -> Rule:
    """A line of a page's table: "| placement | .. | warm-up | outcome k of n | final losses, seed by seed | ..".

    The outcomes must be the same, the losses within 0.05 nat of the same seed's.
    """
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    at = next(i for i, cell in enumerate(cells) if re.fullmatch(r"\w+ \d of \d", cell))
    placement, warmup, (outcome, many, _, of) = cells[0], int(cells[at - 1]), cells[at].split()
    expected = [float(x) for x in cells[at + 1].split(", ")]

    def rule(folders: Folders) -> Measured:
        own = [run for run in runs_of(folders[job]) if arm_of(run) == (placement, warmup, rate)]
        own.sort(key=lambda run: run["seed"])
        ended, losses = sum(run["outcome"] == outcome for run in own), [run["final_loss"] for run in own]
        near = all(abs(x - wanted) <= 0.05 for x, wanted in zip(losses, expected, strict=True))
        said = f"{outcome} {ended} of {len(own)}; {', '.join(f'{x:.3f}' for x in losses)}"
        return Measured(said=said, holds=near and (ended, len(own)) == (int(many), int(of)))

    return rule


def printed(job: str, expected: Mapping[str, tuple[float, float]]) -> Rule:
    """What a script printed, a line "name: number .." each: within its limits."""

    def rule(folders: Folders) -> Measured:
        lines = dict(line.split(": ", 1) for line in said_by(folders[job]).splitlines() if ": " in line)
        holds = all(low <= float(lines[name].split()[0]) <= high for name, (low, high) in expected.items())
        return Measured(said="; ".join(f"{name}: {lines[name]}" for name in expected), holds=holds)

    return rule


def collapses(table: Callable[[Folders], Path], held_out: bool, exact: tuple[int, int, int] | None = None) -> Rule:
    """Of the decided runs of a grid's table: how many `collapse-predicted` and the early warning flag, and rightly.

    Args:
        table: as `benchmarks/collapse_rules.py --table` writes it.
        held_out: count only depths and widths on which the rules were not fitted.
        exact: runs, collapses, predictions, all of which must be right, as must all warnings; else 9 of 10 must be.
    """
    from isograd.lint.initial.collapse import COLLAPSES, INTERCEPT, CollapseRule

    def predicted(row: Mapping[str, str]) -> bool:
        if row["placement"] not in INTERCEPT:
            return False
        stack = CollapseRule(function=row["placement"], layers=int(row["layers"]), width=int(row["width"]))
        return stack.risk(float(row["lr"]), int(row["warmup"])) >= COLLAPSES

    def rule(folders: Folders) -> Measured:
        with table(folders).open(newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if not row["init"] and row["outcome"] != "undecided"]
        if held_out:
            rows = [row for row in rows if int(row["layers"]) in (9, 18, 36) or int(row["width"]) == 64]
        fell = {row["run"] for row in rows if row["outcome"] == "collapsed"}
        flagged = {row["run"] for row in rows if predicted(row)}
        warned = {row["run"] for row in rows if row["warned_at"]}
        said = f"{len(rows)} runs, {len(fell)} collapsed; predicted {len(flagged)}, {len(flagged & fell)} of them did;"
        said += f" warned of {len(warned)}, {len(warned & fell)} of them did"
        if exact is not None:
            holds = (len(rows), len(fell), len(flagged)) == exact and flagged <= fell and warned == fell
        else:
            right = [len(told & fell) >= 0.9 * len(told) for told in (flagged, warned)]
            holds = all(right) and len(warned & fell) >= 0.9 * len(fell)
        return Measured(said=said, holds=holds)

    return rule
