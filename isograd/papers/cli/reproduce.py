"""`isograd reproduce ITEM`: a table, a figure or a claim of a paper, its numbers beside ours, and a verdict."""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

from rich.markup import escape

from isograd.cli.console import (
    Result,
    loading,
    output,
    print_lines,
    print_path,
    print_table,
    progress,
)
from isograd.cli.parser import Count, Folder
from isograd.cli.schema import Open
from isograd.errors import IsogradError, UserError, one_line
from isograd.lab.cli.progress import prepare_cells, train_cells
from isograd.machine import pin

if TYPE_CHECKING:
    from isograd.papers.reproduce.full import Needs
    from isograd.papers.reproduce.item import Item as PaperItem
    from isograd.papers.reproduce.plan import Asked, Planned

_COLOURS = {"same direction": "green", "not seen": "cyan", "opposite": "red", "not run": "yellow"}


class Item(Open):
    """An item of a paper; `state`: whether it has run."""

    paper: str
    item: str
    shows: str
    claim: str
    minutes: float
    state: str


class ItemResult(Open):
    """What an item's runs say beside the paper's numbers; `failed`: why there is no verdict."""

    item: str
    verdict: str | None
    reason: NotRequired[str]
    page: NotRequired[str]
    failed: NotRequired[list[str]]


class ItemResults(TypedDict):
    """The items that were asked for."""

    items: list[ItemResult]


class Index(TypedDict):
    """The index that was written."""

    index: str


class FullSize(TypedDict):
    """What an item takes at the paper's size; memory in bytes."""

    recipe: str
    devices: int
    hours: float
    memory: int
    reading: list[str]
    remote: list[str]
    lacking: str | None
    runs: list[dict[str, Any]]


def reproduce(
    *items: Annotated[str, "ITEM"],
    list: bool = False,  # noqa: A002  (it is --list)
    all: bool = False,  # noqa: A002  (it is --all)
    data: Annotated[Path, "FOLDER|FILE|hub"] | None = None,
    seeds: "list[int] | None" = None,
    out: Folder = Path("runs/reproduce"),
    jobs: Count | None = None,
    retry: bool = False,
    full: bool = False,
    run: bool = False,
    world_size: Count | None = None,
    index: Folder | None = None,
    cores: "list[int] | None" = None,
    json: bool = False,
) -> Annotated[Result, ItemResults, dict[str, Item], dict[str, FullSize], Index]:
    """Reproduce a table, a figure or a claim of the papers at a size for two cores: runs, figure, verdict.

    examples:
      isograd reproduce --list
      isograd reproduce xiong2020/warmup-fig2
      isograd reproduce xiong2020/warmup-fig2 --data FOLDER
      isograd reproduce normformer2021 admin2020
      isograd reproduce xiong2020/warmup-fig2 training.steps=200 --seeds 1
      isograd reproduce --all --data FOLDER --cores 0 --index docs/results/reproduce
      isograd reproduce xiong2020/warmup-fig2 --full
      isograd reproduce xiong2020/warmup-fig2 --full --run --world-size 8

    A verdict (same direction, not seen, opposite, not run) follows a rule that was written before the runs. Killed at
    any time, the same command goes on; items share the runs they have in common. Exit code 0 whatever the verdict, 1
    where a run failed.

    Args:
        items: names of --list, or a paper for all of its items; then key=value for all runs
        list: print the items, and run nothing
        all: every item of which neither --out nor --index has a result with today's setup, by importance
        data: a folder of corpora, such as FOLDER/iwslt14-de-en; or one text file (as `isograd compare --data` takes it)
            for items that read plain text; or `hub` for those that are data sets there (default: the embedded texts)
        seeds: in place of each item's own
        out: default runs/reproduce
        jobs: runs at once (default: one per GPU, or per core)
        retry: train failed runs once more, and those with damaged files from the beginning
        full: print what the paper's size needs (devices, hours, memory, data), and train nothing
        run: with --full: start it under torchrun, run after run; refused where it does not fit or data is missing
        world_size: devices of --full (default: the item's)
        index: write a page per paper and a summary into this folder, of its results.json and what --out has, whenever
            an item ends; without items run nothing
        cores: run on these alone, one run at a time on each, such as --cores 0
    """
    from isograd.papers.reproduce.data import HUB
    from isograd.papers.reproduce.registry import by_paper, chosen, queue

    names = [name for name in items if "=" not in name]
    found = queue() if all else by_paper() if list and not names else chosen(names)
    if list:
        states = {item.id: _state(item, out) for item in found}
        content = {item.id: {**item.about(), "state": states[item.id]} for item in found}
        return Result(content, lambda: _list(found, out, states))
    if index is not None and not found:
        page = _write_index(out, index)
        return Result({"index": str(page)}, lambda: print_path(f"index: {page}"))
    if not found:
        raise UserError("name an item, such as xiong2020/warmup-fig2; 'isograd reproduce --list' lists all")
    if data is not None and data != HUB and not data.exists():
        raise UserError(f"--data {data}: no such folder or text file, and not 'hub'")
    if not full and (run or world_size):
        raise UserError(f"{'--run' if run else '--world-size'} is of the paper's size; add --full")
    from isograd.papers.reproduce.plan import Asked

    asked = Asked(
        out=out,
        data=data,
        seeds=tuple(seeds) if seeds else None,
        overrides=tuple(name for name in items if "=" in name),
        jobs=jobs,
    )
    if full:
        return _full(found, asked, world_size, run)
    if cores:
        pin(cores)
    if all:
        from isograd.lab.report.pages.reproduce_index import RESULTS, stored

        kept = stored(index / RESULTS) if index else {}
        found = [item for item in found if not _has_ended(item, asked, kept.get(item.id, {}))]
        progress().print(f"{len(found)} items, {sum(item.minutes for item in found):.0f} minutes of one core at most")
    return _reproduce(found, asked, retry, json, index)


