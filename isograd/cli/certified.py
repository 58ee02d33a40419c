"""What `fold` and `import` share: a folder that comes with a parity report, or not at all."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from isograd.errors import UserError, one_line

if TYPE_CHECKING:
    from isograd.interop.parity import ParityReport


def certified(verb: str, doing: str, options: argparse.Namespace, make: Callable[[], "ParityReport"]) -> int:
    """Make the folder `options.out`, print its parity report, and return the exit code."""
    with Console(stderr=True).status(doing):
        report = _made(Path(options.out), make)
    if options.json:
        print(json.dumps({"model": options.out} | report.as_dict(), indent=2))
    else:
        print(report)
        if report.passed:
            print(f"model: {options.out}")
    if not report.passed:
        print(f"isograd {verb}: {'; '.join(report.failures())}; nothing is written", file=sys.stderr)
    return 0 if report.passed else 1


def _made(out: Path, make: Callable[[], "ParityReport"]) -> "ParityReport":
    from isograd.cli.quiet import quiet
    from isograd.interop.parity import ParityError

    quiet()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):  # before anything is loaded
        raise UserError(f"{out}: exists already; name a new folder, or remove it first")
    try:
        return make()
    except ParityError as error:
        return error.report
    except (ValueError, RuntimeError) as error:  # of the file, its options, its weights; of what cannot be folded
        raise UserError(one_line(error)) from error
    except TypeError as error:  # a list or a word where the original has a number
        raise UserError(f"an option has a value of the wrong type: {one_line(error)}") from error
