"""Which folders hold runs, in what order they stand in a report, and which of them can be read."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from isograd.placement import CATALOGUE
from isograd.study.faults import FILES, fault

DEEPEST = 3  # levels below a folder that are looked through


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The run folders among and below `folders`, each once.

    A run folder holds a file of a run's. Those below one folder stand in the catalogue's order of their placements,
    then by name; a run that is named itself stands where it is named.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        below = [folder] if _is_run(folder) else sorted(_below(folder, DEEPEST), key=_place)
        for run in below:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in FILES)


def _below(folder: Path, levels: int) -> Iterator[Path]:
    for inner in folder.iterdir() if levels else ():
        if inner.is_dir() and not inner.name.startswith("."):
            yield from [inner] if _is_run(inner) else _below(inner, levels - 1)


def _place(folder: Path) -> tuple[int, str]:
    try:
        placement = json.loads((folder / "run.json").read_text(encoding="utf-8"))["model"]["placement"]
    except (OSError, ValueError, TypeError, KeyError):
        placement = None
    names = list(CATALOGUE)
    return names.index(placement) if placement in names else len(names), str(folder)


def readable(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Those run folders whose files can be reported on, and of each other one what is wrong, in a line.

    What a kill leaves behind is no fault: a run without an outcome, a last row cut off.
    """
    wrong = {folder: fault(folder) for folder in folders}
    return [folder for folder in folders if wrong[folder] is None], [line for line in wrong.values() if line]


def by_kind(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """Readable run folders by what can stand on one page: the task, or "ramp" of language models with a rising rate."""
    kinds: dict[str, list[Path]] = {}
    for folder in folders:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        kind = "ramp" if run["training"].get("stop_when_broken") else run.get("task") or "language"
        kinds.setdefault(kind, []).append(folder)
    return kinds
