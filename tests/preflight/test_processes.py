"""Two processes on gloo: weights that differ, gradients that are not averaged, equal data; and a healthy run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.preflight import job

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
pytestmark = pytest.mark.slow  # three processes import torch


def ran(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "docs/check"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*TORCHRUN, *words], env=environment, cwd=cwd, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("processes") / "found.json"
    done = ran(job.__file__, str(out))
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())


@pytest.mark.parametrize("case", job.CASES)
def test_what_differs_between_processes_is_named(case: str, found: Any) -> None:
    loud = {*found[case]["codes"]} & job.IN_PROCESSES
    assert loud == ({case} if case != "healthy" else set())
    assert found[case]["missed"] == []
    assert found[case]["said"].startswith("2 processes: weights equal") == (case == "healthy")


def test_from_the_command_line_one_process_speaks(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(job.example("gradients-not-averaged"))
    done = ran("-m", "isograd", "preflight", "setup.py:setup", "--no-prove", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["findings"][0]["code"] == "gradients-not-averaged", done.stderr[-2000:]
    assert done.returncode == 1  # torchrun's own, where a process ends with 1
