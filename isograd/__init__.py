"""isograd: level gradients at every depth. Placements of the norms in deep Transformers, side by side.

Importing the package is cheap: the placements load at once, torch and transformers only when what needs them is named.
The Auto classes know isograd's models from then on, whichever of the two packages is imported first: transformers looks
up a `model_type` in one table, whose entry names the class, and its module is loaded when somebody asks for it.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from isograd.doors import doors
from isograd.placement import Placement, get, register

if TYPE_CHECKING:
    from isograd.convert.graft import graft
    from isograd.diagnose.calibrate import calibrate
    from isograd.diagnose.watch import watch
    from isograd.diagnose.watch.loops.callback import WatchCallback
    from isograd.diagnose.watch.loops.lightning import LightningWatch
    from isograd.diagnose.watch.loops.replay import OwnLoop
    from isograd.lab import transfer
    from isograd.lint import check
    from isograd.lint.conform import conform
    from isograd.lint.step import preflight
    from isograd.models import (
        IsogradConfig,
        IsogradForCausalLM,
        IsogradForMaskedLM,
        IsogradForSeq2SeqLM,
        IsogradForSequenceClassification,
    )

__version__ = "0.2.0"

__all__ = [
    "IsogradConfig",
    "IsogradForCausalLM",
    "IsogradForMaskedLM",
    "IsogradForSeq2SeqLM",
    "IsogradForSequenceClassification",
    "LightningWatch",
    "OwnLoop",
    "Placement",
    "WatchCallback",
    "calibrate",
    "check",
    "conform",
    "get",
    "graft",
    "preflight",
    "register",
    "transfer",
    "watch",
]


__getattr__ = doors(__name__)


class _WithAuto(MetaPathFinder):
    """Waits for transformers' table of configurations, and is gone when it is there."""

    table = "transformers.models.auto.configuration_auto"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.table:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _register(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _register(auto: ModuleType) -> None:
    auto.CONFIG_MAPPING_NAMES["isograd"] = "IsogradConfig"
    auto.CONFIG_MAPPING._modules["isograd"] = sys.modules[__name__]


if _WithAuto.table in sys.modules:
    _register(sys.modules[_WithAuto.table])
else:
    sys.meta_path.insert(0, _WithAuto())
