"""NormFormer, figure 5, by two protocols: the rate at which a rising rate diverges, and the largest constant one.

rising     the rate rises linearly from 0 until the mean loss of ten lies 0.5 nat above its lowest, or is not finite
constant   a bisection over runs from fresh weights, each at one rate without warm-up (`isograd study --find max-lr`)
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isograd.papers.reproduce.context import Context
from isograd.papers.reproduce.item import Row, Rows

if TYPE_CHECKING:
    from isograd.lab.study.headroom import SearchPlan

ARMS = {"Pre-LN": "pre-ln", "NormFormer": "normformer"}
SEEDS = (1, 2, 3)
STEPS = 200  # of a run at a constant rate


def stable_rates(context: Context) -> Rows:
    """A row per run of the rising rate, and one per seed and arm for each protocol: `rate`, `log_rate`, its bounds."""
    rows: list[Row] = context.rows()
    for run in context.trained:
        reached, broke = run.outcome.get("lr_reached"), run.outcome.get("broke_at")
        if reached:
            rows.append(_row("rising", run.arm, run.seed, reached, reached, None if broke is None else reached))
    for chain in _chains(context):
        end = chain["boundary"] or {}
        if end.get("kind") in ("between", "above"):
            arm = next(arm for arm, placement in ARMS.items() if placement == chain["placement"])
            low, high = end["low"], end["high"]
            rows.append(_row("constant", arm, chain["seed"], low if high is None else math.sqrt(low * high), low, high))
    return rows


def _row(protocol: str, arm: str, seed: int, rate: float, low: float, high: float | None) -> Row:
    """`high` None: it was stable up to the highest rate tried."""
    own = {"arm": arm, "placement": ARMS[arm], "seed": seed, "what": protocol}
    return {**own, "rate": rate, "low": low, "high": high, "log_rate": math.log(rate)}


def _chains(context: Context) -> list[Mapping[str, Any]]:
    """Goes on where it was, and keeps its runs in the item's folder."""
    from isograd.lab.study.engine.workers import local
    from isograd.lab.study.headroom import headroom

    plan = plan_of(context.settings, context.seeds or SEEDS)
    context.note(f"the largest constant rate: {len(plan.placements) * len(plan.seeds)} chains of short runs")
    chains: list[Mapping[str, Any]] = headroom(plan, context.folder / "constant", local(context.jobs))["chains"]
    return chains


def plan_of(settings: Mapping[str, Any], seeds: tuple[int, ...]) -> "SearchPlan":
    """Without warm-up, from the middle of the range."""
    import json

    from isograd.lab.recipes import path_of
    from isograd.lab.study.headroom import load_plan

    own = {**settings, "training.steps": STEPS, "training.lr": 8e-3, "training.warmup": 0}
    words = [f"{name}={json.dumps(value)}" for name, value in own.items()]
    return load_plan(
        path_of("studies/headroom"),
        words,
        placements=[*ARMS.values()],
        warmups=[0],
        seeds=seeds,
        low=1e-3,
        high=0.5,
        precision=1.5,
    )
