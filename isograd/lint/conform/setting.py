"""What an implementation is built for, what the suite drives, and which weights it is given."""

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from isograd.errors import UserError
from isograd.lint.conform.equations import equation_of
from isograd.placement import CATALOGUE, Placement, get
from isograd.placement.streams import FirstValues
from isograd.residual import Residuals, wiring

MEANINGS: dict[str, dict[str, str]] = defaultdict(dict)  # equation -> weight -> what it is
with (Path(__file__).parent / "weights.csv").open(newline="") as file:
    for row in csv.DictReader(file):
        MEANINGS[row["equation"]][row["weight"]] = row["meaning"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What an implementation is built for.

    Attributes:
        placement: the design; its norms before branches, first and final ones left out: they are the branches' own.
        width, layers: each layer has an attention and a feed-forward.
        eps: of norms.
    """

    placement: Placement
    width: int = 8
    layers: int = 3
    eps: float = 1e-6

    @property
    def stream(self) -> Any:
        """Its constants: `copies`, `iterations`, `eps`, `rank`, ... (`isograd.placement.streams`)."""
        return self.placement.stream

    @property
    def sublayers(self) -> int:
        return 2 * self.layers


class Adapter(Protocol):
    """An implementation as the suite drives it. `isograd.conform` takes what makes one of a `Setting`, as a class does.

    `read` may return what the branch reads alone; `write` then gets the state. An adapter may have `dtype` (what it
    computes in; float64 unless said, and 1e-9 is asked for; 1e-5 in float32, 3e-2 below), `device` (where it
    computes), and `skips` (check -> why it is not made).
    """

    def load(self, weights: Mapping[str, Tensor]) -> None: ...
    def open(self, x: Tensor) -> Any: ...
    def read(self, state: Any, k: int) -> Any: ...
    def write(self, held: Any, u: Tensor, k: int) -> Any: ...
    def close(self, state: Any) -> Tensor: ...


Make = Callable[[Setting], Any]


class Own(Residuals):
    """isograd's own part as an adapter."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting.placement, setting.width, layers=setting.layers, eps=setting.eps)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        self.double().load_state_dict(dict(weights))


def designs() -> tuple[str, ...]:
    """Names of the catalogue whose residual has equations here."""
    return tuple(name for name, placement in CATALOGUE.items() if equation_of(placement.stream))


def weights_of(name: str, *, width: int = 8, layers: int = 3) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight that an adapter's `load` gets."""
    setting = Setting(placement=design_of(name), width=width, layers=layers)
    return {key: tuple(value.shape) for key, value in Own(setting).state_dict().items()}


def kind_of(name: str) -> str:
    """A weight's name without its sublayer: stream.maps of parts.3.stream.maps."""
    return re.sub(r"^parts\.\d+\.", "", name)


def meanings(placement: Placement) -> dict[str, str]:
    """What each weight of a design is, by its name without the sublayer's: `stream.maps`, `ends.projection`."""
    kind = equation_of(placement.stream)
    every = reversed(kind.__mro__) if kind else ()
    return {name: text for of in every for name, text in (MEANINGS[of.__name__] | vars(of).get("means", {})).items()}


def design_of(name: str) -> Placement:
    """What of an entry is the residual's own.

    Raises:
        UserError: no such entry, or one that acts inside the attention.
    """
    placement = get(name)
    if isinstance(placement.stream, FirstValues):
        raise UserError(f"{name}: no equations of FirstValues: its work is inside the attention")
    return wiring(placement)
