"""Findings as a workflow's commands and as SARIF: where they point to, and whether the standard's schema takes them."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.study.arms import called, refused

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads(gzip.decompress((ROOT / "tests/data/sarif-2.1.0.json.gz").read_bytes()))
MODULE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.spare = nn.Parameter(torch.ones(32))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def stock():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    made = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    made.register_parameter("spare", nn.Parameter(torch.ones(32)))
    return made


def fine():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    torch.manual_seed(0)
    return nn.TransformerEncoder(layer, 1, norm=nn.LayerNorm(32), enable_nested_tensor=False)


def batch():
    return (torch.randn(2, 8, 32),)
"""
LINES = MODULE.splitlines()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "models_here.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    yield tmp_path
    sys.modules.pop("models_here", None)


def line_of(text: str) -> int:
    return LINES.index(text) + 1


def commands(out: str) -> list[tuple[str, dict[str, str], str]]:
    found = re.findall(r"^::(\w+) (.*?)::(.*)$", out, re.MULTILINE)
    return [(kind, dict(part.split("=", 1) for part in said.split(",")), text) for kind, said, text in found]


def test_commands_of_a_workflow(here: Path) -> None:
    code, out, _ = called("check", "models_here:Stack", "--batch", "models_here:batch", "--format", "github")
    assert code == 1
    found = {one[1]["title"].removeprefix("isograd%3A "): one for one in commands(out)}
    kind, where, text = found["parameter-unused"]
    assert kind == "error" and where["file"] == "models_here.py" and ";" in text
    assert int(where["line"]) == line_of("        self.spare = nn.Parameter(torch.ones(32))")
    kind, where, _ = found["final-norm-missing"]  # a suspicion that was not tried
    assert kind == "warning" and LINES[int(where["line"]) - 1].strip() == "x = block(x)"


def test_a_model_of_stock_parts_is_found_where_it_is_made(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here.parent))  # a model in a folder of the repository
    _, out, _ = called("check", "models_here:stock", "--batch", "models_here:batch", "--format", "github")
    where = [where for _, where, _ in commands(out)]
    assert where and {one["file"] for one in where} == {f"{here.name}/models_here.py"}
    assert {int(one["line"]) for one in where} == {line_of("def stock():")}


def test_sarif_is_what_the_standard_says(here: Path) -> None:
    code, out, _ = called("check", "models_here:Stack", "--batch", "models_here:batch", "--format", "sarif")
    log = json.loads(out)
    assert code == 1
    Draft7Validator(SCHEMA).validate(log)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert run["results"] and len(rules) == len(set(rules))
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "models_here.py"
        assert LINES[place["region"]["startLine"] - 1].strip().startswith(("self.spare", "x = block(x)"))
        assert result["properties"]["kind"] in ("fact", "suspicion")


def test_the_schema_refuses_what_is_wrong() -> None:
    """The negative control."""
    for wrong in ({"version": "2.1.0"}, {"version": "2.0.0", "runs": []}, {"version": "2.1.0", "runs": [{}]}):
        assert not Draft7Validator(SCHEMA).is_valid(wrong), wrong


def test_both_of_one_check(here: Path) -> None:
    asked = ("check", "models_here:Stack", "--batch", "models_here:batch")
    code, out, _ = called(*asked, "--format", "github", "--sarif", "found.sarif")
    written = json.loads((here / "found.sarif").read_text())
    assert code == 1 and commands(out)
    assert written == json.loads(called(*asked, "--format", "sarif")[1])
    assert "--sarif nowhere/found.sarif: not a file" in refused(*asked, "--sarif", "nowhere/found.sarif")


def test_one_way_of_writing_at_a_time(here: Path) -> None:
    assert "--json and --format sarif: give one of them" in refused(
        "check", "models_here:fine", "--json", "--format", "sarif"
    )


def run_step(step: dict[str, Any], inputs: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A step of the composite action as a runner runs it."""
    inserted = re.compile(r"\$\{\{ inputs\.([\w-]+) \}\}")
    given = {name: inserted.sub(lambda found: inputs[found[1]], value) for name, value in step["env"].items()}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **given}
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_composite_action(here: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    inputs = {name: one.get("default", "") for name, one in action["inputs"].items()}
    inputs |= {"python": sys.executable, "sarif": "found.sarif", "arguments": "--batch models_here:batch"}
    _, check = action["runs"]["steps"]
    done = run_step(check, inputs | {"model": "models_here:stock"}, here)
    assert done.returncode == 1 and "::error file=models_here.py" in done.stdout, done.stderr
    Draft7Validator(SCHEMA).validate(json.loads((here / "found.sarif").read_text()))
    done = run_step(check, inputs | {"model": "models_here:nowhere"}, here)
    *_, said = done.stderr.splitlines()
    assert done.returncode == 2 and "has no 'nowhere'" in said and "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_action_takes_a_healthy_model(here: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    inputs = {"python": sys.executable, "sarif": "", "arguments": "", "model": "models_here:fine", "package": ""}
    done = run_step(action["runs"]["steps"][1], inputs, here)
    assert done.returncode == 0 and "::error" not in done.stdout, done.stdout + done.stderr


def test_the_hook_of_pre_commit(here: Path) -> None:
    """What pre-commit runs of a system hook: its entry, and the arguments of the project."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["language"] == "system" and hook["pass_filenames"] is False
    program, *words = hook["entry"].split()
    assert program == "isograd"
    code, out, _ = called(*words, "models_here:stock", "--batch", "models_here:batch")
    assert "--no-prove" in words and code == 1 and "parameter-unused" in out
