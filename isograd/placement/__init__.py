"""What the papers say, as data. Imports neither torch nor anything else of isograd."""

from isograd.placement.catalogue import CATALOGUE, get, register
from isograd.placement.formula import (
    ByKind,
    HeadScale,
    Law,
    Learned,
    Norm,
    Placement,
    ProjectionNorm,
    Residual,
    Role,
    Start,
)
from isograd.placement.laws import Kind, Site, Tower, sites

__all__ = [
    "CATALOGUE",
    "ByKind",
    "HeadScale",
    "Kind",
    "Law",
    "Learned",
    "Norm",
    "Placement",
    "ProjectionNorm",
    "Residual",
    "Role",
    "Site",
    "Start",
    "Tower",
    "get",
    "register",
    "sites",
]
