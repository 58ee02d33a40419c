"""Continuing a LoRA run from a saved adapter trains the whole base model too.

The fresh path freezes the base before it puts adapters in; the path that reloads an adapter does not, so all weights train at a LoRA rate while only
the adapter is saved. The healthy twin freezes the base in both.
"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "state",
    "shows": "step",
    "source": "https://github.com/Blaizzy/mlx-vlm/issues/2178",
    "cause": "When the adapter is reloaded the base model is not frozen, so all base weights are trained although only the LoRA adapters should be.",
    "number": "share of the base model's weights that changed after 3 updates",
    "healthy": (0.0, 0.001),
    "faulty": (0.5, 1.0),
}
V, D, L, RANK = 64, 64, 24, 4


class LoRALinear(nn.Module):
    def __init__(self, base, rank=RANK, alpha=8):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.lora_a.T @ self.lora_b.T)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(D, D) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x):
        b, n, _ = x.shape
        h = self.n1(x)
        q, k, v = (p(h).view(b, n, 4, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        x = x + self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, D))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(L, D)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        nn.init.normal_(self.tok.weight, std=0.1)
        nn.init.normal_(self.pos.weight, std=0.1)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[:ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def add_adapters(model):
    for layer in model.layers:
        layer.q_proj, layer.v_proj = LoRALinear(layer.q_proj), LoRALinear(layer.v_proj)
    return model


def fresh():
    return add_adapters(Base().requires_grad_(False))


def reload(base, adapter, faulty):
    if not faulty:
        base.requires_grad_(False)
    model = add_adapters(base)
    model.load_state_dict(adapter, strict=False)
    return model


def setup(faulty: bool):
    torch.manual_seed(0)
    pretrained = Base().state_dict()
    adapter = {k: v + 0.01 * torch.randn_like(v) for k, v in fresh().state_dict().items() if "lora_" in k}
    base = Base()
    base.load_state_dict(pretrained)
    model = reload(base, adapter, faulty)
    g = torch.Generator().manual_seed(3)
    ids = (torch.randint(0, V, (256, 1), generator=g) + torch.randint(1, 5, (256, 1), generator=g) * torch.arange(L + 1)) % V
    data = DataLoader(TensorDataset(ids), batch_size=16, shuffle=True, generator=g)
    params = [p for p in model.parameters() if p.requires_grad]
    return {"model": model, "data": data, "optimizer": torch.optim.AdamW(params, lr=1e-3, weight_decay=0.0), "steps": 40,
            "loss": lambda m, b: F.cross_entropy(m(b[0][:, :-1]).flatten(0, 1), b[0][:, 1:].flatten())}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    base = {n: p for n, p in s["model"].named_parameters() if "lora_" not in n}
    before = {n: p.detach().clone() for n, p in base.items()}
    for b in list(s["data"])[:3]:
        s["optimizer"].zero_grad()
        s["loss"](s["model"], b).backward()
        s["optimizer"].step()
    changed = sum((p != before[n]).sum().item() for n, p in base.items())
    return changed / sum(p.numel() for p in base.values())


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
