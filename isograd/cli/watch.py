"""`isograd watch SCRIPT`: anybody's training script, run as it is and watched."""

import sys
from pathlib import Path
from typing import Annotated

from isograd.cli.console import announce
from isograd.cli.parser import REST, Count, Folder
from isograd.errors import UserError, many


def watch(
    script: str,
    *arguments: Annotated[str, REST],
    out: Folder | None = None,
    every: Count = 1,
    updates: bool = False,
    spikes: bool = False,
) -> int:
    """Run a training script unchanged, and warn when the run goes wrong: with the cause, and what to do.

    The script gets the arguments after its name. Its optimizer, model and loss are found at optimizer.step; rows and
    warnings go to a folder, for `isograd report` and `isograd explain`. Options of isograd stand before SCRIPT.

    examples:
      isograd watch train.py
      isograd watch --out runs/mine --every 10 train.py --lr 3e-4 --epochs 2
      isograd watch --spikes train.py
      torchrun --nproc-per-node 2 -m isograd watch train.py

    Exit code: the script's.

    Args:
        script: a Python file
        arguments: of the script
        out: the folder for rows and warnings (default: runs/watch/NAME of the script)
        every: updates from one row to the next
        updates: also measure how far each layer's matrix moves, for a copy of it
        spikes: explain spikes of the loss, on a CPU: snapshots by fork, and replays with one thing changed
    """
    path = Path(script)
    if not path.is_file():
        raise UserError(f"{script}: no such file")
    if spikes and not sys.platform.startswith("linux"):
        raise UserError("--spikes needs Linux: its snapshots are forks")
    folder = out or Path("runs", "watch", path.stem)
    announce(f"watching {script}: rows and warnings go to {folder}")
    from isograd.diagnose.watch.loops.script import ScriptWatch, run

    explained = None
    if spikes:
        from isograd.diagnose.watch.loops.spikes import Spikes

        explained = Spikes(folder=folder, script=path, arguments=arguments)
    watching = ScriptWatch(folder, every, explained, updates=updates)
    code = run(path, arguments, watching)
    if watching.forked:
        return code
    if watching.stepped and (watching.watch is None or not watching.watch.row):
        what = "call of a module with the optimizer's parameters" if watching.watch is None else "loss.backward()"
        print(f"isograd watch: {script}: no {what} was seen: nothing was watched", file=sys.stderr)
    elif watching.watch is None:
        print(f"isograd watch: {script} ended with no optimizer step: nothing was watched", file=sys.stderr)
    else:
        steps, found = watching.watch.row.get("step", 0), watching.watch.warnings
        also = f", {many(len(explained.said), 'spike')} explained" if explained is not None and explained.said else ""
        print(f"isograd watch: {many(steps, 'update')}, {many(len(found), 'warning')}{also}", file=sys.stderr)
    return code
