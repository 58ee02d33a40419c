"""A BERT in one file: norms on the sums, three embeddings with a norm, separate query, key and value, a masked head."""

import math

import torch
from torch import nn
from torch.nn.functional import gelu, softmax

vocab_size, hidden, num_heads, num_layers, max_position = 64, 64, 4, 4, 32
dropout_prob = 0.0


class BertEmbeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(vocab_size, hidden)
        self.position = nn.Embedding(max_position, hidden)
        self.token_type = nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout_prob)

    def forward(self, input_ids):
        positions = torch.arange(input_ids.size(1), device=input_ids.device).expand_as(input_ids)
        x = self.word(input_ids) + self.position(positions) + self.token_type(torch.zeros_like(input_ids))
        return self.dropout(self.norm(x))


class BertAttention(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout_prob)

    def split(self, x):
        return x.view(x.size(0), x.size(1), num_heads, hidden // num_heads).permute(0, 2, 1, 3)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(hidden // num_heads)
        probs = softmax(scores, dim=-1)
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        context = context.view(x.size(0), x.size(1), hidden)
        context = self.dropout(self.output(context))
        return self.norm(x + context)


class BertFeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense_in = nn.Linear(hidden, 4 * hidden)
        self.dense_out = nn.Linear(4 * hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout_prob)

    def forward(self, x):
        h = gelu(self.dense_in(x))
        h = self.dropout(self.dense_out(h))
        return self.norm(x + h)


class BertLayer(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.attention = BertAttention(layer_idx)
        self.ffn = BertFeedForward()

    def forward(self, x):
        x = self.attention(x)
        x = self.ffn(x)
        return x


class BertForMaskedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = BertEmbeddings()
        self.layers = nn.ModuleList([BertLayer(i) for i in range(num_layers)])
        self.transform = nn.Linear(hidden, hidden)
        self.transform_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.decoder = nn.Linear(hidden, vocab_size)
        self.apply(self.init_weights)
        self.decoder.weight = self.embeddings.word.weight

    def init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=0.02)
        if isinstance(module, nn.Linear):
            module.bias.data.zero_()

    def forward(self, input_ids):
        x = self.embeddings(input_ids)
        for layer in self.layers:
            x = layer(x)
        x = self.transform_norm(gelu(self.transform(x)))
        return self.decoder(x)


def build():
    model = BertForMaskedLM()
    return model
