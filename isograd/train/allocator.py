"""Memory that a training frees is kept for its next step.

glibc gives large blocks back to the system and faults them in again at every step: tens of thousands of page faults.
With its thresholds raised a step's system time falls from 34 to 0 ms (docs/performance.md). It holds for the whole
process, so the commands set it, and the library never does by itself.
"""

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def keep_freed_memory() -> bool:
    """Raise both thresholds of glibc's malloc in this process; False where there is no glibc."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 30) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
