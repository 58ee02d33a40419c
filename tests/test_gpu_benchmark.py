"""The runner of benchmarks/gpu.py: what is there and unchanged is not measured again. Whether jobs run, it says."""

import json
import os
import sys
import time
from argparse import Namespace
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
    labels = [job.label for jobs in parts.values() for job in jobs if job.kind == "step"]
    assert len(labels) == 2 * 2 * 8  # both shapes, eager and compiled, every contestant


def test_four_times_nine_minutes_reach_all_but_the_last_part(gpu: ModuleType) -> None:
    left = [job for part in gpu.PARTS for job in gpu.jobs_of(part, False)]
    for _ in range(4):
        seconds, later = 9 * 60, []
        for job in left:
            if job.about > seconds:
                later.append(job)
            else:
                seconds -= job.about
        left = later
    assert left and {job.part for job in left} == {gpu.PARTS[-1]}


def test_peaks_are_what_the_chips_add_up_to(gpu: ModuleType) -> None:
    """Multiprocessors * 4 tensor cores * operations of one in a cycle * cycles a second."""
    import gpu_jobs  # type: ignore[import-not-found]

    assert gpu_jobs.peak_of("NVIDIA H100 80GB HBM3") == pytest.approx(132 * 4 * 1024 * 1.83e9, rel=1e-3)
    assert gpu_jobs.peak_of("NVIDIA H100 PCIe") == pytest.approx(114 * 4 * 1024 * 1.62e9, rel=1e-3)
    assert gpu_jobs.peak_of("NVIDIA A100-SXM4-80GB") == pytest.approx(108 * 4 * 512 * 1.41e9, rel=1e-3)
    assert gpu_jobs.peak_of("NVIDIA H200") == gpu_jobs.peak_of("NVIDIA H100 80GB HBM3")
    assert gpu_jobs.peak_of("NVIDIA H200 NVL") == gpu_jobs.peak_of("NVIDIA H100 NVL") == pytest.approx(1671e12 / 2)
    assert gpu_jobs.peak_of("NVIDIA H100") is gpu_jobs.peak_of("NVIDIA GeForce RTX 4090") is None


@pytest.mark.parametrize("build", ["isograd", "nanogpt", "gpt2"])
def test_operations_of_a_token(gpu: ModuleType, build: str) -> None:
    """6 for each number that multiplies: 12 d^2 of a layer, d V of the head; 6 L T d of causal attention."""
    import gpu_jobs

    model, _ = gpu_jobs.BUILD[build](gpu_jobs.TINY, "pre-ln")
    assert gpu_jobs.flop_per_token(model, gpu_jobs.TINY) == 6 * (2 * 12 * 32**2 + 32 * 96) + 6 * 2 * 16 * 32


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


def test_a_job_that_fails_is_a_line(gpu: ModuleType, tmp_path: Path) -> None:
    job = replace(gpu.jobs_of("decode", True)[0], kind="nothing")
    with (tmp_path / "log").open("w") as log:
        row = gpu.ran(job, "key", {"device": "one"}, {"PATH": "/usr/bin", "PYTHONPATH": str(BENCHMARKS.parent)}, log)
    assert row["error"] == "KeyError: 'nothing'" and "result" not in row
    assert "Traceback" in (tmp_path / "log").read_text()


def test_what_a_job_started_ends_with_it(gpu: ModuleType) -> None:
    child = "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(100)"
    job = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid)"
    code, out, _ = gpu.output_of([sys.executable, "-c", job], os.environ, 90)
    of_child = Path("/proc", out.strip(), "stat")
    while of_child.exists() and "Z" not in of_child.read_text().split():  # a kill is not instant
        time.sleep(0.01)
    assert code == 0


def test_a_job_that_takes_too_long_is_ended(gpu: ModuleType) -> None:
    assert gpu.output_of([sys.executable, "-c", "import time; time.sleep(100)"], os.environ, 0.2)[0] is None


def test_what_is_lacking_is_named(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"torch", "transformers", "jsonargparse", "pytest"} & set(gpu.lacking())
    monkeypatch.setattr(gpu, "_has", lambda name: name != "jsonargparse")
    assert gpu.lacking() == ["jsonargparse"]


@pytest.mark.parametrize("how", ["turns", "stacked", pytest.param("processes", marks=pytest.mark.slow)])
def test_small_runs_side_by_side(gpu: ModuleType, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_small  # type: ignore[import-not-found]

    monkeypatch.setattr(gpu_small, "TINY_SECONDS", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS.parent))
    found = gpu_small.small(how, 2, True)
    assert found["updates/s"] > 0 and found["of one"] == found["updates/s"] / 2


def test_ways_that_a_machine_lacks_are_named(gpu: ModuleType) -> None:
    import gpu_small

    ways = {job.options["how"] for job in gpu.jobs_of("small", False)}
    assert ways == {"turns", "streams", "graphs", "stacked", "stacked graph", "processes", "mps"}
    if not gpu_small.absent("graphs"):
        pytest.skip("a CUDA device is here")
    assert gpu_small.small("mps", 8, False) == {"absent": "no CUDA device"}


