"""Moving average of the weights stored in bfloat16: the small steps towards the model round away.

With decay 0.99 each update moves the average by a hundredth of the difference, mostly less than half a unit in the last place of bfloat16, so the copy used for
evaluation lags and stalls. The healthy twin stores the average in float32.
"""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "precision",
    "shows": "run",
    "source": "https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
    "cause": "The exponential moving average of the weights is kept in bfloat16, where its small increments round to zero, so the averaged model hardly moves.",
    "number": "distance covered by the averaged weights, relative to an exact average of the same run",
    "healthy": (0.98, 1.02),
    "faulty": (0.0, 0.85),
}
D, FRAMES, MELS, UNITS = 48, 24, 20, 12


class SpeechTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(MELS, D, 3, padding=1)
        enc = nn.TransformerEncoderLayer(D, 4, 3 * D, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(enc, 2, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, UNITS))

    def forward(self, mel):
        return self.out(self.body(F.gelu(self.front(mel.transpose(1, 2))).transpose(1, 2)))


class Average:
    def __init__(self, model, decay, dtype):
        self.decay = decay
        self.model = copy.deepcopy(model).to(dtype).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for a, p in zip(self.model.parameters(), model.parameters()):
            a.lerp_(p.to(a.dtype), 1 - self.decay)


def utterances(n, g, mix):
    unit = torch.randint(0, UNITS, (n, FRAMES // 4), generator=g).repeat_interleave(4, 1)
    return mix[unit] + 0.5 * torch.randn(n, FRAMES, MELS, generator=g), unit


def train(faulty: bool):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    mix = torch.randn(UNITS, MELS, generator=g)
    model = SpeechTagger()
    first = [p.detach().clone().double() for p in model.parameters()]
    exact = [p.clone() for p in first]
    ema = Average(model, 0.99, torch.bfloat16 if faulty else torch.float32)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for step in range(130):
        mel, unit = utterances(8, g, mix)
        value = F.cross_entropy(model(mel).flatten(0, 1), unit.flatten())
        opt.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        ema.update(model)
        for e, p in zip(exact, model.parameters()):
            e.lerp_(p.detach().double(), 1 - ema.decay)
        losses.append(value.item())
    return {"model": model, "ema": ema.model, "losses": losses, "first": first, "exact": exact}


def proof(faulty: bool) -> float:
    r = train(faulty)
    start = [f.bfloat16().double() if faulty else f for f in r["first"]]
    got = torch.cat([(a.double() - f).flatten() for a, f in zip(r["ema"].parameters(), start)])
    want = torch.cat([(e - f).flatten() for e, f in zip(r["exact"], r["first"])])
    return ((got @ want) / (want @ want)).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
