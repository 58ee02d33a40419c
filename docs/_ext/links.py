"""After the build: each link inside the site leads to a file and a place in it; others are listed, not fetched."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from sphinx.application import Sphinx
from sphinx.util.logging import getLogger


class Page(HTMLParser):
    """The places of a page and what it links to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        self.links += [given[name] for name in ("href", "src") if name in given]


def broken(site: Path) -> tuple[list[str], set[str]]:
    """What leads nowhere, as "page: link", and the links to elsewhere."""
    pages = {file: Page(file) for file in site.rglob("*.html")}
    lost, elsewhere = [], set()
    for file, page in pages.items():
        for link in page.links:
            path, _, place = unquote(link).partition("#")
            if "://" in path or path.startswith(("mailto:", "data:", "//")):
                elsewhere.add(link)
                continue
            target = (file.parent / path.partition("?")[0]).resolve() if path else file
            known = pages[target].places if target in pages else None
            if not target.exists() or (place and known is not None and place not in known):
                lost.append(f"{file.relative_to(site)}: {link}")
    return lost, elsewhere


def check(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.name != "html":
        return
    lost, elsewhere = broken(Path(app.outdir).resolve())
    for one in lost:
        getLogger(__name__).warning("a link leads nowhere: %s", one)
    (Path(app.outdir).parent / "external-links.txt").write_text("\n".join(sorted(elsewhere)) + "\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
