"""`isograd evaluate`: what is told of a model, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertLMHeadModel

from isograd.convert.checkpoints.tokenizers import for_transformers, train_tokenizer
from tests import build
from tests.evaluate import items
from tests.evaluate.items import LABEL, write
from tests.study.arms import called, refused

COUNT = 8


@pytest.fixture(scope="module", name="model")
def _model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has ended."""
    run = tmp_path_factory.mktemp("run")
    (run / "run.json").write_text("{}")
    items.saved(run / "model")
    return run


@pytest.fixture(name="data")
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    for task in ("winogrande", "piqa"):
        write(data, task, [row | {LABEL[task]: i % 2} for i, row in enumerate(items.items(task, COUNT))])
    kinds = {"wh_island": "syntax", "anaphor_number_agreement": "morphology"}
    rows = [
        row | {"UID": name, "field": field, "linguistics_term": f"of {name}"}
        for name, field in kinds.items()
        for row in items.items("blimp", COUNT)
    ]
    write(data, "blimp", rows)
    return data


def evaluated(*words: str) -> dict[str, Any]:
    code, out, err = called("evaluate", *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def told(facts: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(score["task"], score["metric"]): score["value"] for score in facts["scores"]}


def test_everything_as_json(model: Path, data: Path) -> None:
    facts = evaluated(str(model), "--data", "data", "--out", "found.json")
    assert json.loads(Path("found.json").read_text()) == facts
    assert list(told(facts)) == [("piqa", "acc"), ("piqa", "acc_norm"), ("winogrande", "acc"), ("blimp", "acc")]
    names = ["task", "metric", "value", "stderr", "chance", "n", "verdict"]
    assert all(list(score) == names for score in facts["scores"])
    assert [score["n"] for score in facts["scores"]] == [COUNT, COUNT, COUNT, 2 * COUNT]
    details = {kind: [score["task"] for score in scores] for kind, scores in facts["details"]["blimp"].items()}
    assert details == {
        "task": ["blimp_anaphor_number_agreement", "blimp_wh_island"],
        "field": ["morphology", "syntax"],
        "linguistics_term": ["of anaphor_number_agreement", "of wh_island"],
    }
    expected = {"model": str(model), "data": "data", "limit": None, "seed": None, "failures": {}, "truncated": 0}
    assert {name: facts[name] for name in expected} == expected
    assert facts["texts"] == 2 * 4 * COUNT and facts["empty_context"] == "</s>"
    assert facts["task_versions"] == {"piqa": 1.0, "winogrande": 1.0, "blimp": "2.0"}
    assert {"isograd", "torch", "transformers", "lm_eval", "device"} <= set(facts["provenance"])


def test_the_table(model: Path, data: Path) -> None:
    """Percent, beside chance; BLiMP's fields under it, and with --details all that there is."""
    facts = evaluated(str(model), "--data", "data")
    code, out, err = called("evaluate", str(model), "--data", "data")
    rows = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert rows[0] == ["task", "metric", "%", "s.e.", "chance", "n"]
    for row, score in zip([rows[1], rows[3], rows[4]], [facts["scores"][i] for i in (0, 2, 3)], strict=True):
        numbers = [f"{100 * score[name]:.1f}" for name in ("value", "stderr", "chance")]
        assert row == [score["task"], score["metric"], *numbers, str(score["n"]), *score["verdict"].split()]
    assert rows[2][0] == "acc_norm" and [rows[5][0], rows[6][0]] == ["morphology", "syntax"]
    assert rows[7][:2] == ["64", "texts"]
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    _, out, _ = called("evaluate", str(model), "--data", "data", "--details")
    assert "  wh_island " in out and "  of wh_island " in out


def test_some_documents(model: Path, data: Path) -> None:
    """The first ones, or drawn ones: the same by the same seed. The labels tell which: 0 and 1 in turn."""
    command = [str(model), "--data", "data", "--tasks", "piqa", "blimp", "--limit", "3"]
    first, drawn, again = (evaluated(*command, *more) for more in ([], ["--seed", "1"], ["--seed", "1"]))
    assert [score["n"] for score in first["scores"]] == [score["n"] for score in drawn["scores"]] == [3, 3, 6]
    assert told(again) == told(drawn)
    values = [told(evaluated(*command, "--seed", str(seed))) for seed in range(6)]
    assert any(value != told(first) for value in values)
    write(data, "piqa", [row | {"label": i % 2} for i, row in enumerate(items.items("piqa", COUNT)[:3])])
    assert told(evaluated(*command))["piqa", "acc"] == told(first)["piqa", "acc"]


def test_options_reach_the_model(model: Path, data: Path) -> None:
    """Neither batches nor bf16 change the count of texts; one document has no standard error."""
    command = [str(model), "--data", "data", "--tasks", "piqa"]
    facts = evaluated(*command)
    assert told(evaluated(*command, "--batch", "1")) == told(facts)
    half = evaluated(*command, "--precision", "bf16", "--threads", "1")
    assert (half["precision"], half["texts"]) == ("bf16", facts["texts"])
    alone = evaluated(*command, "--limit", "1")["scores"][0]
    assert (alone["n"], alone["stderr"], alone["verdict"]) == (1, None, None)


def test_a_task_that_fails_does_not_stop_the_others(model: Path, data: Path) -> None:
    """A row in the hub's form that its own definition cannot read is met in the middle of the task."""
    good = {"sentence": "the _ ran", "option1": "a", "option2": "b", "answer": "1"}
    write(data, "winogrande", [good, good | {"sentence": "no blank"}])
    code, out, err = called("evaluate", str(model), "--data", "data", "--json")
    facts = json.loads(out)
    assert code == 1 and err.count("\n") == 1
    assert err.startswith("isograd evaluate: winogrande: the harness failed (ValueError: substring not found)")
    assert list(facts["failures"]) == ["winogrande"] and ("piqa", "acc") in told(facts)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["M", "--data", "nosuch"], "nosuch: no such folder"),
        (
            ["M", "--data", "M"],
            "no file of a known task; expected JSON lines (.jsonl, also .gz or .xz) named hellaswag",
        ),
        (["M", "--data", "data/blimp.jsonl"], "data/blimp.jsonl: is a file; name its folder"),
        (["M", "--data", "data", "--tasks", "pica"], "unknown task 'pica': did you mean 'piqa'?"),
        (["M", "--data", "data", "--tasks", "hellaswag"], "data: no file for hellaswag; there are piqa_valid.jsonl"),
        (["M", "--data", "data", "--tasks", "blimp_transitive"], "data/blimp.jsonl: no rows of blimp_transitive"),
        (["M", "--tasks", "piqa"], "piqa: its data cannot be loaded from the hub"),
        (["M", "--data", "data", "--seed", "1"], "--seed draws the documents of --limit N, and there is no --limit"),
        (["M", "--data", "data", "--limit", "0"], "--limit: expected a whole number of at least 1"),
        (["M", "--data", "data", "--out", "nosuch/x"], "--out nosuch/x: not a file in a folder that exists"),
        (["nosuch/deep/folder", "--data", "data"], "nosuch/deep/folder: no such folder"),
        (["nosuch", "--data", "data"], "nosuch: no such folder here, and on the hub it cannot be loaded"),
        (["data", "--data", "data"], "data: no config.json here or in model/"),
    ],
)
def test_refused(words: list[str], said: str, model: Path, data: Path) -> None:
    before = sorted(Path().rglob("*"))
    assert said in refused("evaluate", *(str(model) if word == "M" else word for word in words))
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("masked", "IsogradForMaskedLM does not read from left to right"),
        ("classify", "IsogradForSequenceClassification does not read from left to right"),
        ("seq2seq", "IsogradForSeq2SeqLM is an encoder-decoder"),
    ],
)
def test_a_model_that_cannot_score(head: str, said: str, data: Path) -> None:
    build.model(head).save_pretrained("model")
    assert said in refused("evaluate", "model", "--data", "data")


