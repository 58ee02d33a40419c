"""Items of normformer2021."""

from isograd.study.reproduce.item import Item

ITEMS: tuple[Item, ...] = ()
