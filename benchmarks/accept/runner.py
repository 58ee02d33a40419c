"""Runs the jobs that have not ended, a process per core, and measures every row whose jobs have.

FOLDER/
  jobs/NAME-KEY/     what a command has written: out/, stdout.txt, log.txt, and ended.json once it has ended
  rows/NAME.json     what a row's rule found, with date, commit, versions and hardware
  accept.html, accept.json

A job's key is made of the code, its command and the jobs that it reads, a row's of its jobs and of the table: what was
measured with the same key is not measured again. Killed at any moment, the same command goes on.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.accept import state
from benchmarks.accept.job import CPU
from benchmarks.accept.row import Job, Row, digest
from isograd.files import write_json

Result = dict[str, Any]  # a row as the page has it
ENDED = "ended.json"
RETRIES = 2  # of a job that fails: the process of a runner that was killed may still be ending
PAUSE = 0.2  # seconds between looks at the processes


@dataclass(kw_only=True)
class Desk:
    """What is to be run, and where.

    Args:
        folder: where everything is written.
        data: the folder of files that are not in the repository.
        say: called with a line for each thing that has ended.
        show: called with the names of the jobs under way and the minutes that are done.
    """

    folder: Path
    jobs: Mapping[str, Job]
    data: Path | None = None
    say: Callable[[str], None] = print
    show: Callable[[Sequence[str], float], None] = lambda names, minutes: None
    code: str = field(default_factory=state.code)
    about: dict[str, Any] = field(default_factory=state.now)

    def key(self, job: Job) -> str:
        versions = [self.about[name] for name in ("torch", "transformers", "python")]
        return digest(self.code, versions, job.command, [self.key(self.jobs[name]) for name in self.before(job)])

    def before(self, job: Job) -> list[str]:
        return job.after(frozenset(self.jobs))

    def home(self, job: Job) -> Path:
        return self.folder / "jobs" / f"{job.name}-{self.key(job)}"

    def ended(self, job: Job) -> dict[str, Any] | None:
        """Its exit code, seconds and date; None as long as it has not ended."""
        return _read(self.home(job) / ENDED)

    def lacks(self, job: Job) -> str | None:
        """Why it cannot run here."""
        for name in self.before(job):
            if lacking := self.lacks(self.jobs[name]):
                return lacking
        if not job.needs:
            return None
        if self.data is None:
            return f"needs --data FOLDER with {job.needs}"
        return None if any(self.data.glob(job.needs)) else f"{self.data} has no {job.needs}"

    def words(self, job: Job) -> list[str]:
        """The command, each place put in after it is taken apart: a folder's name may hold a blank."""
        homes = {name: str(self.home(self.jobs[name]) / "out") for name in self.before(job)}
        words = job.command.split()
        for name, place in ({"out": str(self.home(job) / "out"), "data": str(self.data)} | homes).items():
            words = [word.replace(f"{{{name}}}", place) for word in words]
        return words

    def row_key(self, row: Row) -> str:
        return digest(table_code(), self.code, [self.key(self.jobs[name]) for name in row.jobs])

    def kept(self, row: Row) -> Result | None:
        """What was found before, with the same code and the same table."""
        found = _read(self.folder / "rows" / f"{row.name}.json")
        return found if found and found.get("key") == self.row_key(row) else None

    def forget(self, rows: Sequence[Row]) -> None:
        """Remove what these rows and their jobs have written."""
        for row in rows:
            (self.folder / "rows" / f"{row.name}.json").unlink(missing_ok=True)
            for name in row.jobs:
                shutil.rmtree(self.home(self.jobs[name]), ignore_errors=True)


def table_code() -> str:
    """Of the table and of the files that its rules read beside the jobs' folders."""
    stored = sorted((state.ROOT / "docs/results").rglob("*.csv"))
    return digest([path.read_text(encoding="utf-8") for path in [*sorted(Path(__file__).parent.glob("*.py")), *stored]])


def run(rows: Sequence[Row], desk: Desk, at_once: int, on_row: Callable[[Result], None]) -> None:
    """Run what is missing and measure every row; `on_row` is called once for each, as soon as it is known."""
    before = {row.name: found for row in rows if (found := desk.kept(row))}
    for found in before.values():
        on_row(found)
    waiting = [row for row in rows if row.name not in before]
    todo = _todo(waiting, desk)
    pool: dict[str, _Process] = {}
    minutes = 0.0
    try:
        while waiting:
            waiting = [row for row in waiting if not _settled(row, desk, on_row, todo, pool)]
            while len(pool) < at_once and (job := _next(todo, desk, pool)):
                pool[job.name] = _Process(job, desk)
            desk.show(list(pool), minutes)
            time.sleep(PAUSE if pool else 0)
            for name, process in list(pool.items()):
                if process.over():
                    del pool[name], todo[name]
                    minutes += process.job.minutes
                    desk.say(process.told)
    finally:
        for process in pool.values():
            process.end()


