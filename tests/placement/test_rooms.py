"""Who may import whom, and what importing costs."""

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import isograd

ROOT = Path(isograd.__file__).parent
FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")
# A storey imports from itself and from those before it; inside a storey each line from itself and from those before it.
STOREYS = {
    "core": [
        {"errors", "doors"},
        {"files", "outcome", "hub", "machine"},
        {"text"},
        {"placement"},
        {"transformer"},
        {"models", "residual"},
        {"trace"},
        {"lint"},
        {"diagnose"},
        {"cli", "pytest_plugin"},
    ],
    "convert": [{"convert"}, {"convert.cli"}],
    "lab": [
        {"lab.statistics", "lab.recipes"},
        {"lab.data"},
        {"lab.evaluate"},
        {"lab.train"},
        {"lab.study"},
        {"lab.transfer"},
        {"lab.report"},
        {"lab.cli"},
        {"lab"},
    ],
    "papers": [
        {"papers.theory", "papers.fairseq", "papers.torch_nn"},
        {"papers.reproduce"},
        {"papers.cli"},
        {"papers"},
    ],
    "command": [{"__main__"}],
}
LEVELS = [rooms for levels in STOREYS.values() for rooms in levels]
BUDGET = {  # files and lines of a storey, at most; raised only with a sentence in CHANGELOG
    "core": (173, 35_080),
    "convert": (45, 8_200),
    "lab": (113, 25_080),
    "papers": (42, 6_760),
}
MOST = 15  # files on one level of a room
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


def imports(source: str, package: str) -> set[str]:
    """Full names of all modules that a source imports, those under `if TYPE_CHECKING` and in functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def room_of(parts: Sequence[str]) -> str:
    """The room of a module, by the parts of its name after `isograd`: "train.run" of the lab stands in "lab.train"."""
    return next((name for name in (".".join(parts[:2]), parts[0]) if name in LEVEL), parts[0])


def room(path: Path) -> str:
    return room_of(path.relative_to(ROOT).with_suffix("").parts)


def of(path: Path) -> set[str]:
    return imports(path.read_text(), ".".join(("isograd", *path.relative_to(ROOT).parts[:-1])))


def forbidden(own: str, names: set[str]) -> set[str]:
    """Imports from a room below `own` or beside it."""
    seen = {room_of(n.split(".")[1:]) for n in names if n.startswith("isograd.")} & set(LEVEL)
    return {other for other in seen if other != own and LEVEL[other] >= LEVEL[own]}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_imports_from_the_rooms_above_it(path: Path) -> None:
    assert room(path) in LEVEL, f"a new room: say in LEVELS where {room(path)!r} stands"
    assert not forbidden(room(path), of(path))


@pytest.mark.parametrize(
    "path", [p for p in FILES if room(p) in ("placement", "lab.report")], ids=lambda p: str(p.name)
)
def test_placement_and_report_know_no_tensors(path: Path) -> None:
    """`report` sees files only: no torch, no models, nothing that would import them."""
    names = of(path)
    assert not {n for n in names if n.split(".")[0] in ("torch", "transformers", "accelerate")}
    assert not {n for n in names if n.startswith(("isograd.models", "isograd.transformer"))}


def test_the_walk_sees_what_it_should() -> None:
    """The negative control: each way of writing a forbidden import is found."""
    lines = [
        "from isograd.models import X",
        "import isograd.models.causal",
        "from isograd import models",
        "from ..models import X",
        "from .. import models",
        "def f():\n    from isograd.models.base import X",
    ]
    for line in lines:
        assert forbidden("placement", imports(line, "isograd.placement")) == {"models"}, line
    assert not forbidden("models", imports("from isograd.placement import get\nfrom . import base", "isograd.models"))
    assert forbidden("lint", imports("from isograd.papers.theory import claims", "isograd.lint")) == {"papers.theory"}


@pytest.mark.parametrize("module", ["isograd", "isograd.placement", "isograd.placement.text"])
def test_importing_placements_does_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted(m for m in ('torch', 'transformers', 'numpy') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow  # as tests/models/test_auto_classes.py, of another door
def test_models_load_when_named() -> None:
    seldom = "import gc; gc.disable()"  # what is looked through while it is imported, and at the end, takes seconds
    code = f"{seldom}; import sys, isograd; isograd.IsogradConfig; print('torch' in sys.modules); gc.freeze()"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Isogrod'"):
        _ = isograd.Isogrod


@pytest.mark.parametrize("storey", BUDGET)
def test_a_storey_keeps_its_budget(storey: str) -> None:
    """A ratchet: what is added is taken out elsewhere."""
    rooms = set().union(*STOREYS[storey])
    files = [path for path in FILES if room(path) in rooms]
    lines = sum(len(path.read_text().splitlines()) for path in files)
    most = BUDGET[storey]
    said = f"{storey} has {len(files)} files and {lines:,} lines, and its budget is {most[0]} and {most[1]:,}:"
    said += " take as much out elsewhere, or raise BUDGET with a sentence in CHANGELOG that says what users got for it"
    assert len(files) <= most[0] and lines <= most[1], said
    assert lines > most[1] - 500, f"{storey} has {lines:,} lines: lower its budget"


def test_no_level_holds_more_than_a_reader_takes_in() -> None:
    """Some fifteen files: beyond that a room gets sub-rooms that say what they hold, or loses files."""
    levels = {
        folder: [p for p in folder.glob("*.py") if p.name != "__init__.py"] for folder in {p.parent for p in FILES}
    }
    assert {str(folder.relative_to(ROOT)): len(files) for folder, files in levels.items() if len(files) > MOST} == {}
