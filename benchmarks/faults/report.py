"""docs/results/faults.md, from the rows."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.faults import tables
from benchmarks.faults.base import BASES, held_out
from benchmarks.faults.catalogue import FAULTS
from benchmarks.faults.causes import CAUSES
from benchmarks.faults.checking import Row
from benchmarks.faults.codes import accepts, signals
from benchmarks.faults.loops import HEALTHY, MISTAKES
from benchmarks.faults.tables import share
from benchmarks.faults.training import WORSE, Cost, Remedy
from benchmarks.faults.watching import Watched

PAGE = Path("docs/results/faults.md")
PARTS = ("held-out", "development")
HEAD = """# Faults in other people's models

{first}

{faults} mistakes by true cause ({causes} causes) on {bases} models written in different styles, {pairs} faulty models
in all; each model with the mistake, and nothing else that tells it from its twin without. The {held} bases with the
smallest SHA-256 of their names are held out ({names}): no rule was
written or tuned with them, and their rows were looked at once. Faults, causes and the table of accepted codes were
written without reading the rules. Intervals are Wilson's at 95 %; models of one base, and of one fault, are no
independent draws, so they are too narrow.

    python -m benchmarks.faults check --held-out

{measured}

Rows: [docs/results/faults](faults). A cause counts as named when an error or a warning that the twin has not has a code
whose title is about this cause (`benchmarks/faults/codes.py`); "first" when it is the first one printed.
"""
REMEDIES = """## The remedy, applied and trained again

Of models that train worse than their twins (a sample by hash). A remedy is applied when the finding's code names the
cause and its printed text the change; weights are initialized again only at the addresses that the findings name. It
works when at most a fifth of the fault's cost is left, or 0.05 nats, mean of 3 seeds.

| | trains again, of all | of those with a remedy that names the change |
|---|---|---|
"""
WATCH = """## `watch`

{mistakes} broken loops and {healthy} healthy ones (schedules, SGD, two sequences a batch, label smoothing, other text
later), 240 steps, seed 0, on two bases of each part, called as docs/watch.md says. A third of the loops, by a hash of
their names, is held out as well: these were not run on the development bases while rules were written. A cause counts
as named when a warning's signal is about it and its text says it (`SIGNALS` in `benchmarks/faults/codes.py`). The
rules were written by someone who had read all loops; what was not known is what they do on these bases.

| | detected | cause named | named first | healthy without an alarm |
|---|---|---|---|---|
"""
HARM = """## The proof of harm

