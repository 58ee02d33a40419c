"""`isograd check` on models of timm, vit-pytorch, x-transformers and torch.nn, none of which its rules were made with.

    pip install --target EXTRA --no-deps timm==1.0.31 vit-pytorch==1.26.11 torchvision==0.28.0
    PYTHONPATH=EXTRA:. python benchmarks/packages.py --out docs/results/packages.csv [--part development] [--only NAME]

Each is built small without pretrained weights and run on inputs that the check guesses. The placement that the source
has is in the table `MODELS`; where kinds or sums of a design have no name in the catalogue it is left open, and only
errors count. A model is held out of development by the hash of its name, one in three.
"""

import argparse
import csv
import importlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

for operator in ("nms", "qnms"):  # of torchvision's library for CUDA, which a CPU torch cannot load, nor anything needs
    torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from families import part_of, placement  # noqa: E402
from gallery import is_right  # noqa: E402
from torch import nn  # noqa: E402

import isograd  # noqa: E402

PRE, OUT, POST, SCALED = (f"attn {name}; ffn {name}" for name in ("pre-ln", "out-ln", "post-ln", "layerscale"))
COLUMNS = ("package", "model", "part", "status", "expected", "placement", "verdict", "errors", "messages", "seconds")
_NARROW = {"embed_dim": 64, "depth": 4, "num_heads": 4, "img_size": 64}
_SHALLOW = {"depth": 4}

TIMM: dict[str, tuple[dict[str, Any], str]] = {  # name: (settings, placement)
    "vit_tiny_patch16_224": (_NARROW, PRE),
    "deit_tiny_distilled_patch16_224": (_NARROW, PRE),
    "deit3_small_patch16_224": (_NARROW, SCALED),
    "vit_base_patch16_rpn_224": (_NARROW, OUT),  # x + norm(attn(x)), class ResPostBlock
    "vit_small_patch16_36x1_224": (_NARROW, SCALED),
    "vit_small_patch16_18x2_224": (_NARROW, SCALED),
    "vit_relpos_small_patch16_224": (_NARROW, SCALED),
    "vit_relpos_base_patch16_rpn_224": (_NARROW, ""),
    "vit_srelpos_small_patch16_224": (_NARROW, SCALED),
    "vit_base_patch16_clip_224": (_NARROW, PRE),
    "vit_tiny_patch16_dinov3_qkvb": (_NARROW, SCALED),
    "vit_pe_core_tiny_patch16_384": (_NARROW, PRE),
    "samvit_base_patch16_224": (_NARROW | {"global_attn_indexes": (1, 3)}, PRE),
    "eva02_tiny_patch14_224": (_SHALLOW | {"img_size": 56}, PRE),
    "eva02_base_patch14_224": (_NARROW | {"img_size": 56}, "attn pre-ln; ffn sub-ln"),
    "beit_base_patch16_224": (_NARROW, SCALED),
    "beitv2_base_patch16_224": (_NARROW, SCALED),
    "convit_tiny": (_SHALLOW | {"local_up_to_layer": 2}, PRE),
    "cait_xxs24_224": (_SHALLOW, ""),
    "xcit_nano_12_p16_224": (_SHALLOW, ""),
    "crossvit_tiny_240": ({}, ""),
    "coat_lite_tiny": ({}, ""),
    "swin_tiny_patch4_window7_224": ({}, PRE),
    "swin_s3_tiny_224": ({}, PRE),
    "swinv2_tiny_window8_256": ({}, OUT),
    "swinv2_cr_tiny_224": ({}, OUT),
    "gcvit_xxtiny": ({}, ""),
    "hiera_tiny_224": ({}, PRE),
    "mvitv2_tiny": ({}, ""),
    "nest_tiny": ({}, PRE),
    "pit_xs_224": ({}, PRE),
    "pvt_v2_b0": ({}, ""),
    "twins_svt_small": ({}, ""),
    "tnt_s_legacy_patch16_224": (_SHALLOW, ""),
    "visformer_tiny": ({}, ""),
    "davit_tiny": ({}, ""),
    "edgenext_xx_small": ({}, ""),
    "efficientformer_l1": ({}, ""),
    "mobilevit_xxs": ({}, ""),
    "tiny_vit_5m_224": ({}, ""),
    "levit_128s": ({}, ""),
    "mixer_s32_224": ({}, "ffn pre-ln; mix pre-ln"),
    "gmlp_ti16_224": ({}, "mix pre-ln"),
    "resmlp_12_224": ({}, ""),
    "sequencer2d_s": ({}, ""),
    "poolformer_s12": ({}, ""),
    "convnext_atto": ({}, ""),
    "focalnet_tiny_srf": ({}, ""),
}

