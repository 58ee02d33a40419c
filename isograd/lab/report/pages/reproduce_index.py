"""The index of all items, and a page of each that has been run, as Markdown, from the results of `isograd reproduce`.

FOLDER/README.md      the index: every item of the table with its verdict
FOLDER/ID.md          the page of an item, its figures beside it
FOLDER/results.json   verdicts and numbers, the earlier ones too; what `--out` has no result of is kept
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isograd.errors import DataError, one_line
from isograd.files import read_object, write_json, write_text
from isograd.lab.report import style
from isograd.lab.report.page import Page, Section, Table
from isograd.lab.report.pages.reproduce import page_of, read_result
from isograd.lab.report.style import Output

Row = Mapping[str, Any]
KEPT = ("verdict", "reason", "ours", "with data", "core minutes", "changed", "date", "commit", "setup")
EARLIER = ("date", "commit", "verdict", "reason", "changed")
INDEX, RESULTS = "README.md", "results.json"


def write_index(items: Sequence[Row], out: Path, folder: Path) -> Path:
    """Write the index of `items` (as `Item.about` gives them) into `folder`, from the results below `out`.

    Returns:
        the path of the index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Row] = {}
    before = _before(folder / RESULTS)
    for item in items:
        name = item["item"]
        kept, found = before.get(name), _result(out, name)
        if found and not (found["verdict"] == "not run" and kept):
            results[name] = {key: found.get(key) for key in KEPT} | {"earlier": _earlier(kept, found)}
            if found["verdict"] != "not run":
                _write_page(item, results[name], out, folder)
        elif kept:
            results[name] = kept
    write_json(folder / RESULTS, results)
    write_text(folder / INDEX, "\n\n".join(_index(items, results)) + "\n")
    return folder / INDEX


def _before(path: Path) -> Row:
    try:
        return read_object(path)
    except ValueError as error:
        raise DataError(f"{path} is damaged ({one_line(error)}); it holds what was found before") from None


def _earlier(kept: Row | None, found: Row) -> list[Row]:
    """The verdicts before this one, the oldest first; the same result written again is none."""
    if kept is None:
        return []
    same = (kept["reason"], kept["verdict"], kept["changed"]) == (found["reason"], found["verdict"], found["changed"])
    return [*kept.get("earlier", ()), *([] if same else [{key: kept.get(key) for key in EARLIER}])]


def _write_page(item: Row, result: Row, out: Path, folder: Path) -> None:
    """The item's page; below it when its setup was changed, and what was found before."""
    page = page_of(out / "items" / item["item"], out)
    lines = [[one["date"] or "", one["commit"] or "", one["verdict"], one["reason"]] for one in result["earlier"]]
    if item["revised"] or lines:
        history = Section(
            name="history",
            title="Changes and earlier verdicts",
            sentence="Each change of the setup or the rule was written before the runs that follow it.",
            verdicts=item["revised"],
            table=Table(header=["date", "commit", "verdict", "what was found"], lines=lines, left=4) if lines else None,
        )
        page = replace(page, sections=[*page.sections, history])
    write_markdown(page, folder / file_of(item["item"]))


def file_of(name: str) -> str:
    """
    >>> file_of("xiong2020/warmup-fig2")
    'xiong2020-warmup-fig2.md'
    """
    return f"{name.replace('/', '-')}.md"


def _result(out: Path, name: str) -> Row | None:
    folder = out / "items" / name
    return read_result(folder) if (folder / "result.json").exists() else None


def _index(items: Sequence[Row], results: Mapping[str, Row]) -> Iterator[str]:
    yield "# The four papers, reproduced"
    yield (
        "Every table, figure and claim that isograd repeats: one command each, at a size for two CPU cores, the paper's"
        " value beside ours, a verdict by a rule that was written before the runs. Compare directions, never levels."
    )
    yield (
        "    isograd reproduce --list                                what there is\n"
        "    isograd reproduce xiong2020/warmup-fig2                 runs, figure, verdict; nothing is downloaded\n"
        "    isograd reproduce xiong2020/warmup-fig2 --data FOLDER   on real corpora\n"
        "    isograd reproduce xiong2020/warmup-fig2 --full          what the paper's size needs; --run starts it"
    )
    yield summary(items, results)
    yield (
        "Data: the corpus below `--data` that verdict and minutes are of; in brackets what the command reads without"
        " `--data`, on which it may find another verdict."
    )
    for paper in dict.fromkeys(item["paper"] for item in items):
        own = [item for item in items if item["paper"] == paper]
        lines = [_line(item, results.get(item["item"])) for item in own]
        yield f"## {paper}"
        yield markdown_table(Table(header=_HEADER, lines=lines, left=6))


_HEADER = ("item", "what it shows", "verdict", "what was found", "here", "data", "minutes")


def summary(items: Sequence[Row], results: Mapping[str, Row]) -> str:
    """How many, and how they came out."""
    verdicts = Counter(verdict_of(item, results.get(item["item"])) for item in items)
    counted = ", ".join(f"{verdicts[name]} *{name}*" for name in _ORDER if verdicts[name])
    changed = sum(bool(result["changed"]) for result in results.values())
    counted += f"; {changed} of them at other settings than the item's own" if changed else ""
    return f"{len(items)} items: {counted}. Minutes are of one core, runs that items share counted with each."


_ORDER = ("same direction", "not seen", "opposite", "not run", "not run yet")


def verdict_of(item: Row, result: Row | None) -> str:
    """Of an item without a result, whether it can ever have one here."""
    return result["verdict"] if result else "not run" if item["missing"] else "not run yet"


def _line(item: Row, result: Row | None) -> list[str]:
    verdict, name = verdict_of(item, result), item["item"]
    linked = result is not None and verdict != "not run"
    minutes = f"{result['core minutes']:.1f}" if result and linked else f"about {item['minutes']:g}"
    changed = f" (other settings: {', '.join(result['changed'])})" if result and result["changed"] else ""
    if result and result.get("setup") not in (None, item["setup"]):
        changed += " (its setup has changed since)"
    return [
        f"[{name}]({file_of(name)})" if linked else name,
        item["shows"],
        verdict + changed,
        result["reason"] if result else item["missing"] or "",
        item["size here"],
        "embedded" if result and linked and not result["with data"] else item["data"],
        "" if item["missing"] else minutes,
    ]


# ------------------------------------------------------------------------------------------------- a page as Markdown

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
