"""Where a study's numbers come from: settings, versions, time spent, and the recipe that gives them again."""

import json
from collections.abc import Iterator

import yaml

from isograd.lab.report.runs import ArmFiles, Row
from isograd.lab.report.settings import settings
from isograd.lab.report.study.files import StudyFiles

_SECTIONS = ("model", "data", "pairs", "search", "glue", "training")  # the recipe says them


def provenance(study: StudyFiles) -> Iterator[tuple[str, str]]:
    """Names and values: the data, versions and hardware, of what differs between cells each value; what was spent."""
    runs = [cell.files for cell in study.cells if cell.files is not None]
    text = next((run.resolved["data"] for run in runs if run.resolved.get("data")), None)
    known = settings([ArmFiles(label="", runs=runs)], text) if runs else ()
    yield from ((name, value) for name, value in known if name not in _SECTIONS)
    hashes = dict.fromkeys(str((run.resolved.get("data") or {}).get("sha256")) for run in runs)
    if len(hashes) > 1:
        yield "sha256 of every text", "; ".join(hashes)
    yield "seeds", ", ".join(map(str, study.seeds))
    budget = [f"{value:,g} {unit}" for unit, value in (study.budget or {}).items()]
    yield "budget of a cell", ", ".join(budget) or "the recipe's"
    seconds = [value for cell in study.ended if (value := cell.number("seconds"))]
    if seconds:
        spent, n = sum(seconds), len(seconds)
        yield (
            "training time",
            f"{spent / 3600:.2f} hours of {n} cells: {3600 * n / spent:,.0f} cells per hour and worker",
        )


def recipe(study: StudyFiles) -> str:
    """The study as a recipe that `isograd study` takes."""
    base: Row = {}
    for name, value in study.base.items():
        if name not in ("name", "seed"):
            base[name] = value
    grids = [{key: values for key, values in axes.items() if key != "arm"} for axes in study.grids or [study.axes]]
    also = [{key: values for key, values in grid.items() if values != grids[0].get(key)} for grid in grids[1:]]
    content = {"name": study.name, **base, **_arms(study), "axes": grids[0], **({"also": also} if also else {})}
    content |= {"seeds": study.seeds, "budget": study.budget}
    content = json.loads(json.dumps(content))  # texts that have names are none of YAML's
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)


def _arms(study: StudyFiles) -> Row:
    """The arms of a recipe that has some: a placement, and other settings."""
    found = {}
    for cell in study.cells:
        own = {key: value for key, value in cell.values.items() if key not in study.axes}
        if "arm" in cell.values and own:
            placement = own.pop("model.placement", study.setting("model.placement"))
            found[cell.values["arm"]] = [placement, *(f"{key}={json.dumps(value)}" for key, value in own.items())]
    return {"arms": list(found.values())} if found else {}
