"""Why a run ended as it did, from files that say it: each cause where its evidence is, and not without it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from isograd.files import append_rows, write_json
from isograd.lab.report.pages.explain import write_explanation
from isograd.lab.study.explain import explain_run

RUN = {
    "name": None,
    "task": "language",
    "seed": 0,
    "model": {"placement": "post-ln", "layers": 2},
    "training": {"lr": 1e-3, "warmup": 0, "steps": 100},
}
VANISHES = {"step": 40, "signal": "gradients", "layer": "layers.0", "left_at": 22, "message": "step 40: vanish"}


def written(
    folder: Path,
    losses: Sequence[float | None],
    outcome: str = "diverged",
    norms: dict[int, float] | None = None,
    rates: dict[int, float] | None = None,
    warnings: Sequence[dict[str, Any]] = (),
) -> Path:
    """The files of a run with these losses, gradients of norm 1 and a rate of 1e-3 but where it is said otherwise."""
    folder.mkdir()
    write_json(folder / "run.json", RUN)
    write_json(folder / "resolved.json", {"placement": "post-ln", "data": {"unigram_entropy": 3.0}})
    write_json(folder / "outcome.json", {"outcome": outcome, "reason": "because", "steps": len(losses)})
    rows = [
        {"step": i, "loss": loss, "lr": (rates or {}).get(i, 1e-3), "grad_norm": (norms or {}).get(i, 1.0)}
        for i, loss in enumerate(losses, 1)
    ]
    append_rows(folder / "metrics.jsonl", rows)
    append_rows(folder / "warnings.jsonl", warnings)
    quantities = [
        {"step": step, "kind": "ffn", "stack": "decoder", "layer": layer, "gradient_mean_abs": value}
        for step, values in ((1, (2.0, 1.0)), (100, (0.01, 1.0)))
        for layer, value in enumerate(values, 1)
    ]
    append_rows(folder / "quantities.jsonl", [row | {"update_ratio": 1e-3} for row in quantities])
    return folder


GOOD = [3.5 - 0.03 * i for i in range(50)]


def causes(folder: Path) -> list[str]:
    return [one["cause"] for one in explain_run(folder)["causes"]]


def test_a_spike_is_named_where_the_gradient_is(tmp_path: Path) -> None:
    found = explain_run(written(tmp_path / "spike", [*GOOD, *[6.0] * 50], norms={51: 40.0}))
    assert (
        found["began"] == 51 and "at step 51 the gradient norm was 40 times the usual" in found["causes"][0]["evidence"]
    )
    assert "training.clip=1" in found["causes"][0]["remedy"] and found["next"].startswith("isograd replay")
    assert not any("far beyond" in one for one in causes(written(tmp_path / "none", [*GOOD, *[6.0] * 50])))


def test_vanishing_gradients_and_the_layer(tmp_path: Path) -> None:
    found = explain_run(written(tmp_path / "run", [3.0] * 100, "collapsed", warnings=[VANISHES]))
    assert found["began"] == 22 and found["layer"] == "layers.0"
    assert found["verdict"] == "The run collapsed: because. It began at step 22, in layers.0."
    assert found["causes"][0]["cause"].startswith("post-ln with 2 layers does not tolerate LR 0.001 without warm-up")
    assert [(row["first"], row["last"]) for row in found["profile"]] == [(2.0, 0.01), (1.0, 1.0)]


def test_the_peak_of_the_rate(tmp_path: Path) -> None:
    rising = {i: 1e-5 * i for i in range(1, 50)}
    losses = [*GOOD, *[6.0] * 50]
    assert any("peak rate" in one for one in causes(written(tmp_path / "peak", losses, rates=rising)))
    early = {i: 1e-4 * i for i in range(1, 10)}
    assert not any("peak rate" in one for one in causes(written(tmp_path / "early", losses, rates=early)))


def test_what_a_replay_has_tried_comes_first_unless_it_was_chance(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", [3.0] * 100, "collapsed", warnings=[VANISHES])
    change = {"change": "lr 0.0003", "settings": ["training.lr=3e-4"], "control": False, "verdict": "cures"}
    content = {"changes": [change | {"finished": 3, "seeds": 3}], "by_chance": False}
    (folder / "replay").mkdir()
    write_json(folder / "replay/replay.json", content)
    first = explain_run(folder)["causes"][0]
    assert first["tested"] and first["cause"] == "the learning rate is too high"
    assert explain_run(folder)["next"].endswith("run.json training.lr=3e-4 --out " + str(tmp_path / "run-cured"))
    second = explain_run(folder)["causes"][1]
    assert "a longer warm-up" in second["remedy"] and "did not cure" not in second["evidence"]
    tried = {"change": "warm-up 100", "settings": ["training.warmup=100"], "control": False, "verdict": "does not cure"}
    write_json(folder / "replay/replay.json", content | {"changes": [*content["changes"], tried]})
    second = explain_run(folder)["causes"][1]
    assert "warm-up" not in second["remedy"] and "warm-up 100 did not cure it" in second["evidence"]
    write_json(folder / "replay/replay.json", content | {"by_chance": True})
    assert not explain_run(folder)["causes"][0]["tested"]


@pytest.mark.parametrize("outcome", ["finished", "undecided"])
def test_a_run_that_did_not_break_has_no_cause(outcome: str, tmp_path: Path) -> None:
    found = explain_run(written(tmp_path / "run", [*GOOD, *[2.0] * 50], outcome))
    assert found["causes"] == [] and found["began"] is None and "replay" not in found["next"]


def test_what_check_predicted_is_no_second_cause_of_vanishing_gradients(tmp_path: Path) -> None:
    finding = {"code": "collapse-predicted", "severity": "error", "address": "", "measured": 0.99}
    finding |= {"message": "it will collapse", "remedy": "warm up", "page": "p"}
    found = explain_run(written(tmp_path / "run", [3.0] * 100, "collapsed", warnings=[VANISHES]), [finding])
    assert (
        len(found["causes"]) == 1 and "predicted it before the first step (p = 0.99)" in found["causes"][0]["evidence"]
    )


def test_findings_are_causes_and_the_page_says_all(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", [*GOOD, None], "diverged")
    finding = {"code": "collapse-predicted", "severity": "warning", "address": "", "measured": 1.0}
    content = explain_run(folder, [finding | {"message": "it will collapse", "remedy": "warm up", "page": "p"}])
    assert content["causes"][-1]["cause"] == "it will collapse" and content["began"] == 51
    page = write_explanation(content, tmp_path / "out").read_text()
    assert "The run diverged" in page and "it will collapse" in page and "isograd replay" in page
