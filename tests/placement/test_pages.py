"""The pages that are written from the catalogue are in step with it."""

import runpy
from pathlib import Path

import isograd
from isograd.placement import CATALOGUE

ROOT = Path(isograd.__file__).parents[1]
WRITER = runpy.run_path(str(ROOT / "docs/_ext/catalogue_page.py"))
page, table, with_table = (WRITER[name] for name in ("page", "table", "with_table"))


def test_the_pages_are_in_step() -> None:
    """Else run `python docs/_ext/catalogue_page.py`."""
    assert (ROOT / "docs/catalogue.md").read_text(encoding="utf-8") == page()
    listed = (ROOT / "docs/placements.md").read_text(encoding="utf-8")
    assert with_table(listed) == listed and table() in listed


def test_every_entry_is_on_both() -> None:
    for name, entry in CATALOGUE.items():
        assert f"### {name}\n" in page() and f"`{name}`" in table()
        assert entry.note and entry.paper and entry.group
