"""DeepSpeed's ZeRO: what its file may say, what the forecast makes of it, and that it computes what DDP does."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState

from isograd.errors import RecipeError
from isograd.files import read_rows
from isograd.lab.train.forecast.memory import Memory, memory
from isograd.lab.train.run import Run
from isograd.lab.train.trainer import check_machine
from isograd.lab.train.zero import settings, zero_of
from isograd.models import IsogradForCausalLM
from tests.train.recipes import losses, outcome, small, weights
from tests.train.test_distributed import launch

BUCKET = {"reduce_bucket_size": 100_000}
installed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="pip install deepspeed")


def file(folder: Path, stage: int, *, zero: dict[str, Any] | None = None, **content: Any) -> str:
    """A DeepSpeed configuration in JSON."""
    path = folder / f"zero{stage}.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": stage, **BUCKET, **(zero or {})}, **content}))
    return str(path)


def recipe(path: str | None, **training: Any) -> Run:
    shape = {"batch": 8, "accumulation": 2, "clip": 0.5, "probe_every": 0, "lr": 0.01, "weight_decay": 0.3}
    shape |= {"eps": 1e-4}  # a key's bias has no gradient but rounding, which Adam would blow up
    return small(
        model={"placement": "normformer"}, training={**shape, "optimizer": "adamw", "deepspeed": path, **training}
    )


def refused(run: Run, *parts: str) -> None:
    with pytest.raises(RecipeError) as error:
        settings(run, 2)
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value), str(error.value)


def test_the_recipe_fills_in_the_file(tmp_path: Path) -> None:
    told = settings(recipe(file(tmp_path, 2, steps_per_print=7)), 2)
    assert told["steps_per_print"] == 7 and told["zero_optimization"]["stage"] == 2
    assert told["train_batch_size"] == told["gradient_clipping"] == told["bf16"]["enabled"] == "auto"
    assert "zero_force_ds_cpu_optimizer" not in told
    same: dict[str, Any] = {
        "train_batch_size": 8,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": False, "immediate_grad_update": True},
    }
    told = settings(recipe(file(tmp_path, 3, **same), optimizer="sgd"), 2)
    assert {key: told[key] for key in same} == same
    assert told["zero_force_ds_cpu_optimizer"] is False  # accelerate would train by Adam


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({"gradient_clipping": 1.0}, ["gradient_clipping=1.0", "training.clip makes it 0.5"]),
        ({"train_batch_size": 16}, ["train_batch_size=16", "training.batch makes it 8"]),
        ({"gradient_accumulation_steps": 1}, ["training.accumulation makes it 2"]),
        ({"bf16": {"enabled": True}}, ["bf16.enabled=true", "training.precision makes it false"]),
        ({"optimizer": {"type": "AdamW"}}, ["its own optimizer", "training.weight_decay"]),
        ({"scheduler": {"type": "WarmupLR"}}, ["its own scheduler", "training.decay"]),
        ({"zero": {"stage": 0}}, ["1, 2 or 3", "its stage is 0"]),
        ({"zero": {"stage": "auto"}}, ["its stage is auto"]),
    ],
)
def test_a_file_that_contradicts_the_recipe(content: dict[str, Any], parts: list[str], tmp_path: Path) -> None:
    refused(recipe(file(tmp_path, 1, **content)), "training.deepspeed=", *parts)


@pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"zero_optimization": 3}'])
def test_files_that_hold_no_zero(text: str, tmp_path: Path) -> None:
    path = tmp_path / "zero.json"
    refused(recipe(str(path)), "no such file")
    path.write_text(text)
    refused(recipe(str(path)), "is not JSON" if text == "{" else "must hold")


def test_what_this_installation_or_these_processes_cannot_do(tmp_path: Path) -> None:
    PartialState(cpu=True)
    missing = find_spec("deepspeed") is None
    with pytest.raises(RecipeError, match=r"pip install deepspeed$" if missing else "needs a launcher"):
        check_machine(recipe(file(tmp_path, 2)))


def test_each_stage_shards_more(tmp_path: Path) -> None:
    """Rajbhandari et al. 2020, figure 1: of 2 + 2 + 12 bytes in 16 bits with Adam, the last, the last two, all."""

    def on(devices: int, stage: int, **options: Any) -> Memory:
        run = recipe(file(tmp_path, stage, **options), precision="bf16", accumulation=1)
        return memory(run, run.config(), devices)

    count = on(1, 1).parameters // 2
    for stage, per_device in ((1, 2 + 2 + 12 / 4), (2, 2 + 2 / 4 + 12 / 4), (3, 16 / 4)):
        assert on(1, stage).static == 16 * count
        assert on(4, stage).static == pytest.approx(per_device * count, rel=1e-3)
    host = {"offload_optimizer": {"device": "cpu"}}
    assert on(4, 2, zero=host).static == 2 * count and on(4, 3, zero=host).parameters == on(4, 3).parameters
    assert not on(4, 3, zero={"offload_param": {"device": "cpu"}}).parameters
    assert on(4, 2).buckets == 2 * 100_000 and on(4, 2, zero={"overlap_comm": True}).buckets == 4 * 100_000
    assert on(4, 2, zero={"reduce_bucket_size": "auto"}).buckets == 2 * 16**2
    assert zero_of(small().training) is None


@installed
@pytest.mark.slow
def test_two_processes_compute_what_ddp_does(tmp_path: Path) -> None:
    """Losses, rates, norms before clipping, validation, and the weights: decay by role reaches the shards."""
    files = {f"zero{stage}": file(tmp_path, stage) for stage in (1, 2, 3)}
    runs = {"ddp": recipe(None), **{name: recipe(path) for name, path in files.items()}}
    runs["no-decay"] = recipe(files["zero2"], weight_decay=0.0)
    runs["bf16"] = recipe(files["zero2"], precision="bf16")
    runs["too-fast"] = recipe(files["zero2"], lr=1e30)
    launch(tmp_path / "pairs", runs)
    mine = tmp_path / "pairs/ddp"
    for name in files:
        theirs = tmp_path / "pairs" / name
        assert outcome(theirs)["outcome"] == "undecided", outcome(theirs)
        assert outcome(theirs)["parameters"] == outcome(mine)["parameters"]
        assert outcome(theirs)["validation_loss"] == pytest.approx(outcome(mine)["validation_loss"], rel=1e-5)
        for key in ("loss", "grad_norm", "lr"):
            one, two = ([row[key] for row in read_rows(f / "metrics.jsonl")] for f in (mine, theirs))
            assert two == pytest.approx(one, rel=1e-5), (name, key)
        state = IsogradForCausalLM.from_pretrained(theirs / "model").state_dict()
        for key, value in weights(mine).items():
            torch.testing.assert_close(state[key], value, rtol=0, atol=2e-5)
    assert losses(tmp_path / "pairs/no-decay") != pytest.approx(losses(mine), rel=1e-5)  # negative control
    assert losses(tmp_path / "pairs/bf16") == pytest.approx(losses(mine), rel=0.02)
    assert outcome(tmp_path / "pairs/too-fast")["outcome"] == "diverged"  # though the engine leaves its weights finite


@installed
@pytest.mark.slow
def test_killed_and_started_again(tmp_path: Path) -> None:
    run = recipe(file(tmp_path, 2))
    assert launch(tmp_path / "again", {"run": run}, dies_at=4) != 0
    launch(tmp_path / "again", {"run": run})
    launch(tmp_path / "whole", {"run": run})
    assert losses(tmp_path / "again/run") == losses(tmp_path / "whole/run")
