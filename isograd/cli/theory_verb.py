"""`isograd theory`: the papers' claims about the start of a stack, measured; a verdict each."""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from isograd.cli.console import output
from isograd.cli.searching import count
from isograd.errors import UserError

if TYPE_CHECKING:
    from isograd.theory import Claim, Verdict

_EPILOG = """\
examples:
  isograd theory                              every claim: a table, and a page in runs/theory
  isograd theory theorem-1 amplification
  isograd theory --foils                      also the negative control of each claim, which it must refuse
  isograd theory --list

Exit code 1 where a verdict does not hold, or a negative control does. One thread; two minutes for all, four with
--foils."""

_THREADS = 1  # two wait for each other in products this small: 6.5 CPU minutes for 1.8, on busy cores


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("claims", nargs="*", metavar="CLAIM", help="default: all of them")
    add("--list", action="store_true", help="name the claims, and measure nothing")
    add("--foils", action="store_true", help="measure the negative controls, too: networks that each claim must refuse")
    add("--seeds", type=count, metavar="N", help="in place of each claim's own number; few seeds are noisy")
    add("--out", type=Path, default=Path("runs/theory"), metavar="DIR", help="default runs/theory")
    add("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=run, words="claims")


def run(options: argparse.Namespace) -> int:
    if options.out.exists() and not options.out.is_dir():
        raise UserError(f"--out {options.out}: not a folder")
    console = Console(file=sys.stderr)
    with console.status("loading torch"):
        from isograd.cli.quiet import quiet
        from isograd.errors import UnknownClaim
        from isograd.theory import chosen

        quiet()
    try:
        claims = chosen(options.claims)
    except UnknownClaim as error:
        raise UserError(str(error)) from error
    if options.list:
        _list(claims, options.json)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)  # before minutes of measuring
    return _measure(claims, options, console)


def _measure(claims: list["Claim"], options: argparse.Namespace, console: Console) -> int:
    import torch

    from isograd.report.theory_page import write_theory
    from isograd.theory import negative_controls, verdicts

    begun, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(min(_THREADS, threads))
    try:
        cases = sum(len(claim.cases) for claim in claims)
        with _Bar(console, cases * (1 + options.foils)) as step:
            found = step(verdicts(claims, options.seeds))
            refused = step(negative_controls(claims, options.seeds), "negative control: ") if options.foils else []
    finally:
        torch.set_num_threads(threads)
    rows, refused_rows = [whole(one) for one in found], [whole(one) for one in refused]
    facts = _facts(time.perf_counter() - begun)
    page = write_theory(options.out, [_about(claim) for claim in claims], rows, refused_rows, facts)
    failed = [one for one in found if not one.holds], [one for one in refused if one.holds]
    if options.json:
        from isograd.files import finite

        content = {"verdicts": [_short(row) for row in rows], "foils": [_short(row) for row in refused_rows]}
        print(json.dumps(finite(content | {"page": str(page), "facts": facts}), indent=2, ensure_ascii=False))
    else:
        _tell(rows, refused_rows, page)
    for one in failed[0]:
        print(f"isograd theory: {one.claim} does not hold for {one.placement}", file=sys.stderr)
    for one in failed[1]:
        print(f"isograd theory: {one.claim} for {one.placement} does not refuse {one.subject}", file=sys.stderr)
    return 1 if any(failed) else 0


class _Bar:
    """A bar in a terminal, a line per verdict elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bars.add_task("measuring", total=total)

    def __enter__(self) -> "_Bar":
        self.bars.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bars.__exit__(*error)

    def __call__(self, found: Iterable["Verdict"], prefix: str = "") -> list["Verdict"]:
        """Draw from `found`, told of each."""
        kept = []
        for one in found:
            kept.append(one)
            said = f"{prefix}{one.claim}, {one.subject}: {one.measured:.4g} ({'holds' if one.holds else 'fails'})"
            self.bars.update(self.task, advance=1, description=escape(said))
            if not self.console.is_terminal:
                self.console.print(said, highlight=False, markup=False, soft_wrap=True)
        return kept


def whole(verdict: "Verdict") -> dict[str, Any]:
    """A verdict with its curve, as plain data."""
    return verdict.row() | {"curve": vars(verdict.curve), "lines": [vars(line) for line in verdict.lines]}


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("curve", "lines")}


def _about(claim: "Claim") -> dict[str, Any]:
    names = ("name", "title", "source", "statement", "number", "how")
    return {name: getattr(claim, name) for name in names} | {"axes": vars(claim.axes)}


def _facts(seconds: float) -> dict[str, str]:
    from importlib.metadata import version

    from isograd import __version__

    return {"isograd": __version__, "torch": version("torch"), "time": f"{seconds:.0f} s"}


def _tell(rows: list[dict[str, Any]], foils: list[dict[str, Any]], page: Path) -> None:
    from isograd.report.theory_page import summary, verdict_table

    console = output()
    table = Table(box=None, header_style="dim", pad_edge=False)
    found = verdict_table(rows, foils)
    for index, name in enumerate(found.header):
        table.add_column(name, justify="left" if index < found.left else "right")
    for *line, verdict in found.lines:
        table.add_row(*map(escape, line), f"[{'green' if verdict == 'holds' else 'red'}]{verdict}[/]")
    console.print(table)
    console.print(f"\n{summary(rows, foils)} {escape(str(page))}", soft_wrap=True)


def _list(claims: list["Claim"], as_json: bool) -> None:
    if as_json:
        about = {claim.name: _about(claim) | {"placements": [c.placement for c in claim.cases]} for claim in claims}
        print(json.dumps(about, indent=2, ensure_ascii=False))
        return
    console = output(soft_wrap=True)
    for claim in claims:
        console.print(f"[bold]{claim.name}[/bold]  {escape(claim.title)}  [dim]{escape(claim.source)}[/dim]")
        console.print(f"    {escape(claim.statement)}")
        console.print(f"    [dim]{', '.join(case.placement for case in claim.cases)}: {escape(claim.number)}[/dim]")
