"""Xiong et al. 2020, figure 3: an encoder-decoder of the paper's own shape at initialization, on batches of its corpus.

Layers, width, heads and feed-forward are those of the recipe xiong2020/iwslt14; dropout is off, the loss unsmoothed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from isograd.papers.reproduce.context import Context
from isograd.papers.reproduce.item import Row, Rows

if TYPE_CHECKING:
    from isograd.lab.train.tasks.translation import Translation
    from isograd.models import IsogradForSeq2SeqLM

SEEDS = tuple(range(10))  # as in the paper
POOLED = tuple(range(10, 30))
SHAPES = {"Post-LN": "post-ln", "Pre-LN": "pre-ln"}
DEPTHS = (6, 8, 10, 12, 14)  # layers of each stack
EPSILONS = (0.05, 0.1, 0.2)
TOKENS, BATCHES = 512, 4
_SUBSCRIPT = {"W_1": "W₁", "W_2": "W₂"}


def layer_gradients(context: Context) -> Rows:
    """The norm of the expected gradient of each feed-forward matrix, and how much it grows through the decoder."""
    from isograd.papers.theory.on_batches import expected_gradients

    def measure(model: Any, batches: Sequence[Any]) -> Any:
        return [vars(row) for row in expected_gradients(model, batches)]

    rows: list[Row] = []
    for row, found in _of_each(context, "expected gradients", (6,), measure):
        for one in found:
            panel = f"{_SUBSCRIPT[one['matrix']]}, {one['stack']}"
            rows.append({**row, **one, "what": "layer", "panel": panel})
        last = {one["layer"]: one["expected"] for one in found if (one["stack"], one["matrix"]) == ("decoder", "W_2")}
        growth = math.log(last[max(last)] / last[min(last)])
        rows.append({**row, "what": "growth", "growth": growth, "change": abs(growth)})
    return rows


def depth_gradients(context: Context) -> Rows:
    """The norm of the expected gradient of the last W_2 at each depth; p of gradient ~ layers^p for each seed."""
    from isograd.lab.statistics import exponent
    from isograd.papers.theory.on_batches import expected_gradients

    def measure(model: Any, batches: Sequence[Any]) -> Any:
        return expected_gradients(model, batches[:2], last=True)[0].expected

    rows: list[Row] = [
        {**row, "what": "depth", "gradient": found}
        for row, found in _of_each(context, "last gradient", DEPTHS, measure)
    ]
    for arm, seed in dict.fromkeys((row["arm"], row["seed"]) for row in rows):
        own = [row for row in rows if (row["arm"], row["seed"]) == (arm, seed)]
        p = exponent([row["layers"] for row in own], [row["gradient"] for row in own])
        rows.append(
            {"arm": arm, "placement": SHAPES[arm], "seed": seed, "what": "exponent", "exponent": p, "size": abs(p)}
        )
    return rows


def bounded_states(context: Context) -> Rows:
    """delta of the last hidden state's norm |x|, and of |x|^2, at each epsilon."""
    from isograd.papers.theory.on_batches import last_states, outside

    def measure(model: Any, batches: Sequence[Any]) -> Any:
        squares = last_states(model, batches)
        return [
            {"epsilon": e, "delta": outside(squares.sqrt(), e), "delta_squares": outside(squares, e)} for e in EPSILONS
        ]

    found = _of_each(context, "last hidden states", (6,), measure, seeds=POOLED)
    return [{**row, **one} for row, each in found for one in each]


def _of_each(
    context: Context,
    name: str,
    depths: Sequence[int],
    measure: Callable[["IsogradForSeq2SeqLM", Sequence[Any]], Any],
    seeds: Sequence[int] = SEEDS,
) -> Iterator[tuple[Row, Any]]:
    """What is measured of each placement, depth and seed, each kept as soon as it is there."""
    for seed in context.seeds or seeds:
        for arm, placement in SHAPES.items():
            for layers in depths:
                compute = partial(_measured, context, placement, layers, seed, measure)
                row = {"arm": arm, "placement": placement, "seed": seed, "layers": layers}
                yield row, context.once(f"{name}: {arm}, {layers}-{layers}, seed {seed}", compute)


def _measured(
    context: Context, placement: str, layers: int, seed: int, measure: Callable[[Any, Sequence[Any]], Any]
) -> Any:
    from transformers import set_seed

    task = _task(context)
    set_seed(seed)
    config = task.config()
    config.placement, config.encoder_layers, config.num_hidden_layers = placement, layers, layers
    batches = [task.samples[BATCHES * seed + i] for i in range(BATCHES)]
    return measure(task.build(config).eval(), batches)


def _task(context: Context) -> "Translation":
    """The paper's recipe on the item's corpus, loaded once in a process."""
    key = repr(context.settings)
    if key not in _LOADED:
        _LOADED.clear()
        _LOADED[key] = _load(context)
    return _LOADED[key]


_LOADED: dict[str, "Translation"] = {}


def _load(context: Context) -> "Translation":
    import json

    from isograd.lab.recipes import path_of
    from isograd.lab.train.recipe import load_run
    from isograd.lab.train.tasks.translation import Translation
    from isograd.lab.train.train import load_task

    own = {"pairs.vocabulary": "bpe", "pairs.codes": None, "pairs.vocab_size": 10000, "training.tokens": TOKENS}
    settings = own | context.settings | {"training.epochs": 0, "training.precision": "fp32"}
    words = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    task = load_task(load_run(path_of("xiong2020/iwslt14"), words))
    assert isinstance(task, Translation)
    return task
