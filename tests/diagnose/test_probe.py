"""Every quantity of the probe against brute force: full gradients, activations caught here, hand formulas."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isograd.diagnose import Probe
from isograd.diagnose.quantities import terms, variance
from isograd.models import IsogradForCausalLM
from isograd.placement import Learned, Norm, Placement, Residual, register
from isograd.transformer.sublayer import Sublayer
from tests.build import NAMES, few, labelled, model

ADDRESSES = [f"model.layers.{i}.{kind}" for i in (0, 1) for kind in ("attn", "ffn")]
BATCH = labelled("causal", batch=3, time=9)


@pytest.fixture
def placements(own_catalogue: None) -> Iterator[None]:
    """Constant and scalar coefficients, which the catalogue has in few places."""
    register("constants", Placement(each=Residual(pre=Norm(), skip=1.5, scale=0.25), final=Norm()))
    register("scalars", Placement(each=Residual(pre=Norm(), scale=Learned(shape="scalar"), skip=0.5), final=Norm()))
    register("both", Placement(each=Residual(post=Norm(), scale=Learned(), skip=Learned())))
    yield


def observed(
    network: nn.Module, addresses: list[str] | None = None, **options: Any
) -> tuple[list[dict[str, Any]], nn.Module]:
    """Rows of one step of SGD, and the model as it was before it."""
    before = copy.deepcopy(network)
    probe = Probe(network, addresses)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with probe.step(7):
        network(**BATCH).loss.backward()
        probe.read_gradients(**options)
        optimizer.step()
    return probe.rows, before


def caught(network: Any) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Address -> what each sublayer reads, what its branch adds before the gain, what it gives on."""
    seen: dict[str, list[Tensor]] = {}
    for address, module in network.named_modules():
        if isinstance(module, Sublayer):
            here = seen.setdefault(address, [])
            module.combine.register_forward_pre_hook(lambda _, args, here=here: here.extend(args))
            module.register_forward_hook(lambda _, args, out, here=here: here.append(out))
    with torch.no_grad():
        network(**BATCH)
    return {address: tuple(values) for address, values in seen.items()}  # type: ignore[misc]


def var(x: Tensor) -> float:
    flat = x.detach().double().flatten()
    return float(((flat - flat.mean()) ** 2).mean())


PLACEMENTS = [*NAMES, "constants", "scalars", "both"]


@pytest.mark.parametrize("placement", few(PLACEMENTS, 3))
def test_every_quantity_by_brute_force(placement: str, placements: None) -> None:
    network = model(placement=placement)
    rows, before = observed(network)
    assert [row["address"] for row in rows] == ADDRESSES
    loss = before(**BATCH).loss
    named = dict(before.named_parameters())
    grads = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    flows = caught(before)
    for row in rows:
        address = row["address"]
        sublayer = before.get_submodule(address)
        own = [g.flatten() for n, g in grads.items() if n.startswith(address + ".")]
        matrix = f"{address}.branch.out.weight"
        x, u, y = flows[address]
        skip, gain = (getattr(sublayer.combine, name, 1.0) for name in ("skip", "scale"))
        scaled = [t * c if isinstance(c, float) else c(t) for t, c in ((x, skip), (u, gain))]
        expected = {
            "gradient_norm": torch.cat(own).double().square().sum().sqrt().item(),
            "gradient_mean_abs": grads[matrix].abs().mean().item(),
            "residual_rms": y.double().square().mean().sqrt().item(),
            "branch_skip_ratio": var(scaled[1]) / var(scaled[0]),
            "update_ratio": 0.1 * (grads[matrix].norm() / named[matrix].norm()).item(),
        }
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, rel=2e-5), (address, name)
        assert row["step"] == 7 and row["stack"] == "decoder"
        assert address == f"model.layers.{row['layer'] - 1}.{row['kind']}"


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_coefficients_are_those_that_the_placement_learns(placement: str, placements: None) -> None:
    network = model(placement=placement)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    rows, _ = observed(network)
    places = {"skip": "combine.skip", "scale": "combine.scale", "heads": "branch.heads", "mid": "branch.mid"}
    places |= {role: f"branch.{role}_norm" for role in ("query", "key", "value")}
    for row in rows:
        learned = set()
        for name in ("skip", "scale", "heads", "pre", "mid", "out", "post", "query", "key", "value"):
            p = before.get(f"{row['address']}.{places.get(name, name)}.weight")
            if p is not None:
                learned.add(name)
                values = [row[name], row[f"{name}_min"], row[f"{name}_max"]]
                assert values == pytest.approx([p.mean().item(), p.min().item(), p.max().item()], rel=1e-6)
        extra = {k for k in row if k.endswith("_min")}
        assert extra == {f"{name}_min" for name in learned}
    if placement in ("admin", "both"):
        assert "skip" in rows[0] and "post" in rows[0]
    if placement == "deepnorm":
        assert "skip" not in rows[0]


