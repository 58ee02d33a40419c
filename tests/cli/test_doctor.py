"""`isograd doctor`: what it says is what other sources say, and each problem has its cure."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from isograd.cli import main
from isograd.cli.doctor import _extras, _size, _versions, problems


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


def facts(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["doctor", "--json", *words]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_facts_are_those_of_other_sources(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (alone / "isograd").mkdir(parents=True)
    (alone / "isograd" / "some").write_bytes(bytes(3000))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = facts(capsys)
    assert found["python"] == platform.python_version() and found["OMP_NUM_THREADS"] == "3"
    assert found["versions"]["torch"]["version"] == version("torch")
    assert found["versions"]["transformers"]["version"] == version("transformers")
    assert found["memory"]["total"] == psutil.virtual_memory().total
    assert found["threads"] == torch.get_num_threads() == 1
    assert len(found["gpus"]) == torch.cuda.device_count()
    assert found["hub"] == {"host": "huggingface.co", "offline": True, "reachable": None}
    assert found["caches"]["isograd"]["folder"] == str(alone / "isograd") and found["caches"]["isograd"]["writable"]
    assert found["caches"]["isograd"]["bytes"] >= 3000


def test_one_screen(alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert f"torch {version('torch')}" in " ".join(said.split()) and "OMP_NUM_THREADS" in said
    assert len(said.splitlines()) < 50


WELL: dict[str, Any] = {
    "versions": {"torch": {"version": "2.13.0", "wanted": ">=2.11", "fits": True}},
    "nvidia_driver": False,
    "gpus": [],
    "cuda": None,
    "load": 0.5,
    "cores": 2,
    "threads": 2,
    "quota": None,
    "caches": {"isograd": {"folder": "/c", "writable": True, "set_by": "XDG_CACHE_HOME"}},
    "hub": {"host": "huggingface.co", "offline": False, "reachable": True},
}


@pytest.mark.parametrize(
    ("ill", "problem", "cure"),
    [
        ({}, None, None),
        (
            {"versions": {"torch": {"version": "2.9.0", "wanted": ">=2.11", "fits": False}}},
            "torch 2.9.0: isograd needs torch>=2.11",
            "pip install 'torch>=2.11'",
        ),
        (
            {"versions": {"scipy": {"version": None, "wanted": ">=1.13", "fits": False}}},
            "scipy is not installed",
            "pip install 'scipy>=1.13'",
        ),
        ({"nvidia_driver": True}, "built without CUDA", "pytorch.org"),
        ({"nvidia_driver": True, "gpus": [{}], "cuda": "12.8"}, None, None),
        ({"load": 5.9}, "the machine is busy: load 5.9 on 2 cores", "OMP_NUM_THREADS=1"),
        ({"load": None}, None, None),
        ({"threads": 8, "quota": 2.0}, "8 threads, and this container may use 2 cores", "OMP_NUM_THREADS=2"),
        (
            {"caches": {"models": {"folder": "/c", "writable": False, "set_by": "HF_HOME"}}},
            "the cache of models, /c, cannot be written",
            "HF_HOME",
        ),
        ({"hub": {"host": "a.b", "offline": False, "reachable": False}}, "a.b cannot be reached", "HF_HUB_OFFLINE=1"),
        ({"hub": {"host": "a.b", "offline": True, "reachable": None}}, None, None),
    ],
)
def test_each_problem_has_its_cure(ill: dict[str, Any], problem: str | None, cure: str | None) -> None:
    found = list(problems(WELL | ill))
    if problem is None or cure is None:
        assert found == []
    else:
        assert len(found) == 1 and problem in found[0][0] and cure in found[0][1]


def test_versions_and_extras_are_those_of_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "torch>=2.11",
        "no-such>=1",
        'scipy>=99; extra == "mt"',
        'numpy>=1; extra == "data"',
        'isograd[mt]; extra == "all"',
    ]
    monkeypatch.setattr("isograd.cli.doctor.requires", lambda name: lines)
    versions = _versions()
    assert set(versions) == {"isograd", "torch", "no-such"}
    assert versions["torch"]["fits"] and versions["no-such"] == {"version": None, "wanted": ">=1", "fits": False}
    assert _extras() == {"mt": ["scipy>=99"], "data": []}


def test_the_size_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(100))
    (tmp_path / "c").write_bytes(bytes(11))
    (tmp_path / "gone").symlink_to("nowhere")
    assert _size(tmp_path) == 111 + (tmp_path / "gone").lstat().st_size
    assert _size(tmp_path / "missing") == 0
