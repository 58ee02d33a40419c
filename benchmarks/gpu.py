"""What one GPU takes: steps, memory, decoding, small runs side by side, checks; in parts of at most ten minutes.

    python benchmarks/gpu.py --out gpu                    all parts, some 40 minutes; what is there is not run again
    python benchmarks/gpu.py --out gpu --part decode      one part; --list names them
    python benchmarks/gpu.py --out gpu --minutes 9        begins no job that may end later: four times 9 are enough
    python benchmarks/gpu.py --lacking                    the packages that this Python lacks for it
    python benchmarks/gpu.py --out gpu --wheels wheels    with those, from a folder
    python benchmarks/gpu.py --out gpu --page FILE        a page of OUT/gpu.jsonl, on any machine; nothing is run
    python benchmarks/gpu.py --out tiny --tiny            does it run? Tiny shapes, on the CPU

A job is one measurement in a process of its own (`gpu_jobs.py`), so that its memory is its own and an error ends it
alone. Its result is a line of OUT/gpu.jsonl under the key of what it depends on: the job, the device, versions, and
the sources that it runs. A second run does the jobs whose key is not there, or whose line is an error. `--before FILE`
begins with the lines of an earlier machine's OUT. OUT/gpu.md, the tables, is written after each job, and what a job
said beside its result goes to OUT/gpu.log.

The folder of wheels, made where there is an index, for a machine with torch, transformers, accelerate, scipy, rich,
einops and pytest (0.6 MB, all of them for any platform):
    pip download -d wheels --no-deps --only-binary :all: --python-version 3.12 \\
        jsonargparse x-transformers einx frozendict loguru torch-einops-utils
Only what the machine lacks is installed, without dependencies of its own, in a folder that goes with the run: torch
stays as it is.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from gpu_jobs import PARTS, Job, device_facts, jobs_of

HERE = Path(__file__).parent
ROOT = HERE.parent
PACKAGES = ("torch", "transformers", "x-transformers")
BESIDE_OURS = ("pytest", "x-transformers", "einops", "einx", "frozendict", "loguru", "torch-einops-utils")
LOGGED = 20_000  # characters of what a job said
MOST = {"small": "updates/s", "study": "cells/h"}  # what the ways of a part are compared by
Row = dict[str, Any]
Rows = Mapping[tuple[str, str], Row]  # of each job: its part and label


def lacking() -> list[str]:
    """The distributions that isograd and the jobs need and this Python has not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["lab"]]
    ours = [re.split(r"[^\w-]", said)[0] for said in needed]
    return [name for name in (*ours, *BESIDE_OURS) if not _has(name)]


def installed_from(wheels: Path, site: Path) -> list[str]:
    """Install what of these wheels this Python lacks, without an index; the names."""
    wanted = [path for path in sorted(wheels.glob("*.whl")) if not _has(path.name.split("-")[0])]
    if wanted:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
        subprocess.run([*command, *map(str, wanted)], check=True)
    return [path.name.split("-")[0] for path in wanted]


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) if _has(name) else "absent" for name in PACKAGES}


def key_of(job: Job, facts: Mapping[str, Any]) -> str:
    """Of all that a result depends on."""
    sources = [HERE / "gpu_jobs.py", HERE / "contestants.py", *(ROOT / "examples").glob("gpt.py")]
    if job.kind == "small":
        sources += [HERE / "gpu_small.py", HERE / "stacks.py"]
    if job.kind == "tests":
        sources += sorted((ROOT / "tests" / "train").glob("*.py"))
    digest = hashlib.sha256(json.dumps([job.as_dict(), dict(facts)], sort_keys=True).encode())
    for path in (*sources, *(_of_isograd() if job.runs_isograd else ())):
        digest.update(_content(path))
    return digest.hexdigest()[:16]


@cache
def _of_isograd() -> tuple[Path, ...]:
    return tuple(sorted(path for path in (ROOT / "isograd").rglob("*") if path.suffix in (".py", ".yaml")))


@cache
def _content(path: Path) -> bytes:
    """A digest; read once, since a page asks for the key of every job."""
    return hashlib.sha256(path.read_bytes()).digest()


