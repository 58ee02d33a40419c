"""`isograd compare`, and `isograd evaluate --task`: runs side by side, a table and a page at the end."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from rich.markup import escape

from isograd.cli.console import (
    COLOURS,
    Result,
    output,
    print_lines,
    print_path,
    print_table,
    working,
)
from isograd.cli.parser import Folder, Name, Words
from isograd.errors import UserError
from isograd.hub import must_be_a_model
from isograd.lab.cli.progress import Ended, StudyProgress, announce_resumed, prepare_cells

if TYPE_CHECKING:
    from isograd.lab.report.runs import ArmFiles
    from isograd.lab.study.plan import Cell


class Comparison(TypedDict):
    """Runs side by side, and the page; the loss that token frequencies alone give, in nats."""

    unigram_entropy: float | None
    arms: list[Ended]
    report: str


class Tuning(TypedDict):
    """Arms with the spread of their scores over seeds, each run, and what was found, in sentences."""

    arms: list[dict[str, Any]]
    runs: list[Ended]
    findings: list[str]
    report: str


def compare(
    recipe: str | None = None,
    *overrides: Words,
    model: Annotated[str, "FILE.py:FUNCTION"] | None = None,
    placements: list[Name] | None = None,
    arm: list[list[Annotated[str, ("NAME", "key=value")]]] | None = None,
    seeds: list[int] | None = None,
    data: Annotated[str, "FILE"] | None = None,
    out: Folder | None = None,
    jobs: int | None = None,
    fresh: bool = False,
) -> Annotated[Result, Comparison, Tuning]:
    """Train placements, or models of your own, side by side; a table and a page at the end.

    examples:
      isograd compare
      isograd compare --data FILE.txt.gz --seeds 0 1 2
      isograd compare model.layers=36 training.warmup=100 training.steps=200 --placements post-ln admin pre-ln
      isograd compare RECIPE.yaml model.layers=6 --placements post-ln pre-ln --seeds 1 2 3
      isograd compare RECIPE.yaml --arm post-ln --arm post-ln training.warmup=100 --arm pre-ln
      isograd compare --model my_model.py:build --arm norm=pre --arm norm=post training.warmup=100 --data FILE.txt

    Killed or interrupted, the same command goes on where it was.

    Args:
        recipe: a YAML recipe, by path or name (default: a language model of 12 layers and width 64, 300 steps)
        overrides: of all arms, such as model.layers=36 training.lr=3e-4; right after --model: arguments of its
            function, too, such as depth=6; after an --arm: for that arm alone
        model: a model of your own: the function of a file that gives an nn.Module (which runs the file). A language
            model on --data, or what the file's batches() and loss() say
        placements: default: post-ln (without a warm-up, and with half the steps), pre-ln, normformer, admin, deepnorm
        arm: one arm: a placement (with --model arguments of the function, such as norm=post) and what differs in this
            arm, such as training.warmup=400; once for each arm
        seeds: default 0, or those of the recipe
        data: text (.txt .jsonl .parquet, also .gz and .xz) or the name of a data set on the hub, the same as
            data.source=FILE (default: prose and code of the Python standard library)
        out: default runs/compare, of a recipe runs/compare-NAME
        jobs: runs at once (default: one per core; with a GPU, one)
        fresh: train runs again that have ended already
    """
    if arm and placements:
        raise UserError("--arm and --placements contradict each other; write one --arm for each")
    path, words = read_words(recipe, overrides, model, placements)
    if data is not None:
        words.append(f"data.source={data if data == 'embedded' else json.dumps(_absolute(data))}")
    from isograd.lab.study.compare import plan
    from isograd.lab.train.recipe import load_arms, load_run

    base = load_run(path, words)
    arms, own_seeds = load_arms(path) if path else ([], [])
    named = base.name or (path.stem if path else Path(model.rpartition(":")[0]).stem if model else "")
    folder = out or Path("runs") / "-".join(filter(None, ["compare", named]))
    planned = plan(folder, base, arm or [[name] for name in placements or ()] or arms, seeds or own_seeds)
    return _report(planned, _train(planned, jobs, fresh))


def read_words(
    recipe: str | None, overrides: Sequence[str], model: str | None, placements: Sequence[str] | None
) -> tuple[Path | None, list[str]]:
    """The recipe of `RECIPE key=value ...`, and overrides of it; those of a model of the user's own name its function.

    Raises:
        UserError: a recipe or placements beside --model, or an override among the placements.
    """
    for name in placements or ():
        if "=" in name:
            raise UserError(f"{name!r} is not a placement; write it before --placements, or use --arm")
    words = [word for word in (recipe, *overrides) if word]
    path = Path(words.pop(0)) if words and "=" not in words[0] else None
    if model is None:
        return path, words
    if path or placements:
        wrong = f"recipe {path}" if path else "--placements"
        raise UserError(f"{wrong} and --model contradict each other; a recipe names its model in model.build")
    from isograd.lab.study.plan import settings_of

    return None, [f"model.build={json.dumps(_own_model(model))}", *settings_of(words, own=True)]


def classification(
    model: str,
    *overrides: Words,
    task: Literal["mrpc", "rte", "cola", "sst-2", "sts-b", "mnli", "qnli", "qqp"],
    data: Annotated[str, "FOLDER"] = "nyu-mll/glue",
    seeds: list[int] | None = None,
    lr: list[float] | None = None,
    batch: list[int] | None = None,
    epochs: list[int] | None = None,
    grid: Literal["paper"] | None = None,
    with_scratch: bool = False,
    out: Folder | None = None,
    jobs: int | None = None,
    fresh: bool = False,
) -> Annotated[Result, Tuning]:
    """Fine-tune a model on a task of GLUE over seeds and settings, beside the majority-class baseline.

    examples:
      isograd evaluate runs/mlm --task mrpc --data glue --with-scratch
      isograd evaluate runs/mlm --task rte --data glue --lr 3e-5 1e-4 3e-4 --epochs 5 --seeds 0 1 2
      isograd evaluate runs/mlm --task mrpc --data glue --grid paper
      isograd evaluate runs/mlm --task cola --data glue glue.dropout=0 training.weight_decay=0.1

    Killed or interrupted, the same command goes on where it was. A run has failed where its score on the dev part is
    not above that of a constant answer (the majority-class baseline), or where it diverged.

    Args:
        model: the folder of a run or of its model, or a model's name on the hub; masked or causal
        overrides: other settings of all runs, such as glue.length=64
        task: one of GLUE
        data: a folder of GLUE's .tsv files (plain, .gz, .xz), or a data set on the hub; default nyu-mll/glue
        seeds: default 0 to 5; fewer show no difference
        lr: learning rates, default 1e-4 (large models want 1e-5 to 5e-5)
        batch: rows in a batch, default 32
        epochs: default 3
        grid: paper: batch 16 and 32, rates 1e-5 2e-5 5e-5 1e-4, epochs 3 5 8, seeds 0 to 5, the ranges of Xiong et al.
            2020 (144 runs)
        with_scratch: also train from scratch, to see what pre-training is worth
        out: default runs/TASK-MODEL
        jobs: runs at once (default: one per core; with a GPU, one)
        fresh: train runs again that have ended already
    """
    asked = {"training.lr": lr, "training.batch": batch, "training.epochs": epochs}
    given = {key: values for key, values in asked.items() if values is not None}
    if grid and given:
        raise UserError(f"--grid paper says what {_OPTIONS[next(iter(given))]} says; leave one of them out")
    for override in overrides:
        if option := _OPTIONS.get(override.partition("=")[0]):
            raise UserError(f"{override!r}: write {option} here")

    from isograd.lab.study.compare import GRID, PAPER, PAPER_SEEDS, plan_grid, tuned

    must_be_a_model(_absolute(model), owned=True)
    base = tuned(_absolute(model), task, _absolute(data))
    axes = {"glue.scratch": (False, True) if with_scratch else (False,), **(PAPER if grid else GRID), **given}
    folder = out or Path("runs") / f"{task}-{_short(model)}"
    arms = plan_grid(folder, base, overrides, axes, seeds or list(PAPER_SEEDS))
    return _report(arms, _train(arms, jobs, fresh), title=f"Fine-tuning on {task}")


_OPTIONS = {
    "seed": "--seeds",
    "training.lr": "--lr",
    "training.batch": "--batch",
    "training.epochs": "--epochs",
    "glue.task": "--task",
    "glue.source": "--data",
    "glue.scratch": "--with-scratch",
}


def _train(arms: list["Cell"], jobs: int | None, fresh: bool) -> list[dict[str, Any]]:
    """How each arm ended."""
    from isograd.lab.study.compare import compare as compare_arms
    from isograd.lab.study.plan import ARM

    prepare_cells(arms, arms[0].folder.parent, jobs)
    announce_resumed([arm.label for arm in arms], [arm.folder for arm in arms])
    try:
        with StudyProgress(arms, [ARM]) as shown:
            return compare_arms(arms, shown.step, shown.row, jobs=jobs, fresh=fresh, on_ready=shown.ready)
    except FileExistsError as error:
        raise UserError(f"{error} (--fresh does)") from error


def _own_model(text: str) -> str:
    """FILE.py:FUNCTION with the file's absolute path, as `_absolute`.

    Raises:
        UserError: it is written in another way.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise UserError(f"--model {text}: expected FILE.py:FUNCTION, such as my_model.py:build")
    return f"{_absolute(file)}:{name}"


