"""Public names that are imported when they are named: a package's `__getattr__` of one table."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def doors(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """`__getattr__` of a package (PEP 562).

    Args:
        where: a name -> the module that has it; a module's own name -> that module.
    """

    def open_door(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(where[name])
        found = (
            module if where[name].rpartition(".")[2] == name and not hasattr(module, name) else getattr(module, name)
        )
        setattr(sys.modules[package], name, found)
        return found

    return open_door
