"""`isograd compare`: what it prints, what it refuses, and that a kill costs nothing but time."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.study.arms import called, compare_command, lines, read, refused, runs, same_numbers
from tests.train.recipes import small_translation

SETTINGS = ["placement", "layers", "lr", "warmup", "seed"]
KEYS = [*SETTINGS, "outcome", "final_loss", "gradient_ratio_start", "gradient_ratio_end", "tokens_per_second"]


HELD = "tests.study.held"
PATIENCE = 600  # seconds after which something hangs, however busy the machine is


def started(command: list[str], held_after: int | None = None, **held: object) -> "subprocess.Popen[str]":
    """The command in a session of its own, so that a signal reaches it alone; see `HELD` for runs that stop.

    `held`: HELD_IN and HELD_ENDED, for the steps that count.
    """
    line = [sys.executable, "-m", "isograd" if held_after is None else HELD, *command]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "HELD_AFTER": str(held_after)}
    environment |= {name: str(value) for name, value in held.items()}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, env=environment, start_new_session=True, **pipes)


def wait_until_held(process: "subprocess.Popen[str]", out: Path, steps: list[int]) -> None:
    """Until the runs in a folder have taken so many steps each."""
    end = time.monotonic() + PATIENCE
    while sorted(len(p.read_text().splitlines()) for p in out.glob("*/metrics.jsonl")) != steps:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "nothing trains"
        time.sleep(0.05)


def session(leader: int) -> list[int]:
    """Living processes of a session, from /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def gone(leader: int) -> bool:
    """Whether the session empties."""
    end = time.monotonic() + PATIENCE
    while session(leader):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(scope="module")
