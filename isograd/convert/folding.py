"""Coefficients into plain weights: the same function without them, exact but for rounding.

What a sublayer reads is x, what it writes x' = post(skip * x + scale * out(f(pre(x)))). From the last sublayer to the
first, each one is asked to write w * x' in place of x' (w = 1 at the end of a stack), and asks the one below for what
it must then read:

    post there        its gamma and beta times w; the sum stays as it is, so it reads skip * x
    no post           scale times w, skip times w; it reads skip * w * x
    scale              into W_O, b_O (W_2, b_2), or into gamma and beta of `out`
    reads r * x       the columns of W_Q, W_K, W_V (W_1, and the gate) over r; of cross-attention W_Q alone: its keys
                      and values read the memory, which stays as it is
    heads             the columns of W_O; as fairseq released it, rows of W_O and b_O

What the first sublayer reads is x = norm(project(scale * E[token]) + P[position] + T[type]): gamma and beta of the norm
times w; without the norm E diag(w), or the rows of the projection where there is one, P diag(w) and T diag(w). A
sinusoid becomes a table. A head, or the other stack, that shares E keeps the old one, as a copy.

Liu et al. 2020, arXiv 2004.08249, promise it for ADMIN; the rest follows from the same lines.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from isograd.convert.parity import ParityReport, measure
from isograd.convert.sample import Sample
from isograd.errors import FoldError
from isograd.models import IsogradConfig, IsogradModel, IsogradPreTrainedModel
from isograd.placement import CATALOGUE, Norm, Placement, Residual, Site, Stack, get, sites
from isograd.placement.flags import flagged_name
from isograd.placement.text import formulas
from isograd.transformer.attention import Attention
from isograd.transformer.feedforward import FeedForward, GatedFeedForward
from isograd.transformer.parameters import Coefficient, Embedding, Linear, Shared, roles
from isograd.transformer.positions import Sinusoidal
from isograd.transformer.sublayer import Add, Constant, CoupledAdd, LearnedAdd, ScaledAdd, Sublayer

NEAR_ZERO = 1e-6  # of the largest entry: what is divided by less leaves the range of half precision


def fold(model: IsogradPreTrainedModel, *, untie: bool = False) -> IsogradPreTrainedModel:
    """The model of the plain placement that computes the same; `model` stays as it is.

    Folded in fp64 and cast back to the dtype of each weight. For inference and export: gradients, weight decay and
    the optimizer see another model, and hidden states inside the stack are multiples of what they were.

    Args:
        untie: where the coefficient of the first sublayer has to go into token tables that are shared, give each its
            own copy: the head, and the encoder.

    Raises:
        FoldError: nothing to fold; an entry near zero; a norm that reads what would be scaled; a table that is shared;
            modules that isograd did not put there; no placement in the catalogue has the norms that are left.
    """
    config = _folded_config(model.config)
    work = _double(model)
    with torch.no_grad():
        wanted = {stack.stack: _fold_stack(stack) for stack in work.modules() if isinstance(stack, IsogradModel)}
        _fold_embeddings(work, wanted, config, untie=untie)
    return _cast(work, model, config)


def measure_fold(
    model: IsogradPreTrainedModel,
    folded: IsogradPreTrainedModel,
    sample: Sample | None = None,
    *,
    untie: bool = False,
    **facts: Any,
) -> ParityReport:
    """The parity report of a fold.

    fp64 is measured on the fold of the fp64 copy, before any cast: the cast to fp32 is what the fp32 row measures. Of
    weights that are stored in half precision it is the fold of their fp32 copy, and the bf16 row shows the cast.

    Args:
        folded: `fold(model)`, or what was loaded of it.
        facts: of `measure`.
    """
    exact = copy.deepcopy(model).double()
    half = torch.promote_types(model.dtype, torch.float32) != model.dtype
    single = fold(copy.deepcopy(model).float(), untie=untie) if half else folded
    return measure(
        {"fp64": exact, "fp32": model, "bf16": model},
        {"fp64": fold(exact, untie=untie), "fp32": single, "bf16": folded},
        sample,
        about=f"{model.config.placement} folded into {folded.config.placement}",
        notes=_notes(model, folded, half=half),
        **facts,
    )


def _fold_stack(stack: IsogradModel) -> Tensor | None:
    """The factor that the first sublayer wants of the embedding, None for 1."""
    wanted: Tensor | None = None
    for sublayer in reversed([module for module in stack.layers.modules() if isinstance(module, Sublayer)]):
        wanted = _fold_sublayer(sublayer, wanted)
    return wanted


def _fold_sublayer(sublayer: Sublayer, wanted: Tensor | None) -> Tensor | None:
    """Write `wanted` times what was written; the factor wanted of what is read."""
    branch = sublayer.branch
    assert isinstance(branch, Attention | FeedForward)
    skip, scale = _coefficients(sublayer.combine, branch.out.out_features)
    if not isinstance(sublayer.post, nn.Identity):
        _scale(sublayer.post, wanted)
    else:
        skip, scale = _times(skip, wanted), _times(scale, wanted)
    if isinstance(branch, Attention):
        _fold_heads(branch, sublayer.site)
    _scale(branch.out if isinstance(sublayer.out, nn.Identity) else sublayer.out, scale)
    if skip is not None:
        _read_scaled(sublayer, skip)
    return skip


def _read_scaled(sublayer: Sublayer, factor: Tensor) -> None:
    """The branch reads factor * x from now on, and finds what it found."""
    at = _said(sublayer.site)
    if not isinstance(sublayer.pre, nn.Identity):
        raise FoldError(
            f"the skip of {at} cannot be folded: a norm in front of the branch reads the same stream, and no weights"
            " undo its scale there; keep the model as it is"
        )
    least, largest = float(factor.abs().min()), float(factor.abs().max())
    if not least >= NEAR_ZERO * largest > 0:  # nor where either is not a number
        raise FoldError(
            f"the skip of {at} cannot be folded: its smallest entry is {least:.1e}, its largest {largest:.1e}, and the"
            f" branch's columns are divided by it (at least {NEAR_ZERO:g} of the largest)"
        )
    for projection in _readers(sublayer.branch):
        projection.weight.div_(factor)


def _readers(branch: nn.Module) -> list[Linear]:
    """The projections that read the stream."""
    if isinstance(branch, Attention):
        return [branch.query] if branch.is_cross else [branch.query, branch.key, branch.value]
    assert isinstance(branch, FeedForward)
    return [branch.into, branch.gate] if isinstance(branch, GatedFeedForward) else [branch.into]


def _fold_heads(branch: Attention, site: Site) -> None:
    """HeadScale into W_O, or where a norm stands before it into the values, which attention only mixes."""
    if not isinstance(branch.heads, Coefficient):
        return
    factor = branch.heads.weight.flatten().repeat_interleave(branch.head_size)
    if branch.heads_read_output:
        _scale(branch.out, factor)
    elif isinstance(branch.mid, nn.Identity):
        branch.out.weight.mul_(factor)
    elif isinstance(branch.value_norm, nn.Identity):
        _scale(branch.value, factor)
    elif not branch.norm_per_head:
        _scale(branch.value_norm, factor)
    else:
        raise FoldError(
            f"HeadScale of {_said(site)} cannot be folded: it is between two norms, and the one on the"
            " values has one scale for all heads"
        )


def _coefficients(combine: nn.Module, width: int) -> tuple[Tensor | None, Tensor | None]:
    """skip and scale as vectors of the width, None for the constant 1."""
    if isinstance(combine, LearnedAdd):
        return _vector(combine.skip, width), _vector(combine.scale, width)
    if isinstance(combine, CoupledAdd):
        return combine.values()[0].detach().expand(width), combine.values()[1].detach().expand(width)
    if isinstance(combine, ScaledAdd):
        return _constant(combine.skip, width), _constant(combine.scale, width)
    assert isinstance(combine, Add)
    return None, None


def _vector(module: nn.Module, width: int) -> Tensor | None:
    if isinstance(module, Coefficient | Shared):
        return module.value().detach().expand(width)
    return _constant(module.value, width) if isinstance(module, Constant) else None


def _constant(value: float, width: int) -> Tensor | None:
    return None if value == 1.0 else torch.full((width,), value, dtype=torch.float64)


def _scale(module: nn.Module, factor: Tensor | None) -> None:
    """What a projection or a norm writes, times the factor: rows of its weight, and its offset."""
    if factor is None:
        return
    weight, bias = module.weight, getattr(module, "bias", None)
    assert isinstance(weight, Tensor)
    weight.mul_(factor if weight.ndim == 1 else factor[:, None])
    if bias is not None:
        bias.mul_(factor)


def _times(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a * b


def _double(model: IsogradPreTrainedModel) -> IsogradPreTrainedModel:
    """A copy in fp64 on the CPU, of modules that are isograd's own: no other one reads the stream then."""
    work = _built(type(model), model.config)
    kinds = {name: type(module) for name, module in work.named_modules()}
    for name, module in model.named_modules():
        if kinds.get(name) is not type(module):
            raise FoldError(
                f"{name} ({type(module).__name__}) is not of a model that isograd builds, and what it reads is not"
                " known; merge or remove it first"
            )
    state = {name: value.to("cpu", torch.float64, copy=True) for name, value in model.state_dict().items()}
    return _filled(work, state)


