"""Several processes: the same weights, before and after an update; gradients that are averaged; data of one's own.

torchrun --nproc-per-node 2 -m isograd preflight train.py:setup
"""

import os
from typing import Any

from torch import distributed

from isograd.errors import many
from isograd.lint.step.seen import Results, Seen, finding, mark


def join() -> None:
    """The processes that torchrun has started, where the setup has not joined them."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not distributed.is_initialized():
        distributed.init_process_group("gloo")


def look(seen: Seen) -> Results:
    """All of the processes; every one of them has to come here."""
    if not seen.digests:
        return
    before, after = (_gathered(one) for one in seen.digests)
    batches = _gathered([mark(batch) for batch in seen.batches])
    count = len(before)
    apart = _apart(before)
    later = _apart(after)
    if apart:
        yield finding(
            "ranks-differ",
            "error",
            f"{many(len(apart), 'parameter')} begin with other values on another of {count} processes",
            "seed all processes alike before the model is built, or wrap it in DistributedDataParallel",
            float(len(apart)),
            apart[0],
        )
    elif later:
        yield finding(
            "gradients-not-averaged",
            "error",
            f"after {seen.updates} updates {many(len(later), 'parameter')} differ between {count} processes:"
            " their gradients are not averaged",
            "call the wrapped model (DDP), not model.module; and backward without no_sync() at the last micro-batch",
            float(len(later)),
            later[0],
        )
    shared = set(batches[0]).intersection(*map(set, batches[1:]))
    if batches[0] and len(shared) > len(batches[0]) / 2:
        yield finding(
            "ranks-same-data",
            "error",
            f"{len(shared)} of the first {len(batches[0])} batches come to all {count} processes",
            "use a DistributedSampler, or seed and shard the data by rank",
            len(shared) / len(batches[0]),
        )
    if not (apart or later or shared):
        yield f"{count} processes: weights equal before and after updates, each with its own batches"


def _gathered(mine: Any) -> list[Any]:
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, mine)
    return every


def _apart(each: list[dict[str, str]]) -> list[str]:
    return [name for name in each[0] if any(one.get(name) != each[0][name] for one in each[1:])]
