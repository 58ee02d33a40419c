"""The causal language model: a decoder without a memory, and a head."""

import copy
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from isograd.models.base import CACHE, IsogradModel, IsogradPreTrainedModel
from isograd.models.config import IsogradConfig
from isograd.transformer.loss import capped
from isograd.transformer.parameters import Linear


class IsogradForCausalLM(IsogradPreTrainedModel, GenerationMixin):
    """p(x_t | x_1 .. x_{t-1}): logits = W h_t, W the token table when tied."""

    _tied_weights_keys = {"lm_head.weight": "model.embedding.tokens.weight"}  # noqa: RUF012

    def __init__(self, config: IsogradConfig) -> None:
        if config.is_encoder_decoder:
            raise ValueError("encoder_layers is set: this configuration is an encoder-decoder, use IsogradForSeq2SeqLM")
        if "IsogradForMaskedLM" in (config.architectures or ()):
            raise ValueError("these weights are a masked language model's, which reads both ways and cannot generate")
        if not config.is_decoder:
            config = copy.deepcopy(config)  # the caller's may serve an encoder next
            config.is_decoder = True
        super().__init__(config)
        self.model = IsogradModel(config, "decoder")
        self.lm_head = Linear(config.output_width, config.vocab_size, role="head", bias=config.head_bias)
        self.lm_head.init_gain = config.table_gain("head", "decoder")
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,  # (batch, time)
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,  # (batch, time), the inputs themselves; shifted here; -100 is ignored
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        cache: Cache | None = None,  # as transformers calls past_key_values from 5.24 on
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (batch, time, vocabulary), or with labels the mean loss in nats.

        With labels of either kind the matrix of logits is not formed (`logits` is None) unless `output_logits=True`.

        Args:
            shift_labels: by keyword: targets already shifted, in place of `labels`: every position predicts.
            num_items_in_batch: divisor of the summed loss; None takes the number of predicted tokens.
            label_smoothing: by keyword: see `isograd.transformer.loss.linear_cross_entropy`.
        """
        # not parameters: transformers' Trainer takes each with "label" in its name for a target that must be there
        shift_labels: Tensor | None = kwargs.pop("shift_labels", None)
        smoothing: float = kwargs.pop("label_smoothing", 0.0)
        training = labels is not None or shift_labels is not None
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache if past_key_values is None else past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache if use_cache is not None else self.config.use_cache and not training,
            **kwargs,
        )
        hidden, cap = outputs.last_hidden_state, self.config.logits_cap
        if self.config.logits_scale != 1.0:  # of the head's input: the loss forms no logits to scale
            hidden = hidden * self.config.logits_scale
        loss = None
        rows, target = (hidden, shift_labels) if labels is None else (hidden[:, :-1], labels[:, 1:])
        if target is not None:
            rows, target = rows.flatten(0, 1), target.flatten()
            loss = self._head_loss(rows, self.lm_head, target, smoothing, num_items_in_batch, cap)
        logits = self.lm_head(kept(hidden, logits_to_keep)) if wants_logits(output_logits, training) else None
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits if logits is None or cap is None else capped(logits, cap),
            **{CACHE: getattr(outputs, CACHE)},
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def wants_logits(asked: bool | None, training: bool) -> bool:
    """Logits are formed when asked for, and by default when there is no loss to form instead."""
    return not training if asked is None else asked


def kept(hidden: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """The last `logits_to_keep` positions (0: all), or the positions that a tensor names."""
    if isinstance(logits_to_keep, int):
        return hidden[:, -logits_to_keep:] if logits_to_keep else hidden
    return hidden[:, logits_to_keep]
