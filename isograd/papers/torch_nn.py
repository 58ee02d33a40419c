"""Weights of torch.nn.TransformerEncoder and torch.nn.Transformer as isograd models.

    model = from_torch(state, Layout(heads=8, tokens="embed.weight", head="out.weight"))

torch has the layers only: tables and head stand under names of your own, and `Layout` says which. Without tables the
layers alone are taken over, as an `IsogradModel` that reads `inputs_embeds`. An import is measured against torch's own
modules with the tables and the head around them.

| theirs, after `<prefix>` | ours |
| --- | --- |
| `self_attn.in_proj_weight`, `out_proj` of a layer | `attn.branch.query`, `key`, `value`, `out` |
| `multihead_attn.`, the same | `cross.branch.` |
| `linear1`, `linear2` | `ffn.branch.into`, `out` |
| `norm1`, `norm2` of an encoder | `pre` or `post` of attn, ffn |
| `norm1`, `norm2`, `norm3` of a decoder | `pre` or `post` of attn, cross, ffn |
| `norm` after the layers | `norm` |
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isograd.convert.checkpoints.checkpoint import read_checkpoint, tensors
from isograd.convert.checkpoints.weights import Names, fill, from_theirs
from isograd.convert.parity import ParityReport, hashes, measure
from isograd.convert.sample import Sample
from isograd.errors import DataError, InteropError
from isograd.files import new_folder
from isograd.hub import from_pretrained
from isograd.models import IsogradConfig, IsogradForCausalLM, IsogradForSeq2SeqLM, IsogradModel, IsogradPreTrainedModel
from isograd.placement import Stack
from isograd.placement.flags import flagged_name
from isograd.transformer.positions import ADDED

_LAYER = re.compile(r"(?P<prefix>(?:.*\.)?)layers\.(?P<number>\d+)\.(?P<rest>.+)")
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
_FFN = {"ffn.branch.into": "linear1", "ffn.branch.out": "linear2"}
_ENCODER = {f"attn.branch.{ours}": f"self_attn.{theirs}" for ours, theirs in _ATTENTION.items()} | _FFN
_CROSS = {f"cross.branch.{ours}": f"multihead_attn.{theirs}" for ours, theirs in _ATTENTION.items()}
_LAYERS: dict[Stack, dict[str, str]] = {
    "encoder": _ENCODER | {"attn.norm": "norm1", "ffn.norm": "norm2"},
    "decoder": _ENCODER | _CROSS | {"attn.norm": "norm1", "cross.norm": "norm2", "ffn.norm": "norm3"},
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a state dict of torch's layers does not say.

    Args:
        heads: attention heads.
        norm_first: torch's option of that name: Pre-LN.
        activation: "relu" or "gelu".
        causal: a TransformerEncoder that reads to the left only, as a language model.
        tokens: name of the (source's) token table; None takes the layers alone.
        target_tokens: of the target's, where it has its own.
        positions: name of a learned table, "sinusoidal_interleaved" (torch's tutorial, the original's), "sinusoidal"
            (fairseq's), or "none".
        target_positions: name of the target's table, where it has its own.
        head: name of the head's matrix; None ties it to the (target's) token table.
        scale_embedding: token vectors are multiplied by sqrt(width).
        eps: layer_norm_eps.
        pad, bos, eos: ids, where there are any.
    """

    heads: int
    norm_first: bool = False
    activation: Literal["relu", "gelu"] = "relu"
    causal: bool = False
    tokens: str | None = None
    target_tokens: str | None = None
    positions: str = "none"
    target_positions: str | None = None
    head: str | None = None
    scale_embedding: bool = False
    eps: float = 1e-5
    pad: int | None = None
    bos: int | None = None
    eos: int | None = None


def from_torch(state: Mapping[str, Tensor], layout: Layout) -> IsogradPreTrainedModel:
    """The model of these weights, in their dtype, in eval mode: a translator of nn.Transformer; of
    nn.TransformerEncoder a language model if it is causal and has tables, else the layers alone.

    Raises:
        InteropError: no layers, names that have no place, missing weights, options that do not fit them.
    """
    prefixes = _prefixes(state)
    config = _config(state, layout, prefixes)
    model = _class(layout, prefixes)(config)
    table = _modules(state, layout, prefixes, model)
    split = {name: value for given in state for name, value in _split(given, state[given]).items()}
    ours, rest = from_theirs(split, table, Names(stacks={}, stack={}, layer={}))
    outside, used = _outside(state, layout, prefixes, model)
    if unexpected := sorted(set(rest) - used):
        raise InteropError(f"unexpected keys: {', '.join(unexpected)}; name tables and head by tokens, positions, head")
    for name, value in model.state_dict().items():
        if not config.bias and name.endswith((".post.bias", ".pre.bias", "norm.bias")):
            outside.setdefault(name, torch.zeros_like(value))  # torch's norms have none without bias
        elif name == "embedding.tokens.weight":
            outside.setdefault(name, torch.zeros_like(value))  # read by nobody
    fill(model, outside | ours, lambda name: _original(name, table))
    return model.eval()


