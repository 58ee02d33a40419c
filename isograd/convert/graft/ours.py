"""What no class of transformers can say: isograd's own class, with another residual at some sites.

The new placement stands in config.json site by site, so that the model loads without any entry of the catalogue.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from isograd.convert.graft.found import options
from isograd.convert.pretrained import from_transformers
from isograd.errors import GraftError, InteropError
from isograd.models import IsogradConfig, IsogradPreTrainedModel
from isograd.placement import Placement, Residual, Site, sites
from isograd.placement.formula import Rates
from isograd.placement.stored import stored

Rule = Callable[[Site, Residual], Residual]  # the site in the new model, the residual there before


def ours(model: PreTrainedModel) -> IsogradPreTrainedModel:
    """The model in isograd's class.

    Raises:
        GraftError: no class of transformers says what is asked for, and isograd's does not hold the model either.
    """
    if isinstance(model, IsogradPreTrainedModel):
        return model
    try:
        return from_transformers(model)
    except InteropError as error:
        name, reason = type(model).__name__, str(error).partition("; expected")[0]
        raise GraftError(f"{name} cannot say this, and isograd's own class cannot hold the model: {reason}") from error


def placed(
    model: IsogradPreTrainedModel,
    name: str,
    rule: Rule,
    state: Mapping[str, Tensor],
    *,
    sources: Sequence[int] | None = None,
    **changes: Any,
) -> IsogradPreTrainedModel:
    """A model with other residuals, and these weights; parameters without one begin as the placement says.

    Args:
        sources: the old layer of each new one, from 0; None keeps all.
        changes: of the placement (a field of `Placement`) or of the configuration.

    Raises:
        GraftError: weights that the new model has no place for, or matrices that it would have to draw.
    """
    before: IsogradConfig = model.config
    (stack,) = before.stacks()
    count = before.num_hidden_layers
    order = list(range(count)) if sources is None else list(sources)
    old = {(site.kind, site.layer): site for site in sites(count, stack)}
    entry = before.entry()

    def before_of(site: Site) -> Site:
        return old[site.kind, order[site.layer - 1] + 1]

    def at(site: Site) -> Residual:
        return rule(site, entry.at(before_of(site)))

    own = {key: changes.pop(key) for key in list(changes) if key in Placement.__dataclass_fields__}
    init = replace(entry.init, gain=_moved(entry.init.gain, before_of))
    rates = replace(entry.rates, **{f.name: _moved(getattr(entry.rates, f.name), before_of) for f in fields(Rates)})
    placement = replace(entry, each=at, calibrate=None, init=init, rates=rates, **own)
    config = copy.deepcopy(before)
    per_layer = {name: value for name, value in options(before, list) if len(value) == count}
    for option, value in ({name: [value[i] for i in order] for name, value in per_layer.items()} | changes).items():
        setattr(config, option, value)
    config.num_hidden_layers, config.placement, config.calibration = len(order), name, None
    config.formula = {stack: stored(name, placement, len(order), stack, 0)}
    made = type(model)(config).to(model.dtype)
    missing, unexpected = made.load_state_dict(dict(state), strict=False)
    tied = made._tied_weights_keys or {}
    drawn = [n for n in missing if made.get_parameter(n).ndim > 1 and n not in tied and "stream" not in n]
    if unexpected or drawn:
        raise GraftError(f"no place for {unexpected[:1]}, or nothing to put into {drawn[:1]}")
    made.tie_weights()
    if made.can_generate() and model.generation_config is not None:
        made.generation_config = copy.deepcopy(model.generation_config)
    return made.eval()


def state_of(model: IsogradPreTrainedModel) -> dict[str, Tensor]:
    """The weights, not copied."""
    return {name: value.detach() for name, value in model.state_dict().items()}


def residuals_of(config: IsogradConfig) -> dict[Site, Residual]:
    """The residual of each site of a model of one stack."""
    (stack,) = config.stacks()
    entry = config.entry()
    return {site: entry.at(site) for site in sites(config.num_hidden_layers, stack)}


def _moved(laws: Mapping[Any, Any], before_of: Callable[[Site], Site]) -> dict[Any, Any]:
    """Laws of the sites of the new model that say what those of the old one did."""

    def at(value: Any) -> Any:
        return (lambda site: value(before_of(site))) if callable(value) else value

    return {role: at(value) for role, value in laws.items()}
