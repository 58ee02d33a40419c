"""A coordinate check: how far each quantity moves in a few updates, over depths or widths; flat or not.

    q(size) ~ size^p, a least-squares line over log size for each seed

    flat       <=>  the interval of p over seeds (Student, 95 %) lies within [-0.25, 0.25]
    not flat   <=>  it lies outside
    undecided  otherwise, or below three seeds

Updates are on the first batches, at the recipe's rate without a warm-up, by the optimizer that `isograd train` makes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isograd.errors import RecipeError
from isograd.lab.statistics import exponent, mean_interval
from isograd.lab.study.transfer.groups import parameter_groups
from isograd.lab.study.transfer.plan import plan
from isograd.lab.train.optim import optimizer_of
from isograd.lab.train.run import Run
from isograd.lab.train.train import initial_model

FLAT = 0.25
UPDATES = 4
SEEDS = (1, 2, 3, 4, 5)
QUANTITIES = {  # name -> what it is
    "logits": "RMS of the change of the logits",
    "last stream": "change of what the last layer wrote, over its size at init",
    "middle stream": "the same after half of the layers",
}


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """One quantity over sizes.

    Attributes:
        values: size -> its value for each seed.
        power: p, the mean over seeds.
        interval: of p; None below three seeds.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("verdict",)

    quantity: str
    values: dict[int, list[float]]
    power: float
    interval: tuple[float, float] | None

    def said(self) -> list[str]:
        """Each size with its mean."""
        return [f"{size}: {fmean(of):.3g}" for size, of in self.values.items()]

    def interval_said(self) -> str:
        return "–" if self.interval is None else f"{self.interval[0]:+.2f} to {self.interval[1]:+.2f}"

    @property
    def verdict(self) -> Literal["flat", "not flat", "undecided"]:
        if self.interval is None:
            return "undecided"
        low, high = self.interval
        if low >= -FLAT and high <= FLAT:
            return "flat"
        return "not flat" if low > FLAT or high < -FLAT else "undecided"


def coordinate_check(
    run: Run,
    sizes: Sequence[int],
    *,
    axis: Literal["depth", "width"] = "depth",
    rule: str | None = None,
    without: bool = False,
    seeds: Sequence[int] = SEEDS,
    updates: int = UPDATES,
    on_model: Callable[[], None] = lambda: None,
) -> list[Coordinate]:
    """Each of `QUANTITIES` over these sizes, the first of which is the recipe's own.

    Args:
        rule: of `plan`, over depth.
        without: no rule over width: the negative control (over depth it is rule="kept").
        on_model: called when a model has been measured.

    Raises:
        RecipeError: fewer than two sizes, or one that `plan` refuses.
    """
    if len(sizes) < 2:
        raise RecipeError("a coordinate check needs two sizes or more")
    own = run.layers if axis == "depth" else getattr(run.model, "width", None)
    if sizes[0] != own:
        raise RecipeError(f"a coordinate check begins at the recipe's own {axis}, {own}, and these begin at {sizes[0]}")
    if run.task != "language":
        raise RecipeError(f"task={run.task}: a coordinate check is of causal language models (task=language)")
    found: dict[str, dict[int, list[float]]] = {name: {size: [] for size in sizes} for name in QUANTITIES}
    for size in sizes:
        target = _target(run, size, axis, rule, without)
        for seed in seeds:
            for name, value in moved(replace(target, seed=seed), updates).items():
                found[name][size].append(value)
            on_model()
    return [_coordinate(name, values) for name, values in found.items()]


def _target(run: Run, size: int, axis: str, rule: str | None, without: bool) -> Run:
    if size == (run.layers if axis == "depth" else getattr(run.model, "width", None)):
        return run
    if axis == "depth":
        return plan(run, depth=size, rule=rule).target
    target = plan(run, width=size).target
    return replace(target, model=replace(target.model, placement=run.model.placement)) if without else target


def _coordinate(name: str, values: dict[int, list[float]]) -> Coordinate:
    sizes = list(values)
    powers = [exponent(sizes, one) for one in zip(*values.values(), strict=True)]
    return Coordinate(quantity=name, values=values, power=fmean(powers), interval=mean_interval(powers))


def moved(run: Run, updates: int = UPDATES) -> dict[str, float]:
    """`QUANTITIES` of one run after so many updates on its first batch; infinite where they are not finite."""
    task, model = initial_model(run)
    torch.manual_seed(run.seed)
    kind, options = optimizer_of(run.training, model)
    t = run.training
    optimizer = kind(parameter_groups(model, lr=t.lr, eps=t.eps, weight_decay=t.weight_decay), **options)
    batch = run.micro_batch(1)
    samples: Any = task.samples
    seen = samples.__getitems__(range(batch))
    before = _seen(model, seen)
    model.train()
    for update in range(updates):
        optimizer.zero_grad()
        model(**samples.__getitems__(range(update * batch, (update + 1) * batch))).loss.backward()
        optimizer.step()
    after = _seen(model, seen)
    change = {name: _rms(after[name] - before[name]) for name in before}
    sizes = {"logits": 1.0, **{name: _rms(before[name]) for name in before if name != "logits"}}
    return {name: one if math.isfinite(one := value / sizes[name]) else math.inf for name, value in change.items()}


@torch.no_grad()
def _seen(model: Any, batch: Any) -> dict[str, Tensor]:
    model.eval()
    ids = {"input_ids": batch["input_ids"]}
    logits, streams = _run(model, ids)
    return {"logits": logits, "last stream": streams[-1], "middle stream": streams[len(streams) // 2 - 1]}


def _run(model: Any, ids: Any) -> tuple[Tensor, list[Tensor]]:
    """The logits, and what each layer wrote; of a stream of several tensors the first, of copies their mean."""
    found: list[Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        found.append(first.double())

    hooks = [layer.register_forward_hook(keep) for layer in model.model.layers]
    try:
        logits = model(**ids).logits.double()
    finally:
        for hook in hooks:
            hook.remove()
    return logits, found


def _rms(x: Tensor) -> float:
    return x.pow(2).mean().sqrt().item()
