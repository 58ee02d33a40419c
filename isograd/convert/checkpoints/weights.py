"""Weights under the names of two libraries: one table of modules per library, read in both directions.

    table = names.modules(config, norms)                 our modules -> theirs
    theirs = to_theirs(ours, table, names, heads)
    ours, rest = from_theirs(theirs, table, names, heads)

Values change in two ways only, and back: queries, keys and values that share one matrix are put on top of each other,
and matrices stored as (in, out) are transposed. What has another meaning in the other library (the rows of a position
table, a scaled token table) is the business of its own module.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from isograd.errors import InteropError
from isograd.models import IsogradConfig, IsogradPreTrainedModel

Norms = Literal["pre", "post"]
_FUSED = ("query", "key", "value")


@dataclass(frozen=True, kw_only=True)
class Names:
    """Modules of isograd -> modules of another library; `weight` and `bias` are called so everywhere.

    Args:
        stacks: "model" (one stack), "encoder", "decoder" -> what stands before that stack's modules.
        stack: a module of a stack, outside its layers.
        layers: the list of layers in a stack.
        layer: a module of a layer; `attn.norm`, `cross.norm` and `ffn.norm` stand for `pre` or `post`.
        heads: a module outside the stacks.
        classifier: the same of a sequence classifier.
        fused: the module of a layer that holds W_Q, W_K, W_V of its self-attention, where one does.
        stacked: other modules of a layer that hold several of ours on top of each other.
        by_head: the rows of `fused` are ordered by head, then query, key, value, as in GPT-NeoX.
        transposed: modules of a layer whose matrices are stored as (in, out).
    """

    stacks: Mapping[str, str]
    stack: Mapping[str, str]
    layer: Mapping[str, str]
    layers: str = "layers"
    heads: Mapping[str, str] = field(default_factory=lambda: {"lm_head": "lm_head"})
    classifier: Mapping[str, str] = field(default_factory=dict)
    fused: str | None = None
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    by_head: bool = False
    transposed: frozenset[str] = frozenset()

    def modules(
        self, depths: Mapping[str, int], norms: Mapping[str, str], *, classifier: bool = False
    ) -> dict[str, str]:
        """Our modules -> theirs, of a model whose stacks have these depths, and norms before or after their sums."""
        table = dict(self.classifier if classifier else self.heads)
        for stack, depth in depths.items():
            prefix = self.stacks[stack] + "." if self.stacks[stack] else ""
            table |= {f"{stack}.{ours}": prefix + theirs for ours, theirs in self.stack.items()}
            layer = {_ours(ours, norms[stack]): theirs for ours, theirs in self.layer.items()}
            layer |= {ours: theirs for theirs, several in self.stacked.items() for ours in several}
            if self.fused:
                layer |= {f"attn.branch.{role}": self.fused for role in _FUSED}
            for number in range(depth):
                at = f"{prefix}{self.layers}.{number}."
                table |= {f"{stack}.layers.{number}.{ours}": at + theirs for ours, theirs in layer.items()}
        return table


def _ours(module: str, norms: str) -> str:
    return f"{module.removesuffix('.norm')}.{norms}" if module in ("attn.norm", "cross.norm", "ffn.norm") else module


def depths(config: IsogradConfig) -> dict[str, int]:
    """Layers of each stack, by the name that it has in a model with a head."""
    if config.encoder_layers is None:
        return {"model": config.num_hidden_layers}
    return {"encoder": config.encoder_layers, "decoder": config.num_hidden_layers}


def to_theirs(
    state: Mapping[str, Tensor], table: Mapping[str, str], names: Names, heads: int = 1, *, emptied: bool = False
) -> dict[str, Tensor]:
    """Our state dict under their names.

    Args:
        emptied: the state is emptied meanwhile, so that of joined weights the parts need not stay.

    Raises:
        InteropError: parameters that the table has no place for.
    """
    refuse("no place there for", (name for name in state if name.rpartition(".")[0] not in table))
    out: dict[str, Tensor] = {}
    left = state if emptied and isinstance(state, dict) else dict(state)
    for theirs, ours in _inverted(table).items():
        for leaf in ("weight", "bias"):
            if parts := [left.pop(name) for module in ours if (name := f"{module}.{leaf}") in left]:
                whole = _joined(parts, heads if names.by_head else None) if len(ours) > 1 else parts[0]
                out[f"{theirs}.{leaf}"] = whole.t() if leaf == "weight" and _is_transposed(theirs, names) else whole
    return out


def from_theirs(
    state: Mapping[str, Tensor], table: Mapping[str, str], names: Names, heads: int = 1
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Their state dict under our names, and what the table has no place for, under theirs."""
    out: dict[str, Tensor] = {}
    rest: dict[str, Tensor] = {}
    places = _inverted(table)
    for name, value in state.items():
        module, _, leaf = name.rpartition(".")
        if module not in places or leaf not in ("weight", "bias"):
            rest[name] = value
            continue
        whole = value.t() if leaf == "weight" and _is_transposed(module, names) else value
        ours = places[module]
        parts = _split(whole, heads if names.by_head else None, len(ours)) if len(ours) > 1 else [whole]
        out |= {f"{own}.{leaf}": part for own, part in zip(ours, parts, strict=True)}
    return out, rest


