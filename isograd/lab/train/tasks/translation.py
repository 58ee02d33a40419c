"""Translation: sentence pairs in batches by number of tokens; held-out loss, perplexity and BLEU."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from isograd.errors import RecipeError
from isograd.lab.train.run import Model, Run, Smoothing, Training, at_least, sharded_by, share, with_steps
from isograd.lab.train.tasks.base import (
    CHARACTERS,
    GRADIENT,
    LABEL,
    OUTCOME,
    SPEED,
    Column,
    Task,
    config_from,
    pretrained_of,
    with_weights,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from isograd.lab.data.batches import Ragged, TokenBatches
    from isograd.lab.data.parallel import ParallelCorpus
    from isograd.models import IsogradConfig


@dataclass(frozen=True, kw_only=True)
class TranslationModel(Model):
    """`layers` are the decoder's."""

    encoder_layers: int | None = None  # None: as many as `layers`
    encoder_placement: str | None = None  # None: `placement` in both stacks
    share_embeddings: bool = False  # one table for encoder, decoder and head (joint vocabulary)

    def options(self) -> dict[str, Any]:
        options = super().options()
        encoder = options.pop("encoder_placement")
        return options | ({"encoder_options": {"placement": encoder}} if encoder else {})


@dataclass(frozen=True, kw_only=True)
class PairsSection:
    """Parallel text; see `isograd.lab.data.parallel.load_parallel` for each term."""

    train: tuple[str, ...] = ("numbers",)
    valid: tuple[str, ...] = ()  # none: 500 pairs of `train` are held out
    source: str = "de"
    target: str = "en"
    vocabulary: Literal["bpe", "unigram", "char", "subword-nmt", "model"] = "bpe"  # "model": that of model.from
    vocab_size: int = 8000
    joint: bool = True
    codes: str | None = None  # subword-nmt's merges
    dictionaries: tuple[str, ...] = ()  # fairseq's: one joined, or source and target
    tokenized: bool = False  # the text is Moses-tokenised; scores are of the detokenised text
    longest: int = 250  # tokens of a side; longer pairs are left out and counted
    ratio: float = 0.0  # of the longer side to the shorter one, in tokens; 0: any
    pool: int = 0  # pairs that are sorted by length together; 0: all

    def __post_init__(self) -> None:
        at_least(1, "pairs", self, "vocab_size", "longest")
        at_least(0, "pairs", self, "ratio", "pool")
        if not self.train:
            raise RecipeError("pairs.train is empty; name at least one source of parallel text, or 'numbers'")
        if self.source == self.target:
            raise RecipeError(f"pairs.source and pairs.target are both {self.source!r}")
        if (self.vocabulary == "subword-nmt") != bool(self.codes):
            raise RecipeError("pairs.vocabulary=subword-nmt and pairs.codes (the file of merges) belong together")
        if self.dictionaries and self.vocabulary != "subword-nmt":
            raise RecipeError("pairs.dictionaries is for pairs.vocabulary=subword-nmt")
        if len(self.dictionaries) not in ((0, 1) if self.joint else (0, 2)):
            raise RecipeError("pairs.dictionaries takes one joined file with pairs.joint=true, and two files without")
        if 0 < self.ratio < 1:
            raise RecipeError(f"pairs.ratio={self.ratio} must be at least 1 (longer side to shorter), or 0 for any")


@dataclass(frozen=True, kw_only=True)
class SearchSection:
    """How a translation is searched for; see `isograd.models.search.search`."""

    beam: int = 5
    length_penalty: float = 1.0
    early_stopping: bool = False  # stop when `beam` hypotheses are finished, as fairseq and the papers do
    extra: int = 50  # a hypothesis has at most `stretch` x source + `extra` tokens
    stretch: float = 1.0
    pairs: int = 500  # of the validation set that are translated for the BLEU during training; 0: none

    def __post_init__(self) -> None:
        at_least(1, "search", self, "beam")
        at_least(0, "search", self, "extra", "stretch", "pairs")
        if not abs(self.length_penalty) <= 50:  # beyond it lengths to this power are no numbers
            raise RecipeError(f"search.length_penalty={self.length_penalty} must be from -50 to 50")


@dataclass(frozen=True, kw_only=True)
class TranslationTraining(Training):
    """`tokens` is the global batch: those of the larger side, with its padding counted."""

    epochs: int = 0  # 0: `steps` alone decides, else whichever ends first
    tokens: int = 4096
    label_smoothing: float = 0.0
    smoothing: Smoothing = "torch"  # eps/V on every class, or fairseq's eps/(V-1) on every other class
    valid_pairs: int = 0  # of the validation set, the first ones, whose loss is measured; 0: all

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "training", self, "tokens")
        at_least(0, "training", self, "valid_pairs")
        share("training", self, "label_smoothing")


