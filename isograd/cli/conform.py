"""`isograd conform NAME`: does an implementation of a residual compute what the paper says?"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from rich.markup import escape

from isograd.cli.console import Result, loading, output, print_table
from isograd.errors import UserError
from isograd.placement import get

if TYPE_CHECKING:
    from isograd.lint.conform import Conformance

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim"}


class Mistake(TypedDict):
    """A known mistake of ports that explains the difference."""

    name: str
    found: str
    remedy: str


class Conformed(TypedDict):
    """One implementation, check by check."""

    placement: str
    adapter: str
    passed: bool
    checks: list[Annotated[Any, "isograd.lint.conform.verdict:Row"]]
    mistakes: list[Mistake]
    remedies: list[str]


class Conformances(TypedDict):
    """What was checked."""

    conformance: list[Conformed]


class WeightsOfDesign(TypedDict):
    """What an adapter's load gets: name -> shape, name -> meaning."""

    placement: str
    weights: dict[str, list[int]]
    means: dict[str, str]


def conform(
    name: str | None = None,
    *,
    adapter: Annotated[str, "FILE.py:MAKE"] | None = None,
    all: bool = False,  # noqa: A002  (it is --all)
    weights: bool = False,
) -> Annotated[Result, Conformances, WeightsOfDesign]:
    """Does an implementation of a residual compute what the paper says?

    Reads, writes, mixes, gradients and init, against the equations in float64; where a known
    mistake of ports explains the difference it is named, with what to change. docs/conform.md has an adapter.

    examples:
      isograd conform mhc --weights                  what an adapter's load gets: names and shapes
      isograd conform mhc --adapter my_port.py:Port
      isograd conform mhc                            isograd's own part
      isograd conform --all                          every entry of the catalogue

    Exit code 1 where a check failed, 2 on bad input.

    Args:
        name: an entry of the catalogue
        adapter: a class or function of a Setting, in a file or as package.module:name
        all: isograd's own parts, for every entry that has equations
        weights: list the weights of the design, and check nothing
    """
    if all and (name or adapter):
        raise UserError("--all checks isograd's own parts; leave out NAME and --adapter, or --all")
    if name is None and not all:
        raise UserError("name a placement ('isograd conform mhc'), or --all ('isograd show' shows them)")
    if name is not None:
        get(name)  # a misspelt one is refused before torch is loaded
    with loading():
        from isograd.lint.conform import Own, designs
    if name is None:
        return _found([_one(Own, one) for one in designs()])
    if weights:
        return _weights(name)
    from isograd.trace.load import load_function

    return _found([_one(load_function(adapter) if adapter else Own, name)])


def _one(make: Callable[..., Any], name: str) -> "Conformance":
    from isograd.lint.conform import conform

    return conform(make, name)


def _weights(name: str) -> Result:
    from isograd.lint.conform import kind_of, meanings, weights_of

    found, means = weights_of(name), meanings(get(name))
    alike: dict[tuple[str, str], list[str]] = {}
    for key, size in found.items():
        inside = [key.split(".")[1]] if key.startswith("parts.") else []
        alike.setdefault((kind_of(key), " x ".join(map(str, size))), []).extend(inside)
    rows = [
        [f"parts.K.{kind}" if of else kind, size, ", ".join(of), escape(means.get(kind, ""))]
        for (kind, size), of in alike.items()
    ]
    content = {"placement": name, "weights": found, "means": {key: means.get(kind_of(key), "") for key in found}}
    return Result(content, partial(print_table, ["weight", "shape", "K", ""], rows, left=4))


def _found(found: "list[Conformance]") -> Result:
    content = {"conformance": [one.as_dict() for one in found]}
    return Result(content, partial(_print, found), code=0 if all(found) else 1)


def _print(found: "list[Conformance]") -> None:
    if len(found) == 1:
        _details(found[0])
    else:
        rows = [
            [one.placement, f"{_worst(one):.1e}", f"[{_STYLES[_status(one)]}]{_status(one)}[/]", " ".join(one.lines())]
            for one in found
        ]
        print_table(["placement", "largest difference", "", ""], rows, left=1)


def _status(one: "Conformance") -> str:
    return "passed" if one else "failed"


def _worst(one: "Conformance") -> float:
    """Of what is compared with the equations up to rounding."""
    exact = ("reads", "writes and mixes", "close", "gradients")
    return max((row.difference or 0.0 for row in one.rows if row.check in exact), default=0.0)


def _details(one: "Conformance") -> None:
    rows = [
        [
            row.check,
            f"[{_STYLES[row.status]}]{row.status}[/]",
            "" if row.difference is None else f"{row.difference:.1e}",
            "" if row.tolerance is None else f"{row.tolerance:.0e}",
        ]
        for row in one.rows
    ]
    console = output(soft_wrap=True)
    console.print(f"[bold]{escape(one.placement)}[/bold]: {escape(one.adapter)}")
    print_table(["check", "", "difference", "at most"], rows, left=2)
    for row in one.rows:
        if row.found:
            console.print(escape(f"{row.check}: {row.found}"))
    for line in one.lines():
        console.print(escape(line))
