"""Items of verydeep2020."""

from isograd.study.reproduce.item import Item

ITEMS: tuple[Item, ...] = ()
