"""Causal language modelling: packed sequences of one text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isograd.data import Corpus, PackedSequences, load_corpus
from isograd.data.tokenizers import SPECIAL, for_transformers
from isograd.models import IsogradConfig, IsogradForCausalLM
from isograd.train.run import Run
from isograd.train.task import Task, config_from


class LanguageModelling(Task):
    """See `Task`."""

    corpus: Corpus
    samples: PackedSequences

    def __init__(self, run: Run, corpus: Corpus | None = None) -> None:
        self.run = run
        self.corpus = corpus or load_corpus_of(run)
        self.source, self.sha256 = self.corpus.source, self.corpus.sha256
        self.unigram_entropy = self.corpus.unigram_entropy
        self.samples = PackedSequences(
            self.corpus.train, run.data.length, run.training.steps * run.training.batch, seed=run.data_seed
        )

    def config(self) -> IsogradConfig:
        ids = {name.replace("_token", "_token_id"): i for i, name in enumerate(SPECIAL) if name != "unk_token"}
        length = self.run.data.length
        return config_from(
            self.run, vocab_size=self.corpus.vocab_size, max_position_embeddings=length, is_decoder=True, **ids
        )

    def build(self, config: IsogradConfig) -> IsogradForCausalLM:
        return IsogradForCausalLM(config)

    def first_batch(self) -> Mapping[str, Tensor]:
        return self.samples.__getitems__(range(min(self.run.training.batch, len(self.samples))))

    def tokens_per_update(self) -> float:
        return self.run.training.batch * self.run.data.length

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """Mean loss over at most `training.valid_sequences` held-out sequences."""
        batch, limit = self.run.training.batch, self.run.training.valid_sequences
        if limit < 1 or len(self.corpus.valid) <= self.run.data.length:
            return {"loss": None}
        held_out = PackedSequences(self.corpus.valid, self.run.data.length)
        count = min(limit, len(held_out))
        device = next(model.parameters()).device
        total = 0.0
        model.eval()
        with torch.no_grad():
            for begin in range(0, count, batch):
                rows = held_out.__getitems__(range(begin, min(begin + batch, count)))
                loss = model(**{k: v.to(device) for k, v in rows.items()}).loss
                total += float(loss) * len(rows["input_ids"])
        return {"loss": total / count}

    def facts(self) -> dict[str, Any]:
        corpus = self.corpus
        return {
            "source": corpus.source,
            "sha256": corpus.sha256,
            "characters": corpus.characters,
            "tokens": len(corpus.train),
            "vocab_size": corpus.vocab_size,
            "unigram_entropy": corpus.unigram_entropy,
        }

    def save_tokenizer(self, folder: Path) -> None:
        for_transformers(self.corpus.tokenizer).save_pretrained(folder)


def load_corpus_of(run: Run) -> Corpus:
    """The corpus that a run names."""
    data = run.data
    return load_corpus(data.source, level=data.level, vocab_size=data.vocab_size, field=data.field, valid=data.valid)
