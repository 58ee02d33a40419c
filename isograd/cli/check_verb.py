"""`isograd check MODEL`: a linter for Transformers."""

import argparse
import json
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

from isograd.errors import UserError, one_line

if TYPE_CHECKING:
    from isograd.lint import Findings

_EPILOG = """\
MODEL is a folder with a checkpoint (or with a config.json only: a model at its start), a hub id, or
package.module:callable, a function without arguments that returns an nn.Module (found from the working directory too).

examples:
  isograd check gpt2
  isograd check runs/compare/pre-ln-12l/model
  isograd check my_model:build --batch my_model:batch --lr 1e-3 --warmup 0
  isograd check my_model:build --json --ignore layers-identical

Exit code 1 with a finding of severity error, 2 on bad input."""

_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("model", metavar="MODEL", help="a folder, a hub id, or package.module:callable")
    parser.add_argument(
        "--batch", metavar="MODULE:CALLABLE", help="returns what forward takes, where it cannot be guessed"
    )
    parser.add_argument(
        "--lr", type=float, help="the peak learning rate to come: says whether a Post-LN stack bears it"
    )
    parser.add_argument("--warmup", type=int, help="the steps of warm-up to come (default: none)")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="CODE", help="a code that is not reported; can be repeated"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    findings = _findings(options)
    if options.json:
        from isograd.files import finite

        print(json.dumps(finite(findings.as_dict()), indent=2))
    else:
        _print(findings)
    return 1 if findings.errors else 0


def _findings(options: argparse.Namespace) -> "Findings":
    from isograd.cli.quiet import quiet
    from isograd.errors import InputsError, ModelError
    from isograd.lint import check
    from isograd.lint.check import known_codes
    from isograd.trace.inputs import as_inputs
    from isograd.trace.load import load_callable, load_model

    _check_options(options, known_codes)
    quiet()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of the model, run on inputs that were guessed
            model = load_model(options.model)
            batch = as_inputs(load_callable(options.batch)()) if options.batch else None
            return check(model, batch, lr=options.lr, warmup=options.warmup, ignore=options.ignore, name=options.model)
    except InputsError as error:
        raise UserError(f"{options.batch or options.model}: {one_line(error)}") from error
    except ModelError as error:
        raise UserError(one_line(error)) from error
    except Exception as error:
        what = f"it does not run on {options.batch or 'the inputs guessed for it'}"
        raise UserError(f"{options.model}: {what}: {type(error).__name__}: {one_line(error)}") from error


def _check_options(options: argparse.Namespace, known_codes: Any) -> None:
    try:
        known_codes(options.ignore)
    except ValueError as error:
        raise UserError(f"--ignore: {error}") from error
    if options.lr is not None and not 0 < options.lr < float("inf"):
        raise UserError(f"--lr {options.lr:g}: expected a number above 0")
    if options.warmup is not None and options.warmup < 0:
        raise UserError(f"--warmup {options.warmup}: expected a number of steps, 0 or more")


def _print(findings: "Findings") -> None:
    from rich.table import Table
    from rich.text import Text

    from isograd.cli.console import output

    console = output()
    console.print(Text(findings.model, style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("sublayers", "placement", "formula"):
        table.add_column(name, overflow="fold")
    for addresses, placement, formula in _groups(findings):
        table.add_row(addresses, placement, formula)
    if findings.placements:
        console.print(table)
    for finding in findings:
        console.print()
        head = Text.assemble((finding.severity, _STYLES[finding.severity]), f" {finding.code}  ", finding.address)
        console.print(head)
        console.print(Text(f"  {finding.message}"))
        console.print(Text(f"  -> {finding.remedy}"))
        console.print(Text(f"  {finding.page}", style="dim"))
    for line in findings.missed:
        print(f"could not look at {line}", file=sys.stderr)
    console.print()
    console.print(Text(_summary(findings)))


def _groups(findings: "Findings") -> list[tuple[str, str, str]]:
    """Sublayers whose address differs by numbers only, of one placement, as one line."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for address, placement in findings.placements.items():
        pattern = re.sub(r"\d+", "*", address)
        groups.setdefault((pattern, placement, findings.formulas[address]), []).append(address)
    return [
        (f"{pattern}  ({len(found)})" if len(found) > 1 else found[0], placement, formula)
        for (pattern, placement, formula), found in groups.items()
    ]


def _summary(findings: "Findings") -> str:
    counts = {s: sum(f.severity == s for f in findings) for s in ("error", "warning", "info")}
    said = [f"{n} {name}{'s' if n > 1 and name != 'info' else ''}" for name, n in counts.items() if n]
    return f"{len(findings.placements)} sublayers: " + (", ".join(said) if said else "nothing found")
