"""`isograd list`: the catalogue."""

import argparse
import json

from rich.markup import escape

from isograd.cli.console import output
from isograd.placement import CATALOGUE
from isograd.placement.text import final_formula, formulas, legend


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.json:
        entries = {
            name: {"formulas": formulas(p), "final": final_formula(p), "about": p.about, "paper": p.paper}
            for name, p in CATALOGUE.items()
        }
        print(json.dumps(entries, indent=2))
        return 0
    console = output(soft_wrap=True)
    for name, placement in CATALOGUE.items():
        console.print(f"[bold]{escape(name)}[/bold]  {escape(placement.about)}  [dim]{escape(placement.paper)}[/dim]")
        for line in formulas(placement).values():
            console.print(f"    {escape(line)}")
        if final := final_formula(placement):
            console.print(f"    {escape(final)} after the last layer")
        for line in legend(placement):
            console.print(f"    [dim]{escape(line)}[/dim]")
    console.print("\n'isograd show NAME layers=48' prints the numbers of one of them.")
    return 0
