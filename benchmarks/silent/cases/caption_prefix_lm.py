"""Captioning decoder shifts its labels by hand and then calls a loss helper that shifts again.

People fine-tuned an image captioner whose loss fell normally while the captions came out with words left out.
The forward cut off the last logit and the first label, then handed both to a shared causal-LM loss which does the same
once more, so position t was scored against token t+2. The healthy twin hands over the aligned pair and shifts once.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "loss",
    "shows": "model",
    "source": "https://github.com/huggingface/transformers/issues/47394",
    "cause": "Labels and logits are shifted by one in forward and again inside the causal-LM loss helper, so each position learns the token after the next.",
    "number": "share of positions whose top prediction is the next token, after training",
    "healthy": (0.9, 1.0),
    "faulty": (0.0, 0.2),
}
VOCAB, D, PATCHES, T = 37, 64, 4, 16


def causal_lm_loss(logits, labels):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class Captioner(nn.Module):
    def __init__(self, faulty):
        super().__init__()
        self.variant = faulty
        self.patch = nn.Linear(12, D)
        self.tok = nn.Embedding(VOCAB, D)
        self.pos = nn.Embedding(PATCHES + T, D)
        self.blocks = nn.ModuleList(Block(D, 4) for _ in range(2))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, VOCAB)

    def forward(self, pixels, input_ids, labels=None):
        x = torch.cat([self.patch(pixels), self.tok(input_ids)], 1)
        x = x + self.pos(torch.arange(x.size(1), device=x.device))
        for blk in self.blocks:
            x = blk(x)
        logits = self.head(self.norm(x))
        loss = None
        if labels is not None:
            text_logits = logits[:, PATCHES:]
            if self.variant:
                text_logits, labels = text_logits[:, :-1], labels[:, 1:]
            loss = causal_lm_loss(text_logits, labels)
        return {"loss": loss, "logits": logits}


def build(faulty: bool):
    torch.manual_seed(0)
    return Captioner(faulty)


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(5))
    ids = torch.randint(0, VOCAB, (n, 1), generator=g)
    for _ in range(T - 1):
        nxt = table[ids[:, -1:]]
        noise = torch.rand(n, 1, generator=g) < 0.03
        ids = torch.cat([ids, torch.where(noise, torch.randint(0, VOCAB, (n, 1), generator=g), nxt)], 1)
    look = torch.randn(VOCAB, 12, generator=torch.Generator().manual_seed(6))
    return look[ids[:, :PATCHES]] + 0.3 * torch.randn(n, PATCHES, 12, generator=g), ids


def batch():
    px, ids = make(16, 1)
    return {"pixels": px, "input_ids": ids, "labels": ids.clone()}


def loss(output, batch):
    return output["loss"]


def proof(faulty: bool) -> float:
    model = build(faulty)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(80):
        px, ids = make(32, 100 + step)
        out = model(px, ids, ids.clone())
        opt.zero_grad()
        out["loss"].backward()
        opt.step()
    px, ids = make(64, 7)
    with torch.no_grad():
        pred = model(px, ids)["logits"][:, PATCHES:-1].argmax(-1)
    return (pred == ids[:, 1:]).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
