"""Which placement is left without coefficients: the first one with the same norms and nothing else.

Looked for in the catalogue, and behind it among the placements by fairseq's flags, where normformer without its
HeadScale is "fairseq-pre-AF".
"""

import copy
from collections.abc import Iterator
from dataclasses import replace

from isograd.errors import FoldError
from isograd.models import IsogradConfig
from isograd.placement import CATALOGUE, Norm, Placement, Residual, Site, Stack, get, sites
from isograd.placement.flags import flagged_name
from isograd.placement.text import formulas


def folded_config(config: IsogradConfig) -> IsogradConfig:
    """A copy that names the plain placement, also where the encoder has its own; not calibrated.

    Raises:
        FoldError: there are no coefficients, or no placement has the norms that are left.
    """
    if all(_is_plain(config.of(tower).entry(), _sites(config, [tower])) for tower in config.stacks()):
        raise FoldError(f"placement {config.placement!r} has no coefficients to fold")
    out = copy.deepcopy(config)
    own = dict(config.encoder_options or {})
    apart = "placement" in own
    out.placement = _folded(config, [tower for tower in config.stacks() if not (apart and tower == "encoder")])
    if apart:
        out.encoder_options = own | {"placement": _folded(config.of("encoder"), ["encoder"])}
    out.calibration = None
    return out


def _folded(config: IsogradConfig, towers: list[Stack]) -> str:
    placement, every = config.entry(), _sites(config, towers)
    if _is_plain(placement, every):
        return config.placement
    wanted = _norms(placement, every, config.norm)
    for name in _names():
        entry = get(name)
        if _is_plain(entry, every) and _norms(entry, every, config.norm) == wanted:
            return name
    left = formulas(_without_coefficients(placement), cross=config.is_encoder_decoder, layers=config.num_hidden_layers)
    raise FoldError(
        f"placement {config.placement!r} without its coefficients is {'; '.join(left.values())}, which the catalogue"
        " does not have: register an entry with these norms to fold into it"
    )


def _names() -> Iterator[str]:
    yield from CATALOGUE
    for usual in (True, False):  # a final norm in Pre-LN alone, and the other way round
        for pre in (True, False):
            for flags in ("", "A", "F", "AF"):
                yield flagged_name(pre=pre, flags=flags, final=pre == usual)


def _sites(config: IsogradConfig, towers: list[Stack]) -> list[Site]:
    depths = {tower: config.depths(tower) for tower in towers}
    return [site for tower, (layers, other) in depths.items() for site in sites(layers, tower, other)]


def _is_plain(placement: Placement, every: list[Site]) -> bool:
    return all(_plain(placement.at(site)) == placement.at(site) for site in every)


def _plain(residual: Residual) -> Residual:
    return replace(residual, skip=1.0, scale=1.0, head_scale=None)


def _norms(placement: Placement, every: list[Site], kind: str) -> list[object]:
    """All norms of a model in order, of the kinds that it builds them in."""

    def built(norm: Norm | None) -> str | None:
        return None if norm is None else kind if norm.kind == "model" else norm.kind

    found: list[object] = [built(placement.final)]
    for site in every:
        residual = placement.at(site)
        found += [built(norm) for norm in (residual.pre, residual.mid, residual.out, residual.post)]
        inside = residual.projections
        found.append(inside and (frozenset(inside.of), inside.over, built(inside.norm)))
    return found


def _without_coefficients(placement: Placement) -> Placement:
    each = placement.each
    if callable(each):
        return replace(placement, each=lambda site: _plain(placement.of(site)), calibrate=None)
    if isinstance(each, Residual):
        return replace(placement, each=_plain(each), calibrate=None)
    cross = None if each.cross is None else _plain(each.cross)
    plain = replace(each, attn=_plain(each.attn), ffn=_plain(each.ffn), cross=cross)
    return replace(placement, each=plain, calibrate=None)
