"""What the four papers claim: their items run again, their claims measured, models of their own code in."""

from typing import TYPE_CHECKING

from isograd.doors import doors

if TYPE_CHECKING:
    from isograd.papers.fairseq import from_fairseq
    from isograd.papers.reproduce.measures.dependency import dependency_map
    from isograd.papers.theory import CLAIMS, verdicts
    from isograd.papers.torch_nn import Layout, from_torch

__getattr__ = doors(__name__)

__all__ = [
    "CLAIMS",
    "Layout",
    "dependency_map",
    "from_fairseq",
    "from_torch",
    "verdicts",
]
