"""All layers of nn.TransformerEncoder start with the same weights.

nn.TransformerEncoder deep-copies the one layer it is given, so unless the model is initialised again each layer begins as a copy of the
first one. The healthy twin draws all matrices anew after the copying, as nn.Transformer does.
"""
import math
import torch
import torch.nn as nn

CASE = {
    "class": "init", "shows": "model",
    "source": "https://github.com/pytorch/pytorch/issues/86274",
    "cause": "The encoder layers are deep copies and are not initialised again, so all layers start with identical weights.",
    "number": "share of layer pairs whose first feed-forward matrices are equal at the start",
    "healthy": (0.0, 0.01),
    "faulty": (0.99, 1.0),
}


class Tagger(nn.Module):
    def __init__(self, faulty, n_tokens=100, n_tags=9, d_model=64, n_layers=4):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(n_tokens, d_model, padding_idx=0)
        pos = torch.arange(40).unsqueeze(1) / 10000 ** (torch.arange(0, d_model, 2) / d_model)
        self.register_buffer("pe", torch.stack([pos.sin(), pos.cos()], dim=-1).flatten(1))
        layer = nn.TransformerEncoderLayer(d_model, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, n_layers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.classifier = nn.Linear(d_model, n_tags)
        nn.init.normal_(self.embedding.weight, std=d_model ** -0.5)
        with torch.no_grad():
            self.embedding.weight[0].zero_()
        if not faulty:
            for p in self.encoder.parameters():
                if p.dim() > 1:
                    nn.init.xavier_uniform_(p)

    def forward(self, ids):
        x = self.embedding(ids) * math.sqrt(self.d_model) + self.pe[: ids.shape[1]]
        return self.classifier(self.encoder(x, src_key_padding_mask=ids == 0))


def build(faulty: bool):
    torch.manual_seed(0)
    return Tagger(faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 100, (8, 24), generator=g)
    keep = torch.randint(12, 25, (8, 1), generator=g)
    return ids.masked_fill(torch.arange(24) >= keep, 0)


def loss(output, ids):
    tags = (ids + ids.roll(1, 1)) % 9
    return nn.functional.cross_entropy(output[ids > 0], tags[ids > 0])


def proof(faulty: bool) -> float:
    w = [layer.linear1.weight for layer in build(faulty).encoder.layers]
    pairs = [(i, j) for i in range(len(w)) for j in range(i)]
    return sum(torch.equal(w[i], w[j]) for i, j in pairs) / len(pairs)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
