"""A grid of fine-tunings of one model: weights x learning rate x batch x epochs, each with every seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from isograd.study.compare import Arm, seeded
from isograd.train.pretrained import find_pretrained
from isograd.train.run import Placed
from isograd.train.tasks.classification import ClassificationRun, FineTuning, Glue, GlueTask


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is tried. `scratch` adds the same from fresh weights."""

    rates: Sequence[float] = (1e-4,)
    batches: Sequence[int] = (32,)
    epochs: Sequence[int] = (3,)
    scratch: bool = False


# The ranges are those of Xiong et al. 2020: batch 16 or 32, rates from 1e-5 to 1e-4, 3 to 8 epochs, and six seeds; the
# points inside them are ours.
PAPER = Grid(rates=(1e-5, 2e-5, 5e-5, 1e-4), batches=(16, 32), epochs=(3, 5, 8))
PAPER_SEEDS = range(6)
LENGTH = 128  # tokens of a sequence, where the model has as many positions


def base_run(model: str, task: GlueTask, source: str, grid: Grid) -> ClassificationRun:
    """The first point of a grid, trained as BERT and RoBERTa are.

    AdamW with decoupled decay, a linear fall of the rate after a short warm-up, dropout 0.1.

    Raises:
        DataError: there is no such model.
        RecipeError: a value of the grid that no training has.
    """
    config = find_pretrained(model).config
    length = min(LENGTH, config.max_position_embeddings)
    return ClassificationRun(
        model=Placed(placement=config.placement),
        glue=Glue(task=task, source=source, model=model, length=length, dropout=0.1, attention_dropout=0.1),
        training=FineTuning(
            steps=1_000_000,  # the epochs end it
            lr=grid.rates[0],
            batch=grid.batches[0],
            epochs=grid.epochs[0],
            optimizer="adamw",
            betas=(0.9, 0.98),
            eps=1e-6,
            weight_decay=0.01,
            decay="linear",
            clip=1.0,
            probe_every=0,
            checkpoint_every=200,
        ),
    )


def plan_grid(folder: Path, base: ClassificationRun, grid: Grid, seeds: Sequence[int]) -> list[Arm]:
    """The arms, seed by seed, pre-trained ones before those from scratch.

    Raises:
        RecipeError: settings that contradict each other.
    """
    weights = (False, True) if grid.scratch else (False,)
    points = product(weights, grid.rates, grid.batches, grid.epochs)
    runs = [
        replace(
            base,
            glue=replace(base.glue, scratch=scratch),
            training=replace(base.training, lr=lr, batch=batch, epochs=epochs),
        )
        for scratch, lr, batch, epochs in points
    ]
    return seeded(folder, runs, seeds)
