"""The runner of benchmarks/gpu.py: what is there and unchanged is not measured again. Whether jobs run, it says."""

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu  # type: ignore[import-not-found]

    found: ModuleType = gpu
    return found


def test_parts_take_at_most_ten_minutes(gpu: ModuleType) -> None:
    parts = {part: gpu.jobs_of(part, False) for part in gpu.PARTS}
    for part, jobs in parts.items():
        assert jobs and sum(job.about for job in jobs) <= 600 and all(job.seconds <= 600 for job in jobs), part
        assert len({job.label for job in jobs}) == len(jobs)
    assert 25 * 60 < sum(job.about for jobs in parts.values() for job in jobs) < 40 * 60


def test_what_is_there_is_not_run_again(gpu: ModuleType, tmp_path: Path) -> None:
    facts = {"device": "one", "torch": "2"}
    jobs = gpu.jobs_of("decode", False)
    keys = [key for _, key in gpu.todo(jobs, {}, facts)]
    assert len(set(keys)) == len(jobs)
    rows = [{"key": keys[0], "result": {"ms": 1.0}}, {"key": keys[1], "error": "out of memory"}]
    (tmp_path / "gpu.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    there = gpu.read([tmp_path / "gpu.jsonl", tmp_path / "absent.jsonl"])
    assert [key for _, key in gpu.todo(jobs, there, facts)] == keys[1:]  # an error is tried again
    assert len(list(gpu.todo(jobs, there, facts | {"torch": "3"}))) == len(jobs)
    changed = [replace(jobs[0], options=jobs[0].options | {"batch": 2}), *jobs[1:]]
    assert len(list(gpu.todo(changed, there, facts))) == len(jobs)


def test_a_job_that_fails_is_a_line(gpu: ModuleType) -> None:
    job = replace(gpu.jobs_of("decode", True)[0], kind="nothing")
    row = gpu.ran(job, "key", {"PATH": "/usr/bin", "PYTHONPATH": str(BENCHMARKS.parent)})
    assert row["error"] == "KeyError: 'nothing'" and "result" not in row


def test_the_page_names_what_is_missing(gpu: ModuleType) -> None:
    jobs, facts = gpu.jobs_of("decode", False), {"device": "one"}
    (key, *_) = (key for _, key in gpu.todo(jobs, {}, facts))
    text = gpu.page(jobs, {key: {"key": key, "result": {"ms": 1.5, "n": 3}}}, facts)
    assert "| isograd, batch 1 | 1.5 | 3 |" in text and text.count("not measured") == len(jobs) - 1


def test_only_wheels_that_are_lacking_are_installed(gpu: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "torch-99.0-py3-none-any.whl").write_text("of a package that is here")
    assert gpu.installed_from(tmp_path, tmp_path / "site") == []
    assert not (tmp_path / "site").exists()
