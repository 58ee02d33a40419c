"""`isograd train RECIPE key=value ...`: one run, or with --dry-run what it will need."""

import os
import shlex
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from rich.markup import escape

from isograd.cli.console import (
    Result,
    bytes_in_words,
    loading,
    must_be_writable,
    output,
    progress,
)
from isograd.cli.parser import Count, File, Folder, Words
from isograd.cli.schema import Open
from isograd.errors import UserError, many
from isograd.lab.cli.progress import Ended, RunProgress, announce_runs

if TYPE_CHECKING:
    from isograd.lab.train.forecast.forecast import Forecast
    from isograd.lab.train.run import Run

Row = tuple[str, str, str]
TAKES = {"init_recipe": lambda name: False}  # which --new asks for


class Forecasted(TypedDict):
    """What a run will take; memory in bytes on each device, rates at the turns of the schedule."""

    parameters: int
    parts: dict[str, int]
    non_embedding: int
    vocabulary: int
    devices: int
    memory: dict[str, Any]
    tokens_per_update: int
    steps: int
    tokens: int
    tokens_per_parameter: float
    flops: float
    rates: list[dict[str, float]]


class Recipe(Open):
    """The keys of a recipe."""

    task: str
    training: dict[str, Any]


class NewRecipe(Recipe):
    """A recipe that was written, and its file."""

    recipe: str


def train(
    recipe: str | None = None,
    *overrides: Words,
    out: Folder | None = None,
    keys: bool = False,
    dry_run: bool = False,
    world_size: Count | None = None,
) -> Annotated[Result, Ended, Forecasted, Recipe]:
    """Train one model from a recipe.

    examples:
      isograd train number-words
      isograd train post-ln-collapses-without-warmup training.warmup=150
      isograd train model.layers=36 training.lr=3e-4
      isograd train normformer2021/clm-1.3b --dry-run --world-size 8
      torchrun --standalone --nproc-per-node 2 -m isograd train RECIPE training.fsdp=true

    Killed or interrupted, the same command goes on from the last checkpoint.

    Args:
        recipe: a YAML recipe, by path or name (default: every key at its default)
        overrides: such as model.layers=36
        out: folder of the run (default: runs/NAME, NAME from recipe or settings)
        keys: print every key with its value and exit
        dry_run: print parameters, memory, tokens and learning rates, and exit; nothing is built
        world_size: devices that --dry-run assumes (default: 1)
    """
    from isograd.lab.train.recipe import load_run

    words = [word for word in (recipe, *overrides) if word]
    path = Path(words.pop(0)) if words and "=" not in words[0] else None
    run = load_run(path, words)
    if keys:
        import yaml

        every = run.as_dict(everything=True)
        return Result(every, lambda: print(yaml.safe_dump(every, sort_keys=False), end=""))
    if not run.pretrained:  # which may have a formula of its own
        run.entry()  # refused before torch is loaded
    if dry_run:
        return _forecast(run, world_size or 1)
    if world_size is not None:
        raise UserError("--world-size is read by --dry-run only; a run takes the processes that torchrun starts")
    return _train(run, out)


def init_recipe(
    *text: str,
    new: bool = False,
    task: Literal["language", "masked"] = "language",
    out: File | None = None,
) -> Annotated[Result, NewRecipe]:
    """Write a first recipe for your own text, with a reason beside each setting.

    examples:
      isograd train --new my.txt
      isograd train my.yaml
      isograd train --new wikipedia/train.txt.xz --out wiki.yaml
      isograd train --new train.de train.en                 translation; also one file of two columns, pairs.tsv

    Nothing is asked: level, length, depth and batch follow from the text, so that a first run takes about a minute.

    Args:
        text: files (.txt, .jsonl, .parquet, plain or .gz or .xz), a data set's name, or parallel text: two files of as
            many lines whose names differ in the language, or a .tsv of two columns (default: the embedded text)
        new: write a recipe, and train nothing
        task: of text that is not parallel
        out: the recipe (default: NAME.yaml here, NAME from the first text); never one that exists
    """
    sources = list(text) or ["embedded"]
    path = out or Path(f"{Path(sources[0]).name.partition('.')[0] or 'text'}.yaml")
    if path.exists():
        raise UserError(f"{path} exists; name another by --out FILE")
    must_be_writable(path)
    from isograd.files import write_text
    from isograd.lab.train.recipe import load_run
    from isograd.lab.train.suggest import look, recipe_for, recipe_for_pairs, sides_of

    with progress().status("reading the text"):
        if (sides := sides_of(sources)) is not None:
            recipe, count = recipe_for_pairs(sides, path)
            size = f"{count:,} pairs"
        else:
            facts = look(sources)
            recipe, size = recipe_for(sources, facts, path, task), f"{facts.characters:,} characters"
    write_text(path, recipe)
    run = load_run(path)
    shape = f"{many(run.layers or 0, 'layer')}, {many(run.training.steps, 'step')}"
    lines = (f"{path}: {size}, {shape}", f"isograd train {shlex.quote(str(path))}")
    return Result({"recipe": str(path), **run.as_dict()}, lambda: print(*lines, sep="\n"))


