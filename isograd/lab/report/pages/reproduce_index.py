"""Markdown of the results of `isograd reproduce`: a page per paper and a summary of all, from what their folder holds.

FOLDER/README.md      the summary: what holds, what does not, what was never tested; a row per item
FOLDER/PAPER.md       the items of a paper: a table of all, a section each
FOLDER/*.svg          figures
FOLDER/rows/*.csv     single runs, and the tables of figures
FOLDER/results.json   verdicts and numbers, the earlier ones too, and what the pages say of each; what `--out` has no
                      result of is kept
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isograd.errors import DataError, one_line
from isograd.files import read_object, write_json, write_text
from isograd.lab.report.markdown import markdown_table, write_figure
from isograd.lab.report.page import Page, Table, csv_of, prose
from isograd.lab.report.pages.reproduce import greek, number, ours, page_of, read_result, sentences

Row = Mapping[str, Any]
KEPT = ("verdict", "reason", "ours", "with data", "core minutes", "changed", "date", "commit", "setup")
EARLIER = ("date", "commit", "verdict", "reason", "changed")
INDEX, RESULTS, ROWS = "README.md", "results.json", "rows"


def write_index(items: Sequence[Row], out: Path, folder: Path) -> Path:
    """Write the pages of `items` (as `Item.about` gives them) into `folder`, from it and the results below `out`.

    Returns:
        the path of the summary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Row] = {}
    before = _before(folder / RESULTS)
    for item in items:
        name = item["item"]
        kept, found = before.get(name), _result(out, name)
        if found and not (found["verdict"] == "not run" and kept):
            results[name] = {
                **{key: found.get(key) for key in KEPT},
                "earlier": _earlier(kept, found),
                **({} if found["verdict"] == "not run" else _shown(page_of(out / "items" / name, out), name, folder)),
                "runs": len(found["cells"]),
            }
        elif kept:
            results[name] = kept
    write_json(folder / RESULTS, results)
    papers: dict[str, list[Row]] = {}
    for item in items:
        papers.setdefault(file_of(item["item"]), []).append(item)
    for file, own in papers.items():
        write_text(folder / file, _joined(_paper(own, results)))
    write_text(folder / INDEX, _joined(_index(items, papers, results)))
    return folder / INDEX


def _joined(parts: Iterator[str]) -> str:
    text = "\n\n".join(filter(None, parts)) + "\n"
    return text.replace("&#39;", "'").replace("&#34;", '"')  # HTML alone needs these


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


def _result(out: Path, name: str) -> Row | None:
    folder = out / "items" / name
    return read_result(folder) if (folder / "result.json").exists() else None


def _shown(page: Page, name: str, folder: Path) -> dict[str, Any]:
    """What the paper's page takes from the item's: its setting; figures and tables as files."""
    stem = name.replace("/", "-")
    figures: list[Row] = []
    tables: list[Row] = []
    setting: dict[str, str] = {}
    for section in page.sections:
        if file := write_figure(section, folder / f"{stem}-{section.name}"):
            caption = " ".join([section.sentence, *section.verdicts]).strip()
            figures.append({"title": section.title, "caption": caption, "file": file})
        if section.table and section.name == "settings":
            setting = {line[0]: line[1] for line in section.table.lines}
        elif section.table and section.name != "numbers":
            file = f"{ROWS}/{stem}.csv" if section.name == "runs" else f"{ROWS}/{stem}-{section.name}.csv"
            (folder / ROWS).mkdir(exist_ok=True)
            write_text(folder / file, csv_of(section.table))
            tables.append({"title": section.title, "file": file, "lines": len(section.table.lines)})
    return {"setting": setting, "figures": figures, "tables": tables}


def file_of(name: str) -> str:
    """
    >>> file_of("xiong2020/warmup-fig2")
    'xiong2020.md'
    """
    return f"{name.partition('/')[0]}.md"


def _place(name: str) -> str:
    """The item's section on its paper's page."""
    return f"#{name.partition('/')[2]}"


