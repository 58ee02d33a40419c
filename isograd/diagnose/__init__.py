"""Instruments that look into a model: its depth profile, and its run as it goes."""

from typing import TYPE_CHECKING

from isograd.diagnose.watch.probe import Probe, Row
from isograd.doors import doors

if TYPE_CHECKING:
    from isograd.diagnose.depth_profile import Profile, profile

__getattr__ = doors(__name__)  # the profile loads transformers, which watching a bare loop does not need

__all__ = ["Probe", "Profile", "Row", "profile"]
