"""The engine of several machines: each job is a Ray task, and Ray says where and when it trains.

Where a worker sees the study's folder, it trains there, as a local one does. Where it does not, it trains in a folder
of its own machine, and the files come back with the outcome.
"""

import hashlib
import json
import math
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from isograd.errors import RecipeError
from isograd.files import write_bytes
from isograd.lab.study.engine.jobs import Engine, Job, OnEnd, OnStep, attempt, prepare, write_failed
from isograd.lab.train.train import ended
from isograd.lab.train.validation import WEIGHTS
from isograd.machine import cores
from isograd.outcome import ENDED
from isograd.placement import Placement

Files = dict[str, bytes]

LEFT = ("checkpoints", WEIGHTS)  # what stays on the machine that trained


def on_ray(address: str | None = None, threads: int = 1, gpus: float | None = None, retries: int = 2) -> Engine:
    """The engine of a Ray cluster. The numbers are those of `workers.local` with as many threads.

    Args:
        address: "ray://HOST:10001"; "auto", the cluster that this machine belongs to; None starts one on this machine,
            and ends it with the study.
        threads: CPUs of a job.
        gpus: GPUs of a job, also a fraction; None: one where the cluster has any.
        retries: how often a job is tried again whose process or machine died; it goes on from its last checkpoint
            where that can be seen.

    Raises:
        RecipeError: Ray is not installed, or no such kind of address; when it trains, a cluster that no job fits into.
        ConnectionError: when it trains, no cluster at that address.
    """
    imported()
    if address not in (None, "auto") and not str(address).startswith("ray://"):  # Ray would look for long, and aloud
        raise RecipeError(f"the address of a Ray cluster is ray://HOST:PORT, or auto, not {address!r}")
    return partial(in_cluster, address=address, threads=threads, gpus=gpus, retries=retries)


def in_cluster(
    jobs: Mapping[int, Job],
    on_step: OnStep,
    on_end: OnEnd,
    *,
    address: str | None,
    threads: int,
    gpus: float | None,
    retries: int,
) -> None:
    """Train every job on the cluster at `address`; both callbacks run in this process."""
    if not jobs:
        return
    ray = imported()
    jobs = {index: (run, folder.absolute()) for index, (run, folder) in jobs.items()}
    with connected(ray, address, retries), _tokens(folder for _, folder in jobs.values()) as tokens:
        gpus = gpus_of(ray, threads, gpus)
        task = ray.remote(_task).options(num_cpus=threads, num_gpus=gpus, max_retries=retries)
        steps = _Steps(jobs)
        running = {}
        try:
            for index, (run, folder) in jobs.items():
                here = (tokens[folder.parent], socket.gethostname(), Path.cwd())
                running[task.remote(run.entry(), (run, folder), threads, gpus, *here)] = index
            while running:
                done, _ = ray.wait(list(running), timeout=1)
                steps.tell(running.values(), on_step)
                for reference in done:
                    index = running.pop(reference)
                    on_end(index, _received(ray, reference, jobs[index]))
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def _task(
    placement: Placement | None, job: Job, threads: int, gpus: float, token: Path, host: str, cwd: Path
) -> tuple[dict[str, Any], Files | None]:
    """On the worker: the outcome, and the files of a run that was trained out of the study's sight."""
    prepare(threads)
    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides the GPUs of others from those alone who have one
    with suppress(OSError):
        os.chdir(cwd)  # paths in the recipe count from there
    if token.exists():
        return attempt(placement, job), None
    run, folder = job
    own = _own_folder(f"{host}:{folder}")
    outcome = attempt(placement, (run, own))
    if not (own / "outcome.json").exists():  # another process is at work there, or another run lives there
        return outcome, None
    files = _files(own)
    if outcome["outcome"] in ENDED:
        shutil.rmtree(own, ignore_errors=True)
    return outcome, files


def _own_folder(name: str) -> Path:
    """The same whenever this job is tried on this machine, so that it goes on there."""
    return Path(tempfile.gettempdir()) / f"isograd-{hashlib.sha256(name.encode()).hexdigest()[:20]}"


def _files(folder: Path) -> Files:
    found = (p for p in sorted(folder.rglob("*")) if p.is_file())
    names = {p: p.relative_to(folder) for p in found}
    return {name.as_posix(): p.read_bytes() for p, name in names.items() if name.parts[0] not in LEFT}


