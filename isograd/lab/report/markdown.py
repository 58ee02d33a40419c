"""A page as Markdown, for a repository: the same sections, figures as SVG beside it."""

from pathlib import Path

from isograd.files import write_text
from isograd.lab.report import style
from isograd.lab.report.page import Page, Section, Table
from isograd.lab.report.style import Output

FIGURE = Output(formats=("svg",))


def write_markdown(page: Page, path: Path) -> Path:
    """Write the page to `path`, and each figure beside it as NAME-FIGURE.svg."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [f"# {page.title}", f"**{page.headline}**", *(f"> {line}" for line in page.warnings), page.subtitle]
    for section in page.sections:
        parts += _section(section, path)
    text = "\n\n".join([*filter(None, parts), page.made]) + "\n"
    write_text(path, text.replace("&#39;", "'").replace("&#34;", '"'))  # HTML alone needs these
    return path


def _section(section: Section, path: Path) -> list[str]:
    figure = _figure(section, path)
    table = markdown_table(section.table) if section.table else ""
    if not figure and not table and not section.verdicts:
        return []
    said = [section.sentence, figure, *(f"- {line}" for line in section.verdicts), table]
    if section.folded and table:
        said = [section.sentence, f"<details><summary>{len(section.table.lines)} lines</summary>", table, "</details>"]  # type: ignore[union-attr]
    return [f"## {section.title}", *said]


def _figure(section: Section, path: Path) -> str:
    with style.settings(FIGURE):
        drawn = section.figure() if section.figure else None
        if drawn is None:
            return ""
        name = path.with_name(f"{path.stem}-{section.name}")
        style.save(drawn, name, FIGURE.formats)
    return f"![{section.title}]({name.name}.svg)"


def markdown_table(table: Table) -> str:
    """
    >>> print(markdown_table(Table(header=["arm", "loss"], lines=[["a|b", "2.01"]])))
    | arm | loss |
    |---|---:|
    | a\\|b | 2.01 |
    """
    ruler = "|" + "|".join("---" if i < table.left else "---:" for i in range(len(table.header))) + "|"
    header, *lines = ["| " + " | ".join(_cell(cell) for cell in cells) + " |" for cells in table]
    return "\n".join([header, ruler, *lines])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
