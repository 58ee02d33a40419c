"""Real searches, small ones: boundaries against trainings made by hand, kills, and what cannot be searched."""

import json
import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isograd.errors import RecipeError
from isograd.files import finite
from isograd.lab.study.boundary import Boundary, next_rate, over_seeds
from isograd.lab.study.engine.jobs import Job, OnEnd, OnStep, attempt, in_this_process
from isograd.lab.study.headroom import SearchPlan, headroom, load_plan
from isograd.lab.train.recipe import with_overrides
from isograd.lab.train.train import train
from isograd.placement import get
from tests.cli.test_compare import gone, started, wait_until_held
from tests.study.arms import called, lines, read, refused

TINY = """model: {layers: 2, width: 16, heads: 2}
data: {length: 16}
training: {steps: 40, batch: 8, lr: 0.02, valid_sequences: 8, checkpoint_every: 0}
"""
Searched = tuple[SearchPlan, Path, dict[str, Any]]
TOLD = ("seconds", "provenance", "cost")


@pytest.fixture
def recipe(text: Path, tmp_path: Path) -> Path:
    return written(tmp_path, text)


def written(folder: Path, text: Path, more: str = "") -> Path:
    path = folder / "tiny.yaml"
    path.write_text(TINY.replace("length: 16", f"length: 16, source: {text}") + more)
    return path


