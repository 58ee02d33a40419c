"""The cases: where they are, what their format is, which of them are held out, their source as a tool reads it."""

import ast
import hashlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parent / "cases"
CLASSES = (
    "loss data masks positions wiring init norm optimizer schedule precision accumulation processes resume state generation"
).split()
SHOWS = {"model": ("build", "batch"), "step": ("setup",), "data": ("setup",), "run": ("train",)}
KEYS = {"class", "shows", "source", "cause", "number", "healthy", "faulty", "kind"}
LINES = 120


@dataclass(frozen=True)
class Case:
    """A file of a fault and its healthy twin, or of an oddity. `about` is its CASE, read without running it."""

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
        """The SHA-256 of the name, as one number, is divisible by three."""
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
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASE":
            return Case(path, ast.literal_eval(node.value))
    raise ValueError(f"{path} has no CASE")


def cases(folder: Path = FOLDER, only: str = "", part: str = "all") -> list[Case]:
    """All cases of a folder by name; `part` is all, open or held-out, `only` a part of the name."""
    found = [load(path) for path in sorted(folder.glob("*.py")) if only in path.stem]
    return [case for case in found if part == "all" or case.held_out == (part == "held-out")]


def problems(case: Case) -> list[str]:
    """What is wrong with the format of a case."""
    about, text = case.about, case.path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = [f"{key!r} is missing in CASE" for key in sorted(KEYS - {"kind"} - about.keys())]
    found += [f"unknown key {key!r} in CASE" for key in sorted(about.keys() - KEYS)]
    if found:
        return found
    if about["class"] not in CLASSES:
        found.append(f"class {about['class']!r} is none of {', '.join(CLASSES)}")
    if about["shows"] not in SHOWS:
        return [*found, f"shows {about['shows']!r} is none of {', '.join(SHOWS)}"]
    found += [f"no {name}()" for name in (*SHOWS[about["shows"]], "proof") if name not in functions]
    for name in ("build", "setup", "train", "proof"):
        if name in functions and "faulty" not in [arg.arg for arg in functions[name].args.args]:
            found.append(f"{name}() takes no `faulty`")
    if not re.match(r"https?://\S+\.\S+$", about["source"]):
        found.append(f"source {about['source']!r} is not an address")
    if len(text.splitlines()) > LINES:
        found.append(f"{len(text.splitlines())} lines, at most {LINES}")
    if not ast.get_docstring(tree):
        found.append("no docstring")
    if case.oddity != (about["faulty"] is None):
        found.append("an oddity has faulty: None, a fault a range")
    elif not case.oddity and about["healthy"][0] <= about["faulty"][1] and about["faulty"][0] <= about["healthy"][1]:
        found.append("the ranges overlap")
    return found


def proved(case: Case) -> list[tuple[str, float, tuple[float, float]]]:
    """(twin, number, range) of each twin whose number is to be measured."""
    proof = case.module().proof
    return [
        (twin, float(proof(twin == "faulty")), tuple(case.about["faulty" if twin == "faulty" else "healthy"]))
        for twin in case.twins
    ]


class _Twin(ast.NodeTransformer):
    """Of the functions that take `faulty`, what is run of them for one value of it."""

    def __init__(self, value: bool) -> None:
        self.value = value

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
        return ast.Constant(self.value) if node.id == "faulty" and isinstance(node.ctx, ast.Load) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:  # noqa: N802
        self.generic_visit(node)
        constant = isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant)
        return ast.Constant(not node.operand.value) if constant else node  # type: ignore[attr-defined]

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:  # noqa: N802
        self.generic_visit(node)
        stops = isinstance(node.op, ast.Or)  # the value that decides
        rest = [v for v in node.values if not (isinstance(v, ast.Constant) and bool(v.value) != stops)]
        for value in rest:
            if isinstance(value, ast.Constant):
                return ast.Constant(stops) if value is rest[0] else node
        return ast.Constant(not stops) if not rest else rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:  # noqa: N802
        self.generic_visit(node)
        return (node.body if node.test.value else node.orelse) if isinstance(node.test, ast.Constant) else node

    def visit_If(self, node: ast.If) -> Any:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.test, ast.Constant):
            return node
        return (node.body if node.test.value else node.orelse) or ast.Pass()


def source(case: Case, twin: str) -> str:
    """The text of one twin, for tools that read code: without CASE, docstring, proof and the choice between twins."""
    tree = ast.parse(case.path.read_text(encoding="utf-8"))
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASE")
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and not (isinstance(node, ast.FunctionDef) and node.name == "proof")
        and not (isinstance(node, ast.If) and "__name__" in ast.unparse(node.test))
    ]
    return ast.unparse(ast.fix_missing_locations(_Twin(twin == "faulty").visit(tree))) + "\n"
