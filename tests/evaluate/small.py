"""A small translation model of random weights, saved as a training leaves it."""

from pathlib import Path
from typing import Any

import torch

from isograd.convert.checkpoints.subwords import PairTokenizer, train_subwords
from isograd.models import IsogradConfig, IsogradForSeq2SeqLM
from tests.build import randomised

LINES = [
    "zwei männer kochen .",
    "ein hund läuft über die wiese , und alle sehen zu .",
    "drei frauen",
    "ein kind spielt im garten mit einem ball .",
    "a",
    "die katze schläft auf dem roten sofa .",
]
LONGEST = 80  # tokens that the model reads


def saved(folder: Path, *, tokenized: bool = False, seed: int = 0, **options: Any) -> Path:
    """The folder, with a model of one id per character."""
    vocabulary = train_subwords([*LINES, "0123456789"], "char", 0)
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": vocabulary.vocab_size,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "encoder_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": LONGEST,
        "scale_embedding": False,
        "pad_token_id": vocabulary.pad_id,
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": vocabulary.eos_id,
        "decoder_start_token_id": vocabulary.eos_id,
    }
    model = randomised(IsogradForSeq2SeqLM(IsogradConfig(**(settings | options))))
    model.save_pretrained(folder)
    PairTokenizer(vocabulary, vocabulary, ("de", "en"), tokenized).save(folder)
    return folder
