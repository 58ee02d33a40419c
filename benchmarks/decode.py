"""Beam search beside transformers' `generate` or CTranslate2: the same weights, the same sentences, one thread each.

    python benchmarks/decode.py --data test2016.de --reference test2016.en
    python benchmarks/decode.py --data test2016.de --model runs/multi30k --json decode.json
    python benchmarks/decode.py --data test2016.de --model runs/multi30k --peer ctranslate2
    python benchmarks/decode.py --data test2016.de --sentences 64 --rounds 2      does it run?

The peer is MarianMTModel for a post-ln model, and PegasusForConditionalGeneration, its pre-ln twin, for a pre-ln one,
with the weights of ours. isograd sorts the sentences by length and cuts batches by tokens; the peer gets them in the
order of the file, `--batch` at a time, as its users would. Every contestant lives in its own process, pinned to one
processor, and they take turns; a turn translates all sentences once. A ratio is formed within a round; the table shows
its median over the rounds and its smallest and largest value. "equal" is the share of best hypotheses that are those
of isograd in the first dtype. Both go on, by default, where a better hypothesis could still be found (isograd: the
best one); with early_stopping=True `generate` stops when `beam` are finished, shown once, for the last `--batch`.

With `--model` (ReLU, positions added to the embedding, one table for both languages) sentences end where the model ends
them. Without it the weights are random (post-ln, d 256, 6 + 6 layers, 8000 words), sentences are random words of the
lengths in `--data`, and each hypothesis ends at the length of its line in `--reference` (of its source, without one):
eos is made improbable in the weights, and forced at that length on both sides.

CTranslate2 (`--peer ctranslate2`, with `--model`) sorts by length and cuts by tokens, too, and gets the same bound:
`--tokens` over the beam. It stops when `beam` hypotheses are finished, so isograd takes part by that rule, and once by
its own. CTranslate2 runs what this CPU's build of it has of float32, bfloat16 and int8 (the weights, computed in
float32 otherwise); isograd has no int8. Every factor is to isograd in fp32.
"""

import argparse
import gzip
import itertools
import json
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from decoders import SHAPE, Translate, Work, build, by_ctranslate2, ours, theirs
from step import machine, spread


@dataclass(frozen=True, kw_only=True)
class Contestant:
    name: str
    kind: str  # isograd, generate or ctranslate2
    dtype: str
    base: str  # the contestant that its time is divided by
    batch: int = 0  # sentences per call of generate
    early: bool = False  # early_stopping=True: stops when `beam` hypotheses are finished

    def translator(self, work: Work) -> Translate:
        import torch

        if self.kind == "ctranslate2":
            return by_ctranslate2(work, self.dtype)
        model = build(work.model).to(torch.bfloat16 if self.dtype == "bf16" else torch.float32)
        if self.kind == "isograd":
            return ours(model, work, self.early)
        return theirs(model, work, self.batch, self.early)


@dataclass(kw_only=True)
class Result:
    contestant: Contestant
    seconds: list[float] = field(default_factory=list)  # CPU, one per round
    best: list[list[int]] = field(default_factory=list, repr=False)


def compete(connection: Any, contestant: Contestant, work: Work, threads: int, processor: int | None) -> None:
    """Builds, sends the best hypotheses of a turn that is not measured, then one turn for every True received."""
    if processor is not None:
        os.sched_setaffinity(0, {processor})
    import torch

    torch.set_num_threads(threads)
    translate = contestant.translator(work)
    connection.send(translate())
    while connection.recv():
        before = time.process_time()
        translate()
        connection.send(time.process_time() - before)


def measure(contestants: Sequence[Contestant], work: Work, options: argparse.Namespace) -> list[Result]:
    context = multiprocessing.get_context("spawn")
    processor = options.processor if options.threads == 1 and hasattr(os, "sched_setaffinity") else None
    lines, results = [], []
    for contestant in contestants:
        mine, its = context.Pipe()
        process = context.Process(target=compete, args=(its, contestant, work, options.threads, processor), daemon=True)
        process.start()
        its.close()
        results.append(Result(contestant=contestant, best=mine.recv()))
        lines.append((mine, process))
    for _ in range(options.rounds):
        for (line, _), result in zip(lines, results, strict=True):
            line.send(True)
            result.seconds.append(line.recv())
    for line, process in lines:
        line.send(False)
        process.join()
    return results