def _absolute(name: str) -> str:
    """Files by their absolute path, so that the same file is the same run from any folder."""
    return str(Path(name).resolve()) if Path(name).exists() else name


def _short(model: str) -> str:
    path = Path(model).resolve()
    return path.parent.name if path.name == "model" else path.name


def _report(arms: list["Cell"], results: list[dict[str, Any]], title: str | None = None) -> Result:
    from isograd.lab.report.pages.runs import write_arms
    from isograd.lab.report.runs import arms_of

    folders = [arm.folder for arm in arms]
    with working("making the page"):
        found = arms_of(folders)
        page = write_arms(found, folders[0].parent, title)
    failed = [_failure(result) for result in results if result["outcome"] == "failed"]
    content = _content(found, results) | {"report": str(page)}
    return Result(content, lambda: print_arms(found, page), failed, code=1 if failed else 0)


def _failure(result: dict[str, Any]) -> str:
    trace = Path(result["folder"]) / "error.txt"
    see = f" (see {trace})" if trace.exists() else ""
    return f"{result['arm']}, seed {result['seed']} failed: {result['error']}{see}"


def _content(found: Sequence["ArmFiles"], results: list[dict[str, Any]]) -> dict[str, Any]:
    """What a program reads: arms with their scores over the seeds, or each run as an arm."""
    from isograd.lab.report.pages import finetuning
    from isograd.lab.train.tasks import TASKS

    if found and TASKS[found[0].task].scored:
        arms = [finetuning.as_dict(arm) for arm in found]
        return {"arms": arms, "runs": results, "findings": list(finetuning.findings(found))}
    built = (run.resolved for arm in found for run in arm.runs)
    entropy = next((one["data"].get("unigram_entropy") for one in built if one), None)
    return {"unigram_entropy": entropy, "arms": results}


