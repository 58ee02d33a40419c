"""When a collapse is told, and whether a healthy training is left in peace.

    python benchmarks/early_warning.py --data train.en.gz --seeds 0 1 2     45 trainings, some twenty minutes
    python benchmarks/early_warning.py --set shallow --seeds 7              on the embedded text

Trains the arms of two comparisons (12 layers without warm-up, and with one for Post-LN; 36 layers with and without) at
the settings of `isograd compare`, and prints for each how it ended and at which step it was warned of. An arm that
collapses is to be told by step 60, one that trains never: exit code 1 where that does not hold.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from isograd.train.recipe import run_from_dict
from isograd.train.train import train

BY = 60
Arm = tuple[str, int, int, int]  # placement, layers, warm-up, steps
SETS: dict[str, list[Arm]] = {
    "shallow": [("post-ln", 12, 0, 300), ("post-ln", 12, 150, 300)]
    + [(placement, 12, 0, 300) for placement in ("pre-ln", "normformer", "admin", "deepnorm")],
    "deep": [(placement, 36, 100, 200) for placement in ("post-ln", "admin", "pre-ln", "deepnorm")],
    "deep, no warm-up": [(p, 36, 0, 200) for p in ("post-ln", "admin", "deepnorm", "pre-ln", "normformer")],
}


def outcome_of(arm: Arm, seed: int, data: str, folder: Path) -> dict[str, Any]:
    placement, layers, warmup, steps = arm
    training = {"steps": steps, "warmup": warmup, "probe_every": 0, "checkpoint_every": 0, "valid_sequences": 0}
    model = {"placement": placement, "layers": layers}
    return train(run_from_dict({"seed": seed, "model": model, "data": {"source": data}, "training": training}), folder)


def holds(outcome: dict[str, Any]) -> bool:
    """Told by step 60 if it collapsed (or diverged), never told otherwise."""
    warning = outcome["warning"]
    if outcome["outcome"] == "finished":
        return warning is None
    return warning is not None and warning["step"] <= BY


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="embedded", metavar="FILE", help="a text (default: the embedded one)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome as JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    found = []
    for seed in options.seeds:
        for arm in (arm for name in options.set for arm in SETS[name]):
            with tempfile.TemporaryDirectory() as folder:
                outcome = outcome_of(arm, seed, options.data, Path(folder) / "run")
            told = "" if outcome["warning"] is None else f"told at step {outcome['warning']['step']}"
            placement, layers, warmup, _ = arm
            line = f"{placement:12}{layers:4} layers, warm-up {warmup:3}, seed {seed}: {outcome['outcome']:10}"
            print(f"{line}{outcome['final_loss']:7.3f}  {told:18}{'' if holds(outcome) else 'WRONG'}", flush=True)
            found.append({"arm": arm, "seed": seed, "holds": holds(outcome)} | outcome)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(one["holds"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
