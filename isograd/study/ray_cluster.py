"""The connection to a Ray cluster: found or started, silent, and ended again."""

import os
import secrets
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from isograd.errors import RecipeError
from isograd.study.workers import cores

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
