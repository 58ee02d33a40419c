"""Arms trained side by side: the same data and start, nothing twice, and what becomes of an arm that fails."""

import json
import math
import multiprocessing as mp
import os
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from isograd.errors import FolderBusyError, RecipeError
from isograd.files import locked
from isograd.lab.study.compare import compare, plan
from isograd.lab.study.plan import Cell
from isograd.lab.train.recipe import with_overrides
from isograd.lab.train.run import Model
from isograd.lab.train.tasks.language import LanguageRun, TextData, TextTraining
from isograd.placement import Norm, Placement, Residual, Site, register
from tests.study.arms import lines, read, runs, same_numbers
from tests.study.processes import Sent, hold

Plan = Callable[..., list[Cell]]
NAMES = ("post-ln", "pre-ln", "admin")


@pytest.fixture
def planned(text: Path, tmp_path: Path) -> Plan:
    def make(
        folder: str = "out",
        *,
        lr: float = 1e-3,
        steps: int = 6,
        warmup: int = 0,
        placements: Sequence[str] = NAMES,
        seeds: Sequence[int] = (),
    ) -> list[Cell]:
        base = LanguageRun(
            model=Model(layers=2, width=16, heads=2),
            data=TextData(source=str(text), length=8),
            training=TextTraining(steps=steps, warmup=warmup, batch=4, lr=lr, valid_sequences=4, probe_every=2),
        )
        return plan(tmp_path / folder, base, [[name] for name in placements], seeds)

    return make


def trained(arms: list[Cell], jobs: int = 1, **options: Any) -> list[dict[str, Any]]:
    return compare(arms, lambda *_: None, lambda *_: None, jobs=jobs, **options)


def losses(arm: Cell) -> list[float]:
    return [row["loss"] for row in lines(arm.folder / "metrics.jsonl")]


def test_results_against_the_files(planned: Plan) -> None:
    """Once more from the rows of each folder, by hand."""
    arms = planned(steps=24)
    seen: list[int] = []
    results = compare(arms, lambda *_: None, lambda i, _: seen.append(i), jobs=1)
    assert seen == [0, 1, 2]
    for arm, result in zip(arms, results, strict=True):
        assert result["final_loss"] == pytest.approx(statistics.fmean(losses(arm)[-20:]), rel=1e-12)
        rows = [r for r in lines(arm.folder / "quantities.jsonl") if r["kind"] == "ffn"]
        assert {r["layer"] for r in rows} == {1, 2}
        for name, steps in (("start", {1}), ("end", set(range(1, 25)))):
            of = {n: [r["gradient_mean_abs"] for r in rows if r["layer"] == n and r["step"] in steps] for n in (1, 2)}
            expected = (sum(of[1]) / len(of[1])) / (sum(of[2]) / len(of[2]))
            assert result[f"gradient_ratio_{name}"] == pytest.approx(expected, rel=1e-9)
        assert result["tokens_per_second"] > 0
        outcome = read(arm.folder / "outcome.json")
        assert {k: outcome[k] for k in ("outcome", "final_loss", "parameters")} == {
            k: result[k] for k in ("outcome", "final_loss", "parameters")
        }


def test_same_start_and_same_data_order(planned: Plan) -> None:
    """At a rate that moves nothing: the weights are the start, and equal functions have equal losses, step by step."""
    one, two = planned(lr=1e-30, placements=["post-ln"]), planned(lr=1e-30, placements=["post-ln"], warmup=3)
    others = planned(lr=1e-30, placements=["pre-ln", "normformer"])
    trained([*one, *two, *others])
    assert losses(one[0]) == losses(two[0])
    assert len(set(losses(one[0]))) == 6  # each step another batch
    start = load_file(one[0].folder / "model/model.safetensors")
    matrices = {n for n, p in start.items() if p.dim() == 2}
    assert len(matrices) > 10
    for arm in others:
        weights = load_file(arm.folder / "model/model.safetensors")
        for name in matrices:
            assert torch.allclose(weights[name], start[name], rtol=0, atol=1e-20), (arm.label, name)
    control = planned(lr=1e-30, placements=["post-ln"], seeds=[1])
    trained(control)
    assert set(losses(control[0])).isdisjoint(losses(one[0]))


@pytest.mark.slow
def test_what_has_ended_is_not_trained_again(planned: Plan) -> None:
    arms = planned()
    first = trained(arms)
    times = [(a.folder / "outcome.json").stat().st_mtime_ns for a in arms]
    steps: list[Any] = []
    again = compare(arms, lambda *news: steps.append(news), lambda *_: None, jobs=2)
    assert again == first and not steps
    assert [(a.folder / "outcome.json").stat().st_mtime_ns for a in arms] == times
    shutil.rmtree(arms[1].folder)
    more = trained(arms)
    assert [(a.folder / "outcome.json").stat().st_mtime_ns for a in arms][::2] == times[::2]
    assert more[1]["final_loss"] == first[1]["final_loss"]


