"""All items, by id."""

from collections.abc import Sequence

from isograd.errors import UserError, nearest
from isograd.study.reproduce import admin2020, normformer2021, verydeep2020, xiong2020
from isograd.study.reproduce.item import Item

ITEMS: dict[str, Item] = {
    item.id: item for paper in (xiong2020, normformer2021, admin2020, verydeep2020) for item in paper.ITEMS
}


def chosen(names: Sequence[str]) -> list[Item]:
    """The items of these ids; a paper's name, such as xiong2020, means all of its items.

    Raises:
        UserError: there is none of that name.
    """
    found: dict[str, Item] = {}
    for name in names:
        of_paper = [item for item in ITEMS.values() if item.id.startswith(f"{name}/")]
        if name not in ITEMS and not of_paper:
            near = nearest(name, ITEMS) or nearest(name, [known.partition("/")[2] for known in ITEMS])
            meant = f"did you mean {near!r}? " if near else ""
            raise UserError(f"no item {name!r}; {meant}'isograd reproduce --list' lists all")
        found |= {item.id: item for item in of_paper or [ITEMS[name]]}
    return list(found.values())
