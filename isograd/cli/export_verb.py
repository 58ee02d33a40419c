"""`isograd export MODEL OUT`: a trained model as a class of transformers, or in the format of another runtime."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from isograd.errors import UserError, one_line

if TYPE_CHECKING:
    from isograd.interop.forms import Written

_EPILOG = """\
--to  auto: the nearest class of transformers that holds the model exactly
      gpt2, opt, llama, qwen3, gpt-neox; bert, roberta, roberta-prelayernorm, megatron-bert;
      bart, mbart, fsmt, marian, m2m100, blenderbot
      isograd: our own class, for every placement
      onnx, ctranslate2, ctranslate2-int8, gguf: for onnxruntime, CTranslate2 and llama.cpp

examples:
  isograd export runs/pre-ln-12l gpt2-like
  isograd export runs/multi30k-admin plain --to fsmt --text test.de
  isograd export runs/normformer ours --to isograd
  isograd export runs/pre-ln-12l out --push me/my-model

Coefficients (ADMIN, DeepNorm) are folded first. OUT gets weights, configuration, tokenizer, generation settings,
parity.json and a model card; it loads with transformers alone. Exit code 1 where parity failed (nothing is written
then) or a push fails, 2 for what cannot be exported."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("model", metavar="MODEL", help="the folder of a run or of its model, or a model's name on the hub")
    add("out", metavar="OUT", help="a new folder, or an empty one")
    add("--to", default="auto", metavar="NAME", help="a class or a format, see below (default: auto)")
    add("--text", metavar="FILE", help="real text for the parity report (default: random ids)")
    add("--json", action="store_true", help="what was written, with its parity report, as one JSON object on stdout")
    add("--push", metavar="REPO", help="upload the folder to the Hugging Face hub afterwards, as OWNER/NAME")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from isograd.interop.parity import ParityError

    out = Path(options.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):  # before anything is loaded
        raise UserError(f"{out}: exists already; name a new folder, or remove it first")
    try:
        with Console(stderr=True).status("exporting"):
            exported = _exported(options, out)
    except ParityError as error:
        if options.json:
            print(json.dumps({"folder": None} | error.report.as_dict(), indent=2))
        else:
            print(error.report)
        print(f"isograd export: {'; '.join(error.report.failures())}; nothing is written", file=sys.stderr)
        return 1
    if options.json:
        said = {"folder": str(out), "to": exported.to, "form": exported.form}
        print(json.dumps(said | exported.report.as_dict(), indent=2))
    else:
        print(exported.report)
        print(f"{exported.form} (--to {exported.to}): {out}")
    return _pushed(out, options.push) if options.push else 0


def _exported(options: argparse.Namespace, out: Path) -> "Written":
    from isograd.cli.quiet import quiet
    from isograd.data.text import read
    from isograd.interop.export import export_folder

    quiet()
    try:
        lines = [line for _, text in read(options.text) for line in text.splitlines()] if options.text else None
        return export_folder(options.model, out, to=options.to, lines=lines)
    except (ValueError, ImportError) as error:  # of the data, of the model, of what cannot be exported
        raise UserError(one_line(error)) from error


def _pushed(out: Path, repo: str) -> int:
    """Upload the folder; 1 where that fails, which leaves the folder as it is."""
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        api.create_repo(repo, exist_ok=True)
        url = api.upload_folder(folder_path=out, repo_id=repo, commit_message="isograd export")
    except Exception as error:  # the hub raises many kinds; a user needs one line
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        print(f"isograd export: {repo}: not pushed ({said}); the folder {out} is complete", file=sys.stderr)
        return 1
    print(f"pushed: {url}", file=sys.stderr)
    return 0
