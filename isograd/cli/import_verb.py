"""`isograd import fairseq | torch | hf`: models of other libraries as isograd's, with a certificate."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from isograd.cli import Help, UserError, one_line

if TYPE_CHECKING:
    from isograd.export.certificate import Certificate

_EPILOG = """\
examples:
  isograd import fairseq checkpoint_best.pt out --dict dict.de.txt --dict dict.en.txt --bpe-codes codes
  isograd import fairseq roberta.base/model.pt out --dict roberta.base/dict.txt --json
  isograd import fairseq weights.safetensors out --options options.json

A checkpoint is read without running anything in it; one that wants to run something is refused. OUT gets the model, its
tokenizer where there is a dictionary, and certificate.json: its logits and what it writes beside those of the original.

Exit code 1 where the certificate does not hold, 2 for what cannot be read or has no place here. In both cases nothing
is written."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    fairseq = kinds.add_parser("fairseq", help="fairseq and Transformer-Clinic (ADMIN)", formatter_class=Help)
    add = fairseq.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a checkpoint (.pt), or its state dict in safetensors")
    add("out", metavar="OUT", help="a new folder, or an empty one")
    add("--dict", action="append", default=[], metavar="FILE", help="dict.txt; of a translator the source's, then the\n"
        "target's, or one for both")  # fmt: skip
    add("--bpe-codes", metavar="FILE", help="merges of subword-nmt")
    add("--options", metavar="FILE", help="the options of the training as JSON, where the checkpoint has none")
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="one that is missing or that is another;\n"
        "can be repeated")  # fmt: skip
    _shared(fairseq, _fairseq)


def _shared(parser: argparse.ArgumentParser, read: Any) -> None:
    parser.add_argument("--json", action="store_true", help="the certificate as one JSON object on stdout")
    parser.set_defaults(run=run, read=read)


def run(options: argparse.Namespace) -> int:
    with Console(stderr=True).status("importing"):
        certificate = _certificate(options)
    if options.json:
        print(json.dumps({"model": options.out} | certificate.as_dict(), indent=2))
    else:
        print(certificate)
        if certificate.holds:
            print(f"model: {options.out}")
    if not certificate.holds:
        print(f"isograd import: {'; '.join(certificate.failures())}; nothing is written", file=sys.stderr)
    return 0 if certificate.holds else 1


def _certificate(options: argparse.Namespace) -> "Certificate":
    from isograd.cli.quiet import quiet
    from isograd.export.certificate import CertificateError

    quiet()
    out = Path(options.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):  # before anything is loaded
        raise UserError(f"{out}: exists already; name a new folder, or remove it first")
    try:
        certificate: Certificate = options.read(options)
        return certificate
    except CertificateError as error:
        return error.certificate
    except (ValueError, RuntimeError) as error:  # of the file, its options, its weights
        raise UserError(one_line(error)) from error


def _fairseq(options: argparse.Namespace) -> "Certificate":
    from isograd.export.fairseq_folder import import_fairseq

    return import_fairseq(
        options.checkpoint,
        options.out,
        dictionaries=options.dict,
        codes=options.bpe_codes,
        options=options.options,
        changes=_changes(options.option),
    )


def _changes(words: Sequence[str]) -> dict[str, Any]:
    """Values as JSON where they are such, else as the text that they are."""
    changes: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise UserError(f"--option {word}: expected NAME=VALUE")
        try:
            changes[name] = json.loads(value.lower() if value in ("True", "False", "None") else value)
        except ValueError:
            changes[name] = None if value == "None" else value
    return changes
