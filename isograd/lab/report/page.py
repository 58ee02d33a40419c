"""The one page: a headline and sections of figure and table, as a self-contained HTML file, with all of it as files.

NAME.html            the page
FIGURE.svg, .png     or what `Output` says; .csv the points of its lines
tables/TABLE.csv     every table, and as .tex with the rules of booktabs
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from isograd.files import finite, write_text
from isograd.lab.report import shape, style
from isograd.lab.report.style import Drawing, Look, Output


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text. "2.013 (2.001 to 2.020)" is a number and its range.

    Attributes:
        looks: the look of the placement of each line, shown beside its first cell; () where lines are none's.
        verdict: the column whose words have a colour: outcomes, and what holds.
        left: how many columns, from the left, are words.
    """

    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    looks: Sequence[Look] = ()
    verdict: str = ""
    left: int = 1

    def __iter__(self) -> Any:
        """The header, then the lines."""
        return iter([tuple(self.header), *map(tuple, self.lines)])

    def __bool__(self) -> bool:
        """Whether there is a line; a page shows no empty table."""
        return bool(self.lines)

    @classmethod
    def of(cls, rows: Iterable[Any], columns: Mapping[str, str | Callable[[Any], str]], **more: Any) -> "Table":
        """A line per row, a column per entry: its header, and its cell as a function of the row, or the row's key."""
        cells = [cell if callable(cell) else partial(_cell, cell) for cell in columns.values()]
        return cls(header=[*columns], lines=[tuple(cell(row) for cell in cells) for row in rows], **more)


def _cell(key: str, row: Mapping[str, Any]) -> str:
    value = row.get(key)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def warnings_table(rows: Sequence[Mapping[str, Any]], *first: str) -> Table:
    """A line per warning of runs, below the keys that any of them has.

    Args:
        first: further keys, of whose run it is.
    """
    keys = (*first, "step", "signal", "layer", "message", "cause", "remedy")
    known = [key for key in keys if any(row.get(key) for row in rows)]
    return Table.of(rows, {key: key for key in known}, left=len(known))


def settings_table(lines: Iterable[Sequence[str]], header: Sequence[str] = ("setting", "value")) -> Table:
    return Table(header=header, lines=[*lines], left=2)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page.

    Attributes:
        name: of its files, and of its place on the page.
        sentence: how to read what is shown.
        figure: draws it, in the settings of the page or of a file; None from it: there is nothing to draw.
        verdicts: what follows, by the one rule of `isograd.lab.statistics`.
        folded: the table is shown when asked for.
        code: a text as it is, such as a recipe.
    """

    name: str
    title: str
    sentence: str = ""
    figure: Callable[[], Drawing | None] | None = None
    table: Table | None = None
    verdicts: Sequence[str] = ()
    folded: bool = False
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a page says.

    Attributes:
        headline: one sentence, which answers the page's question.
        warnings: what a reader must not miss.
        subtitle: what was measured on what.
        made: of what files, and by what.
    """

    title: str
    headline: str
    warnings: Sequence[str] = ()
    subtitle: str = ""
    sections: Sequence[Section] = field(default_factory=list)
    made: str = ""


def in_words(text: str, words: Mapping[str, str]) -> str:
    """A text with what a task calls things in place of what language models do (`Task.words`).

    >>> in_words("0.1 nats above the unigram entropy", {" nats": "", "unigram entropy": "baseline"})
    '0.1 above the baseline'
    """
    for known, own in words.items():
        text = text.replace(known, own)
    return text


def page_in_words(page: Page, words: Mapping[str, str]) -> Page:
    """A page with all it says, and its figures, in these words; settings and recipes stay as they are."""
    if not words:
        return page

    def said(texts: Iterable[str]) -> list[str]:
        return [in_words(text, words) for text in texts]

    def drawn(figure: Callable[[], Drawing | None]) -> Drawing | None:
        drawing = figure()
        for axes in drawing.panels if drawing else ():
            for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
                text.set_text(in_words(text.get_text(), words))
            for line in axes.get_lines():
                line.set_label(in_words(str(line.get_label()), words))
        return drawing

    def own(section: Section) -> Section:
        table = section.table and replace(section.table, header=said(section.table.header))
        figure = section.figure and partial(drawn, section.figure)
        title, sentence = said([section.title, section.sentence])
        verdicts = said(section.verdicts)
        return replace(section, title=title, sentence=sentence, table=table, figure=figure, verdicts=verdicts)

    headline, subtitle = said([page.headline, page.subtitle])
    sections = [own(section) for section in page.sections]
    return replace(page, headline=headline, subtitle=subtitle, warnings=said(page.warnings), sections=sections)


