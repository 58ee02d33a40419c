"""`isograd reproduce theory`: the papers' claims about a stack at initialization, measured; a verdict each."""

import math
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from rich.markup import escape

from isograd.cli.console import Bar, Result, loading, output, print_table
from isograd.cli.parser import Count, Folder
from isograd.errors import IsogradError, UserError, one_line

if TYPE_CHECKING:
    from isograd.papers.theory import CaseResult, Claim

_COLOURS = {"holds": "green", "false": "yellow"}
TAKES = {"theory": "theory".__eq__}
_THREADS = 1  # two wait for each other in products this small: 6.5 CPU minutes for 1.8, on busy cores


class Sentence(TypedDict):
    """A claim of a paper, and the placements that it is measured of."""

    name: str
    title: str
    source: str
    statement: str
    number: str
    how: str
    axes: Annotated[Any, "isograd.papers.theory.claim:Axes"]
    placements: list[str]


_Sentences = dict[str, Sentence]


class ClaimVerdict(TypedDict):
    """Whether a claim holds of a placement: predicted, measured, its interval over seeds, the tolerance."""

    claim: str
    placement: str
    case: str
    subject: str
    predicted: float | tuple[float, float]
    measured: float
    interval: tuple[float, float] | None
    tolerance: tuple[float | None, float | None]
    holds: bool
    seeds: int
    refuted: str


class Verdicts(TypedDict):
    """A verdict each, those of the negative controls, and the page."""

    verdicts: list[ClaimVerdict]
    negative_controls: list[ClaimVerdict]
    page: str
    facts: dict[str, str]


class OfDesign(TypedDict):
    """The number of one placement in each claim, and which of the papers' it is like."""

    placement: str
    claims: list[dict[str, Any]]
    file: str


def theory(
    theory: Literal["theory"],
    *claims: Annotated[str, "CLAIM"],
    list: bool = False,  # noqa: A002  (it is --list)
    negative_controls: bool = False,
    placement: str | None = None,
    seeds: Count | None = None,
    out: Folder = Path("runs/theory"),
) -> Annotated[Result, Verdicts, _Sentences, OfDesign]:
    """Measure the papers' claims about a stack at initialization: a verdict each.

    examples:
      isograd reproduce theory                      every claim: a table, and a page in runs/theory
      isograd reproduce theory theorem-1 amplification
      isograd reproduce theory --negative-controls  also networks for which each claim must be false
      isograd reproduce theory theorem-1 --import my_placements --placement mine
      isograd reproduce theory --list

    Exit code 1 where a verdict does not hold (other than one that is recorded as false), or a negative control does.
    One thread; two and a half minutes for all, five with --negative-controls.

    Args:
        theory: the word "theory"
        claims: default: all of them
        list: print the claims and exit
        negative_controls: measure the negative controls, too: networks for which each claim must be false
        placement: measure this one where the claims speak of others, and say whose case its number is
        seeds: in place of each claim's own number; few seeds are noisy
        out: default runs/theory
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: not a folder")
    from isograd.papers.theory import chosen

    found = chosen(claims)
    if list:
        listed = {one.name: _about(one) | {"placements": [c.placement for c in one.cases]} for one in found}
        return Result(listed, partial(_list, found))
    with loading():
        import isograd.papers.theory.measures  # noqa: F401  (what is measured below)
    out.mkdir(parents=True, exist_ok=True)  # before minutes of measuring
    if placement is not None:
        if negative_controls:
            raise UserError("--negative-controls are those of the papers' placements, not of --placement")
        return _of_design(placement, found, seeds, out)
    return _measure(found, negative_controls, seeds, out)


def _measure(claims: "list[Claim]", controls: bool, seeds: int | None, out: Path) -> Result:
    import torch

    from isograd.lab.report.pages.theory import write_theory
    from isograd.papers.theory import negative_controls as refusals
    from isograd.papers.theory import verdicts

    begun, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(min(_THREADS, threads))
    try:
        with Bar("measuring", sum(len(claim.cases) for claim in claims) * (1 + controls)) as bar:
            found = _each(verdicts(claims, seeds), bar)
            refused = _each(refusals(claims, seeds), bar, "negative control: ") if controls else []
    finally:
        torch.set_num_threads(threads)
    rows, refused_rows = [whole(one) for one in found], [whole(one) for one in refused]
    facts = _facts(time.perf_counter() - begun)
    page = write_theory(out, [_about(claim) for claim in claims], rows, refused_rows, facts)
    content = {
        "verdicts": [_short(row) for row in rows],
        "negative_controls": [_short(row) for row in refused_rows],
        "page": str(page),
        "facts": facts,
    }
    failed = [
        f"{one.claim} {'holds for' if one.refuted else 'does not hold for'} {one.placement}"
        + (", of which it is recorded as false" if one.refuted else "")
        for one in found
        if not one.as_recorded
    ]
    failed += [f"{one.claim} for {one.placement} does not refuse {one.subject}" for one in refused if one.holds]
    return Result(content, partial(_print, rows, refused_rows, page), failed, code=1 if failed else 0)


def _of_design(placement: str, claims: "list[Claim]", seeds: int | None, out: Path) -> Result:
    """A placement of the user's in every claim about placements: its number beside those that the papers speak of."""
    import torch

    from isograd.files import write_json
    from isograd.placement import get

    get(placement)  # of a name that nobody has registered
    asked = [claim for claim in claims if claim.by_placement]
    if not asked:
        raise UserError(f"{', '.join(one.name for one in claims)}: of a part that all stacks have, not of a placement")
    rows: list[dict[str, Any]] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(min(_THREADS, threads))
    try:
        with Bar("measuring", len(asked)) as bar:
            for claim in asked:
                rows.append(_asked(claim, placement, seeds))
                bar.end(f"{claim.name}, {placement}: {rows[-1]['said']}")
    finally:
        torch.set_num_threads(threads)
    path = out / f"{placement}.json"
    write_json(path, rows)
    lines = [[*(escape(row[name]) for name in ("claim", "theirs", "said")), row["value"]] for row in rows]

    def show() -> None:
        print_table(["claim", "the papers' placements", "like", placement], lines, left=3)
        output().print(f"\nnumbers, with what each is: {escape(str(path))}", soft_wrap=True)

    return Result({"placement": placement, "claims": rows, "file": str(path)}, show)


