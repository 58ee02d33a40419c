"""Classifiers and the next-sentence head read the token that transformers' read; rows that are never trained."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from isograd.models import IsogradForSequenceClassification
from tests.build import close, model, tokens
from tests.models.test_oracles import PAD, SHAPE, bert_embedding, bert_layers, copy, finished, gpt2, padded

LABELS = 3
BERTS = (transformers.BertForSequenceClassification, transformers.BertForNextSentencePrediction)
GPT2 = {"vocab_size": 41, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 24}
BERT = {"placement": "post-ln", "embedding_norm": True, "norm_eps": 1e-12}


def four(mask: Tensor, *, causal: bool, kind: str) -> Tensor:
    """(batch, 1, query, key) of a mask (batch, time): each place reads itself and the tokens that count."""
    time = mask.shape[1]
    read = mask.bool()[:, None, None, :].expand(-1, 1, time, -1)
    if causal:
        read = read & torch.ones(time, time, dtype=torch.bool).tril()
    if kind == "bool":
        return read
    return torch.zeros(read.shape, dtype=torch.float64).masked_fill(~read, torch.finfo(torch.float64).min)


def gpt2_classifiers(pad: int | None = PAD, labels: int = LABELS) -> tuple[Any, Any]:
    """Ours, and GPT-2's with our head in place of its `score`."""
    config = transformers.GPT2Config(**GPT2, bos_token_id=0, eos_token_id=2, pad_token_id=pad, num_labels=labels)
    theirs = finished(transformers.GPT2ForSequenceClassification(config))
    options = {"is_decoder": True, "hidden_act": "gelu_tanh", "pad_token_id": pad, "num_labels": labels}
    ours = model("classify", **options, dtype=torch.float64)
    gpt2(ours.model, theirs.transformer)
    theirs.score = nn.Sequential(ours.dense, nn.Tanh(), ours.classifier)
    return ours, theirs


def masked_by(kind: str, mask: Tensor, *, causal: bool) -> dict[str, Tensor]:
    if kind == "none":
        return {}
    return {"attention_mask": mask if kind == "two" else four(mask, causal=causal, kind=kind)}


