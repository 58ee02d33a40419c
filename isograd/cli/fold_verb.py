"""`isograd fold MODEL OUT`: learned and constant coefficients of a trained model into plain weights, exactly."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from isograd.cli import UserError, one_line

if TYPE_CHECKING:
    from isograd.export.certificate import Certificate

_EPILOG = """\
examples:
  isograd fold runs/multi30k-admin multi30k-plain --untie
  isograd fold runs/deepnorm/model plain --text valid.txt --json

ADMIN and DeepNorm become post-ln, HeadScale goes into W_O, a gain into W_O and W_2. OUT gets the model, its tokenizer
and certificate.json: the largest difference between logits in fp64, fp32 and bf16, greedy and beam outputs side by
side, hashes and versions.

Exit code 1 where the certificate does not hold (nothing is written then), 2 for what cannot be folded."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("model", metavar="MODEL", help="the folder of a run or of its model, or a model's name on the hub")
    add("out", metavar="OUT", help="a new folder, or an empty one")
    add("--untie", action="store_true", help="give head and encoder own copies of a token table that has to be scaled")
    add("--text", metavar="FILE", help="real text for the certificate (default: random ids)")
    add("--json", action="store_true", help="the certificate as one JSON object on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with Console(stderr=True).status("folding"):
        certificate = _certificate(options)
    if options.json:
        print(json.dumps({"model": options.out} | certificate.as_dict(), indent=2))
    else:
        print(certificate)
        if certificate.holds:
            print(f"model: {options.out}")
    if not certificate.holds:
        print(f"isograd fold: {'; '.join(certificate.failures())}; nothing is written", file=sys.stderr)
    return 0 if certificate.holds else 1


def _certificate(options: argparse.Namespace) -> "Certificate":
    from isograd.cli.quiet import quiet
    from isograd.data.text import read
    from isograd.export.certificate import CertificateError
    from isograd.export.fold_folder import fold_folder

    quiet()
    out = Path(options.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):  # before anything is loaded
        raise UserError(f"{out}: exists already; name a new folder, or remove it first")
    try:
        lines = [line for _, text in read(options.text) for line in text.splitlines()] if options.text else None
        return fold_folder(options.model, out, untie=options.untie, lines=lines)
    except CertificateError as error:
        return error.certificate
    except ValueError as error:  # of the data, of the model, of what cannot be folded
        raise UserError(one_line(error)) from error
