"""What isograd refuses, in one line each: one base class, caught once, by the command line.

A message says what came, what was expected, and what to type instead.
"""

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


class IsogradError(Exception):
    """Wrong use or bad input. `exit_code` is that of the command line."""

    exit_code = 2

    def __str__(self) -> str:  # of a KeyError it would be the quoted repr
        return Exception.__str__(self)


class UserError(IsogradError):
    """A command line that cannot be carried out."""


class RecipeError(IsogradError, ValueError):
    """A recipe or an override that cannot be used; names the key and what to type instead."""


class DataError(IsogradError, ValueError):
    """Data that cannot be used; names the file, the line where there is one, and what was expected."""


class CheckpointError(DataError):
    """A file that is not a checkpoint, or one that would run code."""


class ModelError(IsogradError, ValueError):
    """A model or a callable that does not exist or cannot be built."""


class ForeignError(ModelError, DataError):
    """A checkpoint with files that are damaged, or that lie outside its folder."""


class RemoteCodeError(ForeignError):
    """A checkpoint that wants to run code of its own."""


class InputsError(IsogradError, ValueError):
    """No inputs that the model runs on."""


class ProfileError(IsogradError, ValueError):
    """A model with nothing to profile."""

    exit_code = 1


class InteropError(IsogradError, ValueError):
    """What another format cannot hold, or what of another library has no place here."""


class FoldError(InteropError):
    """A model whose coefficients cannot be folded."""


class GraftError(InteropError):
    """A change that a model cannot take."""


class FolderBusyError(IsogradError, RuntimeError):
    """Another process is at work in this folder."""


class UnknownPlacement(IsogradError, KeyError):  # noqa: N818  (the name says what is wrong)
    """A name that is not in the catalogue."""


class UnknownClaim(IsogradError, KeyError):  # noqa: N818  (the name says what is wrong)
    """A name that no claim has."""


class MissingExtra(IsogradError, ImportError):  # noqa: N818  (the name says what is wrong)
    """A package of an optional extra that is not installed."""


def needed(extra: str, *modules: str) -> tuple[Any, ...]:
    """These modules, which come with `pip install isograd[extra]`.

    Raises:
        MissingExtra: one is not installed; the message names the extra.
    """
    found = []
    for name in modules:
        try:
            found.append(import_module(name))
        except ImportError as error:
            raise MissingExtra(f"{name.split('.')[0]} is not installed: pip install 'isograd[{extra}]'") from error
    return tuple(found)


def extra_with(module: str) -> str | None:
    """The extra of this package that brings a module, by the package's own metadata; None where none does.

    >>> extra_with("matplotlib.figure"), extra_with("torch")
    ('lab', None)
    """
    from importlib.metadata import PackageNotFoundError, requires

    name = module.partition(".")[0].lower().replace("_", "-")
    try:
        wanted = requires("isograd") or []
    except PackageNotFoundError:
        return None
    for line in wanted:
        package = re.match(r"[\w.-]+", line)
        extra = re.search(r"""extra == ['"]([\w-]+)['"]""", line)
        if extra and package and package[0].lower().replace("_", "-") == _PACKAGES.get(name, name):
            return extra[1]
    return None


_PACKAGES = {"yaml": "pyyaml"}  # modules that are not called what their package is


def many(count: int, noun: str, nouns: str | None = None) -> str:
    """A count and its noun in a message.

    >>> many(1, "layer"), many(3000, "layer"), many(2, "entry", "entries")
    ('1 layer', '3,000 layers', '2 entries')
    """
    return f"1 {noun}" if count == 1 else f"{count:,} {nouns or noun + 's'}"


def command(verb: str, *words: object, **options: object) -> str:
    """A command of isograd as it is typed; options without a value are left out.

    >>> command("explain", "my model.py:build", batch="my_model:batch", lr=0.001, text=None)
    "isograd explain 'my model.py:build' --batch my_model:batch --lr 0.001"
    """
    given = [part for name, value in options.items() if value is not None for part in (f"--{name}", value)]
    return shlex.join(["isograd", verb, *map(str, (*words, *given))])


_ELSEWHERE = {  # what keys and options are called in other libraries
    "layers": "n_layer n_layers num_layers num_hidden_layers depth blocks",
    "width": "d_model n_embd hidden_size hidden embed_dim embedding_dim dim",
    "heads": "n_head n_heads num_heads num_attention_heads nhead attention_heads",
    "lr": "learning_rate rate peak_lr max_lr",
    "warmup": "warmup_steps num_warmup_steps warmup_updates warm_up",
    "steps": "max_steps num_steps total_steps iters max_iters iterations updates max_update",
    "batch": "batch_size per_device_train_batch_size micro_batch_size bsz",
    "length": "seq_len sequence_length block_size max_length context_length max_seq_len",
    "placement": "norm norm_type normalization norm_first normalize_before",
    "clip": "grad_clip max_grad_norm clip_norm gradient_clipping",
    "epochs": "num_train_epochs max_epochs n_epochs num_epochs",
    "jobs": "workers num_workers n_jobs parallel",
    "seeds": "seed",
    "seed": "seeds random_seed manual_seed",
    "out": "output output_dir out_dir folder dir",
    "data": "dataset file corpus text",
    "fresh": "force overwrite",
}


def hint(name: str, known: Iterable[str]) -> str:
    """What the user may have meant by `name`: "did you mean 'layers'?", or all that is known.

    >>> hint("layrs", ["layers", "width"]), hint("model.n_layer", ["model.layers", "model.width"])
    ("did you mean 'layers'?", "did you mean 'model.layers'?")
    >>> hint("--out", ["--quiet"])
    'choose one of --quiet'
    >>> hint("x", ["layers", "width"])
    'choose one of layers, width'
    """
    known = list(known)
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else "choose one of " + ", ".join(known)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is likely to mean, misspelt or as other libraries call it; None if none is near.

    Names may be keys (model.layers) or options (--layers).
    """
    known, bare = list(known), _bare(name)
    same = [one for one in known if _bare(one) == bare]
    same = same or [one for one in known if bare in _ELSEWHERE.get(_bare(one), "").split()]
    like = difflib.get_close_matches(bare, map(_bare, known), n=1, cutoff=0.6)
    same = same or [one for one in known if _bare(one) in like]
    whole = [one for one in known if not one.startswith("-")]  # two dashes are no likeness
    return next(iter(difflib.get_close_matches(name, same or whole, n=1, cutoff=0.0 if same else 0.6)), None)


def _bare(name: str) -> str:
    return name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """What the block raises of these kinds becomes a UserError of one line."""
    try:
        yield
    except IsogradError:
        raise
    except kinds as error:
        raise UserError(one_line(error)) from error


def one_line(error: BaseException) -> str:
    """The message of an error in one line; of the system's errors the file and what is wrong with it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