def _has_ended(item: "PaperItem", asked: "Asked", kept: dict[str, Any]) -> bool:
    """Whether --out or the index has a result of it, with today's setup and of the same data."""
    same = {"setup": item.setup(), "with data": asked.data is not None and bool(item.corpora), "changed": []}
    ended = [result for result in (_result(item, asked.out), kept) if result.get("verdict") not in (None, "not run")]
    return any(all(result.get(key) == value for key, value in same.items()) for result in ended)


def _result(item: "PaperItem", out: Path) -> dict[str, Any]:
    """Of its newest run below `out`; empty where it has not ended there."""
    from isograd.files import read_object
    from isograd.papers.reproduce.plan import folder_of

    try:
        return read_object(folder_of(item, out) / "result.json")
    except ValueError:
        return {}


def _state(item: "PaperItem", out: Path) -> str:
    """Whether it has run, as `--list` says it."""
    result = _result(item, out)
    if item.missing or result.get("verdict", "not run") == "not run":
        return "cannot run" if item.missing else "not run yet"
    since = "" if result.get("setup") == item.setup() else ", by another setup than today's"
    stood = "" if result.get("with data") or not item.corpora else ", on what stands in for the data"
    return f"{result['verdict']} ({result.get('date', 'no date')}{since}{stood})"


def _list(items: "Sequence[PaperItem]", out: Path, states: dict[str, str]) -> None:
    console = output(soft_wrap=True)
    for paper in dict.fromkeys(item.paper for item in items):
        console.print(f"\n[bold underline]{escape(paper)}[/]")
        for item in items:
            if item.paper == paper:
                console.print(f"[bold]{escape(item.id)}[/]  {escape(item.title)}")
                sizes = f"here: {item.size_here}; in the paper: {item.size_paper}"
                console.print(f"    [dim]{escape(sizes)}[/]")
                takes = item.missing or f"{item.minutes:g} min; data: {item.data}"
                console.print(f"    {escape(states[item.id])}[dim]; {escape(takes)}[/]")
    waiting = [item for item in items if states[item.id] == "not run yet"]
    left = f"{len(waiting)} have not run in {out}: {sum(item.minutes for item in waiting):.0f} minutes of one core"
    print(f"\n{left}" if waiting else f"\nall have run in {out}")
    print(f"{len(items)} items. 'isograd reproduce ITEM' runs one, 'isograd reproduce xiong2020' all of a paper.")
    print("min: minutes of one core, shared runs included; data: a folder below --data (what stands in without it)")


def _reproduce(items: "Sequence[PaperItem]", asked: "Asked", retry: bool, json: bool, index: Path | None) -> Result:
    """Each item in turn; one that fails does not end the others."""
    from isograd.papers.reproduce.plan import plan_item

    planned = [plan_item(item, asked) for item in items]
    results, failed = [], []
    for i, one in enumerate(planned, start=1):
        if len(planned) > 1:
            progress().print(f"[{i}/{len(planned)}] {one.item.id}", markup=False)
        try:
            results.append(_one(one, asked, retry))
        except (IsogradError, OSError) as error:
            if len(planned) == 1:
                raise
            failed.append(f"{one.item.id}: {one_line(error)}")
            continue
        if not json:
            _print(results[-1], several=len(planned) > 1)
        if index is not None:
            _write_index(asked.out, index)
    failed += [f"{one['item']}: {why}" for one in results for why in one.get("failed", ())]
    return Result({"items": results}, faults=failed, code=1 if failed else 0)


def _write_index(out: Path, folder: Path) -> Path:
    from isograd.lab.report.pages.reproduce_index import write_index
    from isograd.papers.reproduce.registry import by_paper

    return write_index([item.about() for item in by_paper()], out, folder)


