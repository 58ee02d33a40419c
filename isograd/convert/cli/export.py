"""`isograd import` and `export`: models of and for other libraries, with a parity report or not at all."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

from isograd.cli.console import Result, loading
from isograd.cli.parser import EACH, Folder
from isograd.errors import IsogradError, UserError, refusing
from isograd.files import refuse_existing
from isograd.hub import must_be_a_model

if TYPE_CHECKING:
    from isograd.convert.parity import ParityReport

Each = Annotated[list[Annotated[str, "FILE"]], EACH]
Text = Annotated[str, "FILE"]


class Parity(TypedDict):
    """The parity report: what both models compute from the same inputs.

    Attributes:
        failures: what failed, each in a few words.
        inputs: kind, sequences, tokens, padding, prompts.
        files: path -> sha256 of what was written.
        source: the same of what it was made from.
        notes: what a user should know, a sentence each.
    """

    passed: bool
    failures: list[str]
    about: str
    logits: list[Annotated[Any, "isograd.convert.parity:Logits"]]
    generated: list[Annotated[Any, "isograd.convert.parity:Generated"]]
    inputs: dict[str, Any]
    files: dict[str, str]
    source: dict[str, str]
    versions: dict[str, str]
    notes: list[str]
    date: NotRequired[str]


class Written(Parity):
    """A model that was written, null where nothing was, and its parity report."""

    model: str | None


class Exported(Parity):
    """A model for another library, its folder null where nothing was written, and its parity report."""

    folder: str | None
    to: NotRequired[str]
    form: NotRequired[str]


def import_hf(folder: str, *, out: Folder) -> Annotated[Result, Written]:
    """Import a model of transformers, of some thirty classes from GPT-2 to Gemma 3, with a parity report.

    examples:
      isograd import gpt2 --out ours

    Args:
        folder: the folder of a model, or its name on the hub
    """
    refuse_existing(out)
    must_be_a_model(folder)

    def make() -> "ParityReport":
        from isograd.convert.pretrained import import_pretrained

        return import_pretrained(folder, out)

    return written("importing", out, make)


def export(
    model: str,
    *,
    out: Folder,
    to: Annotated[str, "NAME"] = "auto",
    untie: bool = False,
    text: Text | None = None,
    license: Annotated[str, "ID"] | None = None,  # noqa: A002  (it is --license)
    push: Annotated[str, "REPO"] | None = None,
) -> Annotated[Result, Exported, Written]:
    """Export a model as a class of transformers, or for another runtime, with a parity report.

    --to  auto: the nearest class of transformers that holds the model exactly
          gpt2, opt, llama, qwen3, gpt-neox; bert, roberta, roberta-prelayernorm, megatron-bert;
          bart, mbart, fsmt, marian, m2m100, blenderbot
          isograd: our own class, for every placement
          folded: the same with residual coefficients folded into the weights: ADMIN and DeepNorm become post-ln,
          HeadScale goes into W_O, a scale into W_O and W_2
          onnx, ctranslate2, ctranslate2-int8, gguf: for onnxruntime, CTranslate2 and llama.cpp

    examples:
      isograd export runs/pre-ln-12l --out gpt2-like
      isograd export runs/multi30k-admin --out plain --to fsmt --text test.de
      isograd export runs/normformer --out ours --to isograd
      isograd export runs/multi30k-admin --out plain --to folded --untie
      isograd export runs/pre-ln-12l --out plain --push me/my-model

    Coefficients (ADMIN, DeepNorm) are folded first. The folder gets weights, configuration, tokenizer, generation
    settings, the parity report and a model card; it loads with transformers alone. Exit code 1 where the report does
    not hold (nothing is written then) or a push fails, 2 for what cannot be exported.

    Args:
        model: the folder of a run or of its model, or a model's name on the hub
        to: a class or a format, listed below (default: auto)
        untie: with --to folded: own copies of a token table that has to be scaled for head and encoder
        text: real text for the parity report (default: random ids)
        license: of the model, for its card: an identifier of the hub, such as apache-2.0
        push: upload the folder to the Hugging Face hub afterwards, as OWNER/NAME
    """
    refuse_existing(out)  # before anything is loaded
    must_be_a_model(model, owned=True)
    if untie and to != "folded":
        raise UserError("--untie is for --to folded")
    with loading("exporting"):
        from isograd.convert.export import export_folder
        from isograd.convert.parity import ParityError

        try:
            with refusing(ValueError, ImportError):  # of the data, of the model, of what cannot be exported
                exported = export_folder(model, out, to=to, untie=untie, lines=_lines(text), license=license)
        except ParityError as error:
            return differs(error.report, {"model": str(out)} if to == "folded" else {"folder": None})
    own = {"folder": str(out), "to": exported.to, "form": exported.form}
    content = ({"model": str(out)} if to == "folded" else own) | exported.report.as_dict()
    lines = (exported.report, f"model: {out}" if to == "folded" else f"{exported.form} (--to {exported.to}): {out}")
    return _pushed(Result(content, lambda: print(*lines, sep="\n")), out, push)


def written(doing: str, out: Path, make: Callable[[], "ParityReport"]) -> Result:
    """Make the folder `out`; its parity report."""
    refuse_existing(out)  # before anything is loaded
    with loading(doing):
        from isograd.convert.parity import ParityError

        try:
            found = make()
        except ParityError as error:
            return differs(error.report, {"model": str(out)})
        except IsogradError:
            raise
        except (ValueError, RuntimeError) as error:  # of the file, its options, its weights; of what cannot be folded
            raise UserError(str(error)) from error
        except TypeError as error:  # a list or a word where the original has a number
            raise UserError(f"an option has a value of the wrong type: {error}") from error
    return Result({"model": str(out)} | found.as_dict(), lambda: print(found, f"model: {out}", sep="\n"))


def differs(found: "ParityReport", about: dict[str, Any]) -> Result:
    """Of a model that does not compute what the original does."""
    faults = [f"{'; '.join(found.failures())}; nothing is written"]
    return Result(about | found.as_dict(), lambda: print(found), faults, code=1)


def _lines(path: str | None) -> list[str] | None:
    from isograd.text import read

    return [line for _, text in read(path) for line in text.splitlines()] if path else None


def _pushed(result: Result, out: Path, repo: str | None) -> Result:
    """Upload the folder, if that is asked for; exit code 1 where it fails, which leaves the folder as it is."""
    if repo is None or result.code:
        return result
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        api.create_repo(repo, exist_ok=True)
        url = api.upload_folder(folder_path=out, repo_id=repo, commit_message="isograd export")
    except Exception as error:  # the hub raises many kinds; a user needs one line
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        return replace(result, faults=[f"{repo}: not pushed ({said}); the folder {out} is complete"], code=1)
    return replace(result, faults=[f"pushed: {url}"])
