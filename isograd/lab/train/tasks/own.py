"""A model of the user's own: a file's function builds it. On a text it is a language model; or the file brings a task.

def build(width=64, norm="pre", vocab_size=256): ...   an nn.Module: ids (batch, time) -> logits; or (model, loss)
def batches(seed): ...                                 yields what `loss` takes; called again where it ends
def loss(model, batch): ...                            a scalar
def held_out(): ...                                    batches of the validation; may be left out
baseline = "mse"                                       what a prediction without inputs comes to: the loss
                                                       by name; or a number, or a function that gives one

baseline = "mse"                                       what a prediction without inputs comes to: the name of the
                                                       loss, a number, or a function that gives one
"""

import ast
import hashlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import cache_from_source
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from isograd.errors import RecipeError, hint, one_line
from isograd.lab.train.run import Placed, Run
from isograd.lab.train.tasks.base import (
    LABEL,
    OUTCOME,
    RATIO,
    SIZE,
    SPEED,
    VALIDATION,
    Column,
    RowRun,
    RowTraining,
    Task,
)
from isograd.lab.train.tasks.language import LanguageModelling, TextData, TextRun, TextTraining
from isograd.outcome import Verdict, in_units

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from isograd.diagnose.watch.baseline import Baseline

BASELINE_OF = 64  # batches at most whose targets give a baseline
KEPT_KINDS = ("mse", "half-mse", "rmse", "l1", "huber", "classes", "binary", "tokens")


@dataclass(frozen=True, kw_only=True)
class Built(Placed):
    """`build` with `arguments`; the rest follows from the file."""

    placement: str = ""  # what a report calls it: file:function
    build: str = ""  # folder/file.py:function
    arguments: dict[str, Any] | None = field(default=None, hash=False)
    sha256: str = ""  # of the file, and of what it imports from beside it

    def __post_init__(self) -> None:
        file, name = split(self.build)
        found = _read(file)
        if name not in found.names and not found.open:
            raise RecipeError(f"{file}: has no {name!r}; {hint(name, found.names)}")
        if (takes := found.takes.get(name)) is not None:
            for key in self.arguments or {}:
                if key not in takes:
                    raise RecipeError(f"{self.build} takes no {key!r}; {hint(key, takes)}")
        settled = {"placement": f"{file.stem}:{name}", "sha256": found.sha256, "arguments": dict(self.arguments or {})}
        for key, value in settled.items():
            object.__setattr__(self, key, value)


