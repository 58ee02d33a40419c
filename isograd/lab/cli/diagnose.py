"""`isograd diagnose MODEL`: the depth profile of any model."""

import re
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.markup import escape

from isograd.cli.console import loading, output, print_json, print_lines, print_path, print_table, warn
from isograd.cli.parser import File, Folder
from isograd.errors import DataError, InputsError, IsogradError, UserError, command, one_line
from isograd.hub import must_be_a_model

if TYPE_CHECKING:
    from torch import Tensor, nn

    from isograd.diagnose import Profile


def diagnose(
    model: str,
    *,
    batch: Annotated[str, "MODULE:CALLABLE"] | None = None,
    text: File | None = None,
    seed: int = 0,
    out: Folder | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    json: bool = False,
) -> int:
    """Measure the depth profile of any model: gradients, stream, attention by sublayer.

    MODEL is a folder with a checkpoint (or with a config.json only: a model at initialization), the folder of an
    isograd run, a hub id, or package.module:callable, a function without arguments that returns an nn.Module (found
    from the working directory too).

    examples:
      isograd diagnose gpt2
      isograd diagnose runs/my-run --text notes.txt
      isograd diagnose my_model:build --batch my_model:batch --json

    Writes a page, the numbers and the figures. Exit code 1 where no sublayers are found, 2 on bad input.

    Args:
        model: a folder, a hub id, package.module:callable, or file.py:callable
        batch: returns what forward takes; may hold labels
        text: real text for a batch, read with the model's own tokenizer
        seed: of random labels and of the perturbation (default 0)
        out: where to write (default: runs/diagnose/NAME)
        device: of the backward pass (default cpu)
        json: one JSON object on stdout
    """
    if batch and text:
        raise UserError("--batch and --text contradict each other; give one")
    folder = out or Path("runs/diagnose") / (re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder}: not a folder")
    must_be_a_model(model, callables=True)
    begun = time.perf_counter()
    with loading() as shown:
        from isograd.lab.report.pages.profile import plain, write_profile

        found = _profile(model, batch, text, seed, device, shown)
        shown("drawing")
        content = plain(found.as_dict()) | {"text": str(text) if text or batch else None}
        facts = {
            "model": model,
            "inputs": str(text or batch or "random"),
            "seed": str(seed),
            "seconds": f"{time.perf_counter() - begun:.1f}",
            **{name: version(name) for name in ("isograd", "torch", "transformers")},
        }
        page = write_profile(folder, content, facts)
    if json:
        print_json(content | {"page": str(page)})
    else:
        _print(content, page, command("explain", model, batch=batch, text=text))
    return 0


def _profile(
    name: str, batch: str | None, text: Path | None, seed: int, device: str, shown: Callable[[str], None]
) -> "Profile":
    import torch

    from isograd.diagnose import profile
    from isograd.trace.load import load_callable, load_model

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here")
    given = f" on what {batch} returns" if batch else ""
    try:
        shown(f"loading {name}")
        model = load_model(name)
        inputs, labels = load_callable(batch)() if batch else None, None
        if text:
            inputs, labels = _of_text(model, name, text, seed)
        return profile(model, inputs, labels, seed, device=device, progress=shown)
    except IsogradError:
        raise
    except Exception as error:  # a model's own code raises what it likes
        raise UserError(f"{name} does not run{given}: {type(error).__name__}: {one_line(error)}") from error


def _of_text(model: "nn.Module", name: str, path: Path, seed: int) -> tuple[Any, "Tensor | None"]:
    """Inputs and labels of the text; random tokens, which is reported, where the model has no tokenizer for it."""
    from isograd.text import read
    from isograd.trace.inputs import text_inputs

    try:
        documents = read(str(path))
    except DataError as error:
        raise UserError(f"--text {one_line(error)}") from error
    try:
        return text_inputs(model, name, "\n".join(text for _, text in documents), seed)
    except InputsError as error:
        warn("diagnose", f"random tokens in place of {path}: {one_line(error)}")
        return None, None


def _print(content: dict[str, Any], page: Path, after: str) -> None:
    from isograd.lab.report.pages import profile as profile_page

    names, lines = profile_page.HEADER, list(profile_page.lines(content, profile_page.MOST))
    shown = profile_page.fitting(lines, output().width)
    print_lines(profile_page.verdict(content), profile_page.summary(content), "")
    print_table([names[i] for i in shown], [[escape(cells[i]) for i in shown] for cells in lines], left=3)
    output().print(f"[dim]{_LEGEND}[/dim]\n")
    print_lines(*(f"{quantity}: {value}" for quantity, value in profile_page.overview(content).lines))
    print_lines(*(f"Missing: {name}: {reason}" for name, reason in content["missing"].items()))
    print_path(f"\nnext: {after}   (this beside references, and what isograd check finds)")
    print_path(f"page: {page}")


_LEGEND = (
    "|grad|: of all parameters; mean|g|: of the last projection; Var b/s: branch over skip; β²: the branch's part in"
    " the sum; amplif.: mean square change under ±1e-5 on all matrices, over 1e-10; entropy: of the attention, of equal"
    " weights' 100%; several layers: the median, of Σβ² the last, of maxima the largest"
)
