"""A folder that is there whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from isograd.interop.errors import ExportError


@contextmanager
def whole(folder: str | Path) -> Iterator[Path]:
    """A folder to write into, which takes the name `folder` at the end, or is gone where the body raised.

    Raises:
        ExportError: there is something of that name already.
    """
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ExportError(f"{folder}: exists already; name a new folder, or remove it first")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield part
        part.chmod(0o755)  # mkdtemp's is for its owner alone
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def needed(*names: str) -> tuple[Any, ...]:
    """Modules that the extra [export] brings.

    Raises:
        ImportError: one is missing; the message names the extra.
    """
    found = []
    for name in names:
        try:
            found.append(import_module(name))
        except ImportError as error:
            raise ImportError(f"{name.split('.')[0]} is not installed: pip install 'isograd[export]'") from error
    return tuple(found)
