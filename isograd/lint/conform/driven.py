"""An implementation and the equations, driven sublayer by sublayer with given weights, inputs and branch outputs."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isograd.errors import UserError, one_line
from isograd.lint.conform.equations import Equation, equation_of
from isograd.lint.conform.setting import Make, Own, Setting
from isograd.placement import sites
from isograd.placement.streams import Hyper, Stream

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
LOOSE = 3e-2  # bfloat16, and inits that are drawn
SMALL = "small reads and writes"  # so small that a missing eps is a large share of them
Case = Callable[[dict[str, Tensor]], dict[str, Tensor]]  # weights -> weights


class Driven:
    """What an adapter makes, the weights and inputs of each case, and what comes of them.

    Attributes:
        at: what of the adapter runs, for what it may raise.
        fresh: the weights as initialized.
    """

    def __init__(self, make: Make, setting: Setting) -> None:
        self.make, self.setting = make, setting
        first = self.built()
        self.at = ""
        self.dtype: torch.dtype = getattr(first, "dtype", torch.float64)
        if not isinstance(self.dtype, torch.dtype):
            raise UserError(f"dtype = {self.dtype!r}: expected a torch.dtype, as torch.float32")
        self.device = torch.device(getattr(first, "device", "cpu"))
        self.skips: Any = getattr(first, "skips", {})
        self.tolerance = TOLERANCE.get(self.dtype, LOOSE)
        self.every = sites(setting.layers)
        draw = torch.Generator().manual_seed(0)
        shape = (2, 3, setting.width)
        self.x = torch.randn(shape, generator=draw, dtype=torch.float64)
        self.us = [torch.randn(shape, generator=draw, dtype=torch.float64) for _ in self.every]
        self.fresh = {name: value.double() for name, value in Own(setting).state_dict().items()}
        self.cases = {name: case(self.random(draw)) for name, case in cases_of(setting.stream).items()}
        self.given = {name: self.x * (1e-4 if name == SMALL else 1.0) for name in self.cases}

    @property
    def usual(self) -> dict[str, Tensor]:
        """Random weights."""
        return next(iter(self.cases.values()))

    def random(self, draw: torch.Generator) -> dict[str, Tensor]:
        return {
            name: torch.randn(value.shape, generator=draw, dtype=torch.float64) * 0.5
            for name, value in self.fresh.items()
        }

    def built(self) -> Any:
        try:
            made = self.make(self.setting)
        except Exception as error:  # a user's code raises what it likes
            raise UserError(f"the adapter cannot be made: {type(error).__name__}: {one_line(error)}") from error
        missing = [name for name in ("load", "open", "read", "write", "close") if not hasattr(made, name)]
        if missing:
            raise UserError(f"{type(made).__name__} has no {', '.join(missing)}: an adapter has all five")
        for module in modules_of(made):
            module.eval()
        return made

    def equation(self, weights: Mapping[str, Tensor], *mistakes: str) -> Equation:
        kind = equation_of(self.setting.stream)
        assert kind is not None
        return kind(self.setting.placement, self.every, weights, self.setting.eps, mistakes)

    def loaded(self, weights: Mapping[str, Tensor]) -> Any:
        made = self.built()
        self.at = "load"
        made.load({name: value.to(self.device, self.dtype) for name, value in weights.items()})
        return made

    def outputs(self, subject: Any, x: Tensor | None = None, us: list[Tensor] | None = None) -> list[Tensor]:
        """What each branch reads, and what the stream closes with."""
        x, us = self.x if x is None else x, self.us if us is None else us
        self.at = "open"
        state, found = subject.open(self.placed(subject, x)), []
        for k, u in enumerate(us):
            read, held = self.read(subject, state, k)
            found.append(read.clone())  # a port may write into what it has read
            self.at = f"write of branch {k}"
            state = subject.write(held, self.placed(subject, u), k)
        self.at = "close"
        return [*found, subject.close(state)]

    def read(self, subject: Any, state: Any, k: int) -> tuple[Tensor, Any]:
        """What branch k reads, and what `write` gets."""
        self.at = f"read of branch {k}"
        out = subject.read(state, k)
        read, held = out if isinstance(out, tuple) and len(out) == 2 else (out, state)
        if not isinstance(read, Tensor):
            came = f"{len(read)} values" if isinstance(read, tuple | list) else type(read).__name__
            raise TypeError(f"{came}; expected what the branch reads, or a tuple of that and what `write` needs")
        return read, held

    def placed(self, subject: Any, given: Tensor) -> Tensor:
        """A tensor as the subject computes: the equations in float64 here, an adapter a copy as it says."""
        return given if isinstance(subject, Equation) else given.to(self.device, self.dtype, copy=True)

    def place(self, k: int) -> str:
        return "what the stream closes with" if k == len(self.every) else f"what branch {k} reads"


def difference_of(got: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest value."""
    if got.shape != expected.shape:
        raise ValueError(f"shape {tuple(got.shape)}; expected {tuple(expected.shape)}")
    scale = expected.detach().abs().max().clamp(min=1e-30)
    worst = ((got.detach().cpu().double() - expected.detach().cpu().double()).abs().max() / scale).item()
    return worst if worst == worst else float("inf")


def modules_of(made: Any) -> list[nn.Module]:
    if isinstance(made, nn.Module):
        return [made]
    found: list[nn.Module] = []
    for value in vars(made).values():
        several = value if isinstance(value, list | tuple) else [value]
        found += [one for one in several if isinstance(one, nn.Module)]
    return found


def cases_of(stream: Stream) -> dict[str, Case]:
    """Name -> what it makes of random weights, such that each part of a formula shows; after sharp mixes Sinkhorn has
    not converged.
    """
    found: dict[str, Case] = {"random weights": lambda w: w}
    if isinstance(stream, Hyper) and stream.maps in ("sinkhorn", "independent"):
        found[SMALL] = lambda w: _based(w, slice(0, 2 * stream.copies), -12.0, 0.1)
    if isinstance(stream, Hyper) and stream.maps == "sinkhorn":
        found["sharp mixes"] = lambda w: _sharp(w, 2 * stream.copies)
    return found


def _based(weights: dict[str, Tensor], rows: slice, base: float, factor: float) -> dict[str, Tensor]:
    """The maps of those rows near one number."""
    found = dict(weights)
    for name, value in weights.items():
        if name.endswith(".base"):
            value = value.clone()
            value[rows] = base
        found[name] = value * factor if name.endswith(".factors") else value
    return found


def _sharp(weights: dict[str, Tensor], start: int) -> dict[str, Tensor]:
    found = dict(weights)
    for name, value in weights.items():
        if name.endswith("stream.base"):
            found[name] = torch.cat([value[:start], 16 * value[start:]])
    return found
