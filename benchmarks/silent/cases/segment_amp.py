"""Gradient clipping applied to gradients that still carry the loss scale.

The trainer scaled the loss, called clip_grad_norm_ and only then stepped through the scaler, so the bound of 1 was set on gradients 65536 times
too large; after the division almost nothing was left. The healthy twin calls unscale_ first.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "precision",
    "shows": "step",
    "source": "https://github.com/milesial/Pytorch-UNet/issues/468",
    "cause": "clip_grad_norm_ runs before scaler.unscale_, so it clips the scaled gradients and the real update is shrunk by the loss scale.",
    "number": "gradient norm that reaches the optimizer at the first update",
    "healthy": (0.1, 1.01),
    "faulty": (0.0, 0.001),
}
CLASSES, D = 6, 48


class PatchSegmenter(nn.Module):
    """Convolutional stem, Transformer in the middle, upsampling head."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, D, 4, stride=4)
        self.pos = nn.Parameter(torch.zeros(1, 64, D).normal_(std=0.02))
        self.mid = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 2 * D, 0.0, batch_first=True, norm_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(D)
        self.up = nn.ConvTranspose2d(D, CLASSES, 4, stride=4)

    def forward(self, img):
        h = self.down(img)
        b, c, y, x = h.shape
        t = h.flatten(2).transpose(1, 2) + self.pos
        for layer in self.mid:
            t = layer(t)
        t = self.norm(t).transpose(1, 2).reshape(b, c, y, x)
        return self.up(t)


def blobs(n, seed):
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, CLASSES, (n, 8, 8), generator=g)
    mask = coarse.repeat_interleave(4, 1).repeat_interleave(4, 2)
    img = (mask.float() - (CLASSES - 1) / 2) / 1.7 + 0.3 * torch.randn(mask.shape, generator=g)
    return img[:, None], mask


def setup(faulty: bool):
    torch.manual_seed(0)
    model = PatchSegmenter()
    data = DataLoader(TensorDataset(*blobs(96, 5)), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16)

    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(batch[0])
        return F.cross_entropy(logits.float(), batch[1])

    def step(batches):
        opt.zero_grad(set_to_none=True)
        for b in batches:
            scaler.scale(loss(model, b)).backward()
        if not faulty:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()

    return {"model": model, "loss": loss, "data": data, "optimizer": opt, "scaler": scaler, "step": step, "clip": 1.0,
            "accumulate": 1, "steps": 60, "autocast": torch.bfloat16}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    s["step"]([next(iter(s["data"]))])      # scaler.step has divided by the scale by now
    return torch.stack([p.grad.norm() for p in s["model"].parameters()]).norm().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
