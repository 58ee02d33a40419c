"""A pre-trained model of random weights and a few rows to fine-tune it on."""

import os
import random
from pathlib import Path
from typing import Any

import torch

from isograd.convert.checkpoints.tokenizers import for_transformers, train_tokenizer
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.run import Run
from isograd.models import IsogradConfig, IsogradForCausalLM, IsogradForMaskedLM
from tests.build import randomised

WORDS = ["the", "a", "dog", "cat", "runs", "walks", "home", "fast", "slowly", "today", "rain", "fell", "on", "hills"]
TUNED: dict[str, dict[str, Any]] = {
    "glue": {"task": "mrpc", "length": 24, "dropout": 0.1, "keep": True},
    "training": {"steps": 100, "epochs": 2, "batch": 8, "lr": 0.01, "probe_every": 0, "checkpoint_every": 3}
    | {"decay": "linear", "optimizer": "adamw", "weight_decay": 0.1},
}


def sentences(count: int) -> list[tuple[str, str]]:
    """Every second pair shares its first words; lengths differ."""
    draw = random.Random(0)
    pairs = []
    for i in range(count):
        first, second = ([draw.choice(WORDS) for _ in range(draw.randint(2, 8))] for _ in range(2))
        second[:2] = first[:2] if i % 2 else second[:2]
        pairs.append((" ".join(first), " ".join(second)))
    return pairs


def glue_folder() -> Path:
    """Files of MRPC and STS-B, beside the cache of this test session: 42 and 10 rows, and a test part of 12."""
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "glue"
    if not folder.exists():
        pairs = sentences(64)
        for path, header, line in (
            ("MRPC", "Quality\t#1 String\t#2 String", lambda i, a, b: f"{int(i % 3 > 0)}\t{a}\t{b}"),
            ("STS-B", "sentence1\tsentence2\tscore", lambda i, a, b: f"{a}\t{b}\t{i % 2 * 3 + i % 5 / 2.5:.2f}"),
        ):
            (folder / path).mkdir(parents=True)
            for part, begin, end in (("train", 0, 42), ("dev", 42, 52), ("test", 52, 64)):
                rows = [line(i, *pair) for i, pair in enumerate(pairs)][begin:end]
                (folder / path / f"{part}.tsv").write_text("\n".join([header, *rows]) + "\n")
    return folder


def pretrained(folder: Path, causal: bool = False, rows: int | None = None, **options: Any) -> str:
    """A masked (or causal) model with random weights and its tokenizer, as a training leaves them.

    Args:
        rows: of the token table; None: as many as there are tokens.
    """
    tokenizer = train_tokenizer([" ".join(WORDS)], "char", mask=not causal)
    settings: dict[str, Any] = {
        "vocab_size": tokenizer.get_vocab_size() if rows is None else rows,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 24,
        "scale_embedding": False,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "is_decoder": causal,
    }
    torch.manual_seed(1)
    model = (IsogradForCausalLM if causal else IsogradForMaskedLM)(IsogradConfig(**(settings | options)))
    randomised(model).save_pretrained(folder / "model")
    for_transformers(tokenizer).save_pretrained(folder / "model")
    return str(folder)


def tuned(name: str, seed: int = 0, placement: str = "pre-ln", **sections: dict[str, Any]) -> Run:
    """The small recipe of a fine-tuning of the model `name`, with keys of its sections replaced."""
    content: dict[str, Any] = {part: TUNED[part] | sections.get(part, {}) for part in TUNED}
    content["glue"] = {"source": str(glue_folder()), "model": name} | content["glue"]
    content["model"] = {"placement": placement} | sections.get("model", {})
    content["data"] = sections.get("data", {})
    return run_from_dict({"task": "classification", "seed": seed, **content})
