"""Parts of a page as Markdown, for a repository: tables, and figures as SVG beside it."""

from pathlib import Path

from isograd.lab.report import style
from isograd.lab.report.page import Section
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


def cell(text: str) -> str:
    """
    >>> print(cell("a|b"))
    a\\|b
    """
    return " ".join(text.split()).replace("|", "\\|")
