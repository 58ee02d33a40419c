"""What `isograd.watch` wrote opens in `isograd report`."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import isograd
from isograd.cli import main
from isograd.files import write_json


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """A loop whose optimizer never steps."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(3)])
    watch = isograd.watch(model, folder=tmp_path / "mine")
    for _ in range(13):
        model.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        watch.step(loss)
    watch.close()
    return tmp_path / "mine"


def test_a_watched_loop(watched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(watched)]) == 0
    said = capsys.readouterr().out
    assert "No weight has moved" in said.replace("Step 12: n", "N") and "-> optimizer.step() is not called" in said
    page = (watched / "report/report.html").read_text()
    assert "no weight has moved in 11 readings" in page and (watched / "report/layers.svg").exists()


def test_watched_loops_side_by_side(watched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One page of several loops, named or in a folder, and of runs beside them; each keeps its own."""
    other, run = watched.parent / "other", watched.parent / "run"
    shutil.copytree(watched, other)
    (other / "warnings.jsonl").unlink()
    run.mkdir()
    shutil.copyfile(watched / "metrics.jsonl", run / "metrics.jsonl")
    write_json(run / "run.json", {"model": {"placement": "pre-ln"}})
    for words, names in (([watched.parent], ["mine", "other", "run"]), ([other, watched], ["other", "mine"])):
        assert main(["report", *map(str, words), "--out", str(watched.parent / "page"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert sorted(row["loop"] for row in found["loops"]) == sorted(names)
        warnings = {row["loop"]: row["first_warning"] for row in found["loops"]}
        assert "no weight has moved" in warnings["mine"] and warnings["other"] == "none"
        page = Path(found["report"]).read_text()
        assert f"1 of {len(names)} have a warning" in page and all(name in page for name in names)
    assert (watched.parent / "page/loss.svg").exists()
    assert main(["report", str(watched), str(other)]) == 0
    assert "13 steps, lowest loss" in capsys.readouterr().out
    assert main(["report", str(watched.parent), "--figure", "loss"]) == 2
    assert "leave the watched loops out" in capsys.readouterr().err


def test_without_warnings(watched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (watched / "warnings.jsonl").unlink()
    assert main(["report", str(watched)]) == 0
    assert "13 steps, and nothing was reported." in capsys.readouterr().out


def test_what_was_replayed(watched: Path) -> None:
    from isograd.lab.report.pages.watch import replayed

    assert not replayed(watched)
    row = {"change": "lower rate", "from": 21, "steps": 40, "loss": 1.5, "verdict": "cures"}
    write_json(
        watched / "replayed.json", {"changes": [row, row | {"change": "as it was", "loss": None, "verdict": "fails"}]}
    )
    table = replayed(watched)
    assert table is not None
    assert table.lines[0] == ("lower rate", "21", "40", "1.500", "cures") and table.lines[1][3:] == (
        "not finite",
        "fails",
    )
