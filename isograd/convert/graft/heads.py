"""More or fewer key/value heads: where keys and values have matrices of their own, and an option counts their heads."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from isograd.convert.graft.found import GraftSubject, changed, options, rebuilt, shapes
from isograd.convert.graft.moves import How, Moved, whole
from isograd.errors import GraftError
from isograd.models import IsogradConfig


def kv_heads(subject: GraftSubject, value: str, how: How) -> Moved:
    """more, by repeating them (exact); or fewer, the means of neighbours (measured)

    A query's key and value stay the same where each head is repeated for its own part of the queries. The mean over a
    group is what Ainslie et al. 2023, arXiv 2305.13245, begin from.
    """
    wanted = whole(value, "kv-heads")
    keys, queries = _matrices(subject)
    option, now = _option(subject, keys, queries)
    heads = subject.state[queries[0]].shape[0] // (subject.state[keys[0]].shape[0] // now)
    if wanted == now:
        raise GraftError(f"kv-heads={wanted}: the model has {now}")
    if heads % wanted or max(now, wanted) % min(now, wanted):
        raise GraftError(
            f"kv-heads={wanted}: expected a divisor of {heads} heads, and a multiple or a divisor of {now}"
        )
    repeated = wanted > now

    def regrouped(value: Tensor) -> Tensor:
        each = value.unflatten(0, (now, -1))
        if repeated:
            return each.repeat_interleave(wanted // now, 0).flatten(0, 1)
        return each.double().unflatten(0, (wanted, -1)).mean(1).to(value.dtype).flatten(0, 1)

    said = "each repeated" if repeated else "the means of neighbours"
    made = _reshaped(subject, option, wanted, regrouped)
    return Moved(model=made, said=f"{now} to {wanted} key/value heads, {said}", exact=repeated)


def vocabulary(subject: GraftSubject, value: str, how: How) -> Moved:
    """more rows, the mean of the old ones: no old logit moves (exact)

    The logit of a mean row is the mean of logits, and never the largest.
    """
    wanted = whole(value, "vocabulary")
    table = subject.model.get_input_embeddings().weight
    rows = table.shape[0]
    if wanted <= rows:
        raise GraftError(f"vocabulary={wanted}: the model has {rows} rows; expected more")
    for option, now in options(subject.config, int):
        grown = _grown(subject, option, wanted) if now == rows else {}
        if grown and any(v.data_ptr() == table.data_ptr() for n, v in subject.state.items() if n in grown):
            if any(subject.state[n].shape[0] != rows or size != wanted for n, size in grown.items()):
                raise GraftError(f"{type(subject.model).__name__}: {option} is the size of more than tables")

            def longer(value: Tensor) -> Tensor:
                mean = value.double().mean(0, keepdim=True).to(value.dtype)
                return torch.cat([value, mean.expand(wanted - rows, *value.shape[1:])])

            made = _reshaped(subject, option, wanted, longer)
            return Moved(model=made, said=f"{rows} to {wanted} rows, the new ones the mean of the old")
    raise GraftError(f"{type(subject.model).__name__}: no option of its configuration makes the vocabulary larger")


def _matrices(subject: GraftSubject) -> tuple[list[str], list[str]]:
    """Names of the matrices of keys and values, and of queries."""
    roles = {name: role for s in subject.stack.sublayers if s.kind == "attn" for name, role in s.roles.items()}
    fused = [name for name, role in roles.items() if "+" in role]
    if fused:
        raise GraftError(f"{fused[0]} holds {roles[fused[0]].replace('+', ', ')} in one: expected a matrix for each")
    keys = [name for name, role in roles.items() if role in ("key", "value")]
    if not keys:
        raise GraftError("no matrices of keys and values were found")
    return keys, [name for name, role in roles.items() if role == "query"]


def _option(subject: GraftSubject, keys: list[str], queries: list[str]) -> tuple[str, int]:
    """The option that counts key/value heads, and its value: all keys and values follow it, and no query."""
    rows = subject.state[keys[0]].shape[0]
    found, config = list(options(subject.config, int)), subject.config
    if isinstance(config, IsogradConfig) and config.key_value_heads == config.num_attention_heads:
        found = [("num_key_value_heads", config.num_attention_heads)]  # which it need not say
    for option, now in found:
        if now > 0 and rows % now == 0:
            trial = 1 if now > 1 else 2
            sizes = _grown(subject, option, trial)
            follows = all(sizes.get(n) == rows // now * trial for n in keys)
            if follows and not sizes.keys() & set(queries) and all(subject.layers.place(n) for n in sizes):
                return option, now
    raise GraftError(
        f"{type(subject.model).__name__}: no option of its configuration counts key/value heads; every head of the"
        " queries has one of its own"
    )


def _grown(subject: GraftSubject, option: str, wanted: int) -> dict[str, int]:
    """The first sizes of the parameters whose shapes follow an option; none where another size moves, too."""
    made = shapes(subject.model, changed(subject.config, {option: wanted}))
    if made is None:
        return {}
    new, old = {n: v.shape for n, v in made.state_dict().items()}, {n: v.shape for n, v in subject.state.items()}
    moved = {n: shape for n, shape in new.items() if shape != old.get(n)}
    if new.keys() != old.keys() or any(shape[1:] != old[n][1:] for n, shape in moved.items()):
        return {}
    return {n: shape[0] for n, shape in moved.items()}


def _reshaped(subject: GraftSubject, option: str, wanted: int, change: Callable[[Tensor], Tensor]) -> PreTrainedModel:
    sizes = _grown(subject, option, wanted)
    state = {name: change(value) if name in sizes else value for name, value in subject.state.items()}
    return rebuilt(subject.model, state, {option: wanted})
