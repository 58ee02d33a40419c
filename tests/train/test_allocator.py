"""The allocator's thresholds."""

import platform

from isograd.machine import keep_freed_memory


def test_set_where_there_is_glibc() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
