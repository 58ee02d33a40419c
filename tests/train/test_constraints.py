"""What a placement asks of weights after each step, and of the optimizer's groups."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isograd.errors import RecipeError
from isograd.lab.train.train import train
from isograd.lab.train.trainer import check_machine
from isograd.models import IsogradForCausalLM
from isograd.placement import Norm, Placement, Residual, get, register, sites
from isograd.placement.formula import ClipLogits, Rates
from isograd.placement.stored import restored, stored
from isograd.transformer.parameters import Embedding, Linear, decayed
from tests.build import close, model, tokens
from tests.train.recipes import small, small_translation
from tests.train.test_decay import trainer

ROWS, COLUMNS = {"query", "key", "value", "ffn_in", "embed", "head"}, {"attn_out", "ffn_out"}


def lengths(made: torch.nn.Module) -> list[Tensor]:
    """Of all rows and columns that nGPT holds at 1, but for rows of zeros."""
    found = []
    for leaf in made.modules():
        if isinstance(leaf, Linear | Embedding) and leaf.role in ROWS | COLUMNS:
            length = leaf.weight.detach().double().norm(dim=1 if leaf.role in ROWS else 0)
            found.append(length[length > 0])
    return found


def test_ngpt_stands_on_the_sphere_after_a_step(tmp_path: Path) -> None:
    """At init, and after each step of a real run; without the constraint a step leaves it."""
    made = trainer(tmp_path, {"placement": "ngpt", "bias": False, "tie_embeddings": False}, lr=0.1)
    made.model.load_state_dict(IsogradForCausalLM(made.model.config).state_dict())
    assert len(lengths(made.model)) == 2 + 2 * 6
    for length in lengths(made.model):
        close(length, torch.ones_like(length), 1e-6)
    optimizer = made.create_optimizer()
    for p in made.model.parameters():
        p.grad = torch.randn_like(p)
    hooks, optimizer._optimizer_step_post_hooks = optimizer._optimizer_step_post_hooks, {}
    optimizer.step()
    assert max((length - 1).abs().max() for length in lengths(made.model)) > 1e-2  # the negative control
    optimizer._optimizer_step_post_hooks = hooks
    optimizer.step()
    for length in lengths(made.model):
        close(length, torch.ones_like(length), 1e-6)
    assert [name for name in decayed(made.model)[0] if "positions" not in name] == []


def test_a_run_obeys(tmp_path: Path) -> None:
    assert train(small(model={"placement": "ngpt", "bias": False}), tmp_path)["outcome"] != "failed"
    kept = IsogradForCausalLM.from_pretrained(tmp_path / "model")
    for length in lengths(kept):
        close(length, torch.ones_like(length), 1e-6)


def test_the_stream_of_ngpt_has_length_one_and_turns_by_three_degrees() -> None:
    """tan(angle) = 0.05 / 0.95 at init, where a branch is nearly orthogonal to the stream."""
    made = model(placement="ngpt", hidden_size=256, num_hidden_layers=3, bias=False, random=False, dtype=torch.float64)
    states: list[Tensor] = []
    for layer in made.model.layers:
        for sublayer in (layer.attn, layer.ffn):
            sublayer.register_forward_hook(lambda _, args, out: states.extend((args[0], out)))
    made(tokens(4, 16))
    for x in states:
        close(x.norm(dim=-1), torch.ones_like(x[..., 0]), 1e-6)
    pairs = zip(states[::2], states[1::2], strict=True)
    turned = [torch.rad2deg(torch.acos((a * b).sum(-1).clamp(max=1))).mean() for a, b in pairs]
    assert all(abs(angle - math.degrees(math.atan(0.05 / 0.95))) < 0.3 for angle in turned), turned


def logits(made: Any, ids: Tensor) -> Tensor:
    """The largest score of each head that the mask lets through, by hand, of a model of one layer."""
    x = made.model.layers[0].attn.pre(
        made.model.embedding(made.model.embedding.tokens(ids), torch.arange(ids.shape[1])[None])
    )
    branch = made.model.layers[0].attn.branch
    q, k = (p(x).unflatten(-1, (4, 4)).transpose(1, 2) for p in (branch.query, branch.key))
    scores = q @ k.transpose(2, 3) / 2
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).amax(dim=(0, 2, 3)).detach()


def test_qk_clip_bounds_the_logits_of_the_same_batch(own_catalogue: None) -> None:
    made, ids = model(placement="qk-clip", num_hidden_layers=1), tokens(3, 9)
    largest = logits(made, ids)
    assert len(set(largest.tolist())) == 4
    threshold = float(largest.sort().values[1:3].mean())  # two heads above, two below
    assert threshold > 0
    register("clip", Placement(each=Residual(pre=Norm()), final=Norm(), constrain=(ClipLogits(threshold=threshold),)))
    clipped = model(placement="clip", num_hidden_layers=1)
    clipped.load_state_dict(made.state_dict())
    clipped.train()(ids)
    before = clipped.model.layers[0].attn.branch.query.weight.detach().clone()
    clipped.constrain()
    after = logits(clipped, ids)
    above = largest > threshold
    close(after[above], torch.full((2,), threshold), 1e-4)
    assert torch.equal(after[~above], largest[~above])
    same = (clipped.model.layers[0].attn.branch.query.weight == before).view(4, -1).all(1)
    assert torch.equal(same, ~above)
    clipped.constrain()  # without a step in between nothing is left to do
    assert torch.equal(logits(clipped, ids), after)
    made.train()(ids)
    weights = {n: p.detach().clone() for n, p in made.named_parameters()}
    made.constrain()  # 100 is far above
    assert all(torch.equal(p, weights[n]) for n, p in made.named_parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize(("placement", "lr", "eps"), [("depth-mup", 0.5, 0.5), ("completep", 1.0, 0.5)])
def test_factors_are_in_the_groups(placement: str, lr: float, eps: float, optimizer: str, tmp_path: Path) -> None:
    """4 layers: 1/sqrt(4), and 2/4. Every parameter in one group; those outside of layers as given."""
    given = {"lr": 0.01, "eps": 1e-6, "optimizer": optimizer}
    made = trainer(tmp_path, {"placement": placement, "layers": 4}, **given)
    names = {p: n for n, p in made.model.named_parameters()}
    groups = made.create_optimizer().param_groups
    found = {names[p]: (g["lr"], g.get("eps", 0.0)) for g in groups for p in g["params"]}
    assert sorted(found) == sorted(names.values()) and groups[0]["lr"] in (0.01, 0.01 * lr)
    for name, (own, own_eps) in found.items():
        factor = (lr, eps) if ".layers." in name else (1.0, 1.0)
        assert own == pytest.approx(0.01 * factor[0]), name
        if optimizer == "adamw":
            assert own_eps == pytest.approx(1e-6 * factor[1]), name


def test_rates_follow_the_schedule(tmp_path: Path) -> None:
    made = trainer(tmp_path, {"placement": "depth-mup", "layers": 4}, lr=0.01, warmup=2, steps=4)
    optimizer = made.create_optimizer()
    made.create_scheduler(4, optimizer)
    assert {round(g["lr"], 9) for g in optimizer.param_groups} == {0.005, 0.0025}


def test_a_placement_without_rates_keeps_its_groups(tmp_path: Path) -> None:
    assert len(trainer(tmp_path, {"placement": "pre-ln"}).create_optimizer().param_groups) == 2


@pytest.mark.parametrize("placement", ["ngpt", "qk-clip"])
def test_shards_are_refused(placement: str) -> None:
    """A constraint reads whole rows, columns and heads: refused before a launcher is asked for."""
    said = f"placement '{placement}' \\((UnitNorm|ClipLogits)\\) changes whole weights after each step"
    with pytest.raises(RecipeError, match=said):
        check_machine(small(model={"placement": placement}, training={"fsdp": True}))
    with pytest.raises(RecipeError, match="needs a launcher"):  # what every other placement is told
        check_machine(small(model={"placement": "pre-ln"}, training={"fsdp": True}))
    check_machine(small(model={"placement": placement}))


def test_shards_are_refused_for_an_encoder_of_its_own() -> None:
    run = small_translation(
        model={"placement": "pre-ln", "encoder_placement": "qk-clip"}, search={"pairs": 0}, training={"fsdp": True}
    )
    with pytest.raises(RecipeError, match="placement 'qk-clip' "):
        check_machine(run)


def test_the_shortcut_of_x0_scalars_has_a_rate_of_its_own(own_catalogue: None, tmp_path: Path) -> None:
    """nanochat's r at a hundredth of z's rate, said by role; the catalogue's entry has one rate."""
    register("nanochat", replace(get("x0-scalars"), rates=Rates(lr={"shortcut": 0.01})))
    made = trainer(tmp_path, {"placement": "nanochat"}, lr=0.5)
    rate = {p: g["lr"] for g in made.create_optimizer().param_groups for p in g["params"]}
    found = {name: rate[p] for name, p in made.model.named_parameters()}
    slow = {name for name, lr in found.items() if lr == pytest.approx(0.005)}
    assert slow == {f"model.layers.{i}.attn.stream.keep.weight" for i in range(2)}
    assert {found[name] for name in found if name not in slow} == {0.5}
    assert not slow & set(decayed(made.model)[0])
    plain = trainer(tmp_path / "plain", {"placement": "x0-scalars"}, lr=0.5)
    assert {group["lr"] for group in plain.create_optimizer().param_groups} == {0.5}
    again = restored({"decoder": stored("nanochat", get("nanochat"), 2, "decoder", 0)})
    assert again.rates.at("shortcut", sites(2)[0]) == (0.01, 1.0, 1.0)
