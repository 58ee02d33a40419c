"""The attention weights are normalised over the queries instead of over the keys.

In a tutorial's diffusion U-Net the scores have axes (batch, query, key, head) from an einsum and the softmax ran over axis 1.
Each pixel's weights then do not sum to one. The samples still look plausible. The healthy twin takes the softmax over axis 2.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "wiring", "shows": "model",
    "source": "https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146",
    "cause": "The softmax of the attention runs over the query axis instead of the key axis, so the weights of one query do not sum to one.",
    "number": "mean deviation of a query's summed attention weights from 1",
    "healthy": (0.0, 1e-4),
    "faulty": (0.02, 10.0),
}


class PixelAttention(nn.Module):
    def __init__(self, channels, heads, faulty):
        super().__init__()
        self.heads, self.dk = heads, channels // heads
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        self.axis = 1 if faulty else 2

    def weights(self, q, k):
        return torch.einsum("bihd,bjhd->bijh", q, k).mul(self.dk ** -0.5).softmax(dim=self.axis)

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(y).view(b, h * w, self.heads, 3 * self.dk).chunk(3, dim=-1)
        r = torch.einsum("bijh,bjhd->bihd", self.weights(q, k), v)
        return x + self.out(r.reshape(b, h * w, c)).transpose(1, 2).reshape(b, c, h, w)


class Denoiser(nn.Module):
    def __init__(self, faulty, c=32):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.down = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 2 * c, 3, stride=2, padding=1))
        self.mid = nn.ModuleList(PixelAttention(2 * c, 4, faulty) for _ in range(2))
        self.up = nn.Sequential(nn.GroupNorm(8, 2 * c), nn.SiLU(), nn.ConvTranspose2d(2 * c, c, 4, stride=2, padding=1))
        self.last = nn.Sequential(nn.GroupNorm(8, 2 * c), nn.SiLU(), nn.Conv2d(2 * c, 3, 3, padding=1))

    def forward(self, x):
        s = self.stem(x)
        h = self.down(s)
        for m in self.mid:
            h = m(h)
        return self.last(torch.cat([s, self.up(h)], dim=1))


def build(faulty: bool):
    torch.manual_seed(0)
    return Denoiser(faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    phase = torch.rand(8, 3, 1, 1, generator=g) * 6
    clean = torch.sin(4 * xx + 3 * yy * phase + phase)
    return clean + 0.5 * torch.randn(8, 3, 16, 16, generator=g)


def loss(output, noisy):
    return (output - nn.functional.avg_pool2d(noisy, 3, stride=1, padding=1)).pow(2).mean()


def proof(faulty: bool) -> float:
    model, seen = build(faulty), []
    layer = model.mid[0]
    keep = layer.weights
    layer.weights = lambda q, k: seen.append(keep(q, k)) or seen[-1]
    with torch.no_grad():
        model(batch())
    return (seen[0].sum(2) - 1).abs().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
