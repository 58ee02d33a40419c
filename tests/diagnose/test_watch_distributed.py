"""Two processes on gloo see the gradients that one sees: DDP, and FSDP2, whose gradients lie in shards."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.diagnose import watch_job

WAYS = ("ddp", "fsdp")
pytestmark = pytest.mark.slow  # tests/train/test_distributed.py holds the probe of several processes


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [*torchrun, watch_job.__file__, str(folder), *WAYS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    watch_job.train(folder / "alone", "alone")
    return folder


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("way", WAYS)
def test_each_row_is_that_of_one_process(way: str, folders: Path) -> None:
    one, two = (rows(folders / name / "quantities.jsonl") for name in ("alone", way))
    assert len(one) == len(two) == watch_job.STEPS * 6  # once, not once per process
    assert any("update_ratio" in row for row in one)
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            expected = pytest.approx(a[name], rel=1e-4) if isinstance(a[name], float) else a[name]
            assert b[name] == expected, (name, a, b)
    one, two = (rows(folders / name / "metrics.jsonl") for name in ("alone", way))
    for a, b in zip(one[:-2], two[:-2], strict=True):
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-4)
        for name in ("max_min", "first_last"):
            assert b[name] == pytest.approx(a[name], rel=1e-4)
    assert [row["grad_norm"] is None for row in two[-2:]] == [True, False]


@pytest.mark.parametrize("way", WAYS)
def test_each_process_keeps_its_batch(way: str, folders: Path) -> None:
    """The loss broke in the second process: its gradients are everybody's, and so is the alarm."""
    (warning,) = rows(folders / way / "warnings.jsonl")
    assert warning["step"] == watch_job.STEPS - 1 and warning["signal"] == "nonfinite"
    kept = [torch.load(folders / way / "nonfinite" / name)["input_ids"] for name in ("batch.pt", "batch-1.pt")]
    whole = torch.load(folders / "alone/nonfinite/batch.pt")["input_ids"]
    assert torch.equal(torch.cat(kept), whole)
