"""The command line: one file per verb, imported when it is called.

Exit codes: 0 done (also where a run collapsed or is undecided), 1 a run failed or a check did not hold, 2 wrong use or
bad input, 3 diverged, 130 interrupted.
"""

import argparse
import os
import signal
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from isograd.errors import IsogradError, UserError, one_line

VERBS = {
    "compare": "train placements side by side on real text; a table and a page at the end",
    "study": "a grid of trainings with seeds: placements x depths x rates x warm-ups, and their statistics",
    "headroom": "the largest peak learning rate that still trains, by placement and warm-up",
    "train": "train one model from a recipe",
    "translate": "translate lines of stdin with a trained model",
    "evaluate": "score a trained model on held-out data",
    "fold": "coefficients of a trained model into plain weights, with a parity report",
    "import": "models of fairseq, torch and transformers as isograd's, with a parity report",
    "export": "a model as a class of transformers, or for another runtime, with a parity report",
    "check": "a linter for Transformers: what is wired or started otherwise than it seems",
    "diagnose": "the depth profile of any model: gradients, stream, attention by sublayer",
    "report": "tables and figures of trained runs, from their folders",
    "theory": "the papers' claims about the start, measured: a verdict each",
    "list": "the catalogue of placements",
    "show": "one placement: its formulas with their numbers",
}

_IMPORT = "a module to import first, such as one of yours that registers placements"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = next((a for a in arguments if not a.startswith("-")), None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow in a terminal that has none is no reason to stop
    try:
        options = _options(arguments, verb)
        _import(options.imports)
        signal.signal(signal.SIGTERM, _terminate)
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted; start the same command again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, a pager) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (IsogradError, OSError) as error:
        print(f"isograd {verb}: {one_line(error)}", file=sys.stderr)
        return getattr(error, "exit_code", 2)


def _import(modules: list[str]) -> None:
    """Import what registers placements, also from the current folder."""
    if modules:
        sys.path.insert(0, str(Path.cwd()))
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise UserError(f"--import {module}: {error}") from error


class Help(argparse.RawDescriptionHelpFormatter):
    """Lines end where they were written to end, and where the terminal does."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [
            part for line in text.splitlines() for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]
        ]


class _Parser(argparse.ArgumentParser):
    """Wrong use is said in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} ('{self.prog} --help' shows all)", file=sys.stderr)
        sys.exit(2)


def _options(arguments: list[str], verb: str | None) -> argparse.Namespace:
    """The options of the verb. Words behind an option, as in `RECIPE --json key=value`, join those before it."""
    parser = _parser(verb)
    options, rest = parser.parse_known_args(arguments)
    words = vars(options).get(vars(options).get("words", ""))
    if rest and (words is None or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if words is not None:
        words.extend(rest)
    return options


def _parser(verb: str | None) -> argparse.ArgumentParser:
    """The whole parser; only the verb that is called loads its own options."""
    parser = _Parser(
        prog="isograd", description="Level gradients at every depth: placements of the norms in deep Transformers."
    )
    parser.add_argument("--version", action="version", version=f"isograd {_version()}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, text in VERBS.items():
        sub = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", formatter_class=Help)
        sub.add_argument("--import", dest="imports", action="append", default=[], metavar="MODULE", help=_IMPORT)
        if name == verb:
            import_module(f"isograd.cli.{name}_verb").configure(sub)
    return parser


def _version() -> str:
    from isograd import __version__

    return __version__


def _terminate(*_: object) -> NoReturn:
    raise KeyboardInterrupt
