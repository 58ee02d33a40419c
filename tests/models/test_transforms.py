"""torch.func, forward-mode AD, tracers, counters and second derivatives: the numbers of plain autograd, at every shape.

The second source is the same network in float64, its loss torch's own on the whole matrix of logits.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tests import build

Weights = dict[str, Tensor]
SHAPES = [(1, 9), (4, 24)]


def network(placement: str = "post-ln", **options: Any) -> Any:
    return build.model(placement=placement, **options)


def weights_of(model: nn.Module) -> Weights:
    return {name: p.detach() for name, p in model.named_parameters()}


def batch(shape: tuple[int, int]) -> dict[str, Tensor]:
    """Ids and labels, some of them ignored, the first sequence's more than the others'."""
    ids = build.tokens(*shape)
    ignored = torch.arange(shape[1])[None] < 3 - torch.arange(shape[0])[:, None]
    return {"input_ids": ids, "labels": ids.masked_fill(ignored, -100)}


def loss_of(model: nn.Module, weights: Weights, given: dict[str, Tensor]) -> Tensor:
    loss: Tensor = torch.func.functional_call(model, weights, (), {**given, "use_cache": False}).loss
    return loss


def eager(model: nn.Module, given: dict[str, Tensor]) -> tuple[Tensor, Weights]:
    """What plain autograd gives: the loss and the gradients."""
    leaves = {name: w.clone().requires_grad_() for name, w in weights_of(model).items()}
    loss = loss_of(model, leaves, given)
    return loss.detach(), dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def exact(model: nn.Module, given: dict[str, Tensor]) -> tuple[Tensor, Weights]:
    """The same in float64, by torch's own cross-entropy of logits."""
    double: Any = copy.deepcopy(model).double()
    logits = double(given["input_ids"]).logits[:, :-1].flatten(0, 1)
    loss = F.cross_entropy(logits, given["labels"][:, 1:].flatten())
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in double.named_parameters()}


def direction(model: nn.Module) -> Weights:
    draw = torch.Generator().manual_seed(3)
    return {name: torch.randn(w.shape, generator=draw) for name, w in weights_of(model).items()}


