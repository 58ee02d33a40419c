"""`isograd fold MODEL OUT`: learned and constant coefficients of a trained model into plain weights, exactly."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from isograd.cli.certified import certified

if TYPE_CHECKING:
    from isograd.interop.parity import ParityReport

_EPILOG = """\
examples:
  isograd fold runs/multi30k-admin multi30k-plain --untie
  isograd fold runs/deepnorm/model plain --text valid.txt --json

ADMIN and DeepNorm become post-ln, HeadScale goes into W_O, a gain into W_O and W_2. OUT gets the model, its tokenizer
and parity.json: the largest difference between logits in fp64, fp32 and bf16, greedy and beam outputs side by
side, hashes and versions.

Exit code 1 where parity failed (nothing is written then), 2 for what cannot be folded."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("model", metavar="MODEL", help="the folder of a run or of its model, or a model's name on the hub")
    add("out", metavar="OUT", help="a new folder, or an empty one")
    add("--untie", action="store_true", help="give head and encoder own copies of a token table that has to be scaled")
    add("--text", metavar="FILE", help="real text for the parity report (default: random ids)")
    add("--json", action="store_true", help="the parity report as one JSON object on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return certified("fold", "folding", options, lambda: _folded(options))


def _folded(options: argparse.Namespace) -> "ParityReport":
    from isograd.data.text import read
    from isograd.interop.fold import fold_folder

    lines = [line for _, text in read(options.text) for line in text.splitlines()] if options.text else None
    return fold_folder(options.model, Path(options.out), untie=options.untie, lines=lines)
