"""`isograd import` of files: models of the papers' own code, with a parity report."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from isograd.cli.console import Result
from isograd.cli.parser import EACH, Folder
from isograd.convert.cli.export import Written, written
from isograd.errors import UserError
from isograd.text import must_be_a_file

if TYPE_CHECKING:
    from isograd.convert.parity import ParityReport

Each = Annotated[list[Annotated[str, "FILE"]], EACH]
Text = Annotated[str, "FILE"]


def import_fairseq(
    checkpoint: str,
    *,
    out: Folder,
    dict: Each | None = None,  # noqa: A002  (it is --dict)
    bpe_codes: Text | None = None,
    options: Text | None = None,
    option: Annotated[list[Annotated[str, "NAME=VALUE"]], EACH] | None = None,
) -> Annotated[Result, Written]:
    """Import a model of fairseq or Transformer-Clinic (ADMIN), with a parity report.

    examples:
      isograd import checkpoint_best.pt --out ours --dict dict.de.txt --dict dict.en.txt --bpe-codes codes
      isograd import roberta.base/model.pt --out ours --dict roberta.base/dict.txt --json
      isograd import weights.safetensors --out ours --options options.json

    A checkpoint is read without running anything in it; one that wants to run something is refused. The folder gets
    the model, its tokenizer where there is a dictionary, and the parity report: its logits and what it writes beside
    those of the original. Exit code 1 where they differ, 2 for what cannot be read or represented. In both cases
    nothing is written.

    Args:
        checkpoint: a checkpoint (.pt), or its state dict in safetensors
        dict: dict.txt; for a translator the source's, then the target's, or one for both
        bpe_codes: merges of subword-nmt
        options: the options of the run as JSON, where the checkpoint has none
        option: set an option that is missing or wrong; can be repeated
    """
    must_be_a_file(Path(checkpoint))
    changes = _changes(option or [])

    def make() -> "ParityReport":
        from isograd.papers.fairseq import import_fairseq

        return import_fairseq(
            checkpoint, out, dictionaries=dict or [], codes=bpe_codes, options=options, changes=changes
        )

    return written("importing", out, make)


def import_torch(
    state: str,
    *,
    out: Folder,
    heads: int,
    norm_first: bool = False,
    activation: Literal["relu", "gelu"] = "relu",
    causal: bool = False,
    tokens: Annotated[str, "NAME"] | None = None,
    target_tokens: Annotated[str, "NAME"] | None = None,
    positions: Annotated[str, "NAME"] = "none",
    target_positions: Annotated[str, "NAME"] | None = None,
    head: Annotated[str, "NAME"] | None = None,
    scale_embedding: bool = False,
    eps: float = 1e-5,
    pad: Annotated[int, "ID"] | None = None,
    bos: Annotated[int, "ID"] | None = None,
    eos: Annotated[int, "ID"] | None = None,
) -> Annotated[Result, Written]:
    """Import a torch.nn.Transformer or TransformerEncoder, with a parity report.

    examples:
      isograd import model.pt --out ours --heads 8 --norm-first --tokens embed.weight --head out.weight --causal

    Args:
        state: a state dict, of torch.save or safetensors
        heads: attention heads (nhead)
        norm_first: Pre-LN (norm_first=True)
        activation: of the feed-forward, default relu
        causal: an encoder with a causal mask, as a language model
        tokens: name of the (source's) token embedding; without it only the layers are imported
        target_tokens: name of the target's token embedding, where it has its own
        positions: name of a learned table, or sinusoidal_interleaved (the original's), sinusoidal (fairseq's) or none
            (default)
        target_positions: the same of the target, where it has its own
        head: name of the LM head's matrix; without it the head is tied to the (target's) token embedding
        scale_embedding: token vectors are multiplied by the square root of the width
        eps: layer_norm_eps (default: 1e-5)
        pad: id of the padding token
        bos: id of the beginning-of-sequence token
        eos: id of the end-of-sequence token
    """
    must_be_a_file(Path(state))
    ids: dict[str, Any] = {"pad": pad, "bos": bos, "eos": eos}
    outside: dict[str, Any] = {"tokens": tokens, "target_tokens": target_tokens, "positions": positions, "head": head}
    outside |= {"target_positions": target_positions, "scale_embedding": scale_embedding, "causal": causal}
    layers: dict[str, Any] = {"heads": heads, "norm_first": norm_first, "activation": activation, "eps": eps}

    def make() -> "ParityReport":
        from isograd.papers.torch_nn import Layout, import_torch

        return import_torch(state, out, Layout(**layers, **outside, **ids))

    return written("importing", out, make)


_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
TAKES = {"import_fairseq": lambda name: name.endswith(_FILES) or Path(name).is_file()}


def _changes(words: list[str]) -> dict[str, Any]:
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
