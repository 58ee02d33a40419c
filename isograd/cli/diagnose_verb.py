"""`isograd diagnose MODEL`: the depth profile of any model."""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isograd.cli.console import output
from isograd.errors import UserError, one_line

if TYPE_CHECKING:
    from torch import Tensor, nn

    from isograd.diagnose import Profile

_EPILOG = """\
MODEL is a folder with a checkpoint (or with a config.json only: a model at its start), the folder of an isograd run, a
hub id, or package.module:callable, a function without arguments that returns an nn.Module (found from the working
directory too).

examples:
  isograd diagnose gpt2
  isograd diagnose runs/compare/pre-ln-12l --text notes.txt
  isograd diagnose my_model:build --batch my_model:batch --json

Writes a page, the numbers and the figures. Exit code 1 where no sublayers are found, 2 on bad input."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("model", metavar="MODEL", help="a folder, a hub id, or package.module:callable")
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--batch", metavar="MODULE:CALLABLE", help="returns what forward takes; may hold labels")
    inputs.add_argument(
        "--text", type=Path, metavar="FILE", help="real text for a batch, read with the model's own tokenizer"
    )
    add("--seed", type=int, default=0, metavar="N", help="of random labels and of the perturbation (default 0)")
    add("--out", type=Path, metavar="DIR", help="where to write (default: runs/diagnose/NAME)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="of the backward pass (default cpu)")
    add("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    out = options.out or Path("runs/diagnose") / (re.sub(r"[^\w.-]+", "-", options.model).strip("-.") or "model")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: not a folder")
    console, begun = Console(file=sys.stderr), time.perf_counter()
    with console.status("loading torch") as status:
        from isograd.cli.quiet import quiet
        from isograd.errors import ProfileError
        from isograd.report.profile_page import plain, write_profile

        quiet()
        try:
            found = _profile(options, status.update)
        except ProfileError as error:
            print(f"isograd diagnose: {one_line(error)}", file=sys.stderr)
            return 1
        status.update("drawing")
        content = plain(found.as_dict())
        page = write_profile(out, content, _facts(options, time.perf_counter() - begun))
    if options.json:
        print(json.dumps(content | {"page": str(page)}, indent=2, ensure_ascii=False))
    else:
        _tell(content, page)
    return 0


def _profile(options: argparse.Namespace, told: Callable[[str], None]) -> "Profile":
    import torch

    from isograd.diagnose import profile
    from isograd.errors import InputsError, ModelError, ProfileError
    from isograd.trace.load import load_callable, load_model

    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here")
    given = f" on what {options.batch} returns" if options.batch else ""
    try:
        told(f"loading {options.model}")
        model = load_model(options.model)
        inputs = load_callable(options.batch)() if options.batch else None
        labels = None
        if options.text:
            inputs, labels = _of_text(model, options)
        return profile(model, inputs, labels, options.seed, device=options.device, progress=told)
    except (ModelError, InputsError, UserError) as error:
        raise UserError(one_line(error)) from error
    except ProfileError:
        raise
    except Exception as error:  # a model's own code raises what it likes
        raise UserError(f"{options.model} does not run{given}: {type(error).__name__}: {one_line(error)}") from error


def _of_text(model: "nn.Module", options: argparse.Namespace) -> tuple[Any, "Tensor | None"]:
    """Inputs and labels of the text; random tokens, which is said, where the model has no tokenizer for it."""
    from isograd.data.text import read
    from isograd.errors import DataError, InputsError
    from isograd.trace.inputs import text_inputs

    try:
        documents = read(str(options.text))
    except DataError as error:
        raise UserError(f"--text {one_line(error)}") from error
    try:
        return text_inputs(model, options.model, "\n".join(text for _, text in documents), options.seed)
    except InputsError as error:
        print(f"isograd diagnose: random tokens in place of {options.text}: {one_line(error)}", file=sys.stderr)
        return None, None


def _facts(options: argparse.Namespace, seconds: float) -> dict[str, str]:
    import torch
    import transformers

    from isograd import __version__

    return {
        "model": options.model,
        "inputs": str(options.text or options.batch or "random"),
        "seed": str(options.seed),
        "seconds": f"{seconds:.1f}",
        "isograd": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _tell(content: dict[str, Any], page: Path) -> None:
    from isograd.report import profile_page

    console = output()
    names, lines = profile_page.HEADER, list(profile_page.lines(content, profile_page.MOST))
    shown = profile_page.fitting(lines, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i in shown:
        table.add_column(names[i], justify="left" if i < 3 else "right", no_wrap=True)
    for cells in lines:
        table.add_row(*(escape(cells[i]) for i in shown))
    console.print(profile_page.summary(content), markup=False)
    console.print()
    console.print(table)
    console.print(f"[dim]{_LEGEND}[/dim]\n")
    for quantity, value in profile_page.overview(content).lines:
        console.print(f"{quantity}: {value}", markup=False)
    for name, reason in content["missing"].items():
        console.print(f"Missing: {name}: {reason}", markup=False)
    console.print(f"\npage: {page}", markup=False, soft_wrap=True)


_LEGEND = (
    "|grad|: of all parameters; mean|g|: of the last projection; Var b/s: branch over skip; β²: the branch's part in"
    " the sum; amplif.: mean square change under ±1e-5 on all matrices, over 1e-10; entropy: of the attention, of equal"
    " weights' 100%; several layers: the median, of Σβ² the last, of maxima the largest"
)
