"""Training of a translation model beside peers: tokens per second, each batching as its users do, and step by step.

    python benchmarks/translation.py                               number words
    python benchmarks/translation.py --data train --tokenized      the files train.de and train.en
    python benchmarks/translation.py --dtype fp32 --dropout 0.1 --rounds 3 --json translation.json

d 256, 6 + 6 layers, 8 heads, feed-forward 1024, ReLU, one table for both languages and the head, label smoothing 0.1,
clipping at norm 1, fused AdamW; the same start for all, and the loss of one batch (float32, before training, no
dropout) says that it is the same function. The peers are transformers' MarianMTModel (post-ln) and torch.nn.Transformer
(both placements). They go over three feeds of the same pairs. "sorted" has isograd's batches, by tokens and in pools
sorted by length, `--tokens` target tokens in a batch on average, padding not counted. The others are what a loader with
a batch size gives: always as many pairs, drawn at random, each side padded to its longest. In "random" a batch holds
`--tokens` target places on average, padding counted; in "random, equal" as many tokens as in "sorted", so that an epoch
has as many updates. Of a feed's epoch, batches at even quantiles of the padded size are trained on, so that a few stand
for all.

Every contestant lives in its own process, pinned to one processor, and they take turns; a turn goes over the chosen
batches once. Time is CPU time; a ratio is formed within a round, and the table shows its median over the rounds and its
smallest and largest value. "step" is isograd's time over theirs on the sorted feed (less is better); "speed" is
isograd's target tokens per second, sorted, over theirs on the feed of that row (more is better).
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from step import installed, machine, spread
from translators import BUILDERS, IGNORE, PEERS

PACKAGES = {"isograd": "isograd", "MarianMTModel": "transformers", "torch.nn.Transformer": "torch"}

Batches = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Batches that stand for an epoch.

    Attributes:
        tokens: target tokens in them, padding not counted.
        fill: share of the places of the whole epoch that hold a token.
    """

    batches: Batches = field(repr=False)
    tokens: int
    epoch: int
    fill: float


@dataclass(frozen=True, kw_only=True)
class Case:
    placement: str
    dropout: float
    bf16: bool

    def __str__(self) -> str:
        return f"{self.placement}, {'bf16 autocast' if self.bf16 else 'fp32'}, dropout {self.dropout:g}"


@dataclass(kw_only=True)
class Result:
    """One contestant on one feed; seconds of CPU and of the clock per turn."""

    name: str
    feed: str
    loss: float
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


# The data.


def make_feeds(options: argparse.Namespace) -> tuple[dict[str, Feed], dict[str, Any]]:
    """The feeds, and what a model must know of the vocabulary."""
    import numpy as np

    from isograd.lab.data.batches import TokenBatches, padded
    from isograd.lab.data.parallel import load_parallel

    corpus = load_parallel([options.data], source=options.source, target=options.target, tokenized=options.tokenized)
    source, target, pad = corpus.train_source, corpus.train_target, corpus.tokenizer.source.pad_id

    def by_tokens(tokens: int) -> TokenBatches:
        return TokenBatches(source, target, tokens=tokens, pad=pad, seed=1, pool=options.pool)

    def batch(rows: np.ndarray) -> dict[str, Any]:
        (ids, there), (labels, _) = padded(source, rows, pad), padded(target, rows, IGNORE)
        return {"input_ids": ids, "attention_mask": there.long(), "labels": labels}

    def feed(every: Sequence[np.ndarray]) -> Feed:
        sizes = [len(r) * int(source.lengths[r].max() + target.lengths[r].max()) for r in every]
        order = np.argsort(sizes, kind="stable")
        chosen = [every[order[int((i + 0.5) * len(every) / options.batches)]] for i in range(options.batches)]
        return Feed(
            batches=[batch(rows) for rows in chosen],
            tokens=int(sum(target.lengths[rows].sum() for rows in chosen)),
            epoch=len(every),
            fill=float(source.lengths.sum() + target.lengths.sum()) / sum(sizes),
        )

    real = float(target.lengths.sum()) / len(by_tokens(options.tokens))
    pools = by_tokens(round(options.tokens**2 / real))
    order = np.random.default_rng(1).permutation(len(target))

    def of_pairs(count: int) -> list[np.ndarray]:
        return [order[i : i + count] for i in range(0, len(order) - count + 1, count)]

    def places(count: int) -> float:
        return statistics.fmean(count * int(target.lengths[rows].max()) for rows in of_pairs(count))

    equal = round(options.tokens / float(target.lengths.mean()))
    fewer = min(range(1, equal + 1), key=lambda count: abs(places(count) - options.tokens))
    feeds = {"sorted": feed([pools.rows(i) for i in range(len(pools))])}
    feeds |= {name: feed(of_pairs(equal if name == "random, equal" else fewer)) for name in options.feed}
    facts = {
        "vocab_size": corpus.tokenizer.target.vocab_size,
        "pad_token_id": pad,
        "bos_token_id": corpus.tokenizer.target.bos_id,
        "eos_token_id": corpus.tokenizer.target.eos_id,
        "decoder_start_token_id": corpus.tokenizer.target.eos_id,
        "max_position_embeddings": int(max(source.lengths.max(), target.lengths.max())) + 1,
    }
    return feeds, facts


# A contestant's process.


