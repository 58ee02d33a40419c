"""Train the recipes of a file one after the other: `job.py recipes.json [step to die at]`. For several processes.

accelerate shards on accelerators only and would run DDP on CPUs without a word, although torch's FSDP2 works there on
gloo: here it is told that several processes on CPUs can shard.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType

from isograd.train.recipe import run_from_dict
from isograd.train.train import train


def init(state: PartialState, *args: Any, _init: Any = PartialState.__init__, **kwargs: Any) -> None:
    _init(state, *args, **kwargs)
    if state.distributed_type == DistributedType.MULTI_CPU and os.environ["SHARD"] == "1":
        state.distributed_type = DistributedType.MULTI_GPU


if __name__ == "__main__":
    torch.set_num_threads(1)
    PartialState.__init__ = init  # type: ignore[method-assign]
    file = Path(sys.argv[1])
    dies_at = int(sys.argv[2]) if len(sys.argv) > 2 else None

    def progress(step: int, loss: float) -> None:
        if step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    for name, recipe in json.loads(file.read_text()).items():
        os.environ["SHARD"] = str(int(recipe["training"]["fsdp"]))
        outcome = train(run_from_dict(recipe), file.parent / name, progress)
        print(name, outcome["outcome"], outcome.get("error", ""), flush=True)
