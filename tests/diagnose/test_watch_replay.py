"""A loop of one's own, taken back to before its break: the same numbers again, and others with a change."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isograd
from isograd.files import read_json

BREAKS_AT, STEPS = 45, 60


class Line:
    """A small regression with dropout whose rate jumps at step 45."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            *[nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(3)]
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.most = math.inf  # of the rate
        loop = isograd.OwnLoop(step=self.step, state=self.state, load=self.load)
        self.watch = isograd.watch(self.model, folder=folder, replay=loop)

    def step(self, n: int) -> Tensor:
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(n))
        for group in self.optimizer.param_groups:
            group["lr"] = min(self.most, 1e-2 if n < BREAKS_AT else 30.0)
        loss = (self.model(x) - x).square().mean()
        loss.backward()
        self.watch.step(loss, step=n)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: Any) -> None:
        self.most = math.inf
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def test_a_change_cures_and_nothing_changed_is_bit_equal(tmp_path: Path) -> None:
    line = Line(tmp_path)
    losses = [float(line.step(n)) for n in range(1, STEPS + 1)]
    assert losses[-1] > 100 * losses[BREAKS_AT - 2]
    written = (tmp_path / "metrics.jsonl").read_text()

    def lower() -> None:
        line.most = 1e-3

    rows = line.watch.replay({"lower rate": lower, "another nothing": lambda: None}, steps=25)
    was, lowered, nothing = rows
    assert was["change"] == "as it was" and was["bit_equal"] and not was["cures"]
    assert was["from"] == 41 and lowered["cures"] and not nothing["cures"]  # kept at steps 1, 21 and 41
    assert read_json(tmp_path / "replayed.json")["changes"][1]["change"] == "lower rate"
    line.watch.close()
    assert (tmp_path / "metrics.jsonl").read_text().startswith(written)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == STEPS  # the replay is none of the run


def test_other_random_numbers_are_not_bit_equal(tmp_path: Path) -> None:
    """The negative control: where a state does not hold all, it says so."""
    line = Line(tmp_path)
    for n in range(1, STEPS + 1):
        line.step(n)
    loop = line.watch.replays
    assert loop is not None
    for kept in loop.kept:
        kept.random = torch.get_rng_state()
    assert not line.watch.replay({}, steps=10)[0]["bit_equal"]


def test_without_a_loop(tmp_path: Path) -> None:
    watch = isograd.watch(Line(tmp_path).model)
    with pytest.raises(ValueError, match="keeps no states"):
        watch.replay({})
