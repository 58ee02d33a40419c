"""Instruments that look into a model while it trains."""

from isograd.diagnose.probe import Probe, Row

__all__ = ["Probe", "Row"]
