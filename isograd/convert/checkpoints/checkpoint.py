"""Checkpoints of torch.save, read without running anything that they name.

A pickle is a program: it may call whatever can be imported. Here it is read by `torch.load(weights_only=True)`, which
makes tensors and nothing else. What fairseq and the libraries that it keeps its options in would import is put on
torch's allow-list as stand-ins, which hold data and do nothing; any other name refuses the file.
"""

import pickle
import re
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from isograd.errors import CheckpointError, first_line

_KNOWN = ("fairseq.", "omegaconf.", "typing.", "numpy.core.multiarray.", "numpy._core.multiarray.")
GETATTR = "builtins.getattr"  # stands for a function of our own, see `_load`
_NAMED = (
    GETATTR,
    "argparse.Namespace",
    "collections.defaultdict",
    "numpy.dtype",
    *(f"builtins.{kind}" for kind in ("bool", "dict", "float", "int", "list", "object", "set", "str", "tuple")),
)


class Remains:
    """An object of another library: what it held, and nothing that it could do."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Options(Remains):
    """The stand-in of argparse.Namespace."""


def read_checkpoint(path: str | Path) -> Any:
    """What lies in the file: of torch.save in either of its formats, or of safetensors (its tensors by name).

    Raises:
        CheckpointError: no checkpoint, one that is cut short, or one that names what it must not; the names.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: {'is a folder; name a file' if path.is_dir() else 'no such file'}")
    try:
        if _is_safetensors(path):
            return load_file(path)
        found = get_unsafe_globals_in_checkpoint(path) if zipfile.is_zipfile(path) else ()
        return _load(path, set(found))
    except CheckpointError:
        raise
    except Exception as error:  # whatever a broken file leads torch to
        raise CheckpointError(
            f"{path}: no checkpoint of torch.save or safetensors, or one that is cut short ({_reason(error)})"
        ) from error


def plain(value: Any) -> Any:
    """The same as dicts, lists and what they hold: stand-ins opened, as far as they hold data."""
    if isinstance(value, Options):
        return plain(value.state or {})
    if isinstance(value, Remains):
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
    odd = [
        name
        for name, inner in found.items()
        if inner.layout != torch.strided or (name.endswith(".weight") and not inner.is_floating_point())
    ]
    if odd:
        raise CheckpointError(f"weights that are sparse or of whole numbers: {', '.join(sorted(odd)[:5])}")
    return found


def _load(path: Path, names: set[str]) -> Any:
    """What torch reads with stand-ins for these names; the old format tells them one by one."""
    unknown = sorted(today for name in names if not (today := _today(name)).startswith(_KNOWN) and today not in _NAMED)
    refused = f"{path}: refused, nothing of it was run: it wants"
    if unknown:
        raise CheckpointError(f"{refused} {', '.join(unknown)}")

    def member(of: Any, name: Any) -> Any:
        """Of an enum, its name: as Python 3.11.0 to 3.11.3 store it. Nothing is looked up."""
        if of is not Remains or not isinstance(name, str):
            raise CheckpointError(f"{refused} {GETATTR}")
        return name

    kinds = {"argparse.Namespace": Options, "collections.defaultdict": _dict, GETATTR: member}
    try:
        with warnings.catch_warnings(), safe_globals([(kinds.get(_today(name), Remains), name) for name in names]):
            warnings.simplefilter("ignore")  # of old storages
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL (\S+) (?:was not an allowed|whose module)", str(error))
        name = wanted and (wanted[1] if "." in wanted[1] else f"builtins.{wanted[1]}")
        if name is None or name in names:
            raise
        return _load(path, names | {name})


def _reason(error: Exception) -> str:
    """torch puts its advice to read without care in front."""
    lines = [line for line in str(error).splitlines() if "WeightsUnpickler error" in line]
    return (lines[0].partition("WeightsUnpickler error:")[2] if lines else first_line(error)).strip()


def _today(name: str) -> str:
    """Pickles of protocol 2 call modules as Python 2 did."""
    module, _, own = name.rpartition(".")
    return f"{IMPORT_MAPPING.get(module, module)}.{own}"


def _dict(*args: Any) -> dict[Any, Any]:
    return {}


def _opened(kept: Remains) -> Any:
    """omegaconf keeps a container's nodes in _content and a node's value in _val; an enum was called with its value."""
    state = kept.state
    if isinstance(state, Mapping):
        for name in ("_content", "_val"):
            if name in state:
                return plain(state[name])
        return plain(state)
    return plain(kept.args[0]) if len(kept.args) == 1 and isinstance(kept.args[0], str | int | float) else None


def _is_safetensors(path: Path) -> bool:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return file.read(1) == b"{" and size < path.stat().st_size
