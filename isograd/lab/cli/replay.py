"""`isograd replay RUN`: which change would have cured a run that diverged or collapsed."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

from rich.markup import escape

from isograd.cli.console import Result, loading, print_lines, print_path, print_table
from isograd.cli.parser import Count, Folder, Words
from isograd.cli.schema import Open
from isograd.errors import UserError, command, refusing
from isograd.hub import is_watched
from isograd.lab.cli.progress import Ended, StudyProgress


class Change(TypedDict):
    """One change of the recipe, its runs, and whether it cures."""

    change: str
    settings: list[str]
    control: bool
    begins: int | None
    finished: int
    seeds: int
    verdict: str
    runs: list[Ended]


class Replayed(Open):
    """Which change would have cured a run; `by_chance`: another seed alone did."""

    parent: str
    run: dict[str, Any]
    changes: list[Change]
    cures: list[str]
    by_chance: bool
    unchanged: str
    report: str


def replay(
    run: Folder,
    *,
    try_: list[list[Words]] | None = None,
    from_: int | None = None,
    seeds: Count = 1,
    steps: Count | None = None,
    out: Folder | None = None,
    jobs: Count | None = None,
    retry: bool = False,
) -> Annotated[Result, Replayed]:
    """Find which change cures a run that diverged or collapsed: a short run per change, from before the break.

    examples:
      isograd replay runs/my-run
      isograd replay runs/my-run --try lr=3e-4 --try warmup=200 --try placement=pre-ln --try seed=1 --seeds 3
      isograd replay runs/my-run --from 1200 --try clip=0.5 --try lr=1e-4 clip=0.5

    A change of the rate, of clipping, dropout or the seed goes on from the last checkpoint before the break, bit for
    bit what it was; a change of the placement, the init or the warm-up begins again at step 0. A change cures where
    it finishes with every seed. Killed or interrupted, the same command goes on where it was.

    Args:
        run: the folder of a run of isograd train, compare or a study
        try_: one change of the recipe, such as lr=3e-4; several words are one change; once for each change (default:
            a lower rate, a longer warm-up, clipping, pre-ln, and another seed as a control)
        from_: go back to the last checkpoint at or before this step (default: before the break)
        seeds: runs of each change, default 1; a cure is one in all of them
        steps: of each run after where it begins (default: as many as an outcome takes)
        out: default RUN/replay
        jobs: runs at once, each on one thread (default: one per core or GPU)
        retry: train failed runs once more
    """
    if is_watched(run):
        line = "this is a watched loop, which is replayed from its own script: isograd.watch(..., replay=OwnLoop(...))"
        raise UserError(f"{run}: {line}; its page: {command('report', run)}")
    if not (run / "run.json").is_file():
        raise UserError(f"{run}: no folder of a run; expected one with a run.json, such as runs/NAME")
    if from_ is not None and from_ < 0:
        raise UserError(f"--from {from_}: expected a step, 0 or more")
    with loading():
        from isograd.lab.report.pages.replay import write_replay
        from isograd.lab.study.engine.workers import local
        from isograd.lab.study.replay import load_replay
        from isograd.lab.study.replay import replay as replayed

        plan = load_replay(run, try_ or (), step=from_, seeds=seeds, steps=steps or 0)
    folder = out or run / "replay"
    with StudyProgress([cell for _, cell in plan.cells], ["change"]) as shown, refusing(FileExistsError):
        content = replayed(plan, folder, local(jobs, threads=1), shown.step, shown.row, shown.note, retry)

    page, _ = write_replay(folder)
    failed = [one for change in content["changes"] for one in change["runs"] if one["outcome"] == "failed"]
    faults = [f"{one['cell']} failed: {one.get('error')}" for one in failed]
    show = partial(print_replay, content, page)
    return Result({**content, "report": str(page)}, show, faults, code=1 if failed else 0)


def print_replay(content: dict[str, Any], page: Path) -> None:
    """What broke, a line per change, the headline, and the page."""
    from isograd.lab.report.pages import replay as replay_page

    print_lines(replay_page.what_broke(content), "")
    colours = {"cures": "green", "does not cure": "red"}
    table = replay_page.table(content)
    lines = [[*map(escape, cells), f"[{colours.get(said, 'yellow')}]{said}[/]"] for *cells, said in table.lines]
    print_table(table.header, lines)
    print_lines("", replay_page.headline(content), *replay_page.warnings(content))
    print_path(f"\nreport: {page}")


def report_replay(folder: Path, out: Path | None, title: str | None, output: Any) -> Result:
    """`isograd report` of a replay's folder."""
    from isograd.lab.report.pages.replay import write_replay

    with refusing(ValueError, KeyError):
        page, content = write_replay(folder, out, title, output)
    return Result({**content, "report": str(page)}, partial(print_replay, dict(content), page))
