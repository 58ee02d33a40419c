"""The pages that are written from the catalogue are in step with it."""

from pathlib import Path

import isograd
from isograd.placement import CATALOGUE
from isograd.placement.pages import page, table, with_table

ROOT = Path(isograd.__file__).parents[1]


def test_the_pages_are_in_step() -> None:
    """Else run `python -m isograd.placement.pages`."""
    assert (ROOT / "docs/catalogue.md").read_text(encoding="utf-8") == page()
    listed = (ROOT / "docs/placements.md").read_text(encoding="utf-8")
    assert with_table(listed) == listed and table() in listed


def test_every_entry_is_on_both() -> None:
    for name, entry in CATALOGUE.items():
        assert f"### {name}\n" in page() and f"`{name}`" in table()
        assert entry.note and entry.paper and entry.group
