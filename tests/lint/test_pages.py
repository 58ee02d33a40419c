"""A page for every code, whose example has the fault that it speaks of."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import isograd
from isograd.lint.check import CODES, MODULES
from isograd.lint.findings import PAGES, SEVERITIES
from isograd.lint.rules import in_order
from isograd.lint.step import report
from tests.build import few
from tests.lint.faults import FAULTS, OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
EVERY = CODES | report.CODES  # of preflight, too
STEP = sorted(Path(str(report.__file__)).parent.rglob("*.py"))
IN_PROCESSES = {"ranks-differ", "gradients-not-averaged", "ranks-same-data"}  # tests/preflight/test_processes.py


def text(code: str) -> str:
    return (DOCS / "check" / f"{code}.md").read_text()


def named(code: str, *words: str) -> set[str]:
    """Those of the words that the first lines of a page have in italics."""
    return {*re.findall(rf"\*({'|'.join(words)})\*", text(code).split("\n\n")[1])}


def severities(code: str) -> set[str]:
    return named(code, *SEVERITIES)


def kinds(code: str) -> set[str]:
    """By its rules, and by the finding itself where it says more."""
    rules = [one for one in in_order() if code in one.codes]
    own = {"suspicion"} if code in DOUBTED else set()
    return own | {"suspicion" if code in one.suspicions else "fact" for one in rules} or {"fact"}


DOUBTED = {"weights-zero"}  # a fact of one layer, a suspicion where all are alike


def strings(*nodes: ast.AST) -> set[str]:
    return {n.value for one in nodes for n in ast.walk(one) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


@cache
def written() -> dict[str, list[tuple[set[str], bool]]]:
    """Code -> of each `Finding` in the source, the severities that it may have, and whether it has a change to try."""
    found: dict[str, list[tuple[set[str], bool]]] = {code: [] for code in EVERY}
    for module in (*MODULES, sys.modules["isograd.lint.check"]):
        for codes, severity, edit in _written(ast.parse(Path(str(module.__file__)).read_text()), module.__name__):
            for code in codes:
                found[code].append((severity, edit))
    for path in STEP:
        for code, severity in _of_step(ast.parse(path.read_text())):
            found[code].append((severity, False))
    return found


def _of_step(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Of each `finding(code, severity, ...)` of preflight, and each `Finding` that it makes itself."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    for call in (n for n in calls if ast.unparse(n.func) in ("finding", "Finding")):
        given = {k.arg: k.value for k in call.keywords}
        code, severity = call.args[:2] if call.args else (given["code"], given["severity"])
        if isinstance(code, ast.Constant):
            yield str(code.value), strings(severity) & set(SEVERITIES)


def _written(tree: ast.Module, module: str) -> Iterator[tuple[set[str], set[str], bool]]:
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    of_rules = {one.run.__name__: set(one.codes) for one in in_order() if one.run.__module__ == module}
    for function in (n for n in tree.body if isinstance(n, ast.FunctionDef)):
        inside = {id(n) for n in ast.walk(function)}
        for call in (n for n in calls if id(n) in inside and ast.unparse(n.func) == "Finding"):
            given = {k.arg: k.value for k in call.keywords}
            passed = strings(*(n for n in calls if ast.unparse(n.func) == function.name)) & CODES
            codes = strings(*(k.value for k in call.keywords if k.arg == "code")) & CODES or of_rules.get(
                function.name, passed
            )
            severity = {"error"} if "severity" not in given else strings(given["severity"]) or strings(tree)
            yield codes, severity & set(SEVERITIES), "edit" in given


def tried(code: str) -> bool:
    return any(edit for _, edit in written()[code])


def occurring(code: str) -> set[str]:
    """Severities that a finding may have. What a suspicion begins with counts only where it is an info, untried."""
    begun: set[str] = set().union(*(severity for severity, _ in written()[code]))
    if "suspicion" not in kinds(code):
        return begun
    facts = begun if "fact" in kinds(code) else set()
    infos = begun & {"info"}
    return facts | infos | (set(SEVERITIES) if tried(code) else {"warning"} if begun > infos else set())


def checked(example: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `isograd.check` or `isograd.preflight` returns in an example."""
    returned: list[Any] = []
    check, preflight = isograd.check, isograd.preflight
    monkeypatch.setattr(isograd, "check", lambda *args, **options: returned.append(check(*args, **options)))
    monkeypatch.setattr(isograd, "preflight", lambda *args, **options: returned.append(preflight(*args, **options)))
    monkeypatch.syspath_prepend(str(DOCS / "check"))  # decoder.py, training.py
    torch.manual_seed(0)
    exec(compile(example, "example", "exec"), {"__name__": "example"})
    return returned[-1]


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert {page.stem for page in (DOCS / "check").glob("*.md")} == EVERY
    assert PAGES.endswith("docs/check")


