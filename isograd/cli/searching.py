"""What `translate` and `evaluate translation` share: the options of the search, and loading the model."""

import argparse
import math
from typing import TYPE_CHECKING, Any

from rich.console import Console

from isograd.errors import UserError, one_line

if TYPE_CHECKING:
    from isograd.evaluate.translation import Translator


def configure_search(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--beam", type=count, help="hypotheses that are kept at each step (default: as the model was trained, or 5)")
    add(
        "--length-penalty",
        type=finite,
        metavar="P",
        help="a hypothesis of n tokens scores log p / n^P (default: as the model was trained, or 1)",
    )
    add("--batch", type=count, default=8192, metavar="TOKENS", help="lines x beam x longest line, default 8192")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="of weights and activations, default fp32")
    add("--threads", type=count, help="threads of the CPU (default: torch's)")


def search_options(options: argparse.Namespace) -> dict[str, Any]:
    """What was given, as `SearchOptions` names it."""
    named = {"beam": options.beam, "length_penalty": options.length_penalty, "tokens": options.batch}
    return {name: value for name, value in named.items() if value is not None}


def load(options: argparse.Namespace, console: Console) -> "Translator":
    """The translator of `options.model`."""
    with console.status("loading the model"):
        import torch

        from isograd.cli.quiet import quiet
        from isograd.evaluate.translation import Translator
        from isograd.train.memory import keep_freed_memory

        quiet()
        keep_freed_memory()
        if options.threads:
            torch.set_num_threads(options.threads)
        try:
            translator = Translator.load(options.model, precision=options.precision)
            translator.options(**search_options(options))
        except ValueError as error:  # of the data, and of an option that was given or that lies beside the model
            raise UserError(one_line(error)) from error
        return translator


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, and got {text!r}")
    return int(text)


def finite(text: str) -> float:
    """A number that is neither infinite nor NaN."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"expected a number, and got {text!r}")
    return number
