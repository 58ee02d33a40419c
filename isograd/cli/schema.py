"""`isograd VERB --schema`: the JSON Schema of what a verb prints with `--json`, made of the types in its signature.

A verb returns `Annotated[Result, A, B]`: what it prints is one of these. Each is a type of Python's: a TypedDict, a
dataclass (its fields, and the properties that its `ALSO` names), or one of these by name, "module:Class", which is
imported when the schema is asked for. A number that is not finite is null in JSON, so that each number may be null.
"""

import ast
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Open(TypedDict):
    """The base of what has more keys than are named here, such as the content of a run's files (as of PEP 728)."""

    __extra_items__: NotRequired[Any]


def schema(verb: str, functions: Sequence[Callable[..., Any]], *, strict: bool = False) -> dict[str, Any]:
    """The schema of a verb's `--json`; empty where none of its functions has it.

    Args:
        strict: keys that are not named are refused, but for those of `Open`. Later versions may add keys, so that
            what is published does not refuse them.
    """
    made = _Schema(strict)
    kinds = [kind for function in functions for kind in contents(function)]
    if not kinds:
        return {}
    either = made.union([made.of(kind) for kind in kinds])
    head = {"$schema": DIALECT, "title": f"isograd {verb} --json"}
    return {**head, **either, **({"$defs": made.defs} if made.defs else {})}


def contents(function: Callable[..., Any]) -> list[Any]:
    """The types of what a verb's function prints with `--json`."""
    hint = get_type_hints(function, include_extras=True).get("return")
    return list(getattr(hint, "__metadata__", ()))


class _Schema:
    """Types as schemas; a class is written once, in `defs`."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.defs: dict[str, Any] = {}

    def of(self, hint: Any) -> dict[str, Any]:
        """The schema of a type."""
        origin, args = get_origin(hint), get_args(hint)
        if isinstance(hint, str):
            module, _, name = hint.partition(":")
            return self.of(getattr(import_module(module), name))
        if origin is Annotated:
            named = next((one for one in hint.__metadata__ if isinstance(one, str) and ":" in one), args[0])
            return self.of(named)
        if origin is NotRequired:
            return self.of(args[0])
        if origin in (Union, types.UnionType):
            return self.union([self.of(one) for one in args])
        if origin is Literal:
            return {"enum": list(args)}
        if is_typeddict(hint) or is_dataclass(hint):
            return self.named(hint)
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(args[1])}
        if origin is tuple and not args:
            return {"type": "array", "maxItems": 0}
        if origin is tuple and args[-1] is not ...:
            return {"type": "array", "prefixItems": [*map(self.of, args)], "minItems": len(args), "maxItems": len(args)}
        if origin in (list, tuple, Sequence):
            return {"type": "array", "items": self.of(args[0])}
        return dict(_PLAIN[hint])

    def union(self, several: list[dict[str, Any]]) -> dict[str, Any]:
        """Any of them, each once."""
        flat = [one for each in several for one in each.get("anyOf", [each])]
        once = [one for at, one in enumerate(flat) if one not in flat[:at]]
        return once[0] if len(once) == 1 else {"anyOf": once}

    def named(self, kind: type) -> dict[str, Any]:
        """A reference to the schema of a class."""
        name = kind.__name__.strip("_")
        if name not in self.defs:
            self.defs[name] = {}  # a class may hold itself
            self.defs[name] = self.keys(kind)
        return {"$ref": f"#/$defs/{name}"}

    def keys(self, kind: type) -> dict[str, Any]:
        about = _attributes(kind)
        hints = get_type_hints(kind, localns=_imported_for_types(kind), include_extras=True)
        if is_dataclass(kind):
            also: Sequence[str] = getattr(kind, "ALSO", ())
            hints = {f.name: hints[f.name] for f in fields(kind) if f.repr} | {
                one: get_type_hints(inspect.getattr_static(kind, one).fget)["return"] for one in also
            }
        closed = hints.pop("__extra_items__", None) is None and self.strict
        required = [name for name in hints if name in getattr(kind, "__required_keys__", hints)]
        return {
            "type": "object",
            "description": inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
            "properties": {
                name: self.of(hint) | ({"description": about[name]} if name in about else {})
                for name, hint in hints.items()
            },
            "required": required,
            **({"additionalProperties": False} if closed else {}),
        }


_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},
    type(None): {"type": "null"},
    dict: {"type": "object"},
    Any: {},
}


def _attributes(kind: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each attribute: under `Attributes:`, indented."""
    texts = [inspect.cleandoc(one.__doc__ or "").partition("\nAttributes:\n")[2] for one in reversed(kind.__mro__)]
    found = [one for text in texts for one in re.findall(r"^    ([\w, ]+): (.*(?:\n {8,}.*)*)", text, re.MULTILINE)]
    return {name: " ".join(said.split()) for names, said in found for name in names.split(", ")}


def _imported_for_types(kind: type) -> dict[str, Any]:
    """The names that the modules of a class and its bases import under `if TYPE_CHECKING` alone."""
    found: dict[str, Any] = {}
    for module in {one.__module__ for one in kind.__mro__} - {"builtins"}:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
        blocks = [one for one in tree.body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"]
        lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
        for line in lines:
            source = import_module(line.module or "")
            found |= {one.asname or one.name: getattr(source, one.name) for one in line.names}
    return found
