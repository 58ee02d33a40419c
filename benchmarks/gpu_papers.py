"""Pre-LN, NormFormer and Post-LN at the papers' own shape, 12 layers of width 768, for some minutes on one GPU.

    python benchmarks/gpu_papers.py --prepare FILE.xz ... --valid FILE.gz --tokens tokens.npy.xz   on any machine
    python benchmarks/gpu_papers.py --tokens tokens.npy.xz --out papers --minutes 8                on the GPU
    python benchmarks/gpu_papers.py --out papers --table                                           what was found
    python benchmarks/gpu_papers.py --out tiny --tiny --eager          does it run? Tiny shapes, on the CPU

`--prepare` trains a byte-level BPE of 50,257 on plain text, a blank line behind each document, and writes its tokens.

A cell is an arm with a seed: a causal model of 124M parameters on sequences of 1024 tokens, 32 of them a batch, AdamW
(0.9, 0.98) with weight decay 0.01, no clipping, no dropout, bf16 autocast; its rate rises over the warm-up and falls
linearly to 0. A seed gives every arm the same batches in the same order. The papers train on batches of 524,288 tokens
for 572,204 updates with dropout 0.1. Rows go to OUT/papers.csv as they come; a cell that is whole is not run again.
`--warm` compiles the arms and trains nothing, so that several processes may do it at one time.
"""

import argparse
import csv
import lzma
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # a machine may have isograd as this folder alone
from isograd import IsogradConfig, IsogradForCausalLM

VOCABULARY = 50257
SHAPE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 1024}
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16}
BATCH, TINY_BATCH, VALID = 32, 2, 256  # sequences; VALID of the held-out ones
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COLUMNS = ("arm", "lr", "warmup", "seed", "update", "train loss", "valid loss", "seconds", "device", "torch")
Row = dict[str, Any]
Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Cell:
    """One training. Its loss is that of an arm, which a placement and a warm-up make."""

    placement: str
    lr: float
    warmup: int
    seed: int

    @property
    def facts(self) -> Row:
        return {"arm": self.placement, "lr": self.lr, "warmup": self.warmup, "seed": self.seed}


def cells(options: argparse.Namespace) -> list[Cell]:
    """NormFormer beside Pre-LN first, then Post-LN with a warm-up and without; seed by seed."""
    groups = [[(a, options.warmup) for a in ("pre-ln", "normformer-resscale", "normformer")]]
    groups += [[("post-ln", 0), ("post-ln", options.warmup)]]
    every = [Cell(arm, options.lr, warmup, seed) for g in groups for seed in options.seeds for arm, warmup in g]
    return [cell for cell in every if not options.arms or cell.placement in options.arms]


def prepare(text: Sequence[str], valid: str, file: Path) -> None:
    from isograd.lab.data.corpus import load_corpus

    corpus = load_corpus(text, level="bpe", vocab_size=VOCABULARY, valid=valid, documents="blank-line")
    with lzma.open(file, "wb", preset=3) as opened:
        for part in (corpus.valid, corpus.train):
            np.save(opened, part.astype(np.uint16))
    print(f"{len(corpus.train)} tokens, {len(corpus.valid)} held out, unigram entropy {corpus.unigram_entropy:.3f}")


