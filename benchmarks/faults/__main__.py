"""Faults in other people's models: what `check` and `watch` make of them, and whether the remedies help.

python -m benchmarks.faults check                    the development bases: rows that are not right, and a table
python -m benchmarks.faults check --only masks       one family or fault
python -m benchmarks.faults check --held-out         the held-out bases: the table alone
python -m benchmarks.faults train                    what each fault costs, 3 seeds (an hour; goes on if killed)
"""

import argparse
import hashlib
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults import tables
from benchmarks.faults.base import BASES, BY_NAME, Base
from benchmarks.faults.catalogue import FAMILY, FAULTS
from benchmarks.faults.checking import Row, check_clean, check_fault
from benchmarks.faults.clean import variants
from benchmarks.faults.codes import accepts
from benchmarks.faults.training import clean_losses, fault_losses, worse

OUT = Path("docs/results/faults")


def chosen(held_out: bool) -> list[Base]:
    return [base for base in BASES if base.held_out == held_out]


def check(out: Path, held_out: bool, only: str) -> int:
    """Every fault and every clean model of one part of the bases."""
    show = not held_out  # held-out rows stay unseen, or they are held out no more
    rows: list[Row] = []
    for base in chosen(held_out):
        for fault in FAULTS.values():
            if base.name not in fault.bases or only not in ("", fault.name, FAMILY[fault.name]):
                continue
            row, _ = check_fault(base, fault)
            rows.append(row)
            if show and not row.right:
                accepted = " or ".join(accepts(fault.cause)) or "no code has this cause"
                print(
                    f"{base.name:14} {fault.name:34} {row.crash or row.found or 'silent'}  <- {fault.cause}: {accepted}"
                )
    healthy = [] if only else [check_clean(one)[0] for one in variants() if BY_NAME[one.base].held_out == held_out]
    for row in healthy:
        if show and not row.silent:
            print(f"{row.base:14} {row.fault:34} ALARM {row.found} {row.crash}")
    part = "held-out" if held_out else "development"
    if not only:
        tables.write(out / f"check-{part}.csv", [asdict(row) for row in [*rows, *healthy]])
    print(f"\n{part} bases: {', '.join(base.name for base in chosen(held_out))}")
    print(tables.text(rows))
    quiet = sum(row.silent and not row.crash for row in healthy)
    print(f"clean models without an alarm: {tables.share(quiet, len(healthy))}")
    print(f"crashes: {sum(bool(row.crash) for row in [*rows, *healthy])}")
    return 0


def train(out: Path) -> int:
    """Nats per prediction of each faulty model and of its twin, a row per pair, added as they come."""
    path = out / "training.csv"
    rows = tables.read(path)
    done = {(row["fault"], row["base"]) for row in rows}
    pairs = [(fault, name) for fault in FAULTS.values() for name in fault.bases if (fault.name, name) not in done]
    # first those whose only proof is a run, then in an order without meaning, so that a part of them is a sample
    for fault, name in sorted(pairs, key=lambda pair: (not pair[0].training, digest(pair[0].name, pair[1]))):
        clean, wrong = clean_losses(name), fault_losses(BY_NAME[name], fault)
        cells = {"fault": fault.name, "base": name, "worse": worse(wrong, clean)}
        rows.append({k: str(v) for k, v in (cells | numbers("clean", clean) | numbers("wrong", wrong)).items()})
        tables.write(path, rows)
    return 0


def digest(*words: str) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()


def numbers(name: str, losses: Sequence[float]) -> dict[str, object]:
    return {f"{name} {seed}": f"{loss:.4f}" for seed, loss in enumerate(losses)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("verb", choices=["check", "train"])
    parser.add_argument("--held-out", action="store_true", help="the held-out bases, the table alone")
    parser.add_argument("--only", default="", help="one family or fault")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the rows")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # torch's own, about nested tensors and losses of odd shapes
    if given.verb == "check":
        return check(given.out, given.held_out, given.only)
    return train(given.out)


if __name__ == "__main__":
    sys.exit(main())
