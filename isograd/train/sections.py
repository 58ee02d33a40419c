"""The sections of a recipe, each a frozen dataclass; `isograd.train.run.Run` holds them all."""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp32", "bf16", "fp16"]
Optimizer = Literal["adam", "adamw", "sgd", "radam", "radam-original", "lamb"]
Tracker = Literal["tensorboard", "wandb", "trackio"]
Decay = Literal["constant", "linear", "cosine", "inverse-sqrt", "polynomial", "step"]
Task = Literal["language", "masked", "translation", "classification"]
Packing = Literal["stream", "full-sentences", "segment-pair"]
GlueTask = Literal["mrpc", "rte", "cola", "sst-2", "sts-b"]
Smoothing = Literal["torch", "fairseq"]
First = Literal["xiong", "fairseq"]
Kept = Literal["last", "best", "average"]
Select = Kept | Literal["auto"]
Vocabulary = Literal["bpe", "unigram", "char", "subword-nmt"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """The shape of the model; see `isograd.IsogradConfig` for each term."""

    placement: str = "pre-ln"
    layers: int = 12  # of the decoder in a translation
    encoder_layers: int | None = None  # of a translation's encoder; None: as many as `layers`
    width: int = 64
    heads: int = 4
    ffn: int | None = None  # None: 4 x width
    act: str = "gelu"
    norm: str = "layernorm"
    norm_eps: float = 1e-5
    bias: bool = True
    positions: str = "sinusoidal"
    scale_embedding: bool = True
    embedding_norm: bool = False
    tie_embeddings: bool = True
    share_embeddings: bool = False  # one table for encoder, decoder and head (joint vocabulary)
    init: str | None = None
    initializer_range: float = 0.02
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    embedding_dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is read. `seed` None takes the run's seed for the order.

    `packing` is how a masked LM's sequences are cut, in RoBERTa's words; see `isograd.data.masking`.
    """

    source: str | tuple[str, ...] = "embedded"  # several are read as one
    valid: str | None = None
    field: str = "text"
    documents: Literal["file", "blank-line"] = "file"  # what ends a document of a text file
    level: Literal["char", "bpe"] = "char"
    vocab_size: int = 8192  # of the BPE
    length: int = 32
    seed: int | None = None
    packing: Packing = "full-sentences"
    mask: float = 0.15  # of the tokens are predicted: of these
    mask_random: float = 0.1  # are replaced by another token,
    mask_kept: float = 0.1  # stay as they are, and the rest becomes <mask>


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Parallel text of a translation; see `isograd.data.parallel.load_parallel` for each term."""

    train: tuple[str, ...] = ("numbers",)
    valid: tuple[str, ...] = ()  # none: 500 pairs of `train` are held out
    source: str = "de"
    target: str = "en"
    vocabulary: Vocabulary = "bpe"
    vocab_size: int = 8000
    joint: bool = True
    codes: str | None = None  # subword-nmt's merges
    dictionaries: tuple[str, ...] = ()  # fairseq's: one joined, or source and target
    tokenized: bool = False  # the text is Moses-tokenised; scores are of the detokenised text
    longest: int = 250  # tokens of a side; longer pairs are left out and counted
    ratio: float = 0.0  # of the longer side to the shorter one, in tokens; 0: any
    pool: int = 0  # pairs that are sorted by length together; 0: all


@dataclass(frozen=True, kw_only=True)
class Search:
    """How a translation is searched for; see `isograd.models.search.search`."""

    beam: int = 5
    length_penalty: float = 1.0
    early_stopping: bool = False  # stop when `beam` hypotheses are finished, as fairseq and the papers do
    extra: int = 50  # a hypothesis has at most `stretch` x source + `extra` tokens
    stretch: float = 1.0
    pairs: int = 500  # of the validation set that are translated for the BLEU during training; 0: none


@dataclass(frozen=True, kw_only=True)
class Glue:
    """What a pre-trained model is fine-tuned on; see `isograd.data.glue.load_glue`."""

    task: GlueTask = "mrpc"
    source: str = "nyu-mll/glue"  # a folder of .tsv files, or a data set on the hub
    model: str | None = None  # a pre-trained model's folder or hub name, or a run's folder
    scratch: bool = False  # take the shape and the tokenizer of `model`, and fresh weights
    length: int = 128  # tokens of a sequence; longer ones are cut
    warmup: float = 0.06  # of all updates
    dropout: float | None = None  # in place of the pre-trained model's: on branches, the embedding, and in the head
    attention_dropout: float | None = None
    keep: bool = False  # the fine-tuned model, in the run's folder


@dataclass(frozen=True, kw_only=True)
class Training:
    """How it is trained.

    `batch` is the global batch in sequences, devices x accumulation x micro-batch; in a translation `tokens` is, the
    larger side with its padding counted.
    """

    steps: int = 300
    epochs: int = 0  # of a task that has epochs; 0: `steps` alone decides, else whichever ends first
    batch: int = 16
    tokens: int = 4096
    accumulation: int = 1
    lr: float = 1e-3
    warmup: int = 0
    first: First = "xiong"  # update t = 1, 2, .. runs at the rate of t ("xiong") or of t - 1 ("fairseq")
    warmup_from: float = 0.0  # the rate before the warm-up
    decay: Decay = "constant"
    decay_to: float = 0.0  # the rate at the end of "linear", "polynomial" and "cosine"
    decay_at: int = 0  # when "step" (to a tenth) or "inverse-sqrt" begins: an update, or an epoch if epochs is set
    power: float = 1.0  # of "polynomial"
    optimizer: Optimizer = "adam"
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    smoothing: Smoothing = "torch"  # eps/V on every class, or fairseq's eps/(V-1) on every other class
    clip: float = 0.0  # 0: no clipping
    precision: Precision = "fp32"
    compile: bool = False
    gradient_checkpointing: bool = False
    fsdp: bool = False
    deepspeed: str | None = None  # a DeepSpeed configuration in JSON (its path); see `isograd.train.zero`
    probe_every: int = 10  # 0: no probe
    checkpoint_every: int = 100  # 0: none; a killed run then starts anew
    valid_sequences: int = 512
    valid_every: int = 0  # updates between validations; 0: once per epoch, or at the end where there are no epochs
    patience: int = 0  # validations without a lower loss after which training stops; 0: none
    select: Select = "last"  # which weights are kept: the last, those of the lowest validation loss ("best"), an
    # average, or of these three what has the lowest validation loss at the end ("auto")
    average: int = 5  # how many validated checkpoints an average takes, the last ones
    stop_when_broken: bool = False  # stop where the loss breaks, and say at which rate; see `isograd.outcome.LossWatch`
    track: tuple[Tracker, ...] = ()  # transformers' integrations
