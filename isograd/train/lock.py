"""One process at a time in the folder of a run or of a comparison."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has none; two at once are the user's to avoid there
    fcntl = None  # type: ignore[assignment]  # the module, or nothing


class FolderBusyError(RuntimeError):
    """Another process is at work in this folder."""


def held(folder: Path) -> bool:
    """Whether some process is at work in `folder` now."""
    try:
        if folder.is_dir():
            with alone(folder):
                pass
    except FolderBusyError:
        return True
    return False


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make `folder` and hold it until the block ends, or the process, in whatever way. Leaves no file behind.

    Raises:
        FolderBusyError: another process holds it.
        OSError: the folder cannot be made.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderBusyError(f"{folder}: another process is at work there; wait, or choose another") from error
        except OSError:  # a file system without locks, such as some network ones
            pass
        yield
    finally:
        os.close(handle)