def _index(items: Sequence[Row], papers: Mapping[str, Sequence[Row]], results: Mapping[str, Row]) -> Iterator[str]:
    yield "# The four papers, reproduced"
    yield (
        "Tables, figures and claims of four papers, repeated at a size for two CPU cores: one command each, a verdict"
        " by a rule that was written before the runs. Compare directions, never levels."
    )
    yield (
        "    isograd reproduce --list                                what there is\n"
        "    isograd reproduce xiong2020/warmup-fig2                 runs, figure, verdict; nothing is downloaded\n"
        "    isograd reproduce xiong2020/warmup-fig2 --data FOLDER   on real corpora\n"
        "    isograd reproduce xiong2020/warmup-fig2 --full          what the paper's size needs; --run starts it"
    )
    yield counts(items, results)
    for file, own in papers.items():
        yield f"## [{own[0]['paper']}]({file})"
        yield _what_holds(own, results, file)
        lines = [_line(item, results.get(item["item"]), file) for item in own]
        yield markdown_table(
            Table(header=("item", "claim", "verdict", "what was found", "minutes"), lines=lines, left=4)
        )


_ORDER = ("same direction", "not seen", "opposite", "not run", "not run yet")


def counts(items: Sequence[Row], results: Mapping[str, Row]) -> str:
    """How many items, how they came out, and what their minutes are."""
    verdicts = Counter(verdict_of(item, results.get(item["item"])) for item in items)
    counted = ", ".join(f"{verdicts[name]} *{name}*" for name in _ORDER if verdicts[name])
    changed = sum(bool(results[item["item"]]["changed"]) for item in items if item["item"] in results)
    counted += f"; {changed} of them at other settings than the item's own" if changed else ""
    return f"{len(items)} items: {counted}. Minutes are of one core, runs that items share counted with each."


def verdict_of(item: Row, result: Row | None) -> str:
    """Of an item without a result, whether it can ever have one here."""
    return result["verdict"] if result else "not run" if item["missing"] else "not run yet"


_SAID = {
    "same direction": "Holds here",
    "opposite": "The opposite",
    "not seen": "Neither the claim nor its opposite",
    "not run": "Never tested",
    "not run yet": "Never tested",
}


def _what_holds(items: Sequence[Row], results: Mapping[str, Row], file: str = "") -> str:
    """The items by verdict, a sentence each; a title is cut at its colon where that leaves one name."""
    names = {item["item"]: item["shows"].partition(":")[0] for item in items}
    of_name = Counter(names.values())
    links: dict[str, list[str]] = {said: [] for said in _SAID.values()}
    for item in items:
        name = names[item["item"]] if of_name[names[item["item"]]] == 1 else item["shows"]
        link = f"[{_text(name)}]({file}{_place(item['item'])})"
        links[_SAID[verdict_of(item, results.get(item["item"]))]].append(link)
    return "\n".join(f"- {said} ({len(own)} of {len(items)}): {'; '.join(own)}." for said, own in links.items() if own)


def _line(item: Row, result: Row | None, file: str) -> list[str]:
    return [
        f"[{item['item']}]({file}{_place(item['item'])})",
        _text(item["claim"]),
        _verdict(item, result),
        sentences(_reason(item, result))[0],
        _minutes(item, result),
    ]


def _verdict(item: Row, result: Row | None) -> str:
    """And what is to be known of it."""
    changed = f" (other settings: {', '.join(result['changed'])})" if result and result["changed"] else ""
    if result and result.get("setup") not in (None, item["setup"]):
        changed += " (its setup has changed since)"
    return verdict_of(item, result) + changed


def _reason(item: Row, result: Row | None) -> str:
    return result["reason"] if result else item["missing"] or ""


def _minutes(item: Row, result: Row | None) -> str:
    if result and result["verdict"] != "not run":
        return f"{result['core minutes']:.1f}"
    return "" if item["missing"] else f"about {item['minutes']:g}"


def _text(text: str) -> str:
    return str(prose(text))


def _paper(items: Sequence[Row], results: Mapping[str, Row]) -> Iterator[str]:
    yield f"# {items[0]['paper']}"
    yield f"{counts(items, results)} [All four papers]({INDEX})."
    yield _what_holds(items, results)
    yield (
        "The paper's main tables and figures come first. Ours: the median over seeds with its interval; of counts the"
        " runs, and the interval of their rate. The paper's: in brackets where a number is known from, if not from the"
        " paper. A verdict is of one text and one small size: on another it may be"
        " another. Compare directions, never levels."
    )
    lines = [_first_numbers(item, results.get(item["item"])) for item in items]
    yield markdown_table(Table(header=("item", "in the paper", "here", "verdict", "minutes"), lines=lines, left=4))
    for item in items:
        yield from _section(item, results.get(item["item"]))


def _first_numbers(item: Row, result: Row | None) -> list[str]:
    """A line of the table: two numbers of each side, since most rules compare two."""
    own = _own_numbers(result["ours"][:2]) if result else ""
    title = f"[{_text(item['shows'])}]({_place(item['item'])})"
    return [title, _paper_numbers(item["published"][:2]), own, _verdict(item, result), _minutes(item, result)]


