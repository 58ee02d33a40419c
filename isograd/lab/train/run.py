"""A run: its whole recipe as a frozen dataclass. What only one task reads, that task adds (its file in `tasks`)."""

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

from isograd.errors import RecipeError
from isograd.placement import Placement, get

if TYPE_CHECKING:
    from isograd.models import IsogradConfig

R = TypeVar("R", bound="Run")
Precision = Literal["fp32", "bf16", "fp16"]
Optimizer = Literal["adam", "adamw", "sgd", "radam", "radam-original", "lamb", "muon"]
Tracker = Literal["tensorboard", "wandb", "trackio"]
Decay = Literal["constant", "linear", "cosine", "inverse-sqrt", "polynomial", "step", "stable"]
Smoothing = Literal["torch", "fairseq"]
First = Literal["xiong", "fairseq"]
Recover = Literal["rollback", "lower-rate"]
Kept = Literal["last", "best", "average"]
Select = Kept | Literal["auto"]
MOST_LAYERS = 4096  # of a stack; four times the deepest ones published
# keys that were added later: at these values a run is the one that it was without them
GONE = {"deepspeed": None}  # settings of training that are no more: written down, so that runs keep their names
LATER = {"stop_at": 0, "recover": None, "recoveries": 3, "keep_optimizer": False, "decay_all": False}
MODEL_LATER = (  # and of the model: at their defaults they are neither written down nor handed on
    "from_",
    "optimizer_state",
    "kv_heads",
    "head_dim",
    "rope",
    "rope_interleaved",
    "sliding_window",
    "layer_types",
    "attention_multiplier",
    "logits_scale",
    "logits_cap",
    "norm_bias",
)
MOST = 2**31 - 1  # of whatever is counted, in one update or altogether


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Of a model that has its shape from elsewhere, this alone is said."""

    placement: str = "pre-ln"

    def options(self) -> dict[str, Any]:
        """What the model's configuration takes, by the recipe's names."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Model(Placed):
    """The shape of the model; see `isograd.IsogradConfig` for each term."""

    from_: str | None = None  # a trained model, a folder or a hub name: its shape, tokenizer and weights; `from`
    optimizer_state: Literal["fresh", "stored"] = "fresh"  # "stored": what `training.keep_optimizer` left beside it
    layers: int = 12  # of the decoder in a translation
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
    init: str | None = None
    initializer_range: float = 0.02
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    embedding_dropout: float = 0.0
    kv_heads: int | None = None  # heads of keys and values; None: as many as `heads`
    head_dim: int | None = None  # None: width / heads
    rope: dict[str, Any] | None = None  # transformers' rules of rotary scaling, with `positions: rotary`
    rope_interleaved: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    attention_multiplier: float | None = None
    logits_scale: float = 1.0
    logits_cap: float | None = None
    norm_bias: bool = True

    def options(self) -> dict[str, Any]:
        options = {name: value for name, value in super().options().items() if not _as_before(name, value)}
        for name in ("from_", "optimizer_state"):
            options.pop(name, None)
        if "rope" in options and self.positions != "rotary":
            raise RecipeError(f"model.rope needs model.positions=rotary, and here they are {self.positions}")
        if "layer_types" in options:
            options["layer_types"] = list(options["layer_types"])
        return options

    def __post_init__(self) -> None:
        if self.optimizer_state == "stored" and self.from_ is None:
            raise RecipeError("model.optimizer_state=stored needs model.from: the model that it belongs to")
        for key in ("norm_eps", "initializer_range"):
            if not 0 < getattr(self, key) < math.inf:
                raise RecipeError(f"model.{key}={getattr(self, key)} must be finite and above 0")