def _one(planned: "Planned", asked: "Asked", retry: bool) -> dict[str, Any]:
    """The content of an item's result.json, its page beside it; where runs or the measure failed, why."""
    for stage in planned.stages:
        rows = _train(stage, asked, retry)
        failed = [f"{row['cell']} failed: {row.get('error')}" for row in rows if row["outcome"] == "failed"]
        if len(rows) < len(stage):
            failed.append(f"{len(stage) - len(rows)} runs have damaged files; --retry trains them from the beginning")
        if failed:
            return _failed(planned, failed)
    with loading():
        from isograd.papers.reproduce.conclude import conclude
        from isograd.papers.reproduce.plan import folder_of
    folder = folder_of(planned.item, asked.out)
    try:
        with loading("measuring"):
            from isograd.lab.report.pages.reproduce import write_item

            content = conclude(planned, asked, lambda line: progress().print(f"measuring: {line}", markup=False))
            page = write_item(folder, asked.out)
    except (IsogradError, OSError):
        raise
    except Exception as error:  # of a measure: whatever it does, other items go on
        (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return _failed(planned, [f"{type(error).__name__}: {one_line(error)} (see {folder}/error.txt)"])
    return content | {"page": str(page)}


def _failed(planned: "Planned", why: "Sequence[str]") -> dict[str, Any]:
    return {"item": planned.item.id, "verdict": None, "failed": [*why]}


def _train(cells: "Sequence[Any]", asked: "Asked", retry: bool) -> "Sequence[dict[str, Any]]":
    prepare_cells(cells, asked.out, asked.jobs)
    with loading():
        from isograd.lab.study.engine.jobs import check_jobs
        from isograd.lab.study.engine.runner import jobs_of
        from isograd.lab.study.engine.workers import at_once, local
        from isograd.lab.study.plan import ARM

        check_jobs(jobs_of(cells, asked.out))
    beside = f"{len(cells)} runs, {min(len(cells), at_once(asked.jobs, 1))} at once" if len(cells) > 1 else "1 run"
    progress().print(f"{beside}; what has ended is not trained again", markup=False, soft_wrap=True)
    return train_cells(cells, asked.out, local(asked.jobs), [ARM], retry=retry, keep_models=True)


def _print(result: dict[str, Any], several: bool) -> None:
    from isograd.lab.report.pages.reproduce import number, ours

    if "page" not in result:
        return
    verdict = result["verdict"]
    print_lines(*[""] * several, f"{result['item']}: {result['shows']}")
    print_lines(f"claim: {result['claim']}")
    if result["changed"]:
        print_lines(f"not the item's own settings: {', '.join(result['changed'])}")
    rows = [["paper", one["label"], number(one["value"]), one["unit"], one["tag"]] for one in result["published"]]
    rows += [["ours", one["label"], ours(one), "", f"n = {one['n']}"] for one in result["ours"]]
    print_table(["", "", "", "", ""], [[*map(escape, row)] for row in rows], left=2)
    output().print(f"[{_COLOURS[verdict]}]{verdict}[/]: {escape(result['reason'])}")
    print_path(f"page: {result['page']}")


def _full(items: "Sequence[PaperItem]", asked: "Asked", devices: int | None, run: bool) -> Result:
    """What the paper's size needs; with `run` it is started, item after item."""
    with loading():
        from isograd.papers.reproduce.full import must_start, needs

    found = {item.id: needs(item, asked, devices) for item in items if item.full or len(items) == 1}
    if not run:

        def show() -> None:
            for name, one in found.items():
                _print_needs(name, one)

        return Result({name: one.as_dict() for name, one in found.items()}, show)
    for one in found.values():
        must_start(one, devices is not None)
    return Result(code=max([_start(one) for one in found.values()], default=0))


def _print_needs(name: str, found: "Needs") -> None:
    from isograd.cli.console import bytes_in_words

    rows = [
        [
            escape(one.label),
            f"{one.forecast.parameters:,}",
            bytes_in_words(one.forecast.memory.total),
            f"{one.forecast.steps:,}",
            f"{one.forecast.tokens:,}",
            f"{one.forecast.flops:.3g}",
            f"{one.hours:,.1f}",
        ]
        for one in found.runs
    ]
    print_lines(f"{name}: {found.recipe}, {len(found.runs)} runs on {found.devices} devices")
    print_table(["run", "parameters", "memory of each", "updates", "tokens", "FLOP", "hours"], rows)
    print_lines(
        f"at most {found.hours:,.1f} hours in all at 100 TFLOP/s per device, {bytes_in_words(found.memory)} of each",
        f"data: {', '.join(found.reading)}"
        + (f"; not here, to be looked for on the hub: {', '.join(found.remote)}" if found.remote else "")
        + (f"; missing: {found.lacking}" if found.lacking else ""),
        f"'isograd reproduce {name} --full --run' starts it",
    )


def _start(found: "Needs") -> int:
    """Train run after run under torchrun; one that fails does not end the others."""
    import subprocess

    from isograd.lab.report.pages.runs import write_report
    from isograd.papers.reproduce.full import command_of

    failed = []
    for i, one in enumerate(found.runs, start=1):
        progress().print(f"[{i}/{len(found.runs)}] {one.label}", markup=False)
        done = subprocess.run([sys.executable, *command_of(one, found.devices)], check=False)
        failed += [one.label] if done.returncode not in (0, 3) else []
    there = [one.folder for one in found.runs if (one.folder / "run.json").exists()]
    if there:
        print_path(f"report: {write_report(there, there[0].parent)}")
    for label in failed:
        print(f"isograd reproduce: {label} failed; the same command goes on", file=sys.stderr)
    return 1 if failed else 0
