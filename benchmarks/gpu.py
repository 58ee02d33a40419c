"""What one GPU takes: steps, memory, decoding, small runs side by side, checks; in parts of at most ten minutes.

    python benchmarks/gpu.py --out gpu                    all parts, some thirty minutes; what is there is not run again
    python benchmarks/gpu.py --out gpu --part decode      one part; --list names them
    python benchmarks/gpu.py --out gpu --minutes 9        stops before a job that would not end in time
    python benchmarks/gpu.py --out gpu --wheels wheels    with packages that the machine lacks, from a folder
    python benchmarks/gpu.py --out tiny --tiny            does it run? Tiny shapes, on the CPU

A job is one measurement in a process of its own (`gpu_jobs.py`), so that its memory is its own and an error ends it
alone. Its result is a line of OUT/gpu.jsonl under the key of what it depends on: the job, the device, versions, and
the sources that it runs. A second run does the jobs whose key is not there, or whose line is an error. `--before FILE`
reads lines of an earlier machine's OUT first. OUT/gpu.md is written after each job.

The folder of wheels, made where there is an index:
    pip download -d wheels --only-binary :all: --no-deps --python-version 3.12 --platform manylinux2014_x86_64 \\
        accelerate jsonargparse rich x-transformers einops einx loguru ...
Only what the machine lacks is installed, without dependencies of its own, below OUT/site: torch stays as it is.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_jobs import PARTS, Job, device_facts, jobs_of

HERE = Path(__file__).parent
ROOT = HERE.parent
PACKAGES = ("torch", "transformers", "x-transformers")
Row = dict[str, Any]


def installed_from(wheels: Path, site: Path) -> list[str]:
    """Install what of these wheels this Python lacks, without an index; the names."""
    lacking = [path for path in sorted(wheels.glob("*.whl")) if not _has(path.name.split("-")[0])]
    if lacking:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
        subprocess.run([*command, *map(str, lacking)], check=True)
    return [path.name.split("-")[0] for path in lacking]


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
    sources = [HERE / "gpu_jobs.py", *(ROOT / "examples").glob("gpt.py")]
    if job.runs_isograd:
        sources += sorted((ROOT / "isograd").rglob("*.py"))
    digest = hashlib.sha256(json.dumps([job.as_dict(), facts], sort_keys=True).encode())
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def read(paths: Sequence[Path]) -> dict[str, Row]:
    """Key -> its last line."""
    rows = [json.loads(line) for path in paths if path.is_file() for line in path.read_text().splitlines()]
    return {row["key"]: row for row in rows}


def ran(job: Job, key: str, environment: Mapping[str, str]) -> Row:
    """The line of a job, an error included."""
    began = time.perf_counter()
    row: Row = {"key": key, "part": job.part, "job": job.as_dict()}
    command = [sys.executable, str(HERE / "gpu_jobs.py"), json.dumps(job.as_dict())]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=job.seconds, env=dict(environment), check=False, cwd=ROOT
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode == 0 and lines:
            row["result"] = json.loads(lines[-1])
        else:
            row["error"] = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:500]
    except subprocess.TimeoutExpired:
        row["error"] = f"not done in {job.seconds} s"
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def todo(chosen: Sequence[Job], there: Mapping[str, Row], facts: Mapping[str, Any]) -> Iterator[tuple[Job, str]]:
    """Jobs without a result, with their keys."""
    for job in chosen:
        key = key_of(job, facts)
        if "result" not in there.get(key, {}):
            yield job, key


def page(chosen: Sequence[Job], there: Mapping[str, Row], facts: Mapping[str, Any]) -> str:
    """A table per part; what is missing is called so."""
    lines = ["# One GPU", "", ", ".join(f"{name} {value}" for name, value in facts.items()) + "."]
    for part in dict.fromkeys(job.part for job in chosen):
        jobs = [job for job in chosen if job.part == part]
        rows = [there.get(key_of(job, facts), {}) for job in jobs]
        columns = list(dict.fromkeys(name for row in rows for name in row.get("result", {}))) or ["result"]
        lines += ["", f"## {part}", "", f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
        for job, row in zip(jobs, rows, strict=True):
            result = row.get("result")
            said = row.get("error", "not measured") if result is None else ""
            cells = [said, *[""] * (len(columns) - 1)] if result is None else [_shown(result.get(c)) for c in columns]
            lines.append(f"| {job.label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder of the results (default: gpu)")
    parser.add_argument("--before", type=Path, help="gpu.jsonl of an earlier run")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--minutes", type=float, help="begin no job that may end later")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, on the CPU where there is no GPU")
    parser.add_argument("--list", action="store_true", help="parts and jobs with the seconds each may take")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    chosen = [job for part in options.part for job in jobs_of(part, options.tiny)]
    if options.list:
        for part in options.part:
            jobs = [job for job in chosen if job.part == part]
            print(f"{part}: {len(jobs)} jobs, about {sum(job.about for job in jobs) / 60:.1f} min")
            print("\n".join(f"  {job.label}" for job in jobs))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(options.out / "site"), str(ROOT)))}
    if options.wheels:
        print("installed:", ", ".join(installed_from(options.wheels, options.out / "site")) or "nothing was lacking")
        sys.path.insert(0, str(options.out / "site"))
    facts = device_facts() | versions()
    if facts["device"] == "cpu" and not options.tiny:
        print("no GPU here; --tiny runs tiny shapes on the CPU", file=sys.stderr)
        return 2
    file, began = options.out / "gpu.jsonl", time.perf_counter()
    every = [job for part in PARTS for job in jobs_of(part, options.tiny)]
    there = read([path for path in (options.before, file) if path])
    for job, key in list(todo(chosen, there, facts)):
        left = float("inf") if options.minutes is None else 60 * options.minutes - (time.perf_counter() - began)
        if job.about > left:
            print(f"left for the next run: {job.part}, {job.label}")
            continue
        there[key] = ran(job, key, environment)
        with file.open("a") as lines:
            lines.write(json.dumps(there[key]) + "\n")
        (options.out / "gpu.md").write_text(page(every, there, facts))
        print(f"{job.part}, {job.label}: {there[key].get('error') or there[key]['result']}", flush=True)
    (options.out / "gpu.md").write_text(page(every, there, facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
