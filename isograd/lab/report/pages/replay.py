"""The page of a replay: which changes cure a run that broke, and the curves of all of them beside its own."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from isograd.files import read_json
from isograd.lab.report import figures
from isograd.lab.report.figures import DEPTH_CHARTS, Subject
from isograd.lab.report.page import Page, Section, Table, settings_table, write_page
from isograd.lab.report.runs import ArmFiles, arms_of, read_run
from isograd.lab.report.settings import settings
from isograd.lab.report.style import Output, looks
from isograd.lab.study.labels import listed
from isograd.lab.study.plan import CELLS
from isograd.lab.study.replay import UNCHANGED

Row = Mapping[str, Any]
REPLAY = "replay.json"


def write_replay(
    folder: Path, out: Path | None = None, title: str | None = None, output: Output | None = None
) -> tuple[Path, Row]:
    """Write report.html, figures and tables of the replay in `folder`, from its files; the page, and replay.json.

    Args:
        out: None: `folder`/report.
    """
    content: Row = read_json(folder / REPLAY)
    arms = _arms(content, folder)
    data = next((arm.first.resolved["data"] for arm in arms if arm.first.resolved.get("data")), None)
    about = Subject(arms=arms, entropy=(data or {}).get("unigram_entropy"))
    charts = (figures.loss, DEPTH_CHARTS["gradients"], DEPTH_CHARTS["ratio"])
    page = Page(
        title=title or f"Replay of {Path(content['parent']).name}",
        headline=headline(content),
        warnings=warnings(content),
        subtitle=what_broke(content),
        sections=[
            Section(name="changes", title="Changes", sentence=_CHANGES, table=table(content)),
            *filter(None, (chart(about) for chart in charts if arms)),
            Section(name="runs", title="Runs", table=_runs(content), folded=True),
            Section(name="settings", title="Settings", table=settings_table(settings(arms, data) if arms else ())),
        ],
        made=f"Made by isograd from `{REPLAY}` and the folders in `{CELLS}`.",
    )
    return write_page(page, (out or folder / "report") / "report.html", output), content


_CHANGES = (
    "Each change alone. The run as it was is the negative control: where it finishes, nothing can be said of a change."
    " A change cures the run where it finished (its final loss is 0.10 nat below the unigram loss, what a model reaches"
    " that knows token frequencies only; of other losses, near the best before) with every seed. Where another seed"
    " finishes, too, chance explains as much as any change. A change that begins at a later step than 0 goes on"
    " from the run's own checkpoint of that step."
)


def headline(content: Row) -> str:
    """Which changes cure the run, and which do not.

    >>> change = {"control": False, "seeds": 1, "finished": 1}
    >>> headline({"changes": [change | {"change": "lr 0.0003", "verdict": "cures"},
    ...                       change | {"change": "another seed", "verdict": "fails"}]})
    'lr 0.0003 cures the run; another seed fails too.'
    """
    if content.get("unchanged") == "finishes":
        return "The run as it was finishes from there, too: nothing can be said of a change."
    by_verdict: dict[str, list[str]] = {}
    for one in content["changes"]:
        if one["change"] == UNCHANGED:
            continue  # the subtitle says how it ended
        by_verdict.setdefault(one["verdict"], []).append(one["change"])
    parts = []
    for verdict, (several, alone) in _VERBS.items():
        if names := by_verdict.get(verdict):
            parts.append(f"{listed(names)} {several if len(names) > 1 else alone}")
    if "cures" not in by_verdict:
        parts.insert(0, "No change cures the run")
    return f"{'; '.join(parts)}."


_VERBS = {
    "cures": ("cure the run", "cures the run"),
    "does not cure": ("do not", "does not"),
    "not with every seed": ("finish with some seeds only", "finishes with some seeds only"),
    "undecided": ("are undecided", "is undecided"),
    "finishes": ("finish unchanged", "finishes unchanged"),
    "fails": ("fail too", "fails too"),
    "failed": ("failed", "failed"),
    "interrupted": ("were interrupted", "was interrupted"),
}


def warnings(content: Row) -> list[str]:
    """What a reader must not miss."""
    found = []
    if content["by_chance"]:
        found.append(
            "Another seed alone finished with every seed: the break depends on chance (the batches from there on, or"
            " the init), so that a change which finishes may have done nothing. Replay with more seeds."
        )
    if content.get("unchanged") in ("undecided", "failed", "interrupted"):
        found.append(f"The run as it was is {content['unchanged']}: it has not failed again, and cures are not sure.")
    if all(one["seeds"] == 1 for one in content["changes"]):
        found.append("One seed per change: a change that cures here may not with another seed (--seeds 3).")
    return found


def what_broke(content: Row) -> str:
    """How the run ended, and since when."""
    run, since = content["run"], content["broke_from"]
    where = "" if since is None else f" It began to fail at step {since:,}."
    begins = content["begins"]
    back = f" The last checkpoint before is that of step {begins:,}." if begins else ""
    why = f": {run['reason']}" if run.get("reason") else ""
    return f"The run as it was {run.get('outcome') or 'has not ended'}{why}.{where}{back}"


def table(content: Row) -> Table:
    """A line per change."""
    columns: dict[str, Any] = {
        "change": "change",
        "from step": "begins",
        "finished": lambda one: f"{one['finished']} of {one['seeds']}",
        "final loss": lambda one: ", ".join(map(_loss, one["runs"])),
        "verdict": "verdict",
    }
    return Table.of(content["changes"], columns, verdict="verdict")


def _loss(run: Row) -> str:
    return "–" if run.get("final_loss") is None else f"{run['final_loss']:.3f}"


def _runs(content: Row) -> Table:
    runs = [{"change": one["change"], **run} for one in content["changes"] for run in one["runs"]]
    columns: dict[str, Any] = {
        "change": "change",
        "seed": lambda run: str(run["seed"]),
        "outcome": "outcome",
        "reason": lambda run: run.get("reason") or run.get("error") or "",
        "folder": "cell",
    }
    return Table.of(runs, columns, verdict="outcome", left=4)


def _arms(content: Row, folder: Path) -> list[ArmFiles]:
    """The run as it was, if its folder is here, and an arm per change that has begun."""
    found = []
    parent = next((path for path in (Path(content["parent"]), folder.parent) if (path / "run.json").exists()), None)
    if parent is not None:
        found += [replace(arm, label="as it was") for arm in arms_of([parent])]
    for one in content["changes"]:
        runs = [read_run(folder / CELLS / run["cell"]) for run in one["runs"]]
        begun = [run for run in runs if run.run and run.metrics]
        if begun:
            found.append(ArmFiles(label=one["change"], runs=begun))
    shown = looks(arm.placement for arm in found)
    return [replace(arm, look=look) for arm, look in zip(found, shown, strict=True)]
