"""Parameter groups and inits of models that isograd did not make."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

import isograd
from isograd.errors import ModelError, RecipeError
from isograd.lint.checked_model import CheckedModel
from isograd.lint.initial.initialization import scheme_of
from isograd.placement.schemes import SCHEMES
from isograd.trace.anatomy import find_anatomy
from isograd.trace.inputs import guess_inputs
from tests.build import in_turn
from tests.study.arms import called, refused

WIDTH, LAYERS = 64, 4


class Block(nn.Module):
    """A layer of a hand-written model, W_QKV as one matrix, its values first."""

    def __init__(self, branch: float) -> None:
        super().__init__()
        self.branch = branch
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.vqk, self.back = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        v, q, k = (p.view(batch, time, 2, -1).transpose(1, 2) for p in self.vqk(self.one(x)).split(WIDTH, dim=2))
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.branch * self.back(h.reshape(batch, time, WIDTH))
        return x + self.branch * self.down(nn.functional.gelu(self.up(self.two(x))))


class Plain(nn.Module):
    """A causal language model as one writes it by hand; `branch` multiplies what is added to the stream."""

    def __init__(self, branch: float = 1.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(99, WIDTH), nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList([Block(branch) for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 99, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def plain() -> nn.Module:
    return Plain()


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=WIDTH, n_head=2, vocab_size=99, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=WIDTH,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        vocab_size=99,
    )
    return transformers.LlamaForCausalLM(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        num_hidden_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=2, intermediate_size=256, vocab_size=99
    )
    return transformers.BertForMaskedLM(config)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)


MODELS: list[Callable[[], nn.Module]] = [plain, gpt2, llama, bert, encoder]


def rates(groups: list[dict[str, object]]) -> dict[str, tuple[float, float, float]]:
    """Name -> rate, eps and decay; each parameter in one group."""
    found: dict[str, tuple[float, float, float]] = {}
    for group in groups:
        for name in group["names"]:  # type: ignore[attr-defined]
            assert name not in found
            found[name] = (group["lr"], group["eps"], group["weight_decay"])  # type: ignore[assignment]
    return found


def near(lr: float, eps: float, decay: float) -> object:
    return pytest.approx((lr, eps, decay), rel=1e-12)


def test_groups_of_a_model_with_the_factor_in_forward() -> None:
    """CompleteP from 2 to 4 layers, width from 16 to 64: as its authors' code, but eps outside layers without depth."""
    model = Plain(branch=0.5)
    found = rates(isograd.transfer.parameter_groups(model, lr=1e-3, depth=(2, 4), width=(16, 64), weight_decay=0.1))
    assert set(found) == {name for name, _ in model.named_parameters()}
    for matrix in ("vqk", "back", "up", "down"):
        assert found[f"blocks.3.{matrix}.weight"] == near(1e-3 / 4, 1e-8 / 8, 0.4)
        assert found[f"blocks.3.{matrix}.bias"] == near(1e-3, 1e-8 / 8, 0.0)
    assert found["blocks.0.one.weight"] == found["blocks.0.two.bias"] == near(1e-3, 1e-8 / 2, 0.0)
    assert found["words.weight"] == near(1e-3, 1e-8 / 4, 0.1)
    assert found["head.weight"] == near(1e-3 / 4, 1e-8, 0.1)
    assert found["norm.weight"] == near(1e-3, 1e-8, 0.0)
    optimizer = torch.optim.AdamW(isograd.transfer.parameter_groups(model, lr=1e-3, depth=(2, 4)))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_groups_of_a_model_without_it_say_it_by_weights() -> None:
    found = rates(isograd.transfer.parameter_groups(Plain(), lr=1e-3, depth=(1, 4), rule="depth-mup", weight_decay=0.1))
    c = 0.5  # (1/4)^(1/2), on the branch and on rates
    assert found["blocks.0.back.weight"] == found["blocks.3.down.weight"] == near(1e-3 * c * c, 1e-8, 0.1 / c)
    assert found["blocks.0.back.bias"] == near(1e-3 * c * c, 1e-8, 0.0)
    assert found["blocks.0.vqk.weight"] == near(1e-3 * c, 1e-8 * c, 0.1)
    assert found["head.weight"] == near(1e-3, 1e-8, 0.1)


def test_both_forms_train_alike() -> None:
    """Factor in forward, or in W_O and W_2 and their groups: the same function after updates; without groups not."""
    torch.manual_seed(0)
    one, other = Plain(branch=0.5).double(), Plain().double()
    other.load_state_dict(one.state_dict())
    wrong = Plain(branch=0.5).double()
    wrong.load_state_dict(one.state_dict())
    with torch.no_grad():
        for block in other.blocks:
            for layer in (block.back, block.down):  # type: ignore[union-attr]
                layer.weight.mul_(0.5)  # type: ignore[union-attr, operator]
                layer.bias.mul_(0.5)  # type: ignore[union-attr, operator]
    ids = torch.randint(0, 99, (3, 9), generator=torch.Generator().manual_seed(1))
    models = {"forward": one, "weights": other, "plain": wrong}
    logits = {}
    for name, model in models.items():
        groups = isograd.transfer.parameter_groups(model, lr=1e-3, depth=(2, 4), weight_decay=0.1, eps=1e-6)
        if name == "plain":
            groups = [{"params": list(model.parameters()), "lr": 2e-3}]
        optimizer = torch.optim.AdamW(groups)
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()
        logits[name] = model(ids).detach()
    assert torch.allclose(logits["forward"], logits["weights"], rtol=0, atol=1e-9)
    assert not torch.allclose(logits["forward"], logits["plain"], rtol=0, atol=1e-3)