def _asked(claim: "Claim", placement: str, seeds: int | None) -> dict[str, Any]:
    ranges = {
        case.placement: f"{-math.inf if case.low is None else case.low:.3g} to"
        f" {math.inf if case.high is None else case.high:.3g}"
        for case in claim.by_placement
    }
    row = {"claim": claim.name, "number": claim.number, "seeds": seeds or claim.seeds}
    row["theirs"] = "; ".join(f"{name} {text}" for name, text in ranges.items())
    try:
        measured = claim.measure(placement, seeds or claim.seeds)
    except (IsogradError, ValueError, ArithmeticError) as error:  # a claim whose number such a stack has not
        return {**row, "measured": None, "interval": None, "like": [], "value": "", "said": f"none: {one_line(error)}"}
    like = claim.like(measured)
    spread = "" if measured.interval is None else f" ({measured.interval[0]:.3g} to {measured.interval[1]:.3g})"
    return {
        **row,
        "measured": measured.value,
        "interval": measured.interval,
        "like": like,
        "value": f"{measured.value:.3g}{spread}",
        "said": ", ".join(like) or "none of them",
    }


def _each(found: "Iterable[CaseResult]", bar: Bar, prefix: str = "") -> "list[CaseResult]":
    """Measure them, a line for each."""
    kept = []
    for one in found:
        kept.append(one)
        verdict = "holds" if one.holds else "refused" if prefix else "false, as recorded" if one.refuted else "fails"
        bar.end(f"{prefix}{one.claim}, {one.subject}: {one.measured:.4g} ({verdict})")
    return kept


def whole(verdict: "CaseResult") -> dict[str, Any]:
    """A verdict with its curve, as plain data."""
    return verdict.row() | {"curve": vars(verdict.curve), "lines": [vars(line) for line in verdict.lines]}


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("curve", "lines")}


def _about(claim: "Claim") -> dict[str, Any]:
    names = ("name", "title", "source", "statement", "number", "how")
    return {name: getattr(claim, name) for name in names} | {"axes": vars(claim.axes)}


def _facts(seconds: float) -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("isograd", "torch")} | {"time": f"{seconds:.0f} s"}


def _print(rows: "list[dict[str, Any]]", controls: "list[dict[str, Any]]", page: Path) -> None:
    from isograd.lab.report.pages.theory import summary, verdict_table

    table = verdict_table(rows, controls)
    lines = [[*map(escape, line), f"[{_COLOURS.get(verdict, 'red')}]{verdict}[/]"] for *line, verdict in table.lines]
    print_table(table.header, lines, left=table.left)
    output().print(f"\n{summary(rows, controls)} {escape(str(page))}", soft_wrap=True)


def _list(claims: "list[Claim]") -> None:
    console = output(soft_wrap=True)
    for claim in claims:
        console.print(f"[bold]{claim.name}[/bold]  {escape(claim.title)}  [dim]{escape(claim.source)}[/dim]")
        console.print(f"    {escape(claim.statement)}")
        console.print(f"    [dim]{', '.join(case.placement for case in claim.cases)}: {escape(claim.number)}[/dim]")
