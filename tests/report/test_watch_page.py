"""What `isograd.watch` wrote opens in `isograd report`."""

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
