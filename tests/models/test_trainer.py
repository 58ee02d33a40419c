"""The models under transformers' own Trainer."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from isograd.diagnose.calibrate import calibrate
from isograd.models import (
    IsogradConfig,
    IsogradForCausalLM,
    IsogradForMaskedLM,
    IsogradForSeq2SeqLM,
    IsogradForSequenceClassification,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 8,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "causal": (IsogradForCausalLM, {}),
    "masked": (IsogradForMaskedLM, {}),
    "seq2seq": (IsogradForSeq2SeqLM, {"encoder_layers": 1}),
    "classification": (IsogradForSequenceClassification, {"num_labels": 3}),
}


def network(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    cls, more = MODELS[kind]
    return cls(IsogradConfig(**SHAPE, **more, **options))


def samples(kind: str, n: int = 16) -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(2, 31, (n, 8), generator=torch.Generator().manual_seed(1))
    labels = ids[:, 0] % 3 if kind == "classification" else ids
    return [{"input_ids": i, "labels": label} for i, label in zip(ids, labels, strict=True)]


def trainer(kind: str, folder: Path, **arguments: Any) -> Trainer:
    args = TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no",
        dataloader_pin_memory=False, **arguments,
    )  # fmt: skip
    return Trainer(network(kind), args, train_dataset=samples(kind), eval_dataset=samples(kind))


@pytest.mark.parametrize("kind", MODELS)
def test_evaluate_gives_the_loss(kind: str, tmp_path: Path) -> None:
    made = trainer(kind, tmp_path)
    batch = {name: torch.stack([s[name] for s in samples(kind)]) for name in ("input_ids", "labels")}
    with torch.no_grad():
        expected = float(made.model.eval()(**batch).loss)
    assert made.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_accumulation_changes_no_step(kind: str, tmp_path: Path) -> None:
    """16 samples at once, and 4 times 4."""
    trained = []
    for micro, accumulation in ((16, 1), (4, 4)):
        made = trainer(
            kind, tmp_path, max_steps=1, per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation,
            optim="sgd", learning_rate=1.0, max_grad_norm=0.0, seed=3,
        )  # fmt: skip
        made.train()
        trained.append(torch.cat([p.detach().flatten() for p in made.model.parameters()]))
    start = torch.cat([p.detach().flatten() for p in network(kind).parameters()])
    torch.testing.assert_close(trained[1] - start, trained[0] - start, rtol=1e-4, atol=1e-6)


def test_problem_types() -> None:
    ids = torch.randint(2, 31, (4, 8))
    several = torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]])
    model = network("classification").eval()
    out = model(ids, labels=several)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(out.logits, several)
    torch.testing.assert_close(out.loss, expected)
    assert model.config.problem_type == "multi_label_classification"
    one = IsogradForSequenceClassification(IsogradConfig(**SHAPE, num_labels=1)).eval()
    values = torch.tensor([0.5, 2.0, -1.0, 3.0])
    out = one(ids, labels=values)
    torch.testing.assert_close(out.loss, ((out.logits[:, 0] - values) ** 2).mean())


def test_tables_of_their_own_are_not_resized_by_one_number() -> None:
    with pytest.raises(ValueError, match="tables of their own"):
        network("seq2seq").resize_token_embeddings(40)
    shared = network("seq2seq", share_encoder_embeddings=True)
    shared.resize_token_embeddings(40, mean_resizing=False)
    ids = torch.full((1, 3), 39)
    assert shared(ids, decoder_input_ids=ids).logits.shape == (1, 3, 40)


def test_what_cannot_be_run_says_so() -> None:
    ids = torch.randint(2, 31, (1, 8))
    with pytest.raises(ValueError, match="pass labels, decoder_input_ids or decoder_inputs_embeds"):
        network("seq2seq")(ids)
    with pytest.raises(ValueError, match="9 positions asked for, but the learned table has max_position_embeddings=8"):
        network("causal")(torch.randint(2, 31, (1, 9)))
    with pytest.raises(ValueError, match="unknown option 'layers': did you mean 'num_hidden_layers'"):
        IsogradConfig(layers=3)


def test_an_uncalibrated_admin_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Once, when it is put into training; never when the profile has been taken or the placement asks for none."""
    text = "placement 'admin' has not been calibrated"
    logging.Logger.warning_once.cache_clear()  # type: ignore[attr-defined]  # transformers' addition; said before
    with caplog.at_level(logging.WARNING):
        network("causal").train()
        calibrated = network("causal", placement="admin")
        calibrate(calibrated, {"input_ids": samples("causal")[0]["input_ids"][None]})
        calibrated.train()
        assert text not in caplog.text
        network("causal", placement="admin").train()
    assert text in caplog.text
