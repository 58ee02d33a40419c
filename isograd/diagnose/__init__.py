"""Instruments that look into a model: its depth profile, and its run as it goes."""

from typing import TYPE_CHECKING, Any

from isograd.diagnose.watch.probe import Probe, Row

if TYPE_CHECKING:
    from isograd.diagnose.depth_profile import Profile, profile

__all__ = ["Probe", "Profile", "Row", "profile"]


def __getattr__(name: str) -> Any:
    """The depth profile loads transformers, which watching a bare loop does not need."""
    if name in ("Profile", "profile"):
        from isograd.diagnose import depth_profile

        return getattr(depth_profile, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
