"""Golden files of the original implementations -> isograd models.

    model, tensors, index = load("lm/lm_pre_AHF")

`tensors` holds in/*, out64/*, ... of the file; `renamed` turns a flat dict of original names (weights or gradients)
into ours. Reduced cases lie in tests/data/golden (its README says where they come from); the whole set is used where
it lies beside the repository.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from isograd.models import IsogradConfig, IsogradForCausalLM, IsogradForMaskedLM, IsogradForSeq2SeqLM, IsogradModel
from isograd.placement import CATALOGUE, ByKind, Learned, Norm, Placement, Residual, register

REDUCED = Path(__file__).parent / "data/golden"
WHOLE = Path(__file__).parents[1].parent / "shared/golden"
PAD, HEADS = 1, 4

MODULES = {
    "embed_tokens": "embedding.tokens",
    "embed_positions": "embedding.positions",
    "layernorm_embedding": "embedding.norm",
    "layer_norm": "norm",
    "self_attn.q_proj": "attn.branch.query",
    "self_attn.k_proj": "attn.branch.key",
    "self_attn.v_proj": "attn.branch.value",
    "self_attn.out_proj": "attn.branch.out",
    "encoder_attn.q_proj": "cross.branch.query",
    "encoder_attn.k_proj": "cross.branch.key",
    "encoder_attn.v_proj": "cross.branch.value",
    "encoder_attn.out_proj": "cross.branch.out",
    "attn_ln": "attn.out",
    "fc1": "ffn.branch.into",
    "ffn_layernorm": "ffn.branch.mid",
    "fc2": "ffn.branch.out",
    "output_projection": "lm_head",
    "lm_head.dense": "head.dense",
    "lm_head.layer_norm": "head.norm",
    "lm_head": "head.decoder",
}
NORMS = {"self_attn_layer_norm": "attn", "encoder_attn_layer_norm": "cross", "final_layer_norm": "ffn"}
VECTORS = {
    "c_attn": "attn.branch.heads.weight",
    "w_resid": "ffn.combine.skip.weight",
    "attention_ratio_change": "attn.combine.skip.weight",
    "self_ratio_change": "attn.combine.skip.weight",
    "encoder_ratio_change": "cross.combine.skip.weight",
    "fc_ratio_change": "ffn.combine.skip.weight",
    "embed_out": "lm_head.weight",
}
FLAGS = {"A": "attn", "H": "heads", "F": "fc", "R": "resids"}
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
    model = build(case, index).double().eval()
    state = renamed(under(tensors, "state/"), index["config"])
    tied = set(model._tied_weights_keys) if model.config.tie_word_embeddings else set()
    result = model.load_state_dict({k: v.double() for k, v in state.items()}, strict=False)
    assert set(result.missing_keys) <= tied and not result.unexpected_keys, result
    return model, tensors, index


def under_tag(tensors: dict[str, Tensor], tag: str) -> dict[str, Tensor]:
    return {k: v for k, v in tensors.items() if k.startswith(f"{tag}/")}


def build(case: str, index: dict[str, Any]) -> Any:
    given, kind = index["config"], case.split("/")[0]
    config = IsogradConfig(**_options(given, kind, index["vocab_size"]))
    if kind == "mlm":
        return IsogradForMaskedLM(config)
    if config.encoder_layers is None:
        return IsogradForCausalLM(config)
    model = IsogradForSeq2SeqLM(config)
    if config.placement.startswith("normformer"):  # fairseq's encoder layers know no NormFormer: a plain one beside it
        plain = IsogradConfig(**(config.to_diff_dict() | {"placement": "pre-ln"}))
        model.encoder = IsogradModel(plain, "encoder")
    return model


def _options(given: dict[str, Any], kind: str, vocabulary: int) -> dict[str, Any]:
    side = "encoder" if kind == "mlm" else "decoder"
    pair = "encoder_layers" in given and "decoder_layers" in given
    return {
        "placement": _placement(given, kind, side),
        "vocab_size": vocabulary,
        "hidden_size": given[f"{side}_embed_dim"],
        "num_hidden_layers": given[f"{side}_layers"],
        "num_attention_heads": HEADS,
        "intermediate_size": given[f"{side}_ffn_embed_dim"],
        "hidden_act": given["activation_fn"],
        "position_embedding_type": "learned" if given.get(f"{side}_learned_pos", kind == "mlm") else "sinusoidal",
        "position_offset": PAD + 1,
        "max_position_embeddings": 24,
        "scale_embedding": not given.get("no_scale_embedding", False),
        "embedding_norm": given.get("layernorm_embedding", False),
        "tie_word_embeddings": given.get("share_decoder_input_output_embed", not given.get("untie_weights_roberta")),
        "bos_token_id": 0,
        "pad_token_id": PAD,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "encoder_layers": given["encoder_layers"] if pair else None,
    }


def _placement(given: dict[str, Any], kind: str, side: str) -> str:
    if kind == "admin":
        return "admin"
    before = given[f"{side}_normalize_before"]
    flags = "".join(letter for letter, name in FLAGS.items() if given.get(f"scale_{name}"))
    if kind == "headscale_paper":
        flags += " paper"
    table = {
        (False, ""): "post-ln",
        (True, ""): "pre-ln",
        (True, "AHF"): "normformer-fairseq",
        (True, "AHFR"): "normformer-fairseq-resscale",
        (True, "AHF paper"): "normformer",
        (False, "AR"): "golden-post-AR",
    }
    name = table[before, flags]
    if name == "golden-post-AR" and name not in CATALOGUE:
        register(name, POST_AR)
    return name


def renamed(flat: dict[str, Tensor], given: dict[str, Any]) -> dict[str, Tensor]:
    """Original names -> ours, for weights and for gradients alike."""
    out = {}
    for name, value in flat.items():
        if not name.endswith((".version", "_float_tensor")):
            out.update(_entry(name, value, given))
    return out


def _entry(name: str, value: Tensor, given: dict[str, Any]) -> dict[str, Tensor]:
    tower, rest = name.removeprefix("encoder.sentence_").split(".", 1)
    prefix = f"{tower}." if "encoder_layers" in given and "decoder_layers" in given else "model."
    if rest.startswith("layers."):
        _, layer, rest = rest.split(".", 2)
        prefix += f"layers.{layer}."
    if rest == "c_attn":
        value = value[:, None]
    if ".in_proj_" in rest:  # W_Q, W_K, W_V on top of each other
        attention, leaf = rest.split(".in_proj_")
        return {
            f"{prefix}{MODULES[f'{attention}.{p}_proj']}.{leaf}": part
            for p, part in zip("qkv", value.chunk(3), strict=True)
        }
    if rest in VECTORS:
        return {_outside(prefix, VECTORS[rest]): value}
    module, leaf = rest.rsplit(".", 1)
    if module in NORMS:
        return {f"{prefix}{NORMS[module]}.{'pre' if given[f'{tower}_normalize_before'] else 'post'}.{leaf}": value}
    return {_outside(prefix, f"{MODULES[module]}.{leaf}"): value}


def _outside(prefix: str, ours: str) -> str:
    """Heads stand outside the tower whose name the original gives them."""
    return ours if ours.startswith(("lm_head.", "head.")) else prefix + ours


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
