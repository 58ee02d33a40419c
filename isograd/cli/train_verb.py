"""`isograd train RECIPE key=value ...`: one training."""

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from isograd.errors import UserError, one_line

_EPILOG = """\
examples:
  isograd train recipes/number-words.yaml
  isograd train recipes/post-ln-collapses-without-warmup.yaml training.warmup=150
  isograd train model.layers=36 training.lr=3e-4
  isograd train recipes/normformer2021/clm-1.3b.yaml --dry-run --world-size 8
  torchrun --standalone --nproc-per-node 2 -m isograd train RECIPE training.fsdp=true

Killed or interrupted, the same command goes on from the last checkpoint."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("recipe", nargs="?", help="a YAML recipe (default: the defaults of every key)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as model.layers=36")
    parser.add_argument("--out", type=Path, help="folder of the run (default: runs/NAME, NAME from recipe or settings)")
    parser.add_argument(
        "--keys", action="store_true", help="print every key with its value (with no recipe: its default), and stop"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print parameters, memory, tokens and rates, and stop: nothing is built"
    )
    parser.add_argument("--world-size", type=int, metavar="N", help="devices that --dry-run reckons with (default: 1)")
    parser.add_argument("--json", action="store_true", help="the outcome as one JSON object on stdout")
    parser.set_defaults(run=run, words="overrides")


def run(options: argparse.Namespace) -> int:
    from isograd.errors import RecipeError

    try:
        recipe = _recipe(options)
    except RecipeError as error:
        raise UserError(str(error)) from error
    if options.keys:
        import yaml

        print(yaml.safe_dump(recipe.as_dict(), sort_keys=False), end="")
        return 0
    if options.dry_run:
        return _forecast(recipe, options)
    if options.world_size is not None:
        raise UserError("--world-size is read by --dry-run only; a training takes the processes that torchrun starts")
    return _train(recipe, options)


def _recipe(options: argparse.Namespace) -> Any:
    from isograd.train.recipe import load_run

    overrides = list(options.overrides)
    path = options.recipe
    if path and "=" in path:
        overrides.insert(0, path)
        path = None
    return load_run(Path(path) if path else None, overrides)


def _forecast(recipe: Any, options: argparse.Namespace) -> int:
    from isograd.cli.forecast_table import print_forecast
    from isograd.errors import RecipeError
    from isograd.train.forecast import forecast

    devices = 1 if options.world_size is None else options.world_size
    if devices < 1:
        raise UserError(f"--world-size {devices}: expected a whole number of devices, at least 1")
    try:
        found = forecast(recipe, devices)
    except RecipeError as error:
        raise UserError(one_line(error)) from error
    if options.json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        print_forecast(found)
    return 0


def _train(recipe: Any, options: argparse.Namespace) -> int:
    from rich.console import Console

    from isograd.cli.progress import showing

    console = Console(stderr=True)
    with console.status("loading torch"):
        import torch
        from accelerate import PartialState

        from isograd.cli.quiet import quiet
        from isograd.errors import DataError, FolderBusyError, RecipeError, UnknownPlacement
        from isograd.train.memory import keep_freed_memory
        from isograd.train.train import train

        quiet()
        keep_freed_memory()
    console.quiet = not PartialState(cpu=not torch.cuda.is_available()).is_main_process  # one voice of several
    folder = options.out or Path("runs") / (recipe.name or recipe.folder_name())
    try:
        with showing([recipe.model.placement], recipe.training.steps, console) as progress:
            on_step = partial(progress.in_steps_of([folder]), 0)
            outcome = train(recipe, folder, on_step, progress.validated)
            progress.end(0, outcome)
    except (DataError, RecipeError, UnknownPlacement, FolderBusyError) as error:
        raise UserError(one_line(error)) from error
    if PartialState().is_main_process:
        _tell(outcome, folder, options.json)
    return {"failed": 1, "diverged": 3}.get(outcome["outcome"], 0)


def _tell(outcome: dict[str, Any], folder: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome | {"folder": str(folder)}, indent=2))
        return
    if outcome["outcome"] == "failed":
        print(f"failed: {outcome['error']} (see {folder}/error.txt)", file=sys.stderr)
        return
    named = {"final loss": outcome.get("final_loss"), "validation loss": outcome.get("validation_loss")}
    losses = [f"{name} {loss:.4f}" for name, loss in named.items() if loss is not None]
    if outcome.get("bleu") is not None:
        losses.append(f"validation BLEU {outcome['bleu']:.1f}")
    if outcome.get("score") is not None:
        losses.append(f"{outcome['metric']} {outcome['score']:.4f} (majority line {outcome['majority']:.4f})")
    print(", ".join([outcome["outcome"], *losses]))
    from isograd.report import kept_weights

    for line in kept_weights.lines(outcome):
        print(line)
    if outcome["outcome"] != "finished" and outcome.get("reason"):
        print(f"{outcome['outcome']}: {outcome['reason']}")
    print(f"folder: {folder}")
