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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from isograd.errors import DataError, one_line
from isograd.files import read_object, write_json, write_text
from isograd.lab.report import style
from isograd.lab.report.page import Page, Section, csv_of, prose
from isograd.lab.report.pages.reproduce import greek, number, ours, page_of, read_result, sentences
from isograd.lab.report.style import Output

Row = Mapping[str, Any]
KEPT = ("verdict", "reason", "ours", "with data", "core minutes", "changed", "date", "commit", "setup")
EARLIER = ("date", "commit", "verdict", "reason", "changed")
FIGURE = Output(formats=("svg",))
INDEX, RESULTS, ROWS = "README.md", "results.json", "rows"


def write_index(items: Sequence[Row], out: Path, folder: Path) -> Path:
    """Write the pages of `items` (as `Item.about` gives them) into `folder`, from it and the results below `out`.

    Returns:
        the path of the summary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Row] = {}
    before = stored(folder / RESULTS)
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
        papers.setdefault(file_of(item["item"]), []).append(_entry(item, results.get(item["item"])))
    for file, own in papers.items():
        _write(folder / file, items=own, counts=counts(own))
    _write(folder / INDEX, items=(), papers=papers, counts=counts([one for own in papers.values() for one in own]))
    return folder / INDEX


def _write(path: Path, **said: Any) -> None:
    text = _TEMPLATES.get_template("reproduced.md.j2").render(holds=_what_holds, **said)
    write_text(path, text.replace("&#39;", "'").replace("&#34;", '"'))  # HTML alone needs these


def stored(path: Path) -> Row:
    """What an index knows already; nothing where there is none."""
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
        if file := _write_figure(section, folder / f"{stem}-{section.name}"):
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


def _entry(item: Row, result: Row | None) -> Row:
    """What the pages say of an item."""
    reasons = sentences(result["reason"] if result else item["missing"] or "")
    inline = reasons if len(reasons) < 3 else reasons[:1] if reasons[0].endswith("conditions hold.") else []
    tags = {one["tag"] for one in item["published"]}
    one_tag = len(tags) == 1 and tags != {"paper"}
    published = [_published(one) for one in item["published"]]
    sources = ["" if one_tag or one["tag"] == "paper" else f" ({one['tag']})" for one in item["published"]]
    has_run = result is not None and result["verdict"] != "not run"
    decided = item["decided"] if has_run and result and result["verdict"] != "same direction" else ""
    minutes = "" if item["missing"] else f"about {item['minutes']:g}"
    return {
        **item,
        **(result or {}),
        **{key: str(prose(item[key])) for key in ("shows", "claim", "details")},
        "slug": item["item"].partition("/")[2],
        "state": result["verdict"] if result else "not run" if item["missing"] else "not run yet",
        "verdict": _verdict(item, result),
        "first": reasons[0],
        "decided": str(prose(decided)),
        "reasons": inline,
        "conditions": reasons[len(inline) :],
        "known": f" ({tags.pop()})" if one_tag else "",
        "published": published,
        "sourced": [one + source for one, source in zip(published, sources, strict=True)],
        "ours": [_ours(one) for one in result["ours"]] if result else [],
        "minutes": f"{result['core minutes']:.1f}" if result and has_run else minutes,
    }


def _verdict(item: Row, result: Row | None) -> str:
    """And what is to be known of it."""
    if result is None:
        return "not run" if item["missing"] else "not run yet"
    changed = f" (other settings: {', '.join(result['changed'])})" if result["changed"] else ""
    since = " (its setup has changed since)" if result.get("setup") not in (None, item["setup"]) else ""
    return result["verdict"] + changed + since


def _published(one: Row) -> str:
    value = f"{number(one['value'])} {one['unit']}"
    return f"{greek(one['label'])}: {_bold(value.strip())}"


def _ours(one: Row) -> str:
    return f"{greek(one['label'])}: {_bold(ours(one))}, n = {one['n']}"


def _bold(value: str) -> str:
    """
    >>> _bold("5.242 nats (5.194 to 5.355)")
    '**5.242 nats** (5.194 to 5.355)'
    """
    return re.sub(r"^(.*?)(?= \(|$)", r"**\1**", value, count=1)


_SAID = {
    "same direction": "Holds here",
    "opposite": "The opposite",
    "not seen": "Neither the claim nor its opposite",
    "not run": "Never tested",
    "not run yet": "Never tested",
}


def counts(items: Sequence[Row]) -> str:
    """How many items, how they came out, and what their minutes are."""
    states = Counter(one["state"] for one in items)
    counted = ", ".join(f"{states[name]} *{name}*" for name in _SAID if states[name])
    changed = sum(bool(one.get("changed")) for one in items)
    counted += f"; {changed} of them at other settings than the item's own" if changed else ""
    return f"{len(items)} items: {counted}. Minutes are of one core, runs that items share counted with each."


def _what_holds(items: Sequence[Row], file: str = "") -> str:
    """The items by verdict, a sentence each; a title is cut at its colon where that leaves one name."""
    names = [one["shows"].partition(":")[0] for one in items]
    links: dict[str, list[str]] = {said: [] for said in _SAID.values()}
    for one, name in zip(items, names, strict=True):
        title, since = name if names.count(name) == 1 else one["shows"], re.search(r"from \w+ \S+ on\b", one["first"])
        more = since[0] if since else one["decided"].partition(":")[0]
        links[_SAID[one["state"]]].append(f"[{title}]({file}#{one['slug']})" + (f" ({more})" if more else ""))
    return "\n".join(f"- {said} ({len(own)} of {len(items)}): {'; '.join(own)}." for said, own in links.items() if own)


def _write_figure(section: Section, path: Path) -> str:
    """Write the section's figure to `path`.svg; gives the file's name, "" where there is nothing to draw."""
    with style.settings(FIGURE):
        drawn = section.figure() if section.figure else None
        if drawn is None:
            return ""
        style.save(drawn, path, FIGURE.formats)
    return f"{path.name}.svg"


def _cell(text: str) -> str:
    """
    >>> print(_cell("a|b"))
    a\\|b
    """
    return " ".join(text.split()).replace("|", "\\|")


def _figure(one: Row) -> str:
    return f"![{re.sub('<.*?>', '', one['title'])}]({one['file']})<br>{one['caption']}"


_TEMPLATES = Environment(
    loader=PackageLoader("isograd.lab.report", "."), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_TEMPLATES.filters |= {"cell": _cell, "figure": _figure}
