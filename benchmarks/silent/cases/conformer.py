"""The group norm in a Conformer's convolution module counts padded frames in its statistics.

One utterance gave different outputs with different amounts of padding although attention masks and lengths were right: the norm pools over time with the
padding. The healthy twin normalises each frame over its channels; both zero the padding before the convolution.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "norm", "shows": "model",
    "source": "https://github.com/pytorch/audio/issues/4205",
    "cause": "The normalisation in the convolution module pools its mean and variance over time including padded frames, so the amount of padding changes valid frames.",
    "number": "largest change of the valid frames' output when 30 frames of padding are added",
    "healthy": (0.0, 1e-4),
    "faulty": (0.02, 1e3),
}


class FrameNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class ConvModule(nn.Module):
    def __init__(self, d, kernel, faulty):
        super().__init__()
        self.ln = nn.LayerNorm(d)
        self.pw1, self.pw2 = nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 1)
        self.dw = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d)
        self.norm = nn.GroupNorm(1, d) if faulty else FrameNorm(d)

    def forward(self, x, pad):
        y = F.glu(self.pw1(self.ln(x).transpose(1, 2)), dim=1)
        y = self.dw(y.masked_fill(pad.unsqueeze(1), 0.0))
        return x + self.pw2(F.silu(self.norm(y))).transpose(1, 2)


class ConformerLayer(nn.Module):
    def __init__(self, d, h, kernel, faulty):
        super().__init__()
        self.ff1, self.ff2 = (nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d)) for _ in range(2))
        self.ln, self.mha = nn.LayerNorm(d), nn.MultiheadAttention(d, h, batch_first=True)
        self.conv, self.out = ConvModule(d, kernel, faulty), nn.LayerNorm(d)

    def forward(self, x, pad):
        x = x + 0.5 * self.ff1(x)
        y = self.ln(x)
        x = x + self.mha(y, y, y, key_padding_mask=pad, need_weights=False)[0]
        x = self.conv(x, pad)
        return self.out(x + 0.5 * self.ff2(x))


class Conformer(nn.Module):
    def __init__(self, faulty, mels=20, d=48, h=4, depth=2, tokens=30):
        super().__init__()
        self.inp = nn.Linear(mels, d)
        self.layers = nn.ModuleList(ConformerLayer(d, h, 7, faulty) for _ in range(depth))
        self.ctc = nn.Linear(d, tokens)

    def forward(self, frames, lengths):
        pad = torch.arange(frames.shape[1], device=frames.device) >= lengths[:, None]
        x = self.inp(frames)
        for layer in self.layers:
            x = layer(x, pad)
        return self.ctc(x)


def build(faulty: bool):
    torch.manual_seed(0)
    return Conformer(faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    lengths = torch.tensor([40, 33, 28, 21, 38, 25])
    x = torch.randn(6, 40, 20, generator=g)
    return {"frames": x.masked_fill((torch.arange(40) >= lengths[:, None]).unsqueeze(-1), 0.0), "lengths": lengths}


def loss(output, b):
    targets = torch.randint(1, 30, (6, 8), generator=torch.Generator().manual_seed(2))
    logp = output.log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(logp, targets, b["lengths"], torch.full((6,), 8))


def proof(faulty: bool) -> float:
    model, b = build(faulty).eval(), batch()
    longer = F.pad(b["frames"], (0, 0, 0, 30))
    valid = torch.arange(40) < b["lengths"][:, None]
    with torch.no_grad():
        return (model(**b) - model(longer, b["lengths"])[:, :40])[valid].abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
