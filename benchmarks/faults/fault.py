"""What a fault is: a realistic mistake, its true cause, and what its correction consists of."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from benchmarks.faults.base import BASES, BY_NAME, Base, Edit


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a model is wrong, whatever code a tool gives to it."""

    name: str
    title: str  # what is wrong, one sentence
    remedy: str  # words (a regular expression) of which a remedy that helps must contain one


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A mistake. In the code it is `edits` by base; in the weights or modules a `change` after the model is built."""

    name: str
    cause: str
    edits: dict[str, tuple[Edit, ...]] = field(default_factory=dict)
    change: Callable[[Base, nn.Module], None] | None = None
    optimizer: Callable[[Base, nn.Module], Optimizer] | None = None  # the mistake is in the optimizer
    on: tuple[str, ...] = ()  # bases of a `change`
    layer: int | None = None  # the only layer that is wrong, from 0; None: all, or none of them
    training: bool = False  # the outputs of the fresh model in eval mode are those of its twin

    @property
    def bases(self) -> tuple[str, ...]:
        return tuple(base.name for base in BASES if base.name in self.edits or base.name in self.on)

    def edits_of(self, base: Base) -> tuple[Edit, ...]:
        return self.edits.get(base.name, ())


def bases(kinds: Iterable[str] = (), roles: Iterable[str] = (), but: Iterable[str] = ()) -> tuple[str, ...]:
    """Names of the bases of these kinds (all where none is given) that have each of the roles."""
    return tuple(
        name
        for name, base in BY_NAME.items()
        if (not kinds or base.kind in kinds) and all(r in base.slots for r in roles) and name not in but
    )
