"""A run: the whole recipe of one training as a frozen dataclass, read from YAML and `key=value`."""

import difflib
import hashlib
import json
import math
import re
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentParser

Precision = Literal["fp32", "bf16", "fp16"]
Optimizer = Literal["adam", "adamw", "sgd", "radam", "radam-original", "lamb"]
Tracker = Literal["tensorboard", "wandb", "trackio"]
Decay = Literal["constant", "linear", "cosine", "inverse-sqrt"]


class RecipeError(ValueError):
    """A recipe or an override that cannot be used; the message says which key and what to type instead."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The shape of the model; see `isograd.IsogradConfig` for each term."""

    placement: str = "pre-ln"
    layers: int = 12
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
class Training:
    """How it is trained. `batch` is the global batch in sequences: devices x accumulation x micro-batch."""

    steps: int = 300
    batch: int = 16
    accumulation: int = 1
    lr: float = 1e-3
    warmup: int = 0
    decay: Decay = "constant"
    optimizer: Optimizer = "adam"
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    clip: float = 0.0  # 0: no clipping
    precision: Precision = "fp32"
    compile: bool = False
    gradient_checkpointing: bool = False
    fsdp: bool = False
    probe_every: int = 10  # 0: no probe
    checkpoint_every: int = 100  # 0: none; a killed run then starts anew
    valid_sequences: int = 512
    track: tuple[Tracker, ...] = ()  # transformers' integrations


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training, whole."""

    name: str | None = None
    seed: int = 0
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        t = self.training
        for key in ("steps", "batch", "accumulation"):
            if getattr(t, key) < 1:
                raise RecipeError(f"training.{key}={getattr(t, key)} must be at least 1")
        if t.batch % t.accumulation:
            raise RecipeError(f"training.batch={t.batch} does not divide by training.accumulation={t.accumulation}")
        for key in ("warmup", "weight_decay", "clip", "eps", "probe_every", "checkpoint_every", "valid_sequences"):
            if not 0 <= getattr(t, key) < math.inf:
                raise RecipeError(f"training.{key}={getattr(t, key)} must be finite and not negative")
        if not 0 < t.lr < math.inf:
            raise RecipeError(f"training.lr={t.lr} must be finite and above 0")
        if not all(0 <= beta < 1 for beta in t.betas):
            raise RecipeError(f"training.betas={list(t.betas)} must be in [0, 1)")
        if t.warmup >= t.steps and t.decay in ("linear", "cosine"):
            raise RecipeError(
                f"training.warmup={t.warmup} leaves no step of training.steps={t.steps} for decay {t.decay!r}"
            )
        if t.fsdp and t.optimizer == "lamb":
            raise RecipeError(
                "training.optimizer=lamb cannot run on shards (training.fsdp=true); take another optimizer"
            )
        if not 0 <= t.label_smoothing < 1:
            raise RecipeError(f"training.label_smoothing={t.label_smoothing} must be in [0, 1)")
        for key in ("norm_eps", "initializer_range"):
            if not 0 < getattr(self.model, key) < math.inf:
                raise RecipeError(f"model.{key}={getattr(self.model, key)} must be finite and above 0")
        for key in ("length", "vocab_size"):
            if getattr(self.data, key) < 1:
                raise RecipeError(f"data.{key}={getattr(self.data, key)} must be at least 1")
        for key, seed in (("seed", self.seed), ("data.seed", self.data_seed)):
            if not 0 <= seed < 2**32:
                raise RecipeError(f"{key}={seed} must be in [0, 2^32)")

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


def load_run(recipe: Path | None = None, overrides: Sequence[str] = ()) -> Run:
    """A run from a YAML recipe (None: defaults) and `key=value` overrides such as `model.layers=36`.

    Raises:
        RecipeError: no such file, not YAML, an unknown key (with the nearest known one), a value of the wrong type.
    """
    content = _read(recipe) if recipe else {}
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign:
            raise RecipeError(f"{override!r} is no override; write key=value, such as model.layers=36")
        try:
            key = key.strip()  # a name such as 2024-01-01 is text, not a date
            _set(content, key.split("."), value if key == "name" else yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise RecipeError(f"{override!r}: the value is not YAML ({' '.join(str(error).split())})") from error
    return run_from_dict(content)


def run_from_dict(content: Mapping[str, Any]) -> Run:
    """The run that a nested mapping describes, such as `Run.as_dict()` gives.

    Raises:
        RecipeError: as `load_run`.
    """
    _check_keys(content)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--run", type=Run)
    try:
        parsed = parser.parse_object({"run": dict(content)})
    except (ArgumentError, TypeError, ValueError) as error:
        raise RecipeError(_plain(str(error))) from error
    run: Run = parser.instantiate(parsed).run
    return run


def known_keys(of: type = Run, prefix: str = "") -> list[str]:
    """Every key of a recipe, dotted.

    >>> "model.placement" in known_keys()
    True
    """
    keys = []
    for f in fields(of):
        inner: Any = f.default_factory
        nested = isinstance(inner, type) and is_dataclass(inner)
        keys.extend(known_keys(inner, f"{prefix}{f.name}.") if nested else [prefix + f.name])
    return keys


def _read(recipe: Path) -> dict[str, Any]:
    if not recipe.is_file():
        raise RecipeError(f"{recipe}: no such recipe")
    try:
        content = yaml.safe_load(recipe.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{recipe}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{recipe}: expected keys and values, found {type(content).__name__}")
    return content


def _set(content: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        content = content.setdefault(part, {})
        if not isinstance(content, dict):
            raise RecipeError(f"{'.'.join(path)}: {part} is a value, not a section")
    content[path[-1]] = value


def _check_keys(content: Mapping[str, Any], prefix: str = "") -> None:
    known = known_keys()
    sections = {k.split(".")[0] for k in known if "." in k}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key in sections:
            _check_keys(value, f"{key}.")
        elif key in sections:
            raise RecipeError(f"{key} is a section; set one of its keys, such as {_nearest(key + '.', known)}")
        elif key not in known:
            raise RecipeError(f"unknown key {key!r}; did you mean {_nearest(key, known)!r}?")
        elif value is None and _default(key) is not None:
            raise RecipeError(f"{key} is empty; give it a value, or leave it out for {_default(key)!r}")


def _plain(message: str) -> str:
    """The parser's message in one line, with our keys and without Python's words."""
    one_line = " ".join(message.split()).replace('Parser key "run.', '"')
    return re.sub(r"a (?:<class '(\w+)'>|typing\.(?=Literal))", r"\1", one_line)


def _default(key: str) -> Any:
    value: Any = Run()
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _nearest(key: str, known: list[str]) -> str:
    """By the last part first (`lr` -> training.lr), then by likeness."""
    same_end = [k for k in known if k.split(".")[-1] == key.split(".")[-1]]
    likely = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    likely_end = difflib.get_close_matches(key.split(".")[-1], [k.split(".")[-1] for k in known], n=1, cutoff=0.6)
    by_end = [k for k in known if likely_end and k.split(".")[-1] == likely_end[0]]
    return (same_end or by_end or likely)[0]
