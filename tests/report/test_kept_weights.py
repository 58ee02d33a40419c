"""Which weights a run's numbers are of: console, headline, table and figure say the same as outcome.json."""

import re
from pathlib import Path
from typing import Any

import pytest

from isograd.lab.report import figures, kept_weights
from isograd.lab.report.pages.runs import results_table, warnings, write_report
from isograd.lab.report.runs import arms_of
from tests.report.test_page import checked
from tests.report.written import curve, put, written
from tests.study.arms import called, lines, read
from tests.train.recipes import pairs_files

TRAINED = {"average": {"lr": 0.5, "steps": 24, "valid_every": 2}, "last": {"steps": 9, "valid_every": 3}}


def trained(folder: Path, better: str, select: str) -> tuple[dict[str, Any], str]:
    """Outcome and console of a small translation whose weights `better` are the best on validation."""
    t = {"lr": 0.01, "tokens": 300, "average": 3, "select": select, "probe_every": 0, **TRAINED[better]}
    settings = {
        "model": {"layers": 1, "encoder_layers": 1, "width": 16, "heads": 2, "share_embeddings": True},
        "pairs": {"train": f"[{pairs_files()}]", "source": "en", "target": "de", "vocabulary": "char", "longest": 40},
        "search": {"beam": 2, "pairs": 4, "extra": 5},
        "training": t,
    }
    keys = [f"{section}.{key}={value}" for section, of in settings.items() for key, value in of.items()]
    code, out, err = called("train", "task=translation", *keys, "--out", str(folder))
    assert code == 0, err
    return read(folder / "outcome.json"), out


@pytest.mark.parametrize(
    ("better", "select"),
    [("average", "auto"), *(pytest.param("last", select, marks=pytest.mark.slow) for select in ("auto", "average"))],
)
def test_every_output_says_the_same(better: str, select: str, tmp_path: Path) -> None:
    got, out = trained(tmp_path / "run", better, select)
    name = better if select == "auto" else select
    assert got["kept_weights"] == name
    loss, bleu = got["validation_loss"], got["bleu"]
    first, second, *_ = out.splitlines()
    assert f"validation loss {loss:.4f}, validation BLEU {bleu:.1f}" in first
    assert second.startswith(f"weights kept: {name} ")
    other = "last" if name == "average" else "average"
    assert f"validation loss {got['candidates'][other]['loss']:.4f}" in out
    worse = name != better
    assert ("last is better on validation than what was kept" in out) == worse
    (arm,) = arms_of([tmp_path / "run"])
    cells = dict(zip(results_table([arm]).header, results_table([arm]).lines[0], strict=True))
    assert (cells["weights"], cells["validation loss"], cells["BLEU"]) == (name, f"{loss:.3f}", f"{bleu:.1f}")
    said = " ".join(warnings([arm]))
    assert ("is better, with validation loss" in said) == worse
    drawn = figures.validation_curves([arm], None)
    assert drawn is not None
    for axes, value in zip(drawn.panels, (loss, bleu), strict=True):
        *_, star = axes.lines
        assert star.get_ydata() == [pytest.approx(value)]  # type: ignore[comparison-overlap]
        low, high = axes.get_ylim()
        assert low <= value <= high
    last = lines(tmp_path / "run/validation.jsonl")[-1]
    assert (loss == last["loss"]) == (name == "last")
    page = checked(write_report([tmp_path / "run"], tmp_path)).text
    assert said.replace("pre-ln, no warm-up", "Pre-LN") in re.sub(r"\s+", " ", page)


CANDIDATES = {
    "last": {"steps": [30], "loss": 2.0, "bleu": 30.0},
    "best": {"steps": [20], "loss": 1.9, "bleu": 31.0},
    "average": {"steps": [10, 20, 30], "loss": 2.2, "bleu": 29.0},
}


def outcome(of: str) -> dict[str, Any]:
    numbers = {"validation_loss": CANDIDATES[of]["loss"], "bleu": CANDIDATES[of]["bleu"], "final_loss": 2.0}
    return numbers | {"kept_weights": of, "kept_steps": CANDIDATES[of]["steps"], "candidates": CANDIDATES}


def test_the_words_of_a_run() -> None:
    assert list(kept_weights.lines(outcome("average"))) == [
        "weights kept: average of 3 (steps 10 to 30)",
        "not kept: last (step 30), validation loss 2.0000, BLEU 30.0",
        "not kept: best (step 20), validation loss 1.9000, BLEU 31.0",
        "best is better on validation than what was kept (training.select=auto keeps the better)",
    ]
    assert kept_weights.better(outcome("best")) is None and kept_weights.better(outcome("last")) == "best"
    for unknown in ({}, {"kept_steps": [3]}, {"kept_weights": None, "candidates": None}):
        assert list(kept_weights.lines(unknown)) == [] and kept_weights.better(unknown) is None


def test_several_runs(tmp_path: Path) -> None:
    """Seeds that keep different weights are counted, and each run whose weights are not its best is named."""
    made = [
        written(tmp_path, "pre-ln", seed, outcome=outcome(of), validation=curve(3.0, 1.9, 2.0))
        for seed, of in enumerate(("average", "best", "best"))
    ]
    (arm,) = arms_of(made)
    assert kept_weights.cell(arm) == "best 2, average 1"
    (worse,) = kept_weights.warnings([arm])
    assert worse == (
        "pre-ln, no warm-up, seed 0: kept is the average, but best (step 20) is better,"
        " with validation loss 1.9000, BLEU 31.0."
    )
    assert worse in warnings([arm])  # also of a language model
    three = [written(tmp_path / "three", "admin", seed, outcome=outcome("average")) for seed in range(3)]
    assert kept_weights.warnings(arms_of([*made, *three])) == [
        "4 of 6 runs keep weights that are not their best on validation, by up to 0.300 nats"
        " (candidates in results.json)."
    ]
    assert kept_weights.point(arm, "loss") == (pytest.approx((30 + 20 + 20) / 3), pytest.approx((2.2 + 1.9 + 1.9) / 3))


def test_runs_that_do_not_say(tmp_path: Path) -> None:
    """As they were written before, or damaged."""
    for i, odd in enumerate(({}, {"kept_steps": [[1]]}, {"kept_weights": "last", "candidates": {"last": None}})):
        run = written(tmp_path / str(i), "pre-ln", outcome={"validation_loss": 2.0} | odd, validation=curve(3.0, 2.0))
        put(run / "outcome.json", {"outcome": "finished", "validation_loss": 2.0} | odd)
        (arm,) = arms_of([run])
        assert kept_weights.point(arm, "loss") is None and kept_weights.warnings([arm]) == []