def _cast(work: IsogradPreTrainedModel, model: IsogradPreTrainedModel, config: IsogradConfig) -> IsogradPreTrainedModel:
    """The folded weights in a model of the new configuration, each in the dtype that it had, where the model is."""
    out, state = _built(type(model), config), work.state_dict()
    role_of = roles(work)
    lost = {name for name in set(state) - set(out.state_dict()) if role_of.get(name) != "coefficient"}
    assert not lost, lost
    dtypes = {name: value.dtype for name, value in model.state_dict().items()}
    _filled(out, {name: state[name].to(dtypes.get(name, model.dtype)) for name in out.state_dict()})
    if hasattr(model, "generation_config"):
        out.generation_config = copy.deepcopy(model.generation_config)
    return out.to(model.device).train(model.training)


def _built(kind: type[IsogradPreTrainedModel], config: IsogradConfig) -> IsogradPreTrainedModel:
    """Modules without weights, which are not drawn for nothing."""
    with torch.device("meta"):
        return kind(copy.deepcopy(config))


def _filled(model: IsogradPreTrainedModel, state: dict[str, Tensor]) -> IsogradPreTrainedModel:
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    return model


def _said(site: Site) -> str:
    return f"{site.kind} in layer {site.layer} of the {site.stack}"


def _notes(before: IsogradPreTrainedModel, after: IsogradPreTrainedModel, *, half: bool) -> list[str]:
    old, new = before.config, after.config
    notes = []
    if new.position_embedding_type != old.position_embedding_type:
        rows = new.max_position_embeddings
        notes.append(f"Sinusoidal positions are a table of {rows} now; raise max_position_embeddings first for more.")
    if (new.tie_word_embeddings, new.share_encoder_embeddings) != (
        old.tie_word_embeddings,
        old.share_encoder_embeddings,
    ):
        notes.append("Token tables that were one are stored apart: further training would let them drift.")
    if half:
        notes.append(f"Weights are stored in {str(before.dtype).removeprefix('torch.')}: see the row bf16.")
    return notes


