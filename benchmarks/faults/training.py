"""What a fault costs, and whether its remedy helps: the same few steps with it, without it, and corrected."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from re import IGNORECASE, search, sub
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.faults.base import BY_NAME, Base, batch, build, evaluate, loss_of
from benchmarks.faults.causes import CAUSES
from benchmarks.faults.checking import check_fault, faulty
from benchmarks.faults.codes import accepts
from benchmarks.faults.fault import Fault
from benchmarks.faults.in_state import adam, healthy

ROWS, SEEDS = 8, (0, 1, 2)
WORSE = 0.05  # nats


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


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a fault costs at equal steps: means over the seeds, nats per prediction on other text."""

    fault: str
    base: str
    clean: float = math.nan
    wrong: float = math.nan
    worse: bool = False  # by more than `WORSE`, and each of its seeds above the twins' mean

    @property
    def held_out(self) -> bool:
        return BY_NAME[self.base].held_out


def cost(base: Base, fault: Fault) -> Cost:
    clean, wrong = clean_losses(base.name), fault_losses(base, fault)
    found = Cost(fault=fault.name, base=base.name, clean=round(mean(clean), 4), wrong=round(mean(wrong), 4))
    return replace(found, worse=found.wrong > found.clean + WORSE and min(wrong) > found.clean)


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """What came of doing as the findings say."""

    fault: str
    base: str
    acted: bool = False  # a finding names the cause, and its text the change
    loss: float = math.nan  # mean over the seeds, after the change
    trains: bool = False  # again: of what the fault costs at most a fifth is left, or `WORSE`

    @property
    def held_out(self) -> bool:
        return BY_NAME[self.base].held_out


def remedy(base: Base, fault: Fault, found: Cost) -> Remedy:
    """The change that the findings ask for, made and trained again.

    A finding whose code does not name the cause changes nothing that is wrong; nor does one whose remedy does not name
    the change. Of weights, what stands at the addresses of the findings is initialized again as the base does, from
    another seed: elsewhere nothing is. Code and optimizers are corrected where the fault stands.
    """
    row = Remedy(fault=fault.name, base=base.name)
    named = [one for one in check_fault(base, fault)[1] if one.code in accepts(fault.cause) and says(fault.cause, one)]
    if not named:
        return row
    if fault.change is None and fault.optimizer is None:
        loss = mean(clean_losses(base.name))  # the corrected source is the twin's: these are its runs
    else:
        addresses = [one.address for one in named]
        loss = mean([corrected(base, fault, addresses, seed) for seed in SEEDS])
    left = loss - found.clean
    trains = left <= max(WORSE, 0.2 * min(found.wrong - found.clean, 1.0))
    return replace(row, acted=True, loss=round(loss, 4), trains=trains)


def corrected(base: Base, fault: Fault, addresses: list[str], seed: int) -> float:
    model = faulty(base, fault, seed)
    if fault.optimizer is not None:
        return train(base, model, healthy(base, model), seed)
    again(base, model, addresses, every_layer=fault.layer is None, seed=seed + 100)
    return train(base, model, plain(base, model), seed)


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
