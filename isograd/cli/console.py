"""Where results are printed: stdout, as wide as the terminal, and as wide as it takes in a file or a pipe."""

import os
import sys
from typing import NoReturn

from rich.console import Console


class _Output(Console):
    def on_broken_pipe(self) -> NoReturn:
        """The reader has gone: `main` knows what to do (the default exits with 1)."""
        raise BrokenPipeError


def output(*, soft_wrap: bool = False) -> Console:
    """The console of a verb. `soft_wrap` leaves long lines to the terminal."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return _Output(highlight=False, soft_wrap=soft_wrap, width=200 if wide else None)
