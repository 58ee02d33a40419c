"""Classes of transformers, family by family; a new family is a module here that lists its `FAMILIES`, and a test."""

from importlib import import_module
from pkgutil import iter_modules

from isograd.convert.hf.family import Family

_MODULES = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
FAMILIES: dict[str, Family] = {family.name: family for m in _MODULES for family in getattr(m, "FAMILIES", ())}