@dataclass(frozen=True, kw_only=True)
class TranslationRun(Run):
    """A run of an encoder-decoder on sentence pairs."""

    task: Literal["translation"] = "translation"
    model: TranslationModel = field(default_factory=TranslationModel)
    pairs: PairsSection = field(default_factory=PairsSection)
    search: SearchSection = field(default_factory=SearchSection)
    training: TranslationTraining = field(default_factory=TranslationTraining)

    length_key = "pairs.longest"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs.vocabulary == "model" and not self.pretrained:
            raise RecipeError("pairs.vocabulary=model is that of model.from, and none is named")
        if self.model.share_embeddings and not (self.pairs.joint and self.model.tie_embeddings):
            raise RecipeError("model.share_embeddings=true needs pairs.joint=true and model.tie_embeddings=true")
        if (shards := sharded_by(self.training)) and self.search.pairs:
            raise RecipeError(f"{shards} needs search.pairs=0: weights lie in shards")

    @property
    def encoder_layers(self) -> int:
        return self.model.layers if self.model.encoder_layers is None else self.model.encoder_layers

    def must_find_its_data(self) -> None:
        from isograd.lab.data.pairs import must_be_there

        for name in (*self.pairs.train, *self.pairs.valid):
            must_be_there(name, self.pairs.source, self.pairs.target)

    def folder_name(self) -> str:
        encoder = self.model.encoder_placement
        return f"{encoder}+{super().folder_name()}" if encoder else super().folder_name()

    @property
    def places(self) -> int:
        return self.pairs.longest

    @property
    def vocabulary(self) -> str | None:
        return None if self.pairs.vocabulary == "model" else self.pairs.vocabulary

    @property
    def tokens_per_update(self) -> int:
        return self.training.tokens

    @property
    def corpus_key(self) -> Any:
        return self.task, self.pairs, self.pretrained

    def micro_batch(self, processes: int) -> int:
        return 1  # a sample is a whole micro-batch

    def micro_tokens(self, devices: int) -> int:
        passes = self.training.accumulation * devices
        if self.training.tokens < passes:
            raise RecipeError(f"training.tokens={self.training.tokens} is less than one for each of {passes} passes")
        return self.training.tokens // passes

    def config(self) -> "IsogradConfig":
        rows = CHARACTERS if self.pairs.vocabulary == "char" else self.pairs.vocab_size
        return self.config_with(vocab_size=rows, encoder_vocab_size=None if self.pairs.joint else rows)

    def config_with(self, **facts: Any) -> "IsogradConfig":
        """The configuration, with what is known of the vocabularies."""
        longest = self.pairs.longest + 1  # with its </s>
        most = max(longest, int(self.search.stretch * longest + self.search.extra)) + 1
        layers = self.encoder_layers
        return config_from(self, **{"encoder_layers": layers, "max_position_embeddings": most} | facts)