def work(connection: Any, name: str, case: Case, facts: dict[str, Any], feeds: dict[str, Batches], where: Any) -> None:
    """Builds, sends the loss of the first sorted batch, then trains on the feed of every name received; "" ends."""
    threads, processor = where
    if processor is not None:
        os.sched_setaffinity(0, {processor})
    import torch

    torch.set_num_threads(threads)
    model, loss = BUILDERS[name](facts, case.placement, case.dropout)
    step = make_step(model, loss, case.bf16)
    model.eval()
    with torch.no_grad():
        connection.send(float(loss(feeds["sorted"][0])))
    model.train()
    while feed := connection.recv():
        step(feeds[feed][0])  # fills the caches again
        wall, cpu = time.perf_counter(), time.process_time()
        for batch in feeds[feed]:
            step(batch)
        connection.send((time.process_time() - cpu, time.perf_counter() - wall))


def make_step(model: Any, loss: Any, bf16: bool) -> Callable[[dict[str, Any]], None]:
    """Forward, loss, backward, clipping at norm 1, fused AdamW."""
    import torch

    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.98), fused=True)

    def step(batch: dict[str, Any]) -> None:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            value = loss(batch)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


# The parent: processes, rounds, table.


def measure(case: Case, feeds: dict[str, Feed], facts: dict[str, Any], options: argparse.Namespace) -> list[Result]:
    """All contestants of one case, in turn; isograd on its own feed, the peers on both."""
    context = multiprocessing.get_context("spawn")
    where = (options.threads, options.processor if options.threads == 1 and hasattr(os, "sched_setaffinity") else None)
    batches = {name: feed.batches for name, feed in feeds.items()}
    lines, results = {}, []
    for name in PEERS[case.placement]:
        if not installed(PACKAGES[name]):
            print(f"  absent: {name} ({PACKAGES[name]} is not installed)")
            continue
        mine, its = context.Pipe()
        process = context.Process(target=work, args=(its, name, case, facts, batches, where), daemon=True)
        process.start()
        its.close()
        loss = mine.recv()  # waits: one process is busy at a time
        lines[name] = (mine, process)
        results += [Result(name=name, feed=f, loss=loss) for f in feeds if f == "sorted" or name != "isograd"]
    for _ in range(options.rounds):
        for result in results:
            lines[result.name][0].send(result.feed)
            cpu, wall = lines[result.name][0].recv()
            result.cpu.append(cpu)
            result.wall.append(wall)
    for line, process in lines.values():
        line.send("")
        process.join()
    return results


def table(results: Sequence[Result], feeds: dict[str, Feed]) -> list[str]:
    """One row per contestant and feed; see the top of this file for the ratios."""
    own = results[0]
    lines = [
        f"{'':22}{'feed':>14}{'ms/step':>9}{'wall ms':>9}{'tokens/s':>10}{'step':>7}{'min..max':>12}"
        f"{'speed':>7}{'min..max':>12}{'first loss':>12}"
    ]
    for result in results:
        feed = feeds[result.feed]
        cpu, wall = (statistics.median(t) / len(feed.batches) * 1e3 for t in (result.cpu, result.wall))
        ratios = [a / b for a, b in zip(own.cpu, result.cpu, strict=True)]
        step = spread(ratios) if result.feed == own.feed else ("", "")
        speed = spread([feeds[own.feed].tokens / feed.tokens / ratio for ratio in ratios])
        lines.append(
            f"{result.name:22}{result.feed:>14}{cpu:9.1f}{wall:9.1f}{feed.tokens / statistics.median(result.cpu):10.0f}"
            f"{step[0]:>7}{step[1]:>12}{speed[0]:>7}{speed[1]:>12}{result.loss:12.5f}"
        )
    return lines


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="numbers", metavar="PREFIX", help="parallel text, as `pairs.train` names it")
    parser.add_argument("--source", default="de")
    parser.add_argument("--target", default="en")
    parser.add_argument("--tokenized", action="store_true", help="the text is Moses-tokenised")
    parser.add_argument("--tokens", type=int, default=2000, help="target tokens in a batch")
    parser.add_argument("--pool", type=int, default=8000, help="pairs sorted by length together, in the sorted feed")
    parser.add_argument("--batches", type=int, default=5, help="per turn")
    parser.add_argument("--feed", nargs="+", choices=("random", "random, equal"), default=["random", "random, equal"])
    parser.add_argument("--placement", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0, 0.1])
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processor", type=int, default=(os.cpu_count() or 1) - 1, help="the one to pin to")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every turn as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    about = machine()
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    feeds, facts = make_feeds(options)
    for name, feed in feeds.items():
        print(f"{name}: {feed.epoch} batches an epoch, {feed.fill:.3f} of the places hold a token; here")
        print("  " + ", ".join("{}x({}, {})".format(*sides(batch)) for batch in feed.batches))
    cases = [
        Case(placement=p, dropout=d, bf16=t == "bf16")
        for p in options.placement
        for t in options.dtype
        for d in options.dropout
    ]
    report: dict[str, Any] = {"machine": about, "rounds": options.rounds, "cases": []}
    for case in cases:
        print(f"\n{case}; {options.rounds} rounds of {options.batches} steps, {options.threads} thread", flush=True)
        results = measure(case, feeds, facts, options)
        print("\n".join(table(results, feeds)), flush=True)
        report["cases"].append(asdict(case) | {"results": [asdict(r) for r in results]})
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def sides(batch: dict[str, Any]) -> tuple[int, int, int]:
    """Pairs of a batch, and its longest source and target."""
    return (*batch["input_ids"].shape, batch["labels"].shape[1])


if __name__ == "__main__":
    main()
