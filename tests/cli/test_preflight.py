"""`isograd preflight`: its formats, exit codes and errors, as they are typed, without a terminal."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.study.arms import called, refused

SETUPS = """
from tests.preflight.program import program

def healthy():
    return program()

def faulty():
    return program("lr-zero")

def raises():
    return {"model": undefined}

def number():
    return 3

def nothing():
    return None

def no_optimizer():
    made = program()
    return {name: made[name] for name in ("model", "loss", "data")}

def misspelt():
    return program() | {"optimiser": 1}

def no_data():
    return program() | {"data": 3}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "setups.py").write_text(SETUPS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_text_has_a_line_for_each_group_and_a_finding() -> None:
    code, out, _ = called("preflight", "setups.py:faulty", "--no-prove")
    assert code == 1
    assert "\x1b" not in out
    assert out.startswith("setups.py:faulty\n")
    groups = [line.split()[0] for line in out.splitlines()[1:9] if line and not line.startswith(" ")]
    assert {"loss", "data", "step", "optimizer", "precision", "resume"} <= {*groups}, out
    assert "error lr-zero" in out and "docs/check/lr-zero.md" in out and "1 error" in out


def test_a_healthy_run_ends_with_0_and_takes_steps() -> None:
    code, out, _ = called("preflight", "setups.py:healthy", "--no-prove", "--steps", "100")
    assert code == 0, out
    assert "nothing found" in out and "(100)" in out


def test_one_json_object_and_a_file_of_sarif(folder: Path) -> None:
    code, out, _ = called("preflight", "setups.py:faulty", "--no-prove", "--json", "--sarif", "found.sarif")
    found = json.loads(out)
    assert code == 1 and [one["code"] for one in found["findings"] if one["severity"] == "error"] == ["lr-zero"]
    assert found["model"] == "setups.py:faulty" and found["groups"]["step"] and found["seconds"] > 0
    assert found["missed"] == []
    log: dict[str, Any] = json.loads((folder / "found.sarif").read_text())
    (run,) = log["runs"]
    assert [one["ruleId"] for one in run["results"]] == [one["code"] for one in found["findings"]]


def test_commands_of_github_and_ignored_codes() -> None:
    code, out, _ = called("preflight", "setups.py:faulty", "--no-prove", "--format", "github")
    assert code == 1 and out.startswith("::error ") and "title=isograd%3A lr-zero" in out.replace(": ", "%3A ", 1)
    code, out, _ = called("preflight", "setups.py:faulty", "--no-prove", "--format", "sarif", "--ignore", "lr-zero")
    assert code == 0 and "lr-zero" not in {one["ruleId"] for one in json.loads(out)["runs"][0]["results"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.py:setup"], "missing.py"),
        (["setups.py"], "such as setups.py:setup"),
        (["setups.py:absent"], "absent"),
        (["setups.py:raises"], "NameError"),
        (["setups.py:number"], "int: expected a dict of model, loss, data and optimizer, a Trainer of transformers"),
        (["setups.py:nothing"], "model is missing"),
        (["setups.py:no_optimizer"], "optimizer is missing"),
        (["setups.py:misspelt"], "unknown key 'optimiser': did you mean 'optimizer'"),
        (["setups.py:no_data"], "data is of type int"),
        (["setups.py:healthy", "--ignore", "lr-zer"], "--ignore: unknown code 'lr-zer': did you mean 'lr-zero'"),
        (["setups.py:healthy", "--steps", "0"], "--steps 0"),
        (["setups.py:healthy", "--json", "--format", "github"], "give one of them"),
        (["setups.py:healthy", "--prove", "--no-prove"], "give one of them"),
        (["setups.py:healthy", "--intent", "casual", "--no-prove"], "casual"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], said: str) -> None:
    assert said in refused("preflight", *words)