def import_torch(path: str | Path, out: str | Path, layout: Layout, *, date: str | None = None) -> ParityReport:
    """Weights of torch's layers into the new folder `out`; the parity report compares with torch's own modules.

    Args:
        path: a state dict, of torch.save or safetensors; nothing in it is run.

    Raises:
        DataError, InteropError: a file that cannot be read, weights that have no place or are missing.
        ParityError: the model does not compute what the original does; nothing is written.
    """
    state = _state(Path(path))
    model = from_torch(state, layout)
    with new_folder(out) as part:
        model.save_pretrained(part)
        written: Any = from_pretrained(type(model), part)
        bare = isinstance(model, IsogradModel)
        report = measure(
            TorchOriginal(model.config, state, layout),
            _Layers(written) if bare else written,
            _vectors(model.config.hidden_size) if bare else None,
            about=f"{Path(path).name} imported as {model.config.placement}",
            files=hashes(part),
            source=hashes(path),
            date=date,
        )
        report.write(part)
    return report


def _prefixes(state: Mapping[str, Tensor]) -> dict[Stack, str]:
    """Encoder, decoder -> what stands before its "layers."; a decoder is the one that reads a memory.

    Raises:
        InteropError: no layers of torch's, or more stacks than an encoder and its decoder.
    """
    found: dict[Stack, str] = {}
    for name in state:
        match = _LAYER.fullmatch(name)
        if not match or not match["rest"].startswith(("self_attn.in_proj_weight", "multihead_attn.in_proj_weight")):
            continue
        cross = f"{match['prefix']}layers.{match['number']}.multihead_attn.in_proj_weight" in state
        side: Stack = "decoder" if cross else "encoder"
        if found.setdefault(side, match["prefix"]) != match["prefix"]:
            raise InteropError(f"two {side}s: {found[side]}layers and {match['prefix']}layers")
    if "encoder" not in found:
        raise InteropError(
            "no layers of torch.nn.TransformerEncoder among the weights (layers.0.self_attn.in_proj_weight)"
        )
    return found


def _depth(state: Mapping[str, Tensor], prefix: str) -> int:
    """Layers of a stack."""
    return 1 + max(int(match["number"]) for n in state if (match := _LAYER.fullmatch(n)) and match["prefix"] == prefix)


def _position_table(state: Mapping[str, Tensor], positions: str) -> Tensor | None:
    """The table of that name, (positions, width), also where it was kept with a dimension for the batch; None where
    positions are a formula or there are none.
    """
    if positions in ("none", *ADDED):
        return None
    table = _need(state, positions)
    return table.squeeze(1 if table.shape[1] == 1 else 0) if table.ndim == 3 else table


def _class(layout: Layout, prefixes: Mapping[Stack, str]) -> Any:
    if len(prefixes) == 2:
        return IsogradForSeq2SeqLM
    return IsogradForCausalLM if layout.causal and layout.tokens else IsogradModel


def _config(state: Mapping[str, Tensor], layout: Layout, prefixes: Mapping[Stack, str]) -> IsogradConfig:
    pair = len(prefixes) == 2
    if pair and not layout.tokens:
        raise InteropError(
            "a translator needs the names of its tables: give tokens, and target_tokens where it has two"
        )
    first = f"{prefixes['encoder']}layers.0."
    inner, width = _need(state, f"{first}linear1.weight").shape
    source = _need(state, layout.tokens) if layout.tokens else None
    target = _need(state, layout.target_tokens) if layout.target_tokens else source
    learned = _position_table(state, layout.positions)
    return IsogradConfig(
        placement=_placement(state, layout, prefixes),
        vocab_size=1 if target is None else len(target),
        hidden_size=width,
        num_hidden_layers=_depth(state, prefixes["decoder"] if pair else prefixes["encoder"]),
        num_attention_heads=layout.heads,
        intermediate_size=inner,
        hidden_act=layout.activation,
        norm_eps=layout.eps,
        bias=f"{first}linear1.bias" in state,
        position_embedding_type=layout.positions if learned is None else "learned",
        max_position_embeddings=1024 if learned is None else len(learned),
        scale_embedding=layout.scale_embedding,
        tie_word_embeddings=layout.head is None,
        head_bias=layout.head is not None and _bias_of(layout.head) in state,
        encoder_layers=_depth(state, prefixes["encoder"]) if pair else None,
        encoder_vocab_size=len(source) if pair and source is not None and layout.target_tokens else None,
        share_encoder_embeddings=pair and not layout.target_tokens and layout.head is None,
        is_decoder=layout.causal,
        pad_token_id=layout.pad,
        bos_token_id=layout.bos,
        eos_token_id=layout.eos,
        decoder_start_token_id=layout.bos if pair else None,
    )


