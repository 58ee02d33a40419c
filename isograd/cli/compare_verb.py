"""`isograd compare`: the main job."""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from isograd.cli.progress import showing
from isograd.errors import UserError, one_line

_EPILOG = """\
examples:
  isograd compare
  isograd compare --data FILE.txt.gz --seeds 0 1 2
  isograd compare --placements post-ln admin pre-ln --layers 36 --warmup 100 --steps 200
  isograd compare --recipe RECIPE.yaml model.layers=6 --placements post-ln pre-ln --seeds 1 2 3
  isograd compare --recipe RECIPE.yaml training.steps=500 --arm post-ln --arm post-ln training.warmup=100 --arm pre-ln

With --recipe, --layers, --lr and the like are keys: model.layers=36 right behind the recipe.
Killed or interrupted, the same command goes on where it was."""

_FLAG = re.compile(r"\b(?:model|data|training)\.(layers|width|heads|lr|warmup|steps|batch|length)\b")  # -> --layers
_DEFAULT = "post-ln without and with warm-up, pre-ln, normformer, admin, deepnorm"
_ARM = """one arm: a placement, and what differs from the recipe or the options
in this arm, such as training.warmup=400; once for each arm"""
_TEXT = """prose and code of the Python standard library;
else text (.txt .jsonl .parquet, also .gz and .xz) or the name of a data set on the hub"""