def _fold_embeddings(
    model: IsogradPreTrainedModel, wanted: Mapping[Stack, Tensor | None], config: IsogradConfig, *, untie: bool
) -> None:
    """Scale the embeddings of an fp64 model, in place, and set in `config` the options that change by that.

    Raises:
        FoldError: a table would have to be scaled that has another reader, and `untie` is False.
    """
    stacks = {stack.stack: stack for stack in model.modules() if isinstance(stack, IsogradModel)}
    tables: dict[Stack, Tensor] = {}
    for name, factor in wanted.items():
        norm: nn.Module = stacks[name].embedding.norm
        if factor is None or bool((factor == 1).all()):
            continue
        if isinstance(norm, nn.Identity):
            tables[name] = factor
        else:
            for parameter in norm.parameters():
                parameter.mul_(factor)
    _untie(model, stacks, tables, config, allowed=untie)
    _write_out(stacks, tables, config)
    for name, factor in tables.items():
        embedding = stacks[name].embedding
        if isinstance(embedding.project, Linear):
            embedding.project.weight.mul_(factor[:, None])
        else:
            embedding.tokens.weight.mul_(factor)
        for table in (embedding.positions, embedding.types):
            if isinstance(table, Embedding):
                table.weight.mul_(factor)


def _untie(
    model: IsogradPreTrainedModel,
    stacks: Mapping[Stack, IsogradModel],
    tables: Mapping[Stack, Tensor],
    config: IsogradConfig,
    *,
    allowed: bool,
) -> None:
    """Own copies for the other readers of the token tables that are scaled."""
    scaled = {name for name in tables if isinstance(stacks[name].embedding.project, nn.Identity)}
    tied = config.tie_word_embeddings and bool(model._tied_weights_keys)
    shared = len(stacks) == 2 and config.share_encoder_embeddings and bool(scaled)
    head = tied and ("decoder" if len(stacks) == 2 else next(iter(stacks))) in scaled
    if not (shared or head):
        return
    if not allowed:
        readers = "encoder, decoder and head" if shared else "the embedding and the head"
        raise FoldError(
            f"the skip of the first sublayer goes into the token table, which {readers} share, as there is no embedding"
            " norm to take it; untie=True (--untie) gives each its own copy"
        )
    if shared:
        _own_copy(stacks["encoder"].embedding.tokens)
        config.share_encoder_embeddings = False
    if head:
        _own_copy(model.get_output_embeddings())
        config.tie_word_embeddings = False