def _as_before(name: str, value: Any) -> bool:
    """Whether it is a key that was added later, at its default."""
    return name in MODEL_LATER and bool(value == getattr(Model, name))


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is read, and in which order. `seed` None takes the run's seed for the order."""

    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained, whatever the task; each task adds how large a batch is."""

    steps: int = 300
    accumulation: int = 1
    lr: float = 1e-3
    warmup: int = 0
    first: First = "xiong"  # update t = 1, 2, .. runs at the rate of t ("xiong") or of t - 1 ("fairseq")
    warmup_from: float = 0.0  # the rate before the warm-up
    decay: Decay = "constant"
    decay_to: float = 0.0  # the rate at the end of "linear", "polynomial", "cosine" and "stable"
    # when "step" (to a tenth), "inverse-sqrt" or "stable" begins: an update, or an epoch where `epochs` is set; at 0
    # "stable" falls in the last fifth
    decay_at: int = 0
    power: float = 1.0  # of "polynomial"
    optimizer: Optimizer = "adam"
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay_all: bool = False  # whether weight decay acts on every parameter, as fairseq's does, not on matrices alone
    clip: float = 0.0  # 0: no clipping
    precision: Precision = "fp32"
    compile: bool = False
    gradient_checkpointing: bool = False
    fsdp: bool = False
    probe_every: int = 10  # 0: no probe
    checkpoint_every: int = 100  # 0: none; a killed run then starts anew
    valid_every: int = 0  # updates between validations; 0: once per epoch, or at the end where there are no epochs
    patience: int = 0  # validations without a lower loss after which training stops; 0: none
    select: Select = "last"  # which weights are kept: the last, those of the lowest validation loss ("best"), an
    # average, or of these three what has the lowest validation loss at the end ("auto")
    average: int = 5  # how many validated checkpoints an average takes, the last ones
    profile_dropout: float | None = None  # of ADMIN's profile, on embedding and branches; None: as the model is trained
    track: tuple[Tracker, ...] = ()  # transformers' integrations
    recover: Recover | None = None  # where the loss leaves its course: back to the last good state and on with the next
    # batches, "lower-rate" at half the rate
    recoveries: int = 3  # how often at most
    keep_optimizer: bool = False  # its state beside the model, for a run with model.optimizer_state=stored
    stop_at: int = 0  # the update after which the run ends, its schedule that of `steps`; 0: the last one

    # Without a type these are no keys of a recipe: what a task trains with that has none of its own.
    epochs = 0
    label_smoothing = 0.0
    smoothing = "torch"
    stop_when_broken = cast("bool | str", False)

    def __post_init__(self) -> None:
        _check_training(self)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, whole: the keys of every task. A task's own class has its sections, and says how large a batch is.

    Attributes:
        from_key, length_key: the keys that name a model to be trained further, and the longest sequence.
        vocabulary: "char", "bpe", ..: how text becomes ids; None where a pre-trained model decides it.
        predicted: the share of tokens that the head of a language model is asked for.
        sized: whether the recipe alone gives the model's shape.
        counts_rows: how many updates there are, only the data say.
    """

    name: str | None = None
    task: str
    seed: int = 0
    model: Placed
    data: Data = field(default_factory=Data)
    training: Training

    from_key: ClassVar[str] = "model.from"
    length_key: ClassVar[str] = "data.length"
    sized: ClassVar[bool] = True
    counts_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for key, seed in (("seed", self.seed), ("data.seed", self.data_seed)):
            if not 0 <= seed < 2**32:
                raise RecipeError(f"{key}={seed} must be in [0, 2^32)")
        for name, section in vars(self).items():
            for key, value in vars(section).items() if is_dataclass(section) else ():
                if isinstance(value, int) and value > MOST and key != "seed":
                    raise RecipeError(f"{name}.{key}={value} must be at most {MOST:,}")
        for key, layers in (("layers", self.layers), ("encoder_layers", self.encoder_layers)):
            if layers is not None and layers > MOST_LAYERS:
                raise RecipeError(f"model.{key}={layers} must be at most {MOST_LAYERS:,}")
        shards = sharded_by(self.training)
        if shards and self.training.select != "last":
            raise RecipeError(f"{shards} needs training.select=last: weights lie in shards")

    def entry(self) -> Placement | None:
        """The placement's entry; None of a model that is not isograd's.

        Raises:
            UnknownPlacement: there is none of this name.
        """
        return get(self.model.placement)

    @property
    def layers(self) -> int | None:
        """Layers of the only stack, or of the decoder; None where a pre-trained model has them."""
        return self.model.layers if isinstance(self.model, Model) else None

    @property
    def encoder_layers(self) -> int | None:
        """Layers of the encoder; None in a model of one stack."""
        return None

    @property
    def pretrained(self) -> str | None:
        """The model that is trained further; None where weights are drawn."""
        return self.model.from_ if isinstance(self.model, Model) else None

    @property
    def stored_optimizer(self) -> bool:
        """Whether the optimizer begins with the state that lies beside that model."""
        return isinstance(self.model, Model) and self.model.optimizer_state == "stored"

    @property
    def data_seed(self) -> int:
        return self.seed if self.data.seed is None else self.data.seed

    @property
    def places(self) -> int:
        """Tokens of a sequence, at most."""
        raise NotImplementedError

    @property
    def vocabulary(self) -> str | None:
        return None

    @property
    def predicted(self) -> float:
        return 1.0

    @property
    def tokens_per_update(self) -> int:
        """Of all devices together, padding counted."""
        raise NotImplementedError

    @property
    def warmup_in_words(self) -> str:
        return f"warm-up {self.training.warmup:,}"

    @property
    def keeps_model(self) -> bool:
        return True

    @property
    def corpus_key(self) -> Any:
        """Runs that agree in this read the same corpus."""
        return self.task, self.data, self.pretrained

    def micro_batch(self, processes: int) -> int:
        """Samples of one process in one pass."""
        raise NotImplementedError

    def micro_tokens(self, devices: int) -> int:
        """Tokens that one device reads in one pass; of a translation, on each side at most.

        Raises:
            RecipeError: the batch does not divide.
        """
        return self.micro_batch(devices) * self.places

    def config(self) -> "IsogradConfig":
        """The configuration of the run's model, as far as it is known without data.

        Raises:
            RecipeError: a value that no model has; a pre-trained model whose configuration is not here.
        """
        raise NotImplementedError

    def must_find_its_data(self) -> None:
        """Refuse files that are not there, and names out of reach, before anything is loaded.

        Raises:
            DataError: with what was looked for.
        """

    def folder_name(self) -> str:
        """A folder's name that people can read and that no other run has."""
        t, encoder = self.training, "" if self.encoder_layers is None else f"{self.encoder_layers}l-"
        encoder = f"from-{short_name(self.pretrained)}-{encoder}" if self.pretrained else encoder
        return f"{self.model.placement}-{encoder}{self.layers}l-lr{t.lr:g}-w{t.warmup}-s{self.seed}-{self.key()}"

    def described(self) -> dict[str, Any]:
        """The settings that stand beside an outcome."""
        return {
            "placement": self.model.placement,
            "layers": self.layers,
            "lr": self.training.lr,
            "warmup": self.training.warmup,
            "seed": self.seed,
            "task": self.task,
            "encoder_layers": self.encoder_layers,
        } | ({"from": self.pretrained} if self.pretrained else {})

    def as_dict(self, everything: bool = False) -> dict[str, Any]:
        """Plain nested data, as it is written to run.json; the training comes last.

        Args:
            everything: also the keys of `LATER` and `MODEL_LATER` that are at their defaults.
        """
        content = json.loads(json.dumps(asdict(self)))
        model = content["model"].items()
        model_ = {key: value for key, value in model if everything or not _as_before(key, value)}
        content["model"] = {written(key): value for key, value in model_.items()}
        training = content.pop("training")
        training = {key: value for key, value in training.items() if everything or LATER.get(key, ...) != value}
        return content | {"training": training if everything else training | GONE}

    def key(self) -> str:
        """Ten hexadecimal digits of everything that can change a number (not the name)."""
        content = {k: v for k, v in self.as_dict().items() if k != "name"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def written(field_name: str) -> str:
    """The key of a field whose own name is a word of Python's.

    >>> written("from_"), written("layers")
    ('from', 'layers')
    """
    return field_name.rstrip("_")


def short_name(model: str) -> str:
    """What a folder's name says of a model's place.

    >>> short_name("runs/mine/model/"), short_name("openai-community/gpt2"), short_name(".")
    ('mine', 'gpt2', 'here')
    """
    parts = [part for part in Path(model).parts if part not in ("/", "..")]
    named = parts[:-1] if len(parts) > 1 and parts[-1] == "model" else parts
    return re.sub(r"[^\w.-]", "-", named[-1]) if named else "here"


def with_steps(run: R, steps: int) -> R:
    """The run with so many updates."""
    return replace(run, training=replace(run.training, steps=steps))


def sharded_by(training: Training) -> str | None:
    """The setting by which parameters, or what belongs to them, lie in shards; None where each device has all.

    >>> sharded_by(Training(fsdp=True)), sharded_by(Training())
    ('training.fsdp=true', None)
    """
    return "training.fsdp=true" if training.fsdp else None


def at_least(least: float, section: str, of: object, *keys: str) -> None:
    """Refuse a number of this section that is less, or not finite."""
    for key in keys:
        if not least <= getattr(of, key) < math.inf:
            raise RecipeError(f"{section}.{key}={getattr(of, key)} must be at least {least:g}")


def share(section: str, of: object, *keys: str) -> None:
    """Refuse a number of this section that is not in [0, 1); None is none."""
    for key in keys:
        value = getattr(of, key)
        if value is not None and not 0 <= value < 1:
            raise RecipeError(f"{section}.{key}={value} must be in [0, 1)")


_NOT_NEGATIVE = ("warmup", "warmup_from", "decay_to", "decay_at", "power", "weight_decay", "clip", "eps")
_COUNTS = ("recoveries", "epochs", "probe_every", "checkpoint_every", "valid_every", "patience", "stop_at")


def _check_training(t: Training) -> None:
    at_least(1, "training", t, "steps", "accumulation", "average")
    for key in (*_NOT_NEGATIVE, *_COUNTS):
        if not 0 <= getattr(t, key) < math.inf:
            raise RecipeError(f"training.{key}={getattr(t, key)} must be finite and not negative")
    if t.stop_at > t.steps:
        raise RecipeError(f"training.stop_at={t.stop_at} comes after the last of training.steps={t.steps}")
    if not 0 < t.lr < math.inf:
        raise RecipeError(f"training.lr={t.lr} must be finite and above 0")
    if not all(0 <= beta < 1 for beta in t.betas):
        raise RecipeError(f"training.betas={list(t.betas)} must be in [0, 1)")
    if t.warmup >= t.steps and t.decay in ("linear", "cosine", "polynomial"):
        raise RecipeError(
            f"training.warmup={t.warmup} must be smaller than training.steps={t.steps} with decay {t.decay!r}"
        )
    _check_schedule(t)
    shards = sharded_by(t)
    if shards and t.optimizer in ("lamb", "muon"):
        raise RecipeError(f"training.optimizer={t.optimizer} cannot run on shards ({shards}); take another optimizer")
    if shards and t.keep_optimizer:
        raise RecipeError(f"training.keep_optimizer=true and {shards} contradict each other: its state lies in shards")
    if t.recover and (shards or t.stop_when_broken):
        other = shards or "training.stop_when_broken=true"
        raise RecipeError(f"training.recover={t.recover} and {other} contradict each other; leave one of them out")
    share("training", t, "label_smoothing", "profile_dropout")


def _check_schedule(t: Training) -> None:
    """What the chosen decay does not read must be at its default."""
    reads: dict[str, tuple[str, ...]] = {
        "decay_to": ("linear", "polynomial", "cosine", "stable"),
        "decay_at": ("step", "inverse-sqrt", "stable"),
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
