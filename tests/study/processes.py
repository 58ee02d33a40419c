"""Processes that wait or die where a test says, so that no kill depends on how fast a machine is."""

import multiprocessing as mp
import os
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

Death = tuple[str, int]
"""Who dies, the "runner", a "worker" or its "parent", and at which change of a file that the process makes, from 1."""
CHANGES = ("open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")


class Sent:
    """A law of 1. Who is sent it, as a worker is, first does what it says."""

    def __init__(self, do: Callable[..., None], *arguments: Any) -> None:
        self.do = do, *arguments

    def __call__(self, site: Any) -> float:
        return 1.0

    def __reduce__(self) -> Any:
        return _received, self.do


def _received(do: Callable[..., None], *arguments: Any) -> Sent:
    do(*arguments)
    return Sent(do, *arguments)


def hold(after: int, sign: Path | None = None, ready: Callable[[], bool] = lambda: True) -> None:
    """From now on: once it has taken so many steps, this process waits to be killed.

    With `sign`, only the first process that comes so far; its id is in that file. With `ready`, only those steps count
    that are taken when it says so.
    """
    steps = count()

    def wait(*_: Any) -> None:
        if ready() and next(steps) == after and (sign is None or _signed(sign)):
            while True:
                signal.pause()

    register_optimizer_step_pre_hook(wait)


def _signed(sign: Path) -> bool:
    mine = sign.with_name(f"{sign.name}-{os.getpid()}")
    mine.write_text(str(os.getpid()))
    try:
        os.link(mine, sign)  # whoever finds the sign can read it
    except FileExistsError:
        return False
    return True


def killed_after(steps: int, do: Callable[[], Any]) -> int:
    """The exit code of a fork of this process that does it, and kills itself after so many optimizer steps."""
    process = mp.get_context("fork").Process(target=_do, args=(steps, do))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _do(steps: int, do: Callable[[], Any]) -> None:
    taken = count()
    register_optimizer_step_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL) if next(taken) == steps else None)
    do()


def order(deaths: Sequence[Death], orders: Path) -> None:
    """The deaths that are to come, one after the other: an empty file each, which goes when its time has come."""
    orders.mkdir(exist_ok=True)
    for i, (who, change) in enumerate(deaths):
        (orders / f"{i:02}-{who}-{change}").touch()


def mortal(orders: Path, *kinds: str) -> None:
    """From now on: this process dies the next death, if it is of these kinds, once it has come to its change."""
    changes, busy = 0, False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal changes, busy
        if busy or event not in CHANGES or (event == "open" and not _writes(arguments[2])):
            return
        busy = True  # what this does itself does not count
        changes += 1
        _die(orders, kinds, changes)
        busy = False

    sys.addaudithook(hook)


def _writes(flags: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


def _die(orders: Path, kinds: tuple[str, ...], changes: int) -> None:
    for due in sorted(orders.iterdir())[:1]:
        _, who, change = due.name.split("-")
        if who in kinds and changes >= int(change):
            try:
                due.unlink()
            except FileNotFoundError:  # another process has died of it
                return
            os.kill(os.getppid() if who == "parent" else os.getpid(), signal.SIGKILL)
