"""What a fault costs, and whether its remedy helps: the same few steps with it, without it, and corrected."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from re import IGNORECASE, search, sub
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.faults.base import BY_NAME, Base, batch, build, evaluate, loss_of
from benchmarks.faults.causes import CAUSES
from benchmarks.faults.checking import faulty
from benchmarks.faults.codes import accepts
from benchmarks.faults.fault import Fault
from benchmarks.faults.in_state import adam, healthy

ROWS, SEEDS = 8, (0, 1, 2)
WORSE = 0.05  # nats
OPTIMIZER_CAUSES = ("optimizer-missing", "optimizer-other", "rate-zero", "rate-high", "norms-decayed")


def train(base: Base, model: nn.Module, optimizer: Optimizer, seed: int) -> float:
    """Nats per prediction on other data after the base's steps; infinite where the loop fails or ends in no number."""
    generator = torch.Generator().manual_seed(seed)
    model.train()
    try:
        for step in range(base.steps):
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("whole", group["lr"]) * min(1.0, (step + 1) / 10)
            optimizer.zero_grad()
            loss = loss_of(model, batch(base, generator, ROWS))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        found = evaluate(base, model)
    except (RuntimeError, ValueError, IndexError):
        return math.inf
    return found if math.isfinite(found) else math.inf


def plain(base: Base, model: nn.Module) -> Optimizer:
    return adam([p for p in model.parameters() if p.requires_grad], base)


@cache
def clean_losses(name: str) -> tuple[float, ...]:
    base = BY_NAME[name]
    losses = []
    for seed in SEEDS:
        model = build(base, seed=seed)
        losses.append(train(base, model, plain(base, model), seed))
    return tuple(losses)


def fault_losses(base: Base, fault: Fault, seeds: Iterable[int] = SEEDS) -> tuple[float, ...]:
    losses = []
    for seed in seeds:
        model = faulty(base, fault, seed)
        losses.append(train(base, model, (fault.optimizer or plain)(base, model), seed))
    return tuple(losses)


def mean(losses: Iterable[float]) -> float:
    values = list(losses)
    return sum(values) / len(values)


def worse(losses: tuple[float, ...], clean: tuple[float, ...]) -> bool:
    """By more than `WORSE`, and each of its seeds above the twins' mean."""
    return mean(losses) > mean(clean) + WORSE and min(losses) > mean(clean)


def trains_again(losses: tuple[float, ...], wrong: tuple[float, ...], clean: tuple[float, ...]) -> bool:
    """Of what the fault costs, at most a fifth is left (or `WORSE`)."""
    cost = mean(wrong) - mean(clean)
    return mean(losses) <= mean(clean) + max(WORSE, 0.2 * min(cost, 1.0))


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """What is done to a model because of its findings."""

    acted: bool  # a finding names the cause, and its text the change
    model: nn.Module
    optimizer: Optimizer


def remedied(base: Base, fault: Fault, findings: list[Any], seed: int) -> Remedy:
    """The change that the findings ask for, made without knowing the fault but for the lines that it stands in.

    A finding whose code does not name the cause changes nothing that is wrong; nor does one whose remedy does not name
    the change. Of weights, what stands at the addresses of the findings is initialized again as the base does, from
    another seed: elsewhere nothing is. Code is corrected in the lines of the fault.
    """
    named = [one for one in findings if one.code in accepts(fault.cause) and says(fault.cause, one)]
    model = faulty(base, fault, seed)
    if not named:
        return Remedy(acted=False, model=model, optimizer=(fault.optimizer or plain)(base, model))
    if fault.optimizer is not None:
        return Remedy(acted=True, model=model, optimizer=healthy(base, model))
    if fault.change is None:
        model = build(base, seed=seed)
    else:
        again(base, model, [one.address for one in named], every_layer=fault.layer is None, seed=seed + 100)
    return Remedy(acted=True, model=model, optimizer=plain(base, model))


def says(cause: str, finding: Any) -> bool:
    return search(CAUSES[cause].remedy, f"{finding.remedy}", IGNORECASE) is not None


def again(base: Base, model: nn.Module, addresses: list[str], every_layer: bool, seed: int) -> None:
    """Parameters and modules at the addresses as the base begins with them. A layer's number stands for all layers
    where the finding is about all of them.
    """
    fresh = build(base, seed=seed)
    patterns = [sub(r"\.\d+(?=\.|$)", ".*", one) if every_layer else one for one in addresses]

    def meant(name: str) -> bool:
        return any(fnmatch(name, p) or fnmatch(name, f"{p}.*") or name.startswith(f"{p}.") for p in patterns)

    with torch.no_grad():
        twins = dict(fresh.named_parameters())
        for name, p in model.named_parameters():
            if meant(name):
                p.copy_(twins[name])
                p.requires_grad_(True)
    for name, module in model.named_modules():
        for attribute in ("eps", "variance_epsilon"):
            if meant(name) and isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, getattr(fresh.get_submodule(name), attribute))