def read(paths: Sequence[Path]) -> dict[str, Row]:
    """Key -> its last line."""
    rows = [json.loads(line) for path in paths if path.is_file() for line in path.read_text().splitlines()]
    return {row["key"]: row for row in rows}


def ran(
    job: Job,
    key: str,
    facts: Mapping[str, Any],
    environment: Mapping[str, str],
    log: TextIO,
    left: float = float("inf"),
) -> Row:
    """The line of a job, an error included; what it said goes to the log. It ends half a minute after `left`."""
    began = time.perf_counter()
    row: Row = {"key": key, "part": job.part, "job": job.as_dict(), "facts": dict(facts)}
    command = [sys.executable, str(HERE / "gpu_jobs.py"), json.dumps(job.as_dict())]
    limit = min(job.seconds, left + 30)
    code, out, said = output_of(command, environment, limit)
    if code == 0 and out.strip():
        row["result"] = json.loads(out.strip().splitlines()[-1])
        said += row["result"].pop("log", "")
    elif code is None:
        row["error"] = f"not done in {limit:.0f} s"
    else:
        row["error"] = (said.strip().splitlines() or [f"exit code {code}"])[-1][:500]
    log.write(f"== {job.part}, {job.label}: exit code {code}\n{said[-LOGGED:]}\n")
    log.flush()
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def output_of(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int | None, str, str]:
    """Exit code (None: ended after so many seconds, with all that it had started), stdout and stderr."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, stdout=out, stderr=said, env=dict(environment), cwd=ROOT, start_new_session=True
        )
        code: int | None = None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # which lets it end the services that it began
            _wait(process, 10)
        finally:
            _end_group(process)
        out.seek(0)
        said.seek(0)
        return code, out.read(), said.read()


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Whatever of its session is left, which would share the device with the next job."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def todo(chosen: Sequence[Job], there: Mapping[str, Row], facts: Mapping[str, Any]) -> Iterator[tuple[Job, str]]:
    """Jobs without a result, with their keys."""
    for job in chosen:
        key = key_of(job, facts)
        if "result" not in there.get(key, {}):
            yield job, key


def rows_of(jobs: Sequence[Job], there: Mapping[str, Row], facts: Mapping[str, Any]) -> Rows:
    return {(job.part, job.label): row for job in jobs if (row := there.get(key_of(job, facts)))}


def page(jobs: Sequence[Job], rows: Rows, facts: Mapping[str, Any]) -> str:
    """What is asked for, and a table per part; what is missing is called so."""
    lines = ["# One GPU", "", ", ".join(f"{name} {value}" for name, value in facts.items()) + ".", "", *asked(rows)]
    for part in dict.fromkeys(job.part for job in jobs):
        labels = [job.label for job in jobs if job.part == part]
        found = {label: rows.get((part, label), {}) for label in labels}
        results = {label: row["result"] for label, row in found.items() if "result" in row}
        columns = list(dict.fromkeys(name for result in results.values() for name in result)) or ["result"]
        lines += ["", f"## {part}", "", f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
        for label, row in found.items():
            said = [row.get("error", "not measured"), *[""] * (len(columns) - 1)]
            cells = [_shown(results[label].get(c)) for c in columns] if label in results else said
            lines.append(f"| {label} | {' | '.join(cells)} |")
        column = MOST.get(part, "")
        if ways := {label: result[column] for label, result in results.items() if column in result}:
            best = max(ways, key=lambda label: ways[label])
            lines += ["", f"Most {column}: {best}, {_shown(float(ways[best]))}."]
    return "\n".join(lines) + "\n"


def asked(rows: Rows) -> list[str]:
    """A table of the targets: what is measured, and whether it holds."""

    def value(part: str, label: str, column: str) -> float | None:
        found: float | None = rows.get((part, label), {}).get("result", {}).get(column)
        return found

    def over(one: str, other: str, how: str) -> float | None:
        a, b = (value("step-125m", f"{name}, {how}", "ms") for name in (one, other))
        return None if a is None or b is None else a / b

    targets = [  # none of them more than, save the first
        ("MFU of pre-ln at 125M, compiled", value("step-125m", "isograd pre-ln, compiled", "MFU"), 0.5),
        ("step of normformer over pre-ln, compiled", over("isograd normformer", "isograd pre-ln", "compiled"), 1.02),
        ("step of pre-ln over nanoGPT's, compiled", over("isograd pre-ln", "nanogpt", "compiled"), 1.0),
        ("step of pre-ln over nanoGPT's, eager", over("isograd pre-ln", "nanogpt", "eager"), 1.0),
        ("watched step over plain", value("overhead", "watch", "ratio"), 1.01),
    ]
    lines = ["| asked | measured | bound | |", "|---|---|---|---|"]
    for i, (name, measured, bound) in enumerate(targets):
        holds = measured is not None and (measured <= bound if i else measured >= bound)
        said = "not measured" if measured is None else "holds" if holds else "does not hold"
        number = "" if measured is None else f"{measured:.3f}"
        lines.append(f"| {name} | {number} | {'at most' if i else 'at least'} {bound} | {said} |")
    return lines


def page_of_file(jobs: Sequence[Job], file: Path) -> str:
    """Of the last line of each job in a file, under the facts of the last of all."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return page(jobs, {(row["part"], row["job"]["label"]): row for row in lines}, lines[-1]["facts"])


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder of the results (default: gpu)")
    parser.add_argument("--before", type=Path, help="gpu.jsonl of an earlier run, copied where OUT has none")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--minutes", type=float, help="begin no job that may end later")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--lacking", action="store_true", help="the packages that this Python lacks, one a line")
    parser.add_argument("--page", type=Path, help="write this file from OUT/gpu.jsonl, and run nothing")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, on the CPU where there is no GPU")
    parser.add_argument("--list", action="store_true", help="parts and jobs with the seconds each may take")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    chosen = [job for part in options.part for job in jobs_of(part, options.tiny)]
    if options.list:
        print_jobs(options.part, chosen)
        return 0
    if options.lacking:
        print("\n".join(lacking()))
        return 0
    if options.page:
        every = [job for part in PARTS for job in jobs_of(part, options.tiny)]
        options.page.write_text(page_of_file(every, options.out / "gpu.jsonl"))
        return 0
    with ExitStack() as stack:
        site = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.wheels:
            print("installed:", ", ".join(installed_from(options.wheels, site)) or "nothing was lacking")
            sys.path.insert(0, str(site))
        if names := lacking():
            print(f"lacking here: {', '.join(names)}", file=sys.stderr)
        facts = device_facts() | versions()
        if facts["device"] == "cpu" and not options.tiny:
            print("no GPU here; --tiny runs tiny shapes on the CPU", file=sys.stderr)
            return 2
        measure(
            options,
            chosen,
            facts,
            os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))},
        )
    return 0