def print_arms(arms: Sequence["ArmFiles"], page: Path, reference: str | None = None) -> None:
    """A line per arm, what happened in sentences, and where the page is."""
    from isograd.lab.report.pages import runs as runs_page

    columns, lines = runs_page.columns(arms), runs_page.results_table(arms).lines
    names = tuple(column.short for column in columns)
    dispensable = [column.short for column in sorted(columns, key=lambda column: column.spare) if column.spare]
    shown = _fitting([names, *lines], output().width, dispensable)
    rows = []
    for arm, cells in zip(arms, lines, strict=True):
        worst = next((outcome for outcome in arm.outcomes if outcome != "finished"), "finished")
        colour = "default" if runs_page.kind_name(arms) == runs_page.RANGE_TEST else COLOURS[worst]
        rows.append([f"[{colour}]{cells[i]}[/]" if i == 1 else escape(cells[i]) for i in shown])
    print_table([names[i] for i in shown], rows, left=2, widths=[12, max(_widest(cells[1]) for cells in lines)])
    output().print(f"[dim]{runs_page.legend(arms)}[/dim]")
    print_lines("", runs_page.headline(arms), *runs_page.warnings(arms), *runs_page.findings(arms, reference))
    print_path(f"\nreport: {page}")


def _fitting(lines: Sequence[Sequence[str]], width: int, dispensable: Sequence[str]) -> list[int]:
    """Columns that a terminal has room for beside a label of 16; the files and the page have them all."""
    shown = list(range(len(lines[0])))
    for name in dispensable:
        widths = (max(_widest(cells[i]) if i == 1 else len(cells[i]) for cells in lines) for i in shown[1:])
        if 16 + sum(2 + each for each in widths) > width:
            shown.remove(lines[0].index(name))
    return shown


def _widest(outcome: str) -> int:
    """Of an outcome in several lines: "2 finished," and "1 collapsed"."""
    return max(map(len, outcome.replace(", ", ",\n").splitlines()))
