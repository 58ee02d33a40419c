"""Parts of a page as Markdown, for a repository: tables, and figures as SVG beside it."""

from pathlib import Path

from isograd.lab.report import style
from isograd.lab.report.page import Section, Table
from isograd.lab.report.style import Output

FIGURE = Output(formats=("svg",))


def write_figure(section: Section, path: Path) -> str:
    """Write the section's figure to `path`.svg; gives the file's name, "" where there is nothing to draw."""
    with style.settings(FIGURE):
        drawn = section.figure() if section.figure else None
        if drawn is None:
            return ""
        style.save(drawn, path, FIGURE.formats)
    return f"{path.name}.svg"


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
