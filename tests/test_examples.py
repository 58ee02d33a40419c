"""The examples run, and the recipes say what they are named for."""

import re
import runpy
from pathlib import Path

import pytest

from isograd.placement import CATALOGUE
from isograd.train.recipe import load_run

ROOT = Path(__file__).parents[1]


def test_own_placement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    main = runpy.run_path(str(ROOT / "examples/own_placement.py"))["main"]
    try:
        page = main(str(text), steps=2, out=tmp_path / "out").read_text(encoding="utf-8")
    finally:
        CATALOGUE.pop("peri-ln")
    assert "x ← x + LN(Attn(LN(x)))" in page


def test_probe_any_model() -> None:
    rows = runpy.run_path(str(ROOT / "examples/probe_any_model.py"))["main"](layers=2)
    assert [row["address"] for row in rows] == ["transformer.h.0", "transformer.h.1"]
    assert all(row["gradient_mean_abs"] > 0 for row in rows)


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").rglob("*.yaml")), ids=lambda p: p.stem)
def test_recipes_load(recipe: Path) -> None:
    run = load_run(recipe)
    assert run.model.placement in CATALOGUE
    assert run.name
    assert f"`{recipe.name}`" in (ROOT / "recipes/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]), ids=lambda p: p.name)
def test_pages_are_filled_in(page: Path) -> None:
    """No placeholder is left, and what a page links to is there."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"@[A-Z]+@", text)
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
