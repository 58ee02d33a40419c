"""`isograd import`, `fold` and `export`: models of and for other libraries, with a parity report or not at all."""

import json as json_
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from isograd.cli.console import loading, print_json, warn
from isograd.cli.parser import EACH, Folder
from isograd.data.text import must_be_a_file
from isograd.errors import IsogradError, UserError, refusing
from isograd.files import refuse_existing
from isograd.hub import must_be_a_model

if TYPE_CHECKING:
    from isograd.interop.parity import ParityReport

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
    json: bool = False,
) -> int:
    """Import a model of fairseq or Transformer-Clinic (ADMIN), with a parity report.

    examples:
      isograd import fairseq checkpoint_best.pt --out ours --dict dict.de.txt --dict dict.en.txt --bpe-codes codes
      isograd import fairseq roberta.base/model.pt --out ours --dict roberta.base/dict.txt --json
      isograd import fairseq weights.safetensors --out ours --options options.json

    A checkpoint is read without running anything in it; one that wants to run something is refused. The folder gets
    the model, its tokenizer where there is a dictionary, and the parity report: its logits and what it writes beside
    those of the original. Exit code 1 where they differ, 2 for what cannot be read or represented. In both cases
    nothing is written.

    Args:
        checkpoint: a checkpoint (.pt), or its state dict in safetensors
        out: a new folder, or an empty one
        dict: dict.txt; for a translator the source's, then the target's, or one for both
        bpe_codes: merges of subword-nmt
        options: the options of the run as JSON, where the checkpoint has none
        option: set an option that is missing or wrong; can be repeated
        json: the parity report as one JSON object on stdout
    """
    must_be_a_file(Path(checkpoint))
    changes = _changes(option or [])

    def make() -> "ParityReport":
        from isograd.interop.fairseq import import_fairseq

        return import_fairseq(
            checkpoint, out, dictionaries=dict or [], codes=bpe_codes, options=options, changes=changes
        )

    return _written("import", "importing", out, json, make)


def import_hf(folder: str, *, out: Folder, json: bool = False) -> int:
    """Import a model of transformers, of some thirty classes from GPT-2 to Gemma 3, with a parity report.

    examples:
      isograd import hf gpt2 --out ours

    Args:
        folder: the folder of a model, or its name on the hub
        out: a new folder, or an empty one
        json: the parity report as one JSON object on stdout
    """
    refuse_existing(out)
    must_be_a_model(folder)

    def make() -> "ParityReport":
        from isograd.interop.pretrained import import_pretrained

        return import_pretrained(folder, out)

    return _written("import", "importing", out, json, make)


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
    json: bool = False,
) -> int:
    """Import a torch.nn.Transformer or TransformerEncoder, with a parity report.

    examples:
      isograd import torch model.pt --out ours --heads 8 --norm-first --tokens embed.weight --head out.weight --causal

    Args:
        state: a state dict, of torch.save or safetensors
        out: a new folder, or an empty one
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
        json: the parity report as one JSON object on stdout
    """
    given = locals()
    must_be_a_file(Path(state))

    def make() -> "ParityReport":
        from isograd.interop.torch_nn import Layout, import_torch

        return import_torch(state, out, Layout(**{field.name: given[field.name] for field in fields(Layout)}))

    return _written("import", "importing", out, json, make)


def fold(model: str, *, out: Folder, untie: bool = False, text: Text | None = None, json: bool = False) -> int:
    """Fold residual coefficients into the weights, with a parity report.

    examples:
      isograd fold runs/multi30k-admin --out plain --untie
      isograd fold runs/deepnorm/model --out plain --text valid.txt --json

    ADMIN and DeepNorm become post-ln, HeadScale goes into W_O, a scale into W_O and W_2. The folder gets the model, its
    tokenizer and the parity report: the largest difference between logits in fp64, fp32 and bf16, greedy and beam
    outputs side by side, hashes and versions. Exit code 1 where it does not hold (nothing is written then), 2 for what
    cannot be folded.

    Args:
        model: the folder of a run or of its model, or a model's name on the hub
        out: a new folder, or an empty one
        untie: give head and encoder own copies of a token table that has to be scaled
        text: real text for the parity report (default: random ids)
        json: the parity report as one JSON object on stdout
    """
    refuse_existing(out)
    must_be_a_model(model, owned=True)

    def make() -> "ParityReport":
        from isograd.interop.fold import fold_folder

        return fold_folder(model, out, untie=untie, lines=_lines(text))

    return _written("fold", "folding", out, json, make)