def split(build: str) -> tuple[Path, str]:
    """The file and the function in it.

    >>> split("models/mine.py:build")
    (PosixPath('models/mine.py'), 'build')

    Raises:
        RecipeError: it is written in another way.
    """
    file, colon, name = build.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise RecipeError(f"model.build={build}: expected file.py:function, such as my_model.py:build", "model.build")
    return Path(file), name


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What the text of a file says; nothing is run.

    Attributes:
        names: what it defines, assigns or imports.
        takes: the arguments of its functions and classes that have no **kwargs.
        open: whether there may be more names (`from x import *`).
        files: it, and those beside it that it imports.
    """

    names: tuple[str, ...]
    takes: Mapping[str, tuple[str, ...]]
    open: bool
    files: tuple[Path, ...]
    sha256: str


def _read(file: Path) -> _Source:
    """Raises RecipeError: there is no such file, or it is no Python."""
    try:
        texts = {file.resolve(): file.read_bytes()}
        _add_imported(file.resolve(), texts)
    except OSError as error:
        raise RecipeError(f"{file}: {(error.strerror or str(error)).lower()}", "model.build") from error
    return _parsed(str(file), tuple(texts.items()))


def _add_imported(file: Path, texts: dict[Path, bytes]) -> None:
    """Modules and packages beside a file that it imports, and those that these do."""
    for node in ast.walk(_tree(file, texts[file])):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for first in {name.partition(".")[0] for name in named} - {""}:
            beside = [file.parent / f"{first}.py", *sorted((file.parent / first).rglob("*.py"))]
            for path in beside:
                if path.is_file() and path.resolve() not in texts:
                    texts[path.resolve()] = path.read_bytes()
                    _add_imported(path.resolve(), texts)


def _tree(file: Path | str, text: bytes) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise RecipeError(f"{file} is not Python: {one_line(error)}", "model.build") from error


@lru_cache(maxsize=64)
def _parsed(file: str, texts: tuple[tuple[Path, bytes], ...]) -> _Source:
    names: dict[str, None] = {}
    takes: dict[str, tuple[str, ...]] = {}
    every = False
    for node in _tree(file, texts[0][1]).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = None
            if (found := _takes(node)) is not None:
                takes[node.name] = found
        elif isinstance(node, ast.Import | ast.ImportFrom):
            every |= any(alias.name == "*" for alias in node.names)
            names |= dict.fromkeys((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        else:
            stored = (one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
            names |= dict.fromkeys(one.id for one in stored)
    digest = hashlib.sha256()
    for path, text in texts:
        digest.update(f"{path.name}\0{len(text)}\0".encode() + text)
    files = tuple(path for path, _ in texts)
    return _Source(names=tuple(names), takes=takes, open=every, files=files, sha256=digest.hexdigest())


def _takes(node: ast.FunctionDef | ast.ClassDef) -> tuple[str, ...] | None:
    """The arguments that it takes by name; None where its text alone does not say so."""
    skipped, made = 0, node
    if isinstance(node, ast.ClassDef):
        skipped, own = 1, [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        if not own:
            return None
        made = own[0]
    if node.decorator_list or not isinstance(made, ast.FunctionDef) or made.args.kwarg:
        return None
    return tuple(one.arg for one in [*made.args.args[skipped:], *made.args.kwonlyargs])


def task_for(content: Mapping[str, Any]) -> str:
    """The task of a recipe with `model.build` that names none: the file's own where it has `batches`, else language.

    Raises:
        RecipeError: both say where the data come from.
    """
    file, _ = split(str(content["model"]["build"]))
    data = content.get("data")
    if "batches" not in _read(file).names:
        return OwnLanguage.name
    if isinstance(data, Mapping) and "source" in data:
        raise RecipeError(f"{file} has batches(), and data.source={data['source']} is given; leave one of them out")
    return OwnTask.name


class _OwnRun:
    """What both kinds of run of a model of one's own have; they differ in where the data come from."""

    sized = False
    model: Built
    training: Any
    seed: int
    key: Callable[[], str]

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        for key in ("fsdp", "gradient_checkpointing"):
            if getattr(self.training, key):
                raise RecipeError(f"training.{key}=true needs layers that isograd knows; leave it out with model.build")

    def entry(self) -> None:
        """It is in no catalogue."""

    def config(self) -> Any:
        """Only the file knows its shape: no forecast."""
        raise RecipeError(
            "--dry-run forecasts isograd's own models; of model.build nothing is known before it is built"
        )

    def folder_name(self) -> str:
        given = (f"{key}-{value}" for key, value in (self.model.arguments or {}).items())
        words = "-".join([self.model.placement.replace(":", "-"), *given])
        plain = "".join(one if one.isalnum() or one in "-_.+" else "_" for one in words)[:80]
        return f"{plain}-lr{self.training.lr:g}-w{self.training.warmup}-s{self.seed}-{self.key()}"

    def described(self) -> dict[str, Any]:
        return super().described() | {"build": self.model.build, "arguments": self.model.arguments}  # type: ignore[misc]


@dataclass(frozen=True, kw_only=True)
class OwnTextRun(_OwnRun, TextRun):
    """A run of a language model of one's own on one text."""

    task: Literal["own-language"] = "own-language"
    model: Built = field(default_factory=Built)  # type: ignore[assignment]
    data: TextData = field(default_factory=TextData)
    training: TextTraining = field(default_factory=TextTraining)


