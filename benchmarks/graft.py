"""A small model made deeper while it is trained: what each way of adding layers is worth, at equal tokens.

    python benchmarks/graft.py run --data F/wikipedia-en --out runs/graft        # killed, the same command goes on
    python benchmarks/graft.py figure --out runs/graft --docs docs/results       # graft.png, graft.csv, the table

A GPT-2 of 6 layers (width 64, bytes) is trained for FIRST updates, made 12 layers deep, and trained for SECOND updates
more. Beside it: the same stacked (copies that write from the first step), 12 layers from scratch with all updates, and
the 6 layers trained on. Every arm of a seed reads the same batches; the learning rate is one schedule over all updates.
AdamW begins anew where layers are added, with a warm-up of its own, in every arm but the one from scratch.
"""

import argparse
import csv
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from isograd.convert.graft import graft
from isograd.convert.graft.found import GraftSubject
from isograd.convert.graft.layers import arranged, places
from isograd.files import read_rows, write_text
from isograd.text import read

FIRST, SECOND, WARMUP, AGAIN, DECAY = 600, 400, 50, 20, 0.3
BATCH, TIME, RATE, EVERY, SEEDS = 16, 64, 1e-3, 50, (0, 1, 2)
SHORT, DEEP, WIDTH = 6, 12, 64
Runs = dict[int, list[dict[str, Any]]]  # by seed
ARMS = {
    "copy": "copies, W_O and W_2 at 0",
    "init": "new layers, W_O and W_2 at 0",
    "gate": "copies with a gate at 0",
    "stack": "copies without a gate",
    "stack-top": "the whole stack twice, without a gate",
    "scratch": "12 layers from scratch",
    "short": "6 layers trained on",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "figure"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--docs", type=Path, default=Path("docs/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    if options.what == "figure":
        figure(options.out, options.docs)
        return
    torch.set_num_threads(1)
    train, valid = (corpus(options.data, name, size) for name, size in (("train-0of4.txt.xz", 8), ("valid.txt.gz", 1)))
    for seed in options.seeds:
        base = options.out / f"seed-{seed}" / "base"
        if not (base / "model.safetensors").exists():
            model = network(SHORT, seed)
            trained(model, base / "rows.jsonl", train, valid, seed, 0, FIRST)
            model.save_pretrained(base)
        for arm in ARMS:
            rows = options.out / f"seed-{seed}" / f"{arm}.jsonl"
            begin = 0 if arm == "scratch" else FIRST
            if not (found := read_rows(rows)) or found[-1]["step"] < FIRST + SECOND:
                rows.unlink(missing_ok=True)
                trained(begun(arm, base, seed), rows, train, valid, seed, begin, FIRST + SECOND)


def corpus(folder: Path, name: str, megabytes: int) -> Tensor:
    """Bytes of a file's beginning."""
    text = "\n".join(document for _, document in read(str(folder / name)))
    return torch.tensor(list(text.encode()[: megabytes * 1_000_000]), dtype=torch.uint8)


def network(layers: int, seed: int) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    shape = {"vocab_size": 256, "n_positions": TIME, "n_embd": WIDTH, "n_head": 4, "n_layer": layers}
    return GPT2LMHeadModel(GPT2Config(**shape, **quiet))


def begun(arm: str, base: Path, seed: int) -> Any:
    """The model that an arm goes on from."""
    if arm == "scratch":
        return network(DEEP, seed)
    model = GPT2LMHeadModel.from_pretrained(base)
    torch.manual_seed(seed)
    if arm in ("copy", "init", "gate"):
        return graft(model, f"layers={DEEP}", new=arm).model
    if arm.startswith("stack"):
        order = places(SHORT, DEEP - SHORT, "top" if arm == "stack-top" else "even")
        return arranged(GraftSubject(model), order, lambda name, source, rest, value: value.clone())
    return model


def trained(model: Any, path: Path, train: Tensor, valid: Tensor, seed: int, begin: int, end: int) -> None:
    """Update `begin` to `end`; a row each `EVERY` updates with the loss on held-out text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    started, rows = time.process_time(), [row(model, valid, begin, 0.0)]
    batches = chosen(train, seed)
    for step in range(end):
        batch = next(batches)
        if step < begin:
            continue
        for group in optimizer.param_groups:
            group["lr"] = RATE * factor(step, begin)
        model.train()
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % EVERY == 0 or step + 1 in (begin + 10, begin + 25):
            rows.append(row(model, valid, step + 1, time.process_time() - started))
    write_text(path, "".join(json.dumps(r) + "\n" for r in rows))


def factor(step: int, begin: int) -> float:
    """Warm-up, 1, and over the last `DECAY` of all updates down to 0; once more a warm-up where AdamW begins anew."""
    total = FIRST + SECOND
    again = min(1.0, (step - begin + 1) / (AGAIN if begin else WARMUP))
    return again * min(1.0, (total - step) / (DECAY * total))


def chosen(text: Tensor, seed: int) -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(1000 + seed)
    while True:
        at = torch.randint(len(text) - TIME, (BATCH,), generator=draw)
        yield torch.stack([text[i : i + TIME].long() for i in at.tolist()])


@torch.no_grad()
def row(model: Any, valid: Tensor, step: int, seconds: float) -> dict[str, float]:
    """The mean loss per byte, in nats, on 128 sequences of the held-out text."""
    model.eval()
    batch = torch.stack([valid[i * 5000 : i * 5000 + TIME].long() for i in range(128)])
    loss = sum(float(model(input_ids=part, labels=part).loss) for part in batch.split(32)) / 4
    return {"step": step, "loss": loss, "seconds": round(seconds, 1)}


def figure(out: Path, docs: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found: dict[str, Runs] = {}
    for arm in ("base", *ARMS):
        name = "base/rows.jsonl" if arm == "base" else f"{arm}.jsonl"
        every = [(seed, read_rows(out / f"seed-{seed}" / name)) for seed in SEEDS]
        found[arm] = {seed: rows for seed, rows in every if rows}
    plot, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for number, arm in enumerate(("base", *ARMS)):
        steps = [r["step"] for r in next(iter(found[arm].values()))]
        middle = [statistics.median(rows[i]["loss"] for rows in found[arm].values()) for i in range(len(steps))]
        for panel in axes:
            panel.plot(steps, middle, label=ARMS.get(arm, "6 layers, before"), color=f"C{number}", lw=1.6)
            for rows in found[arm].values():
                panel.plot(steps, [r["loss"] for r in rows], color=f"C{number}", lw=0.4, alpha=0.6)
    last = [rows[-1]["loss"] for arm in ARMS for rows in found[arm].values()]
    axes[1].set(xlim=(FIRST - 10, FIRST + SECOND + 5), ylim=(min(last) - 0.05, max(last) + 0.45))
    for panel in axes:
        panel.set(xlabel=f"updates of {BATCH * TIME:,} bytes", ylabel="validation loss, nats per byte")
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    plot.savefig(docs / "graft.png", dpi=130)
    table(found, docs / "graft.csv")


def table(found: dict[str, Runs], path: Path) -> None:
    """Each arm's loss as layers are added and at the end, by seed; printed as the page has it."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", "seed", "loss_begin", "loss_10", "loss_end", "cpu_seconds"])
        for arm in ARMS:
            for seed, rows in found[arm].items():
                soon = next((r["loss"] for r in rows if r["step"] == FIRST + 10), math.nan)
                writer.writerow([arm, seed, rows[0]["loss"], soon, rows[-1]["loss"], rows[-1]["seconds"]])
    scratch = {seed: rows[-1]["loss"] for seed, rows in found["scratch"].items()}
    for arm, about in ARMS.items():
        begin, end = ([rows[i]["loss"] for rows in found[arm].values()] for i in (0, -1))
        gaps = [rows[-1]["loss"] - scratch[seed] for seed, rows in found[arm].items() if seed in scratch]
        cpu = statistics.median(rows[-1]["seconds"] for rows in found[arm].values())
        print(
            f"| {about} | {len(end)} | {_spread(begin)} | {_spread(end)} | {_spread(gaps, signed=True)} | {cpu:.0f} |"
        )


def _spread(values: list[float], *, signed: bool = False) -> str:
    form = "+.3f" if signed else ".3f"
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
