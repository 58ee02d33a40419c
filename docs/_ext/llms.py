"""After the build, for programs that read: llms.txt lists the pages, llms-full.txt has their text, schemas/ the JSON's.

llms.txt is what llmstxt.org describes: a title, a summary, lists of links. sphinx-llms-txt joins sources as they lie
on the disk: without the tables that the build writes into them, and with directives in the place of the API.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import shorten

import site_pages
from site_pages import MENUS, ROOT, menus, shown
from sphinx.application import Sphinx
from sphinx.builders.text import TextBuilder

from isograd import cli
from isograd.cli.schema import schema

SUMMARY = (
    "Finds wiring, initialization and training-step bugs in PyTorch models by running them; trains deep Transformers"
    " with their norms placed differently, side by side. For a coding agent: `isograd skill` says what to run when."
)
_MEASURED = "results/"  # pages of numbers: listed, and not in the one file


def index() -> str:
    """llms.txt: the pages of the menus with their first sentence, then those below them."""
    below = {name: [one for one in under(name) if one] for pages in MENUS.values() for name in pages}
    lines = ["# isograd", "", f"> {SUMMARY}", "", "- [All pages in one file](llms-full.txt): Markdown", ""]
    for caption, pages in MENUS.items():
        lines += [f"## {caption}", "", *map(_line, pages), ""]
    lines += ["## JSON of each verb", ""]
    lines += [f"- [isograd {verb} --json](schemas/{verb}.json): JSON Schema" for verb in schemas()]
    lines += ["", "## Optional", "", *(_line(one) for pages in below.values() for one in pages), ""]
    return "\n".join(lines)


def under(name: str) -> list[str]:
    """The pages below a page of the menus."""
    return [one for pages in menus(name).values() for one in pages]


def schemas() -> dict[str, dict[str, object]]:
    """Verb -> the schema of its --json."""
    made = {verb: schema(verb, cli.functions(verb)) for verb in cli.verbs()}
    return {verb: one for verb, one in made.items() if one}


def text_of(name: str) -> str:
    """A page as the site has it, in Markdown, without its menus."""
    made = _generated().get(f"{name.removeprefix('generated/')}.md") if name.startswith("generated/") else None
    return shown(name, made or (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")).rstrip()


@cache
def _generated() -> dict[str, str]:
    return dict(site_pages.pages())


def full(app: Sphinx) -> Iterator[str]:
    """The text of each page, in the order of the menus."""
    first = [name for pages in MENUS.values() for name in pages]
    for name in dict.fromkeys(["index", *(one for page in first for one in (page, *under(page)))]):
        if not name.startswith(_MEASURED):
            text = _rendered(app, name) if name.startswith("api/") else text_of(name)
            yield f"<!-- {name}.html -->\n\n{text}\n"


def _rendered(app: Sphinx, name: str) -> str:
    """A page of docstrings, which its source only names."""
    doctree = app.env.get_and_resolve_doctree(name, app.builder)
    builder = TextBuilder(app, app.env)
    builder.init()
    translator = builder.create_translator(doctree, builder)
    doctree.walkabout(translator)
    return str(translator.body)


def _line(name: str) -> str:
    title, _, rest = text_of(name).partition("\n")
    paragraph = next((one for one in rest.split("\n\n") if re.match(r"\n?[\w*`\[]", one)), "")
    said = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    sentence = shorten(re.split(r"(?<=[.!?]) ", said)[0], 200, placeholder=" ...")
    return f"- [{title.lstrip('# ')}]({name}.html){': ' * bool(sentence)}{sentence}"


def write(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.name != "html":
        return
    out = Path(app.outdir)
    (out / "schemas").mkdir(exist_ok=True)
    for verb, one in schemas().items():
        (out / "schemas" / f"{verb}.json").write_text(json.dumps(one, indent=2) + "\n", encoding="utf-8")
    (out / "llms.txt").write_text(index(), encoding="utf-8")
    (out / "llms-full.txt").write_text("\n".join(full(app)), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