def test_berts_are_masked_models_whatever_their_head_is_called(data: Path) -> None:
    shape = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    for made, is_decoder in ((BertForMaskedLM, False), (BertLMHeadModel, False)):
        made(BertConfig(**shape, is_decoder=is_decoder)).save_pretrained("bert")
        said = refused("evaluate", "bert", "--data", "data")
        assert f"{made.__name__} does not read from left to right; zero-shot tasks score with a causal" in said


def test_a_vocabulary_of_another_model(model: Path, data: Path) -> None:
    """Larger than the table, or smaller: the line has both counts."""
    rows = len(AutoTokenizer.from_pretrained(model / "model"))
    build.model(vocab_size=rows).save_pretrained("other")
    for text in ("abc", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"):
        for_transformers(train_tokenizer([text], "char")).save_pretrained("other")
        said = refused("evaluate", "other", "--data", "data")
        assert f"other: the vocabulary has {len(text) + 4} ids, the model's table {rows} rows" in said


def test_a_model_without_a_tokenizer_or_weights(model: Path, data: Path) -> None:
    build.model().save_pretrained("bare")
    assert "bare: the tokenizer cannot be loaded" in refused("evaluate", "bare", "--data", "data")
    AutoTokenizer.from_pretrained(model / "model").save_pretrained("bare")
    Path("bare/model.safetensors").unlink()
    assert "bare: the model cannot be loaded" in refused("evaluate", "bare", "--data", "data")


def test_a_missing_library(model: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    for name in ("zero_shot", "harness", "harness_tasks"):
        monkeypatch.delitem(sys.modules, f"isograd.lab.evaluate.{name}", raising=False)
    assert "zero-shot tasks need lm_eval" in refused("evaluate", str(model), "--data", "data")
    assert "pip install 'isograd[eval]'" in refused("evaluate", str(model), "--data", "data")
