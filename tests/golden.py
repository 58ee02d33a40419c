"""Golden files of the original implementations -> isograd models.

    model, tensors, index = load("lm/lm_pre_AHF")

`tensors` holds in/*, out64/*, ... of the file. `isograd.export.fairseq` reads options and names; its `renamed` serves
weights and gradients alike. Reduced cases lie in tests/data/golden (its README says where they come from); the whole
set is used where it lies beside the repository.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from isograd.export.fairseq import build as build_model
from isograd.export.fairseq import fill
from isograd.export.fairseq import renamed as renamed
from isograd.export.fairseq_options import config_from_fairseq
from isograd.models import IsogradConfig, IsogradModel
from isograd.placement import CATALOGUE, ByKind, Learned, Norm, Placement, Residual, register

REDUCED = Path(__file__).parent / "data/golden"
WHOLE = Path(__file__).parents[1].parent / "shared/golden"
PAD = 1

POST_AR = Placement(
    each=ByKind(attn=Residual(out=Norm(), post=Norm()), ffn=Residual(post=Norm(), skip=Learned())),
    about="post-ln with a norm on the attention's branch and a learned skip on the feed-forward",
)


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
    model = build(case, index).eval()
    state = {k: v.double() for k, v in under(tensors, "state/").items()}
    fill(model, state, index["config"])
    return model, tensors, index


def under_tag(tensors: dict[str, Tensor], tag: str) -> dict[str, Tensor]:
    return {k: v for k, v in tensors.items() if k.startswith(f"{tag}/")}


def build(case: str, index: dict[str, Any]) -> Any:
    """By the product's reader, but for what no catalogue holds."""
    given, name = index["config"], None
    if case.startswith("headscale_paper"):
        name = "normformer"
    elif case.startswith("admin"):
        name = "admin"
    elif case == "lm/lm_post_AR":
        name = "golden-post-AR"
        if name not in CATALOGUE:
            register(name, POST_AR)
    elif case == "encdec/ed_pre_decAHFR":
        name = "normformer-fairseq-resscale"
    config = config_from_fairseq(given, index["vocab_size"], placement=name)
    model = build_model(config)
    if case == "encdec/ed_pre_decAHFR":  # fairseq's encoder layers know no NormFormer: a plain one beside it
        plain = IsogradConfig(**(config.to_diff_dict() | {"placement": "pre-ln"}))
        model.encoder = IsogradModel(plain, "encoder")
    return model


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
