"""Two-tower image-text model whose training loss uses embeddings of any length.

A re-made CLIP logged losses that did not fit its validation: the training step took the dot product of raw projections,
while only the forward used for validation put them on the unit sphere. The healthy twin normalizes in the training step.
"""
import math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "loss",
    "shows": "step",
    "source": "https://github.com/Zasder3/train-CLIP/pull/3",
    "cause": "Embeddings are not L2-normalized before the contrastive logits are computed in the training loss, so logits are not scaled cosines.",
    "number": "relative change of the loss when the image projection is scaled by two",
    "healthy": (0.0, 1e-3),
    "faulty": (0.05, 10.0),
}
D, OUT, VOCAB = 48, 32, 64


class Tower(nn.Module):
    def __init__(self, embed, n):
        super().__init__()
        self.embed = embed
        self.pos = nn.Parameter(torch.randn(n, D) * 0.01)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.ln = nn.LayerNorm(D)
        self.proj = nn.Linear(D, OUT, bias=False)

    def forward(self, x):
        return self.proj(self.ln(self.enc(self.embed(x) + self.pos).mean(1)))


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = Tower(nn.Linear(20, D), 9)
        self.text = Tower(nn.Embedding(VOCAB, D), 6)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.2)))

    def forward(self, image, text):
        i, t = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
        return self.logit_scale.exp() * i @ t.T


def pairs(n=256, seed=0):
    g = torch.Generator().manual_seed(seed)
    code = torch.randn(VOCAB, 20, generator=torch.Generator().manual_seed(2))
    text = torch.randint(0, VOCAB, (n, 6), generator=g)
    image = code[text].mean(1, keepdim=True) * 2 + 0.3 * torch.randn(n, 9, 20, generator=g)
    return image, text


def setup(faulty: bool):
    torch.manual_seed(0)
    model = TwoTower()

    def loss(model, batch):
        image, text = batch
        i, t = model.image(image), model.text(text)
        if not faulty:
            i, t = F.normalize(i, dim=-1), F.normalize(t, dim=-1)
        logits = model.logit_scale.exp().clamp(max=100) * i @ t.T
        gold = torch.arange(len(logits))
        return (F.cross_entropy(logits, gold) + F.cross_entropy(logits.T, gold)) / 2

    data = DataLoader(TensorDataset(*pairs()), 32, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(3))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    return {"model": model, "loss": loss, "data": data, "optimizer": opt, "steps": 60}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    batch = next(iter(s["data"]))
    with torch.no_grad():
        a = s["loss"](s["model"], batch).item()
        s["model"].image.proj.weight.mul_(2.0)
        b = s["loss"](s["model"], batch).item()
    return abs(a - b) / a


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
