"""The watch in other loops: callbacks of the Trainer and of Lightning, going back during a run, trying again."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


def observe(
    until: ExitStack,
    owner: Any,
    name: str,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> None:
    """Look at the arguments or the result of a method of one object until `until` is closed; `after` gets the result
    first.
    """
    method = getattr(owner, name)

    def observed(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = method(*args, **kwargs)
        if after is not None:
            after(result, *args, **kwargs)
        return result

    setattr(owner, name, observed)
    until.callback(delattr, owner, name)