@dataclass(frozen=True, kw_only=True)
class OwnTraining(RowTraining):
    """`batch` counts batches of the file's own: so many make an update, devices x accumulation x those of one pass."""

    batch: int = 1
    stop_when_broken: bool | Literal["or-collapsed"] = False  # as in language modelling


@dataclass(frozen=True, kw_only=True)
class OwnRun(_OwnRun, RowRun):
    """A run of a model and a task of one's own."""

    task: Literal["own"] = "own"
    model: Built = field(default_factory=Built)
    training: OwnTraining = field(default_factory=OwnTraining)

    @property
    def places(self) -> int:
        """Nobody counts tokens here."""
        return 0

    @property
    def tokens_per_update(self) -> int:
        """Speeds are in updates."""
        return 1

    @property
    def corpus_key(self) -> Any:
        return self.task, self.model.build, self.model.sha256, self.data_seed


class _Own(Task):
    """What both tasks have; see `Task`."""

    foreign = True

    def config(self) -> Any:
        """There is none; a file that has changed since the run was planned is refused before anything is written."""
        _unchanged(self.run.model)

    def build(self, config: Any = None) -> Any:
        """A fresh model; `vocab_size` is handed in where it is asked for and not given."""
        made = self._made()
        return made[0] if isinstance(made, tuple) else made

    def _made(self, **offered: Any) -> Any:
        from torch import nn

        model = self.run.model
        assert isinstance(model, Built)
        function = module_of(model, split(model.build)[1])
        given = {key: value for key, value in offered.items() if key in _parameters(function)} | (model.arguments or {})
        made = _called(model.build, function, **given)
        one = made[0] if isinstance(made, tuple) and len(made) == 2 else made
        if not isinstance(one, nn.Module):
            raise RecipeError(f"{model.build} gives {type(one).__name__}; expected an nn.Module, or (model, loss)")
        if not any(p.requires_grad for p in one.parameters()):
            raise RecipeError(f"{model.build}: the model has no parameters to train")
        return made

    def built(self) -> dict[str, Any]:
        model = self.run.model
        assert isinstance(model, Built)
        return {"built": {"build": model.build, "arguments": model.arguments, "sha256": model.sha256}}

    def first_batch(self, process: int = 0, processes: int = 1) -> "Mapping[str, Tensor]":
        raise NotImplementedError("a model of the user's own is not calibrated")


_ARM = replace(LABEL, name="model", short="model")
_GRADIENTS = replace(RATIO, spare=1)


class OwnLanguage(_Own, LanguageModelling):
    """A causal language model of the user's own: ids (batch, time) -> logits (batch, time, vocabulary). See `Task`."""

    name = "own-language"
    recipe: ClassVar[type[Run]] = OwnTextRun
    columns = (
        _ARM,
        OUTCOME,
        Column(name="final loss", short="final", field="final_loss", form="{:.3f}"),
        replace(VALIDATION, spare=2),
        _GRADIENTS,
        replace(SPEED, spare=3),
        SIZE,
    )
    captions = MappingProxyType(
        {
            "title": "Models compared",
            "page": "Final loss: mean of the last 20 steps, nats per token.",
            "table": "losses in nats; g1/gL: mean |gradient| of a layer's last matrix, first layer over last, at step 1"
            " → at the end",
        }
    )
    words = MappingProxyType({"W_2": "a layer's last matrix", "W₂": "the last matrix", ", ffn": ""})
    needed = MappingProxyType({"model.build": str})

    def build(self, config: Any = None) -> Any:
        made = self._made(vocab_size=self.corpus.vocab_size)
        if isinstance(made, tuple):
            raise RecipeError(f"{self.run.model.placement} gives (model, loss) without batches(); add it to the file")
        return made

    def loss(self, model: "nn.Module", batch: "Mapping[str, Any]") -> "Tensor":
        """Cross-entropy of the next token, nats."""
        from torch.nn import functional

        from isograd.transformer.loss import IGNORE

        ids, labels = batch["input_ids"], batch["shift_labels"]
        output = model(ids)
        logits: Any = getattr(output, "logits", output[0] if isinstance(output, tuple) else output)
        shape = tuple(getattr(logits, "shape", ()))
        if shape[:2] != tuple(ids.shape) or len(shape) != 3 or shape[2] < self.corpus.vocab_size:
            wanted = (*ids.shape, self.corpus.vocab_size)
            raise RecipeError(
                f"the model gives {shape or type(output).__name__} for ids {tuple(ids.shape)};"
                f" expected logits {wanted}; `vocab_size` is handed to build where it takes it"
            )
        smoothing = self.run.training.label_smoothing if model.training else 0.0
        flat = logits.flatten(0, 1).float()
        return functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORE, label_smoothing=smoothing)


