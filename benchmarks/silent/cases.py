"""The cases: where they are, their format, which of them are held out, and one twin's source text."""

import ast
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parent / "cases"
# fmt: off
CLASSES = (
    "loss", "data", "masks", "positions", "wiring", "init", "norm", "optimizer", "schedule", "precision",
    "accumulation", "processes", "resume", "state", "generation",
)
# fmt: on
SHOWS = {"model": ("build", "batch"), "step": ("setup",), "data": ("setup",), "run": ("train",)}  # and what it defines
KEYS = {"class", "shows", "source", "cause", "number", "healthy", "faulty"}
LINES = 120


@dataclass(frozen=True, eq=False)
class Case:
    """A file with a fault and its healthy twin, or with an oddity. `about` is its CASE, read without running it."""

    path: Path
    about: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def oddity(self) -> bool:
        return self.about.get("kind") == "oddity"

    @property
    def twins(self) -> tuple[str, ...]:
        return ("oddity",) if self.oddity else ("faulty", "healthy")

    @property
    def held_out(self) -> bool:
        """The SHA-256 of the name, read as a number, is divisible by three."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % 3 == 0

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:12]

    def module(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location(self.name, self.path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.name] = module
        spec.loader.exec_module(module)
        return module


def load(path: Path) -> Case:
    for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASE":
            try:
                return Case(path, ast.literal_eval(node.value))
            except ValueError:
                raise ValueError(f"CASE of {path} has more than plain values: no names, no calls") from None
    raise ValueError(f"{path} has no CASE")


def cases(folder: Path = FOLDER, only: str = "", part: str = "all") -> list[Case]:
    """All cases of a folder by name; `part` is all, open or held-out, `only` a part of the name."""
    found = [load(path) for path in sorted(folder.glob("*.py")) if only in path.stem]
    return [case for case in found if part == "all" or case.held_out == (part == "held-out")]


def problems(case: Case) -> Iterator[str]:
    """What is wrong with the format of a case."""
    about, text = case.about, case.path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    takes = {f.name: [a.arg for a in f.args.args] for f in tree.body if isinstance(f, ast.FunctionDef)}
    if about.keys() - {"kind"} != KEYS:
        yield f"the keys of CASE are {', '.join(sorted(KEYS))}, and of an oddity also kind"
        return
    if about["class"] not in CLASSES:
        yield f"class {about['class']!r} is none of {', '.join(CLASSES)}"
    if about["shows"] not in SHOWS:
        yield f"shows {about['shows']!r} is none of {', '.join(SHOWS)}"
    yield from (f"no {name}()" for name in (*SHOWS.get(about["shows"], ()), "proof") if name not in takes)
    for name in {"build", "setup", "train", "proof"} & takes.keys():
        if "faulty" not in takes[name]:
            yield f"{name}() takes no `faulty`"
    if not re.match(r"https?://\S+\.\S+$", about["source"]):
        yield f"source {about['source']!r} is not an address"
    if len(text.splitlines()) > LINES:
        yield f"{len(text.splitlines())} lines, at most {LINES}"
    if not ast.get_docstring(tree):
        yield "no docstring"
    if case.oddity != (about["faulty"] is None):
        yield "faulty is None in an oddity, and a range in a fault"
    elif not case.oddity and max(about["healthy"][0], about["faulty"][0]) <= min(
        about["healthy"][1], about["faulty"][1]
    ):
        yield "the ranges overlap"


def proved(case: Case) -> Iterator[tuple[str, float, tuple[float, float]]]:
    """(twin, number, its range) of each twin."""
    proof = case.module().proof
    for twin in case.twins:
        yield twin, float(proof(twin == "faulty")), case.about["faulty" if twin == "faulty" else "healthy"]


class _Twin(ast.NodeTransformer):
    """Takes the branch of `if faulty` that one twin runs."""

    def __init__(self, faulty: bool) -> None:
        self.faulty = faulty

    def visit_If(self, node: Any) -> Any:
        self.generic_visit(node)
        if {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)} != {"faulty"}:
            return node
        taken = node.body if eval(ast.unparse(node.test), {"faulty": self.faulty}) else node.orelse
        return taken or ast.Pass()

    visit_IfExp = visit_If  # noqa: N815  (ast's name)


def source(case: Case, faulty: bool) -> str:
    """One twin as text, for tools that read code: without docstring, CASE, proof, main and the choice of the twin."""
    tree = ast.parse(case.path.read_text(encoding="utf-8"))
    left_out = ("CASE = ", "def proof(", "if __name__", "'", '"')
    tree.body = [node for node in tree.body if not ast.unparse(node).startswith(left_out)]
    return ast.unparse(ast.fix_missing_locations(_Twin(faulty).visit(tree))) + "\n"
