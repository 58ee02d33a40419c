"""What the papers say, as data. Imports neither torch nor anything else of isograd."""

from isograd.placement.catalogue import CATALOGUE, get, register
from isograd.placement.formula import (
    ByKind,
    Coupled,
    Gate,
    HeadScale,
    Init,
    Learned,
    Norm,
    Placement,
    ProjectionNorm,
    Residual,
    Role,
)
from isograd.placement.laws import Kind, Law, Site, Stack, sites

__all__ = [
    "CATALOGUE",
    "ByKind",
    "Coupled",
    "Gate",
    "HeadScale",
    "Init",
    "Kind",
    "Law",
    "Learned",
    "Norm",
    "Placement",
    "ProjectionNorm",
    "Residual",
    "Role",
    "Site",
    "Stack",
    "get",
    "register",
    "sites",
]
