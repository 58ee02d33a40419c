"""Golden files of the original implementations -> isograd models.

    model, tensors, index = load("lm/lm_pre_AHF")

`tensors` holds in/*, out64/*, ... of the file. `isograd.papers.fairseq` reads options and names; `renamed` serves
weights and gradients alike. Reduced cases lie in tests/data/golden (its README says where they come from); the whole
set is used where it lies beside the repository.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from isograd.papers.fairseq import from_fairseq
from isograd.papers.fairseq.names import renamed as renamed

REDUCED = Path(__file__).parent / "data/golden"
WHOLE = Path(__file__).parents[1].parent / "shared/golden"
PAD = 1


def present(case: str, root: Path) -> bool:
    return (root / f"{case}.safetensors").exists()


@cache
def read(case: str, root: Path | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a case under their original keys, and its entry in the index; the reduced file by default."""
    folder, name = case.split("/")
    root = root or (REDUCED if present(case, REDUCED) else WHOLE)
    index = json.loads((root / folder / "index.json").read_text())[name]
    return load_file(root / f"{case}.safetensors"), index


def load(case: str, tag: str = "", root: Path | None = None) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    """The isograd model of a case in fp64 with the case's weights, its tensors, and its entry in the index.

    Args:
        tag: "init" or "trained" in the ADMIN cases; keys of that tag are then found without it.
    """
    tensors, index = read(case, root)
    if tag:  # the trained tag differs from init in its omegas only
        tensors = tensors | {
            k.removeprefix(f"{t}/"): v for t in ("init", tag) for k, v in under_tag(tensors, t).items()
        }
    return from_fairseq(state_of(tensors), index), tensors, index


def state_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights in fp64, and the stored tables of sinusoidal positions beside them."""
    tables = {k: v for k, v in under(tensors, "aux/").items() if k.endswith("sinusoidal_table")}
    return {k: v.double() for k, v in under(tensors, "state/").items()} | tables


def under_tag(tensors: dict[str, Tensor], tag: str) -> dict[str, Tensor]:
    return {k: v for k, v in tensors.items() if k.startswith(f"{tag}/")}


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
