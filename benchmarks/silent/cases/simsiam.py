"""One side of the similarity loss is detached on purpose.

SimSiam compares the prediction of one view with the detached projection of the other; the stop-gradient keeps the representation from collapsing. The
encoder still gets its gradient through the prediction side.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "wiring", "shows": "model", "kind": "oddity",
    "source": "https://arxiv.org/abs/2011.10566",
    "cause": "None: the stop-gradient on the target branch is the design of SimSiam; the encoder is trained through the predictor.",
    "number": "share of the encoder's and predictor's tensors that get a gradient",
    "healthy": (0.95, 1.0),
    "faulty": None,
}


class SeriesEncoder(nn.Module):
    def __init__(self, channels=6, d=64, h=4, depth=2, length=30):
        super().__init__()
        self.inp = nn.Linear(channels, d)
        self.pos = nn.Parameter(0.2 * torch.randn(length, d))
        layers = [nn.TransformerEncoderLayer(d, h, 2 * d, dropout=0.0, batch_first=True, norm_first=True) for _ in range(depth)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        x = self.inp(x) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).mean(1)


class SimSiam(nn.Module):
    def __init__(self, d=64, bottleneck=24):
        super().__init__()
        self.encoder = SeriesEncoder(d=d)
        self.projector = nn.Sequential(nn.Linear(d, d, bias=False), nn.BatchNorm1d(d), nn.ReLU(),
                                       nn.Linear(d, d, bias=False), nn.BatchNorm1d(d, affine=False))
        self.predictor = nn.Sequential(nn.Linear(d, bottleneck, bias=False), nn.BatchNorm1d(bottleneck), nn.ReLU(),
                                       nn.Linear(bottleneck, d))

    def forward(self, view1, view2):
        z1, z2 = self.projector(self.encoder(view1)), self.projector(self.encoder(view2))
        return self.predictor(z1), self.predictor(z2), z1.detach(), z2.detach()


def build(faulty: bool = False):
    torch.manual_seed(0)
    return SimSiam()


def batch():
    g = torch.Generator().manual_seed(1)
    t = torch.arange(30.0)[None, :, None]
    base = torch.sin(t * (0.1 + torch.rand(16, 1, 6, generator=g)) + 6 * torch.rand(16, 1, 6, generator=g))
    def jitter():
        return base * (0.8 + 0.4 * torch.rand(16, 1, 6, generator=g)) + 0.2 * torch.randn(16, 30, 6, generator=g)
    return {"view1": jitter(), "view2": jitter()}


def loss(output, b):
    p1, p2, z1, z2 = output
    return -(F.cosine_similarity(p1, z2, dim=-1).mean() + F.cosine_similarity(p2, z1, dim=-1).mean()) / 2


def proof(faulty: bool) -> float:
    model, b = build(), batch()
    loss(model(**b), b).backward()
    got = [p.grad is not None and p.grad.abs().sum().item() > 0 for p in model.parameters()]
    return sum(got) / len(got)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
