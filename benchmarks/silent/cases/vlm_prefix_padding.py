"""Left padding becomes visible when the prefix of a vision-language model is opened for full attention.

The mask was built causal, then cut at padding, then set to visible for the whole prefix, where padding counts as prefix (type 0).
So fine-tuning attends to padding, generation does not. The healthy twin opens the prefix first and cuts the padding last.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "masks",
    "shows": "model",
    "source": "https://github.com/huggingface/transformers/issues/35855",
    "cause": "Unmasking the prefix after applying the padding mask makes left padding tokens visible, so real tokens attend to padding.",
    "number": "relative change of the answer logits when only the ids at padded positions change",
    "healthy": (0.0, 1e-4),
    "faulty": (0.02, 20.0),
}
MIN = torch.finfo(torch.float32).min


def update_mask(attention_mask, token_type_ids, faulty):
    n = attention_mask.shape[1]
    causal = torch.full((n, n), MIN).triu(1)[None, None].repeat(attention_mask.shape[0], 1, 1, 1)
    pad = attention_mask[:, None, None, :] == 0
    prefix = token_type_ids[:, None, None, :] == 0
    if faulty:
        causal = causal.masked_fill(pad, MIN).masked_fill(prefix, 0.0)
    else:
        causal = causal.masked_fill(prefix, 0.0).masked_fill(pad, MIN)
    return causal


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.pre, self.post = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.wq, self.wk, self.wv, self.wo = [nn.Linear(dim, dim) for _ in range(4)]
        self.gate, self.up, self.down = nn.Linear(dim, 128), nn.Linear(dim, 128), nn.Linear(128, dim)

    def forward(self, x, mask):
        h = self.pre(x)
        q, k, v = (w(h).unflatten(2, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        att = (q @ k.mT / q.shape[-1] ** 0.5 + mask).softmax(-1)
        x = x + self.wo((att @ v).transpose(1, 2).flatten(2))
        h = self.post(x)
        return x + self.down(F.gelu(self.gate(h)) * self.up(h))


class TinyVLM(nn.Module):
    def __init__(self, vocab=48, dim=64, heads=4, depth=2, length=40, patches=8, faulty=False):
        super().__init__()
        self.variant = faulty
        self.vision = nn.Linear(48, dim)
        self.embed, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        for e in (self.embed, self.pos):
            nn.init.normal_(e.weight, std=0.2)
        self.layers = nn.ModuleList([DecoderLayer(dim, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)

    def forward(self, pixels, input_ids, attention_mask, token_type_ids):
        img = self.vision(pixels)
        x = self.embed(input_ids).masked_scatter((input_ids == 1)[..., None], img)
        place = (attention_mask.cumsum(1) - 1).clamp(min=0)
        x = x + self.pos(place)
        mask = update_mask(attention_mask, token_type_ids, self.variant)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def build(faulty):
    torch.manual_seed(31)
    return TinyVLM(faulty=faulty)


def batch():
    g = torch.Generator().manual_seed(8)
    rows, types, keep = [], [], []
    for pad, prompt in ((0, 20), (14, 6), (8, 12), (17, 3)):
        text = torch.randint(2, 48, (prompt,), generator=g)
        answer = (text[0] + torch.arange(12)) % 46 + 2
        rows.append(torch.cat([torch.zeros(pad, dtype=torch.long), torch.ones(8, dtype=torch.long), text, answer]))
        types.append(torch.cat([torch.zeros(pad + 8 + prompt), torch.ones(12)]).long())
        keep.append(torch.cat([torch.zeros(pad), torch.ones(20 + prompt)]).long())
    return {"pixels": torch.randn(4, 8, 48, generator=g), "input_ids": torch.stack(rows),
            "attention_mask": torch.stack(keep), "token_type_ids": torch.stack(types)}


def loss(output, batch):
    target = batch["input_ids"].masked_fill(batch["token_type_ids"] == 0, -100)
    return F.cross_entropy(output[:, :-1].flatten(0, 1), target[:, 1:].flatten(), ignore_index=-100)


def proof(faulty):
    model, one = build(faulty).eval(), batch()
    two = dict(one, input_ids=one["input_ids"].masked_fill(one["attention_mask"] == 0, 33))
    with torch.no_grad():
        a, b = model(**one)[:, -12:], model(**two)[:, -12:]
    return ((a - b).abs().max() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
