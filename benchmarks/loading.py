"""What data costs: batches as a share of a training step, and text to tokens once and again.

    python benchmarks/loading.py
    python benchmarks/loading.py --text wikipedia.txt.xz          tokenises it, too, into a cache of its own

A batch is timed as the training reads it (one process, no workers), beside forward, loss and backward of the model that
`xiong2020/bert-small` trains; CPU time, the two in turn, the median over rounds.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from isograd.lab.data import PackedSequences
from isograd.lab.data.masking import MaskedSequences, Masking, SegmentPairs
from isograd.models import IsogradConfig, IsogradForCausalLM, IsogradForMaskedLM

VOCABULARY = 8192
LOAD = """
import json, sys, time
from isograd.lab.data import load_corpus
began = time.perf_counter()
corpus = load_corpus(sys.argv[1], level="bpe", vocab_size=8192, documents="blank-line", mask=True)
took = time.perf_counter() - began
print(json.dumps({"seconds": took, "characters": corpus.characters, "tokens": len(corpus.train)}))
"""


def text(tokens: int = 2_000_000) -> np.ndarray:
    """Random ids, a document every thousand or so."""
    draw = np.random.default_rng(0)
    ids = draw.integers(4, VOCABULARY - 1, tokens).astype(np.uint16)
    ids[draw.integers(0, tokens, tokens // 1000)] = 3
    return ids


def sources(length: int) -> dict[str, Any]:
    ids, masking = text(), Masking(mask=VOCABULARY - 1)
    word = np.arange(VOCABULARY) % 2 == 0
    ends = {"begin": 2, "end": 3}
    return {
        "causal": PackedSequences(ids, length, seed=0),
        "masked, full sentences": MaskedSequences(ids, length, masking, **ends, seed=0),
        "masked, segment pairs": SegmentPairs(ids, length, masking, **ends, pad=0, word=word, seed=0),
    }


def seconds(act: Callable[[], Any]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def shares(options: argparse.Namespace) -> dict[str, list[float]]:
    """For each way of cutting, batch over batch + step, one per round."""
    found: dict[str, list[float]] = {}
    for name, data in sources(options.length).items():
        model = network(name, options).train()

        begins = itertools.count(0, options.batch)

        def step(data: Any = data, model: Any = model, begins: Iterator[int] = begins) -> float:
            begin = next(begins)
            places = range(begin, begin + options.batch)
            batch: dict[str, Any] = {}
            loading = seconds(lambda: batch.update(data.__getitems__(places)))
            with torch.autocast("cpu", torch.bfloat16) if options.bf16 else nullcontext():
                work = seconds(lambda: model(**batch).loss.backward())
            return loading / (loading + work)

        for _ in range(3):
            step()
        found[name] = [statistics.median(step() for _ in range(5)) for _ in range(options.rounds)]
    return found


def network(name: str, options: argparse.Namespace) -> Any:
    config = IsogradConfig(
        vocab_size=VOCABULARY,
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        max_position_embeddings=options.length,
        is_decoder=name == "causal",
        type_vocab_size=2 if "pairs" in name else 0,
        next_sentence="pairs" in name,
    )
    return (IsogradForCausalLM if name == "causal" else IsogradForMaskedLM)(config)


def tokenised(path: str) -> list[dict[str, float]]:
    """The first and the second time, each in a process of its own, in a cache that begins empty."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"XDG_CACHE_HOME": cache}
        command = [sys.executable, "-c", LOAD, path]
        return [
            json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
            for _ in range(2)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--text", help="a file to tokenise")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name, values in shares(options).items():
        low, high = min(values), max(values)
        print(f"{name:24}{statistics.median(values):8.2%} of a step ({low:.2%}..{high:.2%}), {len(values)} rounds")
    if options.text:
        first, again = tokenised(options.text)
        sizes = f"{first['characters'] / 1e6:.0f} million characters to {first['tokens'] / 1e6:.1f} million tokens"
        print(f"tokenising {sizes}: {first['seconds']:.1f} s, and {again['seconds']:.2f} s the second time")


if __name__ == "__main__":
    main()
