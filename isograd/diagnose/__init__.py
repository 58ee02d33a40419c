"""Instruments that look into a model while it trains."""

from isograd.diagnose.probe import Probe, Row
from isograd.diagnose.watching import Watch, watch

__all__ = ["Probe", "Row", "Watch", "watch"]