def _todo(rows: Sequence[Row], desk: Desk) -> dict[str, Job]:
    """The jobs that rows need and that have not ended, those that they read included."""
    names = [name for row in rows for name in row.jobs]
    for name in names:  # grows while it is gone through
        names.extend(desk.before(desk.jobs[name]))
    jobs = {name: desk.jobs[name] for name in dict.fromkeys(names)}
    return {name: job for name, job in jobs.items() if not desk.ended(job) and not desk.lacks(job)}


def _next(todo: Mapping[str, Job], desk: Desk, pool: Mapping[str, Any]) -> Job | None:
    """The longest of those whose inputs are there: what is long begins early."""
    ready = [job for name, job in todo.items() if name not in pool and not any(one in todo for one in desk.before(job))]
    return max(ready, key=lambda job: job.minutes, default=None)


def _settled(
    row: Row, desk: Desk, on_row: Callable[[Result], None], todo: Mapping[str, Job], pool: Mapping[str, Any]
) -> bool:
    jobs = [desk.jobs[name] for name in row.jobs]
    lacking = next(filter(None, map(desk.lacks, jobs)), None)
    if not lacking and any(job.name in todo or job.name in pool for job in jobs):
        return False
    on_row(skipped(row, lacking) if lacking else measured(row, desk))
    return True


def skipped(row: Row, why: str) -> Result:
    return _about(row) | {"verdict": "skipped", "measured": why}


def measured(row: Row, desk: Desk) -> Result:
    """The row's result, kept in its file unless it could not be measured."""
    result = _about(row) | {"key": desk.row_key(row)} | _judged(row, desk) | _dated(row, desk)
    if result["verdict"] != "failed":
        (desk.folder / "rows").mkdir(parents=True, exist_ok=True)
        write_json(desk.folder / "rows" / f"{row.name}.json", result)
    return result


def _judged(row: Row, desk: Desk) -> Result:
    for job in (desk.jobs[name] for name in row.jobs):
        ended = desk.ended(job)
        if ended is None or ended["code"] not in job.codes:
            return {"verdict": "failed", "measured": f"{job.name} failed; see {desk.home(job) / 'log.txt'}"}
    try:
        found = row.measure({name: desk.home(desk.jobs[name]) / "out" for name in row.jobs})
    except Exception as error:  # a rule that cannot read what a command has written has found nothing
        traceback.print_exc()
        return {"verdict": "failed", "measured": f"{type(error).__name__}: {error}"}
    return {"verdict": "holds" if found.holds else "does not hold", "measured": found.said}


def _about(row: Row) -> Result:
    names = ("name", "page", "sentence", "rule", "n", "tier", "stored")
    return {name: getattr(row, name) for name in names} | {"jobs": list(row.jobs)}


def _dated(row: Row, desk: Desk) -> Result:
    """Of the last of its jobs; where there is none, now."""
    ended = [one for name in row.jobs if (one := desk.ended(desk.jobs[name]))]
    about = max((one["about"] for one in ended), key=lambda one: one["date"], default=desk.about)
    seconds = [one["cpu_seconds"] for one in ended if one["cpu_seconds"] is not None]
    return {"about": about, "cpu_seconds": sum(seconds) if len(seconds) == len(ended) else None}


class _Process:
    """A job under way."""

    def __init__(self, job: Job, desk: Desk) -> None:
        self.job, self.desk, self.left, self.begun = job, desk, RETRIES, time.time()
        self.home = desk.home(job)
        self._start()

    def _reap(self) -> None:
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()

    def over(self) -> bool:
        """Whether it has ended; one that failed is tried again."""
        code = self.process.poll()
        if code is None:
            return False
        self._reap()
        if code not in self.job.codes and self.left:
            self.left -= 1
            time.sleep(1)
            self._start()
            return False
        self._close(code)
        return True

    def end(self) -> None:
        self.process.kill()
        self._reap()

    def _start(self) -> None:
        (self.home / "out").mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": _path()}
        with (self.home / "log.txt").open("a") as log, (self.home / "stdout.txt").open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.accept.job", str(self.home), *self.desk.words(self.job)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
                env=environment,
                cwd=state.ROOT,
            )

    def _close(self, code: int) -> None:
        cpu = self.home / CPU
        seconds = float(cpu.read_text()) if cpu.exists() else None
        told = {"code": code, "seconds": round(time.time() - self.begun, 1), "cpu_seconds": seconds}
        if code in self.job.codes:
            write_json(self.home / ENDED, told | {"about": self.desk.about | {"date": time.strftime("%Y-%m-%d %H:%M")}})
            for old in self.home.parent.glob(f"{self.job.name}-{'?' * 10}"):  # measured with other code
                if old != self.home:
                    shutil.rmtree(old, ignore_errors=True)
        said = "done" if code in self.job.codes else f"failed (exit code {code}; see {self.home / 'log.txt'})"
        self.told = f"{self.job.name}: {said}, {told['seconds']:.0f} s"


def _path() -> str:
    """This checkout, before whatever is installed."""
    return os.pathsep.join(filter(None, [str(state.ROOT), os.environ.get("PYTHONPATH", "")]))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
