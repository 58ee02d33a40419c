"""The streams of `isograd.placement.streams`, each as two modules: one per sublayer, and one at the ends of a stack.

    state = ends.open(x)
    x, held = connection.read(state)             held: what `write` needs of the state
    state = connection.write(held, u, add)       add(x, u): the residual's own line
    x = ends.close(state)

The plain stream has neither: its sublayers compute the line themselves. `base` has what all share, `inputs` the
streams that keep an earlier tensor or two streams, `copies` those of n copies, `depth` those over all earlier outputs.
"""

from isograd.transformer.streams.base import Add, Connection, Ends, State
from isograd.transformer.streams.make import make_connection, make_ends

__all__ = ["Add", "Connection", "Ends", "State", "make_connection", "make_ends"]
