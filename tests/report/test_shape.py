"""One figure for a paper: which arms and panel, without colour, its size and font; the points that it was drawn of."""

import csv
import json
import re
from pathlib import Path

import pytest
from matplotlib.text import Text

from isograd.errors import UserError
from isograd.files import locked
from isograd.lab.report.pages.runs import draw, warnings
from isograd.lab.report.runs import arms_of, find_runs, presented, read_run
from tests.report.written import curve, put, ramp, written
from tests.study.arms import called, refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two arms of two seeds, four layers; the mean |gradient| is arm * layer * step * seed in 1e-4."""
    for arm, (placement, lr) in enumerate((("pre-ln", 5e-3), ("normformer", 1e-3)), start=1):
        for seed in (1, 2):
            run = written(
                tmp_path / "runs",
                placement,
                seed,
                outcome={"final_loss": 2.0},
                metrics=ramp([3.0, 2.5, 2.0] * 4),
                validation=curve(2.5, 2.2),
                lr=lr,
            )
            rows = [
                {"step": step, "kind": "ffn", "stack": "decoder", "layer": layer}
                | {"gradient_mean_abs": 1e-4 * arm * layer * seed * (10 if step == 1 else 1), "residual_rms": 1.0}
                for step in (1, 60, 100)
                for layer in (1, 2, 3, 4)
            ]
            (run / "quantities.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "runs"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_points_of_a_figure(folder: Path, tmp_path: Path) -> None:
    """Mean, lowest and highest by hand; both arms, both panels."""
    out = tmp_path / "out"
    code, said, err = called("report", str(folder), "--out", str(out), "--figure", "gradients", "--format", "svg")
    assert (code, err) == (0, "4 runs: drawing\n") and said == f"figure: {out}/gradients.svg\n"
    assert {path.name for path in out.iterdir()} == {"gradients.svg", "gradients.csv"}
    rows = rows_of(out / "gradients.csv")
    assert list(rows[0]) == ["arm", "panel", "layer", "mean", "low", "high"] and len(rows) == 2 * 2 * 4
    for row in rows:
        arm = 1 if row["arm"] == "Pre-LN, lr 5e-3" else 2
        unit = 1e-4 * arm * float(row["layer"]) * (10 if row["panel"] == "at the first step" else 1)
        assert [float(row[name]) for name in ("mean", "low", "high")] == pytest.approx([1.5 * unit, unit, 2 * unit])


def test_one_panel_of_some_arms(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--figure", "gradients:last", "--arms", "normformer", "--label", "normformer=Ours", "--format", "pdf,svg")
    size = ("--style", "gray", "--width", "84mm", "--height", "2in", "--font", "serif")
    code, said, _ = called("report", str(folder), "--out", str(out), *words, *size)
    assert code == 0 and said.splitlines() == [f"figure: {out}/gradients-last.{form}" for form in ("pdf", "svg")]
    assert {(row["arm"], row["panel"]) for row in rows_of(out / "gradients-last.csv")} == {
        ("Ours", "mean of the last 50 steps")
    }
    source = (out / "gradients-last.svg").read_text()
    width, height = (float(re.findall(rf'<svg[^>]* {side}="([\d.]+)pt"', source)[0]) for side in ("width", "height"))
    assert (width, height) == (pytest.approx(84 / 25.4 * 72, abs=0.01), pytest.approx(144))
    assert "first step" not in source and ">Ours<" in source and "layer" in source and "serif" in source


def test_gray_has_no_colour_and_tells_arms_apart(folder: Path) -> None:
    def looks(style: str) -> list[tuple[str, str, str]]:
        (axes,) = draw(folder, "gradients:2", style=style).axes
        return [(str(line.get_color()), str(line.get_linestyle()), str(line.get_marker())) for line in axes.lines]

    gray, colour = looks("gray"), looks("paper")
    assert len({marker for _, _, marker in gray}) == 2 and len({dash for _, dash, _ in gray}) == 2
    assert all(len({tone[i : i + 2] for i in (1, 3, 5)}) == 1 for tone, _, _ in gray)
    assert not all(len({tone[i : i + 2] for i in (1, 3, 5)}) == 1 for tone, _, _ in colour)  # the negative control


def test_of_a_column(folder: Path) -> None:
    """Panels beside each other, each with its own scale; exponents of 6 points, decades or 1, 2, 5."""
    figure = draw(folder, "gradients", width=3.3)
    figure.canvas.draw()
    first, last = figure.axes
    assert first.get_position().y0 == pytest.approx(last.get_position().y0, abs=0.02)
    assert first.get_ylim() != last.get_ylim() and figure.get_figheight() < 3
    for axes in (first, last):
        shown = [one for one in axes.get_yticklabels(which="both") if visible(one)]
        assert shown and all(0.7 * one.get_fontsize() >= 6 for one in shown)
        digits = {re.match(r"\$\\mathdefault\{(?:(\d)\\times)?", one.get_text())[1] for one in shown}  # type: ignore[index]
        assert digits <= {None, "2", "5"}
    wide = draw(folder, "gradients", style="screen")
    assert wide.axes[0].get_ylim() == wide.axes[1].get_ylim()


def visible(one: Text) -> bool:
    return bool(one.get_text()) and "mathdefault{}" not in one.get_text()


def test_histories_have_one_scale(folder: Path, tmp_path: Path) -> None:
    figure = draw(folder, "histories", width=3.3)
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}) == 1
    assert [axes.get_title() for axes in figure.axes] == ["Pre-LN, lr 5e-3", "NormFormer, lr 1e-3"]
    assert called("report", str(folder), "--out", str(tmp_path), "--figure", "histories", "--format", "svg")[0] == 0
    rows = rows_of(tmp_path / "histories.csv")
    assert {(row["arm"], row["layer"]) for row in rows} == {
        (a.label, f"{i}") for a in arms(folder) for i in range(1, 5)
    }


def arms(folder: Path) -> list[object]:
    return list(presented(arms_of(find_runs([folder]))))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--figure", "gradient"), "no figure 'gradient'; these runs have "),
        (("--figure", "gradients:middle"), "there are 1: at the first step; 2: mean of the last 50 steps"),
        (("--arms", "post-ln"), "no arm has the name 'post-ln'; there are "),
        (("--label", "pre-ln"), 'expected ARM=TEXT, such as "pre-ln=Pre-LN (ours)"'),
        (("--font", "No Such Font"), "the font 'No Such Font' is not installed"),
        (("--width", "3.3ins"), "expected inches such as 3.3, or 3.3in, 84mm, 8.4cm; got '3.3ins'"),
        (("--width", "84"), "expected 1 to 40 inches"),
        (("--format", "pdf,eps"), "expected svg, png, pdf or several, as in pdf,svg; got 'eps'"),
    ],
)
def test_refused(folder: Path, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    code, out, err = called("report", str(folder), "--out", str(tmp_path / "out"), *words)
    assert (code, out) == (2, "") and said in err.splitlines()[-1]


def test_an_easier_validation_text_is_named(tmp_path: Path) -> None:
    for name, last, changes in (("easy", 1.7, {}), ("like", 1.9, {}), ("smooth", 1.7, {"label_smoothing": 0.1})):
        ends = {"final_loss": 2.0, "validation_loss": last}
        run = written(tmp_path / name, "pre-ln", outcome=ends, **changes)  # type: ignore[arg-type]
        said = " ".join(warnings(arms_of([run])))
        assert ("validation text is easier" in said) == (name == "easy")


def test_a_run_that_is_being_trained(tmp_path: Path) -> None:
    run = written(tmp_path, "pre-ln")
    assert read_run(run).outcome == {"outcome": "interrupted"}
    with locked(run):
        assert read_run(run).outcome == {"outcome": "running"}


def test_no_such_figure_in_python(folder: Path) -> None:
    with pytest.raises(UserError, match="no figure 'scores'; these runs have loss, equal-loss, gradients, "):
        draw(folder, "scores")


def test_of_a_study_there_is_its_page_alone(tmp_path: Path) -> None:
    put(tmp_path / "study.json", {})
    assert "--figure is for runs" in refused("report", str(tmp_path), "--figure", "map")
