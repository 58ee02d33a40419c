"""`isograd.conform(adapter, "mhc")`: does an implementation compute what the paper says?

An adapter is driven sublayer by sublayer with given weights, inputs and branch outputs, and what it reads is compared
with the equations in float64. Weights are such that each part of the formula shows: random ones, reads so small that
a missing eps is a large share of them, mixes so sharp that Sinkhorn has not converged.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from isograd.errors import UserError, one_line
from isograd.lint.conform.equations import Equation, equation_of
from isograd.lint.conform.mistakes import Mistake, possible
from isograd.placement import CATALOGUE, Coupled, Placement, get, sites
from isograd.placement.streams import FirstValues, Hyper, Stream
from isograd.residual import Residuals, wiring

Case = Callable[[dict[str, Tensor]], dict[str, Tensor]]  # weights -> weights
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
SMALL = "small reads and writes"
PARTS = {"reads": slice(0, 1), "writes and mixes": slice(1, -1), "close": slice(-1, None)}  # of the outputs
LOOSE = 3e-2  # bfloat16, and inits that are drawn


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What an implementation is built for.

    Attributes:
        placement: the design; its norms before branches, first and final ones left out: they are the branches' own.
        width, layers: each layer has an attention and a feed-forward.
        eps: of norms.
    """

    placement: Placement
    width: int = 8
    layers: int = 3
    eps: float = 1e-6

    @property
    def stream(self) -> Any:
        """Its constants: `copies`, `iterations`, `eps`, `rank`, ... (`isograd.placement.streams`)."""
        return self.placement.stream

    @property
    def sublayers(self) -> int:
        return 2 * self.layers


class Adapter(Protocol):
    """An implementation as the suite drives it. `isograd.conform` takes what makes one of a `Setting`, as a class does.

    `read` may return what the branch reads alone; `write` then gets the state. An adapter may have `dtype` (what it
    computes in; float64 unless said, and 1e-9 is asked for; 1e-5 in float32, 3e-2 below), `device` (where it
    computes), and `skips` (check -> why it is not made).
    """

    def load(self, weights: Mapping[str, Tensor]) -> None: ...
    def open(self, x: Tensor) -> Any: ...
    def read(self, state: Any, k: int) -> Any: ...
    def write(self, held: Any, u: Tensor, k: int) -> Any: ...
    def close(self, state: Any) -> Tensor: ...


Make = Callable[[Setting], Any]


class Own(Residuals):
    """isograd's own part as an adapter."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting.placement, setting.width, layers=setting.layers, eps=setting.eps)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        self.double().load_state_dict(dict(weights))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One check."""

    check: str
    status: Literal["passed", "failed", "skipped"]
    difference: float | None = None
    tolerance: float | None = None
    found: str = ""


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """The verdict: true where nothing failed. `str()` has a line for each check and for each mistake recognized."""

    placement: str
    adapter: str
    rows: tuple[Row, ...]
    mistakes: tuple[Mistake, ...] = ()
    remedies: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return all(row.status != "failed" for row in self.rows)

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        said = [f"{self.placement}: {self.adapter}"]
        for row in self.rows:
            number = "" if row.difference is None else f" {row.difference:.1e} (at most {row.tolerance:.0e})"
            said.append(f"  {row.status} {row.check}{number}{': ' if row.found else ''}{row.found}")
        return "\n".join([*said, *self.lines()])

    def lines(self) -> list[str]:
        """What is wrong and what to do, a line each."""
        return [f"{one.name}: {one.found} -> {one.remedy}" for one in self.mistakes] + list(self.remedies)

    def as_dict(self) -> dict[str, Any]:
        return {
            "placement": self.placement,
            "adapter": self.adapter,
            "passed": self.passed,
            "checks": [vars(row) for row in self.rows],
            "mistakes": [{"name": one.name, "found": one.found, "remedy": one.remedy} for one in self.mistakes],
            "remedies": list(self.remedies),
        }


def designs() -> tuple[str, ...]:
    """Names of the catalogue whose residual has equations here."""
    return tuple(name for name, placement in CATALOGUE.items() if equation_of(placement.stream))