@dataclass(frozen=True, kw_only=True)
class _Brought:
    """What a file brings, for one order of its batches: held-out ones, a baseline, a digest of what was seen."""

    held_out: Sequence[Any]
    baseline: "Baseline | None"
    held_out_level: float | None
    sha256: str


class OwnTask(_Own):
    """A task of the user's own, with its own data, loss and baseline. See `Task`."""

    name = "own"
    recipe = OwnRun
    columns = (
        _ARM,
        OUTCOME,
        Column(name="final loss", short="final", field="final_loss", form="{:.4g}"),
        replace(VALIDATION, form="{:.4g}", spare=2),
        _GRADIENTS,
        replace(SPEED, name="updates/s", short="upd/s", spare=3),
        SIZE,
    )
    captions = MappingProxyType(
        {
            "title": "Models compared",
            "page": "Final loss: mean of the last 20 steps, in the loss's own unit.",
            "table": "g1/gL: mean |gradient| of a layer's last matrix, first layer over last, at step 1 → at the end",
        }
    )
    needed = OwnLanguage.needed
    lr_range = True
    words = MappingProxyType(
        {
            ", the loss of a model that knows only how often each token occurs": ", the loss of the best prediction"
            " that does not look at its inputs (where the file gives none, whatever is finite has finished)",
            " (1 nat = 1.44 bits)": "",
            "differences of a few hundredths between arms mean nothing": "differences between arms mean little",
            "0.10 nat below": "a tenth of the baseline (of a cross-entropy 0.10 nat) below",
            "0.5 nat above": "half the baseline (of a cross-entropy 0.5 nat) above",
            "Unigram entropy": "Baseline",
            "unigram entropy": "baseline",
            " (nats per token)": "",
            " (nats)": "",
            " nats": "",
            **OwnLanguage.words,
        }
    )
    run: OwnRun
    corpus: _Brought

    def __init__(self, run: OwnRun, corpus: _Brought | None = None) -> None:
        self.run, self.model_file = run, split(run.model.build)[0]
        per_update = run.training.batch
        stream = _Stream(run, count=run.training.steps * per_update)
        self.corpus = corpus or _brought(run, stream)
        self.samples = cast("Dataset[Any]", stream)
        self.source, self.sha256 = str(self.model_file), self.corpus.sha256
        self.unigram_entropy = self.corpus.baseline.value if self.corpus.baseline else None  # type: ignore[assignment]
        self._own: Callable[..., Any] | None = None
        if run.training.stop_when_broken and self.baseline is None:
            raise RecipeError(f"{self.source} has no baseline, which says when a loss has broken; add baseline=NUMBER,"
                              f" or the name of the loss ({', '.join(KEPT_KINDS)})")  # fmt: skip

    @property
    def token_entropy(self) -> None:
        """The loss is none of tokens."""

    @property
    def baseline(self) -> "Baseline | None":
        return self.corpus.baseline

    def build(self, config: Any = None) -> Any:
        made = self._made()
        model, self._own = made if isinstance(made, tuple) else (made, None)
        if self._own is None and "loss" not in _read(self.model_file).names:
            raise RecipeError(
                f"{self.model_file} has batches() and no loss(model, batch); add it, or give (model, loss)"
            )
        return model

    def loss(self, model: "nn.Module", batch: "Mapping[str, Any]") -> "Tensor":
        """The mean over the batches of one pass."""
        own = self._own or module_of(self.run.model, "loss")
        losses = [own(model, one) for one in batch["batches"]]
        for one in losses:
            if getattr(one, "shape", None) != ():
                raise RecipeError(
                    f"loss of {self.model_file} gives {tuple(getattr(one, 'shape', ())) or one!r}, no scalar"
                )
        total: Tensor = sum(losses[1:], losses[0]) / len(losses)
        return total

    def tokens_per_update(self) -> float:
        return 1.0

    def judge(
        self,
        rows: Sequence[Mapping[str, Any]],
        held_out: float | None,
        broke_at: int | None = None,
        apart: float | None = None,
    ) -> Verdict:
        from isograd.outcome import judge

        level, unit = self.baseline, self.unit
        there = self.corpus.held_out_level
        verdict = judge(
            [row["loss"] / unit for row in rows],
            None if level is None else level.value / unit,
            steps=[row["step"] for row in rows],
            rates=[row["lr"] for row in rows],
            held_out=None if held_out is None else held_out / unit,
            held_out_unigram=None if there is None else there / unit,
            broke_at=broke_at,
            apart=apart,
        )
        return in_units(verdict, unit, level.name if level else "")

    def _validate(self, model: "nn.Module") -> dict[str, float | None]:
        import torch
        from accelerate.utils import send_to_device

        if not self.corpus.held_out:
            return {"loss": None}
        device = next(model.parameters()).device
        with torch.no_grad():
            losses = [
                float(self.loss(model, {"batches": [send_to_device(one, device)]})) for one in self.corpus.held_out
            ]
        return {"loss": sum(losses) / len(losses)}

    def measured(self, held_out: Mapping[str, Any]) -> dict[str, Any]:
        return {"validation_loss": held_out["loss"]}

    def facts(self) -> dict[str, Any]:
        level = self.baseline
        known = {"unigram_entropy": level.value, "baseline": level.name, "unit": level.unit} if level else {}
        return {"source": self.source, "sha256": self.sha256, "held_out_batches": len(self.corpus.held_out), **known}

    def save_tokenizer(self, folder: Path) -> None:
        """There is none."""


