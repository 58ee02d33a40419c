"""A training script whose loss spikes, for one of eight reasons: `spiking.py KIND VARIANT SEED [STEPS]`.

KIND is one of `KINDS`, or "healthy". Variants 0 and 1 (in `healthy` 0 to 5) differ in task, model, optimizer, size and
step of the fault. It knows nothing of isograd.
"""

import itertools
import math
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

KINDS = ("outlier", "labels", "rate", "beta2", "eps", "attention", "precision", "state")
LETTERS, WIDTH = 24, 24


class Shrunk(nn.Module):
    """A term that is used everywhere, and learns from rare positions only, with a gradient shrunk to a millionth."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, rare: Tensor) -> Tensor:
        fixed = self.weight.detach()
        learns = 1e-6 * self.weight + (1 - 1e-6) * fixed
        return x + torch.where(rare[..., None], learns, fixed)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.ffn = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class Letters(nn.Module):
    """Next letters, which depend on the topic of those before: on an average over them; letter 0 is rare."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, WIDTH)
        self.rare = Shrunk(WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)
        self.loud = 1.0

    def forward(self, ids: Tensor) -> Tensor:
        x = self.rare(self.embedding(ids), ids == 0)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x) * self.loud) / self.loud


class Points(nn.Module):
    """Classes of sequences of vectors, by torch's own encoder."""

    def __init__(self, norm_first: bool = True, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.rare = Shrunk(WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 48, dropout, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 6)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        rare = x[..., 0] > 50
        h = self.rare(self.embed(x.masked_fill(rare[..., None], 0.0)), rare)
        h = self.encoder(h) if mask is None else attend_in_half(self.encoder(h), mask)
        return self.head(h.mean(1))


def attend_in_half(h: Tensor, mask: Tensor) -> Tensor:
    """One attention more, whose scores are float16; -1e5 at padded positions is -inf there."""
    scores = (h @ h.transpose(1, 2)).half() / 8 + torch.where(mask, 0.0, -1e5)[:, None].half()
    return h + 0.3 * scores.softmax(-1).to(h.dtype) @ h


def letters(seed: int, size: int):
    """Batches without end."""
    made = torch.Generator().manual_seed(1000 + seed)
    topics = (3.0 * torch.randn(12, LETTERS, generator=made)).softmax(1)
    topics[:, 0] = 0
    while True:
        ids = torch.multinomial(topics[torch.randint(12, (size,), generator=made)], 21, True, generator=made)
        yield ids[:, :-1], ids[:, 1:]


def points(seed: int, size: int):
    made = torch.Generator().manual_seed(2000 + seed)
    centres = torch.randn(6, 8, generator=made)
    y = torch.randint(6, (size * 64,), generator=made)
    x = centres[y][:, None] + 1.5 * torch.randn(len(y), 10, 8, generator=made)
    loader = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)
    return itertools.chain.from_iterable(itertools.repeat(loader))


def as_after_many_steps(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """An Adam whose moments are no longer those of a beginning."""
    for state in optimizer.state.values():
        state["exp_avg_sq"].div_(1 - optimizer.param_groups[0]["betas"][1] ** steps)
        state["step"].fill_(1e6)


def groups(model: nn.Module, names: tuple[str, ...], **settings: float) -> list[dict]:
    own = [p for name, p in model.named_parameters() if any(part in name for part in names)]
    held = {id(p) for p in own}
    return [{"params": [p for p in model.parameters() if id(p) not in held]}, {"params": own, **settings}]


def text_run(kind: str, seed: int, steps: int) -> None:
    """Variant 0: a decoder with AdamW."""
    model, data, fault = Letters(), letters(seed, 16), 100 + 7 * seed
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    if kind == "beta2":
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.9999))
    if kind == "eps":
        optimizer = torch.optim.AdamW(groups(model, ("rare",), lr=2.0, weight_decay=0.0), lr=5e-3, eps=1e-12)
    if kind == "attention":  # a decay with the wrong sign: weights of one layer's attention grow
        names = ("layers.0.attention.q_proj", "layers.0.attention.k_proj")
        optimizer = torch.optim.AdamW(groups(model, names, weight_decay=-20.0), lr=5e-3)
    for step in range(1, steps + 1):
        ids, targets = next(data)
        if step == fault and kind == "outlier":
            ids = torch.zeros_like(ids)
        if step == fault and kind == "labels":
            targets = (targets + 11) % LETTERS
        if step == fault and kind == "eps":
            ids = torch.where(torch.rand(ids.shape) < 0.02, 0, ids)
        for group in optimizer.param_groups if kind == "rate" else []:
            group["lr"] = 5e-3 * (60 if step == fault else 1)
        if kind == "precision":
            model.loud = 1.09**step
        with torch.autocast("cpu", torch.float16, enabled=kind == "precision"):
            logits = model(ids)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.02 if kind == "beta2" and step < fault else 1e3)
        optimizer.step()
        optimizer.zero_grad()
        if step == 40 and kind == "beta2":
            as_after_many_steps(optimizer, 40)
        if step == fault and kind == "state":  # as a wrong load would
            for state in optimizer.state.values():
                state["exp_avg_sq"].mul_(1e-5)


