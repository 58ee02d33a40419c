"""A run: the whole recipe of one training as a frozen dataclass."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Precision = Literal["fp32", "bf16", "fp16"]
Optimizer = Literal["adam", "adamw", "sgd", "radam", "radam-original", "lamb"]
Tracker = Literal["tensorboard", "wandb", "trackio"]
Decay = Literal["constant", "linear", "cosine", "inverse-sqrt", "polynomial", "step"]
Task = Literal["language", "translation"]
Smoothing = Literal["torch", "fairseq"]
First = Literal["xiong", "fairseq"]
Select = Literal["last", "best", "average"]
Vocabulary = Literal["bpe", "unigram", "char", "subword-nmt"]


class RecipeError(ValueError):
    """A recipe or an override that cannot be used; the message says which key and what to type instead."""


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
    start: str | None = None
    initializer_range: float = 0.02
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    embedding_dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is read. `seed` None takes the run's seed for the order."""

    source: str = "embedded"
    valid: str | None = None
    field: str = "text"
    level: Literal["char", "bpe"] = "char"
    vocab_size: int = 8192  # of the BPE
    length: int = 32
    seed: int | None = None


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
class Training:
    """How it is trained.

    `batch` is the global batch in sequences, devices x accumulation x micro-batch; in a translation `tokens` is, the
    larger side with its padding counted.
    """

    steps: int = 300
    epochs: int = 0  # of a translation; 0: `steps` alone decides, else whichever ends first
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
    probe_every: int = 10  # 0: no probe
    checkpoint_every: int = 100  # 0: none; a killed run then starts anew
    valid_sequences: int = 512
    valid_every: int = 0  # updates between validations of a translation; 0: once per epoch
    patience: int = 0  # validations without a lower loss after which training stops; 0: none
    select: Select = "last"  # which weights are kept: the last, those of the lowest validation loss, or an average
    average: int = 5  # how many validated checkpoints "average" takes
    track: tuple[Tracker, ...] = ()  # transformers' integrations


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training, whole."""

    name: str | None = None
    task: Task = "language"
    seed: int = 0
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    pairs: Pairs = field(default_factory=Pairs)
    search: Search = field(default_factory=Search)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        _check_task(self)
        _check_training(self.training)
        for key in ("norm_eps", "initializer_range"):
            if not 0 < getattr(self.model, key) < math.inf:
                raise RecipeError(f"model.{key}={getattr(self.model, key)} must be finite and above 0")
        for key in ("data.length", "data.vocab_size", "pairs.vocab_size", "pairs.longest", "search.beam"):
            _at_least(self, key, 1)
        for key in ("pairs.ratio", "pairs.pool", "search.extra", "search.stretch", "search.pairs"):
            _at_least(self, key, 0)
        if not abs(self.search.length_penalty) <= 50:  # beyond it lengths to this power are no numbers
            raise RecipeError(f"search.length_penalty={self.search.length_penalty} must be from -50 to 50")
        for key, seed in (("seed", self.seed), ("data.seed", self.data_seed)):
            if not 0 <= seed < 2**32:
                raise RecipeError(f"{key}={seed} must be in [0, 2^32)")
        t = self.training
        if self.task == "translation":
            _check_translation(self)
        elif t.batch % t.accumulation:
            raise RecipeError(f"training.batch={t.batch} does not divide by training.accumulation={t.accumulation}")

    @property
    def encoder_layers(self) -> int | None:
        """Layers of the encoder; None in a model of one tower."""
        if self.task == "language":
            return None
        return self.model.layers if self.model.encoder_layers is None else self.model.encoder_layers

    @property
    def data_seed(self) -> int:
        return self.seed if self.data.seed is None else self.data.seed

    def as_dict(self) -> dict[str, Any]:
        """Plain nested data, as it is written to run.json."""
        return json.loads(json.dumps(asdict(self)))

    def key(self) -> str:
        """Ten hexadecimal digits of everything that can change a number (not the name)."""
        content = {k: v for k, v in self.as_dict().items() if k != "name"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


_LANGUAGE = ("data.source", "data.valid", "data.field", "data.level", "data.vocab_size", "data.length")
_TRANSLATION = ("epochs", "tokens", "smoothing", "valid_every", "patience", "select", "average")
ONLY: dict[Task, tuple[str, ...]] = {  # keys that one task alone reads
    "language": (*_LANGUAGE, "training.batch", "training.valid_sequences"),
    "translation": (
        "model.encoder_layers",
        "model.share_embeddings",
        *(f"pairs.{f.name}" for f in fields(Pairs)),
        *(f"search.{f.name}" for f in fields(Search)),
        *(f"training.{name}" for name in _TRANSLATION),
    ),
}
_NOT_NEGATIVE = ("epochs", "warmup", "warmup_from", "decay_to", "decay_at", "power", "weight_decay", "clip", "eps")
_COUNTS = ("probe_every", "checkpoint_every", "valid_sequences", "valid_every", "patience")


def _value(of: Any, key: str) -> Any:
    for part in key.split("."):
        of = getattr(of, part)
    return of


def _at_least(run: Run, key: str, least: float) -> None:
    if not least <= _value(run, key) < math.inf:
        raise RecipeError(f"{key}={_value(run, key)} must be at least {least:g}")


def _check_task(run: Run) -> None:
    """What the other task reads must be at its default: set, it would change nothing."""
    sections = {"model": Model(), "data": Data(), "pairs": Pairs(), "search": Search(), "training": Training()}
    for task, keys in ONLY.items():
        for key in keys if task != run.task else ():
            section, name = key.split(".")
            if _value(run, key) != getattr(sections[section], name):
                raise RecipeError(f"{key} is read by task={task} only, and this is task={run.task}")


def _check_training(t: Training) -> None:
    for key in ("steps", "batch", "tokens", "accumulation", "average"):
        if getattr(t, key) < 1:
            raise RecipeError(f"training.{key}={getattr(t, key)} must be at least 1")
    for key in (*_NOT_NEGATIVE, *_COUNTS):
        if not 0 <= getattr(t, key) < math.inf:
            raise RecipeError(f"training.{key}={getattr(t, key)} must be finite and not negative")
    if not 0 < t.lr < math.inf:
        raise RecipeError(f"training.lr={t.lr} must be finite and above 0")
    if not all(0 <= beta < 1 for beta in t.betas):
        raise RecipeError(f"training.betas={list(t.betas)} must be in [0, 1)")
    if t.warmup >= t.steps and t.decay in ("linear", "cosine", "polynomial"):
        raise RecipeError(
            f"training.warmup={t.warmup} leaves no step of training.steps={t.steps} for decay {t.decay!r}"
        )
    _check_schedule(t)
    if t.fsdp and t.optimizer == "lamb":
        raise RecipeError("training.optimizer=lamb cannot run on shards (training.fsdp=true); take another optimizer")
    if not 0 <= t.label_smoothing < 1:
        raise RecipeError(f"training.label_smoothing={t.label_smoothing} must be in [0, 1)")


def _check_schedule(t: Training) -> None:
    """What the chosen decay does not read must be at its default."""
    reads: dict[str, tuple[Decay, ...]] = {
        "decay_to": ("linear", "polynomial", "cosine"),
        "decay_at": ("step", "inverse-sqrt"),
        "power": ("polynomial",),
    }
    for key, decays in reads.items():
        if getattr(t, key) != getattr(Training, key) and t.decay not in decays:
            raise RecipeError(f"training.{key} is read by training.decay={' or '.join(decays)}, and this is {t.decay}")
    if t.decay == "step" and not t.decay_at:
        raise RecipeError("training.decay=step needs training.decay_at: when the rate falls to a tenth")
    if t.warmup_from and not t.warmup:
        raise RecipeError("training.warmup_from is the rate before a warm-up, and training.warmup=0")
    for key in ("warmup_from", "decay_to"):
        if getattr(t, key) > t.lr:
            raise RecipeError(f"training.{key}={getattr(t, key)} is above the peak training.lr={t.lr}")
    if not t.power:
        raise RecipeError("training.power=0 never decays; it must be above 0")
    last, unit = (t.epochs, "epochs") if t.epochs else (t.steps, "steps")
    if t.decay_at > last:
        raise RecipeError(f"training.decay_at={t.decay_at} comes after the last of training.{unit}={last}")


def _check_translation(run: Run) -> None:
    pairs = run.pairs
    if not pairs.train:
        raise RecipeError("pairs.train is empty; name at least one source of parallel text, or 'numbers'")
    if pairs.source == pairs.target:
        raise RecipeError(f"pairs.source and pairs.target are both {pairs.source!r}")
    if run.model.share_embeddings and not (pairs.joint and run.model.tie_embeddings):
        raise RecipeError("model.share_embeddings=true needs pairs.joint=true and model.tie_embeddings=true")
    if (pairs.vocabulary == "subword-nmt") != bool(pairs.codes):
        raise RecipeError("pairs.vocabulary=subword-nmt and pairs.codes (the file of merges) belong together")
    if pairs.dictionaries and pairs.vocabulary != "subword-nmt":
        raise RecipeError("pairs.dictionaries is for pairs.vocabulary=subword-nmt")
    if len(pairs.dictionaries) not in ((0, 1) if pairs.joint else (0, 2)):
        raise RecipeError("pairs.dictionaries takes one joined file with pairs.joint=true, and two files without")
    if 0 < pairs.ratio < 1:
        raise RecipeError(f"pairs.ratio={pairs.ratio} must be at least 1 (longer side to shorter), or 0 for any")
    if run.training.fsdp and (run.search.pairs or run.training.select != "last"):
        raise RecipeError("training.fsdp=true needs search.pairs=0 and training.select=last: weights lie in shards")