def _received(ray: Any, reference: Any, job: Job) -> dict[str, Any]:
    """The outcome of a task that has ended in whatever way, its files written here if they came along."""
    try:
        outcome, files = ray.get(reference)
        if files is not None:
            _write(job, files)
    except ray.exceptions.RayError as error:
        return write_failed(job, _said(ray, error))
    except FileExistsError as error:  # the folder is not this job's; nothing is written there
        return {"outcome": "failed", "error": str(error)}
    return outcome


def _said(ray: Any, error: Exception) -> str:
    """One line of what Ray says in many."""
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return "the process that trained it died; start again to go on"
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines() or [""]
    return f"{type(cause).__name__}: {lines[0].strip()}"


def _write(job: Job, files: Files) -> None:
    """outcome.json last: until it is there, the run has not ended, and is trained again."""
    run, folder = job
    ended(run, folder)  # raises if another run lives there
    shutil.rmtree(folder, ignore_errors=True)
    for name in sorted(files, key=lambda name: name == "outcome.json"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, files[name])


@contextmanager
def _tokens(folders: Iterable[Path]) -> Iterator[dict[Path, Path]]:
    """A file beside the folders of the jobs: a worker that sees it sees them, and not others of the same name."""
    with ExitStack() as stack:
        tokens = {}
        for parent in {folder.parent for folder in folders}:
            parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(tempfile.NamedTemporaryFile(dir=parent, prefix=".seen-"))
            tokens[parent] = Path(file.name)
        yield tokens


class _Steps:
    """How far the jobs are, by the last rows of their logs."""

    def __init__(self, jobs: Mapping[int, Job]) -> None:
        self.logs = {index: folder / "metrics.jsonl" for index, (_, folder) in jobs.items()}
        self.told = {index: _last_row(log) for index, log in self.logs.items()}  # of an earlier attempt

    def tell(self, indices: Iterable[int], on_step: OnStep) -> None:
        for index in indices:
            row = _last_row(self.logs[index])
            if row is not None and row != self.told[index]:
                self.told[index] = row
                on_step(index, row["step"], math.nan if row["loss"] is None else row["loss"])


def _last_row(log: Path) -> dict[str, Any] | None:
    """The last row whose line has ended."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 2048))
            row = json.loads(file.read().split(b"\n")[-2])
    except (OSError, ValueError, IndexError):
        return None
    return row if isinstance(row, dict) and {"step", "loss"} <= row.keys() else None


STORE = 100 * 2**20  # bytes of a local cluster's object store; outcomes are small


def imported() -> Any:
    """The package.

    Raises:
        RecipeError: it is not installed.
    """
    try:
        with _environment(RAY_DEDUP_LOGS_SKIP_REGEX="^"):  # it would print on stdout that a worker died
            import ray
    except ImportError as error:
        raise RecipeError(f"the Ray engine needs {error.name}; pip install 'isograd[ray]'") from error
    return ray


@contextmanager
def connected(ray: Any, address: str | None, retries: int) -> Iterator[None]:
    """Connected as `on_ray` says, or within the caller's connection; what was begun here is ended.

    Raises:
        ConnectionError: no cluster answers.
    """
    if ray.is_initialized():
        yield
        return
    with _environment(RAY_USAGE_STATS_ENABLED="0", RAY_task_oom_retries=str(retries)), _own_sigterm():
        _connect(ray, address)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            size = {"num_cpus": cores(), "object_store_memory": STORE, "include_dashboard": False}
            with _environment(RAY_AUTH_TOKEN=os.environ.get("RAY_AUTH_TOKEN") or _token()):
                ray.init(address="local", **quiet, **size)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the error says it, too
                ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ConnectionError(f"Ray at {address or 'this machine'}: {said}") from error


@cache
def _token() -> str:
    """What a local cluster's processes know each other by, one for this process; Ray would leave one in the home."""
    return secrets.token_hex(32)


def gpus_of(ray: Any, threads: int, gpus: float | None) -> float:
    """GPUs of a job, `gpus` or what None means here.

    Raises:
        RecipeError: no machine of the cluster has a job's share; it would wait for ever.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if gpus is None:
        gpus = 1 if any(node.get("GPU") for node in nodes) else 0
    if not any(node.get("CPU", 0) >= threads and node.get("GPU", 0) >= gpus for node in nodes):
        raise RecipeError(f"no machine of the cluster has {threads} CPUs and {gpus:g} GPUs, which is one job's share")
    return gpus


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Ray reads some settings from there alone."""
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray takes SIGTERM for itself; the command line's own handling stays."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
