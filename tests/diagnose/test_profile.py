"""Each quantity of the depth profile against what hooks and autograd say, written here once more."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from isograd.diagnose import Probe, Profile, profile
from tests import build
from tests.lint.families import FAMILIES

IDS = torch.randint(3, 101, (2, 9), generator=torch.Generator().manual_seed(3))


def grown(model: nn.Module, seed: int = 5) -> nn.Module:
    """Weights as after a training: large enough for attention to choose, gains away from 1."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) * 0.3 + (1.0 if p.ndim == 1 else 0.0))
    return model


def seen(model: nn.Module, inputs: dict[str, Tensor], addresses: list[str]) -> dict[str, tuple[Tensor, Tensor]]:
    """Input and output of modules in one pass."""
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(address: str) -> Callable[..., None]:
        def keep(_: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            read = args[0] if args else kwargs["hidden_states"]
            found[address] = (read.detach(), (out if isinstance(out, Tensor) else out[0]).detach())

        return keep

    handles = [model.get_submodule(a).register_forward_hook(hook(a), with_kwargs=True) for a in addresses]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return found


def moved(model: nn.Module, matrices: Callable[[str], bool], seed: int) -> None:
    """+-1e-5 on each matrix, in the order of their names."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if matrices(name) and p.ndim == 2:
                p += 1e-5 * (torch.empty(p.shape, dtype=torch.int8).random_(0, 2, generator=draw) * 2 - 1)


def var(x: Tensor) -> float:
    return float(x.double().var(unbiased=False))


def rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


@pytest.fixture(scope="module")
def gpt2() -> Any:
    return grown(FAMILIES["gpt2"].build())


@pytest.fixture(scope="module")
def profiled(gpt2: Any) -> Profile:
    return profile(gpt2, {"input_ids": IDS}, seed=7)


def test_pre_ln_terms_stream_and_dependency(gpt2: Any, profiled: Profile) -> None:
    """GPT-2: the stream is the sum; skip and branch are what hooks see."""
    blocks = [f"transformer.h.{i}" for i in range(3)]
    found = seen(gpt2, {"input_ids": IDS}, [a for b in blocks for a in (b, f"{b}.attn", f"{b}.mlp", f"{b}.ln_2")])
    start = found[blocks[0]][0]
    expected = []
    for block in blocks:
        x, middle = found[block][0], found[f"{block}.ln_2"][0]
        expected += [(x, found[f"{block}.attn"][1], middle), (middle, found[f"{block}.mlp"][1], found[block][1])]
    together = 0.0
    for row, (skip, branch, stream) in zip(profiled.rows, expected, strict=True):
        together += var(branch) / (var(branch) + var(skip))
        assert row.branch_variance == pytest.approx(var(branch), rel=1e-5)
        assert row.branch_skip_ratio == pytest.approx(var(branch) / var(skip), rel=1e-5)
        assert row.dependency == pytest.approx(var(branch) / (var(branch) + var(skip)), rel=1e-5)
        assert row.dependency_sum == pytest.approx(together, rel=1e-5)
        assert row.sum_rms == row.residual_rms == pytest.approx(rms(stream), rel=1e-5)
        assert row.growth == pytest.approx(var(stream) / var(start), rel=1e-5)
        size = stream.abs()
        assert row.largest == pytest.approx(float(size.max()), rel=1e-5)
        assert row.largest_over_median == pytest.approx(float(size.max() / size.median()), rel=1e-5)
        assert size[:, row.largest_position, row.largest_channel].max() == size.max()
        assert row.branch_skip_ratio != pytest.approx(var(skip) / var(branch), rel=0.05)
    assert profiled.stacks[0].input_rms == pytest.approx(rms(start), rel=1e-5)
    assert [row.address for row in profiled.rows] == [f"{b}.{kind}" for b in blocks for kind in ("attn", "mlp")]


def test_gradients_and_loss_of_the_next_token(gpt2: Any, profiled: Profile) -> None:
    gpt2.zero_grad()
    logits = gpt2(input_ids=IDS).logits
    loss = functional.cross_entropy(logits[:, :-1].reshape(-1, 101), IDS[:, 1:].reshape(-1))
    loss.backward()
    assert profiled.objective == "next token"
    assert profiled.loss == pytest.approx(loss.item(), rel=1e-5)
    assert profiled.ln_classes == pytest.approx(math.log(101))
    means: dict[str, list[float]] = {"attn": [], "ffn": []}
    for row in profiled.rows:
        block, _, part = row.address.rpartition(".")
        norm = "ln_1" if part == "attn" else "ln_2"
        own = [p for a in (part, norm) for p in gpt2.get_submodule(f"{block}.{a}").parameters()]
        assert row.parameters == sum(p.numel() for p in own)
        assert row.gradient_norm == pytest.approx(math.sqrt(sum(float(p.grad.square().sum()) for p in own)), rel=1e-4)
        last = gpt2.get_submodule(row.address).c_proj.weight
        assert row.gradient_mean_abs == pytest.approx(float(last.grad.abs().mean()), rel=1e-4)
        means[row.kind].append(float(last.grad.abs().mean()))
    for kind, values in means.items():
        ratio = profiled.ratios[f"decoder {kind}"]
        assert ratio["first_last"] == pytest.approx(values[0] / values[-1], rel=1e-4)
        assert ratio["max_min"] == pytest.approx(max(values) / min(values), rel=1e-4)
    gpt2.zero_grad(set_to_none=True)
    unshifted = functional.cross_entropy(logits.reshape(-1, 101), IDS.reshape(-1))
    assert profiled.loss != pytest.approx(unshifted.item(), rel=1e-2)


def test_attention_entropy_and_logits(gpt2: Any, profiled: Profile) -> None:
    """Against weights that the model itself gives, and scores from its own projection."""
    gpt2.set_attn_implementation("eager")
    with torch.no_grad():
        weights = gpt2(input_ids=IDS, output_attentions=True).attentions
    gpt2.set_attn_implementation("sdpa")
    projected = seen(gpt2, {"input_ids": IDS}, [f"transformer.h.{i}.attn.c_attn" for i in range(3)])
    keys = torch.arange(2, 10).double()
    for i, (row, a) in enumerate(zip((r for r in profiled.rows if r.kind == "attn"), weights, strict=True)):
        entropy = -(a * a.clamp_min(1e-30).log()).sum(-1)[:, :, 1:]  # the first query sees one key only
        assert row.attention_entropy == pytest.approx(float(entropy.mean()), rel=1e-4)
        assert row.attention_entropy_min == pytest.approx(float(entropy.mean((0, 2)).min()), rel=1e-4)
        assert row.attention_uniform == pytest.approx(float(keys.log().mean()), rel=1e-6)
        assert row.attention_share == pytest.approx(float(entropy.mean() / keys.log().mean()), rel=1e-4)
        assert row.attention_share < 0.95
        q, k, _ = projected[f"transformer.h.{i}.attn.c_attn"][1].split(32, -1)
        q, k = (x.view(2, 9, 4, 8).transpose(1, 2) for x in (q, k))
        scores = (q @ k.transpose(-2, -1) / math.sqrt(8)).abs()
        visible = torch.ones(9, 9, dtype=torch.bool).tril()
        assert row.largest_logit == pytest.approx(float(scores[..., visible].max()), rel=1e-4)
    assert all(r.attention_entropy is None and r.largest_logit is None for r in profiled.rows if r.kind == "ffn")


def test_amplification_is_that_of_a_model_in_float64(gpt2: Any, profiled: Profile) -> None:
    def streams(model: nn.Module) -> list[Tensor]:
        blocks = [f"transformer.h.{i}" for i in range(3)]
        found = seen(model, {"input_ids": IDS}, [a for b in blocks for a in (b, f"{b}.ln_2")])
        return [x for b in blocks for x in (found[f"{b}.ln_2"][0], found[b][1])]

    exact, other = (grown(FAMILIES["gpt2"].build()).double() for _ in range(2))
    exact.load_state_dict(gpt2.double().state_dict())
    other.load_state_dict(gpt2.state_dict())
    gpt2.float()
    moved(other, lambda name: ".h." in name, seed=7)
    expected = [float((b - a).square().mean()) / 1e-10 for a, b in zip(streams(exact), streams(other), strict=True)]
    assert [r.amplification for r in profiled.rows] == pytest.approx(expected, rel=1e-6)
    again = profile(gpt2, {"input_ids": IDS}, seed=8)
    assert [r.amplification for r in again.rows] != pytest.approx(expected, rel=1e-3)


def test_post_ln_stream_is_behind_the_norm() -> None:
    """BERT: the sum is what its LayerNorm reads, the stream what that gives."""
    bert = grown(FAMILIES["bert"].build())
    labels = IDS.roll(1, 1)
    found = profile(bert, {"input_ids": IDS}, labels=labels)
    parts = [f"bert.encoder.layer.{i}.{part}" for i in range(3) for part in ("attention.output", "output")]
    addresses = [f"{part}.{name}" for part in parts for name in ("dense", "LayerNorm")]
    hooked = seen(bert, {"input_ids": IDS}, addresses)
    for row, part in zip(found.rows, parts, strict=True):
        total, stream = hooked[f"{part}.LayerNorm"]
        branch = hooked[f"{part}.dense"][1]
        assert row.sum_rms == pytest.approx(rms(total), rel=1e-5)
        assert row.residual_rms == pytest.approx(rms(stream), rel=1e-5)
        assert row.sum_rms != pytest.approx(row.residual_rms, rel=1e-2)
        assert row.branch_skip_ratio == pytest.approx(var(branch) / var(total - branch), rel=1e-4)
    loss = functional.cross_entropy(bert(input_ids=IDS).logits.reshape(-1, 101), labels.reshape(-1))
    assert found.objective == "given labels"
    assert found.loss == pytest.approx(loss.item(), rel=1e-5)


def test_llama_amplification_where_norms_ask_for_float32() -> None:
    """Its norms cast to float32: a model in float64 follows the profile as far as that goes."""
    llama = FAMILIES["llama"].build()
    found = profile(llama, {"input_ids": IDS}, seed=2)
    layers = [f"model.layers.{i}" for i in range(3)]
    exact, other = (FAMILIES["llama"].build().double() for _ in range(2))
    for model in (exact, other):
        model.load_state_dict(llama.double().state_dict())
    moved(other, lambda name: ".layers." in name, seed=2)
    outs = [[seen(m, {"input_ids": IDS}, layers)[a][1] for a in layers] for m in (exact, other)]
    expected = [float((b - a).square().mean()) / 1e-10 for a, b in zip(*outs, strict=True)]
    assert [r.amplification for r in found.rows if r.kind == "ffn"] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("placement", build.few(build.NAMES, 4))
def test_our_models_against_the_probe(placement: str) -> None:
    """Another instrument of ours, which asks the modules instead of the operations."""
    model = build.model("causal", placement=placement)
    ids = build.tokens(2, 7)
    found = profile(model, {"input_ids": ids})
    probe = Probe(model)
    with probe.step(0):
        logits = model(input_ids=ids).logits
        functional.cross_entropy(logits[:, :-1].reshape(-1, 41), ids[:, 1:].reshape(-1)).backward()
        probe.read_gradients()
    assert len(found.rows) == len(probe.rows)
    for row, other in zip(found.rows, probe.rows, strict=True):
        assert (row.address.startswith(other["address"]), row.layer, row.kind) == (True, other["layer"], other["kind"])
        for name in ("gradient_norm", "gradient_mean_abs", "residual_rms", "branch_skip_ratio"):
            assert getattr(row, name) == pytest.approx(other[name], rel=2e-4), (name, row.address)


def test_two_stacks() -> None:
    """Marian: the decoder is asked for its next id, gradients reach the encoder, the dependency starts anew."""
    marian = grown(FAMILIES["marian"].build())
    target = IDS[:, :6]
    found = profile(marian, {"input_ids": IDS, "decoder_input_ids": target})
    logits = marian(input_ids=IDS, decoder_input_ids=target).logits
    loss = functional.cross_entropy(logits[:, :-1].reshape(-1, 101), target[:, 1:].reshape(-1))
    assert found.loss == pytest.approx(loss.item(), rel=1e-5)
    loss.backward()
    first = {row.stack: row for row in reversed(found.rows)}
    assert set(first) == {"encoder", "decoder"}
    assert all(row.dependency_sum == row.dependency for row in first.values())
    fc2 = marian.model.encoder.layers[0].fc2.weight.grad
    row = next(r for r in found.rows if r.stack == "encoder" and r.kind == "ffn")
    assert row.gradient_mean_abs == pytest.approx(float(fc2.abs().mean()), rel=1e-4)
    assert all(r.attention_uniform == pytest.approx(math.log(9)) for r in found.rows if r.kind == "cross")
