"""After real training, when every coefficient has moved: language models, masked ones, translations."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from isograd.convert.checkpoints.folder import load_isograd
from isograd.convert.checkpoints.vocabulary import load_tokenizer
from isograd.convert.folding import fold, measure_fold
from isograd.convert.sample import random_sample, text_sample
from isograd.lab.train.train import train
from isograd.models import IsogradPreTrainedModel
from isograd.transformer.parameters import roles
from tests.train.recipes import TEXT, small, small_translation

LONG: dict[str, Any] = {"steps": 30, "lr": 0.01}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def trained(kind: str, folder: Path, **options: Any) -> IsogradPreTrainedModel:
    if kind == "translation":
        run = small_translation(model={"placement": "admin"} | options, training={"steps": 30})
    else:
        run = small(task=kind, model={"placement": "admin"} | options, training=LONG)
    assert train(run, folder)["outcome"] not in ("failed", "diverged")
    return load_isograd(folder / "model")


def lines(kind: str) -> list[str]:
    return ["one two three", "seven", "nine ten one", "four"] if kind == "translation" else TEXT.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("language", {}),
        (
            "language",
            {"positions": "rotary", "tie_embeddings": False, "act": "swiglu", "norm": "rmsnorm", "bias": False},
        ),
        ("masked", {"embedding_norm": True}),
        ("translation", {}),
        ("translation", {"share_embeddings": False, "embedding_norm": True}),
    ],
)
def test_a_trained_model_folds(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    made = trained(kind, tmp_path / "run", **options)
    named = dict(made.named_parameters())
    skips = [named[name] for name, role in roles(made).items() if role == "coefficient"]
    assert len(skips) > 3 and all(len(skip.unique()) > 1 for skip in skips), "the coefficients have not moved"
    folded = fold(made, untie=True)
    text = text_sample(made, load_tokenizer(tmp_path / "run/model"), lines(kind))
    for sample in (text, random_sample(made)):
        report = measure_fold(made, folded, sample, untie=True)
        assert report.passed, str(report)
        assert all(row.difference < 1e-5 for row in report.logits if row.precision != "bf16")
    assert report.generated or kind == "masked"
    assert text.kind == "text" and text.counts()["tokens"] > 20


def test_negative_control_a_trained_model_with_one_skip_left_out(tmp_path: Path) -> None:
    made = trained("language", tmp_path / "run", embedding_norm=True)
    other = copy.deepcopy(made)
    torch.nn.init.ones_(other.model.layers[1].ffn.combine.skip.weight)
    report = measure_fold(made, fold(other))
    assert not report.passed and "fp32 logits differ" in report.failures()[0]