def test_groups_that_contradict_the_model_are_refused() -> None:
    groups = isograd.transfer.parameter_groups
    with pytest.raises(RecipeError, match="this model has 4 layers"):
        groups(Plain(), lr=1e-3, depth=(2, 8))
    with pytest.raises(RecipeError, match="other sublayers"):
        groups(bert(), lr=1e-3, depth=(2, 4))
    with pytest.raises(RecipeError, match=r"is 0\.7 here: completep expects 0\.5"):
        groups(Plain(branch=0.7), lr=1e-3, depth=(2, 4))
    with pytest.raises(RecipeError, match="nothing to transfer"):
        groups(Plain(), lr=1e-3)
    with pytest.raises(RecipeError, match=r"depth=.source, target. with it"):
        groups(Plain(), lr=1e-3, width=(16, 64), rule="completep")
    with pytest.raises(ModelError, match="no residual stack"):
        groups(nn.Sequential(nn.Linear(8, 8)), lr=1e-3, depth=(1, 2), batch=torch.randn(2, 8))


def test_groups_of_our_own_models_come_from_the_name() -> None:
    config = isograd.IsogradConfig(placement="pre-ln@completep-2", vocab_size=20, hidden_size=16, num_hidden_layers=4,
                                   num_attention_heads=2, is_decoder=True)  # fmt: skip
    model = isograd.IsogradForCausalLM(config)
    found = rates(isograd.transfer.parameter_groups(model, lr=1e-3, weight_decay=0.1))
    assert found["model.layers.0.attn.branch.query.weight"] == near(1e-3, 5e-9, 0.1)
    with pytest.raises(RecipeError, match="says its rules in its name"):
        isograd.transfer.parameter_groups(model, lr=1e-3, depth=(2, 4))


@in_turn("scheme, build", [*SCHEMES], MODELS, ids=lambda x: getattr(x, "__name__", x))
def test_check_names_the_scheme_and_is_clean(build: Callable[[], nn.Module], scheme: str) -> None:
    model = build()
    isograd.transfer.initialize(model, scheme)
    findings = isograd.check(model)
    assert (findings.scheme, findings.codes) == (scheme, set())
    with torch.no_grad():  # the negative control: one role off, and no scheme has its name
        for name, p in model.named_parameters():
            if p.ndim == 2 and any(word in name for word in ("down", "mlp.c_proj", "output.dense", "linear2")):
                p.mul_(1.7)
    inputs = guess_inputs(model)
    assert scheme_of(CheckedModel(model, inputs, find_anatomy(model, inputs))) == ""


def test_a_fused_matrix_is_drawn_by_its_parts() -> None:
    """Values stand first here, so nothing but the computation says where they are."""
    model = Plain()
    isograd.transfer.initialize(model, "deepnorm", seed=3)
    beta, xavier = (8 * LAYERS) ** -0.25, math.sqrt(2 / (2 * WIDTH))
    for block in model.blocks:
        value, query, key = block.vqk.weight.split(WIDTH)  # type: ignore[union-attr, operator]
        assert value.std().item() == pytest.approx(beta * xavier, rel=0.06)
        assert query.std().item() == pytest.approx(xavier, rel=0.06)
        assert key.std().item() == pytest.approx(xavier, rel=0.06)
        up = block.up.weight.std().item()  # type: ignore[union-attr]
        assert up == pytest.approx(beta * math.sqrt(2 / (5 * WIDTH)), rel=0.06)


def test_the_same_seed_draws_the_same_and_training_leaves_no_trace() -> None:
    one, other = Plain(), Plain()
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1.0)
    for model in (one, other):
        isograd.transfer.initialize(model, "gpt2", seed=5)
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name
    isograd.transfer.initialize(other, "gpt2", seed=6)
    assert not torch.equal(one.words.weight, other.words.weight)


def test_the_verb_writes_a_checkpoint_of_the_same_class(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "model")  # type: ignore[operator]
    (tmp_path / "model/tokenizer.json").write_text("{}")
    words = ["init", str(tmp_path / "model"), "--out", str(tmp_path / "new")]
    code, out, _ = called(*words, "--scheme", "small-init-wang", "--json")
    said = json.loads(out)
    assert (code, said["check"], said["findings"]) == (0, "small-init-wang", [])
    assert type(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new")).__name__ == "LlamaForCausalLM"
    assert (tmp_path / "new/tokenizer.json").exists()
    assert "exists already" in refused(*words, "--scheme", "gpt2")
    assert "did you mean 'gpt2'" in refused(*words[:3], str(tmp_path / "other"), "--scheme", "gpt-2")
    assert "--scheme" in refused(*words[:3], str(tmp_path / "other"))
    assert "no such folder" in refused("init", "/nowhere", "--out", str(tmp_path / "other"), "--scheme", "gpt2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "new"]


def test_of_a_function_the_weights_are_written(tmp_path: Path) -> None:
    from safetensors.torch import load_model

    code, _, err = called(
        "init", "tests.study.test_transfer_models:plain", "--out", str(tmp_path / "w"), "--scheme", "gpt2"
    )
    assert code == 0, err
    model = Plain()
    load_model(model, str(tmp_path / "w/model.safetensors"))
    assert isograd.check(model).scheme == "gpt2"