_VIT = {"image_size": 64, "patch_size": 16, "num_classes": 8, "dim": 64, "depth": 4, "heads": 4, "mlp_dim": 128}
_CHANNELS = {"channels": 3}
VIT_PYTORCH: dict[str, tuple[str, dict[str, Any], str]] = {  # module: (class, settings, placement)
    "vit": ("ViT", _VIT, PRE),
    "simple_vit": ("SimpleViT", _VIT, PRE),
    "deepvit": ("DeepViT", _VIT, PRE),
    "parallel_vit": ("ViT", _VIT, PRE),
    "vit_for_small_dataset": ("ViT", _VIT, PRE),
    "learnable_memory_vit": ("ViT", _VIT, PRE),
    "rvt": ("RvT", _VIT, ""),
    "cait": ("CaiT", _VIT | {"cls_depth": 2}, ""),
    "local_vit": ("LocalViT", _VIT, ""),
    "vit_1d": ("ViT", {"seq_len": 64} | {k: v for k, v in _VIT.items() if k != "image_size"}, PRE),
    "simple_vit_with_qk_norm": ("SimpleViT", _VIT, PRE),
    "simple_vit_with_register_tokens": ("SimpleViT", _VIT, PRE),
    "simple_vit_with_patch_dropout": ("SimpleViT", _VIT, PRE),
    "simple_vit_with_value_residual": ("SimpleViT", _VIT, PRE),
    "simple_vit_with_hyper_connections": ("SimpleViT", _VIT | {"num_residual_streams": 4}, ""),
    "simple_vit_with_fft": ("SimpleViT", _VIT | {"freq_patch_size": 8}, PRE),
    "normalized_vit": ("nViT", _VIT, ""),
    "vit_with_keel_post_ln": ("ViT", _VIT, ""),
    "vit_with_decorr": ("ViT", _VIT, ""),
    "vit_5": ("ViT", _VIT, ""),
}

_X: dict[str, Any] = {"dim": 64, "depth": 4, "heads": 4, "attn_dim_head": 16}
X_TRANSFORMERS: dict[str, tuple[dict[str, Any], str]] = {  # options of its Decoder: placement
    "plain": ({}, PRE),
    "pre_norm=False": ({"pre_norm": False}, POST),
    "gate_residual": ({"gate_residual": True}, ""),
    "scale_residual": ({"scale_residual": True}, PRE),
    "sandwich_norm": ({"sandwich_norm": True}, "attn sandwich; ffn sandwich"),
    "pre_and_post_norm": ({"pre_and_post_norm": True}, "attn pre+post; ffn pre+post"),
    "use_layerscale": ({"use_layerscale": True}, SCALED),
    "use_derf": ({"use_derf": True}, PRE),
    "output_gate": ({"attn_output_gate": True}, PRE),
    "aggregated_residuals": (
        {"attn_aggregated_residuals": True, "attn_aggregated_residual_kwargs": {"lora_rank": 16}},
        "",
    ),
    "reinject_input": ({"reinject_input": True}, ""),
    "unet_skips": ({"unet_skips": True}, ""),
    "depth_scale_residual": ({"depth_scale_residual": True}, ""),
    "adaptive_streams": ({"gated_multi_residual": True, "residual_fn_kwargs": {"read_gate_rank": 16}}, ""),
    "macaron": ({"macaron": True}, PRE),
    "rotary": ({"rotary_pos_emb": True}, PRE),
    "alibi": ({"alibi_pos_bias": True, "alibi_num_heads": 4}, PRE),
    "rel_pos_bias": ({"rel_pos_bias": True}, PRE),
    "qk_norm": ({"attn_qk_norm": True}, PRE),
    "qk_norm_dim_scale": ({"attn_qk_norm": True, "attn_qk_norm_dim_scale": True}, PRE),
    "ff_glu": ({"ff_glu": True}, PRE),
    "ff_swish_glu_no_bias": ({"ff_glu": True, "ff_swish": True, "ff_no_bias": True}, PRE),
    "ff_relu_squared": ({"ff_relu_squared": True}, PRE),
    "ff_post_act_ln": ({"ff_post_act_ln": True}, "attn pre-ln; ffn sub-ln"),
    "use_rmsnorm": ({"use_rmsnorm": True}, PRE),
    "use_simple_rmsnorm": ({"use_simple_rmsnorm": True}, PRE),
    "use_scalenorm": ({"use_scalenorm": True}, PRE),
    "use_dynamic_tanh": ({"use_dynamic_tanh": True}, PRE),
    "one_kv_head": ({"attn_one_kv_head": True}, PRE),
    "kv_heads": ({"attn_kv_heads": 2}, PRE),
    "talking_heads": ({"attn_pre_talking_heads": True, "attn_post_talking_heads": True}, PRE),
    "mem_kv": ({"attn_num_mem_kv": 4}, PRE),
    "gate_values": ({"attn_gate_values": True}, PRE),
    "head_scale": ({"attn_head_scale": True}, PRE),
    "attn_on_attn": ({"attn_on_attn": True}, PRE),
    "sparse_topk": ({"attn_sparse_topk": 4}, PRE),
    "residual_attn": ({"residual_attn": True}, PRE),
    "shift_tokens": ({"shift_tokens": 1}, PRE),
    "zero_init_branch_output": ({"zero_init_branch_output": True}, PRE),
    "sandwich_coef": ({"sandwich_coef": 2}, PRE),
    "value_residual": ({"add_value_residual": True}, PRE),
    "softclamp": ({"attn_softclamp_logits": True}, PRE),
    "streams": ({"num_residual_streams": 4}, ""),
    "memory_tokens": ({}, PRE),
    "tied_embedding": ({}, PRE),
    "post_emb_norm": ({}, PRE),
    "encoder": ({}, PRE),
}
_WRAPPED = {
    "memory_tokens": {"num_memory_tokens": 4},
    "tied_embedding": {"tie_embedding": True},
    "post_emb_norm": {"post_emb_norm": True},
}


