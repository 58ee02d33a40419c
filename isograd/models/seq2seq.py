"""The encoder-decoder: two stacks and a head."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from isograd.models.base import CACHE, IsogradModel, IsogradPreTrainedModel
from isograd.models.causal import wants_logits
from isograd.models.config import IsogradConfig
from isograd.transformer.loss import IGNORE
from isograd.transformer.parameters import Linear


class IsogradForSeq2SeqLM(IsogradPreTrainedModel, GenerationMixin):
    """p(y_t | y_1 .. y_{t-1}, x): an encoder reads x, a decoder with cross-attention writes y."""

    def __init__(self, config: IsogradConfig) -> None:
        if not config.is_encoder_decoder:
            raise ValueError("an encoder-decoder needs encoder_layers in its configuration")
        super().__init__(config)
        tied = {"lm_head.weight": "decoder.embedding.tokens.weight"}
        if config.share_encoder_embeddings:
            tied["encoder.embedding.tokens.weight"] = "decoder.embedding.tokens.weight"
        self._tied_weights_keys = tied
        self.encoder = IsogradModel(config, "encoder")
        self.decoder = IsogradModel(config, "decoder")
        self.lm_head = Linear(config.output_width, config.vocab_size, role="head", bias=config.head_bias)
        self.lm_head.init_gain = config.table_gain("head", "decoder")
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,  # (batch, source)
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,  # (batch, time)
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,  # (batch, time), -100 is ignored
        use_cache: bool | None = None,
        output_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        cache: Cache | None = None,  # as transformers calls past_key_values from 5.24 on
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits (batch, time, vocabulary), or with labels the mean loss in nats.

        Without `decoder_input_ids` the decoder reads the labels shifted right behind `decoder_start_token_id`. With
        labels the matrix of logits is not formed (`logits` is None) unless `output_logits=True`.
        `label_smoothing` is taken by keyword.
        """
        # not a parameter: transformers' Trainer takes each with "label" in its name for a target that must be there
        smoothing: float = kwargs.pop("label_smoothing", 0.0)
        if labels is None and decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError("pass labels, decoder_input_ids or decoder_inputs_embeds: the decoder has nothing to read")
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.decoder(
            decoder_input_ids,
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            past_key_values=cache if past_key_values is None else past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache if use_cache is not None else self.config.use_cache and labels is None,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        loss = None
        if labels is not None:
            loss = self._head_loss(hidden.flatten(0, 1), self.lm_head, labels.flatten(), smoothing, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=self.lm_head(hidden) if wants_logits(output_logits, labels is not None) else None,
            **{CACHE: getattr(outputs, CACHE)},
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs[0],
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
            encoder_attentions=getattr(encoder_outputs, "attentions", None),
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels shifted one place to the right behind `decoder_start_token_id`; -100 becomes padding."""
        first, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if first is None or pad is None:
            raise ValueError(
                "labels without decoder_input_ids need decoder_start_token_id and pad_token_id in the config"
            )
        shifted = torch.cat([labels.new_full((labels.shape[0], 1), first), labels[:, :-1]], dim=1)
        return shifted.where(shifted != IGNORE, pad)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """As in transformers, where one table serves all three.

        Raises:
            ValueError: encoder and decoder have tables of their own, which one number cannot resize.
        """
        if not self.config.share_encoder_embeddings:
            raise ValueError(
                "encoder and decoder have tables of their own; resize them before training by building the model with"
                " another vocab_size and encoder_vocab_size, or share them (share_encoder_embeddings=True)"
            )
        table: nn.Module = super().resize_token_embeddings(*args, **kwargs)
        return table

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.encoder

    def get_decoder(self) -> nn.Module:
        return self.decoder

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embedding.tokens

    def set_input_embeddings(self, value: Any) -> None:
        self.encoder.embedding.tokens = value
