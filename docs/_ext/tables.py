"""Tables that can be read at any width: a column of sentences is given room; on a phone rows stand below each other.

Figures beside each other have the same width, and on a phone stand below each other too.

A class says which columns hold sentences and which hold words that stay on one line. In a table too wide for a phone
each cell has its column's name, which only phones show (`_static/isograd.css`).
"""

from docutils import nodes
from sphinx.application import Sphinx

KINDS = {"sentences": 120, "phrases": 40, "names": 16, "words": -1}  # the longest cell has more characters than this
PHONE = 44  # characters beside each other on a phone


def rows_of(part: nodes.Element) -> list[list[nodes.entry]]:
    return [[cell for cell in row.children if isinstance(cell, nodes.entry)] for row in part.findall(nodes.row)]


def kind(lengths: list[int]) -> str:
    """What a column holds, by its longest cell.

    >>> kind([4, 180]), kind([4, 80]), kind([4, 30]), kind([4, 12])
    ('sentences', 'phrases', 'names', 'words')
    """
    return next(name for name, more in KINDS.items() if max(lengths, default=0) > more)


def prepare(table: nodes.table) -> None:
    head, body = next(table.findall(nodes.thead), None), next(table.findall(nodes.tbody), None)
    if head is None or body is None:
        return
    names, rows = [cell.astext() for cell in rows_of(head)[-1]], rows_of(body)
    if any(len(row) != len(names) for row in rows):
        return
    if any(next(cell.findall(nodes.image), None) for row in rows for cell in row):
        table["classes"].append("figures")
        for row in rows:
            for cell, name in zip(row, names, strict=True):
                _name(cell, name)
        return
    columns = [[len(row[i].astext()) for row in rows] for i in range(len(names))]
    widths = [max(each, default=0) for each in columns]
    wide = sum(min(width, 24) for width in widths) > PHONE if len(names) > 2 else min(widths) > PHONE
    lists = len(names) == 2
    stacked = len(names) > 1 and wide
    table["classes"] += ["stacked", *(["lists"] if lists else [])] if stacked else []
    for row in rows:
        for i, cell in enumerate(row):
            cell["classes"].append(kind(columns[i]))
            if stacked:
                _name(cell, names[i] if i or lists else "")


def _name(cell: nodes.entry, name: str) -> None:
    """The column's name at the head of the cell, or that the cell is empty."""
    if not cell.astext():
        cell["classes"].append("empty")
    elif name and isinstance(cell.children[0], nodes.TextElement):
        cell.children[0].insert(0, nodes.inline("", f"{name}: ", classes=["column"]))


def prepare_all(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    if app.builder.format == "html":
        for table in doctree.findall(nodes.table):
            prepare(table)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", prepare_all)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