def weights_of(name: str, *, width: int = 8, layers: int = 3) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight that an adapter's `load` gets."""
    setting = Setting(placement=_design(name), width=width, layers=layers)
    return {key: tuple(value.shape) for key, value in Own(setting).state_dict().items()}


def kind_of(name: str) -> str:
    """A weight's name without its sublayer: stream.maps of parts.3.stream.maps."""
    return re.sub(r"^parts\.\d+\.", "", name)


def meanings(placement: Placement) -> dict[str, str]:
    """What each weight of a design is, by its name without the sublayer's: `stream.maps`, `ends.projection`."""
    kind = equation_of(placement.stream)
    every = reversed(kind.__mro__) if kind else ()
    return {name: text for of in every for name, text in vars(of).get("means", {}).items()}


def conform(adapter: Make, name: str) -> Conformance:
    """Compare an implementation with a placement's equations.

    Args:
        adapter: a class or function that takes a `Setting` and gives an adapter; see `Adapter`.
        name: an entry of the catalogue.

    Raises:
        UserError: no such entry, an entry without equations, or an adapter that cannot be made or lacks a method.
    """
    if not callable(adapter) or isinstance(adapter, nn.Module):
        raise UserError(
            f"{type(adapter).__name__}: an object; pass the class, or a function of a Setting: checks build their own"
        )
    setting = Setting(placement=_design(name))
    called = getattr(adapter, "__name__", type(adapter).__name__)
    return _Suite(adapter, setting).verdict(name, called)


def _design(name: str) -> Placement:
    placement = get(name)
    if equation_of(placement.stream) is None:
        where = (
            "its work is inside the attention"
            if isinstance(placement.stream, FirstValues)
            else ("write them as a class in isograd/lint/conform/equations.py")
        )
        raise UserError(f"{name}: no equations of {type(placement.stream).__name__}: {where}")
    return wiring(placement)