@pytest.fixture(scope="module")
def searched(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """Two chains; the precision is a rough one."""
    folder = tmp_path_factory.mktemp("searched")
    plan = load_plan(written(folder, text), placements=["post-ln", "pre-ln"], seeds=[1], precision=2)
    return plan, folder / "out", headroom(plan, folder / "out", in_this_process)


def test_the_boundary_against_trainings_by_hand(searched: Searched, tmp_path: Path) -> None:
    """The rates on both sides of it once more, without a search, judged by the rule as it is written in the docs."""
    plan, _, content = searched
    for chain in content["chains"]:
        found = chain["boundary"]
        assert found["kind"] == "between" and found["high"] / found["low"] <= 2 * 1.01
        for side, trains in (("low", True), ("high", False)):
            keys = {"model.placement": chain["placement"], "training.lr": found[side], "seed": chain["seed"]}
            run = with_overrides(plan.base, [f"{key}={value}" for key, value in keys.items()])
            folder = tmp_path / f"{chain['placement']}-{side}"
            outcome = train(replace(run, training=replace(run.training, probe_every=0)), folder)
            losses = [row["loss"] for row in lines(folder / "metrics.jsonl")]
            assert by_hand(losses, outcome["unigram_loss"], outcome["unigram_entropy"]) == trains, (chain, side)


def by_hand(losses: Sequence[float | None], level: float, entropy: float) -> bool:
    """Whether it trains."""
    known = [loss for loss in losses if loss is not None]
    means = [statistics.fmean(known[i - 10 : i]) for i in range(10, len(known) + 1)]
    jumped = any(mean >= min(means[:i]) + 0.5 for i, mean in enumerate(means) if i)
    came_back = any(mean >= entropy and min(means[:i]) < entropy - 0.1 for i, mean in enumerate(means) if i)
    whole = len(known) == len(losses)
    return whole and not jumped and not came_back and statistics.fmean(known[-20:]) < level - 0.1


def test_what_is_written(searched: Searched) -> None:
    """The file, the ledger and the cells say the same; boundaries follow from the trials alone."""
    plan, folder, content = searched
    assert read(folder / "headroom.json") == plain(content)
    trials = [one for chain in content["chains"] for one in chain["tried"]]
    ledger = {row["cell"]: row for row in lines(folder / "ledger.jsonl")}
    assert (
        sorted(ledger) == sorted(one["cell"] for one in trials) == sorted(p.name for p in (folder / "cells").iterdir())
    )
    for one in trials:
        row, run = ledger[one["cell"]], read(folder / "cells" / one["cell"] / "run.json")
        assert row["values"]["training.lr"] == run["training"]["lr"] == one["lr"]
        assert row["outcome"] == one["outcome"] and row["steps"] == one["steps"]
    assert content["cost"]["runs"] == len(trials) and content["cost"]["updates"] == sum(t["steps"] for t in trials)
    for chain, level in zip(content["chains"], content["levels"], strict=True):
        again = next_rate({one["lr"]: one["verdict"] for one in chain["tried"]}, plan.search)
        assert isinstance(again, Boundary) and again.low == chain["boundary"]["low"]
        found = over_seeds([again])
        assert found is not None and level["level"]["middle"] == found.middle
    broken = [one for one in trials if one["verdict"] == "diverged"]
    assert all(one["steps"] < 40 for one in broken), "a broken training goes on for nothing"


def test_the_search_begins_at_the_users_rate(searched: Searched) -> None:
    plan, _, content = searched
    assert {chain["tried"][0]["lr"] for chain in content["chains"]} == {plan.base.training.lr}


def test_a_finer_search_goes_on_from_a_rough_one(searched: Searched, tmp_path: Path) -> None:
    """Nothing is trained twice: every rate of the rough one answers from disk, as the same search does."""
    plan, before, content = searched
    folder = shutil.copytree(before, tmp_path / "out")
    trained: list[str] = []

    def counting(jobs: Mapping[int, Job], on_step: OnStep, on_end: OnEnd) -> None:
        trained.extend(place.name for _, place in jobs.values())
        in_this_process(jobs, on_step, on_end)

    assert bare(headroom(plan, folder, counting)) == bare(content) and not trained
    fine = replace(plan, placements=("pre-ln",), search=replace(plan.search, precision=1.5))
    found = headroom(fine, folder, counting)
    rough = {one["cell"] for one in content["chains"][1]["tried"]}
    whole = {one["cell"] for one in found["chains"][0]["tried"]}
    assert set(trained) == whole - rough != set()


def bare(content: Any) -> Any:
    """But for what a machine's speed decides."""
    if isinstance(content, dict):
        return {name: bare(value) for name, value in content.items() if name not in TOLD}
    return [bare(one) for one in content] if isinstance(content, list | tuple) else content


class Killed(BaseException):
    """As if the process had ended here."""


@pytest.mark.slow
def test_stopped_after_any_training(searched: Searched, tmp_path: Path) -> None:
    """After each third training the runner dies; the finished search equals the undisturbed one."""
    plan, folder, content = searched
    trained: list[str] = []

    def dying(jobs: Mapping[int, Job], on_step: OnStep, on_end: OnEnd) -> None:
        for i, job in jobs.items():
            trained.append(job[1].name)
            on_end(i, attempt(get(job[0].model.placement), job))
            if len(trained) % 3 == 0:
                raise Killed

    for _ in range(20):
        try:
            found = headroom(plan, tmp_path / "out", dying)
            break
        except Killed:
            continue
    assert bare(found) == bare(content) and len(trained) == len(set(trained)) == content["cost"]["runs"] > 6
    assert (tmp_path / "out/ledger.jsonl").read_text() == (folder / "ledger.jsonl").read_text()


@pytest.mark.slow
def test_killed_from_outside(searched: Searched, text: Path, tmp_path: Path) -> None:
    """kill -9 of the command in its third run, workers and all."""
    plan, folder, content = searched
    out = tmp_path / "out"
    command = [
        "study",
        str(written(tmp_path, text)),
        "--find",
        "max-lr",
        "--placements",
        "post-ln",
        "pre-ln",
        "--seeds",
        "1",
    ]
    command += ["--precision", "2", "--out", str(out), "--jobs", "1"]
    process = started(command, held_after=10, HELD_IN=out / "cells", HELD_ENDED=2)
    wait_until_held(process, out / "cells", [10, 40, 40])
    process.kill()
    process.communicate()
    assert gone(process.pid)
    assert len(list(out.glob("cells/*/outcome.json"))) == 2 < content["cost"]["runs"]
    headroom(plan, out, in_this_process)
    code, said, _ = called(*command, "--json")
    assert code == 0 and bare(read(out / "headroom.json")) == bare(plain(content))
    told = json.loads(said)
    assert bare(told["chains"]) == bare(plain(content["chains"]))
    assert told["findings"] and Path(told["report"]).exists()
    assert (out / "ledger.jsonl").read_text() == (folder / "ledger.jsonl").read_text()


def plain(content: Any) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(finite(content)))


def test_a_failed_run_stops_its_chain_alone(recipe: Path, tmp_path: Path) -> None:
    """And says so, with exit code 1 of the command; trained once more by `retry`, it goes on."""
    plan = load_plan(recipe, placements=["post-ln", "pre-ln"], seeds=[1], warmups=[0], precision=4)

    def failing(jobs: Mapping[int, Job], on_step: OnStep, on_end: OnEnd) -> None:
        for i, job in jobs.items():
            if job[0].model.placement == "post-ln" and job[0].training.lr > 0.05:
                (job[1]).mkdir(parents=True)
                (job[1] / "run.json").write_text(json.dumps(job[0].as_dict()))
                (job[1] / "outcome.json").write_text('{"outcome": "failed", "error": "no room"}')
                on_end(i, read(job[1] / "outcome.json"))
            else:
                in_this_process({i: job}, on_step, on_end)

    told: list[dict[str, Any]] = []
    content = headroom(plan, tmp_path / "out", failing, on_trial=lambda _, one: told.append(one))
    stopped, other = content["chains"]
    assert stopped["boundary"]["kind"] == "stopped" and stopped["tried"][-1]["error"] == "no room"
    assert other["boundary"]["kind"] == "between" and content["levels"][0]["level"] is None
    assert [one["lr"] for one in told if one["verdict"] == "failed"] == [0.08]
    again = headroom(plan, tmp_path / "out", in_this_process)
    assert again["chains"][0]["boundary"]["kind"] == "stopped", "a failed run is not tried again on its own"
    retried = headroom(plan, tmp_path / "out", in_this_process, retry=True)
    assert retried["chains"][0]["boundary"]["kind"] == "between"


