"""Hugging Face's own models with our weights copied in: equal logits in fp64, padding included."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.build import TINY, close, model, randomised, tokens

SHAPE = {"vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
PAD = 1


def padded(side: str, time: int = 8) -> tuple[Tensor, Tensor]:
    """Ids and mask of three rows, of length 8, 5 and 1."""
    ids, mask = tokens(3, time), torch.ones(3, time, dtype=torch.long)
    for row, length in ((1, 5), (2, 1)):
        places = slice(length, None) if side == "right" else slice(0, time - length)
        ids[row, places], mask[row, places] = PAD, 0
    return ids, mask


def finished(oracle: Any) -> Any:
    """fp64, eval, and nothing left at zero or one."""
    torch.manual_seed(5)
    for p in oracle.parameters():
        nn.init.normal_(p, std=0.3)
    for name, p in oracle.named_parameters():
        if p.ndim == 1 and name.endswith("weight"):
            nn.init.uniform_(p, 0.5, 1.5)
    oracle.tie_weights()
    return oracle.double().eval()


def copy(ours: nn.Module, theirs: nn.Module, *, conv1d: bool = False) -> None:
    """Weight and bias of a leaf; GPT-2 stores its matrices as (in, out)."""
    with torch.no_grad():
        ours.weight.copy_(theirs.weight.T if conv1d else theirs.weight)
        if getattr(ours, "bias", None) is not None:
            ours.bias.copy_(theirs.bias)


def attention(ours: Any, query: Any, key: Any, value: Any, out: Any) -> None:
    for leaf, theirs in ((ours.query, query), (ours.key, key), (ours.value, value), (ours.out, out)):
        copy(leaf, theirs)


def agree(ours: Tensor, theirs: Tensor, mask: Tensor) -> None:
    close(ours[mask.bool()], theirs[mask.bool()], 1e-9)


def gpt2(stack: Any, other: Any) -> None:
    copy(stack.embedding.tokens, other.wte)
    copy(stack.embedding.positions, other.wpe)
    copy(stack.norm, other.ln_f)
    for layer, block in zip(stack.layers, other.h, strict=True):
        copy(layer.attn.pre, block.ln_1)
        copy(layer.ffn.pre, block.ln_2)
        branch = layer.attn.branch
        for i, leaf in enumerate((branch.query, branch.key, branch.value)):  # W_Q, W_K, W_V side by side
            part = slice(16 * i, 16 * (i + 1))
            leaf.weight.data, leaf.bias.data = block.attn.c_attn.weight.T[part].clone(), block.attn.c_attn.bias[part]
        copy(branch.out, block.attn.c_proj, conv1d=True)
        copy(layer.ffn.branch.into, block.mlp.c_fc, conv1d=True)
        copy(layer.ffn.branch.out, block.mlp.c_proj, conv1d=True)


@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_pre_ln_is_gpt2(padding: str) -> None:
    theirs = finished(
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=41,
                n_positions=32,
                n_embd=16,
                n_layer=2,
                n_head=4,
                n_inner=24,
                bos_token_id=0,
                eos_token_id=2,
            )
        )
    )
    ours = model(placement="pre-ln", hidden_act="gelu_tanh", dtype=torch.float64, pad_token_id=None)
    gpt2(ours.model, theirs.transformer)
    if padding == "none":
        ids = tokens(3, 8)
        close(ours(ids).logits, theirs(ids).logits, 1e-9)
        labels = ids.clone()
        loss = theirs(ids, labels=labels).loss  # in float32, whatever the logits
        torch.testing.assert_close(ours(ids, labels=labels).loss.float(), loss, rtol=1e-6, atol=0)
        return
    ids, mask = padded(padding)
    positions = (mask.cumsum(1) - 1).clamp(min=0)  # GPT-2 does not find them itself; we do
    expected = theirs(ids, attention_mask=mask, position_ids=positions).logits
    agree(ours(ids, attention_mask=mask).logits, expected, mask)
    agree(ours(ids, attention_mask=mask, position_ids=positions).logits, expected, mask)


def bert_layers(stack: Any, layers: Any, *, pre: bool) -> None:
    for layer, block in zip(stack.layers, layers, strict=True):
        own = block.attention.self
        attention(layer.attn.branch, own.query, own.key, own.value, block.attention.output.dense)
        copy(layer.ffn.branch.into, block.intermediate.dense)
        copy(layer.ffn.branch.out, block.output.dense)
        if pre:
            copy(layer.attn.pre, block.attention.LayerNorm)
            copy(layer.ffn.pre, block.intermediate.LayerNorm)
        else:
            copy(layer.attn.post, block.attention.output.LayerNorm)
            copy(layer.ffn.post, block.output.LayerNorm)


def bert_embedding(stack: Any, theirs: Any) -> None:
    """The token-type row 0 goes into the positions."""
    copy(stack.embedding.tokens, theirs.word_embeddings)
    copy(stack.embedding.norm, theirs.LayerNorm)
    stack.embedding.positions.weight.data = theirs.position_embeddings.weight + theirs.token_type_embeddings.weight[0]


def bert_head(head: Any, dense: nn.Module, norm: nn.Module, bias: Tensor) -> None:
    copy(head.dense, dense)
    copy(head.norm, norm)
    head.decoder.bias.data = bias.detach().clone()


@pytest.mark.parametrize("padding", ["none", "right"])
def test_post_ln_is_bert(padding: str) -> None:
    theirs = finished(
        transformers.BertForMaskedLM(transformers.BertConfig(**SHAPE, max_position_embeddings=32, pad_token_id=PAD))
    )
    ours = model("masked", placement="post-ln", embedding_norm=True, norm_eps=1e-12, dtype=torch.float64)
    bert_embedding(ours.model, theirs.bert.embeddings)
    bert_layers(ours.model, theirs.bert.encoder.layer, pre=False)
    head = theirs.cls.predictions
    bert_head(ours.head, head.transform.dense, head.transform.LayerNorm, head.bias)
    ids, mask = padded(padding) if padding != "none" else (tokens(3, 8), torch.ones(3, 8))
    agree(ours(ids, attention_mask=mask).logits, theirs(ids, attention_mask=mask).logits, mask)


def test_token_types_and_the_second_head_are_bert() -> None:
    """BERT's pre-training: segments A and B, both losses."""
    theirs = finished(
        transformers.BertForPreTraining(transformers.BertConfig(**SHAPE, max_position_embeddings=32, pad_token_id=PAD))
    )
    options = {"placement": "post-ln", "embedding_norm": True, "norm_eps": 1e-12, "type_vocab_size": 2}
    ours = model("masked", **options, next_sentence=True, dtype=torch.float64)
    bert_embedding(ours.model, theirs.bert.embeddings)
    ours.model.embedding.positions.weight.data = theirs.bert.embeddings.position_embeddings.weight.detach().clone()
    copy(ours.model.embedding.types, theirs.bert.embeddings.token_type_embeddings)
    bert_layers(ours.model, theirs.bert.encoder.layer, pre=False)
    head = theirs.cls.predictions
    bert_head(ours.head, head.transform.dense, head.transform.LayerNorm, head.bias)
    copy(ours.next_sentence.dense, theirs.bert.pooler.dense)
    copy(ours.next_sentence.classifier, theirs.cls.seq_relationship)
    ids, mask = padded("right")
    types = (torch.arange(8) >= 4).long().expand(3, -1)
    labels = torch.where((torch.arange(8) % 3 == 0) & mask.bool(), ids, -100)
    feed = {"attention_mask": mask, "token_type_ids": types, "next_sentence_label": torch.tensor([0, 1, 1])}
    expected = theirs(ids, **feed, labels=labels)
    got = ours(ids, **feed, labels=labels, output_logits=True)
    agree(got.logits, expected.prediction_logits, mask)
    close(got.loss, expected.loss, 1e-9)
    without = ours(ids, attention_mask=mask, labels=labels)
    types_ignored = ours(ids, attention_mask=mask, token_type_ids=torch.zeros_like(ids), labels=labels)
    close(without.loss, types_ignored.loss, 0.0)  # no types given: all are of type 0
    assert abs((without.loss - got.loss).item()) > 0.1


