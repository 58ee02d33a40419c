"""`isograd evaluate WHAT`: a file per kind of evaluation, `evaluate_WHAT.py` (a hyphen is a `_` there)."""

import argparse
from importlib import import_module

from isograd.cli import Help

KINDS = {
    "translation": "BLEU, chrF and exact match of translations",
    "classification": "fine-tuning on GLUE over seeds, beside the majority line",
    "zero-shot": "a causal model on HellaSwag, PIQA, BLiMP and others",
}


def configure(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="WHAT", required=True)
    for name, text in KINDS.items():
        sub = kinds.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", formatter_class=Help)
        sub.add_argument(  # as in front of the kind; suppressed, it leaves what was given there
            "--import",
            dest="imports",
            action="append",
            default=argparse.SUPPRESS,
            metavar="MODULE",
            help="a module to import first, such as one of yours that registers placements",
        )
        import_module(f"isograd.cli.evaluate_{name.replace('-', '_')}").configure(sub)
