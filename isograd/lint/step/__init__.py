"""The step around a model, looked at before the run: `isograd.preflight`."""

from isograd.lint.step.report import Preflight, preflight

__all__ = ["Preflight", "preflight"]
