"""`isograd.conform(adapter, "mhc")`: does an implementation compute what the paper says?

An adapter is driven sublayer by sublayer with given weights, inputs and branch outputs, and what it reads is compared
with the equations in float64.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isograd.errors import UserError, one_line
from isograd.lint.conform.driven import LOOSE, Driven, difference_of
from isograd.lint.conform.equations import equation_of
from isograd.lint.conform.setting import Make, Setting, design_of
from isograd.lint.conform.verdict import Conformance, Row, narrowed, recognized, unknown
from isograd.placement import Placement
from isograd.placement.streams import Hyper
from isograd.residual import wiring

PARTS = {"reads": slice(0, 1), "writes and mixes": slice(1, -1), "close": slice(-1, None)}  # of the outputs
CHECKS = (*PARTS, "gradients", "init")


def conform(adapter: Make, design: str | Placement) -> Conformance:
    """Compare an implementation with a placement's equations.

    Args:
        adapter: a class or function that takes a `Setting` and gives an adapter; see `Adapter`.
        design: an entry of the catalogue by name, or a `Placement` of your own. The equations of a stream of your own
            are what its method `equation` returns, a class derived from `Equation`.

    Raises:
        UserError: no such entry, one without equations, or an adapter that cannot be made or lacks a method.
    """
    if not callable(adapter) or isinstance(adapter, nn.Module):
        raise UserError(
            f"{type(adapter).__name__}: an object; pass the class, or a function of a Setting: checks build their own"
        )
    placement = design_of(design) if isinstance(design, str) else wiring(design)
    called = getattr(adapter, "__name__", type(adapter).__name__)
    kind = type(placement.stream).__name__
    if equation_of(placement.stream) is None:
        raise UserError(f"{kind} has no method `equation`: docs/conform.md says how to write its equations")
    name = design if isinstance(design, str) else kind
    return Suite(adapter, Setting(placement=placement)).verdict(name, called)


class Suite(Driven):
    """The checks of one implementation."""

    def __init__(self, make: Make, setting: Setting) -> None:
        super().__init__(make, setting)
        skips = self.skips
        wrong = [name for name in skips if name not in CHECKS] if isinstance(skips, Mapping) else None
        if wrong != []:
            what = ", ".join(map(repr, wrong)) if wrong else f"a {type(skips).__name__}"
            raise UserError(f"skips: {what}; expected a dict from checks to reasons, the checks {', '.join(CHECKS)}")

    def verdict(self, name: str, called: str) -> Conformance:
        rows = [*self.rows()]
        wrong = any(row.status == "failed" for row in rows[:3])
        compared = all(row.difference is not None for row in rows[:3] if row.status == "failed")
        mistakes = recognized(self) if wrong and compared else ()
        remedies = [] if mistakes or not wrong else [unknown(self, rows), *(narrowed(self) if compared else ())]
        return Conformance(
            placement=name, adapter=called, rows=tuple(rows), mistakes=mistakes, remedies=tuple(remedies)
        )

    def rows(self) -> Iterator[Row]:
        for check, part in PARTS.items():
            yield self.row(check, self.tolerance, partial(self.compared, part))
        yield self.row("gradients", 10 * self.tolerance, self.gradients)
        yield self.row("init", LOOSE, self.init)

    def row(self, check: str, tolerance: float, measure: Callable[[], tuple[float, str]]) -> Row:
        if check in self.skips:
            return Row(check=check, status="skipped", found=self.skips[check])
        try:
            difference, found = measure()
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
            found += [(k, f"{self.place(k)} ({case})", difference_of(a, b)) for k, (a, b) in pairs]
        ordered = sorted(found, key=lambda one: one[0])
        first = next((place for _, place, difference in ordered if difference > self.tolerance), "")
        one = len(found) == len(self.cases)
        return max(difference for *_, difference in found), f"in {first}" if one else f"first in {first}"

    def gradients(self) -> tuple[float, str]:
        """Of a fixed linear form of all outputs, with respect to x and to each branch's output."""
        weights = self.usual
        given = [self.x, *self.us]
        names = ["x", *(f"the output of branch {k}" for k in range(len(self.us)))]
        pairs = zip(
            self.gradient(self.loaded(weights), given), self.gradient(self.equation(weights), given), strict=True
        )
        worst = max((difference_of(a, b), f"with respect to {name}") for name, (a, b) in zip(names, pairs, strict=True))
        return worst

    def gradient(self, subject: Any, given: list[Tensor]) -> list[Tensor]:
        x, *us = (self.placed(subject, t).clone().requires_grad_() for t in given)
        outputs = self.outputs(subject, x, us)
        self.at = "backward"
        weights = [weight.to(out) for weight, out in zip(_directions(outputs), outputs, strict=True)]
        return [*torch.autograd.grad(outputs, [x, *us], weights, allow_unused=True, materialize_grads=True)]

    def init(self) -> tuple[float, str]:
        made = self.built()
        if isinstance(made, nn.Module):
            made.to(self.device, self.dtype)
        got, expected = self.outputs(made), self.outputs(self.equation(self.fresh))
        pairs = enumerate(zip(got, expected, strict=True))
        worst = max((difference_of(a, b), f"in {self.place(k)} as initialized") for k, (a, b) in pairs)
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
            difference = difference_of(read, equation.read(copies, k))
            yield difference, f"in what branch {k} reads of unequal copies, as initialized"
            mixed = made.write(held, self.placed(made, u), k)
            expected = torch.stack(equation.write(copies, u, k), dim=-2)
            yield difference_of(mixed, expected), f"in how sublayer {k} mixes unequal copies, as initialized"


def _directions(outputs: list[Tensor]) -> list[Tensor]:
    """The coefficients of a fixed linear form of all outputs."""
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(out.shape, generator=draw, dtype=torch.float64) for out in outputs]