def test_an_encoder_decoder_has_rows_for_both_stacks() -> None:
    network = model("seq2seq", placement="admin")
    probe = Probe(network)
    with probe.step(1):
        network(**labelled("seq2seq")).loss.backward()
        probe.read_gradients()
    kinds = [(r["stack"], r["layer"], r["kind"]) for r in probe.rows]
    encoder = [("encoder", layer, kind) for layer in (1, 2, 3) for kind in ("attn", "ffn")]
    decoder = [("decoder", layer, kind) for layer in (1, 2) for kind in ("attn", "cross", "ffn")]
    assert kinds == encoder + decoder
    assert all(r["gradient_norm"] > 0 and "update_ratio" in r for r in probe.rows)


def test_after_accumulation_and_before_clipping() -> None:
    network = model()
    whole = copy.deepcopy(network)
    probe = Probe(network)
    parts = [{k: v[i : i + 1] for k, v in BATCH.items()} for i in range(3)]
    with probe.step(1):
        for part in parts:
            (network(**part).loss / 3).backward()
        probe.read_gradients()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1e-6)
    whole(**BATCH).loss.backward()
    for row in probe.rows:
        grads = [p.grad.flatten() for p in whole.get_submodule(row["address"]).parameters()]
        assert row["gradient_norm"] == pytest.approx(torch.cat(grads).norm().item(), rel=1e-5)
        assert row["update_ratio"] == 0.0  # nothing stepped


def test_norms_that_clipping_has_computed_anyway() -> None:
    network = model()
    plain, _ = observed(copy.deepcopy(network))
    probe = Probe(network)
    with probe.step(7):
        network(**BATCH).loss.backward()
        probe.read_gradients({p: p.grad.norm() for p in network.parameters()})
        torch.optim.SGD(network.parameters(), lr=0.1).step()
    for one, other in zip(plain, probe.rows, strict=True):
        assert one.keys() == other.keys()
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-6)


def hooks(network: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    on_tensors = sum(bool(p._backward_hooks) + bool(p._post_accumulate_grad_hooks) for p in network.parameters())
    return on_tensors + sum(len(getattr(m, kind)) for m in network.modules() for kind in kinds)


def test_no_hooks_are_left() -> None:
    network = model()
    before = hooks(network)
    probe = Probe(network)
    assert hooks(network) == before
    with probe.step(1):
        assert hooks(network) > before
        network(**BATCH).loss.backward()
    assert hooks(network) == before


def test_a_step_that_raises_leaves_no_hooks_and_no_rows() -> None:
    network = model()
    before = hooks(network)
    probe = Probe(network)
    with pytest.raises(ZeroDivisionError), probe.step(1):
        network(**BATCH)
        raise ZeroDivisionError
    assert hooks(network) == before and probe.rows == []
    with probe.step(2):
        network(**BATCH).loss.backward()
        probe.read_gradients()
    assert [r["step"] for r in probe.rows] == [2] * 4


def test_a_probed_step_computes_the_same() -> None:
    plain = model(hidden_dropout=0.1).train()
    probed = copy.deepcopy(plain)
    torch.manual_seed(3)
    plain(**BATCH).loss.backward()
    torch.manual_seed(3)
    probe = Probe(probed)
    with probe.step(1):
        probed(**BATCH).loss.backward()
        probe.read_gradients()
    for p, q in zip(plain.parameters(), probed.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_without_a_backward_pass_there_are_only_activations() -> None:
    network = model()
    probe = Probe(network)
    with probe.step(1), torch.no_grad():
        network(**BATCH)
    assert all("residual_rms" in r and "gradient_norm" not in r and "update_ratio" not in r for r in probe.rows)


def test_bf16_activations_are_measured_in_fp32() -> None:
    network = model()
    probe = Probe(network)
    with probe.step(1), torch.autocast("cpu", torch.bfloat16):
        network(**BATCH).loss.backward()
    fp32 = Probe(network)
    with fp32.step(1):
        network(**BATCH).loss.backward()
    for a, b in zip(probe.rows, fp32.rows, strict=True):
        assert a["residual_rms"] == pytest.approx(b["residual_rms"], rel=2e-2)
    x = torch.full((4096,), 300.0, dtype=torch.bfloat16)
    x[::2] = 200.0
    assert variance(x).dtype == torch.float32 and variance(x).item() == 2500.0


def test_a_model_without_sublayers_and_an_address_it_has_not() -> None:
    with pytest.raises(ValueError, match="pass the addresses"):
        Probe(nn.Linear(2, 2))
    with pytest.raises(AttributeError, match="nowhere"):
        Probe(model(), ["model.nowhere"])
    with pytest.raises(TypeError, match="Linear is not a sum"):
        terms(nn.Linear(2, 2), torch.ones(2), torch.ones(2))
    assert isinstance(model(), IsogradForCausalLM)


def test_parameters_of_a_stream_are_told_too() -> None:
    network = model(placement="hyper-connections-static")
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    rows, _ = observed(network)
    for row in rows:
        names = [name.removesuffix("_min") for name in row if name.startswith("stream.") and name.endswith("_min")]
        assert names
        for name in names:
            p = before[f"{row['address']}.{name}"]
            assert row[f"{name}_max"] == pytest.approx(p.max().item(), rel=1e-6)
    dense = [
        n for n, p in model(placement="hyper-connections").named_parameters() if ".stream." in n and p.numel() > 256
    ]
    assert not any(name.removeprefix(row["address"] + ".") in row for row in rows for name in dense)