def _placement(state: Mapping[str, Tensor], layout: Layout, prefixes: Mapping[Stack, str]) -> str:
    """nn.Transformer ends with a norm in either form, nn.TransformerEncoder where it was given one."""
    ends = {f"{prefix}norm.weight" in state for prefix in prefixes.values()}
    if len(ends) > 1:
        raise InteropError("one stack ends with a norm and the other does not")
    final = ends.pop()
    if layout.norm_first == final:
        return "pre-ln" if final else "post-ln"
    return flagged_name(pre=layout.norm_first, flags="", final=final)


def _modules(
    state: Mapping[str, Tensor], layout: Layout, prefixes: Mapping[Stack, str], model: IsogradPreTrainedModel
) -> dict[str, str]:
    """Our modules -> theirs, inside the stacks."""
    table: dict[str, str] = {}
    for side, prefix in prefixes.items():
        own = _own(side, prefixes)
        names = Names(stacks={own: prefix.removesuffix(".")}, stack={"norm": "norm"}, layer=_LAYERS[side], heads={})
        table |= names.modules({own: _depth(state, prefix)}, {own: "pre" if layout.norm_first else "post"})
    if type(model) is IsogradModel:
        return {ours.removeprefix("model."): theirs for ours, theirs in table.items()}
    return table


def _own(side: Stack, prefixes: Mapping[Stack, str]) -> str:
    return side if len(prefixes) == 2 else "model"


def _split(name: str, value: Tensor) -> dict[str, Tensor]:
    """Queries, keys and values, which torch keeps on top of each other."""
    attention, fused, leaf = name.partition(".in_proj_")
    if not fused:
        return {name: value}
    return {f"{attention}.{role}_proj.{leaf}": part for role, part in zip("qkv", value.chunk(3), strict=True)}


def _outside(
    state: Mapping[str, Tensor], layout: Layout, prefixes: Mapping[Stack, str], model: IsogradPreTrainedModel
) -> tuple[dict[str, Tensor], set[str]]:
    """Tables and head under our names, and the names that they have."""
    ours: dict[str, Tensor] = {}
    for side in prefixes:
        own = "" if type(model) is IsogradModel else f"{_own(side, prefixes)}."
        tokens = (layout.target_tokens if side == "decoder" else None) or layout.tokens
        positions = (layout.target_positions if side == "decoder" else None) or layout.positions
        if (table := _position_table(state, positions)) is not None:
            ours[f"{own}embedding.positions.weight"] = table
        if tokens:
            ours[f"{own}embedding.tokens.weight"] = _need(state, tokens)
    named = [layout.tokens, layout.target_tokens, layout.positions, layout.target_positions, layout.head]
    if layout.head:
        ours["lm_head.weight"] = _need(state, layout.head)
        if (bias := _bias_of(layout.head)) in state:
            ours["lm_head.bias"] = state[bias]
        named.append(bias)
    return ours, set(filter(None, named))


def _original(name: str, table: Mapping[str, str]) -> str:
    module, _, leaf = name.rpartition(".")
    return f"{table[module]}.{leaf}" if module in table else name


def _need(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        near = [other for other in state if other.endswith(name.rpartition(".")[2]) and "layers." not in other]
        raise InteropError(f"no weight {name!r}; found {', '.join(sorted(near)) or 'no table'} outside the layers")
    return state[name]


def _bias_of(name: str) -> str:
    return name.removesuffix("weight") + "bias"


def _state(path: Path) -> dict[str, Tensor]:
    content = read_checkpoint(path)
    if not isinstance(content, Mapping):
        raise DataError(f"{path}: a {type(content).__name__}, expected a state dict")
    inner = [content[name] for name in ("state_dict", "model_state_dict", "model") if name in content]
    try:
        return tensors(inner[0] if inner and isinstance(inner[0], Mapping) else content)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


class _Layers(nn.Module):
    """A stack that reads vectors, in its own precision."""

    def __init__(self, stack: IsogradModel) -> None:
        super().__init__()
        self.stack = stack

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor) -> Tensor:
        found = self.stack(inputs_embeds=inputs_embeds.to(self.stack.dtype), attention_mask=attention_mask)
        hidden: Tensor = found.last_hidden_state
        return hidden


