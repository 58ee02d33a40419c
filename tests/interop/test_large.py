"""A large model in and out: it is compared one after the other, and nothing of it is held twice."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from isograd.convert import parity
from isograd.convert.checkpoints.folder import Source, load_isograd
from isograd.convert.hf import FAMILIES as HERE
from isograd.convert.kinds import kind_of
from isograd.convert.pretrained import import_pretrained, write_isograd, write_native
from isograd.convert.sample import random_sample
from tests.build import few
from tests.interop.families import FAMILIES
from tests.study.arms import read

CLASSES = ["LlamaForCausalLM", "GPTNeoXForCausalLM", "MBartForConditionalGeneration"]


@pytest.mark.parametrize("cls", few(CLASSES, 3))
def test_in_and_out_one_at_a_time(cls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = next(native for native in FAMILIES if native.cls == cls).build().float()
    made.save_pretrained(tmp_path / "theirs", max_shard_size="5KB")
    import_pretrained(tmp_path / "theirs", tmp_path / "small")
    monkeypatch.setattr(parity, "LARGE", 1000)
    report = import_pretrained(tmp_path / "theirs", tmp_path / "large")
    assert report.passed and [row.precision for row in report.logits] == ["fp32"]
    assert [row.equal for row in report.generated] == [row.prompts for row in report.generated] != []
    small, large = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("small", "large"))
    assert small == large and read(tmp_path / "large/parity.json")["passed"]
    for to in (next(f.name for f in HERE.values() if cls in f.classes.values()), "isograd"):
        source, out = source_of(tmp_path / "large"), tmp_path / to
        out.mkdir()
        written = write_isograd(source, out) if to == "isograd" else write_native(source, out, to)
        assert written.report.passed and all(p.is_meta for p in source.model.parameters())
        if to != "isograd":
            same(getattr(transformers, cls).from_pretrained(out), made)


def test_in_half_precision_it_is_compared_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By copies in float32 of both, as the report says; what is written keeps its precision."""
    made = FAMILIES[0].build().bfloat16()
    made.save_pretrained(tmp_path / "theirs")
    monkeypatch.setattr(parity, "LARGE", 1000)
    report = import_pretrained(tmp_path / "theirs", tmp_path / "ours")
    assert [(row.precision, row.limit) for row in report.logits] == [("fp32", 1e-4)]
    assert (report.logits[0].relative or 0.0) < 1e-6  # bf16 itself would differ by 1e-3
    assert load_isograd(tmp_path / "ours").dtype == torch.bfloat16


def test_the_negative_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that changes between the two is noticed, though only one of them is there at a time."""
    monkeypatch.setattr(parity, "LARGE", 1000)
    model = FAMILIES[0].build().float()
    kept = parity.Remembered.of(model)
    assert parity.measure(kept.side, model, kept.sample).passed
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] += 0.1
    assert not parity.measure(kept.side, model, kept.sample).passed


def source_of(folder: Path) -> Source:
    model = load_isograd(folder)
    kind = kind_of(model)
    assert kind is not None
    return Source(folder=folder, model=model, kind=kind, tokenizer=None, sample=random_sample(model), facts={})


def same(network: Any, other: Any) -> None:
    one, two = network.state_dict(), other.state_dict()
    assert set(one) == set(two) and all(torch.equal(one[name], two[name]) for name in one)
