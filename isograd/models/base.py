"""What all heads share: the pre-trained base class and one stack (embedding, layers, final norm)."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
)
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import logging
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from isograd.models.config import IsogradConfig
from isograd.placement import Role, Stack, sites
from isograd.placement.formula import AS_GIVEN, ClipLogits, Constraint, UnitNorm
from isograd.transformer.attention import Attention
from isograd.transformer.init import initialize
from isograd.transformer.loss import linear_cross_entropy
from isograd.transformer.norms import make_norm
from isograd.transformer.parameters import MATRICES, Embedding, Linear, roles
from isograd.transformer.positions import Rotary, position_ids
from isograd.transformer.stack import InputEmbedding, Layer, make_layers, make_projection
from isograd.transformer.streams import State, make_ends
from isograd.transformer.sublayer import Sublayer

logger = logging.get_logger(__name__)
_TAKES = inspect.signature(create_causal_mask).parameters
CACHE = "cache" if "cache" in _TAKES else "past_key_values"  # in transformers, from 5.24 on and before
_CAUSAL_MASKS: dict[str, Callable[..., Any]] = {
    "full_attention": create_causal_mask,
    "sliding_attention": create_sliding_window_causal_mask,
}
_MASKS: dict[str, Callable[..., Any]] = {
    "full_attention": create_bidirectional_mask,
    "sliding_attention": create_bidirectional_sliding_window_mask,
}


class IsogradPreTrainedModel(PreTrainedModel):
    """Base class of all isograd models."""

    config_class = IsogradConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Layer"]  # noqa: RUF012  (transformers' declarations, here and below)
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def _init_weights(self, module: nn.Module) -> None:
        initialize(module, self.config, self.config.scheme())

    def constrain(self) -> None:
        """What the placement asks of weights after an optimizer step: call it there in a loop of your own."""
        for module, constraints in self._constrained():
            _constrain(module, constraints)

    @property
    def constrains(self) -> bool:
        """Whether there is something to do after an optimizer step."""
        return any(self.config.of(stack).entry().constrain for stack in self.config.stacks())

    def scaled_back(self) -> list[str]:
        """Names of parameters that a constraint holds at a length: they do not decay."""
        names = {id(p): name for name, p in self.named_parameters()}
        found = []
        for module, constraints in self._constrained():
            roles = {role for one in constraints if isinstance(one, UnitNorm) for role in (*one.rows, *one.columns)}
            if isinstance(module, Linear | Embedding) and module.role in roles:
                found.append(names[id(module.weight)])
        return found

    def rates(self) -> dict[str, tuple[float, float, float]]:
        """Parameter -> the placement's factors on learning rate, eps and weight decay, where one is not 1."""
        found = {}
        for address, module in self.named_modules():
            if not isinstance(module, IsogradModel) or module.config.entry().rates == AS_GIVEN:
                continue
            rates = module.config.entry().rates
            by_bias = rates.names("bias")
            for inner, sublayer in module.named_modules():
                if isinstance(sublayer, Sublayer):
                    prefix = ".".join(part for part in (address, inner) if part)
                    for name, role in roles(sublayer).items():
                        of: Role = "bias" if by_bias and role in MATRICES and name.endswith("bias") else role
                        found[f"{prefix}.{name}"] = rates.at(of, sublayer.site)
        found |= self._rates_outside()
        return {name: factors for name, factors in found.items() if factors != (1.0, 1.0, 1.0)}

    def _rates_outside(self) -> dict[str, tuple[float, float, float]]:
        """Those of tables and of the head, by the decoder's placement or the only stack's."""
        rates = self.config.entry().rates
        if not (rates.names("embed") or rates.names("head")):
            return {}
        stack = self.config.stacks()[-1]
        layers, other = self.config.depths(stack)
        site = sites(layers, stack, other)[0]
        tokens = {id(m.tokens) for m in self.modules() if isinstance(m, InputEmbedding)}  # others are not scaled
        own = {
            address: m
            for address, m in self.named_modules()
            if id(m) in tokens or (isinstance(m, Linear) and m.role == "head")
        }
        return {f"{address}.weight": rates.at(leaf.role, site) for address, leaf in own.items()}

    def _constrained(self) -> Iterator[tuple[nn.Module, tuple[Constraint, ...]]]:
        """Modules with the constraints of their stack; those of the head with the decoder's, or the only stack's."""
        stacks = [module for module in self.modules() if isinstance(module, IsogradModel)]
        inside = {id(m): stack.config.entry().constrain for stack in stacks for m in stack.modules()}
        own = self.config.entry().constrain
        for module in self.modules():
            if constraints := inside.get(id(module), own):
                yield module, constraints

    def train(self, mode: bool = True) -> "IsogradPreTrainedModel":
        """As ever, with a word where a placement that wants a calibration has had none."""
        if mode and self.config.calibration is None and self.config.entry().calibrate:
            logger.warning_once(
                f"placement {self.config.placement!r} has not been calibrated: its skips are 1, as in post-ln;"
                " call isograd.calibrate(model, batch) before the first step"
            )
        super().train(mode)
        return self

    def _head_loss(
        self,
        rows: Tensor,
        head: Linear,
        target: Tensor,
        smoothing: float,
        items: Tensor | int | None,
        cap: float | None = None,
    ) -> Tensor:
        """The mean loss of these rows (n, width) in nats, the matrix of logits never whole."""
        return linear_cross_entropy(
            rows,
            head.weight,
            target,
            bias=head.bias,
            label_smoothing=smoothing,
            items=items,
            chunk=self.config.loss_chunk,
            cap=cap,
        )


