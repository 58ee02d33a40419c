"""One page of folders of several kinds: runs, watched loops, models, checkpoints of transformers' Trainer."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import isograd
from isograd import IsogradConfig, IsogradForCausalLM
from isograd.files import append_rows, read_rows, write_json
from isograd.lab.report.pages.sides import MISSING, Side, differences, headline, profile, sides_of
from tests.report.test_page import checked
from tests.report.written import written
from tests.study.arms import called, refused

WARNED = {"step": 3, "signal": "updates", "message": "step 3: no weight has moved", "cause": "", "remedy": "step"}


def model(folder: Path, placement: str, **more: Any) -> Path:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    IsogradForCausalLM(IsogradConfig(placement=placement, **sizes, **more)).save_pretrained(folder)
    return folder


def loop(folder: Path, steps: int = 30, warned: bool = True) -> Path:
    folder.mkdir(parents=True)
    append_rows(folder / "metrics.jsonl", [{"step": i, "loss": 4 - i / 30, "grad_norm": 1.0} for i in range(1, steps)])
    layers = [{"step": i, "layer": n, "gradient_mean_abs": n / 10} for i in range(1, steps) for n in (1, 2)]
    append_rows(folder / "quantities.jsonl", layers)
    append_rows(folder / "warnings.jsonl", [WARNED] * warned)
    return folder


def trainer(folder: Path) -> Path:
    """What a Trainer leaves: a checkpoint, and the log in it."""
    checkpoint = folder / "checkpoint-40"
    small = GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(small).save_pretrained(checkpoint)
    log = [
        {
            "step": i,
            "loss": 5 - i / 20,
            "grad_norm": 2.0,
            "learning_rate": 1e-3 - i / 1e6,
            "num_input_tokens_seen": 9 * i,
        }
        for i in range(10, 41, 10)
    ]
    write_json(
        checkpoint / "trainer_state.json", {"log_history": [*log, {"step": 40, "train_loss": 4.0}], "max_steps": 40}
    )
    return folder


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """A folder of each kind."""
    metrics = [{"step": i, "loss": 3.0, "lr": 0.1, "grad_norm": 1.0} for i in range(1, 41)]
    return {
        "run": written(tmp_path, "pre-ln", outcome={"final_loss": 3.0}, metrics=metrics),
        "loop": loop(tmp_path / "loop"),
        "model": model(tmp_path / "model-alone", "post-ln"),
        "trainer": trainer(tmp_path / "trained"),
    }


def report(out: Path, *folders: Path, more: tuple[str, ...] = ()) -> tuple[dict[str, Any], Any]:
    code, said, _ = called("report", *map(str, folders), "--out", str(out), "--json", *more)
    assert code == 0
    content = json.loads(said)
    return content, checked(Path(content["report"]))


def test_a_folder_of_each_kind(places: dict[str, Path], tmp_path: Path) -> None:
    content, page = report(tmp_path / "out", *places.values())
    run, watched, alone, trained = content["sides"]
    assert [side["kind"] for side in content["sides"]] == ["run, finished", "watched loop", "model", "Trainer"]
    assert (run["last_loss"], run["tokens"], run["check"]) == ("3.000", "1,280", MISSING)  # 40 updates of 4 x 8 tokens
    assert watched["first_warning"] == "step 3: no weight has moved" and watched["tokens"] == MISSING
    assert (alone["steps"], alone["last_loss"], alone["first_warning"]) == (MISSING,) * 3
    assert trained["last_loss"] == "3.250"  # of steps 30 and 40, the last 20
    assert trained["tokens"] == "360" and trained["first_warning"] == MISSING
    for name in ("loss", "tokens", "gradients", "weights"):
        assert (tmp_path / "out" / f"{name}.svg").exists()
    assert "whether the data are the same is not recorded" in page.text
    assert r"\toprule" in (tmp_path / "out/tables/differences.tex").read_text()
    differing = (tmp_path / "out/tables/differences.csv").read_text()
    assert f"placement,pre-ln,{MISSING},post-ln,pre-ln" in differing
    assert f"training.lr,0.1,{MISSING},{MISSING},0.00099 (highest logged)" in differing


def test_two_models(tmp_path: Path) -> None:
    """Placement and size per matrix, and what `check` finds of one alone."""
    before, after = model(tmp_path / "before", "post-ln"), model(tmp_path / "after", "pre-ln")
    broken = IsogradForCausalLM.from_pretrained(after)
    with torch.no_grad():
        next(p for name, p in broken.named_parameters() if p.ndim == 2 and "layers.0" in name)[0, 0] = float("nan")
    broken.save_pretrained(after)
    content, page = report(tmp_path / "out", before, after, more=("--label", "before=A", "--label", "after=B"))
    assert [side["folder"] for side in content["sides"]] == ["A", "B"]
    assert "A and B differ in sublayers 1 to 4: post-ln → pre-ln." in page.text
    codes = {one["code"] for one in content["findings"]["B"]}
    assert "not-finite" in codes and f"In B alone: {', '.join(codes)}" in page.text
    assert content["findings"]["A"] == [] and "1 of 2 have a warning or an error: B" in page.text
    assert not (tmp_path / "out/loss.svg").exists() and (tmp_path / "out/weights.svg").exists()


def test_equal_models(tmp_path: Path) -> None:
    """The negative control: nothing differs."""
    before = model(tmp_path / "before", "pre-ln")
    shutil.copytree(before, tmp_path / "after")
    content, page = report(tmp_path / "out", before, tmp_path / "after")
    assert "the same placement in all 4 sublayers" in page.text and "What differs" not in page.text
    rows = (tmp_path / "out/tables/weights.csv").read_text().splitlines()[1:]
    assert rows and all(row.split(",")[-2] == row.split(",")[-1] for row in rows)
    assert {side["check"] for side in content["sides"]} == {"nothing found"}


def test_a_model_that_cannot_be_looked_at(places: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    write_json(tmp_path / "odd/config.json", {"model_type": "no-such-type"})
    content, page = report(tmp_path / "out", places["loop"], tmp_path / "odd")
    assert content["sides"][1]["check"].startswith("not checked: ") and "no-such-type" in page.text


def test_loops_named_or_below(places: dict[str, Path], tmp_path: Path) -> None:
    """Loops and runs in a folder; models below it are not looked at."""
    above = tmp_path / "several"
    loop(above / "one"), loop(above / "two", warned=False)
    content, page = report(tmp_path / "out", above, more=("--label", "two=quiet"))
    assert [(side["folder"], side["first_warning"]) for side in content["sides"]] == [
        ("one", "step 3: no weight has moved"),
        ("quiet", "none"),
    ]
    assert "1 of 2 have a warning or an error: one" in page.text


def test_one_figure_for_a_paper(places: dict[str, Path], tmp_path: Path) -> None:
    words = ("--figure", "loss:1", "--style", "paper", "--format", "pdf", "--out", str(tmp_path / "out"))
    assert called("report", str(places["loop"]), str(places["run"]), *words)[0] == 0
    assert [path.name for path in (tmp_path / "out").glob("*.pdf")] == ["loss-1.pdf"]
    assert not (tmp_path / "out/report.html").exists()


def test_what_is_refused(places: dict[str, Path]) -> None:
    assert "isograd explain" in refused("report", str(places["model"]))
    said = refused("report", str(places["loop"]), str(places["run"]), "--arms", "pre-ln")
    assert "for runs alone" in said
    assert "no folder has the name 'nobody'" in refused(
        "report", str(places["loop"]), str(places["run"]), "--label", "nobody=X"
    )


def test_a_trainer_alone(places: dict[str, Path], tmp_path: Path) -> None:
    content, _ = report(tmp_path / "out", places["trainer"])
    assert content["sides"][0]["steps"] == "40" and content["sides"][0]["check"] == "nothing found"


def test_settings_of_two_runs_are_compared_under_one_name(tmp_path: Path) -> None:
    run = written(tmp_path, "pre-ln", lr=0.3)
    model(run / "model", "pre-ln")
    alone = model(tmp_path / "alone", "pre-ln")
    one, two = sides_of([run, alone], {}, {})
    assert (one.settings["layers"], two.settings["layers"], two.settings["width"]) == (2, 2, 16)
    lines = {line[0]: line[1:] for line in differences([one, two]).lines}
    assert lines["width"] == ("8", "16") and lines["training.lr"] == ("0.3", MISSING) and "layers" not in lines


def test_a_loss_that_is_not_finite() -> None:
    rows = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}]
    assert headline([Side(name="a", kind="run", rows=rows, warned=[])]).startswith("Last loss: not finite (a).")
    assert headline([Side(name="a", kind="model")]) == "None was watched or checked."


def test_the_profile_is_of_the_last_steps() -> None:
    rows = [{"step": step, "layer": n, "gradient_mean_abs": step * n} for step in (1, 100) for n in (1, 2)]
    assert profile(Side(name="a", kind="run", layers=rows)) == {1: 100, 2: 200}


def test_two_watched_loops_differ_in_what_trains_them(tmp_path: Path) -> None:
    kinds = {"sgd": partial(torch.optim.SGD, lr=0.5), "adamw": partial(torch.optim.AdamW, lr=0.25, weight_decay=0.2)}
    for name, kind in kinds.items():
        net = torch.nn.Linear(4, 4)
        optimizer = kind(net.parameters())
        with isograd.watch(net, folder=tmp_path / name, optimizer=optimizer) as watch:
            for _ in range(3):
                optimizer.zero_grad()
                loss = net(torch.ones(2, 4)).square().mean()
                loss.backward()
                watch.step(loss)
                optimizer.step()
    assert [row["lr"] for row in read_rows(tmp_path / "sgd/metrics.jsonl")] == [0.5] * 3
    report(tmp_path / "page", tmp_path / "sgd", tmp_path / "adamw")
    differing = (tmp_path / "page/tables/differences.csv").read_text(encoding="utf-8").splitlines()
    assert {"training.optimizer,SGD,AdamW", "training.weight_decay,0,0.2"} <= set(differing), differing
    assert "training.lr,0.5 (highest logged),0.25 (highest logged)" in differing
    assert not any(line.startswith("parameters") for line in differing)
