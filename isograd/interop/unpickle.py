"""Checkpoints of torch.save, read without running anything that they name.

A pickle is a program: it may call whatever can be imported. Here it is looked through first, for all names that it
would import. Those that make tensors are torch's own (`weights_only`); those of fairseq and of the libraries that it
keeps its options in become stand-ins that hold data and do nothing; any other name refuses the file, before one step of
it runs.
"""

import hashlib
import pickle
import struct
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch._weights_only_unpickler import _get_allowed_globals, get_globals_in_pkl
from torch.serialization import MAGIC_NUMBER, safe_globals

from isograd.data.text import first_line
from isograd.errors import CheckpointError

_LIBRARIES = ("fairseq.", "omegaconf.", "typing.", "numpy.core.multiarray.", "numpy._core.multiarray.")
_TYPES = [f"{module}.{name}" for module in ("builtins", "__builtin__") for name in
          ("bool", "dict", "float", "int", "list", "object", "set", "str", "tuple")]  # fmt: skip
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    LookupError,
    AssertionError,
    struct.error,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    SafetensorError,
)
_LEGACY_PICKLES = 5  # magic number, protocol, system, object, keys of storages; the bytes of the storages follow


class Kept:
    """An object of another library: what it held, and nothing that it could do."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Options(Kept):
    """The stand-in of argparse.Namespace."""


def read_checkpoint(path: str | Path) -> Any:
    """What lies in the file: of torch.save in either of its formats, or of safetensors (its tensors by name).

    Raises:
        CheckpointError: no checkpoint, one that is cut short, or one that names what it must not; each of the names.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: {'is a folder; name a file' if path.is_dir() else 'no such file'}")
    try:
        if _is_safetensors(path):
            return load_file(path)
        names = _names(path)
    except _BROKEN as error:
        raise CheckpointError(
            f"{path}: no checkpoint of torch.save or safetensors, or one that is cut short"
        ) from error
    unknown = sorted(_today(name) for name in names if not _is_known(name))
    if unknown:
        raise CheckpointError(f"{path}: refused, nothing of it was run: it wants {', '.join(unknown)}")
    return _load(path, names)


def plain(value: Any) -> Any:
    """The same as dicts, lists and what they hold: stand-ins opened, as far as they hold data."""
    if isinstance(value, Options):
        return plain(value.state or {})
    if isinstance(value, Kept):
        return _opened(value)
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def tensors(value: Any) -> dict[str, Tensor]:
    """The tensors of a state dict.

    Raises:
        CheckpointError: it holds something else, or there is none.
    """
    found = {str(name): inner for name, inner in value.items() if isinstance(inner, Tensor)}
    if len(found) < len(value) or not found:
        other = ", ".join(sorted(str(name) for name in value if name not in found)[:5])
        raise CheckpointError(f"no state dict of tensors: found {other or 'nothing'}")
    odd = [name for name, inner in found.items() if inner.layout != torch.strided or _is_quantised(name, inner)]
    if odd:
        raise CheckpointError(f"weights that are sparse or of whole numbers: {', '.join(sorted(odd)[:5])}")
    return found


def _is_quantised(name: str, value: Tensor) -> bool:
    return name.endswith(".weight") and not value.is_floating_point()


def file_hash(path: Path) -> dict[str, str]:
    """Name -> sha256 of one file, for a certificate."""
    with path.open("rb") as file:
        return {path.name: hashlib.file_digest(file, "sha256").hexdigest()}


def _opened(kept: Kept) -> Any:
    """omegaconf keeps a container's nodes in _content and a node's value in _val; an enum was called with its value."""
    state = kept.state
    if isinstance(state, Mapping):
        for name in ("_content", "_val"):
            if name in state:
                return plain(state[name])
        return plain(state)
    return plain(kept.args[0]) if len(kept.args) == 1 and isinstance(kept.args[0], str | int | float) else None


def _load(path: Path, names: set[str]) -> Any:
    inert: list[Any] = [(Kept, name) for name in names if not _is_torchs(name)]
    inert = [one for one in inert if one[1] not in ("argparse.Namespace", "collections.defaultdict")]
    try:
        with (
            warnings.catch_warnings(),
            safe_globals([*inert, (Options, "argparse.Namespace"), (_dict, "collections.defaultdict")]),
        ):
            warnings.simplefilter("ignore")  # of old storages
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a broken file leads torch to
        raise CheckpointError(f"{path}: cannot be read ({_said(error)})") from error


def _said(error: Exception) -> str:
    """torch puts its advice to read without care in front."""
    lines = [line for line in str(error).splitlines() if "WeightsUnpickler error" in line]
    return (lines[0].partition("WeightsUnpickler error:")[2] if lines else first_line(error)).strip()


def _dict(*args: Any) -> dict[Any, Any]:
    return {}


def _names(path: Path) -> set[str]:
    """All names that the pickles of a file would import."""
    with path.open("rb") as file:
        if zipfile.is_zipfile(file):
            return _names_in_zip(path)
        file.seek(0)
        if pickle_of_magic(file) != MAGIC_NUMBER:
            raise ValueError("it begins otherwise")
        return set().union(*(get_globals_in_pkl(file) for _ in range(_LEGACY_PICKLES - 1)))


def pickle_of_magic(file: BinaryIO) -> int:
    """The number that the old format begins with, read without unpickling: protocol 2, one long integer, stop."""
    start = file.read(4)
    if start[:3] != b"\x80\x02\x8a":
        raise ValueError("it begins otherwise")
    number = int.from_bytes(file.read(start[3]), "little", signed=True)
    if file.read(1) != b".":
        raise ValueError("it begins otherwise")
    return number


def _names_in_zip(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        inside = {name.partition("/")[2]: name for name in archive.namelist()}
        if "data.pkl" not in inside or "constants.pkl" in inside:  # the second: TorchScript, which is code
            raise ValueError("an archive of another kind")
        return set(get_globals_in_pkl(BytesIO(archive.read(inside["data.pkl"]))))


def _is_known(name: str) -> bool:
    return (
        _is_torchs(name)
        or name in (*_TYPES, "argparse.Namespace", "collections.defaultdict", "numpy.dtype")
        or (name.startswith(_LIBRARIES))
    )


def _today(name: str) -> str:
    """Pickles of protocol 2 call modules as Python 2 did."""
    module, _, own = name.rpartition(".")
    return f"{IMPORT_MAPPING.get(module, module)}.{own}"


def _is_torchs(name: str) -> bool:
    return name in _get_allowed_globals()


def _is_safetensors(path: Path) -> bool:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return file.read(1) == b"{" and size < path.stat().st_size