def test_processes_give_the_same_numbers_and_one_that_dies_takes_only_its_job_along(
    planned: Plan, tmp_path: Path, own_catalogue: None
) -> None:
    sign = tmp_path / "held"
    register("held", Placement(each=Residual(pre=Norm(), skip=Sent(hold, 20, sign))))
    names = ["held", "pre-ln", "admin"]
    arms, there = (planned(name, steps=30, placements=names) for name in ("out", "one-process"))
    trained(there)
    told: dict[int, str] = {}

    def kill(index: int, step: int, loss: float) -> None:
        if (index, step) == (0, 20):  # its worker goes no further
            while not sign.exists():
                time.sleep(0.01)
            os.kill(int(sign.read_text()), signal.SIGKILL)

    results = compare(arms, kill, lambda i, result: told.update({i: result["outcome"]}), jobs=2)
    assert not mp.active_children()
    assert told == {i: r["outcome"] for i, r in enumerate(results)}
    assert results[0]["outcome"] == read(arms[0].folder / "outcome.json")["outcome"] == "failed"
    assert "exit code -9" in results[0]["error"]
    assert [r["outcome"] for r in results[1:]] == ["undecided"] * 2
    assert [r["outcome"] for r in trained(arms)] == ["undecided"] * 3
    same_numbers(arms[0].folder.parent, there[0].folder.parent)


def test_an_arm_that_fails(planned: Plan, own_catalogue: None) -> None:
    """And one that diverges: both are results, and the others go on."""

    def unbuildable(site: Site) -> float:
        raise RuntimeError("no such\nlaw")

    def infinite(site: Site) -> float:
        return math.inf

    for name, law in (("unbuildable", unbuildable), ("infinite", infinite)):
        register(name, Placement(each=Residual(post=Norm(), skip=law)))
    arms = planned(placements=["pre-ln", "unbuildable", "infinite", "post-ln"])
    results = trained(arms)
    assert [r["outcome"] for r in results] == ["undecided", "failed", "diverged", "undecided"]
    assert results[1]["error"] == "no such law"
    assert results[1]["final_loss"] is None is results[2]["final_loss"]
    assert "RuntimeError" in (arms[1].folder / "error.txt").read_text()
    assert "error" not in results[0]
    json.dumps(results, allow_nan=False)


def test_another_text_is_another_run(planned: Plan, tmp_path: Path, text: Path) -> None:
    """The file may change under its name; what was trained on the old one is not passed off as its result."""
    mine = tmp_path / "mine.txt"
    mine.write_text(text.read_text())
    a = planned()[0]
    arms = [replace(a, run=with_overrides(a.run, [f"data.source={mine}", "model.placement=pre-ln"]))]
    before = trained(arms)
    mine.write_text(text.read_text().replace("wolf", "bear"))
    with pytest.raises(FileExistsError, match=r"mine\.txt \(or how it is read\) has changed since"):
        trained(arms)
    mine.write_text("")
    with pytest.raises(ValueError, match="is empty"):
        trained(arms, fresh=True)  # refused before anything is removed
    mine.write_text(text.read_text())
    assert trained(arms) == before
    mine.write_text(text.read_text().replace("wolf", "bear"))
    assert trained(arms, fresh=True)[0]["final_loss"] != before[0]["final_loss"]


def test_fresh_leaves_other_runs_alone(planned: Plan) -> None:
    arms = planned()
    trained(arms)
    times = [(a.folder / "outcome.json").stat().st_mtime_ns for a in arms]
    trained(arms[:1], fresh=True)
    now = [(a.folder / "outcome.json").stat().st_mtime_ns for a in arms]
    assert now[0] > times[0] and now[1:] == times[1:]


def test_one_comparison_at_a_time(planned: Plan) -> None:
    arms = planned()
    with locked(arms[0].folder.parent), pytest.raises(FolderBusyError, match="another process"):
        trained(arms)
    assert not runs(arms[0].folder.parent)
    with locked(arms[0].folder.parent):  # free again after each block
        pass
    assert [*arms[0].folder.parent.iterdir()] == []


@pytest.mark.parametrize("jobs", [0, -1])
def test_no_jobs(planned: Plan, jobs: int) -> None:
    with pytest.raises(RecipeError, match="at least 1"):
        trained(planned(), jobs=jobs)


def test_broken_files_of_a_run(planned: Plan) -> None:
    """One line that names the file; never another run under its name."""
    arms = planned(placements=["pre-ln"])
    before = trained(arms)
    folder = arms[0].folder
    whole = (folder / "run.json").read_text()
    (folder / "run.json").write_text(whole[:40])
    with pytest.raises(FileExistsError, match=r"run\.json: not JSON"):
        trained(arms)
    (folder / "run.json").write_text(whole.replace('"lr": 0.001', '"lr": 0.002'))
    with pytest.raises(FileExistsError, match="another recipe"):
        trained(arms)
    (folder / "run.json").write_text(whole)
    for name in ("outcome.json", "metrics.jsonl", "quantities.jsonl", "resolved.json", "model/model.safetensors"):
        (folder / name).unlink()
        results = trained(arms)
        assert {r["outcome"] for r in results} == {"undecided"}, name
        assert results[0]["final_loss"] == before[0]["final_loss"]
