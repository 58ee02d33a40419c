"""Reports on pre-training: masked models, gradients of each layer through training, learned scales with their range."""

import json
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest

from isograd.lab.report import figures
from isograd.lab.report.pages.runs import results_table, write_report
from isograd.lab.report.runs import ArmFiles, arms_of, at_end, at_start, find_runs, stacks
from isograd.lab.report.style import shade
from tests.report.test_page import checked, edit
from tests.study.arms import called, compare_command, lines, read, runs

PLACEMENTS = ["post-ln", "pre-ln", "normformer-resscale"]


@pytest.fixture(scope="module")
def compared(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pretraining")
    more = ["--placements", *PLACEMENTS, "--seeds", "0", "1", "--jobs", "1", "model.layers=3"]
    assert called(*compare_command(text, out, *more))[0] == 0
    return out


@pytest.fixture
def study(compared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compared, tmp_path / "study"))


@pytest.fixture
def masked(study: Path) -> Path:
    """The same numbers as a masked model would have them: its tower is an encoder."""
    for folder in runs(study):
        edit(folder / "run.json", task="masked")
        rewrite(folder / "quantities.jsonl", stack="encoder")
    return study


def rewrite(path: Path, **changes: object) -> None:
    path.write_text("".join(json.dumps(row | changes) + "\n" for row in lines(path)))


def arms(out: Path) -> list[ArmFiles]:
    return arms_of(find_runs([out]))


def test_a_masked_page_shows_what_a_language_page_shows(masked: Path, compared: Path) -> None:
    page = checked(write_report(find_runs([masked]), masked))
    causal = checked(compared / "report.html")
    for title in ("Gradients over depth", "Gradients of each layer during training", "Learned coefficients"):
        assert title in page.text and title in causal.text
    assert stacks(arms(masked)) == ["encoder"] and stacks(arms(compared)) == ["decoder"]
    for mine, theirs in zip(arms(masked), arms(compared), strict=True):
        assert mine.task == "masked"
        assert mine.profile("gradient_mean_abs", "ffn", at_start, "encoder")[0] == [1, 2, 3]
        assert (
            mine.profile("gradient_mean_abs", "ffn", at_start, "decoder")[0] == []
        )  # negative control: the other tower
        for name in ("profile", "level"):
            args = ("gradient_mean_abs", "ffn") if name == "profile" else ()
            assert getattr(mine, name)(*args, at_end, "encoder") == getattr(theirs, name)(*args, at_end, "decoder")
    assert all(row["encoder_layers"] is None for row in read(masked / "results.json"))
    drawn = figures.profiles(arms(masked), "gradient_mean_abs", "")
    assert [len(axes.lines[0].get_xdata()) for axes in drawn.panels] == [3, 3]  # type: ignore[arg-type]