def _vectors(width: int) -> Sample:
    draw = torch.Generator().manual_seed(0)
    mask = (torch.arange(24) < torch.tensor([24, 19, 14, 9])[:, None]).long()
    vectors = torch.randn(4, 24, width, generator=draw)
    return Sample(kind="random vectors", batches=[{"inputs_embeds": vectors, "attention_mask": mask}])


class TorchOriginal(nn.Module):
    """The original model.

    Args:
        config: of the imported model: whether it is an encoder-decoder, its ids.
        state, layout: what was imported.
    """

    def __init__(self, config: IsogradConfig, state: Mapping[str, Tensor], layout: Layout) -> None:
        super().__init__()
        self.config, self.layout = config, layout
        prefixes = _prefixes(state)
        options: dict[str, Any] = {
            "nhead": layout.heads,
            "dim_feedforward": config.intermediate_size,
            "dropout": 0.0,
            "activation": layout.activation,
            "layer_norm_eps": layout.eps,
            "batch_first": True,
            "norm_first": layout.norm_first,
            "bias": config.bias,
        }
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(config.hidden_size, **options),
            _depth(state, prefixes["encoder"]),
            norm=_norm(state, prefixes["encoder"], config, layout),
            enable_nested_tensor=False,
        )
        _load(self.encoder, state, prefixes["encoder"])
        self.decoder = None
        if "decoder" in prefixes:
            layer = nn.TransformerDecoderLayer(config.hidden_size, **options)
            last = _norm(state, prefixes["decoder"], config, layout)
            self.decoder = nn.TransformerDecoder(layer, _depth(state, prefixes["decoder"]), norm=last)
            _load(self.decoder, state, prefixes["decoder"])
        names = [layout.tokens, layout.target_tokens, layout.head, layout.positions, layout.target_positions]
        if layout.head:
            names.append(layout.head.removesuffix("weight") + "bias")
        there = {name: state[name] for name in names if name and name in state}
        for name in {layout.positions, layout.target_positions} & set(there):
            table = _position_table(state, str(name))
            assert table is not None
            there[str(name)] = table
        self.names = list(there)
        self.tables = nn.ParameterList(nn.Parameter(value.detach().clone(), False) for value in there.values())
        self.to(next(iter(state.values())).dtype)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Logits (batch, time, vocabulary); without tables what the layers give, (batch, time, width)."""
        layout, pads = self.layout, None if attention_mask is None else attention_mask == 0
        if inputs_embeds is None:
            assert input_ids is not None
            x = self._embedded(input_ids, layout.tokens, layout.positions)
        else:
            x = inputs_embeds.to(next(self.encoder.parameters()).dtype)
        x = self.encoder(x, mask=_future(x) if layout.causal else None, src_key_padding_mask=pads)
        if self.decoder is not None:
            assert decoder_input_ids is not None
            own = None if decoder_attention_mask is None else decoder_attention_mask == 0
            y = self._embedded(
                decoder_input_ids, layout.target_tokens or layout.tokens, layout.target_positions or layout.positions
            )
            x = self.decoder(y, x, tgt_mask=_future(y), tgt_key_padding_mask=own, memory_key_padding_mask=pads)
        return self._written(x) if layout.tokens else x

    def _embedded(self, ids: Tensor, tokens: str | None, positions: str) -> Tensor:
        assert tokens is not None
        x = F.embedding(ids, self._table(tokens)) * (
            math.sqrt(self.config.hidden_size) if self.layout.scale_embedding else 1
        )
        if positions in self.names:
            return x + self._table(positions)[: ids.shape[1]]
        if positions in ADDED:
            return x + ADDED[positions](torch.arange(ids.shape[1], device=ids.device), x.shape[-1]).to(x)
        return x

    def _written(self, x: Tensor) -> Tensor:
        layout = self.layout
        if not (self.decoder is not None or layout.causal):
            return x
        head = layout.head or layout.target_tokens or layout.tokens
        assert head is not None
        bias = head.removesuffix("weight") + "bias"
        return F.linear(x, self._table(head), self._table(bias) if layout.head and bias in self.names else None)

    def _table(self, name: str) -> Tensor:
        table: Tensor = self.tables[self.names.index(name)]
        return table


def _norm(state: Mapping[str, Tensor], prefix: str, config: IsogradConfig, layout: Layout) -> nn.Module | None:
    if f"{prefix}norm.weight" not in state:
        return None
    return nn.LayerNorm(config.hidden_size, eps=layout.eps, bias=config.bias)


def _load(module: nn.Module, state: Mapping[str, Tensor], prefix: str) -> None:
    wanted = module.state_dict()
    module.load_state_dict({name: state[prefix + name] for name in wanted})


def _future(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