def _train(run: "Run", out: Path | None) -> Result:
    folder = out or Path("runs") / (run.name or run.folder_name())
    if not (folder / "run.json").exists():
        run.must_find_its_data()
    if os.environ.get("RANK", "0") == "0":  # one voice of several
        announce_runs([folder], folder)
    with loading():
        import torch
        from accelerate import PartialState

        from isograd.lab.train.train import train as train_run

    state = PartialState(cpu=not torch.cuda.is_available())
    before = _written(folder / "outcome.json")
    with RunProgress(run.model.placement, run.training.steps, folder) as bar:
        bar.console.quiet |= not state.is_main_process  # one voice of several
        outcome = train_run(run, folder, bar.step, bar.validated)
        bar.ended(outcome)
    code = {"failed": 1, "diverged": 3}.get(outcome["outcome"], 0)
    if not state.is_main_process:
        return Result(code=code)
    _write_card(folder)
    again = before == _written(folder / "outcome.json")
    faults = [f"failed: {outcome['error']} (see {folder}/error.txt)"] if outcome["outcome"] == "failed" else []
    return Result(outcome | {"folder": str(folder)}, partial(_print, outcome, folder, again), faults, code)


def _written(path: Path) -> int | None:
    """When a file was written; None where it is not there."""
    return path.stat().st_mtime_ns if path.exists() else None


def _write_card(folder: Path) -> None:
    """README.md of the model, as the hub reads it, once."""
    if (folder / "model").is_dir() and not (folder / "model" / "README.md").exists():
        from isograd.convert.checkpoints.card import write_run_card

        write_run_card(folder)


def _print(outcome: dict[str, Any], folder: Path, again: bool) -> None:
    if outcome["outcome"] == "failed":
        return
    named = {"final loss": outcome.get("final_loss"), "validation loss": outcome.get("validation_loss")}
    losses = [f"{name} {loss:.4f}" for name, loss in named.items() if loss is not None]
    if outcome.get("bleu") is not None:
        losses.append(f"validation BLEU {outcome['bleu']:.1f}")
    if outcome.get("score") is not None:
        losses.append(f"{outcome['metric']} {outcome['score']:.4f} (majority-class baseline {outcome['majority']:.4f})")
    print(", ".join([outcome["outcome"], *losses]))
    from isograd.lab.report import kept_weights

    for line in kept_weights.lines(outcome):
        print(line)
    if outcome["outcome"] != "finished" and outcome.get("reason"):
        print(f"{outcome['outcome']}: {outcome['reason']}")
    print(f"folder: {folder}")
    if again:
        print("it had ended before, and nothing was trained again; --out FOLDER starts another run")


def _forecast(run: "Run", devices: int) -> Result:
    from isograd.lab.train.forecast.forecast import forecast

    found = forecast(run, devices)
    return Result(found.as_dict(), partial(_print_forecast, run, found, devices))


def _print_forecast(run: "Run", found: "Forecast", devices: int) -> None:
    """What will be built, what a device holds, what the run takes; three tables, and the rates in a line."""
    from isograd.lab.train.run import sharded_by

    console = output()
    console.print(f"[bold]{run.name or run.task}[/bold]  ", end="")
    console.print(_shape(found), markup=False)
    sharded = "sharded" if sharded_by(run.training) else "replicated" if devices > 1 else "whole"
    each = "1 device" if devices == 1 else f"each of {devices} devices"
    _table("parameters", _parameters(found))
    _table(f"memory of {each}, {sharded}", _memory(found))
    _table("training", _training(found))
    console.print(f"\n[bold]learning rate[/bold]  {rates_in_words(found)}")


