"""The card says where a model comes from, and nothing of somebody's machine."""

import json
from pathlib import Path
from typing import Any

import yaml

from isograd.convert.checkpoints.card import model_card
from isograd.convert.checkpoints.folder import Source, Written
from isograd.convert.checkpoints.subwords import PairTokenizer, train_subwords
from isograd.convert.kinds import MASKED, PAIR
from isograd.convert.parity import ParityReport
from isograd.convert.sample import Sample
from tests.build import model

REPORT = ParityReport(
    about="a and b",
    logits=(),
    generated=(),
    inputs={"kind": "by hand", "sequences": 1, "tokens": 2, "padding": 0, "prompts": 0},
)
RUN: dict[str, dict[str, Any]] = {
    "run": {
        "name": "my-run",
        "task": "translation",
        "seed": 7,
        "training": {"lr": 0.0007, "optimizer": "radam", "warmup": 6000},
    },
    "resolved": {"data": {"source": "/home/me/secret/train.de", "sha256": "ab" * 32, "tokens": 12345}},
    "outcome": {"outcome": "finished", "steps": 90, "final_loss": 3.20015, "validation_loss": None, "bleu": 35.5},
}


def card(folder: Path, **options: Any) -> str:
    pair = PairTokenizer(*(train_subwords(["ab"], "char", 0) for _ in range(2)), languages=("de", "en"))
    source: dict[str, Any] = {"model": model("seq2seq", placement="admin"), "kind": PAIR, "tokenizer": pair}
    source |= {"folder": folder, "sample": Sample(kind="none", batches=()), "facts": {}}
    written: dict[str, Any] = {"to": "fsmt", "form": "FSMTForConditionalGeneration", "library": "transformers"}
    written |= {"use": "model = load()", "report": REPORT, "notes": ("A word.",)}
    parts = [{k: v for k, v in (given | options).items() if k in given} for given in (source, written)]
    return str(model_card(Source(**parts[0]), Written(**parts[1])))


def test_a_card_of_a_run(tmp_path: Path) -> None:
    for name, content in RUN.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "model").mkdir()
    text = card(tmp_path / "model")
    assert text == card(tmp_path)
    front = yaml.safe_load(text.split("---\n")[1])
    (index,) = front.pop("model-index")
    (result,) = index["results"]
    assert index["name"] == "my-run" and result["dataset"] == {
        "name": "train.de",
        "type": "train.de",
        "split": "validation",
    }
    assert [(metric["type"], metric["value"]) for metric in result["metrics"]] == [("bleu", 35.5)]
    assert front == {
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "tags": ["isograd", "admin"],
        "language": ["de", "en"],
    }
    for line in (
        "# my-run",
        "| cross | `x <- LN(skip * x + Cross(x))` |",
        "| where | skip: a trainable vector of the width per sublayer, set by a profile of the first batch |",
        "| paper | Liu et al. 2020, arXiv 2004.08249 |",
        "| seed | 7 |",
        "| data | train.de |",
        f"| sha256 of the data | {'ab' * 32} |",
        "| tokens | 12,345 |",
        "| optimizer | radam, peak learning rate 0.0007, warmup 6000 |",
        "| outcome | finished |",
        "| training loss | 3.2 |",
        "| BLEU | 35.5 |",
        "- A word.",
    ):
        assert f"\n{line}\n" in text, line
    assert "secret" not in text and "validation loss" not in text
    assert "```text\na and b\n" in text and "\nmodel = load()\n```" in text


def test_a_card_without_a_run(tmp_path: Path) -> None:
    text = card(tmp_path, model=model("masked", placement="post-ln"), kind=MASKED, tokenizer=None, notes=())
    assert "# post-ln, 2 layers" in text and "does not say how it was trained" in text
    assert "\n\n\n" not in text and "fill-mask" in text and "language" not in text.split("---\n")[1]


def test_files_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"seed": 1}')
    (tmp_path / "outcome.json").write_text("{")
    assert "| seed | 1 |" in card(tmp_path)


def test_a_model_that_was_imported_was_not_trained_here(tmp_path: Path) -> None:
    assert "trained with isograd" not in card(tmp_path) and "trained model" not in card(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(RUN["run"]))
    assert "trained with isograd" in card(tmp_path)
