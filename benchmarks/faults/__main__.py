"""Faults in other people's models: what `check` and `watch` make of them, and whether the remedies help.

    python -m benchmarks.faults check                   the development bases: rows that are not right, and a table
    python -m benchmarks.faults check --only masks      one family or fault
    python -m benchmarks.faults check --held-out        the held-out bases: the table alone
    python -m benchmarks.faults watch [--held-out]      the same of `watch` in broken and in healthy loops
    python -m benchmarks.faults train [--held-out]      what each fault costs, 3 seeds (half an hour)
    python -m benchmarks.faults remedies [--held-out]   what the remedies make good of that, 3 seeds
    python -m benchmarks.faults report                  docs/results/faults.md, from the rows of all of these

`watch`, `train` and `remedies` go on if killed. Rows are in docs/results/faults, or where `--out` says.
"""

import argparse
import hashlib
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults import report, tables
from benchmarks.faults.base import BASES, BY_NAME, Base
from benchmarks.faults.catalogue import FAMILY, FAULTS
from benchmarks.faults.checking import Row, check_clean, check_fault
from benchmarks.faults.clean import Clean, variants
from benchmarks.faults.codes import accepts
from benchmarks.faults.fault import Fault
from benchmarks.faults.training import Cost, Remedy, cost, remedy
from benchmarks.faults.watching import Watched, loops, watched
from benchmarks.faults.watching import held_out as new

OUT = Path("docs/results/faults")


def chosen(held_out: bool) -> list[Base]:
    return [base for base in BASES if base.held_out == held_out]


def check(out: Path, held_out: bool, only: str, minutes: float) -> int:
    """Every fault and every clean model of one part of the bases. Held-out rows are added as they come, and none is
    asked twice; they are not printed, or they would be held out no more.
    """
    path = out / f"check-{part_of(held_out)}.csv"
    rows = tables.read_as(Row, path) if held_out and not only else []
    done = {(row.fault, row.base, row.cause) for row in rows}
    end = time.monotonic() + 60 * minutes
    for base, one in asked(held_out, only):
        if (one.name, base.name, one.cause) in done or time.monotonic() > end:
            continue
        row = check_fault(base, one)[0] if isinstance(one, Fault) else check_clean(one)[0]
        rows.append(row)
        if not only:
            tables.write(path, [asdict(each) for each in rows])
        if not held_out and not (row.right if row.cause else row.silent):
            wanted = " or ".join(accepts(row.cause)) or "no code has this cause"
            print(f"{base.name:14} {row.fault:34} {row.crash or row.found or 'silent'}", end="  ")
            print(f"<- {row.cause}: {wanted}" if row.cause else "ALARM on a model without a fault", flush=True)
    print(f"\n{part_of(held_out)} bases: {', '.join(base.name for base in chosen(held_out))}")
    print(tables.text([row for row in rows if row.cause]))
    healthy = [row for row in rows if not row.cause]
    quiet = sum(row.silent and not row.crash for row in healthy)
    print(f"clean models without an alarm: {tables.share(quiet, len(healthy))}")
    print(f"crashes: {sum(bool(row.crash) for row in rows)}")
    return 0


def asked(held_out: bool, only: str) -> list[tuple[Base, Fault | Clean]]:
    """In an order without meaning where they are held out: a part of them is a sample."""
    pairs: list[tuple[Base, Fault | Clean]] = [
        (base, fault)
        for base in chosen(held_out)
        for fault in FAULTS.values()
        if base.name in fault.bases and only in ("", fault.name, FAMILY[fault.name])
    ]
    if not only:
        pairs += [(BY_NAME[one.base], one) for one in variants() if BY_NAME[one.base].held_out == held_out]
    return sorted(pairs, key=lambda pair: digest(pair[0].name, pair[1].name)) if held_out else pairs


def watch(out: Path, held_out: bool, only: str) -> int:
    """Every loop on one part of the bases, the loops held out on theirs alone; rows are added as they come, and those
    there are not run again."""
    part = part_of(held_out)
    path = out / f"watch-{part}.csv"
    rows = [] if only else tables.read_as(Watched, path)
    done = {(row.loop, row.base) for row in rows}
    for base in chosen(held_out):
        for kind in loops(base):
            if not held_out and not only and new(kind.name()):
                continue
            if (kind.name(), base.name) in done or only not in ("", kind.name(), kind.cause):
                continue
            row, warned = watched(base, kind)
            rows.append(row)
            if not only:
                tables.write(path, [asdict(one) for one in rows])
            if not held_out and (row.detected if not row.cause else not row.right):
                print(f"{base.name:14} {row.loop:36} {row.crash or row.found or 'silent'}  <- {row.cause or 'healthy'}")
                for one in warned[:1]:
                    print(f"{'':14} step {one['step']}: {one['message']}")
    print(f"\n{part} bases")
    print(tables.watch_text(rows))
    return 0


def train(out: Path, held_out: bool, minutes: float) -> int:
    """What each fault of one part of the bases costs; rows are added as they come, and none is run again."""
    path = out / "costs.csv"
    rows = tables.read_as(Cost, path)
    done = {(row.fault, row.base) for row in rows}
    pairs = [(base, fault) for base in chosen(held_out) for fault in FAULTS.values() if base.name in fault.bases]
    # first those whose only proof is a run, then in an order without meaning, so that a part of them is a sample
    pairs.sort(key=lambda pair: (not pair[1].training, digest(pair[0].name, pair[1].name)))
    end = time.monotonic() + 60 * minutes
    for base, fault in pairs:
        if (fault.name, base.name) not in done and time.monotonic() < end:
            rows.append(cost(base, fault))
            tables.write(path, [asdict(row) for row in rows])
    return 0


def remedies(out: Path, held_out: bool) -> int:
    """The remedies of the faults that are known to train worse, applied and trained again."""
    path = out / f"remedies-{part_of(held_out)}.csv"
    rows = tables.read_as(Remedy, path)
    done = {(row.fault, row.base) for row in rows}
    for one in tables.read_as(Cost, out / "costs.csv"):
        if one.worse and one.held_out == held_out and (one.fault, one.base) not in done:
            rows.append(remedy(BY_NAME[one.base], FAULTS[one.fault], one))
            tables.write(path, [asdict(row) for row in rows])
    print(tables.remedy_text(rows))
    return 0


def part_of(held_out: bool) -> str:
    return "held-out" if held_out else "development"


def digest(*words: str) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("verb", choices=["check", "watch", "train", "remedies", "report"])
    parser.add_argument("--held-out", action="store_true", help="the held-out bases, the table alone")
    parser.add_argument("--only", default="", help="one family or fault")
    parser.add_argument("--minutes", type=float, default=60.0, help="check, train: start no pair after them")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the rows")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # torch's own, about nested tensors and losses of odd shapes
    if given.verb == "check":
        return check(given.out, given.held_out, given.only, given.minutes)
    if given.verb == "watch":
        return watch(given.out, given.held_out, given.only)
    if given.verb == "train":
        return train(given.out, given.held_out, given.minutes)
    if given.verb == "remedies":
        return remedies(given.out, given.held_out)
    return report.write(given.out)


if __name__ == "__main__":
    sys.exit(main())
