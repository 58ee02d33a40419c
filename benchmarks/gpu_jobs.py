"""The jobs of `gpu.py`: a measurement each, run as `python gpu_jobs.py JSON`; its last line of stdout is the result.

A step is forward, loss, backward, clipping at norm 1 and fused AdamW on random tokens, under bf16 autocast, with TF32
for what stays in float32. Its time is the median over the steps after the warm-up, from one synchronization to the
next. Compiled means forward and loss by torch.compile in its default mode, for all alike. MFU is (6 N + 6 L T d) FLOP
a token (N the parameters that multiply, half of attention's 12 L T d for a causal mask) over the dense bf16 peak.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contestants import BUILDERS, Shape
from gpu_small import absent, beside, one_small, small

ROOT = Path(__file__).parents[1]
PARTS = (  # what matters most first: a machine may be lent for some minutes only
    "step-125m",
    "tests",
    "overhead",
    "decode",
    "small",
    "step-125m-more",
    "study",
    "step-355m",
    "step-355m-more",
)
SIZES = {  # of GPT-3's table
    "125m": Shape(width=768, layers=12, heads=12, vocabulary=50304, time=1024, batch=16),
    "355m": Shape(width=1024, layers=24, heads=16, vocabulary=50304, time=1024, batch=8),
}
TINY = Shape(width=32, layers=2, heads=4, vocabulary=96, time=16, batch=2)
PRE_LN, NORMFORMER, SANDWICH, MHC = (("isograd", name) for name in ("pre-ln", "normformer", "sandwich", "mhc"))
NANOGPT, GPT2, LLAMA, X_TRANSFORMERS = ((name, "") for name in ("nanogpt", "gpt2", "llama", "x_transformers"))
CONTESTANTS = {
    "step-125m": (PRE_LN, NANOGPT, NORMFORMER),
    "step-125m-more": (GPT2, LLAMA, SANDWICH, X_TRANSFORMERS, MHC),
    "step-355m": (PRE_LN, NANOGPT, NORMFORMER),
    "step-355m-more": (LLAMA, SANDWICH, GPT2, X_TRANSFORMERS, MHC),
}
ABOUT = {"125m": (20, 60), "355m": (25, 90)}  # seconds of a job, eager and compiled
SIDE_BY_SIDE = {  # how many models, each way
    "turns": (1,),
    "streams": (8,),
    "graphs": (1, 16),
    "stacked": (16,),
    "stacked graph": (16, 64),
    "processes": (1, 8, 16),
    "mps": (8, 16),
}
# Dense bf16 FLOP a second with float32 sums, by the name that the driver gives, or what it begins with. NVIDIA's data
# sheets of H100 and H200 print the double, "with sparsity": SXM 1979, NVL 1671, PCIe 1513; A100 312 and L40S 362 dense.
PEAKS = {
    "H100 80GB HBM3": 989.5e12,
    "H100 NVL": 835.5e12,
    "H100 PCIe": 756.5e12,
    "H200": 989.5e12,
    "H200 NVL": 835.5e12,
    "A100-SXM4": 312e12,
    "A100-PCIE": 312e12,
    "A100 80GB PCIe": 312e12,
    "L40S": 362e12,
}
WARM, STEPS = 5, 20
Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One measurement.

    Attributes:
        about: the seconds that it is expected to take.
        seconds: after which it is ended.
    """

    part: str
    kind: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    about: int = 40
    seconds: int = 300

    @property
    def runs_isograd(self) -> bool:
        return self.kind != "step" or self.options["build"] == "isograd"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def jobs_of(part: str, tiny: bool) -> list[Job]:
    if part.startswith("step-"):
        return list(_steps(part, tiny))
    if part == "small":
        return list(_side_by_side(tiny))
    if part == "decode":
        sizes = [1] if tiny else [1, 16]
        return [
            Job(
                part=part,
                kind="decode",
                label=f"{build}, batch {n}",
                options={"build": build, "batch": n, "tiny": tiny},
                about=42,
            )
            for n in sizes
            for build in ("isograd", "gpt2")
        ]
    if part == "study":
        return [
            Job(
                part=part,
                kind="study",
                label=f"{count} at once{' under MPS' if mps else ''}",
                options={"jobs": count, "cells": 2 if tiny else max(4, count), "mps": mps, "tiny": tiny},
                about=60,
            )
            for count, mps in ([(1, False), (2, True)] if tiny else [(1, False), (16, False), (16, True)])
        ]
    if part == "overhead":
        return [Job(part=part, kind=kind, label=kind, options={"tiny": tiny}, about=30) for kind in ("check", "watch")]
    return [Job(part=part, kind="tests", label="pytest -m gpu", options={"tiny": tiny}, about=150, seconds=500)]