class _Stream:
    """The batches of a run in their order; batch i is a function of the file, the seed and i alone.

    Each is drawn with random numbers of the stream's own, so that neither the model nor a resume moves them.
    """

    def __init__(self, run: OwnRun, count: int) -> None:
        self.run, self.count = run, count
        self._next = count  # nothing is open
        self._batches: Iterator[Any] = iter(())
        self._drawn: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, places: Sequence[int]) -> dict[str, list[Any]]:
        """One pass: the batches at these places, which follow one another."""
        found = []
        for place in places:
            if place < self._next:
                self._next, self._batches, self._drawn = 0, self.all(), None
            while self._next <= place:
                batch, self._next = self.draw(), self._next + 1
            found.append(batch)
        return {"batches": found}

    def draw(self) -> Any:
        with _own_numbers(self._drawn, self.run.data_seed) as state:
            batch = next(self._batches)
            self._drawn = state()
        return batch

    def all(self) -> Iterator[Any]:
        """Pass after pass, each with a seed of its own."""
        made = module_of(self.run.model, "batches")
        seed = self.run.data_seed
        for epoch in count():
            own = seed if not epoch else int(hashlib.sha256(f"{seed} {epoch}".encode()).hexdigest()[:8], 16)
            empty = True
            for batch in _called("batches", made, *([own] if _parameters(made) else [])):
                empty = False
                yield batch
            if empty:
                raise RecipeError(f"batches() of {split(self.run.model.build)[0]} gives none")