def write_page(page: Page, path: Path, output: Output | None = None, main_figure_only: bool = False) -> Path:
    """Write the page to `path`, and beside it its figures and tables.

    Args:
        output: of the figures' files; where it names some, these are written, and no page.
        main_figure_only: of all figures write the first, and no tables.

    Raises:
        UserError: `output` names a figure or a panel that the page does not have.
    """
    out, output = path.parent, output or Output()
    out.mkdir(parents=True, exist_ok=True)
    if output.figures:
        _write_chosen(page, out, output)
        return path
    drawn = [(section, _draw(section, None)) for section in page.sections]
    shown = [(section, one) for section, one in drawn if one or section.table or section.code or section.verdicts]
    known = [(section, one) for section, one in shown if one is not None]
    with style.settings():
        files = {section.name: style.svg(one, section.name) for section, one in known}
    parts = [{**vars(section), "svg": files[section.name][0] if one else None} for section, one in shown]
    written = known[:1] if main_figure_only else known
    text = _TEMPLATES.get_template("page.html.j2").render(
        page=page,
        parts=parts,
        charts=any('class="chart"' in (part["svg"] or "") for part in parts),
        figures=[section.name for section, _ in written],
        formats=output.formats,
        tables=not main_figure_only,
    )
    write_text(path, text.encode("utf-8", "replace").decode())  # a file's name need not be UTF-8
    for section, one in written:
        as_shown = output.settings == style.SCREEN and output.height is None
        file = files[section.name][1] if as_shown else None
        _save(section, one if as_shown else None, out / section.name, output, file=file)
    for section, _ in [] if main_figure_only else shown:
        if section.table:
            write_table(section.table, out / "tables" / section.name)
    return path


def _write_chosen(page: Page, out: Path, output: Output) -> None:
    drawn = [(section, one) for section in page.sections if (one := _draw(section, output)) is not None]
    shape.must_be_figures(output, [section.name for section, _ in drawn])
    for section, one in drawn:
        for i, panel in enumerate(shape.chosen(output, section.name)):
            _save(section, one if i == 0 else None, out / file_of(section.name, panel), output, panel)


def file_of(figure: str, panel: str) -> str:
    """
    >>> file_of("gradients", ""), file_of("gradients", "last 50")
    ('gradients', 'gradients-last-50')
    """
    return "-".join([figure, *re.findall(r"\w+", panel)])


def _save(
    section: Section, drawn: Drawing | None, path: Path, output: Output, panel: str = "", file: bytes | None = None
) -> None:
    """The figure's files and its points; None: it is drawn for them. `file`: its SVG, where that is drawn."""
    drawn = drawn or _draw(section, output)
    assert drawn is not None
    with style.settings(output):
        drawn = shape.shaped(drawn, output, panel)
        style.save(drawn, path, output.formats, output.height, file)
    if rows := shape.points(drawn):
        write_text(path.with_name(f"{path.name}.csv"), csv_of_rows(rows))


def figure_of(page: Page, name: str, output: Output) -> Figure:
    """One figure of the page, or one panel of it as `Output.figures` says it.

    Raises:
        UserError: the page has no such figure or panel.
    """
    output = replace(output, figures=[name])
    section = next((one for one in page.sections if one.figure and shape.chosen(output, one.name)), None)
    drawn = _draw(section, output) if section else None
    if section is None or drawn is None:
        there = [one.name for one in page.sections if _draw(one, output)]
        shape.must_be_figures(output, [one for one in there if one != name.partition(":")[0]])
    assert section is not None and drawn is not None
    with style.settings(output):
        return style.finish(shape.shaped(drawn, output, shape.chosen(output, section.name)[0]), output.height)


def _draw(section: Section, output: Output | None) -> Drawing | None:
    with style.settings(output):
        return section.figure() if section.figure else None


def write_table(table: Table, path: Path) -> None:
    """`path` as .csv and .tex."""
    path.parent.mkdir(exist_ok=True)
    write_text(path.with_name(f"{path.name}.csv"), csv_of([table.header, *table.lines]))
    write_text(path.with_name(f"{path.name}.tex"), latex(table))


