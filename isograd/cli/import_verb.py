"""`isograd import fairseq | torch | hf`: models of other libraries as isograd's, with a parity report."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from isograd.cli import Help
from isograd.cli.certified import certified
from isograd.errors import UserError

if TYPE_CHECKING:
    from isograd.interop.parity import ParityReport

_EPILOG = """\
examples:
  isograd import fairseq checkpoint_best.pt out --dict dict.de.txt --dict dict.en.txt --bpe-codes codes
  isograd import fairseq roberta.base/model.pt out --dict roberta.base/dict.txt --json
  isograd import fairseq weights.safetensors out --options options.json
  isograd import hf gpt2 out
  isograd import torch model.pt out --heads 8 --norm-first --tokens embed.weight --head out.weight --causal

A checkpoint is read without running anything in it; one that wants to run something is refused. OUT gets the model, its
tokenizer where there is a dictionary, and parity.json: its logits and what it writes beside those of the original.

Exit code 1 where parity failed, 2 for what cannot be read or has no place here. In both cases nothing
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
    hf = kinds.add_parser(
        "hf", help="GPT-2, OPT, BERT, RoBERTa, BART, mBART, Marian of transformers", formatter_class=Help
    )
    hf.add_argument("folder", metavar="FOLDER", help="the folder of a model, or its name on the hub")
    hf.add_argument("out", metavar="OUT", help="a new folder, or an empty one")
    _shared(hf, _pretrained)
    _configure_torch(
        kinds.add_parser("torch", help="torch.nn.Transformer and TransformerEncoder", formatter_class=Help)
    )


def _configure_torch(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("state", metavar="STATE", help="a state dict, of torch.save or safetensors")
    add("out", metavar="OUT", help="a new folder, or an empty one")
    add("--heads", type=int, required=True, help="attention heads (nhead)")
    add("--norm-first", action="store_true", help="Pre-LN (norm_first=True)")
    add("--activation", choices=["relu", "gelu"], default="relu")
    add("--causal", action="store_true", help="an encoder that reads to the left only, as a language model")
    add("--tokens", metavar="NAME", help="the (source's) token table; without one the layers alone are taken over")
    add("--target-tokens", metavar="NAME", help="the target's, where it has its own")
    add("--positions", metavar="NAME", default="none", help="a table, sinusoidal_interleaved (the original's),\n"
        "sinusoidal (fairseq's) or none (default)")  # fmt: skip
    add("--target-positions", metavar="NAME", help="the target's, where it has its own")
    add("--head", metavar="NAME", help="the head's matrix; without one it is the (target's) token table")
    add("--scale-embedding", action="store_true", help="token vectors are multiplied by the square root of the width")
    add("--eps", type=float, default=1e-5, help="layer_norm_eps (default: 1e-5)")
    for name in ("pad", "bos", "eos"):
        add(f"--{name}", type=int, metavar="ID", help=f"id of the token {name}")
    _shared(parser, _torch)


def _shared(parser: argparse.ArgumentParser, read: Any) -> None:
    parser.add_argument("--json", action="store_true", help="the parity report as one JSON object on stdout")
    parser.set_defaults(run=run, read=read)


def run(options: argparse.Namespace) -> int:
    return certified("import", "importing", options, lambda: options.read(options))


def _fairseq(options: argparse.Namespace) -> "ParityReport":
    from isograd.interop.fairseq import import_fairseq

    return import_fairseq(
        options.checkpoint,
        options.out,
        dictionaries=options.dict,
        codes=options.bpe_codes,
        options=options.options,
        changes=_changes(options.option),
    )


def _pretrained(options: argparse.Namespace) -> "ParityReport":
    from isograd.interop.pretrained import import_pretrained

    return import_pretrained(options.folder, options.out)


def _torch(options: argparse.Namespace) -> "ParityReport":
    from isograd.interop.torch_nn import Layout, import_torch

    layout = Layout(**{field.name: getattr(options, field.name) for field in fields(Layout)})
    return import_torch(options.state, options.out, layout)


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
