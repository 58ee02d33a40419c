"""What isograd refuses, in one line each: one base class, caught once, by the command line.

A message says what came, what was expected, and what to type instead.
"""

import difflib
from collections.abc import Iterable, Mapping
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


class InputsError(IsogradError, ValueError):
    """No inputs that the model runs on."""


class ProfileError(IsogradError, ValueError):
    """A model with nothing to profile."""

    exit_code = 1


class InteropError(IsogradError, ValueError):
    """What another format cannot hold, or what of another library has no place here."""


class FoldError(InteropError):
    """A model whose coefficients cannot be folded."""


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


def hint(name: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """What the user may have meant by `name`: "did you mean 'layers'?", or all that is known.

    Args:
        others: what `known` names are called elsewhere, such as {"n_layer": "layers"}.

    >>> hint("layrs", ["layers", "width"]), hint("n_layer", ["layers", "width"], {"n_layer": "layers"})
    ("did you mean 'layers'?", "did you mean 'layers'?")
    >>> hint("x", ["layers", "width"])
    'choose one of layers, width'
    """
    near = nearest(name, known, others)
    return f"did you mean {near!r}?" if near else "choose one of " + ", ".join(known)


def nearest(name: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str | None:
    """The known name that `name` is likely to mean; None where no name is near."""
    if others and name in others:
        return others[name]
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), None)


def one_line(error: BaseException) -> str:
    """The message of an error in one line; of the system's errors the file and what is wrong with it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
