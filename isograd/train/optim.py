"""Optimizers and learning-rate schedules by name."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from isograd.train.run import Training


def optimizer_of(training: Training) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Class and arguments of the optimizer that a run names; weight decay comes with the parameter groups.

    "adam"            torch's Adam; weight decay is L2 in the gradient
    "adamw"           torch's AdamW; decoupled
    "sgd"             torch's SGD with momentum `betas[0]`
    "radam"           torch's RAdam: plain momentum steps while the rectification is undefined
    "radam-original"  Liu et al.'s code: no step and no decay while it is undefined (5 updates at beta_2 0.98, 0.999)
    "lamb"            You et al. 2019: p -= lr min(|p|, 10) / |u| u with u = m / (sqrt(v) + eps) + decay p, no bias
                      correction (neither has their code)

    Raises:
        ImportError: the last two need `pytorch_optimizer`; the message names the extra.
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


def _kept_library(name: str) -> Any:
    try:
        return getattr(import_module("pytorch_optimizer"), name)
    except ImportError as error:
        raise ImportError(f"{name} comes from pytorch_optimizer; pip install 'isograd[optim]'") from error


def schedule_of(training: Training) -> Callable[[int], float]:
    """Factor on the peak rate at update t = 1, 2, .. `steps`, with W the warm-up.

    t <= W: t / W (Xiong et al. 2020, section 3.1: the rate *of* update t, so the first update moves). Afterwards
    "constant" 1, "linear" (T + 1 - t) / (T - W), "cosine" (1 + cos(pi (t - 1 - W) / (T - W))) / 2, "inverse-sqrt"
    sqrt(s / (s + t - W)) with s = W, or s = 10000 without warm-up.

    >>> rate = schedule_of(Training(steps=100, warmup=4, decay="inverse-sqrt"))
    >>> [round(rate(t), 4) for t in (1, 4, 16)]
    [0.25, 1.0, 0.5]
    """
    warmup, total = training.warmup, training.steps
    scale = warmup or 10_000
    decays: dict[str, Callable[[int], float]] = {
        "constant": lambda t: 1.0,
        "linear": lambda t: (total + 1 - t) / (total - warmup),
        "cosine": lambda t: (1 + math.cos(math.pi * (t - 1 - warmup) / (total - warmup))) / 2,
        "inverse-sqrt": lambda t: math.sqrt(scale / (scale + t - warmup)),
    }
    decay = decays[training.decay]
    return lambda t: t / warmup if t <= warmup else max(0.0, decay(t))