def table(results: Sequence[Result]) -> list[str]:
    """Times, and how many times faster isograd is than each contestant."""
    lines = [f"{'':28}{'CPU s':>8}{'sentences/s':>13}{'isograd is':>16}{'min..max':>13}{'equal':>8}"]
    for result in results:
        own = next(r for r in results if r.contestant.name == result.contestant.base)
        factor, ends = spread([a / b for a, b in zip(result.seconds, own.seconds, strict=True)])
        equal = statistics.fmean(a == b for a, b in zip(result.best, results[0].best, strict=True))
        median = statistics.median(result.seconds)
        lines.append(
            f"{result.contestant.name:28}{median:8.2f}{len(result.best) / median:13.1f}{factor + ' x as fast':>16}"
            f"{ends:>13}{equal:8.3f}"
        )
    return lines


def beside_generate(options: argparse.Namespace) -> list[Contestant]:
    found = []
    for dtype in options.dtype:
        own = f"isograd {dtype}"
        rows = [(own, "isograd", 0, False)]
        rows += [(f"generate {dtype}, batch {n}", "generate", n, False) for n in options.batch]
        rows.append(("  with early_stopping=True", "generate", options.batch[-1], True))
        found += [
            Contestant(name=name, kind=kind, dtype=dtype, base=own, batch=batch, early=early)
            for name, kind, batch, early in rows
        ]
    return found


def beside_ctranslate2(options: argparse.Namespace) -> list[Contestant]:
    import ctranslate2

    own = f"isograd {options.dtype[0]}"
    found = [Contestant(name=f"isograd {d}", kind="isograd", dtype=d, base=own, early=True) for d in options.dtype]
    found.append(Contestant(name=f"{own}, its own stop", kind="isograd", dtype=options.dtype[0], base=own))
    there = ctranslate2.get_supported_compute_types("cpu")
    for kind in ("float32", "bfloat16", "int8_float32"):
        if kind in there:
            found.append(Contestant(name=f"CTranslate2 {kind}", kind="ctranslate2", dtype=kind, base=own))
        else:
            print(f"CTranslate2 {ctranslate2.__version__} has no {kind} on this CPU, only {', '.join(sorted(there))}")
    return found


def read_lines(path: Path, n: int) -> list[str]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [line.strip() for line in itertools.islice(lines, n)]


def make_work(options: argparse.Namespace) -> Work:
    lines = read_lines(options.data, options.sentences)
    lengths = None
    if options.model:
        import torch

        from isograd.lab.evaluate.loading import load_translation_model

        sources = load_translation_model(options.model, torch.float32)[1].source.encode(lines)
    else:
        import random

        draw = random.Random(0)
        reference = read_lines(options.reference or options.data, options.sentences)
        sources = [[*(draw.randrange(4, SHAPE["vocab_size"]) for _ in _words(line)), 2] for line in lines]
        lengths = [max(len(_words(line)), 1) for line in reference]
    return Work(sources=sources, lengths=lengths, model=options.model, beam=options.beam, tokens=options.tokens)


def _words(line: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", line)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="source sentences, plain or gz")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="their translations, for lengths only")
    parser.add_argument("--model", metavar="FOLDER", help="a trained run, or its model")
    parser.add_argument("--peer", choices=("generate", "ctranslate2"), default="generate")
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 32], help="sentences per call of generate")
    parser.add_argument("--tokens", type=int, default=8192, help="isograd's bound on sentences * beam * length")
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processor", type=int, default=(os.cpu_count() or 1) - 1, help="the one to pin to")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every turn as JSON")
    options = parser.parse_args(arguments)
    if options.peer == "ctranslate2" and not options.model:
        parser.error("--peer ctranslate2 needs --model: it has no forced length for each sentence")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    about = machine()
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    work = make_work(options)
    contestants = (beside_ctranslate2 if options.peer == "ctranslate2" else beside_generate)(options)
    print(
        f"{len(work.sources)} sentences, mean length {statistics.fmean(map(len, work.sources)):.1f}, beam {work.beam},"
        f" {'trained model' if work.model else 'random weights, forced lengths'}, {options.threads} thread,"
        f" {options.rounds} rounds"
    )
    results = measure(contestants, work, options)
    print("\n".join(table(results)))
    if options.json:
        rows = [{"contestant": asdict(r.contestant), "seconds": r.seconds} for r in results]
        report = {"machine": about, "beam": work.beam, "sentences": len(work.sources), "results": rows}
        options.json.write_text(json.dumps(report | {"forced": work.lengths is not None}, indent=1) + "\n")


if __name__ == "__main__":
    main()
