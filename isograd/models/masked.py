"""The masked language model and the sequence classifier: an encoder and a head."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from isograd.models.base import IsogradModel, IsogradPreTrainedModel
from isograd.models.causal import wants_logits
from isograd.models.config import IsogradConfig
from isograd.transformer.feedforward import ACTIVATIONS
from isograd.transformer.kernels import plain
from isograd.transformer.loss import IGNORE
from isograd.transformer.norms import model_norm
from isograd.transformer.parameters import Linear


class MaskedHead(nn.Module):
    """W norm(act(V h + b)) + c, W the token table when tied (BERT, RoBERTa)."""

    def __init__(self, config: IsogradConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.dense = Linear(width, width, role="dense", bias=config.head_has_bias("dense"))
        self.act = ACTIVATIONS[config.hidden_act]
        self.norm = model_norm(config.norm, (width,), config)
        self.decoder = Linear(width, config.vocab_size, role="head", bias=config.head_has_bias("head"))
        self.decoder.init_gain = config.table_gain("head", "encoder")

    def transform(self, hidden: Tensor) -> Tensor:
        return self.norm(self.act(self.dense(hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.transform(hidden))


class NextSentenceHead(nn.Module):
    """W tanh(V h_1 + b) + c of two classes: 0 where segment B continues segment A, 1 where it does not (BERT).

    h_1 is the first token that the mask counts.
    """

    def __init__(self, config: IsogradConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size, role="dense")
        self.classifier = Linear(config.hidden_size, 2, role="dense")

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.classifier(self.dense(first_token(hidden, mask)).tanh())


class IsogradForMaskedLM(IsogradPreTrainedModel):
    """p(x_t | x with places masked). The head runs at the labelled places only."""

    _tied_weights_keys = {"head.decoder.weight": "model.embedding.tokens.weight"}  # noqa: RUF012

    def __init__(self, config: IsogradConfig) -> None:
        if config.is_encoder_decoder or config.is_decoder:
            raise ValueError("a masked language model is an encoder: leave encoder_layers and is_decoder unset")
        _refuse_projections(config)
        super().__init__(config)
        self.model = IsogradModel(config, "encoder")
        self.head = MaskedHead(config)
        self.next_sentence = NextSentenceHead(config) if config.next_sentence else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,  # (batch, time)
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,  # (batch, time), -100 where there is nothing to predict
        masked_positions: Tensor | None = None,  # (n,), indices into batch * time
        output_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits (batch, time, vocabulary), or with labels the mean loss in nats over the labelled places.

        With labels, head and logits are formed at labelled places only and `logits` is None unless
        `output_logits=True`. A collator that knows the places passes `masked_positions`: a compiled graph cannot find
        them itself and then runs the head at every place, to the same loss. By keyword: `label_smoothing`, and for a
        model with `config.next_sentence` `next_sentence_label` (batch,), whose mean loss is added, in a part of an
        update by its share of the targets; without `labels` it is the loss.
        """
        # not parameters: transformers' Trainer takes each with "label" in its name for a target that must be there
        smoothing: float = kwargs.pop("label_smoothing", 0.0)
        following: Tensor | None = kwargs.pop("next_sentence_label", None)
        outputs = self.model(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, inputs_embeds=inputs_embeds, **kwargs
        )
        hidden = outputs.last_hidden_state
        loss = None
        if labels is not None:
            rows, target = self._masked(hidden.flatten(0, 1), labels.flatten(), masked_positions)
            rows = self.head.transform(rows)
            loss = self._head_loss(rows, self.head.decoder, target, smoothing, num_items_in_batch)
            if following is not None:
                share = 1.0 if num_items_in_batch is None else (target != IGNORE).sum() / num_items_in_batch
                loss = loss + self._next_sentence_loss(hidden, attention_mask, following) * share
        elif following is not None:
            loss = self._next_sentence_loss(hidden, attention_mask, following)
        return MaskedLMOutput(
            loss=loss,
            logits=self.head(hidden) if wants_logits(output_logits, labels is not None) else None,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _next_sentence_loss(self, hidden: Tensor, mask: Tensor | None, following: Tensor) -> Tensor:
        """The mean over this batch."""
        if self.next_sentence is None:
            raise ValueError("next_sentence_label is given, and this model has no such head (config.next_sentence)")
        logits = self.next_sentence(hidden, mask)
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return nn.functional.cross_entropy(exact, following)

    def _masked(self, rows: Tensor, target: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        if positions is None:
            if not plain(rows, target):  # their count is data
                return rows, target
            positions = (target != IGNORE).nonzero().squeeze(1)
        return rows[positions], target[positions]

    def get_output_embeddings(self) -> nn.Module:
        return self.head.decoder

    def set_output_embeddings(self, value: Any) -> None:
        self.head.decoder = value


class IsogradForSequenceClassification(IsogradPreTrainedModel):
    """logits = W dropout(tanh(V dropout(h) + b)) + c with h the first token, or the last one of a decoder.

    Which tokens count: `counted`.
    """

    accepts_loss_kwargs = False  # the loss is a mean over the batch; Trainer divides it by the accumulation steps

    def __init__(self, config: IsogradConfig) -> None:
        if config.is_encoder_decoder:
            raise ValueError("encoder_layers is set: classification takes a model of one stack")
        super().__init__(config)
        _refuse_projections(config)
        dropout = config.classifier_dropout if config.classifier_dropout is not None else config.hidden_dropout
        self.model = IsogradModel(config)
        self.dense = Linear(config.hidden_size, config.hidden_size, role="dense")
        self.drop = nn.Dropout(dropout)
        self.classifier = Linear(config.hidden_size, config.num_labels, role="dense")
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,  # (batch, time)
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,  # (batch,): class ids or floats; (batch, num_labels) of 0 and 1
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Logits (batch, num_labels), and with labels transformers' loss for `config.problem_type`.

        Unset, it follows from the labels: the mean squared error when num_labels is 1, cross-entropy for class ids,
        binary cross-entropy for several labels at once.
        """
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        if self.config.is_decoder:
            pooled = last_token(hidden, attention_mask, input_ids, self.config.pad_token_id)
        else:
            pooled = first_token(hidden, attention_mask)
        logits = self.classifier(self.drop(self.dense(self.drop(pooled)).tanh()))
        loss = None
        if labels is not None:
            targets = labels.to(logits.dtype) if self.config.num_labels == 1 else labels
            loss = self.loss_function(labels=targets, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def _refuse_projections(config: IsogradConfig) -> None:
    if config.input_size or config.output_size:
        raise ValueError("input_size and output_size are for a head that writes from left to right")


def first_token(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """(batch, width) of the first token that counts: BERT's [CLS], also behind padding on the left.

    Args:
        hidden: (batch, time, width).
        mask: as in `counted`; without one it is the first position, as in transformers.
    """
    counts = counted(mask, len(hidden))
    return hidden[:, 0] if counts is None else _at(hidden, counts.int().argmax(dim=1))


def last_token(hidden: Tensor, mask: Tensor | None, ids: Tensor | None, pad: int | None) -> Tensor:
    """(batch, width) of the last token that counts; of a row in which none does, the first position.

    A mask (batch, time) says which do. Without one, those whose id is not `pad` do, as in transformers; without ids or
    `pad`, those that a mask of four dimensions opens, or all.
    """
    if ids is not None and pad is not None and (mask is None or mask.ndim != 2):
        counts: Tensor | None = ids != pad
    else:
        counts = counted(mask, len(hidden))
    if counts is None:
        return hidden[:, -1]
    places = torch.arange(counts.shape[1], device=counts.device)
    return _at(hidden, (places * counts).argmax(dim=1))


def counted(mask: Tensor | None, batch: int) -> Tensor | None:
    """(batch, time), where a token counts; None without a mask.

    Args:
        mask: (batch, time), not 0 where a token counts; or (batch, heads, query, key), True or 0.0 where a query reads
            a key: a token counts that any reads.
    """
    if mask is None:
        return None
    if mask.ndim == 2:
        return mask != 0
    lowest = None if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    read = mask if lowest is None else mask > lowest / 2
    return read.flatten(1, 2).any(dim=1).expand(batch, -1)


def _at(hidden: Tensor, place: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), place]
