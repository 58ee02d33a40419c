"""Trainers of trl: their loss is seen though its head forms no logits, and a preference loss is none of the labels."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import isograd
from isograd.diagnose.watch.loops.script import ScriptWatch
from tests.preflight.test_faults import loud

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")  # trainers' advice
NOUNS, VERBS, ENDS = ("cat", "dog", "bird", "fish", "cow", "fox"), ("sees", "likes", "eats"), ("now", "today", "here")
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "the", "good", "bad", "what", "does", "?", ".", *NOUNS, *VERBS, *ENDS]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=64, **shape, **ids))


def rows(kind: str) -> Any:
    from datasets import Dataset

    draw, made = random.Random(0), []
    for _ in range(128):
        a, b, verb, end = draw.choice(NOUNS), draw.choice(NOUNS), draw.choice(VERBS), draw.choice(ENDS)
        said, other = f" the {a} {verb} the {b} good .", f" the {b} {verb} the {a} bad {end} ."
        prompt = f"the {a} {verb} the {b} . what does the {a} ?"
        text = f"the {a} {verb} the {b} {end} . " * draw.randint(1, 3)
        made.append(
            {
                "text": {"text": text},
                "answers": {"prompt": prompt, "completion": said},
                "pairs": {"prompt": prompt, "chosen": said, "rejected": other},
            }[kind]
        )
    return Dataset.from_list(made)


def trainer(kind: str, folder: Path, **settings: Any) -> Any:
    usual: dict[str, Any] = {"per_device_train_batch_size": 8, "max_steps": 60, "use_cpu": True, "bf16": False}
    usual |= {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "seed": 0, "max_length": 48}
    usual |= {"output_dir": str(folder), "gradient_checkpointing": False, "learning_rate": 1e-3} | settings
    given = {"model": model(), "train_dataset": rows(kind), "processing_class": tokenizer()}
    if kind == "pairs":
        return trl.DPOTrainer(**given, ref_model=model(), args=trl.DPOConfig(**usual))
    return trl.SFTTrainer(**given, args=trl.SFTConfig(**usual))


def relabelled(one: Any, labels: Callable[[dict[str, Tensor]], Tensor]) -> Any:
    collate = one.data_collator

    def collated(some: Any) -> Any:
        batch = collate(some)
        return {**batch, "labels": labels(batch)}

    one.data_collator = collated
    return one


HEALTHY: dict[str, tuple[str, dict[str, Any]]] = {
    "sft": ("text", {}),
    "sft, packed": ("text", {"packing": True}),
    "sft on answers, accumulated, bf16": ("answers", {"gradient_accumulation_steps": 2, "bf16": True}),
    "dpo": ("pairs", {"learning_rate": 1e-4}),
    "dpo, precomputed": ("pairs", {"learning_rate": 1e-4, "precompute_ref_log_probs": True}),
    "ipo, accumulated": ("pairs", {"loss_type": ["ipo"], "gradient_accumulation_steps": 2}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_trainer_is_silent_and_its_loss_is_read(name: str, tmp_path: Path) -> None:
    kind, settings = HEALTHY[name]
    report = isograd.preflight(trainer(kind, tmp_path, **settings))
    assert not loud(report) and not report.missed, f"{report} {report.missed}"
    assert "scored against the next token of input_ids" in report.groups["loss"], report.groups


@pytest.mark.parametrize(
    ("code", "labels"),
    [
        ("padding-scored", lambda batch: batch["input_ids"]),
        ("loss-shifted", lambda batch: torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)),
        ("batch-without-targets", lambda batch: torch.full_like(batch["labels"], -100)),
    ],
)
def test_faults_in_labels_are_named(code: str, labels: Callable[..., Tensor], tmp_path: Path) -> None:
    assert loud(isograd.preflight(relabelled(trainer("text", tmp_path), labels))) == {code}


def test_faults_of_a_preference_trainer_are_named(tmp_path: Path) -> None:
    other = trainer("pairs", tmp_path)
    other.optimizer = torch.optim.AdamW(model().parameters(), 1e-4)
    assert "optimizer-of-another-model" in loud(isograd.preflight(other))


def test_preflight_leaves_the_fused_head(tmp_path: Path) -> None:
    one, twin = trainer("text", tmp_path, max_steps=3), trainer("text", tmp_path, max_steps=3)
    isograd.preflight(one)
    assert one.train().training_loss == twin.train().training_loss
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), twin.model.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["script", "callback"])
@pytest.mark.parametrize(
    ("kind", "settings", "signals"),
    [
        ("text", {}, []),
        ("answers", {"gradient_accumulation_steps": 2}, []),
        ("pairs", {}, []),  # its loss falls far below the entropy of its labels
        ("pairs", {"loss_type": ["ipo"]}, []),
        ("text", {"learning_rate": 0.0}, ["updates"]),
        ("pairs", {"learning_rate": 0.0}, ["updates"]),
    ],
)
def test_watched(way: str, kind: str, settings: dict[str, Any], signals: list[str], tmp_path: Path) -> None:
    one = trainer(kind, tmp_path, **{"max_steps": 100, **settings})
    if way == "callback":
        one.add_callback(called := isograd.WatchCallback(one))
        one.train()
        watch = called.watch
    else:
        with ScriptWatch(None) as script:
            one.train()
        watch = script.watch
    assert watch is not None and [row["signal"] for row in watch.warnings] == signals, watch.warnings


@pytest.mark.slow
def test_labels_shifted_twice_are_named_while_it_trains(tmp_path: Path) -> None:
    one = trainer("text", tmp_path, max_steps=20)
    relabelled(one, lambda batch: torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100))
    with ScriptWatch(None) as script:
        one.train()
    assert script.watch is not None and [row["signal"] for row in script.watch.warnings] == ["labels"]
