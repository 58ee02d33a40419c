"""What weight decay and the learning rate really are in the optimizer that a training uses."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from isograd.files import read_rows
from isograd.lab.data import PackedSequences
from isograd.lab.train.optim import schedule_of
from isograd.lab.train.tasks.language import LanguageModelling, load_corpus_of
from isograd.lab.train.train import train
from isograd.lab.train.trainer import IsogradTrainer
from isograd.models import IsogradForCausalLM
from isograd.placement import CATALOGUE, sites
from tests.build import NAMES, crossed, few, randomised
from tests.train.recipes import small

DECAY = 0.1


def trainer(folder: Path, model: dict[str, Any], **training: Any) -> IsogradTrainer:
    run = small(model=model, training={"weight_decay": DECAY, "optimizer": "adamw", **training})
    corpus = load_corpus_of(run)
    samples = PackedSequences(corpus.train, run.data.length, run.training.steps * run.training.batch, seed=0)
    return IsogradTrainer(run, randomised(IsogradForCausalLM(LanguageModelling(run, corpus).config())), samples, folder)


def expected_sets(names: list[str]) -> tuple[set[str], set[str]]:
    """By the shape of the name alone: projections and tables decay; norms, coefficients and biases do not."""
    leaves = (".query.weight", ".key.weight", ".value.weight", ".branch.out.weight", ".into.weight", ".gate.weight")
    tables = (".tokens.weight", ".positions.weight", "lm_head.weight")
    matrices = {n for n in names if n.endswith(leaves + tables)}
    return matrices, set(names) - matrices


@crossed("placement, norm", NAMES, ["layernorm", "rmsnorm"])
def test_both_sets_of_every_placement(placement: str, norm: str, tmp_path: Path) -> None:
    """The parameters in the built optimizer's groups, by name: nothing twice, nothing left out."""
    made = trainer(tmp_path, {"placement": placement, "norm": norm, "positions": "learned", "act": "swiglu"})
    groups = made.create_optimizer().param_groups
    name_of = {id(p): n for n, p in made.model.named_parameters()}
    grouped = [(name_of[id(p)], g["weight_decay"]) for g in groups for p in g["params"]]
    assert len(grouped) == len(name_of)
    decayed, kept = ({n for n, d in grouped if d == value} for value in (DECAY, 0.0))
    assert (decayed, kept) == expected_sets(list(name_of.values()))
    if CATALOGUE[placement].of(sites(1)[1]).post or CATALOGUE[placement].of(sites(1)[1]).pre:
        assert any(".ffn.p" in n for n in kept)


@crossed("placement, norm, optimizer", NAMES, ["layernorm", "rmsnorm"], ["adamw", "lamb"])
def test_a_step_without_gradients_moves_matrices_only(
    placement: str, norm: str, optimizer: str, tmp_path: Path
) -> None:
    if optimizer == "lamb":
        pytest.importorskip("pytorch_optimizer")
    made = trainer(tmp_path, {"placement": placement, "norm": norm}, lr=0.5, optimizer=optimizer)
    before = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    for p in made.model.parameters():
        p.grad = torch.zeros_like(p)
    made.create_optimizer().step()
    matrices, _ = expected_sets(list(before))
    for name, p in made.model.named_parameters():
        assert torch.equal(p, before[name]) == (name not in matrices), name
        if name in matrices and optimizer == "adamw":
            torch.testing.assert_close(p.detach(), before[name] * (1 - 0.5 * DECAY))


RATES = [
    ("constant", 0, "adam"), ("constant", 3, "adamw"), ("linear", 0, "sgd"), ("linear", 2, "adam"),
    ("cosine", 3, "radam"), ("cosine", 0, "adam"), ("inverse-sqrt", 3, "adam"), ("inverse-sqrt", 0, "adam"),
]  # fmt: skip


@pytest.mark.parametrize("rates", few(RATES, RATES[1::3]), ids=str)
def test_the_rate_of_every_update_and_of_the_log(rates: tuple[str, int, str], tmp_path: Path) -> None:
    """Read from the optimizer at the moment it steps; all groups alike; equal to the formula and to the log."""
    decay, warmup, optimizer = rates
    seen: list[set[float]] = []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        seen.append({group["lr"] for group in optimizer.param_groups})

    run = small(training={"decay": decay, "warmup": warmup, "optimizer": optimizer, "lr": 3e-4, "steps": 7})
    handle = register_optimizer_step_pre_hook(look)
    try:
        assert train(run, tmp_path)["steps"] == 7
    finally:
        handle.remove()
    rate = schedule_of(run.training)
    assert seen == [{3e-4 * rate(t)} for t in range(1, 8)]
    assert [row["lr"] for row in read_rows(tmp_path / "metrics.jsonl")] == list(itertools.chain(*seen))
    assert all(lr > 0 for lr in itertools.chain(*seen))


def test_one_real_update_of_adamw_by_hand(tmp_path: Path) -> None:
    """The first step of a run: p - lr decay p - lr sign(g), to what eps leaves."""
    made = trainer(tmp_path, {}, lr=0.01, steps=1, probe_every=0, checkpoint_every=0)
    before: dict[str, Tensor] = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    rows = made.train_dataset.__getitems__(range(4))
    made.model.train()(**rows).loss.backward()
    gradients = {n: p.grad.clone() for n, p in made.model.named_parameters()}
    made.model.zero_grad()
    made.losses.clear()
    made.train()
    matrices, _ = expected_sets(list(before))
    for name, p in made.model.named_parameters():
        g = gradients[name]
        shrunk = before[name] * (1 - 0.01 * (DECAY if name in matrices else 0.0))
        torch.testing.assert_close(p.detach(), shrunk - 0.01 * g / (g.abs() + 1e-8), rtol=0, atol=2e-6)