def _steps(part: str, tiny: bool) -> Iterator[Job]:
    size = part.split("-")[1]
    for compiled in (False, True):
        for build, placement in CONTESTANTS[part]:
            if tiny and (compiled or size == "355m") and placement != "pre-ln":
                continue  # tiny shapes are alike
            options = {"build": build, "placement": placement, "size": size, "compiled": compiled, "tiny": tiny}
            name = f"isograd {placement}" if placement else build
            label = f"{name}, {'compiled' if compiled else 'eager'}"
            yield Job(part=part, kind="step", label=label, options=options, about=ABOUT[size][compiled])


def _side_by_side(tiny: bool) -> Iterator[Job]:
    for how, counts in SIDE_BY_SIDE.items():
        for count in (2,) if tiny else counts:
            options = {"how": how, "count": count, "tiny": tiny}
            yield Job(part="small", kind="small", label=f"{how}, {count}", options=options, about=20 + count // 8)


# Models.


def nanogpt(shape: Shape, placement: str) -> tuple[Any, Callable[[dict[str, Any]], Any]]:
    """examples/gpt.py, which is written as nanoGPT is."""
    from torch.nn.functional import cross_entropy

    sys.path.insert(0, str(ROOT / "examples"))
    from gpt import GPT, Config

    model = GPT(Config(shape.vocabulary, shape.time, shape.width, shape.heads, shape.layers))

    def loss(batch: dict[str, Any]) -> Any:
        logits, ids = model(batch["input_ids"]), batch["labels"]
        return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    return model, loss


def llama(shape: Shape, placement: str) -> tuple[Any, Callable[[dict[str, Any]], Any]]:
    """SwiGLU of two thirds of the width, so that the products are as many; rotary positions, RMSNorm, no biases."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=8 * shape.width // 3,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=shape.time,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    return model, lambda batch: model(**batch).loss


BUILD: dict[str, Any] = {**BUILDERS, "nanogpt": nanogpt, "llama": llama}


def device_facts() -> dict[str, str]:
    import torch

    return {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def settle() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(call: Callable[[], Any], times: int, warm: int) -> list[float]:
    """Seconds of each call after the warm-up."""
    for _ in range(warm):
        call()
    found = []
    for _ in range(times):
        settle()
        began = time.perf_counter()
        call()
        settle()
        found.append(time.perf_counter() - began)
    return found


def middle(seconds: list[float]) -> Result:
    """Milliseconds: median, lowest, highest, n."""
    found = [1e3 * one for one in seconds]
    return {"ms": statistics.median(found), "lowest": min(found), "highest": max(found), "n": len(found)}


# What a job measures.


def step(build: str, placement: str, size: str, compiled: bool, tiny: bool) -> Result:
    import torch

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    shape = TINY if tiny else SIZES[size]
    model, loss = BUILD[build](shape, placement)
    model.to(device()).train()
    once = training_step(model, loss, shape, compiled)
    cuda = torch.cuda.is_available()
    before = torch.cuda.memory_allocated() if cuda else 0
    (first,) = timed(once, 1, 0)
    if cuda:  # not of compiling
        torch.cuda.reset_peak_memory_stats()
    seconds = timed(once, 3 if tiny else STEPS, 1 if tiny else WARM)
    result = middle(seconds)
    tokens = shape.batch * shape.time
    per_second = 1e3 * tokens / result["ms"]
    peak = peak_of(torch.cuda.get_device_name()) if cuda else None
    return result | {
        "tokens/s": per_second,
        "MFU": None if peak is None else per_second * flop_per_token(model, shape) / peak,
        "first step s": first,
        "peak MiB": torch.cuda.max_memory_allocated() / 2**20 if cuda else None,
        "model MiB": before / 2**20 if cuda else None,
        "M parameters": sum(p.numel() for p in model.parameters()) / 1e6,
    }


def peak_of(name: str) -> float | None:
    """Of the longest name in the table that this one begins with, the maker aside."""
    known = [known for known in PEAKS if f"{name.removeprefix('NVIDIA ')} ".startswith((f"{known} ", f"{known}-"))]
    return PEAKS[max(known, key=len)] if known else None


def flop_per_token(model: Any, shape: Shape) -> float:
    """6 for each number of a matrix, the (tied) head's once and the look-up of tables never; causal attention's."""
    from torch import nn

    tables = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1) - sum(tables.values())
    return 6.0 * (matrices + shape.vocabulary * shape.width) + 6.0 * shape.layers * shape.time * shape.width


def training_step(model: Any, loss: Any, shape: Shape, compiled: bool = False) -> Callable[[], None]:
    import torch

    backend = "inductor" if torch.cuda.is_available() else "aot_eager"  # which needs no compiler
    call = torch.compile(loss, backend=backend) if compiled else loss
    ids = torch.randint(4, shape.vocabulary, (shape.batch, shape.time), device=device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def once() -> None:
        with torch.autocast(device(), torch.bfloat16):
            value = call({"input_ids": ids, "labels": ids})
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return once


def decode(build: str, batch: int, tiny: bool) -> Result:
    """Greedy, with a cache, from a prompt of 32 tokens."""
    import torch

    torch.manual_seed(0)
    shape, new = (TINY, 8) if tiny else (SIZES["125m"], 256)
    model, _ = BUILD[build](shape, "pre-ln")
    model.to(device()).eval()
    model.config.use_cache = True
    prompt = torch.randint(4, shape.vocabulary, (batch, 8 if tiny else 32), device=device())
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    mixed = nullcontext() if tiny else torch.autocast(device(), torch.bfloat16)
    with torch.no_grad(), mixed:
        seconds = timed(lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **options), 3, 1)
    result = middle(seconds)
    return result | {"tokens/s": 1e3 * batch * new / result["ms"]}


def study(jobs: int, cells: int, mps: bool, tiny: bool) -> Result:
    """Cells of studies/warmup's shape on one device, so many processes at once."""
    if mps and (missing := absent("mps")):
        return {"absent": missing}
    steps = 3 if tiny else 300
    words = ["training.lr=1e-3", "training.warmup=0", "model.placement=[pre-ln]", f"seeds={list(range(1, cells + 1))}"]
    shape = ["model.layers=2", "model.width=16", "training.batch=2"] if tiny else []
    command = [sys.executable, "-m", "isograd", "study", "studies/warmup", *words, *shape, f"budget.steps={steps}"]
    with beside("mps" if mps else "processes") as (folder, environment):
        began = time.perf_counter()
        command += ["--out", str(folder / "study"), "--jobs", str(jobs), "--json", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        wall = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    rows = json.loads(done.stdout[done.stdout.index("{\n") :])["rows"]  # a tracker may have said something before
    failed = [str(row.get("error")) for row in rows if row["outcome"] == "failed"]
    if len(failed) == len(rows):
        raise RuntimeError(f"every cell failed: {failed[0]}")
    ended = len(rows) - len(failed)
    return {
        "cells": ended,
        "wall s": wall,
        "cells/h": 3600 * ended / wall,
        "steps of each": steps,
        "log": "\n".join(failed),
    }


def check(tiny: bool) -> Result:
    import isograd

    model, _ = BUILD["isograd"](TINY if tiny else SIZES["125m"], "pre-ln")
    model.to(device())
    began = time.perf_counter()
    found = isograd.check(model)
    settle()
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "findings": len(found), "missed": len(found.missed), "log": "\n".join(found.missed)}


def watch(tiny: bool) -> Result:
    """A watched step over a plain one, in turn."""
    import torch

    import isograd

    shape = TINY if tiny else SIZES["125m"]
    torch.manual_seed(0)
    plain, watched = (BUILD["isograd"](shape, "pre-ln") for _ in range(2))
    steps = []
    for model, loss in (plain, watched):
        model.to(device()).train()
        steps.append(training_step(model, loss, shape))
    with tempfile.TemporaryDirectory() as folder:
        observer = isograd.watch(watched[0], folder=Path(folder))
        ids = torch.randint(4, shape.vocabulary, (shape.batch, shape.time), device=device())
        optimizer = torch.optim.AdamW(watched[0].parameters(), lr=1e-4, fused=True)

        def seen() -> None:
            with torch.autocast(device(), torch.bfloat16):
                value = watched[1]({"input_ids": ids, "labels": ids})
            value.backward()
            torch.nn.utils.clip_grad_norm_(watched[0].parameters(), 1.0)
            observer.step(value, batch={"labels": ids})
            optimizer.step()
            optimizer.zero_grad()

        turns = [(timed(steps[0], 4, 1), timed(seen, 4, 1)) for _ in range(2 if tiny else 7)]
        observer.close()  # before its folder goes
    ratios = [statistics.median(b) / statistics.median(a) for a, b in turns]
    return {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios), "n": len(ratios)}


def tests(tiny: bool) -> Result:
    """The tests marked gpu, four at once where that can be; with tiny shapes and no GPU they run on the CPU."""
    import importlib.util

    where = os.environ | ({"ISOGRAD_GPU_TESTS": "cpu"} if device() == "cpu" else {})
    words = ["-m", "gpu", "-p", "no:cacheprovider", "-p", "no:benchmark", "-rfE", "tests/train/test_gpu.py"]
    if importlib.util.find_spec("xdist") and not tiny:
        words += ["-n", "4"]
    command = [sys.executable, "-m", "pytest", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=where, check=False, cwd=ROOT)
    lines = done.stdout.strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {
        "last line": lines[-1] if lines else done.stderr[-200:],
        "exit code": done.returncode,
        "failed": [line[:200] for line in failed],
        "log": done.stdout + done.stderr,
    }


KINDS: dict[str, Callable[..., Result]] = {
    "step": step,
    "decode": decode,
    "study": study,
    "check": check,
    "watch": watch,
    "tests": tests,
    "small": small,
    "one small": one_small,
}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(KINDS[given["kind"]](**given["options"])))
