"""Measured changes of small trained models: loss before, after, after some steps of training, and of training alone.

    python -m benchmarks.graft_measured --data wikipedia/train.txt.xz --valid wikipedia/valid.txt.gz --out FOLDER

Three models on the characters of a text, then each change by itself, and the same steps of training on the model as it
was, so that what the change costs is not what the steps bring. A row is written as soon as it is there; what is there
is not made again.
"""

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import isograd
from isograd.convert.checkpoints.folder import load_isograd
from isograd.convert.checkpoints.vocabulary import load_tokenizer
from isograd.convert.graft.text import Text, healed, loss_on, text_of
from isograd.files import append_rows, read_rows
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.train import train
from isograd.text import read

HEAL, RATE = 60, 1e-3
LLAMA = {"act": "swiglu", "norm": "rmsnorm", "positions": "rotary", "bias": False, "scale_embedding": False}
MODELS: dict[str, dict[str, Any]] = {
    "pre-ln": {"placement": "pre-ln", **LLAMA},
    "qk-norm": {"placement": "qk-norm", **LLAMA},
    "post-ln": {"placement": "post-ln", "positions": "learned"},
}
CHANGES: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "pre-ln": (
        ("placement=sandwich", {}),
        ("placement=peri-ln", {}),
        ("norm=dyt", {}),
        ("kv-heads=2", {}),
        ("kv-heads=1", {}),
        ("layers=4", {"drop": "loss"}),
        ("layers=4", {"drop": "angle"}),
        ("layers=4", {"drop": "merge"}),
    ),
    "qk-norm": (("qk-norm=removed", {}),),
    "post-ln": (("placement=pre-ln", {}),),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = options.out / "rows.jsonl"
    for name, changes in CHANGES.items():
        model, text = trained(name, options)
        for change, how in (("none", {}), *changes):
            done = {(row["model"], row["change"], row.get("drop")) for row in read_rows(rows)}
            if (name, change, how.get("drop")) not in done:
                append_rows(rows, [{"model": name, "change": change, **how, **measured(model, change, how, text)}])


def trained(name: str, options: argparse.Namespace) -> tuple[Any, Text]:
    folder = options.out / name
    if not (folder / "model").is_dir():
        shape = {"layers": 6, "width": 64, "heads": 4, **MODELS[name]}
        data = {"source": str(options.data), "valid": str(options.valid), "level": "char", "length": 128}
        training = {"steps": options.steps, "batch": 16, "lr": 1e-3, "warmup": 50, "optimizer": "adamw", "clip": 1.0}
        training |= {"decay": "linear", "probe_every": 0, "checkpoint_every": 0, "valid_sequences": 100}
        train(run_from_dict({"name": name, "model": shape, "data": data, "training": training}), folder)
    model = load_isograd(folder / "model")
    return model, text_of(model, load_tokenizer(folder / "model"), (text for _, text in read(str(options.valid))))


def measured(model: Any, change: str, how: dict[str, Any], text: Text) -> dict[str, Any]:
    before, started = loss_on(model, text.held), time.process_time()
    changed = copy.deepcopy(model) if change == "none" else isograd.graft(model, change, text=text, **how).model
    after = loss_on(changed, text.held)
    healed(changed, text, HEAL, RATE, lambda said: None)
    return {
        "before": before,
        "after": after,
        "healed": loss_on(changed, text.held),
        "cpu_seconds": round(time.process_time() - started, 1),
    }


if __name__ == "__main__":
    main()
