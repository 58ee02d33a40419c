"""Which versions, on which machine."""

import platform
from typing import Any

import torch
import transformers

import isograd
from isograd.hub import remote_code_is_trusted
from isograd.machine import processor


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
        **({"trust_remote_code": True} if remote_code_is_trusted() else {}),
    }
