"""Expected gradients against brute-force autograd; boundedness against its definition and the paper's own example."""

import copy
import math

import pytest
import torch
from torch import Tensor

from isograd.papers.theory.on_batches import expected_gradients, last_states, outside
from tests.build import labelled, model

STACKS = {"encoder": 3, "decoder": 2}  # layers
PLACES = [(stack, i + 1, name) for stack, count in STACKS.items() for i in range(count) for name in ("W_1", "W_2")]


def batches(count: int) -> list[dict[str, Tensor]]:
    return [labelled("seq2seq", batch=2 + i, time=5 + i) for i in range(count)]


@pytest.mark.parametrize("placement", ["post-ln", "pre-ln", "normformer"])
def test_expected_gradients_by_brute_force(placement: str) -> None:
    network, given = model("seq2seq", placement=placement), batches(3)
    found = expected_gradients(network, iter(given))
    assert [(row.stack, row.layer, row.matrix) for row in found] == PLACES
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    alone = [copy.deepcopy(network) for _ in given]
    sum(network(**batch).loss for batch in given).backward()  # the gradient of a sum is the sum of the gradients
    for one, batch in zip(alone, given, strict=True):
        one(**batch).loss.backward()
    for row in found:
        address = f"{row.stack}.layers.{row.layer - 1}.ffn.branch.{'into' if row.matrix == 'W_1' else 'out'}.weight"
        grad = network.get_parameter(address).grad
        each = [float(one.get_parameter(address).grad.norm()) for one in alone]
        assert row.expected == pytest.approx(float(grad.norm()) / 3, rel=1e-5)
        assert row.mean == pytest.approx(sum(each) / 3, rel=1e-5)
        assert row.expected < 0.999 * row.mean  # batches that differ: the two are not the same quantity


def test_the_last_matrix_alone() -> None:
    network, given = model("seq2seq", placement="post-ln"), batches(2)
    (last,) = expected_gradients(network, given, last=True)
    assert last == expected_gradients(network, given)[-1] and (last.stack, last.layer) == ("decoder", 2)
    (one,) = expected_gradients(network, given[:1], last=True)
    assert one.expected == pytest.approx(one.mean, rel=1e-6)
    with pytest.raises(ValueError, match="no batch"):
        expected_gradients(network, [])


@pytest.mark.parametrize("placement", ["post-ln", "pre-ln"])
def test_the_last_state_is_the_sum_before_the_norm(placement: str) -> None:
    network, (batch,) = model("seq2seq", placement=placement), batches(1)
    batch["labels"] = batch["labels"].clone()
    batch["labels"][0, :2] = -100
    sums: list[Tensor] = []
    ffn = network.get_submodule("decoder.layers.1.ffn")
    ffn.combine.register_forward_hook(lambda _, args, out: sums.append(out))
    states = last_states(network, [batch])
    there = batch["labels"] != -100
    torch.testing.assert_close(states, (sums[0].detach().double() ** 2).sum(-1)[there])
    assert len(states) == int(there.sum()) < there.numel()


def test_a_gaussian_is_bounded_as_the_paper_says() -> None:
    """Xiong et al. 2020: |Y|^2 of a d-dimensional standard Gaussian is (epsilon, exp(-d epsilon^2 / 8))-bounded."""
    draw = torch.Generator().manual_seed(0)
    for width, epsilon in ((64, 0.5), (512, 0.2), (2048, 0.1)):
        z = torch.randn(4000, width, generator=draw, dtype=torch.float64).square().sum(-1)
        assert outside(z, epsilon) <= 2 * math.exp(-width * epsilon**2 / 8)  # both sides
    heavy = torch.randn(4000, 512, generator=draw, dtype=torch.float64).exp().square().sum(-1)
    assert outside(heavy, 0.2) > 2 * math.exp(-512 * 0.2**2 / 8)  # no Gaussian
