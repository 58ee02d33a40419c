"""Classes of transformers, by kind; a new one is a row of `FAMILIES` in the module of its kind, and in its test."""

from importlib import import_module
from pkgutil import iter_modules

from isograd.convert.hf.family import Family

_MODULES = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
FAMILIES: dict[str, Family] = {family.name: family for m in _MODULES for family in getattr(m, "FAMILIES", ())}
