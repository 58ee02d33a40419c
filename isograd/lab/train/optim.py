"""Optimizers and learning-rate schedules by name."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isograd.errors import RecipeError
from isograd.lab.train.run import Training
from isograd.transformer.parameters import MATRICES, roles


def optimizer_of(
    training: Training, model: nn.Module | None = None
) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Class and arguments of the optimizer that a run names; weight decay comes with the parameter groups.

    "adam"            torch's Adam; weight decay is L2 in the gradient
    "adamw"           torch's AdamW; decoupled
    "sgd"             torch's SGD with momentum `betas[0]`
    "radam"           torch's RAdam: plain momentum steps while the rectification is undefined
    "radam-original"  Liu et al.'s code: no step and no decay while it is undefined (5 updates at beta_2 0.98, 0.999)
    "lamb"            You et al. 2019: p -= lr min(|p|, 10) / |u| u with u = m / (sqrt(v) + eps) + decay p, no bias
                      correction (neither has their code)
    "muon"            torch's Muon (momentum 0.95, Nesterov, five steps of Newton and Schulz) on the hidden matrices of
                      `model`, with its rate times 0.2 sqrt(max(rows, columns)), which gives an update the RMS of one
                      of AdamW's (Liu et al. 2025, arXiv 2502.16982); torch's AdamW on tables, head, norms, biases

    Raises:
        ImportError: "radam-original" and "lamb" need `pytorch_optimizer`; the message names the extra.
    """
    lr, betas, eps = training.lr, training.betas, training.eps
    adam = {"lr": lr, "betas": betas, "eps": eps}
    match training.optimizer:
        case "adam":
            return torch.optim.Adam, {**adam, "fused": True}
        case "adamw":
            return torch.optim.AdamW, {**adam, "fused": True}
        case "sgd":
            return torch.optim.SGD, {"lr": lr, "momentum": betas[0], "fused": not training.fsdp}  # no sharded kernel
        case "radam":
            return torch.optim.RAdam, {**adam, "decoupled_weight_decay": True}
        case "radam-original":
            return _kept_library("RAdam"), {**adam, "degenerated_to_sgd": False}
        case "lamb":
            return _kept_library("Lamb"), {**adam, "weight_decouple": False, "adam_debias": True}
        case "muon":
            return MuonWithAdamW, {**adam, "hidden": hidden_matrices(model) if model is not None else ()}


class MuonWithAdamW(torch.optim.Optimizer):
    """Two optimizers of torch's as one: Muon on the parameters `hidden`, AdamW on all others.

    Args:
        params: parameter groups.
        hidden: the `id` of each parameter that Muon moves; a matrix.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        hidden: Collection[int],
    ) -> None:
        groups = [{**group, "params": list(group["params"])} for group in params]
        split = [
            [{**g, "params": own} for g in groups if (own := [p for p in g["params"] if (id(p) in hidden) is mine])]
            for mine in (True, False)
        ]
        super().__init__([g for half in split for g in half], {"lr": lr, "weight_decay": 0.0})
        count = len(split[0])
        muon = [torch.optim.Muon(self.param_groups[:count], lr=lr, adjust_lr_fn="match_rms_adamw")] if count else []
        rest = self.param_groups[count:]
        adamw = [torch.optim.AdamW(rest, lr=lr, betas=betas, eps=eps, fused=True)] if rest else []
        self.parts: list[tuple[torch.optim.Optimizer, slice]] = [
            *((one, slice(0, count)) for one in muon),
            *((one, slice(count, None)) for one in adamw),
        ]
        self._share()

    def _share(self) -> None:
        """Groups and state are those of the parts: a scheduler, a checkpoint and a step see the same ones."""
        for part, of in self.parts:
            part.param_groups = self.param_groups[of]
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part, _ in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()


def hidden_matrices(model: nn.Module) -> set[int]:
    """The `id` of every matrix that is neither a table nor a head; of a foreign model, every one outside embeddings."""
    role_of, named = roles(model), dict(model.named_parameters())
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    tables |= {id(p) for p in head.parameters()} if isinstance(head, nn.Module) else set()
    hidden = MATRICES - {"embed", "head"}
    return {
        id(p) for n, p in named.items() if p.ndim == 2 and role_of.get(n, "dense") in hidden and id(p) not in tables
    }


OPTIMIZER = "optimizer.pt"  # beside a model: what its optimizer held


def keep_state(path: Path, kind: str, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """The optimizer's state by the names of the parameters."""
    held = {name: optimizer.state[p] for name, p in model.named_parameters() if p in optimizer.state}
    torch.save({"optimizer": kind, "state": held}, path)


