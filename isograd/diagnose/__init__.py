"""Instruments that look into a model: its depth profile, and its training as it goes."""

from typing import TYPE_CHECKING, Any

from isograd.diagnose.probe import Probe, Row
from isograd.diagnose.watching import Watch, watch

if TYPE_CHECKING:
    from isograd.diagnose.depth_profile import ProfileError, profile
    from isograd.diagnose.profiled import Profile

__all__ = ["Probe", "Profile", "ProfileError", "Row", "Watch", "profile", "watch"]


def __getattr__(name: str) -> Any:
    """The depth profile loads transformers, which watching a bare loop does not need."""
    if name in ("Profile", "ProfileError", "profile"):
        from isograd.diagnose import depth_profile

        return getattr(depth_profile, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