def _own_copy(module: nn.Module) -> None:
    assert isinstance(module.weight, Tensor)
    module.weight = nn.Parameter(module.weight.clone())


def _write_out(stacks: Mapping[Stack, IsogradModel], tables: Mapping[Stack, Tensor], config: IsogradConfig) -> None:
    """Sinusoids become tables: of each stack that one option speaks for, where one of them is scaled."""
    own = dict(config.encoder_options or {})
    apart = "position_embedding_type" in own
    every = set(stacks)
    groups: list[set[Stack]] = [every - {"encoder"}, {"encoder"}] if apart else [every]
    for group in groups:
        sinusoids = {name for name in group if isinstance(stacks[name].embedding.positions, Sinusoidal)}
        if not sinusoids & set(tables):
            continue
        for name in sinusoids:
            stacks[name].embedding.positions = _table(stacks[name])
        if apart and "encoder" in group:
            config.encoder_options = own | {"position_embedding_type": "learned"}
        else:
            config.position_embedding_type = "learned"


def _table(stack: IsogradModel) -> Embedding:
    config, sinusoid = stack.config, stack.embedding.positions
    assert isinstance(sinusoid, Sinusoidal)
    rows = torch.arange(config.max_position_embeddings + config.position_offset)
    table = Embedding(len(rows), config.hidden_size)
    table.weight = nn.Parameter(sinusoid(rows).double())
    return table


def _folded_config(config: IsogradConfig) -> IsogradConfig:
    """A copy that names the plain placement, also where the encoder has its own; not calibrated.

    Raises:
        FoldError: there are no coefficients, or no placement has the norms that are left.
    """
    for stack in config.stacks():
        if not (stream := config.of(stack).entry().stream).plain:
            raise FoldError(
                f"the stream of placement {config.of(stack).placement!r} is {type(stream).__name__}: no plain weights"
                " do what it does; keep the model as it is"
            )
    if all(_is_plain(config.of(stack).entry(), _sites(config, [stack])) for stack in config.stacks()):
        raise FoldError(f"placement {config.placement!r} has no coefficients to fold")
    out = copy.deepcopy(config)
    own = dict(config.encoder_options or {})
    apart = "placement" in own
    out.placement = _folded(config, [stack for stack in config.stacks() if not (apart and stack == "encoder")])
    if apart:
        out.encoder_options = own | {"placement": _folded(config.of("encoder"), ["encoder"])}
    out.calibration = None
    return out


def _folded(config: IsogradConfig, stacks: list[Stack]) -> str:
    placement, every = config.entry(), _sites(config, stacks)
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


def _sites(config: IsogradConfig, stacks: list[Stack]) -> list[Site]:
    depths = {stack: config.depths(stack) for stack in stacks}
    return [site for stack, (layers, other) in depths.items() for site in sites(layers, stack, other)]


def _is_plain(placement: Placement, every: list[Site]) -> bool:
    return all(_plain(placement.at(site)) == placement.at(site) for site in every)


def _plain(residual: Residual) -> Residual:
    return replace(residual, skip=1.0, scale=1.0, head_scale=None)


def _norms(placement: Placement, every: list[Site], kind: str) -> list[object]:
    """All norms of a model in order, of the kinds that it builds them in."""

    def built(norm: Norm | None) -> Norm | None:
        if norm is None or norm.kind != "model":
            return norm
        return replace(norm, kind="layernorm" if kind == "layernorm" else "rmsnorm")

    ends = [norm and norm.at(site) for norm in (placement.first, placement.final) for site in every[:1]]
    found: list[object] = [type(placement.stream), *(built(norm) for norm in ends)]
    for site in every:
        residual = placement.at(site)
        found += [built(norm) for norm in (residual.pre, residual.mid, residual.out, residual.post)]
        inside = residual.projections
        found.append(inside and replace(inside, of=tuple(sorted(inside.of)), norm=built(inside.norm) or Norm()))
        found += [residual.gate, residual.cap]
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