def _table(title: str, rows: Iterable[Row]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(min_width=24)
    table.add_column(justify="right", min_width=22)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*map(escape, row))
    output().print(f"\n[bold]{title}[/bold]")
    output().print(table)


def rates_in_words(found: "Forecast") -> str:
    """The rate where the schedule turns, such as "0 in update 1, 0.0006 in update 750 (warm-up 750, polynomial)"."""
    t, warmup = found.run.training, found.run.warmup_in_words
    turns = ", ".join(f"{rate:.3g} in update {step:,}" for step, rate in found.rates)
    return f"{turns} ({warmup}, {t.decay})" if turns else f"peak {t.lr:g}, {warmup}, {t.decay}"


def _shape(found: "Forecast") -> str:
    run, config = found.run, found.config
    layers = f"{config.encoder_layers} + " if config.encoder_layers else ""
    return (
        f"{config.placement}, {layers}{many(config.num_hidden_layers, 'layer')}, width {config.hidden_size},"
        f" {many(config.num_attention_heads, 'head')}, feed-forward {config.intermediate_size},"
        f" vocabulary {_up_to(run)}{config.vocab_size:,}, {run.training.precision}"
    )


def _up_to(run: "Run") -> str:
    """What is known of the vocabulary's size before data are read."""
    said = {None: "", "char": "of characters, taken as ", "subword-nmt": "of merges, taken as "}
    return said.get(run.vocabulary, "up to ")


def _parameters(found: "Forecast") -> Iterable[Row]:
    from isograd.lab.train.forecast.memory import PARTS

    for part in PARTS:
        if found.parts[part]:
            yield part, f"{found.parts[part]:,}", f"{found.parts[part] / found.parameters:6.2%}"
    yield "all", f"{found.parameters:,}", _scaled(found.parameters, "TBMk", 12)
    yield "without embeddings", f"{found.non_embedding:,}", _scaled(found.non_embedding, "TBMk", 12)


def _memory(found: "Forecast") -> Iterable[Row]:
    from isograd.lab.train.forecast.memory import loss_chunk
    from isograd.lab.train.run import sharded_by

    m, t = found.memory, found.run.training
    again = "with" if t.gradient_checkpointing else "without"
    for name, count, note in (
        ("parameters", m.parameters, "float32"),
        ("gradients", m.gradients, "float32"),
        ("optimizer", m.optimizer, t.optimizer),
        ("these three", m.static, "exact"),
        ("copies", m.copies, f"gathered, {t.precision}" if t.fsdp else f"matrices in {t.precision}"),
        ("buckets", m.buckets, "gradients being reduced"),
        ("activations", m.activations, f"{again} gradient checkpointing"),
        ("loss", m.loss, f"in chunks of {loss_chunk(found.config)} rows"),
        ("at most, all", m.total, "an estimate"),
        ("calibration", m.calibration, f"before the first step{', on the host' if sharded_by(t) else ''}, float32"),
    ):
        if count:
            yield name, bytes_in_words(count), note


def _training(found: "Forecast") -> Iterable[Row]:
    epochs = found.run.training.epochs
    by_rows = epochs and found.run.counts_rows  # how many there are, only the data say
    upper = "at most " if epochs else ""
    if by_rows:
        yield "epochs", f"{epochs:,}", "of rows not yet counted"
    else:
        yield "updates", f"{upper}{found.steps:,}", ""
    yield "tokens per update", f"{found.tokens_per_update:,}", ""
    yield "per forward pass of a device", f"{found.run.micro_tokens(found.devices):,}", "tokens"
    if found.run.training.fsdp and found.devices > 1:
        from isograd.lab.train.forecast.forecast import exchanged

        exchange = exchanged(found.run, found.config, found.devices)
        yield "exchanged per update", bytes_in_words(exchange.total), "received by each device"
    if by_rows:
        return
    ratio = found.tokens / found.parameters
    yield "tokens", f"{upper}{found.tokens:,}", _scaled(found.tokens, "TBMk", 12)
    yield "tokens per parameter", f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}", ""
    yield "arithmetic", f"{found.flops:.3g} FLOP", _scaled(found.flops, "ZEPTGM", 21, "FLOP")


def _scaled(count: float, letters: str, power: int, unit: str = "") -> str:
    """With the first letter that is small enough, each 1,000 times below the one before; nothing below the last."""
    units = ((10 ** (power - 3 * i), letter) for i, letter in enumerate(letters))
    return next((f"{count / size:.3g} {letter}{unit}" for size, letter in units if count >= size), "")