class Translation(Task):
    """See `Task`. `training.tokens` is the global batch: a micro-batch holds its share of them."""

    name = "translation"
    model = "IsogradForSeq2SeqLM"
    recipe = TranslationRun
    extra = "mt"
    judged = "validation_loss"
    outcome_fields = ("perplexity", "bleu", "kept_weights", "kept_steps")
    stacks = ("encoder", "decoder")
    columns = (
        LABEL,
        OUTCOME,
        Column(name="validation loss", short="valid", field="validation_loss", form="{:.3f}"),
        Column(name="perplexity", short="ppl", field="perplexity", form="{:.2f}", spare=5),
        Column(name="BLEU", short="BLEU", field="bleu", form="{:.1f}"),
        Column(name="weights", short="weights", field="kept_weights", spare=2),
        Column(name="training loss", short="train", field="final_loss", form="{:.3f}", spare=1),
        Column(name="first/last gradient ratio, encoder", short="g1/gL enc", field="gradient_ratio_encoder", spare=3),
        Column(name="decoder", short="g1/gL dec", field="gradient_ratio", spare=6),
        replace(SPEED, spare=4),
    )
    captions = MappingProxyType(
        {
            "page": "Validation loss (nats per target token, without label smoothing), perplexity and BLEU (sacrebleu,"
            " detokenized) of held-out pairs, of the weights that were kept; training loss: mean of the last 20 steps.",
            "table": f"valid, ppl, BLEU: of held-out pairs, nats per token; g1/gL of encoder, decoder: {GRADIENT}",
        }
    )
    charts = ("validation", "loss", "comparison")
    run: TranslationRun
    corpus: "ParallelCorpus"
    samples: "TokenBatches"
    updates_per_epoch: int

    def __init__(self, run: TranslationRun, corpus: "ParallelCorpus | None" = None) -> None:
        from accelerate import PartialState

        from isograd.lab.data.batches import loss_by_place
        from isograd.lab.data.parallel import load_parallel

        settings = {name: value for name, value in vars(run.pairs).items() if name != "pool"}
        self.pretrained = pretrained_of(run)
        if self.pretrained:
            settings |= {"vocabulary": "char", "tokenizer": self.pretrained.translator}
        self.corpus = corpus or load_parallel(**settings)
        self.source, self.sha256 = self.corpus.source, with_weights(self.corpus.sha256, self.pretrained)
        self.unigram_entropy = self.corpus.unigram_entropy
        self.held_out = self._held_out(run.training.valid_pairs)
        self.blind_loss = loss_by_place(
            self.corpus.train_target, self.held_out[1], self.corpus.tokenizer.target.vocab_size
        )
        processes = PartialState().num_processes
        self.samples, micro = self._batches(run, processes), run.training.accumulation * processes
        self.updates_per_epoch = max(1, self.samples.until(1) // micro)
        if run.training.epochs:
            run = with_steps(run, min(run.training.steps, -(-self.samples.until(run.training.epochs) // micro)))
        self.samples.batches = run.training.steps * micro
        self.run = run
        self.comparable = run.training.label_smoothing == 0

    def _held_out(self, wanted: int) -> "tuple[Ragged, Ragged]":
        """Both sides of the first `wanted` validation pairs; 0: of all."""
        import numpy as np

        both = self.corpus.valid_source, self.corpus.valid_target
        if not wanted:
            return both
        source, target = (rows.rows(np.arange(len(rows)) < wanted) for rows in both)
        return source, target

    def held_out_unigram(self) -> float | None:
        """A model that sees no other token knows how often tokens stand at each place, or how often at all."""
        assert self.blind_loss is not None
        return min(self.blind_loss, self.unigram_entropy)

    def _batches(self, run: TranslationRun, processes: int) -> "TokenBatches":
        from isograd.lab.data.batches import TokenBatches

        return TokenBatches(
            self.corpus.train_source,
            self.corpus.train_target,
            tokens=run.micro_tokens(processes),
            pad=self.corpus.tokenizer.source.pad_id,
            seed=run.data_seed,
            pool=run.pairs.pool,
        )

    def config(self) -> "IsogradConfig":
        source, target = self.corpus.tokenizer.source, self.corpus.tokenizer.target
        config = self.run.config_with(
            vocab_size=target.vocab_size,
            encoder_vocab_size=None if source.vocab_size == target.vocab_size else source.vocab_size,
            pad_token_id=target.pad_id,
            bos_token_id=target.bos_id,
            eos_token_id=target.eos_id,
            decoder_start_token_id=target.eos_id,
        )
        self._check_positions(config)
        return config

    def _check_positions(self, config: "IsogradConfig") -> None:
        """Validation pairs are as long as they are; a learned table ends."""
        held_out = max(int(rows.lengths.max()) for rows in (self.corpus.valid_source, self.corpus.valid_target))
        if config.position_embedding_type == "learned" and held_out > config.max_position_embeddings:
            raise RecipeError(
                f"model.positions=learned has {config.max_position_embeddings} positions with"
                f" pairs.longest={self.run.pairs.longest}, and a validation pair has {held_out} tokens"
            )

    def build(self, config: "IsogradConfig") -> Any:
        """A fresh model, which keeps the recipe's search as its own in generation_config.json."""
        model = super().build(config)
        s = self.run.search
        model.generation_config.update(num_beams=s.beam, max_length=config.max_position_embeddings)
        if s.beam > 1:  # transformers refuses them without beams
            model.generation_config.update(length_penalty=s.length_penalty, early_stopping=s.early_stopping)
        return model

    def first_batch(self, process: int = 0, processes: int = 1) -> "Mapping[str, Tensor]":
        return self.samples[process]

    def tokens_per_update(self) -> float:
        """Target tokens."""
        return float(self.corpus.train_target.lengths.sum()) / self.updates_per_epoch

    def _validate(self, model: "nn.Module") -> dict[str, float | None]:
        """ "loss" over the held-out pairs (`training.valid_pairs`), unsmoothed, nats per target token; "perplexity";
        "bleu" of `search.pairs`.

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

    def _loss(self, model: "nn.Module") -> float:
        from isograd.lab.data.batches import TokenBatches
        from isograd.transformer.loss import IGNORE

        source, target = self.held_out
        pad = self.corpus.tokenizer.source.pad_id
        batches = TokenBatches(source, target, tokens=self.run.training.tokens, pad=pad)
        every = map(batches.__getitem__, range(len(batches)))
        loss = self.mean_loss(model, ((batch, int((batch["labels"] != IGNORE).sum())) for batch in every))
        assert loss is not None
        return loss

    def _bleu(self, model: "nn.Module") -> float:
        from isograd.lab.evaluate.scores import bleu_of
        from isograd.models import IsogradForSeq2SeqLM
        from isograd.models.search import translate_ids

        count = min(self.run.search.pairs, len(self.corpus.valid_source))
        assert isinstance(model, IsogradForSeq2SeqLM)
        s = self.run.search
        sources = [self.corpus.valid_source[i].tolist() for i in range(count)]
        results = translate_ids(model, sources, **{name: value for name, value in vars(s).items() if name != "pairs"})
        found = {index: hypotheses[0].tokens for index, hypotheses in results}
        lines = self.corpus.tokenizer.target.decode([found[i] for i in range(count)])
        pairs = self.run.pairs
        return bleu_of(lines, self.corpus.valid_lines[1][:count], tokenized=pairs.tokenized, language=pairs.target)

    def facts(self) -> dict[str, Any]:
        corpus = self.corpus
        return {
            "source": corpus.source,
            "sha256": self.sha256,
            "pairs": corpus.counts,
            "valid_pairs": len(self.held_out[0]),
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
