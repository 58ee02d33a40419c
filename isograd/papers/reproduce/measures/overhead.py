"""What NormFormer costs beside Pre-LN: time of a step here, memory and parameters at the paper's shapes by forecast."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from isograd.papers.reproduce.context import Context
from isograd.papers.reproduce.item import Row, Rows

if TYPE_CHECKING:
    from torch import Tensor

ARMS = {"Pre-LN": "pre-ln", "NormFormer": "normformer", "NormFormer with ResScale": "normformer-resscale"}
SIZES = ("125m", "355m", "1.3b", "2.7b")
ROUNDS, STEPS = 31, 3
SHAPE: dict[str, Any] = {  # two layers of the 125M shape; a small vocabulary, so that layers are what takes the time
    "vocab_size": 1024,
    "hidden_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "is_decoder": True,
    "max_position_embeddings": 256,
}


def overhead(context: Context) -> Rows:
    """ "step" rows: CPU seconds of a step, the arms in turns; "size" rows: parameters and bytes of a training step."""
    rows: list[Row] = []
    for turn, found in enumerate(context.once(f"time of {ROUNDS} rounds of steps", _rounds), start=1):
        for arm, seconds in found.items():
            share = 100 * (seconds / found["Pre-LN"] - 1)
            own = {"arm": arm, "placement": ARMS[arm], "seed": turn, "what": "step"}
            rows.append({**own, "seconds": seconds, "more_time": share, "log_seconds": math.log(seconds)})
    return [*rows, *_sizes()]


def _rounds() -> list[dict[str, float]]:
    """Of each round the median CPU seconds of a step of each arm; the arms take turns."""
    import torch

    steps = {arm: _stepper(placement) for arm, placement in ARMS.items()}
    ids = torch.randint(SHAPE["vocab_size"], (2, 256), generator=torch.Generator().manual_seed(0))
    for step in steps.values():
        step(ids)
    return [{arm: _timed(step, ids) for arm, step in steps.items()} for _ in range(ROUNDS)]


def _stepper(placement: str) -> "Callable[[Tensor], None]":
    """Forward, loss, backward, AdamW."""
    import torch

    from isograd.models import IsogradConfig, IsogradForCausalLM

    model = IsogradForCausalLM(IsogradConfig(placement=placement, **SHAPE)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(ids: "Tensor") -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _timed(step: "Callable[[Tensor], None]", ids: "Tensor") -> float:
    taken = []
    for _ in range(STEPS):
        began = time.process_time()
        step(ids)
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def _sizes() -> Sequence[Row]:
    """Of the paper's recipes on 8 devices, with their gradient checkpointing and without it."""
    rows: list[Row] = []
    for size in SIZES:
        for checkpointing in (True, False):
            held = {arm: _held(size, placement, checkpointing) for arm, placement in ARMS.items()}
            base = held["Pre-LN"]
            for arm, (count, total) in held.items():
                more = {
                    "more_parameters": 100 * (count / base[0] - 1),
                    "more_memory": 100 * (total / base[1] - 1),
                }
                shown = {"arm": arm, "placement": ARMS[arm], "seed": 0, "what": "size", "size": size}
                rows.append({**shown, "checkpointing": checkpointing, "parameters": count, "bytes": total, **more})
    return rows


def _held(size: str, placement: str, checkpointing: bool) -> tuple[int, int]:
    """Parameters, and bytes on each of 8 devices."""
    from isograd.lab.recipes import path_of
    from isograd.lab.train.forecast.memory import memory, parameters
    from isograd.lab.train.recipe import load_run

    words = [f"model.placement={placement}", f"training.gradient_checkpointing={str(checkpointing).lower()}"]
    run = load_run(path_of(f"normformer2021/clm-{size}"), words)
    config = run.config()
    return sum(parameters(config, run.task).values()), memory(run, config, devices=8).total
