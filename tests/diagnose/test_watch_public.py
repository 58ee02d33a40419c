"""`isograd watch` on scripts as public ones are."""

from pathlib import Path

import pytest

from isograd.diagnose.watch import Watch
from isograd.diagnose.watch.loops.script import ScriptWatch, run

GRAPH = """
import torch
from torch import nn
from torch.nn import functional

class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, inputs):
        features, edges = inputs
        x = torch.sparse.mm(edges, self.first(features)).relu()
        return functional.log_softmax(torch.sparse.mm(edges, self.second(x)), 1)

torch.manual_seed(0)
labels = torch.randint(3, (60,))
features = torch.randn(60, 8) + 3 * functional.one_hot(labels, 8)
edges = (torch.eye(60) + (torch.rand(60, 60) < 0.02)).to_sparse()
model, criterion = Graph(), nn.NLLLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(20):
    optimizer.zero_grad()
    loss = criterion(model((features, edges))[:40], labels[:40])
    loss.backward()
    optimizer.step()
print(loss.item())
"""


def test_a_graph_is_one_batch_and_no_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(GRAPH)
    watching = ScriptWatch(tmp_path / "rows")
    assert run(script, [], watching) == 0
    assert watching.watch is not None and watching.watch.row["step"] == 20
    assert not watching.watch.warnings, watching.watch.warnings
    assert "unwatched" not in capsys.readouterr().err


def test_a_fault_of_the_watch_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(GRAPH)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such layout")

    monkeypatch.setattr(Watch, "step", fails)
    assert run(script, [], ScriptWatch(tmp_path / "rows")) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() and "goes on unwatched, after RuntimeError: no such layout" in printed.err
