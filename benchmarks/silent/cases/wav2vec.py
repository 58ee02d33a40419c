"""Waveforms are normalised with the mean and deviation of the whole batch.

A speech recipe calls layer_norm with the shape of the whole batch, so a loud recording makes the others quiet and results depend on what else is in the
batch; each sentence should have zero mean and unit variance. The healthy twin leaves the batch axis out.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "norm", "shows": "model",
    "source": "https://github.com/speechbrain/speechbrain/issues/1247",
    "cause": "The input normalisation takes its statistics over the whole batch (batch axis included), so one sample changes the outputs of the others.",
    "number": "largest change of the first sample's output when the second sample is made 5 times louder",
    "healthy": (0.0, 1e-4),
    "faulty": (1e-2, 1e3),
}


class Wav2Vec(nn.Module):
    def __init__(self, faulty, d=64, h=4, depth=3, classes=8):
        super().__init__()
        self.whole = faulty
        self.c1 = nn.Conv1d(1, d, 10, stride=5)
        self.c2 = nn.Conv1d(d, d, 4, stride=4)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.pos = nn.Conv1d(d, d, 9, padding=4, groups=8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, batch_first=True, norm_first=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, classes)

    def features(self, wav):
        shape = wav.shape if self.whole else wav.shape[1:]
        wav = F.layer_norm(wav, shape)
        x = F.gelu(self.n1(self.c1(wav.unsqueeze(1)).transpose(1, 2)))
        return F.gelu(self.n2(self.c2(x.transpose(1, 2)).transpose(1, 2)))

    def forward(self, wav):
        x = self.features(wav)
        x = x + F.gelu(self.pos(x.transpose(1, 2))).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def build(faulty: bool):
    torch.manual_seed(0)
    return Wav2Vec(faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    t = torch.arange(800) / 800
    f = 10 + 60 * torch.rand(8, 1, generator=g)
    gain = 0.2 + torch.rand(8, 1, generator=g)
    return gain * (torch.sin(6.28 * f * t) + 0.3 * torch.randn(8, 800, generator=g)) + 0.1


def loss(output, wav):
    crossings = ((wav[:, 1:] > 0.1) != (wav[:, :-1] > 0.1)).sum(1)
    return F.cross_entropy(output, crossings.argsort().argsort())


def proof(faulty: bool) -> float:
    model, a = build(faulty).eval(), batch()
    b = a.clone()
    b[1] *= 5
    with torch.no_grad():
        return (model(a)[0] - model(b)[0]).abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