def test_the_service_ends_with_what_runs_under_it(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_small

    control = tmp_path / gpu_small.CONTROL
    control.write_text('#!/bin/sh\necho "$CUDA_MPS_PIPE_DIRECTORY" "$@" >> "$0.said"\n[ "$1" ] || cat >> "$0.said"\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(RuntimeError), gpu_small.service(tmp_path) as environment:
        assert environment["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path / "pipe")
        raise RuntimeError
    said = (tmp_path / f"{gpu_small.CONTROL}.said").read_text().splitlines()
    assert said == [f"{tmp_path}/pipe -d", f"{tmp_path}/pipe", "quit"]


def test_the_page_names_what_is_missing(gpu: ModuleType) -> None:
    jobs, facts = gpu.jobs_of("decode", False), {"device": "one"}
    (key, *_) = (key for _, key in gpu.todo(jobs, {}, facts))
    text = gpu.page(jobs, gpu.rows_of(jobs, {key: {"key": key, "result": {"ms": 1.5, "n": 3}}}, facts), facts)
    assert "| isograd, batch 1 | 1.5 | 3 |" in text
    assert text.partition("## decode")[2].count("not measured") == len(jobs) - 1
    assert text.partition("## decode")[0].count("| not measured |") == 5  # of what is asked for


def test_the_page_says_what_holds_and_which_way_wins(gpu: ModuleType, tmp_path: Path) -> None:
    jobs = [job for part in gpu.PARTS for job in gpu.jobs_of(part, False)]
    of_steps = {"isograd pre-ln": (10.0, 0.51), "isograd normformer": (10.3, 0.5), "nanogpt": (10.5, 0.49)}
    results = [("step-125m", f"{name}, compiled", {"ms": ms, "MFU": mfu}) for name, (ms, mfu) in of_steps.items()]
    results += [("small", "processes, 16", {"updates/s": 900.0}), ("small", "stacked, 16", {"updates/s": 4000.0})]
    rows = [
        {"key": str(i), "part": part, "job": {"label": label}, "facts": {"device": "one"}, "result": result}
        for i, (part, label, result) in enumerate(results)
    ]
    (tmp_path / "gpu.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = gpu.page_of_file(jobs, tmp_path / "gpu.jsonl")
    assert "| MFU of pre-ln at 125M, compiled | 0.510 | at least 0.5 | holds |" in text
    assert "| step of normformer over pre-ln, compiled | 1.030 | at most 1.02 | does not hold |" in text
    assert "| step of pre-ln over nanoGPT's, compiled | 0.952 | at most 1.0 | holds |" in text
    assert "Most updates/s: stacked, 16, 4000." in text and "device one." in text


def test_an_earlier_machine_s_results_are_gone_on_from(gpu: ModuleType, tmp_path: Path) -> None:
    facts, job = {"device": "one"}, gpu.jobs_of("overhead", True)[0]
    row = {"key": gpu.key_of(job, facts), "part": job.part, "job": job.as_dict(), "result": {"seconds": 1.25}}
    (tmp_path / "before.jsonl").write_text(json.dumps(row) + "\n")
    options = Namespace(out=tmp_path / "out", before=tmp_path / "before.jsonl", minutes=None, tiny=True)
    gpu.measure(options, [job], facts, {})  # which runs nothing
    assert (tmp_path / "out" / "gpu.jsonl").read_text() == (tmp_path / "before.jsonl").read_text()
    assert "| check | 1.25 |" in (tmp_path / "out" / "gpu.md").read_text()


def test_only_wheels_that_are_lacking_are_installed(gpu: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "torch-99.0-py3-none-any.whl").write_text("of a package that is here")
    assert gpu.installed_from(tmp_path, tmp_path / "site") == []
    assert not (tmp_path / "site").exists()


def test_the_papers_shape_trains_and_goes_on(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cell that is whole is not run again; one that was stopped is."""
    import gpu_papers  # type: ignore[import-not-found]

    words = [
        "gpu_papers.py",
        "--tiny",
        "--eager",
        "--out",
        str(tmp_path),
        "--arms",
        "pre-ln",
        "post-ln",
        "--seeds",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(gpu_papers.torch, "set_float32_matmul_precision", lambda _: None)
    gpu_papers.main()
    file = tmp_path / "papers.csv"
    first = file.read_text().splitlines(keepends=True)
    assert len(first) == 1 + 3 * 3  # three cells: at the start, at half and at the end
    file.write_text("".join(first[:-1]))
    gpu_papers.main()
    again = file.read_text().splitlines(keepends=True)
    assert again[:-3] == first[:-3] and [a.split(",")[:5] for a in again] == [f.split(",")[:5] for f in first]
    assert "| post-ln | 0.001 | 0 | 4 |" in capsys.readouterr().out
