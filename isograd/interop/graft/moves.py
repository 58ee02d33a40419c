"""What every change is given, and what it returns."""

from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedModel

Insert = Literal["even", "top", "bottom"]
New = Literal["copy", "init"]


@dataclass(frozen=True, kw_only=True)
class How:
    """What the changes of one call share.

    Attributes:
        insert: where new layers go: evenly between the old ones, after the last, before the first.
        new: what they are: copies of the layer before, or as the class initializes them.
    """

    insert: Insert = "even"
    new: New = "copy"


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What came of a change: the new model, which may share the memory of the old one, and one line on it."""

    model: PreTrainedModel
    said: str
