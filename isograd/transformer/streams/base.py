"""What every stream has: a connection per sublayer, and the ends of a stack."""

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from isograd.placement.formula import Role
from isograd.placement.laws import Site
from isograd.placement.streams import Stream

State = Any  # a tensor, or a tuple of tensors


Add = Callable[[Tensor, Tensor], Tensor]


class Ends(nn.Module):
    """Opens a stream of one tensor, and closes it."""

    role: Role = "coefficient"

    def draw(self) -> None:
        """Draw the parameters that this module itself owns."""

    def open(self, x: Tensor) -> State:
        return x

    def close(self, state: State) -> Tensor:
        return state if isinstance(state, Tensor) else state[0]


class Connection(nn.Module):
    """One sublayer's part in a stream; as it stands here, that of the plain one, x <- add(x, u).

    Of one of your own: `read` and `write`, and `draw` for what it initializes.

    Attributes:
        carries: the state that `read` takes, in words.

    Args:
        stream: what the placement says.
        width: of one tensor of the stream.
        site: where the sublayer stands.
        eps: of norms inside.
    """

    role: Role = "coefficient"
    carries: str = "a tensor (batch, time, width)"
    plain: bool = False

    def __init__(self, stream: Stream, width: int, site: Site, eps: float = 1e-5) -> None:
        super().__init__()
        self.plain = stream.plain
        self.begins_layer = site.kind == "attn"
        self.ends_layer = site.kind == "ffn"

    def draw(self) -> None:
        """Draw the parameters that this module itself owns."""

    def fits(self, state: State) -> bool:
        """Whether it can be a state of this stream: what `open` or the sublayer before gave."""
        return not self.plain or isinstance(state, Tensor)

    def read(self, state: State) -> tuple[Tensor, Any]:
        """What the branch reads (batch, time, width), and what `write` needs."""
        return state, state

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        """The state after the branch has written u (batch, time, width)."""
        return add(held, u)

    def forward(self, state: State, branch: Callable[[Tensor], Tensor]) -> State:
        """A whole sublayer: `branch` is f, a norm before it included."""
        x, held = self.read(state)
        return self.write(held, branch(x))


class OfSeveral(Connection):
    """A state of several tensors, the first of which is the hidden state."""

    carries = "a tuple of tensors (batch, time, width)"

    def fits(self, state: State) -> bool:
        return isinstance(state, tuple)