def csv_of(lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode("utf-8", "replace").decode()


def csv_of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """A column for each key of any row, in the order in which they come."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return csv_of([names, *([finite(row.get(name)) for name in names] for row in rows)])


_TEX = {char: f"\\{char}" for char in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
_TEX |= {"^": r"\textasciicircum{}", "→": r"$\to$", "–": "--", "β": r"$\beta$", "²": r"\textsuperscript{2}"}
_TEX |= {"₂": r"\textsubscript{2}", "Σ": r"$\Sigma$", "≤": r"$\le$", "≥": r"$\ge$", "±": r"$\pm$", "←": r"$\gets$"}
_TEX |= {"|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}", "×": r"$\times$", "√": r"$\surd$"}


WIDE = 48  # characters of a cell from which on its column is broken into lines


def latex(table: Table) -> str:
    """A tabular with the rules of booktabs.

    >>> print(latex(Table(header=["placement", "loss"], lines=[["pre_ln", "2.01"]])), end="")
    \\begin{tabular}{lr}
    \\toprule
    placement & loss \\\\
    \\midrule
    pre\\_ln & 2.01 \\\\
    \\bottomrule
    \\end{tabular}
    """
    cells = list(zip(*table, strict=True))
    wide = [max(map(len, column)) > WIDE for column in cells[: table.left]]
    share = f"p{{{0.7 / max(sum(wide), 1):.2g}\\linewidth}}"  # lines are broken there; the other columns have the rest
    columns = "".join(share if one else "l" for one in wide) + "r" * (len(table.header) - table.left)
    header, *lines = (" & ".join(map(_tex, cells)) + r" \\" for cells in table)
    body = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *lines]
    return "\n".join([*body, r"\bottomrule", r"\end{tabular}", ""])


def _tex(cell: str) -> str:
    return "".join(_TEX.get(char, char) for char in " ".join(cell.split()).replace("<-", "←"))


_TONES = {  # the first word that a verdict has: what it looks like
    **dict.fromkeys(("failed", "interrupted", "stopped"), "warn"),
    **dict.fromkeys(("diverged", "collapsed", "fails", "none", "does not hold"), "bad"),
    **dict.fromkeys(("running", "undecided", "slow", "too few seeds", "false"), "open"),
    **dict.fromkeys(("finished", "holds", "lower", "higher", "sooner"), "good"),
}


def _tone(cell: str) -> str:
    return next((tone for word, tone in _TONES.items() if word in cell), "")


def _key(look: Look) -> Markup:
    """The line of a placement, small."""
    dash = "none" if look["linestyle"] == "-" else " ".join(f"{2.6 * part:g}" for part in look["linestyle"][1])
    line = f'<line x1="0" x2="30" y1="4" y2="4" stroke="{look["color"]}" stroke-width="2.6" stroke-dasharray="{dash}"/>'
    return Markup(f'<svg class="key" width="30" height="8" aria-hidden="true">{line}</svg>')


def typeset(text: str) -> Markup:
    """W_O and W_2 with subscripts, `code`; nothing else is markup.

    >>> str(typeset("the gradient of W_2 <b>, `run.json`"))
    'the gradient of W<sub>2</sub> &lt;b&gt;, <code>run.json</code>'
    """
    if isinstance(text, Markup):
        return text
    found = re.sub(r"\bW_([O12])\b", r"W<sub>\1</sub>", str(escape(text)))
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", found))


def prose(text: str) -> Markup:
    """Our own sentences with formulas in them; not for names, which are none.

    >>> str(prose("|x_l|^2 <= d, and sum beta_ii^2 ~ (2L)^(1/4)"))
    '|<i>x</i><sub>l</sub>|<sup>2</sup> ≤ d, and sum <i>β</i><sub>ii</sub><sup>2</sup> ∝ (2L)<sup>1/4</sup>'
    """
    found = re.sub(r"\bsqrt\b", "√", re.sub(r"\bbeta(?=_)", "β", str(typeset(text))))
    found = found.replace("&lt;=", "≤").replace(" ~ N(", " ∼ N(").replace(" ~ ", " ∝ ").replace("|_2", "|<sub>2</sub>")
    found = re.sub(r"\b([A-Za-zβ]|dW|skip)_([A-Za-z0-9]{1,2})\b", r"<i>\1</i><sub>\2</sub>", found)
    return Markup(re.sub(r"\^(?:\((-?[\d/.]+)\)|(-?\d[\d/.]*\d|-?\d|[a-z]))", r"<sup>\1\2</sup>", found))


def formula(text: str) -> Markup:
    """One line of a placement's formula: variables in italics, subscripts and roots as such.

    >>> str(formula("x <- LN(skip * x + W_O Heads(x))"))
    '<i>x</i> ← LN(skip · <i>x</i> + <i>W</i><sub>O</sub> Heads(<i>x</i>))'
    """
    found = str(escape(text.replace("<-", "←").replace(" * ", " · ")))
    found = re.sub(r"\b([A-Za-z])_([A-Za-z0-9]+)\b", r"<i>\1</i><sub>\2</sub>", found)
    found = re.sub(r"\bsqrt\b", "√", re.sub(r"\^\(?(-?[\d/.]+)\)?", r"<sup>\1</sup>", found))
    return Markup(re.sub(r"(?<![\w<>/&])([xfuqkv])(?![\w>;])", r"<i>\1</i>", found))


_TEMPLATES = Environment(
    loader=PackageLoader("isograd.lab.report", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"typeset": typeset, "formula": formula, "tone": _tone, "key": _key}
