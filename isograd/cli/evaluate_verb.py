"""`isograd evaluate WHAT`: a file per kind of evaluation, `evaluate_WHAT.py` (a hyphen is a `_` there)."""

import argparse
from importlib import import_module

KINDS = {
    "translation": "BLEU, chrF, the papers' tokenised BLEU and exact match of translations",
    "classification": "fine-tuning on GLUE: a model's score over seeds, beside from scratch and the majority line",
    "zero-shot": "a causal language model's accuracies on HellaSwag, PIQA, BLiMP and others, beside chance",
}


def configure(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="WHAT", required=True)
    for name, text in KINDS.items():
        sub = kinds.add_parser(name, help=text, description=f"{text}.", formatter_class=argparse.RawTextHelpFormatter)
        sub.add_argument(  # as in front of the kind; suppressed, it leaves what was given there
            "--import",
            dest="imports",
            action="append",
            default=argparse.SUPPRESS,
            metavar="MODULE",
            help="a module to import first, such as one of yours that registers placements",
        )
        import_module(f"isograd.cli.evaluate_{name.replace('-', '_')}").configure(sub)