def sequences(file: Path | None, length: int) -> tuple[Tensor, Tensor]:
    """Held-out and training sequences, (n, length) each; without a file random ones."""
    if file is None:
        return tuple(torch.randint(0, 96, (n, length), device=DEVICE) for n in (4, 64))  # type: ignore[return-value]
    with lzma.open(file) as opened:
        held, train = (np.load(opened) for _ in range(2))
    held, train = (part[: len(part) // length * length].reshape(-1, length) for part in (held, train))
    return tuple(torch.from_numpy(p.astype(np.int32)).to(DEVICE) for p in (held[:VALID], train))  # type: ignore[return-value]


class Arms:
    """A model and a compiled loss for each placement, which the seeds use in turn."""

    def __init__(self, tiny: bool, eager: bool) -> None:
        self.tiny, self.eager = tiny, eager
        self.made: dict[str, tuple[IsogradForCausalLM, Loss]] = {}

    def built(self, placement: str, seed: int) -> IsogradForCausalLM:
        torch.manual_seed(seed)
        size = 96 if self.tiny else -(-VOCABULARY // 128) * 128  # a multiple of what the tensor cores take
        config = IsogradConfig(
            placement=placement, vocab_size=size, init="fairseq", loss_chunk=1 << 14, **(TINY if self.tiny else SHAPE)
        )
        return IsogradForCausalLM(config).to(DEVICE).train()

    def at(self, placement: str, seed: int, batch: Tensor) -> tuple[IsogradForCausalLM, Loss]:
        """As the seed begins it; a first forward and backward pass are done."""
        model = self.built(placement, seed)
        if placement in self.made:
            self.made[placement][0].load_state_dict(model.state_dict())
            return self.made[placement]

        def of(ids: Tensor) -> Tensor:
            found: Tensor = model(input_ids=ids, labels=ids).loss
            return found

        call = of if self.eager else torch.compile(of)

        def loss(ids: Tensor) -> Tensor:
            with torch.autocast(DEVICE, torch.bfloat16):
                return call(ids.long())

        loss(batch).backward()
        model.zero_grad()
        self.made[placement] = model, loss
        return model, loss


def train(cell: Cell, arms: Arms, data: tuple[Tensor, Tensor], updates: int, every: int, deadline: float) -> Any:
    """Rows: at the start, and then each `every` updates; they end early at the deadline or a loss is no number."""
    held, text = data
    batch = TINY_BATCH if arms.tiny else BATCH
    model, loss = arms.at(cell.placement, cell.seed, text[:batch])
    optimizer = torch.optim.AdamW(model.parameters(), lr=cell.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    draw = torch.Generator().manual_seed(cell.seed)
    epochs = -(-updates * batch // len(text))
    order = torch.cat([torch.randperm(len(text), generator=draw) for _ in range(epochs)]).to(DEVICE)
    seconds, summed = 0.0, torch.zeros((), device=DEVICE)
    marks = [*range(0, updates, every), updates]
    for last, mark in pairwise([0, *marks]):
        began = time.perf_counter()
        summed.zero_()
        for update in range(last, mark):
            rate = min(1.0, (update + 1) / max(1, cell.warmup)) * min(1.0, (updates - update) / (updates - cell.warmup))
            for group in optimizer.param_groups:
                group["lr"] = cell.lr * rate
            value = loss(text[order[update * batch : (update + 1) * batch]])
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            summed += value.detach()
        seen = float(summed) / (mark - last) if mark > last else ""
        seconds += time.perf_counter() - began
        # not under no_grad, for which all would be compiled once more
        valid = float(torch.stack([loss(part).detach() for part in held.split(batch) if len(part) == batch]).mean())
        yield {"update": mark, "train loss": seen, "valid loss": valid, "seconds": round(seconds, 3)}
        if not np.isfinite(valid) or time.perf_counter() > deadline:
            return


def read(file: Path) -> list[Row]:
    if not file.is_file():
        return []
    with file.open() as opened:
        found: list[Row] = list(csv.DictReader(opened))
    for row in found:
        row |= {"lr": float(row["lr"]), "valid loss": float(row["valid loss"]), "seconds": float(row["seconds"])}
        row |= {name: int(row[name]) for name in ("warmup", "seed", "update")}
    return found


def write(file: Path, rows: Sequence[Row]) -> None:
    with file.open("w") as opened:
        writer = csv.DictWriter(opened, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def of(rows: Sequence[Row], cell: Cell) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in cell.facts.items())]


def table(rows: Sequence[Row]) -> str:
    """Each arm's loss at the last update that all its seeds have, and its difference from Pre-LN of the same seed."""
    every = list(dict.fromkeys(Cell(r["arm"], r["lr"], r["warmup"], r["seed"]) for r in rows))
    lines = ["| arm | rate | warm-up | updates | held-out loss, by seed | minus Pre-LN, median | n | ms an update |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for arm in dict.fromkeys((c.placement, c.lr, c.warmup) for c in every):
        own = [c for c in every if (c.placement, c.lr, c.warmup) == arm]
        at = min(of(rows, c)[-1]["update"] for c in own)
        ends = {c.seed: next(r for r in of(rows, c) if r["update"] == at) for c in own}
        base = {r["seed"]: r["valid loss"] for r in rows if (r["arm"], r["update"]) == ("pre-ln", at)}
        differences = [row["valid loss"] - base[seed] for seed, row in ends.items() if seed in base]
        shown = ", ".join(f"{row['valid loss']:.3f}" for row in ends.values())
        apart = ""
        if differences and arm[0] != "pre-ln":
            low, high = min(differences), max(differences)
            apart = f"{statistics.median(differences):+.3f} ({low:+.3f} to {high:+.3f})"
        pace = statistics.median(1e3 * row["seconds"] / max(1, at) for row in ends.values())
        lines.append(f"| {arm[0]} | {arm[1]:g} | {arm[2]} | {at} | {shown} | {apart} | {len(ends)} | {pace:.1f} |")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("papers"))
    parser.add_argument("--tokens", type=Path)
    parser.add_argument("--prepare", nargs="+", metavar="FILE", help="text to make --tokens of")
    parser.add_argument("--valid", help="held-out text")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--every", type=int, default=50, help="updates between two validations")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", help="placements; all of them when not given")
    parser.add_argument("--eager", action="store_true", help="not compiled")
    parser.add_argument("--warm", action="store_true", help="compile, and train nothing")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, random tokens")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    if options.prepare:
        prepare(options.prepare, options.valid, options.tokens)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "papers.csv"
    rows = read(file)
    if options.table:
        print(table(rows))
        return
    deadline = time.perf_counter() + 60 * options.minutes
    torch.set_float32_matmul_precision("high")
    if options.tiny:
        options.updates, options.every, options.warmup = 4, 2, 2
    data = sequences(options.tokens, (TINY if options.tiny else SHAPE)["max_position_embeddings"])
    arms = Arms(options.tiny, options.eager)
    machine = {"device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu", "torch": torch.__version__}
    for cell in cells(options):
        if options.warm:
            if cell.placement not in arms.made:
                arms.at(cell.placement, cell.seed, data[1][: TINY_BATCH if options.tiny else BATCH])
            continue
        own = of(rows, cell)
        if own and (own[-1]["update"] == options.updates or not np.isfinite(own[-1]["valid loss"])):
            continue
        if time.perf_counter() > deadline:
            print("left for the next run:", cell, file=sys.stderr)
            continue
        rows = [row for row in rows if row not in own]
        for found in train(cell, arms, data, options.updates, options.every, deadline):
            rows.append(cell.facts | found | machine)
            write(file, rows)
        print(cell, rows[-1], flush=True)
    if rows:
        print(table(rows))


if __name__ == "__main__":
    main()
