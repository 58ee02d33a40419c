"""This machine, as far as it is known without torch: its processor, its cores, where caches lie."""

import os
import platform
from pathlib import Path
from shutil import which


def processor() -> str:
    """The processor's own name where the system tells it."""
    return _told("model name") or platform.processor() or platform.machine()


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