def told(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A whole comparison as a user starts it: in processes, stdout and stderr kept apart."""
    out = tmp_path_factory.mktemp("study") / "a folder"
    process = started(compare_command(text, out, "--json", "--jobs", "2", "--seeds", "0", "1", "0"))
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    announced, first, *ends, last = stderr.splitlines()
    assert last == "making the page", stderr
    assert announced == f"12 runs in {out}; loading torch and transformers ...", stderr
    assert first == "12 runs to train" and len(ends) == 12, stderr
    assert all(": undecided, loss " in line for line in ends), stderr
    return out, json.loads(stdout)


def test_json(told: tuple[Path, dict[str, Any]]) -> None:
    out, content = told
    assert list(content) == ["unigram_entropy", "arms", "report"]
    arms = content["arms"]
    assert [(a["placement"], a["warmup"]) for a in arms[:6]] == [
        ("post-ln", 0), ("post-ln", 6), ("pre-ln", 0), ("normformer", 0), ("admin", 0), ("deepnorm", 0)
    ]  # fmt: skip
    assert [a["seed"] for a in arms] == [0] * 6 + [1] * 6
    for arm in arms:
        assert list(arm)[:5] == SETTINGS and set(KEYS) <= set(arm)
        assert (arm["layers"], arm["lr"], arm["outcome"]) == (2, 1e-3, "undecided")
        folder = Path(arm["folder"])
        losses = [r["loss"] for r in lines(folder / "metrics.jsonl")]
        assert len(losses) == 12
        assert arm["final_loss"] == pytest.approx(statistics.fmean(losses), rel=1e-12)
        assert read(folder / "resolved.json")["data"]["unigram_entropy"] == content["unigram_entropy"]
    assert len({a["final_loss"] for a in arms}) == 12
    assert content["report"] == str(out / "report.html") and (out / "report.html").is_file()


@pytest.mark.slow
def test_again_and_one_process(told: tuple[Path, dict[str, Any]], text: Path) -> None:
    """The second call trains nothing and says the same; one process gives the numbers of two."""
    out, content = told
    before = {p: p.stat().st_mtime_ns for p in out.glob("*/*.json*")}
    command = compare_command(text, out, "--json", "--seeds", "0", "1")
    code, stdout, stderr = called(*command)
    assert code == 0 and json.loads(stdout) == content and len(stderr.splitlines()) == 2
    assert {p: p.stat().st_mtime_ns for p in out.glob("*/*.json*")} == before
    alone, beside = out.parent / "alone", out.parent / "beside"
    assert (
        called(*compare_command(text, alone, "--jobs", "1", "--seeds", "1", "--placements", "post-ln", "admin"))[0] == 0
    )
    for folder in runs(alone):
        shutil.copytree(out / folder.name, beside / folder.name)
    same_numbers(alone, beside)


def test_the_table(told: tuple[Path, dict[str, Any]], text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, content = told
    stdout = called(*compare_command(text, out))[1]
    table = stdout.splitlines()
    assert table[0].split() == ["placement", "outcome", "final", "valid", "g1/gL", "tok/s", "params"]
    for row, arm in zip(table[1:7], content["arms"], strict=False):
        warmup = f"warm-up {arm['warmup']}" if arm["warmup"] else "no warm-up"
        assert row.startswith(f"{arm['placement']}, {warmup} ") and f" {arm['final_loss']:.3f} " in row
        assert f"{arm['gradient_ratio_start']:.2g} → {arm['gradient_ratio_end']:.2g}" in row
    assert "One seed" in stdout and stdout.endswith(f"report: {out}/report.html\n")
    monkeypatch.setenv("COLUMNS", "46")
    narrow = called(*compare_command(text, out))[1].splitlines()
    assert narrow[0].split() == ["placement", "outcome", "final", "g1/gL"]  # what matters is not cut
    assert all(any(f" {arm['final_loss']:.3f} " in row for row in narrow) for arm in content["arms"][:6])


@pytest.mark.slow
def test_another_folder_and_a_relative_path(
    told: tuple[Path, dict[str, Any]], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same file is the same run, however it is named."""
    out, content = told
    monkeypatch.chdir(text.parent)
    command = compare_command(Path(text.name), Path(os.path.relpath(out)), "--json")
    again = json.loads(called(*command)[1])
    assert [a["final_loss"] for a in again["arms"]] == [a["final_loss"] for a in content["arms"][:6]]


def test_a_folder_named_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word stays the default text."""
    (tmp_path / "embedded").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "shorter than one sequence" in refused("compare", "data.length=99999999", "--out", "out")


@pytest.mark.slow
def test_a_kill_leaves_no_process_and_costs_no_number(text: Path, tmp_path: Path) -> None:
    """Both runs are killed in step 111 of 120, of which the last checkpoint has 100."""
    arms = ["--placements", "pre-ln", "admin"]
    out, there = tmp_path / "killed", tmp_path / "undisturbed"
    process = started(compare_command(text, out, *arms, "--jobs", "2", steps=120), held_after=110)
    wait_until_held(process, out, [110, 110])
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert gone(process.pid)
    assert not any((folder / "outcome.json").exists() for folder in runs(out))
    assert [sorted(p.name for p in folder.glob("checkpoints/*")) for folder in runs(out)] == [
        ["checkpoint-100", "initial"]
    ] * 2
    for folder in (out, there):
        assert called(*compare_command(text, folder, *arms, "--jobs", "1", steps=120))[0] == 0
    same_numbers(out, there)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "group"])
def test_an_interrupt_is_one_line(name: str, text: Path, tmp_path: Path) -> None:
    """And 130, with nobody left. "group": Ctrl-C, which all processes hear."""
    arms = ["--placements", "pre-ln", "post-ln", "admin"]
    process = started(compare_command(text, tmp_path / "out", *arms, "--jobs", "2", steps=40), held_after=10)
    wait_until_held(process, tmp_path / "out", [10, 10])
    if name == "group":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(getattr(signal, name))
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (130, "")
    announced = f"3 runs in {tmp_path / 'out'}; loading torch and transformers ...\n"
    assert stderr == f"{announced}3 runs to train\ninterrupted; start the same command again to go on\n"
    assert gone(process.pid)
    assert len(runs(tmp_path / "out")) == 2  # the third had not begun


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupt_of_runs_that_move_is_no_failure(jobs: str, text: Path, tmp_path: Path) -> None:
    """Twice, and in all processes: nothing is called failed, and the same command goes on from the last checkpoint."""
    out = tmp_path / "out"
    command = compare_command(text, out, "--placements", "pre-ln", "admin", "--jobs", jobs, steps=3000)

    def farthest() -> int:
        return max((int(path.name.split("-")[1]) for path in out.glob("*/checkpoints/checkpoint-*")), default=0)

    for _ in range(2):
        process, end, before = started(command), time.monotonic() + PATIENCE, farthest()
        while farthest() <= before:
            assert process.poll() is None and time.monotonic() < end, process.communicate()
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130 and "interrupted" in stderr and gone(process.pid), stderr
        ended = [json.loads(path.read_text())["outcome"] for path in out.glob("*/outcome.json")]
        assert {*ended} <= {"interrupted"} and "failed" not in stderr


def test_an_interrupt_within_an_import_is_one_line_too() -> None:
    """A library in C makes another error of it, and its half would crash the interpreter where that takes it down."""
    script = """
import os, signal, sys
from isograd import cli
from isograd.cli import catalogue

class Half:
    def __del__(self):
        os.abort()

def importing(placement: str | None = None) -> int:
    "A verb."
    catalogue.half = Half()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt as interrupt:
        raise ImportError("initialization failed") from interrupt

catalogue.show = importing
sys.argv = ["isograd", "show"]
sys.exit(cli.main())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    said = "interrupted; start the same command again to go on\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--data nosuch.txt", "nosuch.txt: no such file"),
        ("--data empty.txt", "empty.txt: is empty"),
        ("--data latin.txt", "latin.txt, line 2: not UTF-8"),
        ("--data short.txt", "shorter than one sequence of 8"),
        ("--data folder", "is a folder"),
        ("--data some/hub-name", "as a data set on the hub it cannot be loaded"),
        ("--placements pre-ln postln", "did you mean 'post-ln'"),
        ("model.layers=0", "model.layers=0"),
        ("model.width=64 model.heads=3", "model.width=64 is not a multiple of model.heads=3"),
        ("training.steps=0", "training.steps=0"),
        ("training.batch=0", "training.batch=0"),
        ("data.length=0", "data.length=0"),
        ("data.length=99999999", "shorter than one sequence"),
        ("training.lr=-1", "training.lr=-1.0"),
        ("training.lr=.nan", "training.lr=nan"),
        ("training.warmup=-1", "training.warmup=-1"),
        ("--seeds 0 -1", "seed=-1"),
        ("--jobs 0", "jobs=0"),
        ("--out empty.txt", "is a file"),
        ("--out empty.txt/inside", "Not a directory"),
        ("--fresh --data nosuch.txt", "no such file"),
    ],
)
def test_bad_input(words: str, said: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and nothing written."""
    monkeypatch.chdir(tmp_path)
    for name, content in (("empty.txt", b""), ("latin.txt", b"good\nna\xefve\n"), ("short.txt", b"abc")):
        Path(name).write_bytes(content)
    Path("folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert said in refused(*compare_command(text, Path("out")), *words.split())
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unwritable for root")
def test_unwritable(text: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "Permission denied" in refused(*compare_command(text, tmp_path / "out"))


@pytest.mark.slow
def test_a_folder_of_another_recipe(text: Path, tmp_path: Path) -> None:
    """Only by hand can a folder hold another recipe: it is said, and --fresh trains anew."""
    command = compare_command(text, tmp_path / "out", "--placements", "pre-ln", "--jobs", "1", steps=4)
    assert called(*command)[0] == 0
    path = runs(tmp_path / "out")[0] / "run.json"
    path.write_text(path.read_text().replace('"steps": 4', '"steps": 5'))
    assert "holds a run of another recipe" in refused(*command)
    assert called(*command, "--fresh")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a", "data.length=1 training.batch=1 model.layers=1 model.width=4 model.heads=4"),
        ("aaaaaaaa\n", "data.level=bpe data.length=1"),
        ("ab\x00\U0001f600 \u2028é" * 9, "training.warmup=99"),
    ],
)
def test_odd_shapes(content: str, words: str, tmp_path: Path) -> None:
    """One character, one token, one head per column, text of anything."""
    path = tmp_path / "<b>& ü.txt"
    path.write_text(content * 20)
    command = compare_command(path, tmp_path / "out", "--placements", "pre-ln", "normformer", "admin", "--jobs", "1")
    code, stdout, _ = called(*command, *words.split(), "--json")
    assert code == 0
    assert {a["outcome"] for a in json.loads(stdout)["arms"]} <= {"finished", "undecided"}
    page = (tmp_path / "out/report.html").read_text()
    assert "<b>& ü.txt" not in page and "&lt;b&gt;&amp; ü.txt" in page


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A translation with its arms and seeds, in the current folder."""
    monkeypatch.chdir(tmp_path)
    content = small_translation(name="tiny", model={"encoder_layers": 1}, training={"warmup": 4}).as_dict()
    arms = {"arms": [["post-ln"], ["post-ln", "training.warmup=0"], ["pre-ln"]], "seeds": [2, 5]}
    Path("recipe.yaml").write_text(yaml.safe_dump(content | arms))
    return Path("recipe.yaml")


@pytest.mark.slow
def test_a_recipe_with_its_arms(recipe: Path) -> None:
    """One command; the same again trains nothing; `isograd train` takes the same file, and gives the arm's numbers."""
    command = ["compare", str(recipe), "--json", "--jobs", "1"]
    code, stdout, stderr = called(*command)
    assert code == 0, stderr
    content = json.loads(stdout)
    arms = content["arms"]
    assert [(a["placement"], a["warmup"], a["seed"]) for a in arms] == [
        (placement, warmup, seed)
        for seed in (2, 5)
        for placement, warmup in (("post-ln", 4), ("post-ln", 0), ("pre-ln", 4))
    ]
    for arm in arms:
        assert (arm["task"], arm["encoder_layers"], arm["layers"], arm["kept_steps"]) == ("translation", 1, 2, [9])
        last = lines(Path(arm["folder"]) / "validation.jsonl")[-1]
        assert [arm[k] for k in ("validation_loss", "perplexity", "bleu")] == [
            last[k] for k in ("loss", "perplexity", "bleu")
        ]
    assert content["report"] == "runs/compare-tiny/report.html" and Path("runs/compare-tiny/validation.svg").is_file()
    before = {p: p.stat().st_mtime_ns for p in Path("runs").glob("*/*/*.json*")}
    assert json.loads(called(*command)[1]) == content
    assert {p: p.stat().st_mtime_ns for p in Path("runs").glob("*/*/*.json*")} == before
    code, stdout, _ = called("train", str(recipe), "--json", "model.placement=post-ln", "seed=2")
    alone = json.loads(stdout)
    assert code == 0 and alone["folder"] == "runs/tiny"
    assert (alone["validation_loss"], alone["bleu"]) == (arms[0]["validation_loss"], arms[0]["bleu"])


@pytest.mark.slow
def test_arms_seeds_and_overrides_of_the_command(recipe: Path) -> None:
    """In place of those of the recipe; overrides are behind it, also behind an option."""
    command = [
        "compare",
        str(recipe),
        "training.steps=4",
        "--json",
        "--jobs",
        "1",
        "--seeds",
        "3",
        "--out",
        "o",
    ]
    code, stdout, stderr = called(*command, "--arm", "admin", "--arm", "pre-ln", "training.lr=2e-3", "model.layers=1")
    assert code == 0, stderr
    arms = json.loads(stdout)["arms"]
    assert [(a["placement"], a["lr"], a["layers"], a["seed"], a["warmup"]) for a in arms] == [
        ("admin", 0.01, 2, 3, 4),
        ("pre-ln", 0.002, 1, 3, 4),
    ]
    assert [a["arm"] for a in arms] == ["admin, warm-up 4, 2 layers, lr 0.01", "pre-ln, warm-up 4, 1 layers, lr 0.002"]
    assert {len(lines(Path(a["folder"]) / "metrics.jsonl")) for a in arms} == {4}
    code, stdout, stderr = called(*command, "--placements", "post-ln")
    assert code == 0 and [a["placement"] for a in json.loads(stdout)["arms"]] == ["post-ln"]
    table = called(*[word for word in command if word != "--json"], "--placements", "post-ln")[1]
    assert "BLEU" in table and "report: o/report.html" in table


def test_arms_of_the_built_in_model(text: Path, tmp_path: Path) -> None:
    command = compare_command(text, tmp_path / "out", "--json", "--jobs", "1", steps=4)
    code, stdout, stderr = called(
        *command, "--arm", "post-ln", "--arm", "pre-ln", "training.warmup=2", "training.lr=1e-4"
    )
    assert code == 0, stderr
    assert [(a["arm"], a["warmup"]) for a in json.loads(stdout)["arms"]] == [
        ("post-ln, no warm-up, lr 0.001", 0),
        ("pre-ln, warm-up 2, lr 0.0001", 2),
    ]
    assert (tmp_path / "out/loss.svg").is_file() and not (tmp_path / "out/validation.svg").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("recipe.yaml --data x.txt", "data.source is read by task="),
        ("recipe.yaml --arm pre-ln --placements admin", "--arm and --placements contradict each other"),
        ("recipe.yaml --placements pre-ln model.layers=3", "'model.layers=3' is not a placement"),
        ("recipe.yaml --arm model.layers=3", "an arm begins with a placement"),
        ("recipe.yaml --arm preln", "did you mean 'pre-ln'"),
        ("recipe.yaml model.layer=3", "did you mean 'model.layers'"),
        ("recipe.yaml training.lr=-1", "training.lr=-1"),
        ("recipe.yaml --arm pre-ln model.layers=0", "model.layers=0"),
        ("nosuch.yaml", "nosuch.yaml: no such recipe"),
        ("recipe.yaml pairs.train=[nosuch]", "nosuch"),
    ],
)
def test_recipes_refused(words: str, said: str, recipe: Path) -> None:
    """One line, and nothing written."""
    before = sorted(Path().rglob("*"))
    assert said in refused("compare", *words.split())
    assert sorted(Path().rglob("*")) == before
