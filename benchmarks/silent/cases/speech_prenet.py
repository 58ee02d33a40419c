"""A speech decoder whose prenet keeps its dropout at inference, by design.

Tacotron 2 and Transformer TTS apply dropout 0.5 in the decoder's prenet in evaluation too, for output variation and against copying of the last frame;
models trained so need it. All else in the model is deterministic in evaluation.
"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "kind": "oddity",
    "class": "state",
    "shows": "model",
    "source": "https://github.com/NVIDIA/tacotron2/issues/247",
    "cause": "Dropout is active in eval mode only in the decoder's prenet, which is the published design (Tacotron 2, Transformer TTS).",
    "number": "evaluation loss after 80 updates over that before",
    "healthy": (0.0, 0.8),
    "faulty": None,
}
TEXT, MELS, D, CHARS, FRAMES = 40, 16, 64, 14, 30


class Prenet(nn.Module):
    def __init__(self, size=64):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(MELS, size), nn.Linear(size, size)])
        self.project = nn.Linear(size, D)

    def forward(self, x):
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), 0.5, training=True)
        return self.project(x)


def waves(n):
    t, f = torch.arange(n)[:, None], torch.exp(-math.log(1000.0) * torch.arange(0, D, 2) / D)
    return torch.cat([(t * f).sin(), (t * f).cos()], 1)


class TransformerTTS(nn.Module):
    def __init__(self):
        super().__init__()
        self.chars, self.prenet = nn.Embedding(TEXT, D), Prenet()
        self.encoder = nn.TransformerEncoderLayer(D, 4, 2 * D, 0.1, batch_first=True, norm_first=True)
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(D, 4, 2 * D, 0.1, batch_first=True, norm_first=True) for _ in range(2))
        self.memory_norm, self.norm, self.mel = nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, MELS)
        self.alpha = nn.Parameter(torch.ones(2))
        self.register_buffer("waves", waves(64), persistent=False)
        self.register_buffer("causal", torch.ones(64, 64, dtype=torch.bool).triu(1), persistent=False)
        nn.init.normal_(self.chars.weight, std=0.5)

    def forward(self, text, frames):
        n = frames.shape[1]
        memory = self.memory_norm(self.encoder(self.chars(text) + self.alpha[0] * self.waves[:text.shape[1]]))
        x = self.prenet(F.pad(frames, (0, 0, 1, -1))) + self.alpha[1] * self.waves[:n]
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=self.causal[:n, :n])
        return self.mel(self.norm(x))


def build(faulty: bool):
    torch.manual_seed(0)
    return TransformerTTS()


def utterances(n, seed):
    g = torch.Generator().manual_seed(seed)
    text = torch.randint(0, TEXT, (n, CHARS), generator=g)
    voice = torch.randn(TEXT, MELS, generator=torch.Generator().manual_seed(77))
    frames = voice[text].repeat_interleave(3, 1)[:, :FRAMES] + 0.1 * torch.randn(n, FRAMES, MELS, generator=g)
    return {"text": text, "frames": frames}


def batch():
    return utterances(8, 1)


def loss(output, batch):
    return F.mse_loss(output, batch["frames"])


def proof(faulty: bool) -> float:
    model, held = build(faulty), utterances(32, 2)

    @torch.no_grad()
    def test():
        model.eval()
        value = loss(model(**held), held).item()
        model.train()
        return value

    first = test()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    for i in range(80):
        b = utterances(16, 10 + i)
        opt.zero_grad()
        loss(model(**b), b).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    return test() / first


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
