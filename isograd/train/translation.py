"""Translation: sentence pairs in batches by number of tokens; held-out loss, perplexity and BLEU."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor, nn

from isograd.data.parallel import ParallelCorpus, load_parallel
from isograd.data.ragged import loss_by_place
from isograd.data.token_batches import TokenBatches
from isograd.errors import RecipeError
from isograd.evaluate.scores import score
from isograd.models import IsogradConfig, IsogradForSeq2SeqLM
from isograd.models.search import translate_ids
from isograd.train.run import Run
from isograd.train.task import Task, config_from, with_steps
from isograd.transformer.loss import IGNORE


class Translation(Task):
    """See `Task`. `training.tokens` is the global batch: a micro-batch holds its share of them."""

    corpus: ParallelCorpus
    samples: TokenBatches
    updates_per_epoch: int

    def __init__(self, run: Run, corpus: ParallelCorpus | None = None) -> None:
        settings = {name: value for name, value in vars(run.pairs).items() if name != "pool"}
        self.corpus = corpus or load_parallel(**settings)
        self.source, self.sha256 = self.corpus.source, self.corpus.sha256
        self.unigram_entropy = self.corpus.unigram_entropy
        self.blind_loss = loss_by_place(
            self.corpus.train_target, self.corpus.valid_target, self.corpus.tokenizer.target.vocab_size
        )
        micro = run.training.accumulation * PartialState().num_processes
        self.samples = self._batches(run, micro)
        self.updates_per_epoch = max(1, self.samples.until(1) // micro)
        if run.training.epochs:
            run = with_steps(run, min(run.training.steps, -(-self.samples.until(run.training.epochs) // micro)))
        self.samples.batches = run.training.steps * micro
        self.run = run
        self.comparable = run.training.label_smoothing == 0

    def held_out_unigram(self) -> float | None:
        """A model that sees no other token knows how often tokens stand at each place, or how often at all."""
        assert self.blind_loss is not None
        return min(self.blind_loss, self.unigram_entropy)

    def _batches(self, run: Run, micro: int) -> TokenBatches:
        if run.training.tokens < micro:
            raise RecipeError(f"training.tokens={run.training.tokens} is less than one for each of {micro} passes")
        return TokenBatches(
            self.corpus.train_source,
            self.corpus.train_target,
            tokens=run.training.tokens // micro,
            pad=self.corpus.tokenizer.source.pad_id,
            seed=run.data_seed,
            pool=run.pairs.pool,
        )

    def config(self) -> IsogradConfig:
        run, source, target = self.run, self.corpus.tokenizer.source, self.corpus.tokenizer.target
        longest = run.pairs.longest + 1  # with its </s>
        config = config_from(
            run,
            encoder_layers=run.encoder_layers,
            vocab_size=target.vocab_size,
            encoder_vocab_size=None if source.vocab_size == target.vocab_size else source.vocab_size,
            max_position_embeddings=max(longest, int(run.search.stretch * longest + run.search.extra)) + 1,
            pad_token_id=target.pad_id,
            bos_token_id=target.bos_id,
            eos_token_id=target.eos_id,
            decoder_start_token_id=target.eos_id,
        )
        self._check_positions(config)
        return config

    def _check_positions(self, config: IsogradConfig) -> None:
        """Validation pairs are as long as they are; a learned table ends."""
        held_out = max(int(rows.lengths.max()) for rows in (self.corpus.valid_source, self.corpus.valid_target))
        if config.position_embedding_type == "learned" and held_out > config.max_position_embeddings:
            raise RecipeError(
                f"model.positions=learned has {config.max_position_embeddings} positions with"
                f" pairs.longest={self.run.pairs.longest}, and a validation pair has {held_out} tokens"
            )

    def build(self, config: IsogradConfig) -> IsogradForSeq2SeqLM:
        """A fresh model, which keeps the recipe's search as its own in generation_config.json."""
        model = IsogradForSeq2SeqLM(config)
        s = self.run.search
        model.generation_config.update(num_beams=s.beam, max_length=config.max_position_embeddings)
        if s.beam > 1:  # transformers refuses them without beams
            model.generation_config.update(length_penalty=s.length_penalty, early_stopping=s.early_stopping)
        return model

    def first_batch(self, process: int = 0, processes: int = 1) -> Mapping[str, Tensor]:
        return self.samples[process]

    def tokens_per_update(self) -> float:
        """Target tokens."""
        return float(self.corpus.train_target.lengths.sum()) / self.updates_per_epoch

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """ "loss" over all held-out pairs, unsmoothed, nats per target token; "perplexity"; "bleu" of `search.pairs`.

        BLEU is sacrebleu's, of detokenised text.
        """
        loss = self._loss(model)
        bleu = self._bleu(model) if self.run.search.pairs and math.isfinite(loss) else None
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "bleu": bleu}

    def measured(self, held_out: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "blind_loss": self.blind_loss,
            "validation_loss": held_out["loss"],
            "perplexity": held_out["perplexity"],
            "bleu": held_out["bleu"],
        }

    @torch.no_grad()
    def _loss(self, model: nn.Module) -> float:
        source, target = self.corpus.valid_source, self.corpus.valid_target
        pad = self.corpus.tokenizer.source.pad_id
        device = next(model.parameters()).device
        total = tokens = 0.0
        model.eval()
        batches = TokenBatches(source, target, tokens=self.run.training.tokens, pad=pad)
        for batch in map(batches.__getitem__, range(len(batches))):
            count = int((batch["labels"] != IGNORE).sum())
            total += float(model(**{k: v.to(device) for k, v in batch.items()}).loss) * count
            tokens += count
        return total / tokens

    def _bleu(self, model: nn.Module) -> float:
        count = min(self.run.search.pairs, len(self.corpus.valid_source))
        assert isinstance(model, IsogradForSeq2SeqLM)
        s = self.run.search
        sources = [self.corpus.valid_source[i].tolist() for i in range(count)]
        results = translate_ids(
            model,
            sources,
            beam=s.beam,
            length_penalty=s.length_penalty,
            early_stopping=s.early_stopping,
            stretch=s.stretch,
            extra=s.extra,
        )
        found = {index: hypotheses[0].tokens for index, hypotheses in results}
        lines = self.corpus.tokenizer.target.decode([found[i] for i in range(count)])
        pairs = self.run.pairs
        return score(lines, self.corpus.valid_lines[1][:count], tokenized=pairs.tokenized, language=pairs.target).bleu

    def facts(self) -> dict[str, Any]:
        corpus = self.corpus
        return {
            "source": corpus.source,
            "sha256": corpus.sha256,
            "pairs": corpus.counts,
            "valid_pairs": len(corpus.valid_source),
            "tokens": int(corpus.train_target.lengths.sum()),
            "source_tokens": int(corpus.train_source.lengths.sum()),
            "vocab_size": corpus.tokenizer.target.vocab_size,
            "source_vocab_size": corpus.tokenizer.source.vocab_size,
            "unigram_entropy": corpus.unigram_entropy,
            "blind_loss": self.blind_loss,
            "fill": self.samples.fill(),
            "updates_per_epoch": self.updates_per_epoch,
        }

    def save_tokenizer(self, folder: Path) -> None:
        self.corpus.tokenizer.save(folder)