def print_jobs(parts: Sequence[str], chosen: Sequence[Job]) -> None:
    for part in parts:
        jobs = [job for job in chosen if job.part == part]
        print(f"{part}: {len(jobs)} jobs, about {sum(job.about for job in jobs) / 60:.1f} min")
        print("\n".join(f"  {job.label}" for job in jobs))


def measure(
    options: argparse.Namespace, chosen: Sequence[Job], facts: Mapping[str, Any], environment: Mapping[str, str]
) -> None:
    """The chosen jobs that have no result yet and whose time is there; the files after each."""
    options.out.mkdir(parents=True, exist_ok=True)
    file, began = options.out / "gpu.jsonl", time.perf_counter()
    every = [job for part in PARTS for job in jobs_of(part, options.tiny)]
    if options.before and options.before.is_file() and not file.exists():
        shutil.copyfile(options.before, file)
    there = read([file])
    with (options.out / "gpu.log").open("a") as log:
        for job, key in list(todo(chosen, there, facts)):
            left = float("inf") if options.minutes is None else 60 * options.minutes - (time.perf_counter() - began)
            if job.about > left:
                print(f"left for the next run: {job.part}, {job.label}")
                continue
            there[key] = ran(job, key, facts, environment, log, left)
            with file.open("a") as lines:
                lines.write(json.dumps(there[key]) + "\n")
            (options.out / "gpu.md").write_text(page(every, rows_of(every, there, facts), facts))
            print(f"{job.part}, {job.label}: {there[key].get('error') or there[key]['result']}", flush=True)
    (options.out / "gpu.md").write_text(page(every, rows_of(every, there, facts), facts))


if __name__ == "__main__":
    sys.exit(main())
