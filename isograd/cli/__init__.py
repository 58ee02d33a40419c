"""The command line: one file per verb, imported when it is called.

Exit codes: 0 done, 1 a run failed or a check did not hold, 2 wrong use or bad input, 3 diverged, 130 interrupted.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

VERBS = {
    "compare": "train placements side by side on real text; a table and a page at the end",
    "train": "train one model from a recipe",
    "list": "the catalogue of placements",
    "show": "one placement: its formulas with their numbers",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = next((a for a in arguments if not a.startswith("-")), None)
    parser = _parser(verb)
    try:
        options = parser.parse_args(arguments)
        signal.signal(signal.SIGTERM, _terminate)
        return int(options.run(options))
    except KeyboardInterrupt:
        print("interrupted; start the same command again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, a pager) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UserError as error:
        print(f"isograd {verb}: {error}", file=sys.stderr)
        return 2


class UserError(Exception):
    """Wrong use or bad input, said in one line."""


def _parser(verb: str | None) -> argparse.ArgumentParser:
    """The whole parser; only the verb that is called loads its own options."""
    parser = argparse.ArgumentParser(
        prog="isograd", description="Level gradients at every depth: placements of the norms in deep Transformers."
    )
    parser.add_argument("--version", action="version", version=f"isograd {_version()}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, text in VERBS.items():
        sub = verbs.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", formatter_class=argparse.RawTextHelpFormatter
        )
        if name == verb:
            import_module(f"isograd.cli.{name}_verb").configure(sub)
    return parser


def _version() -> str:
    from isograd import __version__

    return __version__


def _terminate(*_: object) -> NoReturn:
    raise KeyboardInterrupt