def take_state(state: Mapping[str, Mapping[str, Any]], optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """What `keep_state` wrote, each tensor beside its parameter.

    Raises:
        RecipeError: it is of other parameters.
    """
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if state.keys() != own.keys():
        raise RecipeError(f"{OPTIMIZER} is of other parameters, such as {min(state.keys() ^ own.keys())}")
    for name, p in own.items():
        optimizer.state[p] = {
            key: value.to(p.device) if isinstance(value, torch.Tensor) and value.ndim else value
            for key, value in state[name].items()
        }


Factors = tuple[float, float, float]  # on learning rate, eps, weight decay


def apply_rates(optimizer: torch.optim.Optimizer, factors: Mapping[nn.Parameter, Factors]) -> None:
    """Split the groups of an optimizer that has not stepped by the factors of their parameters.

    Groups whose learning rate stays come first: the log shows the first one's.
    """
    muon = optimizer if isinstance(optimizer, MuonWithAdamW) else None
    parts = muon.parts if muon else [(optimizer, slice(None))]
    groups: list[dict[str, Any]] = []
    split = []
    for part, of in parts:
        pieces = [piece for group in optimizer.param_groups[of] for piece in _pieces(group, factors)]
        own = [group for _, group in sorted(pieces, key=lambda piece: piece[0] != 1.0)]
        split.append((part, slice(len(groups), len(groups) + len(own))))
        groups += own
    optimizer.param_groups[:] = groups
    if muon:
        muon.parts = split
        muon._share()


def _pieces(group: dict[str, Any], factors: Mapping[nn.Parameter, Factors]) -> list[tuple[float, dict[str, Any]]]:
    """The groups that a group falls into, each with its factor on the learning rate."""
    parts: dict[Factors, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        parts.setdefault(factors.get(parameter, (1.0, 1.0, 1.0)), []).append(parameter)
    return [
        (
            of[0],
            {**group, "params": parameters}
            | {key: group[key] * f for key, f in zip(_RATED, of, strict=True) if key in group},
        )
        for of, parameters in parts.items()
    ]


_RATED = ("lr", "eps", "weight_decay")


def _kept_library(name: str) -> Any:
    try:
        return getattr(import_module("pytorch_optimizer"), name)
    except ImportError as error:
        raise ImportError(f"{name} comes from pytorch_optimizer; pip install 'isograd[optim]'") from error


def schedule_of(training: Training, updates_per_epoch: int | None = None) -> Callable[[int], float]:
    """Factor on the peak rate at update t = 1, 2, .., W = `warmup`, T = `steps` (that its epochs give, if set).

        n = t      first="xiong": the rate *of* update t, so the first update moves (Xiong et al. 2020, section 3.1)
        n = t - 1  first="fairseq": the rate left by the update before, so a warm-up begins at `warmup_from` itself

    The warm-up, t <= W, is a + (1 - a) n / W with a = warmup_from / lr. Then, with e = decay_to / lr and
    u = (t - 1 - W) / (T - W), which is 0 in the first update after the warm-up and 1 after the last one:

        "constant"      1
        "linear"        e + (1 - e) (1 - u)
        "polynomial"    e + (1 - e) (1 - u)^power
        "cosine"        e + (1 - e) (1 + cos(pi u)) / 2
        "inverse-sqrt"  sqrt(W / n) (Vaswani et al. 2017, section 5.3); sqrt(s / (s + n)), s = 10000, without warm-up;
                        with `decay_at` D 1 before update D and sqrt(D / n) from there on (Xiong et al. 2020, WMT14)
        "step"          1, and 1/10 from update `decay_at` on (Xiong et al. 2020, IWSLT14)
        "stable"        1, and from update D = `decay_at` on (0: the last fifth of T)
                        e + (1 - e) (1 - (t - D) / (T - D + 1)); warmup-stable-decay of Hu et al. 2024, arXiv 2404.06395

    `decay_at` counts epochs 1, 2, .. where `epochs` is set.

    "fairseq" is thus fairseq's inverse_sqrt, polynomial_decay ("linear" is power 1) and one cycle of its cosine, update
    by update. "xiong" is one update ahead in the warm-up and in "inverse-sqrt" only: u counts the updates made in both,
    since the value at t would be 0 in the last update, which would then stand still.

    Args:
        updates_per_epoch: needed where `decay_at` counts epochs.

    Raises:
        RecipeError: `decay_at` falls inside the warm-up.

    >>> rate = schedule_of(Training(steps=100, warmup=4, decay="inverse-sqrt"))
    >>> [round(rate(t), 4) for t in (1, 4, 16)]
    [0.25, 1.0, 0.5]
    >>> rate = schedule_of(Training(steps=100, warmup=4, decay="inverse-sqrt", first="fairseq"))
    >>> [round(rate(t), 4) for t in (1, 5, 17)]
    [0.0, 1.0, 0.5]
    """
    warmup, total, power = training.warmup, training.steps, training.power
    begin, end = training.warmup_from / training.lr, training.decay_to / training.lr
    behind = 1 if training.first == "fairseq" else 0
    scale = warmup or 10_000
    falls = _falls_at(training, updates_per_epoch) if training.decay_at else 0
    if training.decay == "stable" and not falls:
        falls = max(warmup, total - total // 5) + 1
    decays: dict[str, Callable[[int], float]] = {
        "constant": lambda t: 1.0,
        "linear": lambda t: end + (1 - end) * left(t),
        "polynomial": lambda t: end + (1 - end) * left(t) ** power,
        "cosine": lambda t: end + (1 - end) * (1 + math.cos(math.pi * made(t) / (total - warmup))) / 2,
        "inverse-sqrt": lambda t: (
            math.sqrt(falls / max(falls, t - behind)) if falls else math.sqrt(scale / (scale + t - behind - warmup))
        ),
        "step": lambda t: 0.1 if t >= falls else 1.0,
        "stable": lambda t: end + (1 - end) * max(0.0, 1 - (t - falls) / (total - falls + 1)) if t >= falls else 1.0,
    }
    decay = decays[training.decay]

    def made(t: int) -> int:  # updates since the warm-up
        return min(t - 1, total) - warmup

    def left(t: int) -> float:
        return (total - warmup - made(t)) / (total - warmup)

    return lambda t: begin + (t - behind) * (1 - begin) / warmup if t <= warmup else decay(t)


def _falls_at(training: Training, updates_per_epoch: int | None) -> int:
    """The first update at which a decay that waits begins."""
    at = training.decay_at
    if training.epochs:
        if updates_per_epoch is None:
            raise ValueError("training.decay_at counts epochs here; pass updates_per_epoch")
        at = (at - 1) * updates_per_epoch + 1
    if at <= training.warmup:
        raise RecipeError(
            f"training.decay_at={training.decay_at} (update {at}) falls inside training.warmup={training.warmup}"
        )
    return at
