"""What items measure, against numbers by hand on files written by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isograd.lab.recipes import path_of
from isograd.lab.train.recipe import load_run
from isograd.papers.reproduce.context import Context, Trained
from isograd.papers.reproduce.measures import initialization, overhead, scores, stability, training
from isograd.papers.reproduce.plan import Asked, plan_item
from isograd.papers.reproduce.registry import ITEMS
from isograd.papers.reproduce.rules import begins


def run(folder: Path, arm: str, seed: int = 1, group: str = "", *words: str, **files: list[dict[str, Any]]) -> Trained:
    """A run that has ended, with these .jsonl files."""
    place = folder / f"{group}-{arm}-{seed}"
    place.mkdir(parents=True)
    for name, rows in files.items():
        (place / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    recipe = load_run(path_of("normformer2021/gradients-small"), [f"seed={seed}", *words])
    return Trained(group=group, arm=arm, run=recipe, values={}, folder=place)


def ended(trained: Trained, **outcome: Any) -> Trained:
    (trained.folder / "outcome.json").write_text(json.dumps({"outcome": "finished", **outcome}), encoding="utf-8")
    return trained


def context(folder: Path, *trained: Trained) -> Context:
    return Context(
        trained=trained,
        settings={},
        corpus=None,
        folder=folder,
        seeds=None,
        jobs=1,
        version="",
        note=lambda line: None,
    )


def validated(*losses: float | None) -> list[dict[str, Any]]:
    return [{"step": 10 * i, "seconds": 7.0 * i, "loss": loss} for i, loss in enumerate(losses, start=1)]


def test_steps_to_equal_loss(tmp_path: Path) -> None:
    """The baseline ends at 3.0 in step 40; the other arm is there halfway between steps 20 and 30, or never."""
    base = ended(run(tmp_path, "base", 1, validation=validated(5.0, 4.0, 3.5, 3.0)))
    sooner = ended(run(tmp_path, "new", 1, validation=validated(5.0, 3.5, 2.5, 2.0)))
    other = ended(run(tmp_path, "base", 2, validation=validated(5.0, 4.0, 3.5, 3.0)))
    never = ended(run(tmp_path, "new", 2, validation=validated(5.0, 4.5, 3.5, 3.1)))
    found = training.steps_to_equal_loss(context(tmp_path, base, sooner, other, never))
    shares = {row["seed"]: row["share_of_steps"] for row in found if row.get("what") == "equal loss"}
    assert shares == {1: pytest.approx(25 / 40), 2: math.inf}
    assert len([row for row in found if "outcome" in row]) == 4
    collapsed = ended(run(tmp_path, "base", 3, validation=validated(5.0, 5.0)), outcome="collapsed")
    rows = training.steps_to_equal_loss(context(tmp_path, collapsed, ended(run(tmp_path, "new", 3, validation=[]))))
    assert not [row for row in rows if row.get("what")]  # nothing to be reached


def test_where_an_effect_begins(tmp_path: Path) -> None:
    """Three seeds: ahead with two at step 10, with all from step 20 on; behind at the end it begins later, or not."""
    base, ends = (5.0, 4.0, 3.5, 3.0), ((5.5, 3.9, 3.4, 2.9), (4.9, 3.9, 3.4, 2.9), (4.8, 3.8, 3.4, 2.8))
    runs = [ended(run(tmp_path, "base", seed, validation=validated(*base))) for seed in (1, 2, 3)]
    runs += [ended(run(tmp_path, "new", i, validation=validated(*losses))) for i, losses in enumerate(ends, start=1)]
    found = training.effects_by_update(context(tmp_path, *runs))
    effects = {row["step"]: (row["low"], row["effect"], row["high"]) for row in found if row.get("what") == "effect"}
    assert effects[10] == pytest.approx((-0.2, -0.1, 0.5)) and effects[40] == pytest.approx((-0.2, -0.1, -0.1))
    said = begins(found, "new", "base", "step", "lower", "loss")
    assert (said.verdict, said.reason) == ("same direction", "Loss: new is lower than base from step 20 on.")
    assert begins(found, "new", "base", "step", "higher", "loss").verdict == "opposite"
    for outcome, high in (("finished", -0.5), ("diverged", -math.inf)):
        own = [ended(replace(one), validation_loss=2.5) for one in runs if one.arm == "new"]
        own = [ended(replace(one), validation_loss=3.0, outcome=outcome) for one in runs if one.arm == "base"] + own
        for measure, place in ((training.effects_by_depth, ("layers", 12)), (training.effects_by_rate, ("lr", 5e-3))):
            (row,) = (row for row in measure(context(tmp_path, *own)) if row.get("what") == "effect")
            assert (row[place[0]], row["high"], row["n"]) == (place[1], high, 3)
    early = [row for row in found if row.get("step", 0) <= 10]
    assert (
        begins(early, "new", "base", "step", "lower", "loss").reason == "Loss: new is not apart from base at the end."
    )


def observed(*values: tuple[int, int, dict[str, float]], kind: str = "ffn", stack: str = "decoder") -> list[Any]:
    return [{"step": step, "layer": layer, "kind": kind, "stack": stack, **of} for step, layer, of in values]


def test_gradients_by_layer(tmp_path: Path) -> None:
    """300 steps; all of training, and the last fifty alone."""
    values = ((1, 1, 4), (1, 2, 1), (290, 1, 2), (290, 2, 3))
    rows = observed(*((step, layer, {"gradient_mean_abs": g}) for step, layer, g in values))
    rows += observed((290, 1, {"gradient_mean_abs": 99}), kind="attn")
    one = ended(run(tmp_path, "a", quantities=rows))
    measured = training.layer_gradients(context(tmp_path, one))
    found = {row["panel"]: row["ratio"] for row in measured if row.get("what") == "ratio"}
    assert found == {"all of training": pytest.approx(3.0 / 2.0), "the last 50 steps": pytest.approx(2 / 3)}


def test_around_the_warmup(tmp_path: Path) -> None:
    """The first observed update after the warm-up, not the last of it; runs without one are left out."""
    rows = observed(*((s, layer, {"gradient_norm": s + layer}) for s in (1, 100, 110, 120) for layer in (1, 2)))
    rows += observed((110, 2, {"gradient_norm": 99.0}), stack="encoder")
    warm = ended(run(tmp_path, "warm", 1, "", "training.warmup=100", quantities=rows))
    cold = ended(run(tmp_path, "cold", 1, quantities=rows))
    found = training.around_warmup(context(tmp_path, warm, cold))
    moments = {(row["panel"], row["arm"]): row["gradient"] for row in found if row["what"] == "moment"}
    assert moments == {("warm", "the first update"): 3, ("warm", "the update after warm-up"): 112}


def test_learned_scales(tmp_path: Path) -> None:
    """Six layers, at the end of 300 steps; what lies before is left out."""
    rows: list[Any] = []
    for layer in range(1, 7):
        for step, by in ((100, 9.0), (260, 1.0), (300, 1.2)):
            mid = {"mid": by * layer, "mid_min": 0.0, "mid_max": 9.0}
            skip = {"skip": by - 0.1 * layer, "skip_min": 0.0, "skip_max": 9.0}
            heads = {"heads": by, "heads_min": by - 0.25, "heads_max": by + 0.5}
            out = {"out": by - 0.2 * layer, "out_min": 0.0, "out_max": 9.0}
            rows += observed((step, layer, mid | skip))
            rows += observed((step, layer, heads | out), kind="attn")
    found = training.learned_scales(context(tmp_path, ended(run(tmp_path, "a", quantities=rows))))
    (summary,) = (row for row in found if row["what"] == "summary")
    assert summary["early_late"] == pytest.approx((1 + 2) / (5 + 6))
    assert summary["highest_after"] == pytest.approx(1.1 - 0.2) and summary["head_spread"] == pytest.approx(0.75)
    assert summary["top"] == pytest.approx(-0.6 + 0.35)
    assert len([row for row in found if row["what"] == "layer"]) == 4 * 6


def test_the_mean_over_tasks_needs_all_of_them(tmp_path: Path) -> None:
    pretrained = ended(run(tmp_path, "a", 1, "pretrained"), validation_loss=2.0)
    one = ended(run(tmp_path, "a", 1, "RTE"), score=0.5)
    two = ended(run(tmp_path, "a", 1, "CoLA"), score=0.2)
    other = ended(run(tmp_path, "b", 1, "RTE"), score=0.9)
    rows = scores.glue_mean(context(tmp_path, pretrained, one, two, other))
    means = [row for row in rows if row.get("what") == "mean"]
    assert [(row["arm"], row["mean"]) for row in means] == [("a", pytest.approx(35.0))]  # b has no CoLA
    assert rows[0]["perplexity"] == pytest.approx(math.exp(2.0))


def test_by_epoch(tmp_path: Path) -> None:
    rows = [{"epoch": 1.0, "accuracy": 0.5}, {"epoch": 2.0, "accuracy": 0.7}]
    found = scores.by_epoch(context(tmp_path, ended(run(tmp_path, "a", 1, "RTE", validation=rows), score=0.7)))
    assert found[0]["mean_of_epochs"] == pytest.approx(60.0)
    assert [row["accuracy"] for row in found[1:]] == [50.0, pytest.approx(70.0)]


def test_parameters_of_the_papers_shapes() -> None:
    """NormFormer adds, per layer, 2 d after attention, 2 x 4 d inside the feed-forward, and a scale per head."""
    added = {"125m": (12, 768, 12), "355m": (24, 1024, 16), "1.3b": (24, 2048, 32), "2.7b": (32, 2560, 32)}
    found = overhead._sizes()
    rows = {(row["size"], row["arm"]): row for row in found if row["checkpointing"]}
    whole = {(row["size"], row["arm"]): row for row in found if not row["checkpointing"]}
    for size, (layers, width, heads) in added.items():
        base, more = rows[size, "Pre-LN"], rows[size, "NormFormer"]
        assert more["parameters"] - base["parameters"] == layers * (10 * width + heads)
        assert 0 < more["more_parameters"] < 0.08
        assert 0 < more["more_memory"] < whole[size, "NormFormer"]["more_memory"]  # what is kept is what is added
        resscale = rows[size, "NormFormer with ResScale"]
        assert resscale["parameters"] - more["parameters"] == layers * width


def test_the_search_of_the_largest_constant_rate() -> None:
    plan = stability.plan_of({"data.source": "embedded"}, (1, 2))
    assert plan.placements == ("pre-ln", "normformer") and plan.warmups == (0,) and plan.seeds == (1, 2)
    assert plan.base.training.steps == stability.STEPS and plan.base.layers == 12


@pytest.mark.slow
def test_the_papers_own_shape(tmp_path: Path) -> None:
    item = ITEMS["xiong2020/layer-gradients-fig3"]
    settings = plan_item(item, Asked(out=tmp_path)).settings
    config = initialization._task(Context(**{**vars(context(tmp_path)), "settings": settings})).config()
    assert (config.hidden_size, config.intermediate_size, config.num_attention_heads) == (512, 1024, 4)
    assert (config.encoder_layers, config.num_hidden_layers, config.init) == (6, 6, "xavier-normal")
