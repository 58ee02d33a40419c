"""What onnxruntime computes from exported graphs, beside the model they were traced from: logits, greedy outputs."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isograd.interop.certificate import LIMITS, Certificate, certify, hashes
from isograd.interop.onnx import OnnxModel
from isograd.interop.running import Runner
from isograd.interop.sample import Batch, Sample
from isograd.models import IsogradPreTrainedModel


def certify_onnx(
    model: IsogradPreTrainedModel, folder: str | Path, sample: Sample | None = None, **others: Any
) -> Certificate:
    """The model against the folder that `export_onnx` wrote from it, in float32.

    Args:
        sample: None draws random ids.
        others: hashes of the source and a date, as `certify` takes them.
    """
    graphs, config = OnnxModel(folder), model.config

    def logits(batch: Batch) -> Tensor:
        return graphs(**{name: value for name, value in batch.items() if name != "decoder_attention_mask"})

    def write(prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
        """The most probable token, again and again; the graphs have no cache, so all of them are read each time."""
        first = config.decoder_start_token_id if config.is_encoder_decoder else None
        ids = prompt["input_ids"]
        behind = ids if first is None else torch.full((len(ids), 1), first)
        read = behind.shape[1]
        for _ in range(new_tokens):
            seen = {"decoder_input_ids": behind, "attention_mask": prompt["attention_mask"]}
            out = graphs(behind) if first is None else graphs(ids, **seen)
            behind = torch.cat([behind, out[:, -1:].argmax(dim=-1)], dim=1)
        rows, end = behind[:, read:].tolist(), config.eos_token_id
        return [row[: row.index(end)] if end in row else row for row in rows]

    return certify(
        {"fp32": model},
        {"fp32": Runner(logits=logits, write=write)},
        sample,
        about=f"{type(model).__name__} ({config.placement}) and its ONNX graphs",
        limits={"fp32": LIMITS["fp32"]},
        beams=(1,),
        files=hashes(Path(folder)),
        versions={name: version(name) for name in ("onnx", "onnxruntime")},
        **others,
    )
