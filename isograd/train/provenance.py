"""Which versions, on which machine."""

import platform
from pathlib import Path
from typing import Any

import torch
import transformers

import isograd


def provenance() -> dict[str, Any]:
    """Versions and hardware."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "isograd": isograd.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "device": gpu or f"{processor()}, {torch.get_num_threads()} threads",
        "system": platform.system(),
    }


def processor() -> str:
    """The processor's own name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
