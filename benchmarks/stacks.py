"""What takes part in `batched.py`: K models of one shape one after another, and the same models as stacks.

A stack is a parameter of all models, (models, *shape of one). Names are those of `IsogradForCausalLM`.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from stacked_adam import Stacks, adam_apart, adam_scaled
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from isograd import IsogradConfig, IsogradForCausalLM

WIDTH, LAYERS, HEADS = 64, 12, 4  # the small model of `isograd compare` and of the studies
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Losses = Callable[[Stacks, Tensor], Tensor]  # of all models, each on its own batch: (models, batch, time) -> (models,)


def make_models(count: int, vocabulary: int, length: int, layers: int = LAYERS) -> list[IsogradForCausalLM]:
    """Models that differ in their seeds only, at the settings that a recipe has when it says nothing."""
    config = IsogradConfig(
        placement="pre-ln",
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        max_position_embeddings=length,
        position_embedding_type="sinusoidal",
        scale_embedding=True,
    )
    models = []
    for seed in range(count):
        torch.manual_seed(seed)
        models.append(IsogradForCausalLM(config).train())
    return models


def stacked(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """All parameters, as leaves that a gradient is formed of."""
    stacks, _ = stack_module_state(list(models))
    return {name: stack.detach().requires_grad_() for name, stack in stacks.items()}


def vmapped(models: Sequence[nn.Module]) -> Losses:
    """torch.func.vmap of the model, which leaves the chunked loss for torch's own operations there."""
    model: Any = copy.deepcopy(models[0]).eval()  # without dropout it is the same function, and draws no numbers

    def one(parameters: Stacks, ids: Tensor) -> Tensor:
        return functional_call(model, dict(parameters), (), {"input_ids": ids, "labels": ids}).loss

    every: Losses = vmap(one)
    return every


def by_hand(models: Sequence[nn.Module], product: Product) -> Losses:
    """A Pre-LN network written on stacks: x <- x + attn(norm(x)), x <- x + ffn(norm(x)), a final norm, a tied head."""
    model: Any = models[0]
    layers, heads, width = len(model.model.layers), HEADS, WIDTH

    def losses(stacks: Stacks, ids: Tensor) -> Tensor:
        count, batch, time = ids.shape

        def norm(x: Tensor, name: str) -> Tensor:
            plain = F.layer_norm(x, (width,), eps=1e-5)
            return torch.addcmul(stacks[f"{name}.bias"][:, None], plain, stacks[f"{name}.weight"][:, None])

        def project(x: Tensor, name: str) -> Tensor:
            return product(x, stacks[f"{name}.weight"], stacks[f"{name}.bias"])

        def split(x: Tensor) -> Tensor:  # (models * batch, heads, time, width/heads)
            return x.view(count * batch, time, heads, -1).transpose(1, 2)

        def attend(x: Tensor, name: str) -> Tensor:
            query, key, value = (split(project(x, f"{name}.{role}")) for role in ("query", "key", "value"))
            h = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            return project(h.transpose(1, 2).reshape(count, batch * time, width), f"{name}.out")

        table = stacks["model.embedding.tokens.weight"]  # (models, vocabulary, width)
        rows = ids + table.shape[1] * torch.arange(count, device=ids.device)[:, None, None]
        places = model.model.embedding.positions(torch.arange(time, device=ids.device)).to(table.dtype)
        x = (F.embedding(rows, table.view(-1, width)) * width**0.5 + places).view(count, batch * time, width)
        for i in range(layers):
            name = f"model.layers.{i}"
            x = x + attend(norm(x, f"{name}.attn.pre"), f"{name}.attn.branch")
            inner = F.gelu(project(norm(x, f"{name}.ffn.pre"), f"{name}.ffn.branch.into"))
            x = x + project(inner, f"{name}.ffn.branch.out")
        h = norm(x, "model.norm").view(count, batch, time, width)[:, :, :-1].reshape(count, -1, width)
        logits = product(h, table, None)
        each = F.cross_entropy(logits.flatten(0, 1), ids[:, :, 1:].flatten(), reduction="none")
        return each.view(count, -1).mean(dim=1)

    return losses


def torch_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b of each model: (models, rows, fan_in), (models, fan_out, fan_in) -> (models, rows, fan_out)."""
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias[:, None], x, weight.mT)


KINDS: dict[str, Callable[[Sequence[nn.Module]], Losses]] = {
    "vmap": vmapped,
    "bmm": partial(by_hand, product=torch_product),
}


def differences(losses: Losses, models: Sequence[nn.Module], ids: Tensor) -> tuple[float, float]:
    """How far stacks are from single models: the losses, relative; the gradients, over a model's largest entry."""
    stacks = stacked(models)
    together = losses(stacks, ids)
    together.sum().backward()
    of_loss = of_gradient = 0.0
    for k, model in enumerate(models):
        model.zero_grad()
        loss = model(input_ids=ids[k], labels=ids[k]).loss
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        largest = max(float(g.abs().max()) for g in gradients.values())
        apart = max(float((_gradient(stacks[name])[k] - g).abs().max()) for name, g in gradients.items())
        of_gradient = max(of_gradient, apart / largest)
        of_loss = max(of_loss, abs(together[k].item() / loss.item() - 1))
    return of_loss, of_gradient


def drift(
    losses: Losses, models: Sequence[nn.Module], batches: Sequence[Tensor], rates: Sequence[float]
) -> list[float]:
    """Trains all models on the batches, together and one after another, each at its rate: the relative difference of
    their losses at every step, of the model that is farthest off."""
    stacks = stacked(models)
    update, apart = adam_scaled(stacks), [adam_apart([model.parameters()]) for model in models]
    found = []
    for ids in batches:
        together = losses(stacks, ids)
        together.sum().backward()
        update(rates)
        off = 0.0
        for k, model in enumerate(models):
            loss = model(input_ids=ids[k], labels=ids[k]).loss
            loss.backward()
            apart[k](rates[k : k + 1])
            off = max(off, abs(together[k].item() / loss.item() - 1))
        found.append(off)
    return found


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad
