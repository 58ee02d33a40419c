"""Which placement is left without coefficients: the entry of the catalogue with the same norms and nothing else."""

from dataclasses import replace

from isograd.export.fold_embedding import FoldError
from isograd.models import IsogradConfig
from isograd.placement import CATALOGUE, Norm, Placement, Residual, Site, sites
from isograd.placement.text import formulas


def folded_placement(config: IsogradConfig) -> str:
    """The name of the plain placement that the configuration's folds into; the first of the catalogue's.

    Raises:
        FoldError: there are no coefficients, or no entry has the norms that are left.
    """
    placement, every = config.entry(), _sites(config)
    if _is_plain(placement, every):
        raise FoldError(f"placement {config.placement!r} has no coefficients to fold")
    for name, entry in CATALOGUE.items():
        if _is_plain(entry, every) and _norms(entry, every, config.norm) == _norms(placement, every, config.norm):
            return name
    left = formulas(_without_coefficients(placement), cross=config.is_encoder_decoder)
    raise FoldError(
        f"placement {config.placement!r} without its coefficients is {'; '.join(left.values())}, which no entry of the"
        " catalogue is: register one with these norms to fold into it"
    )


def _sites(config: IsogradConfig) -> list[Site]:
    depths = {tower: config.depths(tower) for tower in config.towers()}
    return [site for tower, (layers, other) in depths.items() for site in sites(layers, tower, other)]


def _is_plain(placement: Placement, every: list[Site]) -> bool:
    return all(_plain(placement.at(site)) == placement.at(site) for site in every)


def _plain(residual: Residual) -> Residual:
    return replace(residual, skip=1.0, gain=1.0, heads=None)


def _norms(placement: Placement, every: list[Site], kind: str) -> list[object]:
    """All norms of a model in order, of the kinds that it builds them in."""

    def built(norm: Norm | None) -> str | None:
        return None if norm is None else kind if norm.kind == "model" else norm.kind

    found: list[object] = [built(placement.final)]
    for site in every:
        residual = placement.at(site)
        found += [built(norm) for norm in (residual.pre, residual.mid, residual.out, residual.post)]
        if (inside := residual.projections) is not None:
            found.append((frozenset(inside.of), inside.over, built(inside.norm)))
        else:
            found.append(None)
    return found


def _without_coefficients(placement: Placement) -> Placement:
    each = placement.each
    if isinstance(each, Residual):
        return replace(placement, each=_plain(each), calibrate=None)
    cross = None if each.cross is None else _plain(each.cross)
    return replace(placement, each=replace(each, attn=_plain(each.attn), ffn=_plain(each.ffn), cross=cross))
