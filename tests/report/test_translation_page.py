"""Reports on translations: validation curves, BLEU, towers apart; every number once more from the files."""

import csv
import json
import math
import re
import shutil
import statistics
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isograd.lab.cli.compare import print_arms
from isograd.lab.report import figures
from isograd.lab.report.pages.runs import headline, results_table, write_report
from isograd.lab.report.runs import ArmFiles, arms_of, at_end, at_start
from isograd.lab.study.compare import compare, plan
from tests.report.test_page import checked, edit
from tests.study.arms import lines, read
from tests.train.recipes import small_translation

ARMS = [["post-ln", "training.warmup=4"], ["pre-ln"], ["admin", "training.lr=5e-3"]]
NAMES = ["Post-LN, warm-up 4, lr 1e-2", "Pre-LN, no warm-up, lr 1e-2", "ADMIN, no warm-up, lr 5e-3"]  # on a page
LABELS = ["post-ln, warm-up 4, lr 0.01", "pre-ln, no warm-up, lr 0.01", "admin, no warm-up, lr 0.005"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arms with two seeds, each with two decoder layers and three encoder layers."""
    out = tmp_path_factory.mktemp("translations")
    arms = plan(out, small_translation(model={"encoder_layers": 3}), ARMS, [0, 1])
    compare(arms, lambda *_: None, lambda *_: None, jobs=1)
    folders = [a.folder for a in arms]
    (out / "order.json").write_text(json.dumps([f.name for f in folders]))
    write_report(folders, out)
    return out


@pytest.fixture
def study(compared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compared, tmp_path / "study"))


def folders(out: Path) -> list[Path]:
    return [out / name for name in read(out / "order.json")]


def arms(out: Path) -> list[ArmFiles]:
    return arms_of(folders(out))


def rewritten(path: Path, **changes: Any) -> None:
    """Every row with some values replaced; None removes the row's key."""
    found = [{k: v for k, v in (row | changes).items() if v is not None} for row in lines(path)]
    path.write_text("".join(json.dumps(row) + "\n" for row in found))


def test_the_page(compared: Path) -> None:
    page = checked(compared / "report.html")
    assert [a.label for a in arms(compared)] == LABELS
    assert all(page.text.count(label) >= 2 for label in NAMES)  # table and figures
    built = read(folders(compared)[0] / "resolved.json")["data"]
    assert f"{built['pairs']['kept']:,} pairs en → de, vocabulary {built['vocab_size']} (char)" in page.text
    assert "3+2 layers (encoder + decoder), width 16, 2 heads; batches of 300 tokens" in page.text
    assert "adam at LR 0.01 / 0.005, 9 steps; seeds 0, 1" in page.text
    for words in (
        "Validation Held-out loss",
        "label smoothing included",
        "encoder, at the first step",
        "decoder layer",
    ):
        assert words in page.text
    for key in ("longest 40", "beam 2", "label_smoothing 0.1", "lr 0.01 / 0.005"):
        assert key in page.text
    for key in ("sequences of", "valid_sequences", "level char", "batch 16"):  # of a language model
        assert key not in page.text


def test_the_table_against_the_outcomes(compared: Path) -> None:
    table = results_table(arms(compared))
    for arm, cells in zip(arms(compared), table.lines, strict=True):
        one, two = (read(run.folder / "outcome.json") for run in arm.runs)
        of = dict(zip(table.header, cells, strict=True))
        for name, key, digits in (("validation loss", "validation_loss", 3), ("perplexity", "perplexity", 2),
                                  ("BLEU", "bleu", 1), ("training loss", "final_loss", 3)):  # fmt: skip
            low, high = sorted((one[key], two[key]))
            assert of[name] == f"{(low + high) / 2:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
        assert {word.strip("12 ") for word in of["outcome"].split(",")} == {one["outcome"], two["outcome"]}
        assert math.exp(one["validation_loss"]) == pytest.approx(one["perplexity"])


def test_validation_curves_by_hand(compared: Path) -> None:
    """Mean, lowest and highest over seeds at each validation, and the epoch that it came at."""
    for arm in arms(compared):
        one, two = (lines(run.folder / "validation.jsonl") for run in arm.runs)
        assert [row["step"] for row in one] == [3, 6, 9]
        for name in ("loss", "bleu"):
            x, mean, low, high = arm.validation(name)
            assert x == pytest.approx([(a["epoch"] + b["epoch"]) / 2 for a, b in zip(one, two, strict=True)])
            for i, (a, b) in enumerate(zip(one, two, strict=True)):
                assert mean[i] == pytest.approx((a[name] + b[name]) / 2, rel=1e-12)
                assert (low[i], high[i]) == (min(a[name], b[name]), max(a[name], b[name]))
    assert arms(compared)[0].validation("loss") != arms(compared)[1].validation("loss")


def test_what_the_figure_draws(compared: Path) -> None:
    drawn = figures.validation_curves(arms(compared), None)
    assert drawn is not None
    assert [axes.get_ylabel() for axes in drawn.panels] == ["validation loss (nats per token)", "validation BLEU"]
    for axes, name in zip(drawn.panels, ("loss", "bleu"), strict=True):
        curves, stars = axes.lines[:3], axes.lines[3:]
        assert [line.get_label() for line in curves] == [
            a.label if a.outcome == "finished" else f"{a.label}: {a.outcome}" for a in arms(compared)
        ]
        for star, arm in zip(stars, arms(compared), strict=True):  # the last weights are kept, at the end of the curve
            x, mean, _, _ = arm.validation(name)
            assert star.get_xydata().tolist() == [[pytest.approx(x[-1]), pytest.approx(mean[-1])]]  # type: ignore[union-attr]
        for line, band, arm in zip(curves, axes.collections, arms(compared), strict=True):
            x, mean, low, high = arm.validation(name)
            assert line.get_xydata().tolist() == [[a, b] for a, b in zip(x, mean, strict=True)]  # type: ignore[union-attr]
            ys = np.asarray(band.get_paths()[0].vertices)[:, 1].round(9).tolist()
            assert set(ys) == {round(y, 9) for y in (*low, *high)}


def test_a_seed_that_stops_early_and_one_that_diverges(study: Path) -> None:
    """The others are drawn on; a loss that is not finite is no point."""
    first, second = folders(study)[0], folders(study)[3]
    kept = lines(first / "validation.jsonl")
    (second / "validation.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [kept[0], kept[1] | {"loss": None, "bleu": None}])
    )
    arm = arms(study)[0]
    assert len(arm.runs) == 2
    x, mean, low, high = arm.validation("loss")
    assert mean == pytest.approx([row["loss"] for row in kept])
    assert low == high and x == [row["epoch"] for row in kept]


def test_without_epochs_steps(study: Path) -> None:
    for folder in folders(study):
        rewritten(folder / "validation.jsonl", epoch=None)
    assert arms(study)[0].validation("loss")[0] == [3, 6, 9]
    drawn = figures.validation_curves(arms(study), None)
    assert drawn is not None and drawn.panels[0].get_xlabel() == "step"


@pytest.mark.slow
def test_without_bleu_one_panel(study: Path) -> None:
    for folder in folders(study):
        rewritten(folder / "validation.jsonl", bleu=None)
        edit(folder / "outcome.json", bleu=None)
    drawn = figures.validation_curves(arms(study), None)
    assert drawn is not None and len(drawn.panels) == 1
    checked(write_report(folders(study), study))
    assert "BLEU" not in headline(arms(study))


def test_towers_are_not_mixed(compared: Path) -> None:
    """A profile of each tower by hand; with the towers taken together other numbers would come out."""
    for arm in arms(compared):
        for tower, layers in (("encoder", [1, 2, 3]), ("decoder", [1, 2])):
            found = arm.profile("gradient_mean_abs", "ffn", at_start, tower)
            values: dict[int, list[float]] = {}
            mixed: dict[int, list[float]] = {}
            for run in arm.runs:
                for row in lines(run.folder / "quantities.jsonl"):
                    if row["step"] == 1 and row["kind"] == "ffn":
                        mixed.setdefault(row["layer"], []).append(row["gradient_mean_abs"])
                        if row["address"].startswith(tower):
                            values.setdefault(row["layer"], []).append(row["gradient_mean_abs"])
            assert found[0] == layers == sorted(values)
            assert found[1] == pytest.approx([sum(values[n]) / len(values[n]) for n in layers], rel=1e-12)
            assert found[1][0] != pytest.approx(statistics.fmean(mixed[1]), rel=1e-3)
            steps, ratios = arm.ratio("gradient_mean_abs", "ffn", tower)
            assert steps[0] == 1
            by_seed = [values[1][i] / values[layers[-1]][i] for i in range(2)]
            assert ratios[0] == pytest.approx(statistics.fmean(by_seed), rel=1e-12)
            assert arm.level(at_start, tower) == pytest.approx(by_seed, rel=1e-12)
        assert arm.level(at_start, "decoder") == pytest.approx(arm.values("gradient_ratio_start"), rel=1e-9)
        assert arm.level(at_end, "decoder") == pytest.approx(arm.values("gradient_ratio_end"), rel=1e-9)


def test_panels_of_stacks(compared: Path) -> None:
    drawn = figures.profiles(arms(compared), "gradient_mean_abs", "")
    assert [axes.get_title().partition(",")[0] for axes in drawn.panels] == ["encoder"] * 2 + ["decoder"] * 2
    assert [len(axes.lines[0].get_xdata()) for axes in drawn.panels] == [3, 3, 2, 2]  # type: ignore[arg-type]
    assert [axes.get_title() for axes in figures.ratio_curves(arms(compared)).panels] == ["encoder", "decoder"]
    learned = figures.coefficients(arms(compared))
    assert learned is not None
    assert [(a.get_xlabel(), a.get_ylabel()) for a in learned.panels] == [
        ("encoder layer", "skip, attention"),
        ("decoder layer", "skip, attention"),
        ("encoder layer", "skip, feed-forward"),
        ("decoder layer", "skip, feed-forward"),
        ("decoder layer", "skip, cross-attention"),
    ]


@pytest.mark.slow
def test_figures_as_files(compared: Path) -> None:
    """Text is text, no ink depends on a page; the same bytes again."""
    text = (compared / "validation.svg").read_text()
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg") and root.findall(".//{*}text")
    assert "currentColor" not in text and "fill: #ffffff" in text
    assert (compared / "validation.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert not (compared / "loss.svg").exists()
    before = {p: p.read_bytes() for p in compared.glob("validation.*")}
    write_report(folders(compared), compared)
    assert {p: p.read_bytes() for p in compared.glob("validation.*")} == before


def test_results(compared: Path) -> None:
    results = read(compared / "results.json")
    with (compared / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [r["arm"] for r in results] == [label for label in LABELS for _ in range(2)]
    for result, row in zip(results, table, strict=True):
        assert (result["task"], result["encoder_layers"], result["layers"]) == ("translation", 3, 2)
        assert (result["kept_weights"], result["kept_steps"]) == ("last", [9]) and row["bleu"] == str(result["bleu"])
        assert row["perplexity"] == str(result["perplexity"])


def test_the_headline(compared: Path, study: Path) -> None:
    ends = [read(f / "outcome.json") for f in folders(study)]
    losses, scores = [e["validation_loss"] for e in ends], [e["bleu"] for e in ends]
    for folder in folders(study):
        edit(folder / "outcome.json", outcome="finished")
    text = headline(arms(study))
    assert text.startswith(f"3 of 3 arms trained (validation losses {min(losses):.3f} to")
    assert f"{max(losses):.3f} nats, BLEU {min(scores):.1f} to {max(scores):.1f})." in text
    for folder in (folders(study)[0], folders(study)[3]):
        edit(folder / "outcome.json", outcome="diverged", validation_loss=None, bleu=None, perplexity=None)
    assert headline(arms(study)).startswith("2 of 3 arms trained (validation losses ")
    drawn = figures.validation_curves(arms(study), None)
    assert drawn is not None and drawn.panels[0].lines[0].get_label() == f"{LABELS[0]}: diverged"
    checked(write_report(folders(study), study))


def test_many_arms_are_counted(study: Path) -> None:
    made = []
    for i in range(8):
        for folder in (folders(study)[1], folders(study)[4]):
            copy = Path(shutil.copytree(folder, study / f"{i}-{folder.name}"))
            run = read(copy / "run.json")
            edit(copy / "run.json", training=run["training"] | {"lr": 0.001 * (i + 1)})
            edit(copy / "outcome.json", outcome="collapsed" if (i, run["seed"]) == (7, 1) else "finished")
            made.append(copy)
    text = headline(arms_of(made))
    assert text.startswith("8 of 8 arms trained (validation losses")
    assert text.endswith("; pre-ln, no warm-up, lr 0.008: 1 finished, 1 collapsed.")


@pytest.mark.parametrize(
    "gone",
    [
        "validation.jsonl",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("quantities.jsonl", "outcome.json", "resolved.json")),
    ],
)
@pytest.mark.parametrize("runs", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_files_that_are_not_there(study: Path, gone: str, runs: int) -> None:
    """Of one run, and of all."""
    for folder in folders(study)[:runs]:
        (folder / gone).unlink(missing_ok=True)
    checked(write_report(folders(study), study))
    if gone == "validation.jsonl":
        assert (study / "loss.svg").exists()


def test_in_a_terminal(compared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {}
    for width in (200, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        print_arms(arms(compared), compared / "report.html")
        shown[width] = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", shown[200][0].strip())[:6] == ["placement", "outcome", "valid", "ppl", "BLEU", "weights"]
    assert {"outcome", "valid", "BLEU"} <= set(shown[80][0].split())
    assert "train" not in shown[80][0].split()
    for line, label in zip(shown[200][1:4], LABELS, strict=True):
        assert line.startswith(label)