@pytest.mark.parametrize("labels", [1, LABELS])
@pytest.mark.parametrize("kind", ["none", "two", "float"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pad", [PAD, 2, 0])
def test_a_decoder_classifies_as_gpt2_does(pad: int, side: str, kind: str, labels: int) -> None:
    """pad = 2 is eos, pad = 0 is bos; rows of 8, 5 and 1 tokens."""
    ours, theirs = gpt2_classifiers(pad, labels)
    ids, mask = padded(side)
    ids[mask == 0] = pad
    feed = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} | masked_by(kind, mask, causal=True)
    targets = torch.tensor([0.5, 1.0, -1.0]).double() if labels == 1 else torch.tensor([0, 2, 1])
    expected = theirs(ids, **feed, labels=targets)
    got = ours(ids, **feed, labels=targets)
    close(got.logits, expected.logits, 1e-9)
    close(got.loss.double(), expected.loss.double(), 1e-6)
    one = {name: value[1:2] for name, value in feed.items()}
    close(ours(ids[1:2], **one).logits, expected.logits[1:2], 1e-9)  # a batch of one


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_decoder_without_ids(side: str) -> None:
    """transformers reads the last place then; where a mask says more, the last token that counts, as with ids."""
    ours, theirs = gpt2_classifiers()
    ids, mask = padded(side)
    vectors, positions = ours.model.embedding.tokens(ids), (mask.cumsum(1) - 1).clamp(min=0)
    expected = theirs(inputs_embeds=vectors, position_ids=positions).logits
    close(ours(inputs_embeds=vectors, position_ids=positions).logits, expected, 1e-9)
    for kind in ("two", "float", "bool"):
        if (kind, side) == ("bool", "left"):  # a place that reads nothing has no softmax
            continue
        feed = {"position_ids": positions} | masked_by(kind, mask, causal=True)
        close(ours(inputs_embeds=vectors, **feed).logits, theirs(ids, **feed).logits, 1e-9)


def test_a_decoder_without_a_pad_reads_the_last_place() -> None:
    ours, theirs = gpt2_classifiers(pad=None)
    ids = tokens(1, 8)
    close(ours(ids).logits, theirs(ids).logits, 1e-9)
    rows = tokens(2, 8, seed=1)  # transformers refuses more than one
    close(ours(rows).logits, torch.cat([theirs(row[None]).logits for row in rows]), 1e-9)


def test_rows_of_padding_alone() -> None:
    ours, theirs = gpt2_classifiers()
    ids = torch.full((2, 5), PAD)
    close(ours(ids).logits, theirs(ids).logits, 1e-9)
    for mask in (torch.zeros(2, 5).long(), four(torch.zeros(2, 5), causal=True, kind="float")):
        positions = torch.zeros(2, 5).long()
        expected = theirs(ids, attention_mask=mask, position_ids=positions).logits
        close(ours(ids, attention_mask=mask, position_ids=positions).logits, expected, 1e-9)


def bert_classifiers(kind: type) -> tuple[Any, Any]:
    """Ours, and the BERT of the same head."""
    config = transformers.BertConfig(**SHAPE, max_position_embeddings=32, pad_token_id=PAD, num_labels=LABELS)
    theirs = finished(kind(config))
    if kind is transformers.BertForNextSentencePrediction:
        ours = model("masked", **BERT, next_sentence=True, type_vocab_size=2, dtype=torch.float64)
        copy(ours.next_sentence.dense, theirs.bert.pooler.dense)
        copy(ours.next_sentence.classifier, theirs.cls.seq_relationship)
        copy(ours.model.embedding.types, theirs.bert.embeddings.token_type_embeddings)
    else:
        ours = model("classify", **BERT, num_labels=LABELS, dtype=torch.float64)
        copy(ours.dense, theirs.bert.pooler.dense)
        copy(ours.classifier, theirs.classifier)
    bert_embedding(ours.model, theirs.bert.embeddings)
    if ours.model.embedding.types is not None:
        ours.model.embedding.positions.weight.data = theirs.bert.embeddings.position_embeddings.weight.detach().clone()
    bert_layers(ours.model, theirs.bert.encoder.layer, pre=False)
    return ours, theirs


@pytest.mark.parametrize("kind", ["none", "two", "float", "bool"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "head", [transformers.BertForSequenceClassification, transformers.BertForNextSentencePrediction]
)
def test_an_encoder_classifies_as_bert_does(head: type, side: str, kind: str) -> None:
    """BERT reads position 0, so where a mask says that padding is on the left, the same rows padded on the right."""
    ours, theirs = bert_classifiers(head)
    (ids, mask), (same, right) = padded(side), padded("right")
    for row in range(3):  # the tokens of a row are the same on both sides
        ids[row, mask[row].bool()] = same[row, right[row].bool()]
    targets = torch.tensor([0, 1, 1])
    if kind == "none":
        expected = theirs(ids, labels=targets)
        got = given(ours, ids, targets)
    else:
        expected = theirs(same, attention_mask=right, labels=targets)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        got = given(ours, ids, targets, position_ids=positions, **masked_by(kind, mask, causal=False))
    close(got.loss.double(), expected.loss.double(), 1e-6)
    if head is transformers.BertForSequenceClassification:
        close(got.logits, expected.logits, 1e-9)


def given(ours: Any, ids: Tensor, targets: Tensor, **feed: Any) -> Any:
    classifies = isinstance(ours, IsogradForSequenceClassification)
    return ours(ids, **feed, **{"labels" if classifies else "next_sentence_label": targets})


@pytest.mark.parametrize("side", ["right", "left"])
def test_both_losses_of_bert_whatever_the_side(side: str) -> None:
    ours, _ = bert_classifiers(transformers.BertForNextSentencePrediction)
    (ids, mask), (same, right) = padded(side), padded("right")
    for row in range(3):
        ids[row, mask[row].bool()] = same[row, right[row].bool()]
    following = torch.tensor([0, 1, 1])
    losses = [
        ours(i, attention_mask=m, labels=i.where(m.bool(), -100), next_sentence_label=following).loss
        for i, m in ((ids, mask), (same, right))
    ]
    close(losses[0], losses[1], 1e-9)


# pad = eos: the row of eos in an untied table is a token's, and is trained.


@pytest.mark.parametrize(("pad", "trained"), [(PAD, False), (2, True), (0, True), (None, True)])
def test_the_gradient_of_the_token_table_is_gpt2s(pad: int | None, trained: bool) -> None:
    """GPT-2 trains every row; ours all but that of a pad which is nothing else (here no row has padding to learn)."""
    config = transformers.GPT2Config(
        **GPT2, bos_token_id=0, eos_token_id=2, pad_token_id=pad, tie_word_embeddings=False
    )
    theirs = finished(transformers.GPT2LMHeadModel(config))
    options = {"hidden_act": "gelu_tanh", "pad_token_id": pad, "tie_word_embeddings": False}
    ours = model(**options, dtype=torch.float64)
    gpt2(ours.model, theirs.transformer)
    copy(ours.lm_head, theirs.lm_head)
    ids = tokens(2, 8)
    ids[:, 0], ids[0, 3], ids[1, 4] = 0, 2, 2  # bos, and eos between texts that stand one behind the other
    for network in (ours, theirs):
        network(ids, labels=ids).loss.backward()
    close(ours.model.embedding.tokens.weight.grad, theirs.transformer.wte.weight.grad, 1e-7)
    if trained and pad is not None:
        assert ours.model.embedding.tokens.weight.grad[pad].abs().max() > 1e-6
    assert ours.model.embedding.tokens.padding_idx == (None if trained else pad)


def test_which_row_is_never_trained() -> None:
    """A pad that is one of several eos, or what a decoder reads first, is trained, and begins like any token."""
    for options in ({"eos_token_id": [2, PAD]}, {"decoder_start_token_id": PAD}):
        made = model("seq2seq", random=False, **options)
        for stack in (made.encoder, made.decoder):
            assert stack.embedding.tokens.padding_idx is None and stack.embedding.tokens.weight[PAD].any()
    usual = model("seq2seq", random=False)
    assert not usual.decoder.embedding.tokens.weight[PAD].any()