@contextmanager
def _own_numbers(state: Any, seed: int) -> Iterator[Callable[[], Any]]:
    """Random numbers of torch, numpy and Python from a state, or a seed; those of the run stay where they are."""
    import numpy as np
    import torch

    def now() -> Any:
        return torch.get_rng_state(), np.random.get_state(), random.getstate()

    def become(state: Any) -> None:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])
        random.setstate(state[2])

    before = now()
    try:
        if state is None:
            torch.random.default_generator.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
        else:
            become(state)
        yield now
    finally:
        become(before)


def _brought(run: OwnRun, stream: _Stream) -> _Brought:
    """Held-out batches, and the baseline of the first training ones."""
    from isograd.diagnose.watch.baseline import Baseline, Targets

    file, _ = split(run.model.build)
    names = _read(file).names
    first = stream.__getitems__(range(min(len(stream), BASELINE_OF)))["batches"]
    held_out: list[Any] = []
    if "held_out" in names:
        with _own_numbers(None, 0):
            held_out = list(_called("held_out", module_of(run.model, "held_out")))
    given = module_of(run.model, "baseline") if "baseline" in names else None
    given = _called("baseline", given) if callable(given) else given
    digest = hashlib.sha256(repr(given).encode())
    for batch in [first[0], *held_out]:
        _feed(batch, digest)
    level = there = None
    if isinstance(given, str):
        if given not in KEPT_KINDS:
            raise RecipeError(f"{file}: baseline={given!r}; {hint(given, KEPT_KINDS)}, or a number")
        targets = Targets(kind=given)
        for batch in first:
            targets.add(batch)
        level = targets.baseline()
        if level is None:
            raise RecipeError(f"{file}: baseline={given!r} needs 32 targets that differ, the last tensor of a batch"
                              " (inputs, targets), or its `labels`; or write a number")  # fmt: skip
        there_of = Targets(kind=given).of(held_out) if held_out else None
        there = there_of.value if there_of else None
    elif given is not None:
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < float("inf"):
            raise RecipeError(f"{file}: baseline={given!r}; expected a number above 0, or the name of a loss")
        level = Baseline(kind="given", value=float(given))
    return _Brought(held_out=held_out, baseline=level, held_out_level=there, sha256=digest.hexdigest())


def _feed(value: Any, digest: Any) -> None:
    """The content of a batch."""
    import numpy as np
    import torch

    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous().view(torch.uint8).numpy() if value.ndim else value.item()
    if isinstance(value, list | tuple):
        for one in value:
            _feed(one, digest)
    else:
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())


def module_of(model: Built, name: str) -> Any:
    """What a file holds under this name, as it is now: a module that was imported before a change is imported again.

    Raises:
        RecipeError: it raises an error, or has changed since the run was planned.
    """
    from isograd.errors import ModelError
    from isograd.trace.load import maker_of

    file, source = split(model.build)[0], _unchanged(model)
    if _IMPORTED.get(file.resolve()) != source.sha256:
        names = {path.stem for path in source.files}
        for known, module in list(sys.modules.items()):  # of before the change, and of another folder's files
            if known.partition(".")[0] in names and str(getattr(module, "__file__", "")) in _FILES:
                del sys.modules[known]
        for path in source.files:  # bytecode counts as current by the second and the size: an edit can be within both
            with suppress(OSError):
                Path(cache_from_source(str(path))).unlink()
        _FILES.update(map(str, source.files))
        _IMPORTED[file.resolve()] = source.sha256
    try:
        return maker_of(f"{file}:{name}")
    except ModelError as error:
        raise RecipeError(str(error)) from error


def _unchanged(model: Any) -> _Source:
    """What `model.build` says; it must be what the run was planned with."""
    file, _ = split(model.build)
    source = _read(file)
    if source.sha256 != model.sha256:
        raise RecipeError(f"{file} has changed since this run was planned; start it again")
    return source


_IMPORTED: dict[Path, str] = {}  # files, by their digest when they were imported
_FILES: set[str] = set()  # and all that these import from beside them


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _called(name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    """What a user's function gives; what it raises, in one line."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise RecipeError(f"{name} raised {type(error).__name__}: {one_line(error)}") from error