def of_x_transformers(name: str) -> nn.Module:
    from x_transformers import Decoder, Encoder, TransformerWrapper

    layers = (Encoder if name == "encoder" else Decoder)(**_X, **X_TRANSFORMERS[name][0])
    return TransformerWrapper(num_tokens=128, max_seq_len=64, attn_layers=layers, **_WRAPPED.get(name, {}))


def of_vit_pytorch(name: str) -> nn.Module:
    made, settings, _ = VIT_PYTORCH[name]
    return getattr(importlib.import_module(f"vit_pytorch.{name}"), made)(**settings)


def of_timm(name: str) -> nn.Module:
    timm = importlib.import_module("timm")
    return timm.create_model(name, pretrained=False, num_classes=8, **TIMM[name][0])


def of_torch(name: str) -> nn.Module:
    first, _, kind = name.partition(" ")
    options: dict[str, Any] = {"batch_first": True, "dim_feedforward": 128, "norm_first": first == "norm_first"}
    if kind == "Transformer":
        return nn.Transformer(64, 4, 3, 3, **options)
    layer = getattr(nn, f"{kind}Layer")(64, 4, **options)
    final = nn.LayerNorm(64) if options["norm_first"] else None
    return getattr(nn, kind)(layer, 3, norm=final)


TORCH = {
    "norm_first TransformerEncoder": PRE,
    "norm_last TransformerEncoder": POST,
    "norm_first TransformerDecoder": "attn pre-ln; cross pre-ln; ffn pre-ln",
    "norm_last TransformerDecoder": "attn post-ln; cross post-ln; ffn post-ln",
    "norm_first Transformer": "attn pre-ln; cross pre-ln; ffn pre-ln",
    "norm_last Transformer": "attn post-ln; cross post-ln; ffn post-ln",
}
MODELS: list[tuple[str, str, Callable[[str], nn.Module], str]] = [
    *(("torch.nn", name, of_torch, wanted) for name, wanted in TORCH.items()),
    *(("x-transformers", name, of_x_transformers, wanted) for name, (_, wanted) in X_TRANSFORMERS.items()),
    *(("vit-pytorch", name, of_vit_pytorch, wanted) for name, (_, _, wanted) in VIT_PYTORCH.items()),
    *(("timm", name, of_timm, wanted) for name, (_, wanted) in TIMM.items()),
]


def row_of(package: str, name: str, build: Callable[[str], nn.Module], wanted: str) -> dict[str, Any]:
    row: dict[str, Any] = {"package": package, "model": name, "part": part_of(f"{package} {name}"), "expected": wanted}
    torch.manual_seed(0)
    try:
        model = build(name).eval()
    except Exception as error:
        return row | {"status": f"not built: {type(error).__name__}: {' '.join(str(error).split())[:120]}"}
    begun = time.process_time()
    try:
        findings = isograd.check(model)
    except isograd.errors.InputsError as error:
        return row | {"status": f"no inputs: {str(error)[:160]}"}
    except Exception as error:
        return row | {"status": f"crash: {type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    said = placement(findings)
    wrong = [f for f in findings if f.severity == "error"]
    verdict = ("right" if is_right(said, wanted) else "wrong") if wanted else ""
    return row | {
        "status": "ok",
        "placement": said,
        "verdict": verdict,
        "errors": " ".join(dict.fromkeys(f.code for f in wrong)),
        "messages": " | ".join(f"{f.address}: {f.message}" for f in wrong),
        "seconds": round(time.process_time() - begun, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=("development", "held-out"))
    parser.add_argument("--only", help="names, separated by commas, or a package")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known: list[dict[str, Any]] = []
    if options.out.exists():
        with options.out.open() as file:
            known = list(csv.DictReader(file))
    only = set(options.only.split(",")) if options.only else None
    tasks = [m for m in MODELS if options.part in (None, part_of(f"{m[0]} {m[1]}"))]
    if only is not None:
        tasks = [m for m in tasks if m[0] in only or m[1] in only]
        known = [r for r in known if r["package"] not in only and r["model"] not in only]
    done = {(r["package"], r["model"]) for r in known}
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(known)
        for task in tasks:
            if task[:2] not in done:
                row = row_of(*task)
                writer.writerow(row)
                file.flush()
                print(*(row.get(c, "") for c in ("package", "model", "status", "placement", "verdict", "errors")),
                      sep=" | ", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
