"""Documents packed into one row attend to each other in one of the attention back ends.

Sample packing sends the document numbers along, and only the variable-length kernel looked at them; with plain sdpa the rows were simply causal,
so each document reads the ones before it. The healthy twin joins the causal mask with "same document".
"""
import torch
import torch.nn as nn
from torch.nn import functional as F

CASE = {
    "class": "masks",
    "shows": "model",
    "source": "https://github.com/axolotl-ai-cloud/axolotl/pull/3796",
    "cause": "Packed documents are not isolated: the attention mask is only causal over the whole row, so tokens attend across document boundaries.",
    "number": "relative change of the logits in the second and later documents when the first document changes",
    "healthy": (0.0, 1e-4),
    "faulty": (0.02, 20.0),
}


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, by_document):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.n_head, self.by_document = n_head, by_document

    def forward(self, x, doc):
        B, T, C = x.size()
        q, k, v = [y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in self.c_attn(x).split(C, dim=2)]
        if self.by_document:
            same = (doc[:, None, :, None] == doc[:, None, None, :]).tril()
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=same)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, n_embd, n_head, by_document):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, by_document)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x, doc):
        x = x + self.attn(self.ln_1(x), doc)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab=32, n_embd=64, n_head=4, n_layer=2, block_size=48, by_document=True):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, n_embd), nn.Embedding(block_size, n_embd)
        for emb in (self.wte, self.wpe):
            nn.init.normal_(emb.weight, std=0.1)
        self.h = nn.ModuleList([Block(n_embd, n_head, by_document) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)

    def forward(self, input_ids, position_ids, document_ids):
        x = self.wte(input_ids) + self.wpe(position_ids)
        for block in self.h:
            x = block(x, document_ids)
        return self.lm_head(self.ln_f(x))


def build(faulty):
    torch.manual_seed(1337)
    return GPT(by_document=not faulty)


def batch():
    g = torch.Generator().manual_seed(6)
    ids, pos, doc = [], [], []
    for lengths in ((20, 16, 12), (9, 30, 9), (24, 4, 20), (13, 17, 18)):
        start = torch.randint(0, 32, (3,), generator=g)
        ids.append(torch.cat([(s + 3 * torch.arange(n)) % 32 for s, n in zip(start, lengths)]))
        pos.append(torch.cat([torch.arange(n) for n in lengths]))
        doc.append(torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)]))
    return {"input_ids": torch.stack(ids), "position_ids": torch.stack(pos), "document_ids": torch.stack(doc)}


def loss(output, batch):
    target = batch["input_ids"].roll(-1, 1)
    target = target.masked_fill(batch["document_ids"] != batch["document_ids"].roll(-1, 1), -100)
    target[:, -1] = -100
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


def proof(faulty):
    model, one = build(faulty).eval(), batch()
    first = one["document_ids"] == 0
    two = dict(one, input_ids=torch.where(first, (one["input_ids"] + 5) % 32, one["input_ids"]))
    with torch.no_grad():
        a, b = model(**one)[~first], model(**two)[~first]
    return ((a - b).abs().max() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
