"""Public names that are imported when they are named: what a package imports under `if TYPE_CHECKING`."""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def doors(package: str) -> Callable[[str], Any]:
    """`__getattr__` of a package (PEP 562): its imports for type checkers, each at the first use of its name.

    Raises:
        AttributeError: of what `__getattr__` returns: no such name.
    """

    @cache
    def where() -> dict[str, str]:
        """A name -> the module that it is imported from."""
        file = sys.modules[package].__file__
        assert file is not None
        blocks = (node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If))
        found = (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom))
        return {alias.name: str(node.module) for node in found for alias in node.names}

    def open_door(name: str) -> Any:
        if name not in where():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(where()[name])
        found = getattr(module, name) if hasattr(module, name) else import_module(f"{where()[name]}.{name}")
        setattr(sys.modules[package], name, found)
        return found

    return open_door
