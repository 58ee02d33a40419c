"""A run: the whole recipe of one training as a frozen dataclass."""

import hashlib
import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from isograd.errors import RecipeError
from isograd.train.sections import Data, Glue, Model, Pairs, Search, Task, Training


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
    glue: Glue = field(default_factory=Glue)
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
        if self.task == "masked":
            _check_masked(self.data)
        if self.task == "classification":
            _check_glue(self)
        if self.task in _TEXT and not t.valid_every and (t.patience or t.select != "last"):
            raise RecipeError("training.patience and training.select need training.valid_every, the updates in between")
        if self.task in _TEXT and t.valid_every and not t.valid_sequences:
            raise RecipeError(
                f"training.valid_every={t.valid_every} and training.valid_sequences=0 contradict each other:"
                " there would be nothing to validate on"
            )
        shards = sharded_by(t)
        if shards and t.select != "last":
            raise RecipeError(f"{shards} needs training.select=last: weights lie in shards")

    @property
    def encoder_layers(self) -> int | None:
        """Layers of the encoder; None in a model of one tower."""
        if self.task != "translation":
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


_TEXT: tuple[Task, ...] = ("language", "masked")
_ROWS: tuple[Task, ...] = ("language", "masked", "classification")
_EPOCHS: tuple[Task, ...] = ("translation", "classification")
READ_BY: dict[str, tuple[Task, ...]] = {  # key, or section -> the tasks that read it; what is not here, all do
    "model": (*_TEXT, "translation"),  # a classification has the shape of glue.model,
    "model.placement": (*_ROWS, "translation"),  # which this names once more, for whoever reads the recipe
    "model.encoder_layers": ("translation",),
    "model.share_embeddings": ("translation",),
    "data": _TEXT,
    "data.seed": (*_ROWS, "translation"),
    "data.packing": ("masked",),
    "data.mask": ("masked",),
    "data.mask_random": ("masked",),
    "data.mask_kept": ("masked",),
    "pairs": ("translation",),
    "search": ("translation",),
    "glue": ("classification",),
    "training.batch": _ROWS,
    "training.tokens": ("translation",),
    "training.epochs": _EPOCHS,
    "training.label_smoothing": (*_TEXT, "translation"),
    "training.smoothing": ("translation",),
    "training.valid_sequences": _TEXT,
    "training.stop_when_broken": _TEXT,
}
_NOT_NEGATIVE = ("epochs", "warmup", "warmup_from", "decay_to", "decay_at", "power", "weight_decay", "clip", "eps")
_COUNTS = ("probe_every", "checkpoint_every", "valid_sequences", "valid_every", "patience")


def unread(task: str) -> list[str]:
    """The dotted keys that other tasks read, and this one does not.

    >>> "pairs.train" in unread("language"), "data.length" in unread("masked")
    (True, False)
    """
    sections: list[tuple[str, Any]] = [(f.name, f.default_factory) for f in fields(Run)]
    keys = [f"{name}.{f.name}" for name, of in sections if of is not MISSING for f in fields(of)]
    return [key for key in keys if task not in READ_BY.get(key, READ_BY.get(key.split(".")[0], (task,)))]


def sharded_by(training: Training) -> str | None:
    """The setting by which parameters, or what belongs to them, lie in shards; None where each device has all.

    >>> sharded_by(Training(fsdp=True)), sharded_by(Training())
    ('training.fsdp=true', None)
    """
    if training.fsdp:
        return "training.fsdp=true"
    return None if training.deepspeed is None else f"training.deepspeed={training.deepspeed}"


def _value(of: Any, key: str) -> Any:
    for part in key.split("."):
        of = getattr(of, part)
    return of


def _at_least(run: Run, key: str, least: float) -> None:
    if not least <= _value(run, key) < math.inf:
        raise RecipeError(f"{key}={_value(run, key)} must be at least {least:g}")


def _check_task(run: Run) -> None:
    """What other tasks read must be at its default: set, it would change nothing."""
    for key in unread(run.task):
        section, name = key.split(".")
        if _value(run, key) != getattr(type(getattr(run, section)), name):
            tasks = " or ".join(READ_BY.get(key, READ_BY.get(section, ())))
            raise RecipeError(f"{key} is read by task={tasks} only, and this is task={run.task}")


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
    shards = sharded_by(t)
    if shards and t.optimizer == "lamb":
        raise RecipeError(f"training.optimizer=lamb cannot run on shards ({shards}); take another optimizer")
    if t.deepspeed is not None:
        _check_deepspeed(t)
    if not 0 <= t.label_smoothing < 1:
        raise RecipeError(f"training.label_smoothing={t.label_smoothing} must be in [0, 1)")


def _check_deepspeed(t: Training) -> None:
    if t.fsdp:
        raise RecipeError(f"training.fsdp=true and training.deepspeed={t.deepspeed} both shard; take one of them")
    if t.probe_every:
        raise RecipeError(
            f"training.deepspeed={t.deepspeed} needs training.probe_every=0: its engine has used up the gradients"
            " before they can be read"
        )


def _check_schedule(t: Training) -> None:
    """What the chosen decay does not read must be at its default."""
    reads: dict[str, tuple[str, ...]] = {
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
    if (shards := sharded_by(run.training)) and run.search.pairs:
        raise RecipeError(f"{shards} needs search.pairs=0: weights lie in shards")


def _check_masked(data: Data) -> None:
    if not 0 < data.mask <= 1:
        raise RecipeError(f"data.mask={data.mask} must be above 0 and at most 1: what is not masked is not predicted")
    for key in ("mask_random", "mask_kept"):
        if not 0 <= getattr(data, key) <= 1:
            raise RecipeError(f"data.{key}={getattr(data, key)} must be in [0, 1]")
    if data.mask_random + data.mask_kept > 1:
        raise RecipeError(
            f"data.mask_random={data.mask_random} and data.mask_kept={data.mask_kept} are above 1 together"
        )
    if data.length < 4:
        raise RecipeError(f"data.length={data.length} leaves no room beside <s> and </s>; it must be at least 4")
    if data.packing == "segment-pair" and data.length < 5:
        raise RecipeError(f"data.length={data.length} has no room for <s> A </s> B </s>; it must be at least 5")


def _check_glue(run: Run) -> None:
    glue = run.glue
    if glue.model is None:
        raise RecipeError(
            "glue.model is missing: the pre-trained model's folder (glue.scratch=true takes its shape alone)"
        )
    if not 0 <= glue.warmup < 1:
        raise RecipeError(f"glue.warmup={glue.warmup} is a share of all updates; it must be in [0, 1)")
    if run.training.warmup and glue.warmup:
        raise RecipeError(
            f"training.warmup={run.training.warmup} (updates) and glue.warmup={glue.warmup} (a share of them)"
            " contradict each other; set one of them to 0"
        )
    if glue.length < 8:
        raise RecipeError(f"glue.length={glue.length} must be at least 8")
    for key in ("dropout", "attention_dropout"):
        value = getattr(glue, key)
        if value is not None and not 0 <= value < 1:
            raise RecipeError(f"glue.{key}={value} must be in [0, 1)")
