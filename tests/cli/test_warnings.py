"""What is told of a collapse while a training runs, and in its result."""

import json
from pathlib import Path

import pytest
import yaml

from tests.study.arms import called

TRAINING = {"steps": 45, "batch": 8, "lr": 4e-3, "probe_every": 0, "checkpoint_every": 0, "valid_sequences": 0}
RECIPE = {"model": {"width": 32, "heads": 2}, "data": {"length": 16}, "training": TRAINING}


def test_a_collapse_is_told_on_the_console_and_in_the_result(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    command = ["train", str(tmp_path / "recipe.yaml"), "model.placement=post-ln", "--out", str(tmp_path / "post")]
    code, out, err = called(*command, "--json")
    warning = json.loads(out)["warning"]
    assert code == 0 and warning["signal"] == "gradients" and warning["step"] <= 45
    assert [line for line in err.splitlines() if line.startswith("warning:")] == [f"warning: {warning['message']}"]


@pytest.mark.slow
def test_each_arm_of_a_comparison_has_its_warning(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    arms = ["--placements", "post-ln", "pre-ln", "--out", str(tmp_path / "out"), "--jobs", "1", "--json"]
    code, out, err = called("compare", str(tmp_path / "recipe.yaml"), *arms)
    post, pre = json.loads(out)["arms"]
    assert code == 0 and post["warning"]["layer"] == "model.layers.0" and pre["warning"] is None
    said = [line for line in err.splitlines() if line.startswith("warning:")]
    assert said == [f"warning: {post['arm']}: {post['warning']['message']}"]