def close(found: Weights, expected: Weights, tolerance: float) -> None:
    """Relative to the length of each gradient; one that is zero but for rounding (keys' biases), to that of all."""
    whole = torch.stack([value.norm() for value in expected.values()]).norm()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= tolerance * max(value.norm(), 0.01 * whole), name


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("placement", ["post-ln", "normformer"])
def test_grad(placement: str, shape: tuple[int, int]) -> None:
    model, given = network(placement), batch(shape)
    found, loss = torch.func.grad_and_value(lambda w: loss_of(model, w, given))(weights_of(model))
    for (expected, gradients), tolerance in ((eager(model, given), 1e-6), (exact(model, given), 5e-6)):
        assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
        close(found, gradients, tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_vmap_over_sequences(attention: str, shape: tuple[int, int]) -> None:
    """Gradients of each sequence are those of a batch of one."""
    model, given = network(), batch(shape)
    model.set_attn_implementation(attention)

    def one(weights: Weights, ids: Tensor, labels: Tensor) -> Tensor:
        return loss_of(model, weights, {"input_ids": ids[None], "labels": labels[None]})

    each = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(weights_of(model), *given.values())
    for i in range(shape[0]):
        alone = {k: v[i : i + 1] for k, v in given.items()}
        close({name: g[i] for name, g in each.items()}, eager(model, alone)[1], 2e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_vmap_over_models(shape: tuple[int, int]) -> None:
    models, given = [network(), build.randomised(network(), seed=2)], batch(shape)
    stacks, _ = torch.func.stack_module_state(models)
    losses = torch.func.vmap(lambda w: loss_of(models[0], w, given))({k: v.detach() for k, v in stacks.items()})
    for model, loss in zip(models, losses, strict=True):
        assert loss.item() == pytest.approx(eager(model, given)[0].item(), rel=1e-6)


def test_vmap_draws_a_mask_for_each_sequence() -> None:
    model = network(attention_dropout=0.3, hidden_dropout=0.3).train()
    ids = build.tokens(1, 9).expand(4, 1, 9)
    ask = torch.func.vmap(lambda i: model(input_ids=i, labels=i).loss, randomness="different")
    assert len(ask(ids).unique()) == 4


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, in its jvp
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", ["torch.func.jvp", "forward-mode AD"])
def test_forward_mode(way: str, shape: tuple[int, int]) -> None:
    """The derivative along a direction is the gradient times it."""
    model, given = network(), batch(shape)
    weights, along = weights_of(model), direction(model)
    if way == "torch.func.jvp":
        loss, found = torch.func.jvp(lambda w: loss_of(model, w, given), (weights,), (along,))
    else:
        with forward_ad.dual_level():
            duals = {name: forward_ad.make_dual(w, along[name]) for name, w in weights.items()}
            loss, found = forward_ad.unpack_dual(loss_of(model, duals, given))
    expected, gradients = exact(model, given)
    terms = [g * along[name] for name, g in gradients.items()]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert abs(found - sum(t.sum() for t in terms)) <= 1e-6 * sum(t.abs().sum() for t in terms)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("way", ["reverse over reverse", "forward over reverse", "create_graph"])
def test_curvature(way: str, tied: bool) -> None:
    """H v, of a head that is the token table too, against central differences of float64 gradients."""
    model, given = network(tie_word_embeddings=tied, dtype=torch.float64), batch(SHAPES[1])
    model.set_attn_implementation("eager")  # torch's fused kernel has no second derivative
    weights, along = weights_of(model), {name: v.double() for name, v in direction(model).items()}

    def gradient(at: Weights) -> Weights:
        return torch.func.grad(lambda w: loss_of(model, w, given))(at)

    if way == "create_graph":
        leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
        first = torch.autograd.grad(loss_of(model, leaves, given), list(leaves.values()), create_graph=True)
        slope = sum((g * v).sum() for g, v in zip(first, along.values(), strict=True))
        found = dict(zip(leaves, torch.autograd.grad(slope, list(leaves.values())), strict=True))
    elif way == "forward over reverse":
        _, found = torch.func.jvp(gradient, (weights,), (along,))
    else:
        found = torch.func.grad(lambda w: sum((g * along[k]).sum() for k, g in gradient(w).items()))(weights)

    step = 1e-5
    after, before = (
        eager_at(model, {k: w + sign * step * along[k] for k, w in weights.items()}, given) for sign in (1, -1)
    )
    close(found, {k: (after[k] - before[k]) / (2 * step) for k in weights}, 1e-6)


def eager_at(model: nn.Module, weights: Weights, given: dict[str, Tensor]) -> Weights:
    moved = copy.deepcopy(model)
    moved.load_state_dict(weights, strict=False)
    return eager(moved, given)[1]


def test_flops_are_the_same_per_sequence() -> None:
    """Six per weight of a matrix and token, counted by hand, and as many per entry of attention's two products."""
    model = network("normformer").train()
    model.set_attn_implementation("eager")
    counts = []
    for sequences in (1, 2, 4, 16):
        ids = build.tokens(sequences, 17)
        with FlopCounterMode(display=False) as counter:
            model(ids, labels=ids).loss.backward()
        counts.append(counter.get_total_flops() / sequences)
    assert len(set(counts)) == 1
    matrices, attention = 17 * 2 * (4 * 16 * 16 + 2 * 16 * 24), 2 * 2 * 17 * 17 * 16
    assert counts[0] == 6 * (matrices + attention + 16 * 16 * 41)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
def test_a_counter_of_the_backward_pass_alone() -> None:
    """What is computed again under a counter is what was computed without it."""
    model, given = network().train(), batch(SHAPES[1])
    plain = eager(model, given)[1]
    model.gradient_checkpointing_enable()
    loss = model(**given).loss
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    assert counter.get_total_flops() > 0
    close({name: p.grad for name, p in model.named_parameters()}, plain, 1e-6)


class Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.model(input_ids=ids, labels=labels, use_cache=False).loss
        return loss


@pytest.mark.filterwarnings("ignore")  # torch calls its own tracer deprecated
@pytest.mark.parametrize("head", ["causal", "masked"])
@pytest.mark.parametrize("shape", SHAPES)
def test_traced(head: str, shape: tuple[int, int]) -> None:
    """A trace serves other ids, with other labels ignored."""
    wrapped, first, second = Loss(build.model(head)), batch(shape), batch(shape)
    second = {"input_ids": second["input_ids"].flip(0, 1), "labels": second["labels"].flip(0, 1)}
    traced = torch.jit.trace(wrapped, tuple(first.values()))
    assert traced(*second.values()).item() == pytest.approx(wrapped(*second.values()).item(), rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_graph_of_the_training_step(shape: tuple[int, int]) -> None:
    """make_fx of loss and gradients: torch's operations only, and the same numbers."""
    model, given = network(), batch(shape)

    def step(weights: Weights, ids: Tensor, labels: Tensor) -> Weights:
        return torch.func.grad(lambda w: loss_of(model, w, {"input_ids": ids, "labels": labels}))(weights)

    graph = make_fx(step)(weights_of(model), *given.values())
    assert not any("mkldnn" in str(node.target) for node in graph.graph.nodes)
    close(graph(weights_of(model), *given.values()), eager(model, given)[1], 1e-6)


@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize("strict", build.few([True, False], [False]))
def test_exported(strict: bool) -> None:
    wrapped, first, second = Loss(network()), batch(SHAPES[1]), batch(SHAPES[1])
    second["labels"] = second["labels"].flip(0)
    exported = torch.export.export(wrapped, tuple(first.values()), strict=strict).module()
    assert exported(*second.values()).item() == pytest.approx(wrapped(*second.values()).item(), rel=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own
def test_compiled_transform() -> None:
    torch.compiler.reset()
    model, given = network(), batch(SHAPES[1])
    compiled: Callable[[Weights], Weights] = torch.compile(
        torch.func.grad(lambda w: loss_of(model, w, given)), backend="aot_eager", fullgraph=True
    )
    close(compiled(weights_of(model)), eager(model, given)[1], 1e-6)


def test_saved_tensors_on_their_way() -> None:
    """Hooks that store what autograd keeps elsewhere, and checkpointing of the whole loss."""
    model, given = network().train(), batch(SHAPES[1])
    expected = eager(model, given)[1]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), torch.from_numpy):
        model(**given).loss.backward()
    close({name: p.grad for name, p in model.named_parameters()}, expected, 1e-6)
    model.zero_grad()
    checkpoint(lambda: model(**given).loss, use_reentrant=False).backward()
    close({name: p.grad for name, p in model.named_parameters()}, expected, 1e-6)
