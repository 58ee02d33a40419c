"""`silent`: faults of Transformer training that raise no error. README.md says how to run it, and how to add to it.

python -m benchmarks.silent list
python -m benchmarks.silent prove [CASE ..]
python -m benchmarks.silent run TOOL [..] [--part open] [--only TEXT]
python -m benchmarks.silent judge TOOL [..] [--form FILE] [--take FILE]
python -m benchmarks.silent table
"""

import argparse
import importlib
import sys
from pathlib import Path

import torch

from . import rows, table
from .cases import FOLDER, Case, cases, problems, proved
from .tools import TOOLS


def listed(found: list[Case]) -> None:
    for case in found:
        kind = "oddity" if case.oddity else "held out" if case.held_out else "open"
        title = case.path.read_text(encoding="utf-8").partition('"""')[2].partition("\n")[0]
        print(f"{case.name:32} {case.about['class']:12} {case.about['shows']:6} {kind:9} {title}")
    faults = [case for case in found if not case.oddity]
    held_out = sum(case.held_out for case in faults)
    print(f"{len(faults)} faults ({held_out} held out), {len(found) - len(faults)} oddities")


def prove(found: list[Case]) -> int:
    """The format of each case and its numbers; 1 if anything is not as it should be."""
    wrong = 0
    for case in found:
        lines = list(problems(case))
        for twin, number, (low, high) in () if lines else proved(case):
            print(f"{case.name:32} {twin:8} {number:12.6g} in {low:g} .. {high:g}", flush=True)
            if not low <= number <= high:
                lines.append(f"{twin}: {case.about['number']} is {number:g}, not in {low:g} .. {high:g}")
        wrong += bool(lines)
        for line in lines:
            print(f"{case.name}: {line}", file=sys.stderr, flush=True)
    print(f"{len(found) - wrong} of {len(found)} cases are as they should be")
    return int(wrong > 0)


def judge(names: list[str], found: list[Case], form: Path, taken: Path | None, folder: Path) -> None:
    if taken:
        print(f"{rows.take(rows.read(taken), names, found, folder)} new verdicts in {folder / 'judged.csv'}")
        return
    lines = rows.to_judge(names, found, folder)
    if {row["hash"] for row in rows.read(form) if row["named"]} & {row["hash"] for row in lines}:
        raise SystemExit(f"{form} has verdicts that were not taken: --take {form}, or name another --form")
    rows.write(form, rows.FORM, lines)
    print(f"{len(lines)} to judge in {form}: fill in `named` with yes or no, then --take {form}")


def tables(found: list[Case], folder: Path) -> None:
    text, first = table.page(found, folder)
    if text:
        folder.with_suffix(".md").write_text(text, encoding="utf-8")
        front = folder.resolve().parents[1] / "silent.md"
        if front.exists():
            front.write_text(table.into(front.read_text(encoding="utf-8"), first), encoding="utf-8")
    print(first or "no rows")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.silent", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("list", "prove", "run", "judge", "table"))
    parser.add_argument("names", nargs="*", default=[], help="cases to prove (else all); tools to run or to judge")
    parser.add_argument("--part", choices=("all", "open", "held-out"), default="all")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--limit", type=float, default=rows.LIMIT, help="seconds of one look")
    parser.add_argument("--cases", type=Path, default=FOLDER, help="a folder of cases")
    parser.add_argument("--results", type=Path, default=rows.RESULTS, help="a folder of tables")
    parser.add_argument("--form", type=Path, default=Path("to-judge.csv"), help="where the form to fill in is written")
    parser.add_argument("--take", type=Path, help="a form that is filled in")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    try:
        found = cases(asked.cases, asked.only, asked.part)
    except (SyntaxError, ValueError) as error:
        parser.error(f"a case cannot be read: {error}")
    unknown = set(asked.names) - {case.name for case in found} if asked.what == "prove" else set()
    if unknown or not found or (asked.take and not asked.take.exists()):
        parser.error(f"there is no {', '.join(sorted(unknown)) or (asked.take if found else 'such case')}")
    if asked.what == "list":
        listed(found)
    elif asked.what == "prove":
        return prove([case for case in found if not asked.names or case.name in asked.names])
    elif asked.what == "table":
        tables(found, asked.results)
    elif not asked.names or set(asked.names) - TOOLS.keys():
        parser.error(f"name one or more of these tools: {', '.join(TOOLS)}")
    elif asked.what == "judge":
        judge(asked.names, found, asked.form, asked.take, asked.results)
    else:
        importlib.import_module("torch._dynamo")  # optimizers import it: a second in each process that is forked here
        for name in asked.names:
            kept = sum(len(case.twins) for case in found)
            for row in rows.run(name, found, asked.results, asked.limit):
                kept -= 1
                print(name, *(row[k] for k in ("case", "twin", "crash", "seconds", "said")), sep="\t", flush=True)
            if kept:
                print(f"{kept} rows were there; to look again, delete {asked.results / name}.csv", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
