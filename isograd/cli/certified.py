"""What `fold` and `import` share: a folder that comes with a certificate, or not at all."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from isograd.errors import UserError, one_line

if TYPE_CHECKING:
    from isograd.interop.certificate import Certificate


def certified(verb: str, doing: str, options: argparse.Namespace, make: Callable[[], "Certificate"]) -> int:
    """Make the folder `options.out`, print its certificate, and return the exit code."""
    with Console(stderr=True).status(doing):
        certificate = _made(Path(options.out), make)
    if options.json:
        print(json.dumps({"model": options.out} | certificate.as_dict(), indent=2))
    else:
        print(certificate)
        if certificate.holds:
            print(f"model: {options.out}")
    if not certificate.holds:
        print(f"isograd {verb}: {'; '.join(certificate.failures())}; nothing is written", file=sys.stderr)
    return 0 if certificate.holds else 1


def _made(out: Path, make: Callable[[], "Certificate"]) -> "Certificate":
    from isograd.cli.quiet import quiet
    from isograd.interop.certificate import CertificateError

    quiet()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):  # before anything is loaded
        raise UserError(f"{out}: exists already; name a new folder, or remove it first")
    try:
        return make()
    except CertificateError as error:
        return error.certificate
    except (ValueError, RuntimeError) as error:  # of the file, its options, its weights; of what cannot be folded
        raise UserError(one_line(error)) from error
    except TypeError as error:  # a list or a word where the original has a number
        raise UserError(f"an option has a value of the wrong type: {one_line(error)}") from error
