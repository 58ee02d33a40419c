"""This machine, as far as it is known without torch: its processor, its cores, where caches lie, what is installed."""

import ctypes
import gc
import json
import math
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from shutil import which
from subprocess import DEVNULL, SubprocessError, check_output

from isograd.errors import UserError


def processor() -> str:
    """The processor's own name where the system tells it, with its family and model: several generations share a name.

    "AMD EPYC, family 25, model 1" is a Zen 3.
    """
    name = _told("model name") or platform.processor() or platform.machine()
    return ", ".join(
        [name, *(f"{word.split()[-1]} {said}" for word in ("cpu family", "model") if (said := _told(word)))]
    )


def computes_bf16() -> bool | None:
    """Whether the processor multiplies bfloat16 itself; None where the system does not tell."""
    flags = (_told("flags") or _told("Features")).split()  # x86, ARM
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & {*flags}) if flags else None


def _told(name: str) -> str:
    """What Linux says of the first core, "" where it says nothing."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pin(to: Sequence[int]) -> None:
    """This process, and those that it starts, run on these cores alone.

    Raises:
        UserError: no such core here, or a system that pins no process.
    """
    try:
        os.sched_setaffinity(0, to)
    except (AttributeError, OSError):
        said = ", ".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else "none"
        raise UserError(f"--cores {' '.join(map(str, to))}: this process may be pinned to {said}") from None


def free_memory() -> float:
    """Bytes that are free, and no more than a container may use."""
    import psutil

    return min(psutil.virtual_memory().available, memory_limit())


def memory_limit() -> float:
    """Bytes that a container may use (Linux, control groups of version 2); infinite where there is no limit."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return int(text) if text.isdecimal() else math.inf


def quota() -> float | None:
    """Cores' worth of time that a container may use; None where there is no limit, or none is told."""
    file = Path("/sys/fs/cgroup/cpu.max")
    try:
        most, period = file.read_text(encoding="utf-8").split()
        return None if most == "max" else int(most) / int(period)
    except (OSError, ValueError):
        return None


def load() -> float | None:
    """Processes at work or waiting for a core, over the last minute; None where the system does not count them."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or which("nvidia-smi") is not None


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/isograd, or ~/.cache/isograd."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isograd"


def commit() -> str:
    """What was built or installed: `git archive` writes it down, else git or pip knows it; "" where none does."""
    root = Path(__file__).parent
    written = (root / "commit.txt").read_text(encoding="utf-8").strip()
    if not written.startswith("$"):
        return written
    if (root.parent / ".git").exists():
        command = ["git", "-C", str(root.parent), "describe", "--always", "--abbrev=7", "--dirty", "--exclude=*"]
        try:
            return check_output(command, stderr=DEVNULL, text=True).strip()
        except (OSError, SubprocessError):
            return ""
    return _installed_from()


def _installed_from() -> str:
    """The commit that `pip install git+URL` has noted (PEP 610)."""
    try:
        noted = distribution("isograd").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    return str(json.loads(noted or "{}").get("vcs_info", {}).get("commit_id", ""))[:7]


@contextmanager
def few_collections() -> Iterator[None]:
    """Garbage is looked for seldom: imports make hardly any, and a fifth of their time went into going through them."""
    before = gc.get_threshold()
    gc.set_threshold(max(50_000, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def keep_freed_memory() -> bool:
    """Raise both thresholds of glibc's malloc in this process; False where there is no glibc.

    It gives large blocks back to the system and faults them in again at every step. With its thresholds raised a
    step's system time falls from 34 to 0 ms (docs/performance.md). It holds for the whole process, so the commands set
    it, and the library never does by itself.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 30) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
