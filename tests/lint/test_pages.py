"""A page for every code, whose example has the fault that it speaks of."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import isograd
from isograd.lint.check import CODES
from isograd.lint.findings import PAGES
from tests.build import few
from tests.lint.faults import FAULTS, OPTIONS

DOCS = Path(__file__).parents[2] / "docs"


def text(code: str) -> str:
    return (DOCS / "check" / f"{code}.md").read_text()


def severities(code: str) -> set[str]:
    """As the first lines of a page have them."""
    return {*re.findall(r"\*(error|warning|info)\*", text(code).split("\n\n")[1])}


def checked(example: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `isograd.check` returns in an example."""
    returned: list[Any] = []
    check = isograd.check
    monkeypatch.setattr(isograd, "check", lambda *args, **options: returned.append(check(*args, **options)))
    monkeypatch.syspath_prepend(str(DOCS / "check"))  # decoder.py
    torch.manual_seed(0)
    exec(compile(example, "example", "exec"), {"__name__": "example"})
    return returned[-1]


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert {page.stem for page in (DOCS / "check").glob("*.md")} == CODES
    assert PAGES.endswith("docs/check")


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_page_names_its_code_and_what_to_do(code: str) -> None:
    page = text(code)
    assert page.startswith(f"# {code}\n")
    for part in ("**Measured.**", "**Why it matters.**", "**What to do.**"):
        assert part in page
    assert severities(code), "the first lines say what is found, and how severe that is"


OWN = sorted(CODES - {code for _, _, code in FAULTS.values()})  # of the others a pair is checked


@pytest.mark.parametrize("code", few(sorted(CODES), OWN[::2]))
def test_the_example_of_a_page_has_its_fault(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", text(code), re.DOTALL)
    findings = checked(example, monkeypatch)
    assert code in findings.codes, str(findings)
    assert findings.missed == ()


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


@pytest.mark.parametrize("code", few(sorted(code for code in CODES if mended(code) is not None), 3))
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