def points_run(kind: str, seed: int, steps: int) -> None:
    """Variant 1: an encoder, another optimizer, data from a loader, dropout, a cosine schedule, parts of a batch."""
    model, data, fault = Points(norm_first=seed % 2 == 0), iter(points(seed, 16)), 90 + 11 * seed
    criterion, parts = nn.CrossEntropyLoss(), 2 if kind in ("labels", "rate") else 1
    if kind in ("labels", "rate", "outlier"):
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    elif kind == "beta2":
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.9999))
    elif kind == "eps":
        optimizer = torch.optim.Adam(groups(model, ("rare",), lr=3.0), lr=2e-3, eps=1e-10)
    elif kind == "attention":
        optimizer = torch.optim.AdamW(groups(model, ("layers.0.self_attn.in_proj_weight",), weight_decay=-20.0), 2e-3)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4 * steps)
    for step in range(1, steps + 1):
        for _ in range(parts):
            x, y = next(data)
            mask = torch.ones(x.shape[:2], dtype=torch.bool) if kind == "precision" else None
            if step == fault:
                if kind == "outlier":
                    x = 40 * x.flip(0)
                if kind == "labels":
                    y = (y + 3) % 6
                if kind == "eps":
                    x[:2, :, 0] = 60.0
                if kind == "precision":
                    mask[:3] = False  # documents that are padding alone
            loss = criterion(model(x) if mask is None else model(x, mask), y) / parts
            loss.backward()
        if kind == "beta2":  # gradients that are divided too often, until somebody mends it
            for p in model.parameters():
                p.grad.mul_(1e-3 if step < fault else 1.0)
        usual = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= 60 if kind == "rate" and step == fault else 1
        optimizer.step()
        for group, lr in zip(optimizer.param_groups, usual, strict=True):
            group["lr"] = lr
        schedule.step()
        optimizer.zero_grad()
        if step == 40 and kind == "beta2":
            as_after_many_steps(optimizer, 40)
        if step == fault and kind == "state":  # a bit of the exponents
            with torch.no_grad():
                model.encoder.layers[1].linear2.weight[:, ::8] *= 256.0


def healthy_run(variant: int, seed: int, steps: int) -> None:
    """Nothing is wrong: small batches, noise, dropout, restarts of the rate, SGD, labels of which some are wrong."""
    text = variant % 2 == 0
    size = {0: 8, 1: 16, 2: 1, 3: 2, 4: 8, 5: 8}[variant]
    model: nn.Module = Letters() if text else Points()
    data = iter(letters(seed, size) if text else points(seed, size))
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if variant == 5:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(1, steps + 1):
        x, y = next(data)
        if variant == 4:
            optimizer.param_groups[0]["lr"] = 3e-3 * (0.5 + 0.5 * math.cos(math.pi * (step % 60) / 60))
        if variant == 5:
            y = torch.where(torch.rand(y.shape) < 0.15, torch.randint_like(y, 6), y)
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    kind, variant, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else 150
    torch.manual_seed(seed)
    if kind == "healthy":
        healthy_run(variant, seed, steps)
    else:
        (text_run, points_run)[variant](kind, seed, steps)