class _Suite:
    """The checks of one implementation."""

    def __init__(self, make: Make, setting: Setting) -> None:
        self.make, self.setting = make, setting
        first = self.built()
        self.at = ""  # what of the adapter runs, for what it may raise
        self.dtype: torch.dtype = getattr(first, "dtype", torch.float64)
        if not isinstance(self.dtype, torch.dtype):
            raise UserError(f"dtype = {self.dtype!r}: expected a torch.dtype, as torch.float32")
        self.device = torch.device(getattr(first, "device", "cpu"))
        self.skips = _skips(getattr(first, "skips", {}), self.checks())
        self.tolerance = TOLERANCE.get(self.dtype, LOOSE)
        self.every = sites(setting.layers)
        draw = torch.Generator().manual_seed(0)
        shape = (2, 3, setting.width)
        self.x = torch.randn(shape, generator=draw, dtype=torch.float64)
        self.us = [torch.randn(shape, generator=draw, dtype=torch.float64) for _ in self.every]
        self.fresh = {name: value.double() for name, value in Own(setting).state_dict().items()}
        self.cases = {name: case(self.random(draw)) for name, case in cases_of(setting.stream).items()}
        self.given = {name: self.x * (1e-4 if name == SMALL else 1.0) for name in self.cases}

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
        for module in _modules(made):
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

    def verdict(self, name: str, called: str) -> Conformance:
        rows = [*self.rows()]
        wrong = any(row.status == "failed" for row in rows[:3])
        compared = all(row.difference is not None for row in rows[:3] if row.status == "failed")
        mistakes = self.recognized() if wrong and compared else ()
        remedies = [] if mistakes or not wrong else [self.unknown(rows), *(self.narrowed() if compared else ())]
        return Conformance(
            placement=name, adapter=called, rows=tuple(rows), mistakes=mistakes, remedies=tuple(remedies)
        )

    def checks(self) -> tuple[str, ...]:
        return (*PARTS, "gradients", *invariants_of(self.setting), "init", "meta device")

    def rows(self) -> Iterator[Row]:
        for check, part in PARTS.items():
            yield self.row(check, self.tolerance, partial(self.compared, part))
        yield self.row("gradients", 10 * self.tolerance, self.gradients)
        for check, statement in invariants_of(self.setting).items():
            yield self.row(check, 2e-3, partial(self.stated, statement))
        yield self.row("init", LOOSE, self.init)
        yield self.row("meta device", self.tolerance, self.meta)

    def row(self, check: str, tolerance: float, measure: Callable[[], tuple[float, str]]) -> Row:
        if check in self.skips:
            return Row(check=check, status="skipped", found=self.skips[check])
        try:
            difference, found = measure()
        except _Skip as skip:
            return Row(check=check, status="skipped", found=str(skip))
        except Exception as error:  # a user's code raises what it likes
            found = f"{type(error).__name__}: {one_line(error)}"
            return Row(check=check, status="failed", found=f"{self.at} raised {found}" if self.at else found)
        if difference <= tolerance:
            return Row(check=check, status="passed", difference=difference, tolerance=tolerance)
        return Row(check=check, status="failed", difference=difference, tolerance=tolerance, found=found)

    def compared(self, part: slice) -> tuple[float, str]:
        """The largest relative difference of these outputs over all cases, and where there is one first."""
        found: list[tuple[int, str, float]] = []
        for case, weights in self.cases.items():
            x = self.given[case]
            got, expected = self.outputs(self.loaded(weights), x), self.outputs(self.equation(weights), x)
            pairs = [*enumerate(zip(got, expected, strict=True))][part]
            found += [(k, f"{self.place(k)} ({case})", _difference(a, b)) for k, (a, b) in pairs]
        ordered = sorted(found, key=lambda one: one[0])
        first = next((place for _, place, difference in ordered if difference > self.tolerance), "")
        one = len(found) == len(self.cases)
        return max(difference for *_, difference in found), f"in {first}" if one else f"first in {first}"

    def stated(self, statement: "Callable[[_Suite], float]") -> tuple[float, str]:
        return statement(self), ""

    def place(self, k: int) -> str:
        return "what the stream closes with" if k == len(self.every) else f"what branch {k} reads"

    def gradients(self) -> tuple[float, str]:
        """Of a fixed linear form of all outputs, with respect to x and to each branch's output."""
        weights = next(iter(self.cases.values()))
        given = [self.x, *self.us]
        names = ["x", *(f"the output of branch {k}" for k in range(len(self.us)))]
        pairs = zip(
            self.gradient(self.loaded(weights), given), self.gradient(self.equation(weights), given), strict=True
        )
        worst = max((_difference(a, b), f"with respect to {name}") for name, (a, b) in zip(names, pairs, strict=True))
        return worst

    def gradient(self, subject: Any, given: list[Tensor]) -> list[Tensor]:
        x, *us = (self.placed(subject, t).clone().requires_grad_() for t in given)
        draw = torch.Generator().manual_seed(1)
        outputs = self.outputs(subject, x, us)
        self.at = "backward"
        weights = [torch.randn(out.shape, generator=draw, dtype=torch.float64).to(out) for out in outputs]
        return [*torch.autograd.grad(outputs, [x, *us], weights, allow_unused=True, materialize_grads=True)]

    def init(self) -> tuple[float, str]:
        made = self.built()
        if isinstance(made, nn.Module):
            made.to(self.device, self.dtype)
        got, expected = self.outputs(made), self.outputs(self.equation(self.fresh))
        pairs = enumerate(zip(got, expected, strict=True))
        worst = max((_difference(a, b), f"in {self.place(k)} as initialized") for k, (a, b) in pairs)
        return max(worst, *self.unequal(made))

    def unequal(self, made: Any) -> Iterator[tuple[float, str]]:
        """Of a state (batch, time, n, width): reads of copies that differ, and what is left of them, as initialized.

        Copies are equal until then, and which of them is read or mixed does not show.
        """
        equation, opened = self.equation(self.fresh), made.open(self.placed(made, self.x))
        yield 0.0, ""
        stream = self.setting.stream
        if not isinstance(stream, Hyper) or stream.maps == "gated" or not isinstance(opened, Tensor):
            return  # the gate's matrices are drawn, and their draw shows
        if opened.shape != (*self.x.shape[:-1], stream.copies, self.setting.width):
            return
        self.at = ""
        state = torch.randn(opened.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        for k, u in enumerate(self.us):
            read, held = self.read(made, self.placed(made, state), k)
            copies = [*state.unbind(-2)]
            difference = _difference(read, equation.read(copies, k))
            yield difference, f"in what branch {k} reads of unequal copies, as initialized"
            mixed = made.write(held, self.placed(made, u), k)
            expected = torch.stack(equation.write(copies, u, k), dim=-2)
            yield _difference(mixed, expected), f"in how sublayer {k} mixes unequal copies, as initialized"

    def meta(self) -> tuple[float, str]:
        """Built on the meta device, emptied onto the CPU, reset, loaded: what was not loaded is lost."""
        weights = next(iter(self.cases.values()))
        here = [out.detach().cpu().double() for out in self.outputs(self.loaded(weights))]
        if not all(out.isfinite().all() for out in here):
            raise _Skip("outputs are not finite")
        self.at = ""
        with torch.device("meta"):
            made = self.make(self.setting)
        modules = _modules(made)
        if not modules:
            raise _Skip("the adapter has no nn.Module in an attribute")
        for module in modules:
            module.to_empty(device=self.device).eval()
            _forget(module)
        lost = "after to_empty and load: a buffer or tensor that load does not set is lost; keep constants as numbers"
        try:
            made.load({name: value.to(self.device, self.dtype) for name, value in weights.items()})
            got = self.outputs(made)
        except Exception as error:  # a tensor that has stayed on the meta device
            return float("inf"), f"{lost} ({type(error).__name__}: {one_line(error)})"
        return max(map(_difference, got, here)), lost

    def recognized(self) -> tuple[Mistake, ...]:
        """The mistake, or the two, with which the equations give what the implementation gives in every case."""
        singles = possible(self.setting.placement)
        got = {case: self.outputs(self.loaded(weights), self.given[case]) for case, weights in self.cases.items()}
        for several in [*((one,) for one in singles), *combinations(singles, 2)]:
            if all(self.explains(several, case, got[case]) for case in self.cases):
                return several
        return ()

    def explains(self, mistakes: tuple[Mistake, ...], case: str, got: list[Tensor]) -> bool:
        equation = self.equation(self.cases[case], *(one.name for one in mistakes))
        expected = self.outputs(equation, self.given[case])
        return all(_difference(a, b) <= self.tolerance for a, b in zip(got, expected, strict=True))

    def unknown(self, rows: list[Row]) -> str:
        worst = max((row.difference for row in rows[:3] if row.difference is not None), default=float("inf"))
        if worst < 1e-4 and self.dtype is torch.float64:
            return (
                "float32: the largest difference is that of a cast to float32; set `dtype = torch.float32` on the"
                " adapter if it is meant"
            )
        first = next(row for row in rows if row.status == "failed")
        if first.difference is None:
            hint = " -> `isograd conform NAME --weights` lists what it gets, by name and shape"
            return first.found + (hint if first.found.startswith("load ") else "")
        if math.isinf(first.difference):
            return f"{first.check}: not finite {first.found}"
        tried = len(possible(self.setting.placement))
        return f"{first.check}: a difference {first.found}, and none of the {tried} mistakes known of this design"

    def narrowed(self) -> Iterator[str]:
        """Where an unknown difference goes away."""
        nothing = [torch.zeros_like(u) for u in self.us]
        weights = next(iter(self.cases.values()))
        if not self.differs(weights, us=nothing):
            yield "no difference where branches write 0: look at how their output is written"
        elif not self.differs(weights, x=torch.zeros_like(self.x)):
            yield "no difference where x is 0: look at how x is opened and carried"
        for kind in dict.fromkeys(map(kind_of, weights)):
            fresh = {name: self.fresh[name] if kind_of(name) == kind else value for name, value in weights.items()}
            if not self.differs(fresh):
                means = meanings(self.setting.placement)[kind]
                yield f"no difference with {kind} as initialized: look at where it is used ({means})"

    def differs(self, weights: dict[str, Tensor], x: Tensor | None = None, us: list[Tensor] | None = None) -> bool:
        got, expected = self.outputs(self.loaded(weights), x, us), self.outputs(self.equation(weights), x, us)
        return any(_difference(a, b) > self.tolerance for a, b in zip(got, expected, strict=True))


def _skips(given: Any, checks: tuple[str, ...]) -> Mapping[str, str]:
    """An adapter's `skips`, where each names a check."""
    if not isinstance(given, Mapping) or (unknown := [name for name in given if name not in checks]):
        what = ", ".join(map(repr, unknown)) if isinstance(given, Mapping) else f"a {type(given).__name__}"
        raise UserError(f"skips: {what}; expected a dict from checks to reasons, the checks {', '.join(checks)}")
    return given


class _Skip(Exception):  # noqa: N818  (no error)
    """A check that cannot be made here."""


def _difference(got: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest value."""
    if got.shape != expected.shape:
        raise ValueError(f"shape {tuple(got.shape)}; expected {tuple(expected.shape)}")
    scale = expected.detach().abs().max().clamp(min=1e-30)
    worst = ((got.detach().cpu().double() - expected.detach().double()).abs().max() / scale).item()
    return worst if worst == worst else float("inf")


def _modules(made: Any) -> list[nn.Module]:
    if isinstance(made, nn.Module):
        return [made]
    found: list[nn.Module] = []
    for value in vars(made).values():
        several = value if isinstance(value, list | tuple) else [value]
        found += [one for one in several if isinstance(one, nn.Module)]
    return found


def _forget(module: nn.Module) -> None:
    """Uninitialized memory may hold what it held: here it holds nothing that could pass."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)
    for inner in module.modules():
        if callable(reset := getattr(inner, "reset_parameters", None)):
            reset()


def cases_of(stream: Stream) -> dict[str, Case]:
    """Name -> what it makes of random weights."""
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


def invariants_of(setting: Setting) -> dict[str, Callable[[_Suite], float]]:
    """Name -> how far a statement that needs no equations is from being true."""
    stream, found = setting.stream, dict[str, Callable[[_Suite], float]]()
    if isinstance(stream, Hyper) and stream.maps in ("sinkhorn", "independent"):
        found["invariant: the sum of the copies grows by what is written"] = _sum_of_copies
        found["invariant: equal copies stay equal"] = _equal_copies
    first = setting.placement.at(sites(setting.layers)[0])
    if isinstance(first.skip, Coupled) and first.post is None:
        found["invariant: skip and scale follow from one another"] = _coupled
    return found


def _even(suite: _Suite) -> dict[str, Tensor]:
    """Reads of 1/2 + eps each and writes of half their magnitude, whatever the copies are."""
    n = suite.setting.stream.copies
    weights = {name: value.clone() for name, value in suite.cases["random weights"].items()}
    for name, value in weights.items():
        if name.endswith(("stream.projection", "stream.base")):
            value[: 2 * n] = 0
    return weights


def _sum_of_copies(suite: _Suite) -> float:
    stream = suite.setting.stream
    n, read = stream.copies, 0.5 + stream.eps
    write = 1.0 if stream.maps == "sinkhorn" else stream.magnitude / 2 + stream.eps
    got, total, worst = suite.outputs(suite.loaded(_even(suite))), suite.x, 0.0
    for k, u in enumerate(suite.us):
        worst = max(worst, _difference(got[k], read * n * total))
        total = total + write * u
    return worst


def _equal_copies(suite: _Suite) -> float:
    nothing = [torch.zeros_like(u) for u in suite.us]
    first, *others = suite.outputs(suite.loaded(_even(suite)), us=nothing)[:-1]
    return max(_difference(other, first.detach().cpu().double()) for other in others)


def _coupled(suite: _Suite) -> float:
    """skip = 1 - scale, or skip^2 + scale^2 = 1, from what x alone and the branch alone leave."""
    weights = dict(suite.cases["random weights"])
    for name, value in weights.items():
        if ".out." in name:
            weights[name] = torch.ones_like(value) if name.endswith("weight") else torch.zeros_like(value)
    residual = suite.setting.placement.at(suite.every[0])
    assert isinstance(residual.skip, Coupled)
    nothing, equation = torch.zeros_like(suite.x), suite.equation(weights)
    x, u = suite.x, suite.us[0]
    zeros = [torch.zeros_like(x) for _ in suite.us]
    skip = suite.outputs(suite.loaded(weights), us=zeros)[1].cpu().double() / x
    scale = suite.outputs(suite.loaded(weights), x=nothing, us=[u, *zeros[1:]])[1].cpu().double()
    scale = scale / equation.norm("parts.0.out", residual.out, u)
    total = skip + scale if residual.skip.by == "complement" else skip**2 + scale**2
    return _difference(total, torch.ones_like(total))
