"""The file of a model of the user's own: what its text says, and what its functions give.

def build(width=64, norm="pre", vocab_size=256): ...   an nn.Module: ids (batch, time) -> logits; or (model, loss)
def batches(seed): ...                                 yields what `loss` takes; called again where it ends
def loss(model, batch): ...                            a scalar
def held_out(): ...                                    batches of the validation; may be left out
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
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import cache_from_source
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isograd.errors import RecipeError, hint, one_line
from isograd.lab.train.run import Placed

if TYPE_CHECKING:
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
        found = read(file)
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
        raise RecipeError(f"model.build={build}: expected file.py:function, such as my_model.py:build")
    return Path(file), name


@dataclass(frozen=True, kw_only=True)
class Source:
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


def read(file: Path) -> Source:
    """Raises RecipeError: there is no such file, or it is no Python."""
    try:
        texts = {file.resolve(): file.read_bytes()}
        _add_imported(file.resolve(), texts)
    except OSError as error:
        raise RecipeError(f"{file}: {(error.strerror or str(error)).lower()}") from error
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
        raise RecipeError(f"{file} is not Python: {one_line(error)}") from error


@lru_cache(maxsize=64)
def _parsed(file: str, texts: tuple[tuple[Path, bytes], ...]) -> Source:
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
    return Source(names=tuple(names), takes=takes, open=every, files=files, sha256=digest.hexdigest())


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


class Batches:
    """The batches of a run in their order; batch i is a function of the file, the seed and i alone.

    Each is drawn with random numbers of the stream's own, so that neither the model nor a resume moves them.
    """

    def __init__(self, model: Built, seed: int, count: int) -> None:
        self.model, self.seed, self.count = model, seed, count
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
        with _own_numbers(self._drawn, self.seed) as state:
            batch = next(self._batches)
            self._drawn = state()
        return batch

    def all(self) -> Iterator[Any]:
        """Pass after pass, each with a seed of its own."""
        made = module_of(self.model, "batches")
        for epoch in count():
            own = self.seed if not epoch else int(hashlib.sha256(f"{self.seed} {epoch}".encode()).hexdigest()[:8], 16)
            empty = True
            for batch in called("batches", made, *([own] if parameters(made) else [])):
                empty = False
                yield batch
            if empty:
                raise RecipeError(f"batches() of {split(self.model.build)[0]} gives none")


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


@dataclass(frozen=True, kw_only=True)
class Brought:
    """What a file brings, for one order of its batches: held-out ones, a baseline, a digest of what was seen."""

    held_out: Sequence[Any]
    baseline: "Baseline | None"
    held_out_level: float | None
    sha256: str


def brought(model: Built, stream: Batches) -> Brought:
    """Held-out batches, and the baseline of the first training ones."""
    from isograd.diagnose.watch.baseline import Baseline, Targets

    file, _ = split(model.build)
    names = read(file).names
    first = stream.__getitems__(range(min(len(stream), BASELINE_OF)))["batches"]
    held_out: list[Any] = []
    if "held_out" in names:
        with _own_numbers(None, 0):
            held_out = list(called("held_out", module_of(model, "held_out")))
    given = module_of(model, "baseline") if "baseline" in names else None
    given = called("baseline", given) if callable(given) else given
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
    return Brought(held_out=held_out, baseline=level, held_out_level=there, sha256=digest.hexdigest())


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

    file, source = split(model.build)[0], unchanged(model)
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


def unchanged(model: Any) -> Source:
    """What `model.build` says; it must be what the run was planned with."""
    file, _ = split(model.build)
    source = read(file)
    if source.sha256 != model.sha256:
        raise RecipeError(f"{file} has changed since this run was planned; start it again")
    return source


_IMPORTED: dict[Path, str] = {}  # files, by their digest when they were imported
_FILES: set[str] = set()  # and all that these import from beside them


def parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def called(name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    """What a user's function gives; what it raises, in one line."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise RecipeError(f"{name} raised {type(error).__name__}: {one_line(error)}") from error
