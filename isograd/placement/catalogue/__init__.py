"""The catalogue: one entry per placement, by group, within a group in the order of the papers.

To add your own, write an entry and register it:

    from isograd.placement import Norm, Placement, Residual, register
    around = Residual(pre=Norm(), out=Norm())
    register("around", Placement(each=around, final=Norm(), about="norms around the branch"))
"""

import difflib
import re

from isograd.errors import UnknownPlacement
from isograd.placement.catalogue.attention import IN_ATTENTION
from isograd.placement.catalogue.inside import NORM_INSIDE
from isograd.placement.catalogue.on_the_sum import NORM_ON_THE_SUM
from isograd.placement.catalogue.parameterization import PARAMETERIZATION
from isograd.placement.catalogue.scaled import SCALED
from isograd.placement.catalogue.streams import STREAMS
from isograd.placement.flags import flagged
from isograd.placement.formula import Placement
from isograd.placement.transfer import transferred

CATALOGUE: dict[str, Placement] = {
    **NORM_ON_THE_SUM,
    **NORM_INSIDE,
    **SCALED,
    **STREAMS,
    **IN_ATTENTION,
    **PARAMETERIZATION,
}


def get(name: str) -> Placement:
    """The entry of that name, or what a name says of fairseq's flags (`isograd.placement.flags`), or of rules that
    carry settings over depth and width (`isograd.placement.transfer`).

    Raises:
        KeyError: no such entry; the message names the nearest one.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    if (made := flagged(name) or transferred(name, get)) is not None:
        return made
    near = _nearest(name)
    hint = f"did you mean {near!r}?" if near else "choose one of " + ", ".join(CATALOGUE)
    raise UnknownPlacement(
        f"unknown placement {name!r}: {hint} ('isograd show' shows all; one of your own must be registered first)"
    )


def _nearest(name: str) -> str | None:
    """However the norm is spelt (prenorm, pre_layer_norm); never a post-norm for a pre-norm, nor the reverse."""
    spelt = {_spelt(one): one for one in CATALOGUE if {one[:3], name.lower()[:3]} != {"pre", "pos"}}
    near = difflib.get_close_matches(_spelt(name), spelt, n=1, cutoff=0.6)
    return spelt[near[0]] if near else None


def _spelt(name: str) -> str:
    return re.sub("(layer)?norm", "ln", re.sub(r"\W|_", "", name.lower()))


def register(name: str, placement: Placement, *, overwrite: bool = False) -> Placement:
    """Add a placement to the catalogue, for this process.

    A model saved with it carries the placement itself, and loads where nobody has registered it.

    Raises:
        ValueError: the name is taken (pass `overwrite=True` to replace it).
    """
    if name in CATALOGUE and not overwrite:
        raise ValueError(f"placement {name!r} is in the catalogue already; pass overwrite=True to replace it")
    CATALOGUE[name] = placement
    return placement
