"""`isograd.check` asked about every faulty model and every clean one: a row each."""

import inspect
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn

import isograd
from benchmarks.faults.base import BY_NAME, Base, batch, build
from benchmarks.faults.clean import Clean
from benchmarks.faults.codes import accepts
from benchmarks.faults.fault import Fault
from benchmarks.faults.in_state import healthy

TAKES_OPTIMIZER = "optimizer" in inspect.signature(isograd.check).parameters
LOUD = ("error", "warning")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model, one check."""

    fault: str  # its name; of a clean model the design's
    cause: str  # "" of a clean model
    base: str
    found: str = ""  # codes of errors and warnings that the twin has not, the first one first
    right: bool = False  # one of them names the cause
    first: bool = False  # the first of them does
    told: bool = False  # one of them does, or an info says that the change was tried and no harm was seen
    silent: bool = True  # nothing was found
    crash: str = ""
    seconds: float = 0.0

    @property
    def held_out(self) -> bool:
        return BY_NAME[self.base].held_out


def faulty(base: Base, fault: Fault, seed: int = 0) -> nn.Module:
    model = build(base, fault.edits_of(base), seed)
    if fault.change is not None:
        fault.change(base, model)
    return model


def ask(base: Base, model: nn.Module, optimizer: Any = None) -> list[Any]:
    """Errors and warnings, which a reader would act on, in the order in which they are printed; and infos of suspicions
    that were tried.
    """
    given: dict[str, Any] = {"optimizer": optimizer} if TAKES_OPTIMIZER and optimizer is not None else {}
    if base.needs_batch:
        given["batch"] = batch(base, torch.Generator().manual_seed(1), 2)["inputs"]
    return [one for one in isograd.check(model, **given) if one.severity in LOUD or one.proof]


@cache
def of_twin(base: Base, with_optimizer: bool) -> frozenset[tuple[str, str]]:
    """Codes and addresses that the model without the fault has, too."""
    twin = build(base)
    return frozenset(
        (one.code, one.address)
        for one in ask(base, twin, healthy(base, twin) if with_optimizer else None)
        if one.severity in LOUD
    )


def check_fault(base: Base, fault: Fault) -> tuple[Row, list[Any]]:
    """The row, and the findings that the twin does not have."""
    row = Row(fault=fault.name, cause=fault.cause, base=base.name)
    model = faulty(base, fault)
    optimizer = None if fault.optimizer is None else fault.optimizer(base, model)
    begun = time.process_time()
    try:
        known = of_twin(base, optimizer is not None)
        new = [one for one in ask(base, model, optimizer) if (one.code, one.address) not in known]
    except Exception as problem:  # a crash is a result
        return replace(row, crash=f"{type(problem).__name__}: {problem}"[:200]), []
    tried = {one.code for one in new}
    new = [one for one in new if one.severity in LOUD]
    codes = list(dict.fromkeys(one.code for one in new))
    named = accepts(fault.cause)
    return replace(
        row,
        told=any(code in named for code in tried),
        found=" ".join(codes),
        right=any(code in named for code in codes),
        first=bool(codes) and codes[0] in named,
        silent=not codes,
        seconds=round(time.process_time() - begun, 3),
    ), new


def check_clean(clean: Clean) -> tuple[Row, list[Any]]:
    base = BY_NAME[clean.base]
    row = Row(fault=clean.name, cause="", base=base.name)
    model = clean.build()
    begun = time.process_time()
    try:
        given: dict[str, Any] = {}
        if base.needs_batch:
            given["batch"] = batch(base, torch.Generator().manual_seed(1), 2)["inputs"]
        found = [one for one in isograd.check(model, **given) if one.severity in LOUD]
    except Exception as problem:
        return replace(row, crash=f"{type(problem).__name__}: {problem}"[:200]), []
    codes = list(dict.fromkeys(one.code for one in found))
    return replace(row, found=" ".join(codes), silent=not codes, seconds=round(time.process_time() - begun, 3)), found
