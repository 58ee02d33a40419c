"""Two processes on gloo compute what one computes: DDP and FSDP2, losses, probe, weights; killed and resumed too."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from isograd.errors import RecipeError
from isograd.files import read_rows, write_json
from isograd.lab.train.run import Run
from isograd.lab.train.train import train
from isograd.models import IsogradForCausalLM
from tests.train import job
from tests.train.recipes import losses, outcome, read_json, same_run, small, weights

BIN = Path(sys.executable).parent
LAUNCHERS = {
    "torchrun": "torchrun --standalone --nproc-per-node 2",
    "accelerate": "accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
    "--dynamo_backend no",
}
WAYS: dict[str, dict[str, Any]] = {"ddp": {}, "fsdp": {"fsdp": True}}
PLACEMENTS = ("pre-ln", "admin")
PATIENCE = 1800  # seconds after which something hangs, however busy the machine is


def recipe(placement: str, **training: Any) -> Run:
    shape = {"batch": 8, "accumulation": 2, "clip": 0.5, "probe_every": 1, "lr": 0.05, "optimizer": "sgd"}
    return small(model={"placement": placement}, training={**shape, **training})


def launch(folder: Path, recipes: dict[str, Run], launcher: str = "torchrun", dies_at: int | None = None) -> int:
    """Run the recipes one after the other in two processes; the exit code."""
    folder.mkdir(exist_ok=True)
    write_json(folder / "recipes.json", {name: run.as_dict() for name, run in recipes.items()})
    program, *options = LAUNCHERS[launcher].split()
    command = [BIN / program, *options, job.__file__, folder / "recipes.json", *([str(dies_at)] if dies_at else [])]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    if dies_at is None and done.returncode:
        raise AssertionError(done.stderr[-4000:])
    return done.returncode


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every placement, every way, by two processes; and each placement by one."""
    folder = tmp_path_factory.mktemp("pairs")
    launch(folder, {f"{p}-{way}": recipe(p, **options) for p in PLACEMENTS for way, options in WAYS.items()})
    for placement in PLACEMENTS:
        train(recipe(placement), folder / placement)
    return folder


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_two_processes_compute_what_one_does(placement: str, way: str, pairs: Path) -> None:
    one, two = pairs / placement, pairs / f"{placement}-{way}"
    assert outcome(two)["outcome"] == "undecided" and outcome(two)["steps"] == 6
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    logs = [read_rows(f / "metrics.jsonl") for f in (one, two)]
    assert [r["step"] for r in logs[1]] == [1, 2, 3, 4, 5, 6]  # once, not once per process
    for name in ("grad_norm", "lr"):
        assert [r[name] for r in logs[1]] == pytest.approx([r[name] for r in logs[0]], rel=1e-5)
    assert outcome(two)["validation_loss"] == pytest.approx(outcome(one)["validation_loss"], rel=1e-5)
    assert outcome(two)["parameters"] == outcome(one)["parameters"]
    mine, theirs = (read_json(f / "resolved.json")["calibration"] for f in (one, two))
    assert (mine is None) == (theirs is None) == (placement == "pre-ln")
    if mine is not None:  # each process profiles its micro-batch; their moments are those of one process' micro-batch
        assert theirs["decoder"] == pytest.approx(mine["decoder"], rel=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_probe_sees_the_gradients_of_the_whole_batch(placement: str, way: str, pairs: Path) -> None:
    one, two = (read_rows(pairs / name / "quantities.jsonl") for name in (placement, f"{placement}-{way}"))
    assert len(one) == len(two) == 6 * 4
    local = {"residual_rms", "branch_skip_ratio"}  # of the first process' share
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - local:
            assert b[name] == pytest.approx(a[name], rel=1e-5) if isinstance(a[name], float) else b[name] == a[name]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_saved_model_loads_in_one_process(placement: str, way: str, pairs: Path) -> None:
    folder = pairs / f"{placement}-{way}"
    model = IsogradForCausalLM.from_pretrained(folder / "model")
    assert model.config.architectures == ["IsogradForCausalLM"]
    assert model.lm_head.weight is model.model.embedding.tokens.weight
    state = model.state_dict()
    for name, value in weights(pairs / placement).items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=2e-6)


def test_sharding_is_refused_where_nothing_would_shard(tmp_path: Path) -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("several GPUs could shard")
    with pytest.raises(RecipeError, match=r"training\.fsdp=true needs a launcher"):
        train(recipe("pre-ln", fsdp=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_killed_and_started_again(way: str, tmp_path: Path) -> None:
    """Step 4 is logged and not yet saved when both processes die; the moments of AdamW go on from step 2."""
    run = recipe("admin", optimizer="adamw", lr=1e-3, **WAYS[way])
    assert launch(tmp_path / "again", {"run": run}, dies_at=4) != 0
    assert len(losses(tmp_path / "again/run")) == 4
    kept = sorted(p.name for p in (tmp_path / "again/run/checkpoints").iterdir())
    assert kept == ["checkpoint-2", "initial"]
    saved = {p.name for p in (tmp_path / "again/run/checkpoints/checkpoint-2").iterdir()}
    assert {"sealed.json", "rng_state_0.pth", "rng_state_1.pth"} <= saved
    assert ("pytorch_model_fsdp.bin" in saved) == (way == "fsdp")  # it is sharded, then
    launch(tmp_path / "again", {"run": run})
    launch(tmp_path / "whole", {"run": run})
    same_run(tmp_path / "again/run", tmp_path / "whole/run")


@pytest.mark.slow
def test_accelerate_launches_the_same(pairs: Path, tmp_path: Path) -> None:
    recipes = {f"{p}-{way}": recipe(p, **options) for p in PLACEMENTS for way, options in WAYS.items()}
    launch(tmp_path / "run", recipes, "accelerate")
    for name in recipes:
        same_run(tmp_path / "run" / name, pairs / name)


@pytest.mark.slow
def test_every_optimizer_runs_on_shards(tmp_path: Path) -> None:
    names = ["adam", "adamw", "sgd", "radam"]
    with contextlib.suppress(ImportError):
        import pytorch_optimizer  # noqa: F401

        names.append("radam-original")
    shape = {"lr": 1e-3, "weight_decay": 0.1, "steps": 8}
    launch(tmp_path, {f"{n}-{w}": recipe("admin", optimizer=n, **shape, **WAYS[w]) for n in names for w in WAYS})
    for name in names:
        assert outcome(tmp_path / f"{name}-fsdp")["outcome"] == "undecided"
        assert losses(tmp_path / f"{name}-fsdp") == pytest.approx(losses(tmp_path / f"{name}-ddp"), rel=1e-5)
