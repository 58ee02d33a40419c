"""Image features pass through a wrapper that detaches them, so the image encoder is never trained.

A captioner took its vision embeddings from an extractor that clones and detaches the hooked tensor; the captioning and contrastive
losses then train only what comes after. The healthy twin returns the features with their graph.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "wiring", "shows": "model",
    "source": "https://github.com/lucidrains/CoCa-pytorch/issues/6",
    "cause": "The features of the image encoder are detached, so no gradient reaches the encoder and it stays at its initial weights.",
    "number": "gradient norm of the image encoder's weights",
    "healthy": (1e-3, 1e4),
    "faulty": (0.0, 1e-8),
}


def layer(d, h):
    return nn.TransformerEncoderLayer(d, h, 2 * d, dropout=0.0, batch_first=True, norm_first=True)


class ViT(nn.Module):
    def __init__(self, d=64, h=4, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, stride=4)
        self.pos = nn.Parameter(torch.randn(16, d) * 0.1)
        self.blocks = nn.ModuleList(layer(d, h) for _ in range(depth))
        self.norm = nn.LayerNorm(d)

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.norm(x)


class Extractor(nn.Module):
    def __init__(self, vit, faulty):
        super().__init__()
        self.vit, self.variant, self.latents = vit, faulty, None
        vit.norm.register_forward_hook(self._keep)

    def _keep(self, _module, _inputs, output):
        self.latents = output.clone().detach() if self.variant else output.clone()

    def forward(self, img):
        self.vit(img)
        out, self.latents = self.latents, None
        return out


class Captioner(nn.Module):
    def __init__(self, faulty, vocab=40, d=64, h=4, length=12):
        super().__init__()
        self.image = Extractor(ViT(d, h), faulty)
        self.words = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(length, d) * 0.1)
        nn.init.normal_(self.words.weight, std=0.3)
        self.text = layer(d, h)
        self.norm = nn.LayerNorm(d)
        self.cross = nn.MultiheadAttention(d, h, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, vocab))

    def forward(self, img, words):
        n = words.shape[1]
        mask = torch.full((n, n), float("-inf"), device=words.device).triu(1)
        memory = self.image(img)
        x = self.text(self.words(words) + self.pos[:n], src_mask=mask)
        x = x + self.cross(self.norm(x), memory, memory, need_weights=False)[0]
        return self.head(x)


def build(faulty: bool):
    torch.manual_seed(0)
    return Captioner(faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    return {"img": torch.randn(8, 3, 16, 16, generator=g), "words": torch.randint(0, 40, (8, 12), generator=g)}


def loss(output, b):
    return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), b["words"][:, 1:].flatten())


def proof(faulty: bool) -> float:
    model, b = build(faulty), batch()
    loss(model(**b), b).backward()
    grads = [p.grad.norm() for p in model.image.vit.parameters() if p.grad is not None]
    return float(sum(grads)) if grads else 0.0


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