def test_a_part_of_an_update_adds_its_part_of_the_second_loss() -> None:
    ours = model("masked", type_vocab_size=2, next_sentence=True, dtype=torch.float64)
    feed = {
        "input_ids": tokens(4, 8),
        "labels": tokens(4, 8, seed=2),
        "next_sentence_label": torch.tensor([0, 1, 1, 0]),
    }
    whole = ours(**feed, num_items_in_batch=32).loss
    parts = [{k: v[rows] for k, v in feed.items()} for rows in (slice(0, 2), slice(2, 4))]
    close(sum(ours(**part, num_items_in_batch=32).loss for part in parts), whole, 1e-12)
    close(whole, ours(**feed).loss, 1e-12)
    with pytest.raises(ValueError, match=r"config\.next_sentence"):
        model("masked", dtype=torch.float64)(**feed)


@pytest.mark.parametrize("padding", ["right", "left"])
def test_pre_ln_is_roberta_prelayernorm(padding: str) -> None:
    config = transformers.RobertaPreLayerNormConfig(**SHAPE, max_position_embeddings=32, pad_token_id=PAD)
    theirs = finished(transformers.RobertaPreLayerNormForMaskedLM(config))
    ours = model(
        "masked",
        placement="pre-ln",
        embedding_norm=True,
        norm_eps=1e-12,
        position_offset=PAD + 1,
        max_position_embeddings=30,
        dtype=torch.float64,
    )
    stack = theirs.roberta_prelayernorm
    bert_embedding(ours.model, stack.embeddings)
    bert_layers(ours.model, stack.encoder.layer, pre=True)
    copy(ours.model.norm, stack.LayerNorm)
    bert_head(ours.head, theirs.lm_head.dense, theirs.lm_head.layer_norm, theirs.lm_head.bias)
    ids, mask = padded(padding)
    agree(ours(ids, attention_mask=mask).logits, theirs(ids, attention_mask=mask).logits, mask)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_post_ln_is_bart(scale: bool, shared: bool) -> None:
    """Positions from 2 on, a norm on the embedding, the token table shared by encoder, decoder and head."""
    theirs = finished(
        transformers.BartForConditionalGeneration(
            transformers.BartConfig(
                vocab_size=41,
                d_model=16,
                encoder_layers=3,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=24,
                decoder_ffn_dim=24,
                max_position_embeddings=32,
                activation_function="gelu",
                scale_embedding=scale,
                dropout=0.0,
                pad_token_id=PAD,
            )
        )
    )
    ours = model(
        "seq2seq",
        placement="post-ln",
        embedding_norm=True,
        position_offset=2,
        scale_embedding=scale,
        share_encoder_embeddings=shared,
        dtype=torch.float64,
    )
    assert (ours.encoder.embedding.tokens.weight is ours.decoder.embedding.tokens.weight) == shared
    for stack, other in ((ours.encoder, theirs.model.encoder), (ours.decoder, theirs.model.decoder)):
        copy(stack.embedding.tokens, other.embed_tokens)
        copy(stack.embedding.positions, other.embed_positions)
        copy(stack.embedding.norm, other.layernorm_embedding)
        for layer, block in zip(stack.layers, other.layers, strict=True):
            own = block.self_attn
            attention(layer.attn.branch, own.q_proj, own.k_proj, own.v_proj, own.out_proj)
            copy(layer.attn.post, block.self_attn_layer_norm)
            if layer.cross is not None:
                memory = block.encoder_attn
                attention(layer.cross.branch, memory.q_proj, memory.k_proj, memory.v_proj, memory.out_proj)
                copy(layer.cross.post, block.encoder_attn_layer_norm)
            copy(layer.ffn.branch.into, block.fc1)
            copy(layer.ffn.branch.out, block.fc2)
            copy(layer.ffn.post, block.final_layer_norm)
    ids, mask = padded("right")
    written, _ = padded("right", 6)
    given = {"attention_mask": mask, "decoder_input_ids": written}
    agree(ours(ids, **given).logits, theirs(ids, **given).logits, written != PAD)
    if not scale:  # the negative control: the scale does something
        ours.decoder.embedding.scale = 4.0
        assert (ours(ids, **given).logits - theirs(ids, **given).logits).abs().max() > 1e-3