def test_plans(text: Path, tmp_path: Path) -> None:
    """What a study's axes say, what the command says instead, and what there is without either."""
    axes = "axes: {model.placement: [post-ln, admin], training.warmup: [5, 0], training.lr: [1.0e-3]}\n"
    study = written(tmp_path, text, axes + "seeds: [4, 5]\nbudget: {steps: 20}\n")
    plan = load_plan(study)
    assert (plan.placements, plan.warmups, plan.seeds) == (("post-ln", "admin"), (0, 5), (4, 5))
    assert plan.base.training.steps == 20 and plan.name == "tiny" and plan.search.start == 0.02
    told = load_plan(study, placements=["pre-ln"], warmups=[3], seeds=[1, 1], low=1e-4, high=0.5)
    assert (told.placements, told.warmups, told.seeds) == (("pre-ln",), (3,), (1,))
    assert (told.search.low, told.search.high) == (1e-4, 0.5)
    plain = load_plan(None, ["training.warmup=7"])
    assert (plain.placements, plain.warmups, plain.seeds) == (("pre-ln",), (0, 7), (1, 2, 3))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--warmup", "40"], "a warm-up of 40 must be less than training.steps=40"),
        (["--placements", "post-nl"], "post-nl"),
        (["--low", "2"], "the lowest rate 2 must be above 0 and below the highest, 1"),
        (["--precision", "1"], "a precision of 1 must be a factor from 1.02 to 4"),
        (["training.decay=linear", "training.decay_to=1e-3"], "at a peak rate of 1e-05"),
        (["--placements", "pre-ln", "training.lr=1"], "'training.lr=1' is not a placement"),
        (["data.source=nowhere.txt"], "nowhere.txt"),
        (["--seeds", "-1"], "seed=-1"),
        (["task=translation"], "task=translation"),
    ],
)
def test_refused_in_one_line(recipe: Path, tmp_path: Path, words: list[str], line: str) -> None:
    out = tmp_path / "out"
    assert line in refused("study", str(recipe), "--find", "max-lr", *words, "--out", str(out))
    assert not out.exists()


def test_another_axis_is_of_one_value(text: Path, tmp_path: Path) -> None:
    """What is refused of a study says what to write instead, and that is taken."""
    axes = "axes: {model.layers: [1, 2], model.placement: [post-ln, admin]}\n"
    study = written(tmp_path, text, axes + "budget: {seconds: 3}\n")
    with pytest.raises(RecipeError, match=re.escape("write model.layers=1 after")):
        load_plan(study)
    with pytest.raises(RecipeError, match=re.escape("write budget.steps=N after")):
        load_plan(study, ["model.layers=1"])
    plan = load_plan(study, ["model.layers=1", "budget.steps=20"])
    assert (plan.base.model.layers, plan.base.training.steps, plan.base.training.lr) == (1, 20, 0.02)
    assert plan.placements == ("post-ln", "admin") and plan.base.model.placement == "pre-ln"


def test_arms_are_refused(text: Path, tmp_path: Path) -> None:
    study = written(tmp_path, text, "axes: {training.lr: [1.0e-3]}\narms: [[post-ln], [pre-ln]]\n")
    with pytest.raises(RecipeError, match="--find max-lr takes no arms"):
        load_plan(study)


def test_another_text_is_refused(text: Path, tmp_path: Path) -> None:
    """Trainings on two texts make no boundary."""
    mine = tmp_path / "text.txt"
    mine.write_text(text.read_text())
    plan = load_plan(written(tmp_path, mine), seeds=[1], warmups=[0], precision=4)
    headroom(plan, tmp_path / "out", in_this_process)
    before = (tmp_path / "out/headroom.json").read_text()
    mine.write_text(text.read_text() + "One more line.\n" * 50)
    with pytest.raises(FileExistsError, match="another text"):
        headroom(plan, tmp_path / "out", in_this_process)
    assert (tmp_path / "out/headroom.json").read_text() == before
