"""transformers' Llama at a small config, its attention and layer forwards replaced, as one does without forking it."""

import types

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama as hf

LAYERS = 5


def config():
    return LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


def attention(self, hidden_states, position_embeddings=None, **kwargs):
    b, t, _ = hidden_states.shape
    q = self.q_proj(hidden_states).view(b, t, -1, self.head_dim).transpose(1, 2)
    k = self.k_proj(hidden_states).view(b, t, -1, self.head_dim).transpose(1, 2)
    v = self.v_proj(hidden_states).view(b, t, -1, self.head_dim).transpose(1, 2)
    cos, sin = position_embeddings
    q, k = hf.apply_rotary_pos_emb(q, k, cos, sin)
    k = hf.repeat_kv(k, self.num_key_value_groups)
    v = hf.repeat_kv(v, self.num_key_value_groups)
    scores = torch.matmul(q, k.transpose(2, 3)) * self.scaling
    scores = scores + torch.full((t, t), float("-inf"), dtype=q.dtype).triu(1)
    probs = nn.functional.softmax(scores, dim=-1)
    out = torch.matmul(probs, v)
    out = out.transpose(1, 2).reshape(b, t, -1)
    return self.o_proj(out), probs


def decoder_layer(self, hidden_states, position_embeddings=None, **kwargs):
    residual = hidden_states
    hidden_states = self.input_layernorm(hidden_states)
    hidden_states, _ = self.self_attn(hidden_states, position_embeddings=position_embeddings)
    hidden_states = residual + hidden_states
    residual = hidden_states
    hidden_states = self.post_attention_layernorm(hidden_states)
    hidden_states = self.mlp(hidden_states)
    return residual + hidden_states


def build():
    model = LlamaForCausalLM(config())
    for layer in model.model.layers:
        layer.self_attn.forward = types.MethodType(attention, layer.self_attn)
        layer.forward = types.MethodType(decoder_layer, layer)
    return model
