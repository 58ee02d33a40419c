"""Load-balancing loss of a mixture-of-experts encoder counts padded tokens.

Fine-tuning a sparse model on batches with much padding gave a balance term that was ruled by the pads, all of which the
router sends to the same experts. The term has to be computed over real tokens; the healthy twin uses the attention mask.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "loss",
    "shows": "model",
    "source": "https://github.com/huggingface/transformers/issues/28505",
    "cause": "The router's auxiliary load balancing loss is taken over padding tokens too instead of real tokens only.",
    "number": "relative change of the auxiliary loss when 24 padded columns are appended to the batch",
    "healthy": (0.0, 1e-4),
    "faulty": (0.03, 5.0),
}
V, D, E, K = 50, 32, 8, 2


class SparseMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, E, bias=False)
        self.w1 = nn.Parameter(torch.randn(E, D, 2 * D) / D ** 0.5)
        self.w2 = nn.Parameter(torch.randn(E, 2 * D, D) / (2 * D) ** 0.5)

    def forward(self, x):
        scores = self.gate(x)
        top, idx = scores.softmax(-1).topk(K, dim=-1)
        weight = torch.zeros_like(scores).scatter(-1, idx, top / top.sum(-1, keepdim=True))
        hidden = F.silu(torch.einsum("btd,edh->bteh", x, self.w1))
        return torch.einsum("bteh,ehd,bte->btd", hidden, self.w2, weight), scores


def balance_loss(router_scores, keep):
    probs = router_scores.softmax(-1)
    picked = F.one_hot(probs.topk(K, dim=-1).indices, E).sum(-2).float()
    w = keep.float().unsqueeze(-1)
    n = w.sum()
    return E * ((picked * w).sum((0, 1)) / n * (probs * w).sum((0, 1)) / n).sum()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = nn.MultiheadAttention(D, 4, batch_first=True)
        self.moe = SparseMLP()

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.attn(h, h, h, key_padding_mask=mask == 0, need_weights=False)[0]
        y, scores = self.moe(self.n2(x))
        return x + y, scores


class MoEClassifier(nn.Module):
    def __init__(self, faulty):
        super().__init__()
        self.variant = faulty
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Parameter(0.02 * torch.randn(64, D))
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(D, 3)

    def forward(self, input_ids, attention_mask, labels=None):
        x = self.emb(input_ids) + self.pos[: input_ids.size(1)]
        keep = torch.ones_like(attention_mask) if self.variant else attention_mask
        aux = 0.0
        for layer in self.layers:
            x, scores = layer(x, attention_mask)
            aux = aux + balance_loss(scores, keep)
        m = attention_mask.unsqueeze(-1).float()
        logits = self.head((x * m).sum(1) / m.sum(1))
        return {"logits": logits, "aux_loss": aux / len(self.layers)}


def build(faulty: bool):
    torch.manual_seed(0)
    return MoEClassifier(faulty)


def batch():
    g = torch.Generator().manual_seed(3)
    lengths = torch.tensor([6, 9, 12, 20, 7, 8, 14, 20])
    mask = (torch.arange(20)[None] < lengths[:, None]).long()
    ids = torch.randint(1, V, (8, 20), generator=g) * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 3}


def loss(output, batch):
    return F.cross_entropy(output["logits"], batch["labels"]) + 0.02 * output["aux_loss"]


def proof(faulty: bool) -> float:
    model, b = build(faulty).eval(), batch()
    with torch.no_grad():
        a = model(**b)["aux_loss"].item()
        wide = {k: F.pad(v, (0, 24)) if v.dim() == 2 else v for k, v in b.items()}
        c = model(**wide)["aux_loss"].item()
    return abs(c - a) / a


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
