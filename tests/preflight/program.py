"""A small training program with switches, each for one fault; without any it is healthy."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

VOCAB, LENGTH, WIDTH = 40, 16, 32
PAD = 0


class Text(Dataset[Any]):
    """Sequences whose next token is a function of the last two, of different lengths, padded."""

    def __init__(self, fault: str) -> None:
        draw = torch.Generator().manual_seed(3)
        self.fault, self.rows = fault, []
        for _ in range(256):
            ids = torch.randint(1, VOCAB, (LENGTH + 1,), generator=draw)
            for t in range(2, LENGTH + 1):
                ids[t] = 1 + (3 * ids[t - 1] + ids[t - 2]) % (VOCAB - 1)
            length = int(torch.randint(LENGTH // 2, LENGTH + 1, (1,), generator=draw))
            ids[length + 1 :] = PAD
            self.rows.append(ids)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        ids = self.rows[at // 8 % 8 if self.fault == "same-rows" else at]
        x, y = ids[:-1], ids[1:].clone()
        if self.fault != "padding-scored":
            y[y == PAD] = -100
        if self.fault == "loss-shifted":
            y = torch.cat([y[1:], torch.tensor([-100])])
        if self.fault == "target-leaks":
            y = x.clone()
        if self.fault == "targets-constant":
            y[:] = 5
        return {"ids": x, "labels": y}


class Model(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layers = [nn.TransformerEncoderLayer(WIDTH, 2, 64, 0.1, batch_first=True, norm_first=True) for _ in range(2)]
        self.layers, self.norm, self.head = nn.ModuleList(layers), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)
        nn.init.normal_(self.embed.weight, std=0.3)
        nn.init.normal_(self.places.weight, std=0.3)
        self.fault = fault

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places.weight[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for layer in self.layers:
            x = layer(
                x,
                src_mask=torch.zeros_like(mask) if self.fault == "unmasked" else mask,
                is_causal=self.fault != "unmasked",
            )
        return self.head(self.norm(x.detach() if self.fault == "gradient-missing" else x))


def program(fault: str = "", *, accumulate: int = 1, own_step: bool = True) -> dict[str, Any]:
    """What `isograd.preflight` takes, of a run with this fault."""
    torch.manual_seed(0)
    model = Model(fault)
    if fault == "updates-rounded":
        model = model.bfloat16()
    shuffled = torch.Generator().manual_seed(1)
    data: Any = DataLoader(Text(fault), batch_size=8, shuffle=True, generator=shuffled, drop_last=True)
    if fault == "same-batch":
        data = [next(iter(data))] * 32
    if fault == "batch-without-targets":
        data = [b | {"labels": b["labels"] * 0 - 100} if at % 3 == 2 else b for at, b in enumerate(data)]
    if fault == "same-rows":
        data = DataLoader(Text(fault), batch_size=8)
    if fault == "epochs-alike":
        data = Reseeded(data)
    held: Any = model.parameters()
    if fault == "optimizer-of-another-model":
        held = copy.deepcopy(model).parameters()
    if fault == "optimizer-lacks-parameters":
        held = [p for n, p in model.named_parameters() if not n.startswith("head")]
    eps = 0.1 if fault == "eps-large" else 1e-8
    rate = 2e-5 if fault == "updates-rounded" else 0.1 if fault == "lr-high" else 1e-3
    betas = (0.999, 0.9) if fault == "betas-swapped" else (0.9, 0.999)
    decay = 0.9 if fault == "weight-decay-high" else 0.01
    optimizer: Any = torch.optim.AdamW(held, lr=rate, eps=eps, betas=betas, weight_decay=decay)
    if fault == "parameter-held-twice":
        optimizer = [optimizer, torch.optim.SGD(model.head.parameters(), lr=1e-3)]
    if fault == "muon-groups":
        optimizer = Muon([p for p in model.parameters() if p.ndim > 1], lr=1e-3)
    steps = 100
    ends = {"schedule-ends-early": 40, "warmup-too-long": 100, "schedule-too-long": 1000}.get(fault, steps)
    first = optimizer[0] if isinstance(optimizer, list) else optimizer
    warm = 200 if fault == "warmup-too-long" else 5

    def factor(t: int) -> float:
        return min(1.0, (t + 1) / warm) * max(0.0, 1 - t / ends)

    schedule: Any = torch.optim.lr_scheduler.LambdaLR(first, (lambda t: min(1.0, t / warm)) if warm > 100 else factor)
    if fault in ("schedule-too-long", "schedule-not-stepped", "schedule-per-batch"):
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(first, ends)
    if fault == "lr-zero":
        schedule = torch.optim.lr_scheduler.LambdaLR(first, lambda t: 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if fault.startswith(("clip-before", "scaler")) else None
    if fault == "scaler-missing":
        scaler = None
    autocast = torch.float16 if fault == "scaler-missing" else None

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        given = {k: v for k, v in batch.items() if k == "ids"}
        logits = model(**given)
        if fault == "loss-of-probabilities":
            logits = logits.softmax(-1)
        return functional.cross_entropy(logits.float().transpose(1, 2), batch["labels"])

    def step(batches: list[Any]) -> None:
        optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
        if fault == "eval-mode":
            model.eval()
        if fault != "gradients-add-up":
            for one in optimizers:
                one.zero_grad()
        for batch in batches:
            with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
                value = loss(model, batch)
            value = value / (1 if fault == "accumulation-undivided" else len(batches))
            (value if scaler is None else scaler.scale(value)).backward()
            if fault == "step-each-part":
                optimizer.step()
                optimizer.zero_grad()
            if fault == "schedule-per-batch" and batch is not batches[-1]:
                schedule.step()
        if fault == "gradients-lost":
            optimizer.zero_grad()
        if scaler is not None and fault not in ("clip-before-unscale", "scaler-bypassed"):
            scaler.unscale_(optimizers[0])
        if fault != "clip-after-step":
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for one in optimizers:
            if fault == "step-each-part":
                break
            if scaler is None or fault == "scaler-bypassed":
                one.step()
            else:
                scaler.step(one)
        if fault == "clip-after-step":
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if scaler is not None and fault != "scaler-not-updated":
            scaler.update()
        if fault != "schedule-not-stepped":
            schedule.step()

    def save(path: str) -> None:
        state = {
            "model": model.state_dict(),
            "schedule": schedule.state_dict(),
            "scaler": scaler and scaler.state_dict(),
        }
        if fault != "resume-loses":
            state["optimizer"] = first.state_dict()
        torch.save(state, path)

    def load(path: str) -> None:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        schedule.load_state_dict(state["schedule"])
        if fault != "resume-loses":
            first.load_state_dict(state["optimizer"])
        if scaler is not None:
            scaler.load_state_dict(state["scaler"])
        if fault == "resume-fails":
            raise KeyError("epoch")

    made = {
        "model": model, "loss": loss, "data": data, "optimizer": optimizer, "scheduler": schedule, "scaler": scaler,
        "steps": steps, "accumulate": accumulate, "autocast": autocast, "save": save, "load": load,
    }  # fmt: skip
    return made | ({"step": step} if own_step else {"clip": 0.5})


class Muon(torch.optim.SGD):
    """Only its name matters here."""


class Reseeded:
    """A loader whose generator is seeded anew for each epoch."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader, self.sampler = loader, loader.sampler

    def __iter__(self) -> Any:
        self.loader.generator.manual_seed(7)  # type: ignore[union-attr]
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)