def _paper_numbers(published: Sequence[Row], tags: bool = False) -> str:
    """A number per line; with `tags` also where it is known from, if not from the paper."""
    values = [f"{number(one['value'])} {one['unit']}".strip() for one in published]
    return "<br>".join(
        f"{greek(one['label'])}: {_bold(value)}" + (f" ({one['tag']})" if tags and one["tag"] != "paper" else "")
        for one, value in zip(published, values, strict=True)
    )


def _own_numbers(numbers: Sequence[Row]) -> str:
    return "<br>".join(f"{greek(one['label'])}: {_bold(ours(one))}, n = {one['n']}" for one in numbers)


def _bold(value: str) -> str:
    """
    >>> _bold("5.242 nats (5.194 to 5.355)")
    '**5.242 nats** (5.194 to 5.355)'
    """
    return re.sub(r"^(.*?)(?= \(|$)", r"**\1**", value, count=1)


def _section(item: Row, result: Row | None) -> Iterator[str]:
    yield f"## {_place(item['item'])[1:]}"
    yield f"**{_text(item['shows'])}.** Claim: {_text(item['claim'])}\\\n{_why(item, result)}"
    yield _numbers(item, result)
    if result and "setting" in result:
        yield from _figures(result["figures"])
        yield "<details><summary>Rule, sizes, data, commands, single runs</summary>"
        yield "\n".join(_setting(item, result))
        yield "</details>"
    else:
        yield f"Size in the paper: {item['size in the paper']}; here: {item['size here']}. `{item['command']}`"


def _why(item: Row, result: Row | None) -> str:
    """The verdict with its reason, a line for each condition where they are many; then what else there is to say."""
    verdict, reasons = _verdict(item, result), sentences(_reason(item, result))
    first = [f"**{verdict[:1].upper()}{verdict[1:]}.**"]
    while reasons and (len(reasons) < 3 or reasons[0].endswith("conditions hold.")):
        first.append(reasons.pop(0))
    return "\n".join([" ".join([*first, _text(item["details"])]).strip(), *(f"- {one}" for one in reasons)])


def _numbers(item: Row, result: Row | None) -> str:
    """Two lists beside each other: what stands at one height is no pair."""
    tags = {one["tag"] for one in item["published"]}
    known = f" ({tag})" if len(tags) == 1 and (tag := next(iter(tags))) != "paper" else ""
    lines = [_paper_numbers(item["published"], tags=not known), _own_numbers(result["ours"]) if result else ""]
    return markdown_table(Table(header=(f"in the paper{known}", "here"), lines=[lines], left=2))


def _figures(figures: Sequence[Row]) -> Iterator[str]:
    """Two beside each other, each below its title."""
    for i in range(0, len(figures), 2):
        pair = figures[i : i + 2]
        cells = [f"![{_plain(one['title'])}]({one['file']})<br>{one['caption']}" for one in pair]
        yield markdown_table(Table(header=[one["title"] for one in pair], lines=[cells], left=2))


def _plain(title: str) -> str:
    return re.sub("<.*?>", "", title)


def _setting(item: Row, result: Row) -> Iterator[str]:
    said = result["setting"]
    same = f"; the same runs: {said['the same runs']}" if "the same runs" in said else ""
    rates = f"; learning rate: {said['learning rate']}" if "learning rate" in said else ""
    tables = [f"[{_plain(one['title'])}, {one['lines']} lines]({one['file']})" for one in result["tables"]]
    ended = f"{result['date']}, commit {result['commit'] or 'unknown'}"
    yield f"- **Rule**, written before the runs: {said['rule, written before the runs']}"
    differs = f" Differs: {said['what differs']}" if "what differs" in said else ""
    sizes = f"in the paper: {said['size in the paper']}; here: {said['size here']}; read: {said['read']}."
    yield f"- **Size** {sizes}{differs}"
    yield f"- **Command**: {said['command']}{same}{rates}"
    runs = f"{result['runs']} runs" if result["runs"] else "no training runs"
    yield f"- **Measured**: {'; '.join([runs, *tables, said['time'], ended, said['measured with']])}"
    for line in item["revised"]:
        yield f"- **Changed** {line}"
    for one in result["earlier"]:
        yield f"- **Earlier**, {one['date']}, commit {one['commit'] or 'unknown'}, *{one['verdict']}*: {one['reason']}"
