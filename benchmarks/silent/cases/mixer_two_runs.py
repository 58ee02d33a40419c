"""The weights are drawn anew after the checkpoint was loaded.

The start-up code loads the checkpoint and then calls the routine that initializes all modules, so training goes on from random weights with the step
counter of the old run. The healthy twin initializes first and loads then.
"""
import io
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "state",
    "shows": "run",
    "source": "https://github.com/huggingface/picotron/issues/32",
    "cause": "The weight initialization runs after the checkpoint is loaded and overwrites the loaded weights with random ones.",
    "number": "first loss of the second run minus last loss of the first, in nats",
    "healthy": (-0.5, 0.5),
    "faulty": (1.0, 6.0),
}
V, D, L = 40, 48, 24


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Parameter(torch.zeros(L, D))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 3 * D, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(L), persistent=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(x))


def prepare(model):
    for m in model.modules():
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.06)
            if getattr(m, "bias", None) is not None:
                nn.init.zeros_(m.bias)
        elif isinstance(m, nn.MultiheadAttention):
            nn.init.normal_(m.in_proj_weight, std=0.06)
        elif isinstance(m, Mixer):
            nn.init.normal_(m.pos, std=0.06)


def sample(n, g):
    start, jump = torch.randint(0, V, (n, 1), generator=g), torch.randint(1, 4, (n, 1), generator=g)
    return (start + jump * torch.arange(L + 1)) % V


def run(model, opt, g, steps):
    out = []
    for _ in range(steps):
        ids = sample(16, g)
        value = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        out.append(value.item())
    return out


def train(faulty: bool):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = Mixer()
    prepare(model)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    first, file = run(model, opt, g, 80), io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "g": g.get_state()}, file)

    file.seek(0)
    saved = torch.load(file)
    model = Mixer()
    if faulty:
        model.load_state_dict(saved["model"])
        prepare(model)
    else:
        prepare(model)
        model.load_state_dict(saved["model"])
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    opt.load_state_dict(saved["opt"])
    g.set_state(saved["g"])
    return {"model": model, "losses": first + run(model, opt, g, 40), "cut": len(first)}


def proof(faulty: bool) -> float:
    r = train(faulty)
    return r["losses"][r["cut"]] - sum(r["losses"][r["cut"] - 3:r["cut"]]) / 3


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
