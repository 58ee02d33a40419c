"""`isograd study --find max-lr`: the maximum stable learning rate, by placement and warm-up."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from rich.markup import escape

from isograd.cli.console import Bar, Result, loading, print_lines, print_path, print_table
from isograd.cli.parser import Count, Folder, Name, Words
from isograd.errors import refusing

if TYPE_CHECKING:
    from isograd.lab.report.style import Output
    from isograd.lab.study.headroom import Chain as SearchChain


class Chain(TypedDict):
    """The rates that were tried with one seed, and the boundary, null before it is found."""

    placement: str
    warmup: int
    seed: int
    tried: list[dict[str, Any]]
    boundary: Annotated[Any, "isograd.lab.study.boundary:Boundary"] | None


class Level(TypedDict):
    """The boundary over seeds."""

    placement: str
    warmup: int
    level: Annotated[Any, "isograd.lab.study.boundary:BoundaryInterval"] | None


class Headroom(TypedDict):
    """The maximum stable learning rate by placement and warm-up, and what it cost."""

    placements: list[str]
    warmups: list[int]
    seeds: list[int]
    search: Annotated[Any, "isograd.lab.study.boundary:RateSearch"]
    levels: list[Level]
    chains: list[Chain]
    cost: dict[str, float]
    findings: list[str]
    report: str


def headroom(
    recipe: str | None = None,
    *overrides: Words,
    find: Literal["max-lr"],
    model: Annotated[str, "FILE.py:FUNCTION"] | None = None,
    arm: list[list[Annotated[str, "key=value"]]] | None = None,
    placements: list[Name] | None = None,
    warmup: list[int] | None = None,
    seeds: list[int] | None = None,
    low: float = 1e-5,
    high: float = 1.0,
    precision: float = 1.25,
    out: Folder | None = None,
    jobs: Count | None = None,
    retry: bool = False,
) -> Annotated[Result, Headroom]:
    """Find the maximum stable learning rate, by placement and warm-up.

    examples:
      isograd study studies/headroom --find max-lr
      isograd study RECIPE.yaml --find max-lr --placements post-ln pre-ln --warmup 0 50 150 --seeds 1 2 3
      isograd study RECIPE.yaml model.layers=6 training.steps=200 --find max-lr --precision 1.1
      isograd study model.layers=6 training.steps=100 --find max-lr
      isograd study --find max-lr --model my_model.py:build depth=6 --arm norm=pre --arm norm=post --warmup 0 50

    Each rate is a run of its own, from scratch. Killed or interrupted, the same command goes on where it was;
    a finer --precision or more --seeds go on from what is there. Exit code 1 where a run failed.

    Args:
        recipe: a YAML recipe, also a study's: its placements, warm-ups and seeds are taken
        overrides: such as model.layers=6 training.steps=200
        find: in place of a sweep over given rates, the largest that still trains
        model: a model of your own, as in isograd compare; arguments and keys right after it
        arm: of such a model one arm: what differs in it; once for each
        placements: default: the recipe's
        warmup: steps; default: none, and the recipe's
        seeds: default: the recipe's, else 1 2 3
        low: no rate below is tried, default 1e-5
        high: no rate above is tried, default 1
        precision: largest stable and smallest unstable rate are at most this factor apart, default 1.25
        out: default runs/headroom-NAME
        jobs: runs at once, each on one thread (default: one per core or GPU)
        retry: train failed runs once more
    """
    from isograd.lab.cli.compare import read_words
    from isograd.lab.study.engine.server import begin
    from isograd.lab.study.headroom import headroom as search
    from isograd.lab.study.headroom import load_plan

    path, words = read_words(recipe, overrides, model, placements)
    plan = load_plan(
        path,
        words,
        placements=placements or (),
        arms=arm or (),
        warmups=warmup or (),
        seeds=seeds or (),
        low=low,
        high=high,
        precision=precision,
    )
    folder = out or Path("runs") / f"headroom-{plan.name}"
    if not (folder / "headroom.json").exists():
        plan.base.must_find_its_data()
        begin(jobs)
    with loading():
        from isograd.lab.report.pages.headroom import chain_said
        from isograd.lab.study.boundary import Boundary
        from isograd.lab.study.engine.workers import local
    chains = len(plan.placements) * len(plan.warmups) * len(plan.seeds)
    spent = {"runs": 0, "updates": 0, "seconds": 0.0}
    with Bar("chains", chains) as bar:

        def on_step(chain: "SearchChain", rate: float, step: int, loss: float) -> None:
            bar.update(f"{_cost(spent)}  {chain}: {rate:.3g}, step {step}, loss {loss:.3f}")

        def on_trial(chain: "SearchChain", one: dict[str, Any]) -> None:
            for name, more in (("runs", 1), ("updates", one["steps"]), ("seconds", one["seconds"])):
                spent[name] += more
            end = chain.next(plan.search)
            decided = isinstance(end, Boundary)
            bar.update(f"{_cost(spent)}  {chain}: {one['lr']:.3g} {one['verdict']}", advance=decided)
            if isinstance(end, Boundary):
                bar.line(f"{chain}: {chain_said(asdict(end))} ({len(chain.tried)} runs)")

        search(plan, folder, local(jobs), on_step=on_step, on_trial=on_trial, on_note=bar.line, retry=retry)
    return report_headroom(folder)


def _cost(spent: dict[str, float]) -> str:
    return f"{spent['runs']:.0f} runs, {spent['updates']:,.0f} updates, {spent['seconds'] / 60:.1f} min"


def report_headroom(
    folder: Path, out: Path | None = None, title: str | None = None, figures: "Output | None" = None
) -> Result:
    """Write the page of a search from its files, and say what was found; 1 where a run failed."""
    from isograd.lab.report.pages.headroom import boundaries, cost, findings, oddities, read_headroom, write_headroom

    with refusing(ValueError):
        page, content = write_headroom(folder, out, title, figures), read_headroom(folder)
    names = ("placements", "warmups", "seeds", "search", "levels", "chains", "cost")
    found: dict[str, Any] = {name: content[name] for name in names}

    def show() -> None:
        table = boundaries(content)
        print_table(table.header, [list(map(escape, line)) for line in table.lines])
        print_lines("", *findings(content))
        print_path(f"\ncost: {cost(content)}\nreport: {page}")

    failed = [line for line in oddities(content) if " stopped: " in line]
    found |= {"findings": findings(content), "report": str(page)}
    return Result(found, show, failed, code=1 if failed else 0)