class IsogradModel(IsogradPreTrainedModel):
    """One stack without a head: embedding, layers, final norm where the placement has one.

    Args:
        config: the configuration; a model of one stack is a decoder if `config.is_decoder`.
        stack: "encoder" (reads both ways) or "decoder" (reads to the left); None asks the configuration.
    """

    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": Layer,
        "attentions": OutputRecorder(Attention, index=1, layer_name="attn"),
        "cross_attentions": OutputRecorder(Attention, index=1, layer_name="cross"),
    }

    def __init__(self, config: IsogradConfig, stack: Stack | None = None) -> None:
        here: Stack = stack or ("decoder" if config.is_decoder else "encoder")
        config = config.of(here)
        super().__init__(config)
        self.stack: Stack = here
        layers, other = config.depths(self.stack)
        vocabulary = (config.encoder_vocab_size if self.stack == "encoder" else None) or config.vocab_size
        self.causal = self.stack == "decoder"
        self.longest = config.max_position_embeddings if config.position_embedding_type == "learned" else None
        self.rotary = {kind: Rotary(config, kind) for kind in config.rope_rules()}
        kinds = [*zip(config.attention_types(), config.rotated(), strict=True)]  # alike in an encoder-decoder
        self.kinds = kinds if len(set(kinds)) > 1 or "sliding_attention" in kinds[0] else None
        placement = config.entry()
        self.embedding = InputEmbedding(config, vocabulary, config.table_gain("embed", here))
        self.first = make_norm(placement.first, config.hidden_size, config) if placement.first else None
        self.stream = make_ends(placement.stream, config)
        self.layers = make_layers(config, placement, self.stack, layers, other, self.causal)
        self.norm = make_norm(placement.final, config.hidden_size, config)
        self.project = make_projection(config.hidden_size, config.output_width)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding.tokens

    def set_input_embeddings(self, value: Any) -> None:
        self.embedding.tokens = value

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,  # (batch, time)
        attention_mask: Tensor | None = None,  # (batch, past + time), 1 where a token counts
        position_ids: Tensor | None = None,  # (batch, time)
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,  # (batch, time, width or input_size), unscaled token vectors
        use_cache: bool | None = None,
        token_type_ids: Tensor | None = None,  # (batch, time), where the configuration has types
        cache: Cache | None = None,  # as transformers calls past_key_values from 5.24 on
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Hidden states (batch, time, width) after the last layer, the final norm and a projection, where there are."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass exactly one of input_ids and inputs_embeds")
        vectors = self.embedding.tokens(input_ids) if inputs_embeds is None else inputs_embeds
        past_key_values = cache if past_key_values is None else past_key_values
        if use_cache and self.causal and past_key_values is None:
            past_key_values = self._new_cache()
        own = (
            past_key_values.self_attention_cache
            if isinstance(past_key_values, EncoderDecoderCache)
            else past_key_values
        )
        positions = self._positions(vectors, attention_mask, position_ids, own)
        mask, memory_mask = self._masks(vectors, attention_mask, encoder_hidden_states, encoder_attention_mask, own)
        x = self.embedding(vectors, positions, token_type_ids)
        x = self.run_layers(x, positions, mask, encoder_hidden_states, memory_mask, past_key_values, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=x, **{CACHE: past_key_values})

    def run_layers(
        self,
        x: Tensor,  # (batch, time, width)
        positions: Tensor,  # ids, broadcast to (batch, time)
        mask: Any,
        memory: Tensor | None = None,
        memory_mask: Any = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """What stands between the embedding and the head, with masks as the attention takes them: in training, in
        `generate` and in a beam search alike.
        """
        tables = {kind: rotary(positions, x.dtype) for kind, rotary in self.rotary.items()}
        if self.first is not None:
            x = self.first(x)
        given = {"memory_mask": memory_mask, "past_key_values": cache, **kwargs}
        layers: Iterable[Any] = self.layers
        if self.kinds is None:
            given |= {"mask": mask, "rotary": next(iter(tables.values()), None)}
        else:
            layers = self._of_their_kinds(self.kinds, mask, tables)
        state = self.stream.open(x)
        for layer in layers:
            first, *more = state if isinstance(state, tuple) else (state,)
            state = layer(first, memory, *more, **given)
        return self.project(self.norm(self.stream.close(state)))

    def _of_their_kinds(
        self, kinds: list[tuple[str, bool]], masks: dict[str, Any], tables: dict[str, tuple[Tensor, Tensor]]
    ) -> list[Callable[..., State]]:
        """Each layer with the mask and the rotary tables of its kind."""
        return [
            partial(layer, mask=masks[kind], rotary=tables[kind] if rotates else None)
            for layer, (kind, rotates) in zip(self.layers, kinds, strict=True)
        ]

    def _new_cache(self) -> Cache:
        if self.config.is_encoder_decoder:
            return EncoderDecoderCache(DynamicCache(), DynamicCache())
        return DynamicCache() if self.kinds is None else DynamicCache(config=self.config)

    def _positions(self, vectors: Tensor, mask: Tensor | None, given: Tensor | None, cache: Cache | None) -> Tensor:
        config = self.config
        if given is not None:
            return given + config.position_offset
        batch, time, _ = vectors.shape
        past = cache.get_seq_length() if cache is not None else 0
        if self.longest is not None and isinstance(past, int) and past + time > self.longest:
            raise ValueError(
                f"{past + time} positions asked for, but the learned table has max_position_embeddings={self.longest}"
            )
        padding = mask if isinstance(mask, Tensor) and mask.ndim == 2 else None
        return position_ids(batch, time, past, config.position_offset, padding, vectors.device)

    def _masks(
        self,
        vectors: Tensor,
        mask: Tensor | None,
        memory: Tensor | None,
        memory_mask: Tensor | None,
        cache: Cache | None,
    ) -> tuple[Any, Any]:
        shared = {"config": self.config, "inputs_embeds": vectors}
        if self.kinds is not None:
            return self._masks_of_kinds(shared | {"attention_mask": mask}, mask, cache), None
        if not self.causal:
            return create_bidirectional_mask(**shared, attention_mask=mask), None
        own = None
        if not self._needs_no_mask(mask, cache):
            own = create_causal_mask(**shared, attention_mask=mask, **{CACHE: cache})
        if memory is None:
            return own, None
        return own, create_bidirectional_mask(**shared, attention_mask=memory_mask, encoder_hidden_states=memory)

    def _needs_no_mask(self, mask: Any, cache: Cache | None) -> bool:
        """Whether sdpa is causal by itself. Under torch.compile transformers 5.17 makes a mask all the same, with which
        the fused kernel also forms the half of the scores that is thrown away.
        """
        return self.causal and mask is None and cache is None and self.config._attn_implementation == "sdpa"

    def _masks_of_kinds(self, given: dict[str, Any], mask: Any, cache: Cache | None) -> dict[str, Any]:
        """A mask for each type of layer; `generate` may have made them already."""
        if isinstance(mask, dict):
            return mask
        makers = _CAUSAL_MASKS if self.causal else _MASKS
        words = given | ({CACHE: cache} if self.causal else {})
        bare = self._needs_no_mask(mask, cache)
        return {
            kind: None if bare and kind == "full_attention" else makers[kind](**words)
            for kind in dict.fromkeys(self.config.attention_types())
        }


@torch.no_grad()
def _constrain(module: nn.Module, constraints: Iterable[Constraint]) -> None:
    """What a placement asks of a module's weights after an optimizer step, in place."""
    for constraint in constraints:
        if isinstance(constraint, UnitNorm) and isinstance(module, Linear | Embedding):
            _unit(module, constraint)
        elif isinstance(constraint, ClipLogits) and isinstance(module, Attention):
            _clip(module, constraint.threshold)


def _unit(leaf: Linear | Embedding, constraint: UnitNorm) -> None:
    """A row of zeros, such as padding's, stays one."""
    for dim, of in ((1, constraint.rows), (0, constraint.columns)):
        if leaf.role in of:
            leaf.weight.copy_(F.normalize(leaf.weight, dim=dim))


def _clip(attention: Attention, threshold: float) -> None:
    """A head's rows of W_Q and W_K times sqrt(threshold / S) where its largest logit S is more."""
    largest = attention.take_largest_logits()
    if largest is None:
        return
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    factor = torch.where(largest > threshold, (threshold / largest).sqrt(), torch.ones_like(largest))
    for projection in (attention.query, attention.key):
        for parameter in projection.parameters(recurse=False):
            _times_heads(parameter, factor)


def _times_heads(parameter: Tensor, factor: Tensor) -> None:
    rows = factor.repeat_interleave(parameter.shape[0] // len(factor)).to(parameter)
    parameter.mul_(rows if parameter.ndim == 1 else rows[:, None])