_SETTINGS = {  # what an option is in a recipe
    "layers": "model.layers",
    "width": "model.width",
    "heads": "model.heads",
    "lr": "training.lr",
    "warmup": "training.warmup",
    "steps": "training.steps",
    "batch": "training.batch",
    "length": "data.length",
    "data": "data.source",
    "field": "data.field",
    "level": "data.level",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="right behind --recipe RECIPE: changes of the recipe for all arms, such as model.layers=36;\n"
        "behind an --arm a key=value is of that arm alone",
    )
    add("--recipe", type=Path, metavar="RECIPE", help="a YAML recipe, in place of the built-in language model")
    add("--placements", nargs="+", metavar="NAME", help=f"default: {_DEFAULT}")
    add("--arm", nargs="+", action="append", metavar=("NAME", "key=value"), help=_ARM)
    add("--layers", type=int, help="default 12")
    add("--width", type=int, help="default 64")
    add("--heads", type=int, help="default 4")
    add("--lr", type=float, help="peak learning rate of Adam, default 1e-3")
    add("--warmup", type=int, help="warm-up steps of all arms (default: none, and half the steps for a second post-ln)")
    add("--steps", type=int, help="default 300")
    add("--batch", type=int, help="sequences in a batch, default 16")
    add("--length", type=int, help="tokens in a sequence, default 32")
    add("--seeds", type=int, nargs="+", help="default 0, or those of the recipe")
    add("--data", metavar="FILE", help=f"default: {_TEXT}")
    add("--field", help="key of the text in JSON lines, Parquet and data sets, default text")
    add("--level", choices=("char", "bpe"), help="tokens are characters or byte-level BPE, default char")
    add("--out", type=Path, metavar="FOLDER", help="default runs/compare, of a recipe runs/compare-NAME")
    add("--jobs", type=int, help="trainings at once (default: one per core, or one in all with a GPU)")
    add("--fresh", action="store_true", help="train again what has ended already")
    add("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.set_defaults(run=run, words="overrides")


def run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    with console.status("loading torch"):
        from isograd.cli.quiet import quiet
        from isograd.errors import DataError, FolderBusyError, RecipeError, UnknownPlacement
        from isograd.study.compare import compare
        from isograd.train.memory import keep_freed_memory

        quiet()
        keep_freed_memory()
    try:
        arms = _plan(options)
        several = len({a.run.seed for a in arms}) > 1
        labels = [a.label + (f", seed {a.run.seed}" if several else "") for a in arms]
        with showing(labels, arms[0].run.training.steps, console) as progress:
            on_step = progress.in_steps_of([arm.folder for arm in arms])
            results = compare(arms, on_step, progress.end, jobs=options.jobs, fresh=options.fresh)
    except FileExistsError as error:
        raise UserError(f"{error} (--fresh does)") from error
    except (DataError, RecipeError, UnknownPlacement, FolderBusyError) as error:
        said = one_line(error)
        raise UserError(said if options.recipe else _FLAG.sub(r"--\1", said)) from error
    return _tell(arms, results, options.json)


def _plan(options: argparse.Namespace) -> list[Any]:
    _refuse_contradictions(options)
    return _of_recipe(options) if options.recipe else _of_options(options)


def _refuse_contradictions(options: argparse.Namespace) -> None:
    if options.arm and options.placements:
        raise UserError("--arm and --placements contradict each other; write one --arm for each")
    if options.arm and options.warmup is not None:
        raise UserError(f"--warmup is not for --arm; write training.warmup={options.warmup} behind each --arm")
    if options.overrides and not options.recipe:
        raise UserError(f"{options.overrides[0]!r} goes behind --recipe RECIPE.yaml, or behind an --arm")
    for name in options.placements or ():
        if "=" in name:
            raise UserError(f"{name!r} is no placement; write it right behind the recipe, or use --arm")


def _of_recipe(options: argparse.Namespace) -> list[Any]:
    from isograd.study.compare import plan_arms
    from isograd.train.recipe import known_keys, load_arms, load_run

    base = load_run(options.recipe, options.overrides)
    for name, key in _SETTINGS.items():
        value = getattr(options, name)
        if value is not None:
            key = key if key in known_keys(base.task) else "pairs.train"
            value = f"[{value}]" if key == "pairs.train" else value
            raise UserError(f"--{name} is for the built-in language model; write {key}={value} behind --recipe")
    arms, seeds = load_arms(options.recipe)
    arms = options.arm or [[name] for name in options.placements or ()] or arms
    folder = options.out or Path("runs") / f"compare-{base.name or options.recipe.stem}"
    return plan_arms(folder, base, arms, options.seeds or seeds)


def _of_options(options: argparse.Namespace) -> list[Any]:
    from isograd.study.compare import plan, plan_arms
    from isograd.train.run import Model
    from isograd.train.tasks.language import LanguageRun, TextData, TextTraining

    kinds: dict[str, Any] = {"model": Model, "data": TextData, "training": TextTraining}
    given: dict[str, dict[str, Any]] = {section: {} for section in kinds}
    for name, key in _SETTINGS.items():
        section, _, field = key.partition(".")
        value = getattr(options, name)
        if value is not None and name != "warmup":
            given[section][field] = _source(value) if name == "data" else value
    sections = {section: kinds[section](**values) for section, values in given.items()}
    folder, seeds = options.out or Path("runs/compare"), options.seeds or [0]
    if options.arm:
        return plan_arms(folder, LanguageRun(**sections), options.arm, seeds)
    return plan(folder, placements=options.placements, warmup=options.warmup, seeds=seeds, **sections)


def _source(name: str) -> str:
    """Files by their absolute path, so that the same file is the same run from any folder."""
    return str(Path(name).resolve()) if name != "embedded" and Path(name).exists() else name


def _tell(arms: list[Any], results: list[dict[str, Any]], as_json: bool) -> int:
    from isograd.cli.compare_table import print_table
    from isograd.report.runs_page import write_report

    failed = [r for r in results if r["outcome"] == "failed"]
    report = write_report([a.folder for a in arms], arms[0].folder.parent)
    if as_json:
        content = {"unigram_entropy": _entropy(arms), "arms": results, "report": str(report)}
        print(json.dumps(content, indent=2))
    else:
        print_table([a.folder for a in arms], report)
    for result in failed:
        trace = Path(result["folder"]) / "error.txt"
        see = f" (see {trace})" if trace.exists() else ""
        print(f"{result['arm']} failed: {result['error']}{see}", file=sys.stderr)
    return 1 if failed else 0


def _entropy(arms: list[Any]) -> float | None:
    from isograd.report.runs import read_run

    known = [read_run(a.folder).resolved for a in arms]
    return next((r["data"].get("unigram_entropy") for r in known if r), None)
