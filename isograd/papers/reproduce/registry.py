"""All items, by id: the rows of `items/PAPER.yaml`, and the corpora that they read."""

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from isograd.errors import UserError, nearest
from isograd.lab.recipes import read_table
from isograd.papers.reproduce.item import PAPERS, Full, Item, ItemChart, ItemText, Published, Runs
from isograd.papers.reproduce.rules import Conditions

_FOLDER = Path(__file__).with_name("items")
_MEASURES = f"{__package__}.measures"


@cache
def _read(name: str) -> Any:
    return read_table(_FOLDER / f"{name}.yaml")


def corpus(name: str | None) -> ItemText | None:
    """A corpus by its name; "glue/MRPC" is GLUE's files of one task, and nothing stands in for them."""
    if name is None:
        return None
    folder, _, task = name.partition("/")
    if task:
        return ItemText(name=f"GLUE's {task}", folder=folder, files=(task,), settings={"glue.source": "{folder}"})
    row = {key: value for key, value in _read("corpora")[name].items() if not key.startswith("hub")}
    return ItemText(**{**row, "files": tuple(row["files"])})


def item_of(row: Mapping[str, Any]) -> Item:
    """A row of the table: words of the command line where runs are said, names where there is code."""
    given = dict(row)
    if "judge" in row:
        judge = row["judge"]
        conditions = tuple((name, rule) for one in judge["conditions"] for name, rule in one.items())
        given["judge"] = Conditions(**{**judge, "conditions": conditions})
        given["judge"].must_be_rules(row["id"])
    if "measure" in row:
        module, _, name = row["measure"].partition(".")
        given["measure"] = getattr(import_module(f"{_MEASURES}.{module}"), name)
    if "full" in row:
        given["full"] = Full(**_words(row["full"]))
    given |= {
        "published": tuple(Published(**one) for one in row.get("published", ())),
        "runs": tuple(_runs(one) for one in row.get("runs", ())),
        "charts": tuple(ItemChart(**one) for one in row.get("charts", ())),
        "corpus": corpus(row.get("corpus")),
        **{name: tuple(row.get(name, ())) for name in ("run_charts", "revised")},
    }
    return Item(**given)


def _runs(row: Mapping[str, Any]) -> Runs:
    own = _words(row)
    arms = {name: tuple(shlex.split(words)) for name, words in row.get("arms", {}).items()}
    return Runs(**own, arms=arms, seeds=tuple(row.get("seeds", (1, 2, 3))))


def _words(row: Mapping[str, Any]) -> dict[str, Any]:
    """What runs here and runs of the paper's size share."""
    rest = {name: value for name, value in row.items() if name not in ("arms", "seeds")}
    return {**rest, "overrides": tuple(shlex.split(row.get("overrides", ""))), "corpus": corpus(row.get("corpus"))}


ITEMS: dict[str, Item] = {row["id"]: item_of(row) for paper in PAPERS for row in _read(paper)}


# by importance: the papers' main tables and figures, those that share runs beside each other; then all others
FIRST = (
    *("admin2020/bleu", "admin2020/depth-table2", "admin2020/hybrid-table1"),
    *("verydeep2020/60l-12l", "verydeep2020/shallow-decoder", "verydeep2020/depth-grid", "verydeep2020/ter-chrf"),
    *("verydeep2020/word-frequency", "verydeep2020/sentence-length"),
    *("normformer2021/tuned-rates", "normformer2021/lr-stability-fig5", "normformer2021/clm-table2"),
    *("xiong2020/warmup-fig2", "xiong2020/pre-ln-fig4", "xiong2020/bert-fig5a", "xiong2020/mrpc-fig5b"),
    *("xiong2020/rte-fig5c", "normformer2021/mlm-glue-table3"),
)


def queue() -> list[Item]:
    """Every item, by importance."""
    return sorted(ITEMS.values(), key=lambda item: FIRST.index(item.id) if item.id in FIRST else len(FIRST))


def by_paper() -> list[Item]:
    """Every item, paper after paper, each paper's by importance."""
    return sorted(queue(), key=lambda item: [*PAPERS.values()].index(item.paper))


def chosen(names: Sequence[str]) -> list[Item]:
    """The items of these ids; a paper's name, such as xiong2020, means all of its items.

    Raises:
        UserError: there is none of that name.
    """
    found: dict[str, Item] = {}
    for name in (name.rstrip("/") for name in names):
        of_paper = [item for item in ITEMS.values() if item.id.startswith(f"{name}/")]
        if name not in ITEMS and not of_paper:
            raise UserError(f"no item {name!r}; {_meant(name)}'isograd reproduce --list' lists all")
        found |= {item.id: item for item in of_paper or [ITEMS[name]]}
    return list(found.values())


def _meant(name: str) -> str:
    """Items with the name in theirs, else the nearest paper or item."""
    papers = {known.partition("/")[0]: known.partition("/")[0] for known in ITEMS}
    slugs = {known.partition("/")[2]: known for known in ITEMS}
    holding = [known for slug, known in slugs.items() if name and name.casefold() in slug]
    if len(holding) > 1:
        return f"items with {name!r} in their names: {', '.join(holding[:6])}{', ..' * (len(holding) > 6)}; "
    known = {**(papers if "/" not in name else {}), **{one: one for one in ITEMS}, **slugs}
    part = next((one for one in papers if name and name.casefold() in one), None)
    near = next(iter(holding), None) or part or known.get(nearest(name, known) or "")
    return f"did you mean {near!r}? " if near else ""