def export(
    model: str,
    *,
    out: Folder,
    to: Annotated[str, "NAME"] = "auto",
    text: Text | None = None,
    license: Annotated[str, "ID"] | None = None,  # noqa: A002  (it is --license)
    push: Annotated[str, "REPO"] | None = None,
    json: bool = False,
) -> int:
    """Export a model as a class of transformers, or for another runtime, with a parity report.

    --to  auto: the nearest class of transformers that holds the model exactly
          gpt2, opt, llama, qwen3, gpt-neox; bert, roberta, roberta-prelayernorm, megatron-bert;
          bart, mbart, fsmt, marian, m2m100, blenderbot
          isograd: our own class, for every placement
          onnx, ctranslate2, ctranslate2-int8, gguf: for onnxruntime, CTranslate2 and llama.cpp

    examples:
      isograd export runs/pre-ln-12l --out gpt2-like
      isograd export runs/multi30k-admin --out plain --to fsmt --text test.de
      isograd export runs/normformer --out ours --to isograd
      isograd export runs/pre-ln-12l --out plain --push me/my-model

    Coefficients (ADMIN, DeepNorm) are folded first. The folder gets weights, configuration, tokenizer, generation
    settings, the parity report and a model card; it loads with transformers alone. Exit code 1 where the report does
    not hold (nothing is written then) or a push fails, 2 for what cannot be exported.

    Args:
        model: the folder of a run or of its model, or a model's name on the hub
        out: a new folder, or an empty one
        to: a class or a format, listed below (default: auto)
        text: real text for the parity report (default: random ids)
        license: of the model, for its card: an identifier of the hub, such as apache-2.0
        push: upload the folder to the Hugging Face hub afterwards, as OWNER/NAME
        json: what was written, with its parity report, as one JSON object on stdout
    """
    refuse_existing(out)  # before anything is loaded
    must_be_a_model(model, owned=True)
    with loading("exporting"):
        from isograd.interop.export import export_folder
        from isograd.interop.parity import ParityError

        try:
            with refusing(ValueError, ImportError):  # of the data, of the model, of what cannot be exported
                exported = export_folder(model, out, to=to, lines=_lines(text), license=license)
        except ParityError as error:
            return _differs("export", error.report, {"folder": None}, json)
    if json:
        said = {"folder": str(out), "to": exported.to, "form": exported.form}
        print_json(said | exported.report.as_dict())
    else:
        print(exported.report)
        print(f"{exported.form} (--to {exported.to}): {out}")
    return _pushed(out, push) if push else 0


def _written(verb: str, doing: str, out: Path, json: bool, make: Callable[[], "ParityReport"]) -> int:
    """Make the folder `out`, print its parity report, and return the exit code."""
    refuse_existing(out)  # before anything is loaded
    with loading(doing):
        from isograd.interop.parity import ParityError

        try:
            found = make()
        except ParityError as error:
            return _differs(verb, error.report, {"model": str(out)}, json)
        except IsogradError:
            raise
        except (ValueError, RuntimeError) as error:  # of the file, its options, its weights; of what cannot be folded
            raise UserError(str(error)) from error
        except TypeError as error:  # a list or a word where the original has a number
            raise UserError(f"an option has a value of the wrong type: {error}") from error
    if json:
        print_json({"model": str(out)} | found.as_dict())
    else:
        print(found)
        print(f"model: {out}")
    return 0


def _differs(verb: str, found: "ParityReport", about: dict[str, Any], json: bool) -> int:
    if json:
        print_json(about | found.as_dict())
    else:
        print(found)
    warn(verb, f"{'; '.join(found.failures())}; nothing is written")
    return 1


def _lines(path: str | None) -> list[str] | None:
    from isograd.data.text import read

    return [line for _, text in read(path) for line in text.splitlines()] if path else None


def _changes(words: list[str]) -> dict[str, Any]:
    """Values as JSON where they are such, else as the text that they are."""
    changes: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise UserError(f"--option {word}: expected NAME=VALUE")
        try:
            changes[name] = json_.loads(value.lower() if value in ("True", "False", "None") else value)
        except ValueError:
            changes[name] = None if value == "None" else value
    return changes


def _pushed(out: Path, repo: str) -> int:
    """Upload the folder; 1 where that fails, which leaves the folder as it is."""
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        api.create_repo(repo, exist_ok=True)
        url = api.upload_folder(folder_path=out, repo_id=repo, commit_message="isograd export")
    except Exception as error:  # the hub raises many kinds; a user needs one line
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        warn("export", f"{repo}: not pushed ({said}); the folder {out} is complete")
        return 1
    warn("export", f"pushed: {url}")
    return 0
