"""Train the recipes of a file one after the other: `job.py recipes.json [step to die at]`. For several processes."""

import gc
import json
import os
import signal
import sys
from pathlib import Path

from isograd.machine import few_collections

with few_collections():
    import torch

    from isograd.lab.train.recipe import run_from_dict
    from isograd.lab.train.train import train

gc.freeze()  # nothing goes through what was imported, in training or at the end

if __name__ == "__main__":
    torch.set_num_threads(1)
    file = Path(sys.argv[1])
    dies_at = int(sys.argv[2]) if len(sys.argv) > 2 else None

    def progress(step: int, loss: float) -> None:
        if step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    for name, recipe in json.loads(file.read_text()).items():
        outcome = train(run_from_dict(recipe), file.parent / name, progress)
        print(name, outcome["outcome"], outcome.get("error", ""), flush=True)