def test_rows_that_name_no_tower(masked: Path) -> None:
    """They are of the only tower there is."""
    before = [arm.ratio("gradient_mean_abs", "ffn", "encoder") for arm in arms(masked)]
    for folder in runs(masked):
        kept = [{k: v for k, v in row.items() if k != "stack"} for row in lines(folder / "quantities.jsonl")]
        (folder / "quantities.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert [arm.ratio("gradient_mean_abs", "ffn", "encoder") for arm in arms(masked)] == before
    assert all(x for x, _ in before) and stacks(arms(masked)) == ["encoder"]


def test_the_table_of_masked_models(masked: Path) -> None:
    table = results_table(arms(masked))
    for arm, cells in zip(arms(masked), table.lines, strict=True):
        ends = [read(run.folder / "outcome.json") for run in arm.runs]
        mean = statistics.fmean(np.exp(end["validation_loss"]) for end in ends)
        assert dict(zip(table.header, cells, strict=True))["perplexity"].startswith(f"{mean:.2f} (")


def test_histories_by_hand(compared: Path) -> None:
    """Each line of each panel once more from the rows: the mean over seeds, of this layer and no other."""
    drawn = figures.gradient_histories(arms(compared))
    assert drawn is not None and [a.get_title().partition(",")[0] for a in drawn.panels] == PLACEMENTS
    for axes, arm in zip(drawn.panels, arms(compared), strict=True):
        assert axes.get_yscale() == "log" and axes.get_ylim() == drawn.panels[0].get_ylim()
        assert [line.get_color() for line in axes.lines] == [shade(0), shade(0.5), shade(1)]
        widths = [line.get_linewidth() for line in axes.lines]
        assert widths[0] == widths[2] > widths[1]
        for layer, line in enumerate(axes.lines, start=1):
            seeds = [
                {
                    row["step"]: row["gradient_mean_abs"]
                    for row in lines(run.folder / "quantities.jsonl")
                    if (row["kind"], row["layer"]) == ("ffn", layer)
                }
                for run in arm.runs
            ]
            want = [[step, (seeds[0][step] + seeds[1][step]) / 2] for step in sorted(seeds[0])]
            assert np.asarray(line.get_xydata()) == pytest.approx(np.array(want), rel=1e-12)
    ends = [np.asarray(axes.lines[0].get_ydata()).tolist() for axes in drawn.panels]
    assert ends[0] != ends[1] != ends[2]


@pytest.mark.slow
def test_histories_where_there_is_nothing(study: Path) -> None:
    for folder in runs(study):
        rewrite(folder / "quantities.jsonl", gradient_mean_abs=None)
    assert figures.gradient_histories(arms(study)) is None
    checked(write_report(find_runs([study]), study))


def test_bands_of_learned_scales(compared: Path) -> None:
    """FFN norm, norm after attention, heads and ResScale, each from the lowest to the highest of a layer."""
    drawn = figures.coefficients(arms(compared))
    assert drawn is not None
    titles = [
        "skip, feed-forward",
        "head scale",
        "weight of the norm after attention",
        "weight of the norm inside the ffn",
    ]
    assert [axes.get_ylabel() for axes in drawn.panels] == titles
    places = [("skip", "ffn"), ("heads", "attn"), ("out", "attn"), ("mid", "ffn")]
    (arm,) = (arm for arm in arms(compared) if arm.label.startswith("normformer"))
    for axes, (name, kind) in zip(drawn.panels, places, strict=True):
        low = arm.profile(f"{name}_min", kind, at_end, "decoder")[1]
        high = arm.profile(f"{name}_max", kind, at_end, "decoder")[1]
        mean = arm.profile(name, kind, at_end, "decoder")[1]
        assert all(a < b < c for a, b, c in zip(low, mean, high, strict=True))
        (band,) = axes.collections
        drawn_ys = set(np.asarray(band.get_paths()[0].vertices)[:, 1].round(9).tolist())
        assert drawn_ys == {round(y, 9) for y in (*low, *high)}
        assert np.asarray(axes.lines[-1].get_ydata()).tolist() == mean


@pytest.mark.slow
def test_scales_of_older_runs(study: Path) -> None:
    """Without lowest and highest: the lines alone."""
    for folder in runs(study):
        rewrite(folder / "quantities.jsonl", **{f"{n}_{of}": None for n in ("skip", "heads") for of in ("min", "max")})
    drawn = figures.coefficients(arms(study))
    assert drawn is not None and len(drawn.panels[1].lines) == 2
    checked(write_report(find_runs([study]), study))


def test_coefficients_of_any_other_placement_have_a_panel(study: Path) -> None:
    """As `isograd.diagnose` writes them of a stream of one's own; a norm's weights, which all have, stay out."""
    for folder in runs(study):
        own = {f"{name}{end}": value for name in ("stream.bias", "pre") for end, value in BANDS.items()}
        rewrite(folder / "quantities.jsonl", **own)
    drawn = figures.coefficients(arms(study))
    assert drawn is not None
    labels = [axes.get_ylabel() for axes in drawn.panels]
    assert {"bias, attention", "bias, feed-forward"} <= {*labels}
    assert not any(label.startswith("pre") for label in labels)


BANDS = {"": -0.9, "_min": -1.0, "_max": -0.5}
