"""All items, by id."""

from collections.abc import Sequence

from isograd.errors import UserError, nearest
from isograd.papers.reproduce import admin2020, normformer2021, verydeep2020, xiong2020
from isograd.papers.reproduce.item import Item

ITEMS: dict[str, Item] = {
    item.id: item for paper in (xiong2020, normformer2021, admin2020, verydeep2020) for item in paper.ITEMS
}


# by importance: the papers' main tables and figures, those that share runs beside each other; then all others
FIRST = (
    *("admin2020/bleu", "admin2020/depth-table2", "admin2020/hybrid-table1"),
    *("verydeep2020/60l-12l", "verydeep2020/shallow-decoder", "verydeep2020/depth-grid", "verydeep2020/ter-chrf"),
    *("verydeep2020/word-frequency", "verydeep2020/sentence-length"),
    *("normformer2021/lr-stability-fig5", "normformer2021/clm-table2"),
    *("xiong2020/warmup-fig2", "xiong2020/pre-ln-fig4", "xiong2020/bert-fig5a", "xiong2020/mrpc-fig5b"),
    *("xiong2020/rte-fig5c", "normformer2021/mlm-glue-table3"),
)


def queue() -> list[Item]:
    """Every item, by importance."""
    return sorted(ITEMS.values(), key=lambda item: FIRST.index(item.id) if item.id in FIRST else len(FIRST))


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
