"""`isograd watch SCRIPT`: the script's results are those without it, and its updates are rows."""

import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from isograd.diagnose.watch.loops.script import ScriptWatch, run
from isograd.diagnose.watch.writers import PER_STEP
from isograd.files import read_rows
from tests.study.arms import called, refused

pytestmark = pytest.mark.filterwarnings("default")  # trainers' advice
MODEL = """
import sys
import torch
import torch.nn.functional as F
from torch import nn
from tests.preflight.program import LENGTH, VOCAB, Model, Text

torch.manual_seed(0)
model = Model("")
rows = torch.stack(Text("").rows[:64])
batches = [(chunk[:, :-1], chunk[:, 1:]) for chunk in rows.split(8)]
"""
LOOPS = {
    "clip and accumulation": """
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for update in range(4):
    for x, y in batches[2 * update : 2 * update + 2]:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 2
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
""",
    "scaler": """
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for x, y in batches[:4]:
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "two optimizers": """
matrices = torch.optim.SGD([p for p in model.parameters() if p.ndim > 1], 1e-2)
vectors = torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2], 1e-3)
for x, y in batches[:4]:
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    for one in (vectors, matrices):
        one.step()
        one.zero_grad()
""",
    "compiled": """
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
compiled = torch.compile(model, backend="eager")
for x, y in batches[:4]:
    loss = F.cross_entropy(compiled(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "Trainer": """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, **shape))
arguments = TrainingArguments(
    sys.argv[1] + ".folder", max_steps=4, per_device_train_batch_size=8, use_cpu=True, report_to=[], save_strategy="no",
    gradient_accumulation_steps=2, disable_tqdm=True,
)
Trainer(model, arguments, train_dataset=[{"input_ids": row[:-1], "labels": row[:-1]} for row in rows]).train()
""",
    "Lightning": """
import lightning
from torch.utils.data import DataLoader

class Language(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model

    def training_step(self, batch, place):
        return F.cross_entropy(self.net(batch["ids"]).transpose(1, 2), batch["labels"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)

quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "enable_checkpointing": False}
trainer = lightning.Trainer(max_steps=4, accelerator="cpu", gradient_clip_val=0.1, **quiet)
trainer.fit(Language(), DataLoader(Text(""), batch_size=8))
""",
}
SAVED = "torch.save(model.state_dict(), sys.argv[1])\n"


@pytest.mark.parametrize("loop", LOOPS)
def test_a_script_trains_the_same_and_its_updates_are_rows(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if loop == "Lightning":
        pytest.importorskip("lightning")
    script = tmp_path / "train.py"
    script.write_text(MODEL + LOOPS[loop] + SAVED)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    watching = ScriptWatch(tmp_path / "rows")
    assert run(script, [str(tmp_path / "watched.pt")], watching) == 0
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path / "alone.pt")])
    torch.compiler.reset()
    runpy.run_path(str(script), run_name="__main__")
    watched, alone = (torch.load(tmp_path / name) for name in ("watched.pt", "alone.pt"))
    assert alone and all(torch.equal(watched[name], alone[name]) for name in alone)
    rows = [row for row in read_rows(tmp_path / "rows/metrics.jsonl") if "loss" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(2.5 < row["loss"] < 4.5 for row in rows), rows  # of the whole update, and unscaled: a guess loses 3.7
    assert all(row["grad_norm"] > 0.15 for row in rows), rows  # before clipping
    assert watching.watch is not None and not watching.watch.warnings


def written(folder: Path, text: str) -> str:
    (folder / "script.py").write_text(text)
    return str(folder / "script.py")


def test_arguments_after_the_name_are_the_script_s(tmp_path: Path) -> None:
    script = written(tmp_path, "import sys\nprint(sys.argv[1:], __name__)\n")
    words = ["--lr", "3e-4", "--out", "x", "--json", "-v"]
    code, out, err = called("watch", "--out", str(tmp_path / "rows"), script, *words)
    assert code == 0 and out == f"{words} __main__\n"
    assert err.endswith("script.py ended with no optimizer step: nothing was watched\n")
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(7)", 7), ("sys.exit()", 0), ("sys.exit('why')", 1)])
def test_the_exit_code_is_the_script_s(ends: str, code: int, tmp_path: Path) -> None:
    found, _, err = called("watch", written(tmp_path, f"import sys\n{ends}\n"), "--out", "x")
    assert found == code
    assert ("why" in err) == (code == 1)


def test_an_exception_is_the_script_s_and_all_is_put_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (
        torch.nn.Module.__call__,
        torch.Tensor.backward,
        torch.nn.functional.cross_entropy,
        [*sys.argv],
        [*sys.path],
    )
    text = MODEL + LOOPS["scaler"] + "raise KeyError('lost')\n"
    assert run(Path(written(tmp_path, text)), [], ScriptWatch(tmp_path / "rows")) == 1
    said = capsys.readouterr().err
    assert "KeyError: 'lost'" in said and "script.py" in said and "runpy" not in said
    after = torch.nn.Module.__call__, torch.Tensor.backward, torch.nn.functional.cross_entropy, [*sys.argv], [*sys.path]
    assert before == after
    assert [row["step"] for row in read_rows(tmp_path / "rows/metrics.jsonl")] == [1, 2, 3, 4]


MIDWAY = """
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for update in range(40):
    if update == 8:
        CHANGE
    x, y = batches[update % 8]
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ANEW = "optimizer = torch.optim.AdamW(model.parameters(), 1e-3)"


@pytest.mark.parametrize(
    ("change", "rows", "said"),
    [
        ("model = torch.compile(model, backend='eager')", 40, ""),
        (ANEW, 30, ""),
        (
            f"model = Model(''); {ANEW}",
            30,
            "another model is trained, a Model in place of a Model; it is followed from",
        ),
    ],
)
def test_a_model_that_is_replaced_midway_is_followed(change: str, rows: int, said: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MODEL + MIDWAY.replace("CHANGE", change))
    code, _, err = called("watch", "--out", str(tmp_path / "rows"), str(script))
    found = [row["step"] for row in read_rows(tmp_path / "rows" / PER_STEP)]
    assert code == 0 and abs(len(found) - rows) <= 1 and found == sorted(set(found)), (found, err)
    assert (said or "another model") in err if said else "another model" not in err
    assert not read_rows(tmp_path / "rows/warnings.jsonl")


def test_two_models_in_turns_are_not_taken_for_one_replaced(tmp_path: Path) -> None:
    other = "other = Model('')\nsecond = torch.optim.AdamW(other.parameters(), 1e-3)\n"
    turns = "    for _ in range(12):\n        second.zero_grad()\n        model(x)\n"
    turns += "        F.cross_entropy(other(x).flatten(0, 1), y.flatten()).backward()\n        second.step()\n"
    script = tmp_path / "train.py"
    script.write_text(MODEL + other + MIDWAY.replace("CHANGE", "pass").replace("range(40)", "range(6)") + turns)
    code, _, err = called("watch", "--out", str(tmp_path / "rows"), str(script))
    assert code == 0 and "another model" not in err
    assert [row["step"] for row in read_rows(tmp_path / "rows" / PER_STEP)] == [*range(1, 7)]


def test_a_fault_of_a_script_is_reported(tmp_path: Path) -> None:
    text = MODEL + LOOPS["two optimizers"].replace("batches[:4]", "2 * batches")
    text = text.replace("1e-2)", "0.0)").replace("1e-3)", "0.0)")
    code, _, err = called("watch", "--out", str(tmp_path / "rows"), written(tmp_path, text))
    assert code == 0 and "16 updates, 1 warning" in err
    assert [row["signal"] for row in read_rows(tmp_path / "rows/warnings.jsonl")] == ["updates"]
    code, out, err = called("explain", str(tmp_path / "rows"))  # though it has no spike
    assert code == 0, err
    assert "learning rate" in out and (tmp_path / "rows/explain/explain.html").exists()


def test_a_script_that_is_not_there() -> None:
    assert refused("watch", "no/such.py") == "isograd watch: no/such.py: no such file"


UNUSUAL = {
    "the loss by names": """
for x, y in batches[:4]:
    optimizer.zero_grad()
    F.cross_entropy(input=model(x).flatten(0, 1), target=y.flatten()).backward()
    optimizer.step()
""",
    "a forward of a module": """
class Outer(nn.Module):
    def forward(self, module):
        return model(module)
outer = Outer()
outer.inner = model
for x, y in batches[:4]:
    optimizer.zero_grad()
    F.cross_entropy(outer(module=x).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
""",
    "torch.jit": """
class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)
    def forward(self, x, y):
        return F.cross_entropy(self.table(x).flatten(0, 1), y.flatten())
model = torch.jit.script(Scripted())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in batches[:4]:
    optimizer.zero_grad()
    model(x, y).backward()
    optimizer.step()
""",
    "many parts": """
for update in range(4):
    for part in range(16):
        x, y = batches[(update + part) % 8]
        (F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 16).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_script_has_its_four_updates(name: str, tmp_path: Path) -> None:
    text = MODEL + "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n" + UNUSUAL[name]
    code, _, err = called("watch", "--out", str(tmp_path / "rows"), written(tmp_path, text))
    assert code == 0 and "4 updates, 0 warnings" in err, err
    assert [row["step"] for row in read_rows(tmp_path / "rows" / PER_STEP)] == [1, 2, 3, 4]


def test_the_end_of_the_process_and_a_traceback_are_the_script_s(tmp_path: Path) -> None:
    """A class of the script's is pickled after its last line, and causes of an exception are shown."""
    text = """
import atexit, pickle
class Mine: pass
atexit.register(lambda: print("kept", len(pickle.dumps(Mine()))))
try:
    1 / 0
except ZeroDivisionError as error:
    raise KeyError("mine") from error
"""
    script = written(tmp_path, text)
    done = subprocess.run([sys.executable, "-m", "isograd", "watch", script], capture_output=True, text=True)
    plain = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.stdout == plain.stdout and "kept" in done.stdout
    assert plain.stderr in done.stderr and done.returncode == 1


def test_a_process_that_the_script_forks_leaves_the_rows_alone(tmp_path: Path) -> None:
    text = (
        MODEL
        + """
import os
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for at, (x, y) in enumerate(batches[:4]):
    child = os.fork() if at == 2 else None
    optimizer.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
    if child == 0:
        sys.exit()
    elif child:
        os.waitpid(child, 0)
"""
    )
    rows = tmp_path / "rows"
    words = [sys.executable, "-m", "isograd", "watch", "--out", str(rows), written(tmp_path, text)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.count("isograd watch:") == 1, done.stderr
    assert [row["step"] for row in read_rows(rows / PER_STEP)] == [1, 2, 3, 4]


def test_what_is_not_seen_is_said(tmp_path: Path) -> None:
    text = (
        MODEL
        + """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in batches[:2]:
    torch.autograd.backward([F.cross_entropy(model(x).flatten(0, 1), y.flatten())])
    optimizer.step()
"""
    )
    _, _, err = called("watch", "--out", str(tmp_path / "rows"), written(tmp_path, text))
    assert err.endswith("no loss.backward() was seen: nothing was watched\n")


@pytest.mark.skipif(sys.platform != "linux", reason="snapshots are forks")
def test_a_snapshot_waits_for_no_process_of_the_script(tmp_path: Path) -> None:
    text = (
        MODEL
        + """
import os, time
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for at in range(101):
    x, y = batches[at % 8]
    optimizer.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
    if at == 50 and (child := os.fork()) == 0:
        time.sleep(100)
        os._exit(0)
os.kill(child, 9)
os.waitpid(child, 0)
"""
    )
    began = time.monotonic()
    code, _, _ = called("watch", "--spikes", "--out", str(tmp_path / "rows"), written(tmp_path, text))
    assert code == 0 and time.monotonic() - began < 80


def test_ranks_that_the_script_starts_are_not_waited_for(tmp_path: Path) -> None:
    """They are not watched, so that none of them would answer."""
    text = (
        MODEL
        + """
import os
import torch.distributed as dist

child = os.fork()
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(child == 0), world_size=2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in batches[:4]:
    optimizer.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
if child:
    os.waitpid(child, 0)
else:
    os._exit(0)
"""
    )
    rows = tmp_path / "rows"
    words = [sys.executable, "-m", "isograd", "watch", "--out", str(rows), written(tmp_path, text)]
    done = subprocess.run([*words, str(tmp_path / "store")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in read_rows(rows / PER_STEP)] == [1, 2, 3, 4]
