"""torch's own Transformer with the tables and the head around it: what an import of its weights is measured against."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isograd.interop.torch_state import Plan, depth, position_table, prefixes
from isograd.models import IsogradConfig
from isograd.transformer.positions import ADDED


class Original(nn.Module):
    """The original model.

    Args:
        config: of the imported model: whether it is an encoder-decoder, its ids.
        state, plan: what was imported.
    """

    def __init__(self, config: IsogradConfig, state: Mapping[str, Tensor], plan: Plan) -> None:
        super().__init__()
        self.config, self.plan = config, plan
        towers = prefixes(state)
        options: dict[str, Any] = {
            "nhead": plan.heads,
            "dim_feedforward": config.intermediate_size,
            "dropout": 0.0,
            "activation": plan.activation,
            "layer_norm_eps": plan.eps,
            "batch_first": True,
            "norm_first": plan.norm_first,
            "bias": config.bias,
        }
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(config.hidden_size, **options),
            depth(state, towers["encoder"]),
            norm=_norm(state, towers["encoder"], config, plan),
            enable_nested_tensor=False,
        )
        _load(self.encoder, state, towers["encoder"])
        self.decoder = None
        if "decoder" in towers:
            layer = nn.TransformerDecoderLayer(config.hidden_size, **options)
            last = _norm(state, towers["decoder"], config, plan)
            self.decoder = nn.TransformerDecoder(layer, depth(state, towers["decoder"]), norm=last)
            _load(self.decoder, state, towers["decoder"])
        names = [plan.tokens, plan.target_tokens, plan.head, plan.positions, plan.target_positions]
        if plan.head:
            names.append(plan.head.removesuffix("weight") + "bias")
        there = {name: state[name] for name in names if name and name in state}
        for name in {plan.positions, plan.target_positions} & set(there):
            table = position_table(state, str(name))
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
        plan, pads = self.plan, None if attention_mask is None else attention_mask == 0
        if inputs_embeds is None:
            assert input_ids is not None
            x = self._embedded(input_ids, plan.tokens, plan.positions)
        else:
            x = inputs_embeds.to(next(self.encoder.parameters()).dtype)
        x = self.encoder(x, mask=_future(x) if plan.causal else None, src_key_padding_mask=pads)
        if self.decoder is not None:
            assert decoder_input_ids is not None
            own = None if decoder_attention_mask is None else decoder_attention_mask == 0
            y = self._embedded(
                decoder_input_ids, plan.target_tokens or plan.tokens, plan.target_positions or plan.positions
            )
            x = self.decoder(y, x, tgt_mask=_future(y), tgt_key_padding_mask=own, memory_key_padding_mask=pads)
        return self._written(x) if plan.tokens else x

    def _embedded(self, ids: Tensor, tokens: str | None, positions: str) -> Tensor:
        assert tokens is not None
        x = F.embedding(ids, self._table(tokens)) * (
            math.sqrt(self.config.hidden_size) if self.plan.scale_embedding else 1
        )
        if positions in self.names:
            return x + self._table(positions)[: ids.shape[1]]
        if positions in ADDED:
            return x + ADDED[positions](torch.arange(ids.shape[1], device=ids.device), x.shape[-1]).to(x)
        return x

    def _written(self, x: Tensor) -> Tensor:
        plan = self.plan
        if not (self.decoder is not None or plan.causal):
            return x
        head = plan.head or plan.target_tokens or plan.tokens
        assert head is not None
        bias = head.removesuffix("weight") + "bias"
        return F.linear(x, self._table(head), self._table(bias) if plan.head and bias in self.names else None)

    def _table(self, name: str) -> Tensor:
        table: Tensor = self.tables[self.names.index(name)]
        return table


def _norm(state: Mapping[str, Tensor], prefix: str, config: IsogradConfig, plan: Plan) -> nn.Module | None:
    if f"{prefix}norm.weight" not in state:
        return None
    return nn.LayerNorm(config.hidden_size, eps=plan.eps, bias=config.bias)


def _load(module: nn.Module, state: Mapping[str, Tensor], prefix: str) -> None:
    wanted = module.state_dict()
    module.load_state_dict({name: state[prefix + name] for name in wanted})


def _future(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
