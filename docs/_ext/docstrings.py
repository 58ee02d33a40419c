"""Our docstrings are Google's style around plain text, not reStructuredText: what autodoc reads is made so.

Code in single backticks becomes a literal, indented blocks and tables stay as they stand, and nothing else is markup.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"`+([^`]+)`+")
_MARKS = re.compile(r"([*|\\_])")
_SECTIONS = ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:")


def literal(line: str) -> str:
    """One line of text.

    >>> literal("x * y of `a_b`")
    'x \\\\* y of ``a_b``'
    """
    pieces = _CODE.split(line)
    return "".join(f"``{piece}``" if i % 2 else _MARKS.sub(r"\\\1", piece) for i, piece in enumerate(pieces))


def converted(lines: list[str]) -> Iterator[str]:
    """The docstring, paragraph by paragraph."""
    in_section = False
    for filled, group in groupby(lines, key=lambda line: bool(line.strip())):
        paragraph = list(group)
        if not filled:
            yield from paragraph
            continue
        in_section = paragraph[0] in _SECTIONS or (in_section and paragraph[0].startswith("    "))
        if paragraph[0].lstrip().startswith(">>>"):
            yield from paragraph
        elif not in_section and (paragraph[0].startswith("    ") or paragraph[0].startswith("|")):
            yield from ("::", "", *(f"    {line}" for line in paragraph), "")
        else:
            yield from map(literal, paragraph)


def process(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = converted(list(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process, priority=100)  # before napoleon reads the sections
    return {"parallel_read_safe": True, "parallel_write_safe": True}