Of {all} faulty models {differ} compute other outputs than their twins before the first step. Of the other {silent}
(gradients, frozen weights, dropout, optimizers, a norm in another's place), {tried} were trained beside their twins, 3
seeds each: {worse} train worse by more than 0.05 nats; the rest (cause named: {rest}) is left out of the tables
above. Of all {costs} faulty models that were trained, {all_worse} train worse.
"""


def write(out: Path) -> int:
    PAGE.write_text(page(out), encoding="utf-8")
    print(PAGE)
    return 0


def page(out: Path) -> str:
    rows = {part: [judged(row) for row in tables.read_as(Row, out / f"check-{part}.csv")] for part in PARTS}
    costs = tables.read_as(Cost, out / "costs.csv")
    harmful = {part: with_harm(rows[part], costs) for part in PARTS}
    remedies = {part: tables.read_as(Remedy, out / f"remedies-{part}.csv") for part in PARTS}
    loops = {part: tables.read_as(Watched, out / f"watch-{part}.csv") for part in PARTS}
    loops["costs"] = tables.read_as(Watched, out / "loop-costs.csv")  # of loops that were all run to their last step
    head = HEAD.format(
        first=sentence(harmful["held-out"], rows["held-out"], remedies["held-out"], loops["held-out"]),
        faults=len(FAULTS),
        causes=len(CAUSES),
        bases=len(BASES),
        pairs=sum(len(fault.bases) for fault in FAULTS.values()),
        held=len(held_out()),
        names=", ".join(base.name for base in BASES if base.held_out),
        measured=measured.read_text(encoding="utf-8").strip() if (measured := out / "measured.txt").exists() else "",
    )
    return "\n".join(
        [head, check(harmful), causes(harmful), clean(rows), harm(rows, costs), fixed(remedies), watch(loops)]
    )


def judged(row: Row) -> Row:
    """By the accepted codes of today, whatever they were when the row was written."""
    codes, named = row.found.split(), accepts(row.cause)
    return replace(row, right=any(code in named for code in codes), first=bool(codes) and codes[0] in named)


def with_harm(rows: Sequence[Row], costs: Sequence[Cost]) -> list[Row]:
    """Faulty models whose outputs differ from the twin's, or that train worse."""
    worse = {(one.fault, one.base) for one in costs if one.worse}
    return [row for row in rows if row.cause and (not FAULTS[row.fault].training or (row.fault, row.base) in worse)]


def sentence(faulty: Sequence[Row], rows: Sequence[Row], remedies: Sequence[Remedy], loops: Sequence[Watched]) -> str:
    healthy = [row for row in rows if not row.cause]
    broken = [row for row in loops if row.cause]
    return (
        f"On held-out models `check` names the cause of {share(sum(row.right for row in faulty), len(faulty))} and "
        f"alarms on {share(sum(not row.silent for row in healthy), len(healthy))} without a fault; "
        f"with the remedy {share(sum(row.trains for row in remedies), len(remedies))} train again. `watch` names "
        f"the cause of {share(sum(row.right for row in broken), len(broken))} broken loops."
    )


def unproven(rows: Sequence[Row], harmful: Sequence[Row]) -> list[Row]:
    """Faulty models whose harm was not shown."""
    shown = {(row.fault, row.base) for row in harmful}
    return [row for row in rows if row.cause and (row.fault, row.base) not in shown]


def filled(rows: dict[str, list[Any]]) -> list[str]:
    return [part for part in PARTS if rows[part]]


def check(rows: dict[str, list[Row]]) -> str:
    out = ["## `check`, by family", "", "| | cause named | named first | nothing reported |", "|---|---|---|---|"]
    for part in filled(rows):
        out.append(f"| **{part} bases** | | | |")
        out += [
            f"| {x.title} | {share(x.right, x.n)} | {share(x.first, x.n)} | {x.silent} |"
            for x in tables.lines(rows[part])
        ]
    return "\n".join(out) + "\n"


def causes(rows: dict[str, list[Row]]) -> str:
    """The causes that are not named in every model; of the others the titles."""
    out = ["## By cause", "", "| cause | codes that name it | held-out | development |", "|---|---|---|---|"]
    always = []
    for cause in CAUSES.values():
        found = [[row for row in rows[part] if row.cause == cause.name] for part in PARTS]
        if all(row.right for part in found for row in part):
            if any(found):
                always.append(f"{cause.title} ({sum(map(len, found))})")
            continue
        cells = [f"{sum(row.right for row in part)} of {len(part)}" if part else "" for part in found]
        codes = ", ".join(f"`{code}`" for code in accepts(cause.name)) or "none"
        out.append(f"| {cause.title} | {codes} | {cells[0]} | {cells[1]} |")
    named = f"Named in every model (how many): {'; '.join(always)}. Their codes: `benchmarks/faults/codes.py`."
    return "\n".join([*out, "", *textwrap.wrap(named, 120)]) + "\n"


def clean(rows: dict[str, list[Row]]) -> str:
    out = [
        "## Models without a fault",
        "",
        "Twins at three seeds and in float64, and designs that are legal and unusual.",
    ]
    out += ["", "| | without an alarm | alarms |", "|---|---|---|"]
    for part in filled(rows):
        healthy = [row for row in rows[part] if not row.cause]
        loud = [f"{row.base}, {row.fault}: {row.found or row.crash}" for row in healthy if not row.silent or row.crash]
        quiet = sum(row.silent and not row.crash for row in healthy)
        out.append(f"| {part} bases | {share(quiet, len(healthy))} | {'; '.join(loud) or 'none'} |")
    out += [
        "",
        "The reading before had eight alarms, all `final-norm-doubled` on `torch.nn.Transformer` as it is by default,",
        "which has two norms in a row after each Post-LN stack: harmless, and an *info* since.",
    ]
    return "\n".join(out) + "\n"


def harm(rows: dict[str, list[Row]], costs: Sequence[Cost]) -> str:
    """How it is known that a fault is one."""
    faulty = [row for part in PARTS for row in rows[part] if row.cause]
    silent = [row for row in faulty if FAULTS[row.fault].training]
    known = {(one.fault, one.base): one for one in costs}
    tried = [known[row.fault, row.base] for row in silent if (row.fault, row.base) in known]
    rest = {part: unproven(rows[part], with_harm(rows[part], costs)) for part in PARTS}
    return HARM.format(
        all=len(faulty),
        differ=len(faulty) - len(silent),
        silent=len(silent),
        tried=len(tried),
        worse=sum(one.worse for one in tried),
        costs=len(costs),
        all_worse=sum(one.worse for one in costs),
        rest=", ".join(f"{sum(row.right for row in rest[part])} of {len(rest[part])} ({part})" for part in PARTS),
    )


def fixed(remedies: dict[str, list[Remedy]]) -> str:
    out = [REMEDIES.rstrip()]
    for part in filled(remedies):
        rows = remedies[part]
        acted = [row for row in rows if row.acted]
        of_all, of_acted = (share(sum(r.trains for r in some), len(some)) for some in (rows, acted))
        out.append(f"| {part} bases | {of_all} | {of_acted} |")
    return "\n".join(out) + "\n"


def watch(loops: dict[str, list[Watched]]) -> str:
    out = [WATCH.format(mistakes=len(MISTAKES), healthy=len(HEALTHY)).rstrip()]
    rows = {f"{part} bases": loops[part] for part in PARTS}
    rows["held-out loops on held-out bases"] = [x for x in loops["held-out"] if x.new]
    for title, some in rows.items():
        broken, healthy = [x for x in some if x.cause], [x for x in some if not x.cause]
        counts = (
            share(sum(x.detected for x in broken), len(broken)),
            share(sum(x.right for x in broken), len(broken)),
            share(sum(x.first for x in broken), len(broken)),
            share(sum(not x.detected for x in healthy), len(healthy)),
        )
        out.append(f"| {title} | {' | '.join(counts)} |")
    out += ["", loop_harm(loops["costs"])]
    alarms = [x for part in PARTS for x in loops[part] if x.detected and not x.cause]
    where = ", ".join(f"{x} ({sum(y.base == x for y in alarms)})" for x in sorted({y.base for y in alarms}))
    out += ["", f"Alarms in healthy loops are on: {where or 'none'}."]
    missed = ["", "| loop that was missed | signals that name it | held-out | development |", "|---|---|---|---|"]
    named = []
    for kind in MISTAKES:
        found = [[x for x in loops[part] if x.loop == kind.name()] for part in PARTS]
        if all(x.right for part in found for x in part):
            named.append(kind.name())
            continue
        signs = ", ".join(f"`{one}`" for one in signals(kind.cause)) or "none"
        cells = ["; ".join(map(reported, part)) for part in found]
        missed.append(f"| {kind.name()} | {signs} | {cells[0]} | {cells[1]} |")
    said = f"Named on every base (signals and steps are in the CSV files): {', '.join(named)}. "
    said += f"Healthy: {', '.join(kind.name() for kind in HEALTHY)}."
    return "\n".join([*out, *missed, "", *textwrap.wrap(said, 120, break_on_hyphens=False)]) + "\n"


def loop_harm(rows: Sequence[Watched]) -> str:
    healthy = {row.base: row.loss for row in rows if row.loop == "loop"}
    broken = [row for row in rows if row.cause and not math.isnan(row.loss)]
    harmful = [row for row in broken if row.loss > healthy.get(row.base, math.inf) + WORSE]
    return (
        f"On the development bases {len(harmful)} of {len(broken)} broken loops that were run to their last step end\n"
        f"more than {WORSE} nats above the healthy loop, on other text and from prefixes alone, or in no number."
    )


def reported(row: Watched) -> str:
    return f"{row.found} at step {row.step:.0f}" if row.found else "silent"