def fill(
    model: IsogradPreTrainedModel, state: Mapping[str, Tensor], original: Callable[[str], str] = lambda name: name
) -> None:
    """Load weights into a model, in the widest of their dtypes; a tied one may be left out.

    A model on the meta device takes the tensors themselves.

    Args:
        original: what one of our names is called where the weights come from, for messages.

    Raises:
        InteropError: missing or unexpected keys, weights of another shape, tied tables that differ.
    """
    own = model.state_dict()
    tied = dict(model._tied_weights_keys or {}) if model.config.tie_word_embeddings else {}
    refuse("unexpected keys", (original(name) for name in set(state) - set(own)))
    refuse("missing keys", (original(name) for name in set(own) - set(state) - set(tied)))
    refuse(
        "weights of another shape",
        (
            f"{original(name)} {tuple(value.shape)} in place of {tuple(own[name].shape)}"
            for name, value in state.items()
            if value.shape != own[name].shape
        ),
    )
    refuse(
        "tables that should be one, but differ",
        (original(n) for n, source in tied.items() if n in state and not torch.equal(state[n], state[source])),
    )
    widest, given = _widest(state), next(model.parameters()).is_meta
    model.to(widest)
    if not given:
        model.load_state_dict(state, strict=False)
        return
    model.load_state_dict({name: value.to(widest) for name, value in state.items()}, strict=False, assign=True)
    model.tie_weights()


def refuse(what: str, names: Iterable[str]) -> None:
    """Raise InteropError with all names, where there are any."""
    if names := sorted(names):
        raise InteropError(f"{what}: {', '.join(names)}")


def _inverted(table: Mapping[str, str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for ours, theirs in table.items():
        out.setdefault(theirs, []).append(ours)
    return out


def _is_transposed(module: str, names: Names) -> bool:
    return any(module.endswith(f".{name}") for name in names.transposed)


def _joined(parts: list[Tensor], heads: int | None) -> Tensor:
    if heads is None:
        return torch.cat(parts)
    split = [part.unflatten(0, (heads, -1)) for part in parts]  # (heads, width/heads, ...)
    return torch.stack(split, dim=1).flatten(0, 2)


def _split(whole: Tensor, heads: int | None, parts: int) -> list[Tensor]:
    if heads is None:
        return list(whole.chunk(parts))
    return [part.flatten(0, 1) for part in whole.unflatten(0, (heads, parts, -1)).unbind(1)]


def _widest(weights: Mapping[str, Tensor]) -> torch.dtype:
    found = torch.float16 if all(w.dtype == torch.float16 for w in weights.values()) else torch.bfloat16
    for weight in weights.values():
        found = torch.promote_types(found, weight.dtype)
    return found