@pytest.mark.parametrize("code", sorted(EVERY))
def test_a_page_names_its_code_and_what_to_do(code: str) -> None:
    page = text(code)
    assert page.startswith(f"# {code}\n")
    for part in ("**Measured.**", "**Why it matters.**", "**What to do.**"):
        assert part in page
    assert severities(code), "the first lines say what is found, and how severe that is"


@pytest.mark.parametrize("code", sorted(EVERY))
def test_a_page_says_which_kind_its_code_is_how_severe_and_whether_it_is_tried(code: str) -> None:
    assert named(code, "fact", "suspicion") == kinds(code)
    assert severities(code) == occurring(code)
    lines = re.findall(r"^(Change tried|Not tried): ", text(code), re.MULTILINE)
    assert lines == (["Change tried" if tried(code) else "Not tried"] if "suspicion" in kinds(code) else [])


def test_severities_are_read_off_the_source() -> None:
    assert occurring("dropout-high") == {"error", "warning"}
    assert occurring("not-found") == {"info"}
    assert tried("init-large") and not tried("attention-flat")
    assert all(written().values())


OWN = sorted(CODES - {code for _, _, code in FAULTS.values()})  # of the others a pair is checked
OF_STEP = sorted(report.CODES - CODES - IN_PROCESSES)


@pytest.mark.parametrize("code", few([*sorted(CODES), *OF_STEP], [*OWN[::2], *OF_STEP[::4]]))
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
def test_the_example_of_a_page_has_its_fault(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", text(code), re.DOTALL)
    findings = checked(example, monkeypatch)
    assert code in findings.codes, str(findings)
    assert findings.missed == () or code in ("data-empty", "step-fails")  # where no model is called
    for one in (f for f in findings if f.code == code):
        assert one.kind in kinds(code) and one.severity in severities(code)
        changes = re.findall(r"^Change tried: (.*)$", text(code).replace("`", ""), re.MULTILINE)
        assert one.edit is None or one.kind == "fact" or one.edit.says in changes[0]


def mended(code: str) -> str | None:
    """The example with the change that its page advises; None where that is no change of single lines."""
    (example,) = re.findall(r"```python\n(.*?)```", text(code), re.DOTALL)
    advice = text(code).partition("Instead:")[2]
    before, after = (re.findall(rf"^\{sign} (.*)$", advice, re.MULTILINE) for sign in "-+")
    if len(before) != len(after) or not before or any(line not in example for line in before):
        return None
    for old, new in zip(before, after, strict=True):
        example = example.replace(old, new)
    return str(example)


@pytest.mark.parametrize("code", few(sorted(code for code in EVERY - IN_PROCESSES if mended(code) is not None), 3))
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
def test_the_advice_of_a_page_mends_its_example(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = mended(code)
    assert example is not None
    assert code not in checked(example, monkeypatch).codes


@pytest.mark.slow
def test_pages_have_the_severities_of_findings() -> None:
    for name, (faulty, _, code) in FAULTS.items():
        torch.manual_seed(0)
        findings = isograd.check(faulty(), **OPTIONS.get(name, {}))
        assert {f.severity for f in findings if f.code == code} <= severities(code), name
