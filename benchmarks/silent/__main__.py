"""`silent`: faults of Transformer training that raise no error. README.md says how to run it, and how to add to it.

    python -m benchmarks.silent list
    python -m benchmarks.silent prove [CASE ..]
    python -m benchmarks.silent run TOOL [..] [--part open] [--only TEXT]
    python -m benchmarks.silent judge TOOL [..] [--form FILE] [--take FILE]
    python -m benchmarks.silent table
"""

import argparse
import sys
from pathlib import Path

from . import rows, table
from .cases import FOLDER, Case, cases, problems, proved


def listed(found: list[Case]) -> None:
    for case in found:
        kind = "oddity" if case.oddity else "held out" if case.held_out else "open"
        title = (case.path.read_text(encoding="utf-8").partition('"""')[2]).partition("\n")[0]
        print(f"{case.name:32} {case.about['class']:12} {case.about['shows']:6} {kind:9} {title}")
    faults = [case for case in found if not case.oddity]
    print(f"{len(faults)} faults ({sum(case.held_out for case in faults)} held out), {len(found) - len(faults)} oddities")


def prove(found: list[Case]) -> int:
    wrong = 0
    for case in found:
        lines = problems(case)
        if not lines:
            for twin, number, (low, high) in proved(case):
                print(f"{case.name:32} {twin:8} {number:12.6g} in {low:g} .. {high:g}", flush=True)
                if not low <= number <= high:
                    lines.append(f"{twin}: {number:g} is not in {low:g} .. {high:g} ({case.about['number']})")
        for line in lines:
            print(f"{case.name}: {line}", file=sys.stderr)
        wrong += bool(lines)
    print(f"{len(found) - wrong} of {len(found)} cases are as they should be")
    return int(wrong > 0)


def judge(names: list[str], found: list[Case], form: Path | None, taken: Path | None, folder: Path) -> None:
    if taken:
        print(f"{rows.take(rows.read(taken), names, found, folder)} new verdicts in {folder / 'judged.csv'}")
        return
    path = form or Path("to-judge.csv")
    open_rows = rows.to_judge(names, found, folder)
    rows.write(path, ("hash", "case", "cause", "said", "named"), open_rows)
    print(f"{len(open_rows)} to judge in {path}: fill in named (yes or no), then judge --take {path}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.silent", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("list", "prove", "run", "judge", "table"))
    parser.add_argument("names", nargs="*", help="cases to prove, tools to run or to judge")
    parser.add_argument("--part", choices=("all", "open", "held-out"), default="all")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--limit", type=float, default=rows.LIMIT, help="seconds of one look")
    parser.add_argument("--cases", type=Path, default=FOLDER, help="a folder of cases")
    parser.add_argument("--results", type=Path, default=rows.RESULTS, help="a folder of tables")
    parser.add_argument("--form", type=Path, help="where the form to fill in is written")
    parser.add_argument("--take", type=Path, help="a form that is filled in")
    asked = parser.parse_args()
    found = cases(asked.cases, asked.only, asked.part)
    if asked.what == "list":
        listed(found)
    elif asked.what == "prove":
        return prove([case for case in found if not asked.names or case.name in asked.names])
    elif asked.what == "table":
        named = sorted(path.stem for path in asked.results.glob("*.csv") if path.stem != "judged")
        text, first = table.page(found, named, asked.results)
        (asked.results.parent / "silent.md").write_text(text, encoding="utf-8") if text else None
        front = rows.ROOT / "docs" / "silent.md"
        if asked.results == rows.RESULTS:
            front.write_text(table.into(front.read_text(encoding="utf-8"), first), encoding="utf-8")
        print(text or "no rows")
    else:
        from .tools import TOOLS

        if unknown := set(asked.names) - TOOLS.keys() or (not asked.names and {"none"}):
            parser.error(f"no tool {', '.join(sorted(unknown))}; tools: {', '.join(TOOLS)}")
        if asked.what == "judge":
            judge(asked.names, found, asked.form, asked.take, asked.results)
            return 0
        for name in asked.names:
            for row in rows.run(name, found, asked.results, asked.limit):
                print(name, *(row[k] for k in ("case", "twin", "alarm", "crash", "seconds", "said")), sep="\t", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
