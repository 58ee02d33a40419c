"""Loading with assign=True breaks the tie between token embedding and output head.

Each key of the state dict got a tensor of its own and assign=True put both into the model, so what was one matrix became two that drift apart in
training; no message is given. The healthy twin ties them again after loading.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "state",
    "shows": "model",
    "source": "https://github.com/TransformerLensOrg/TransformerLens/issues/1725",
    "cause": "load_state_dict(assign=True) replaces the tied embedding and output head by two separate parameters, so the weight tying is lost.",
    "number": "largest difference between embedding and head after 10 updates",
    "healthy": (0.0, 1e-7),
    "faulty": (0.001, 1.0),
}
V, D, L = 80, 64, 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, 4, -1).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(D, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, n, D))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(L, D)
        self.h = nn.ModuleList([Block(), Block()])
        self.ln_f = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, V, bias=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.05)
        self.tie()

    def tie(self):
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[:ids.shape[1]]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def build(faulty: bool):
    torch.manual_seed(0)
    source = GPT()
    stored = {k: v.clone() for k, v in source.state_dict().items()}
    model = GPT()
    model.load_state_dict(stored, assign=True)
    for p in model.parameters():
        p.requires_grad_(True)
    if not faulty:
        model.tie()
    return model


def batch():
    return torch.randint(0, V, (8, L), generator=torch.Generator().manual_seed(3))


def loss(output, batch):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def proof(faulty: bool) -> float:
    m, ids = build(faulty), batch()
    opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
    for _ in range(10):
        opt.zero_grad()
        loss(m(ids), ids).backward()
        opt.step()
    return (m.wte.weight - m.lm_head.weight).abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