@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_pre_ln_with_rotary_and_swiglu_is_llama(padding: str) -> None:
    config = transformers.LlamaConfig(**SHAPE, rms_norm_eps=1e-5, tie_word_embeddings=False, pad_token_id=PAD)
    theirs = finished(transformers.LlamaForCausalLM(config))
    double_norms(theirs)
    ours = randomised(
        model(
            placement="pre-ln",
            norm="rmsnorm",
            hidden_act="swiglu",
            bias=False,
            position_embedding_type="rotary",
            tie_word_embeddings=False,
            dtype=torch.float64,
        )
    )
    copy(ours.model.embedding.tokens, theirs.model.embed_tokens)
    copy(ours.model.norm, theirs.model.norm)
    copy(ours.lm_head, theirs.lm_head)
    for layer, block in zip(ours.model.layers, theirs.model.layers, strict=True):
        own = block.self_attn
        attention(layer.attn.branch, own.q_proj, own.k_proj, own.v_proj, own.o_proj)
        copy(layer.attn.pre, block.input_layernorm)
        copy(layer.ffn.pre, block.post_attention_layernorm)
        copy(layer.ffn.branch.gate, block.mlp.gate_proj)
        copy(layer.ffn.branch.into, block.mlp.up_proj)
        copy(layer.ffn.branch.out, block.mlp.down_proj)
    ids, mask = padded(padding) if padding != "none" else (tokens(3, 8), torch.ones(3, 8, dtype=torch.long))
    expected = theirs(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    agree(ours(ids, attention_mask=mask).logits, expected, mask)
    ours.config.rope_theta = 1000.0  # the negative control
    assert (ours(ids, attention_mask=mask).logits - expected)[mask.bool()].abs().max() > 1e-4


def double_norms(llama: Any) -> None:
    """LlamaRMSNorm computes in float32 whatever its input; torch's own norm with its gains computes in fp64."""

    def exact(norm: Any) -> nn.RMSNorm:
        made = nn.RMSNorm(16, eps=norm.variance_epsilon, dtype=torch.float64)
        made.weight = norm.weight
        return made

    llama.model.norm = exact(llama.model.norm)
    for block in llama.model.layers:
        block.input_layernorm, block.post_attention_layernorm = (
            exact(block.input_layernorm),
            exact(block.post_attention_layernorm),
        )


def test_the_shapes_are_those_of_the_tiny_model() -> None:
    assert {k: TINY[k] for k in SHAPE} == SHAPE
