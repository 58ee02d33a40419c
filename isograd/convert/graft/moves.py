"""What every change is given, and what it returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedModel

from isograd.convert.graft.text import Text
from isograd.errors import GraftError

Insert = Literal["even", "top", "bottom"]
New = Literal["copy", "init", "gate"]
Drop = Literal["loss", "angle", "merge"]


@dataclass(frozen=True, kw_only=True)
class How:
    """What the changes of one call share.

    Attributes:
        insert: where new layers go: evenly between the old ones, after the last, before the first.
        new: what they are: copies of the layer before, layers as the class initializes them, or copies whose branches
            are multiplied by a trained number that is 0 (isograd's own class).
        drop: which layers go, where there are to be fewer: those without which the loss is lowest, the neighbours over
            which the stream turns least, or these merged into the layer before them.
        source: makes the text that new parameters are fitted on and losses measured on; asked where one is needed.
    """

    insert: Insert = "even"
    new: New = "copy"
    drop: Drop = "loss"
    source: Callable[[], Text] | None = None

    def needed(self, what: str) -> Text:
        """The text, which a measured change cannot do without."""
        if self.source is None:
            raise GraftError(f"{what}: measured on a text, and there is none")
        return self.source()


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What came of a change.

    Attributes:
        model: the new one, which may share the memory of the old one.
        said: one line on it.
        exact: the function should be what it was; else the loss before and after is measured.
        found: what was measured on the way, a row per layer.
    """

    model: PreTrainedModel
    said: str
    exact: bool = True
    found: Sequence[dict[str, Any]] = ()


def whole(value: str, name: str) -> int:
    """A whole number of at least 1."""
    if not value.isdecimal() or int(value) < 1:
        raise GraftError(f"{name}={value}: expected a whole number of at least 1")
    return int(value)


def one_of(value: str, name: str, *known: str) -> str:
    """A value out of a few."""
    if value not in known:
        raise GraftError(f"{name}={value}: expected {' or '.join(known)}")
    return value
