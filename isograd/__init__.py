"""isograd: level gradients at every depth. Placements of the norms in deep Transformers, side by side.

Importing the package is cheap: the placements load at once, torch and transformers only when a model is named.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from isograd.placement import Placement, get, register

if TYPE_CHECKING:
    from isograd.models import (
        IsogradConfig,
        IsogradForCausalLM,
        IsogradForMaskedLM,
        IsogradForSeq2SeqLM,
        IsogradForSequenceClassification,
    )

__version__ = "0.1.0"

_MODELS = (
    "IsogradConfig",
    "IsogradForCausalLM",
    "IsogradForMaskedLM",
    "IsogradForSeq2SeqLM",
    "IsogradForSequenceClassification",
)

__all__ = [
    "IsogradConfig",
    "IsogradForCausalLM",
    "IsogradForMaskedLM",
    "IsogradForSeq2SeqLM",
    "IsogradForSequenceClassification",
    "Placement",
    "get",
    "register",
]


def __getattr__(name: str) -> Any:
    if name in _MODELS:
        return getattr(import_module("isograd.models"), name)
    raise AttributeError(f"module 'isograd' has no attribute {name!r}")
