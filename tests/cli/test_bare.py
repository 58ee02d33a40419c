"""With core's packages alone: what works, and what a verb says whose packages are missing."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {"pyyaml": "yaml", "lm-eval": "lm_eval", "ray[client]": "ray"}


def brought_along(names: Iterable[str]) -> set[str]:
    """These packages, and all that they ask for."""
    found: set[str] = set()
    left = [re.split(r"[><=\[ ;]", name)[0].lower() for name in names]
    while left:
        if (name := left.pop()) in found:
            continue
        found.add(name)
        with suppress(PackageNotFoundError):
            asked = [line for line in requires(name) or () if "extra ==" not in line]
            left += [re.split(r"[><=!~\[ ;(]", line)[0].lower() for line in asked]
    return found


CORE = brought_along(PROJECT["dependencies"])
ABSENT = sorted(
    MODULES.get(name, name)
    for extra, lines in PROJECT["optional-dependencies"].items()
    if extra not in ("all", "dev", "docs", "complete")
    for name in (re.split(">=", line)[0] for line in lines)
    if not name.startswith("isograd[") and name not in CORE
)
BARE = f"""
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import importlib.util
find = importlib.util.find_spec
def found(name, package=None):
    try:
        return find(name, package)
    except ModuleNotFoundError:
        return None
importlib.util.find_spec = found
"""
MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

def model():
    return nn.Sequential(nn.Embedding(9, 16), *(Block() for _ in range(3)), nn.LayerNorm(16), nn.Linear(16, 9))

def batch():
    return torch.arange(16).remainder(9).view(2, 8)
"""
LIBRARY = """
import torch
import isograd
from isograd.residual import HyperConnections, LayerScale, ResiDual
sys.path.insert(0, ".")
from own import batch, model

torch.manual_seed(0)
one = model()
assert "3 sublayers" in str(isograd.check(one, batch()))
optimizer = torch.optim.Adam(one.parameters())
watch = isograd.watch(one, optimizer=optimizer, folder="watched")
for _ in range(5):
    loss = torch.nn.functional.cross_entropy(one(batch()).flatten(0, 1), batch().flatten())
    loss.backward()
    watch.step(loss)
    optimizer.step()
    optimizer.zero_grad()
watch.close()
config = isograd.IsogradConfig(vocab_size=9, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
causal = isograd.IsogradForCausalLM(config)
assert causal.generate(batch(), max_new_tokens=3, do_sample=False).shape == (2, 11)
causal.save_pretrained("saved")
isograd.IsogradForCausalLM.from_pretrained("saved")
isograd.calibrate(isograd.IsogradForCausalLM(isograd.IsogradConfig(placement="admin", vocab_size=9, hidden_size=16,
    num_hidden_layers=2, num_attention_heads=2)), {"input_ids": batch()})
from isograd.diagnose import profile
profile(model(), batch())
print("all of core")
"""


def bare(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "own.py").write_text(MODEL)
    return subprocess.run([sys.executable, "-c", BARE + code], cwd=folder, capture_output=True, text=True)


VERBS = [
    ["--help"],
    ["check", "own.py:model", "--batch", "own.py:batch"],
    ["conform", "mhc"],
    ["show"],
    ["show", "deepnorm", "layers=48"],
]
COMMANDS = f"""
from isograd.cli import main
for words in {VERBS!r}:
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    assert not code, words
"""


def test_the_library_and_verbs_of_core_work(tmp_path: Path) -> None:
    """In one process: each of its own would import torch again."""
    done = bare(COMMANDS + LIBRARY, tmp_path)
    assert done.returncode == 0 and done.stdout.endswith("all of core\n"), done.stderr[-2000:]
    for said in ("usage: isograd", "3 sublayers", "mhc", "Carried by: chatglm"):
        assert said in done.stdout, said


@pytest.mark.parametrize(
    "words",
    [
        ["train", "number-words"],
        ["compare"],
        ["report", "."],
        ["explain", "own.py:model"],
        ["reproduce", "theory"],
    ],
    ids=lambda words: words[0],
)
def test_other_verbs_say_what_to_install(words: list[str], tmp_path: Path) -> None:
    done = bare(f"from isograd.cli import main; sys.exit(main({words!r}))", tmp_path)
    said = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert re.fullmatch(rf"isograd {words[0]}: needs \w+: pip install 'isograd\[lab\]'", said[-1]), said[-3:]
