"""Mistakes in the weights, the modules and the optimizer of a model that is built."""

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from benchmarks.faults.base import Base, build, matrix
from benchmarks.faults.fault import Fault, bases

Change = Callable[[Base, nn.Module], None]
Weights = Callable[[torch.Tensor], None]


def layers(base: Base, layer: int | None) -> range:
    return range(base.layers) if layer is None else range(layer, layer + 1)


def over(*roles: str, by: Weights, layer: int | None = None) -> Change:
    """What `by` does to the matrices of these roles in each layer, or in one."""

    @torch.no_grad()
    def change(base: Base, model: nn.Module) -> None:
        for role in roles:
            for index in layers(base, layer if "{l}" in base.slots[role].name else 0):
                by(matrix(base, model, role, index))

    return change


def rows(role: str, by: Weights, layer: int | None = None) -> Change:
    """The same with the outputs along the first axis, whatever way the base keeps its matrices."""

    @torch.no_grad()
    def change(base: Base, model: nn.Module) -> None:
        for index in layers(base, layer):
            by(matrix(base, model, role, index).movedim(base.slots[role].axis, 0))

    return change


def norms(by: Callable[[nn.Module], None], layer: int | None = None) -> Change:
    @torch.no_grad()
    def change(base: Base, model: nn.Module) -> None:
        for index in layers(base, layer):
            for name in base.norms:
                by(model.get_submodule(name.format(l=index)))

    return change


def state(name: str, cause: str, change: Change, on: tuple[str, ...], layer: int | None = None, **more: bool) -> Fault:
    return Fault(name=name, cause=cause, change=change, on=on, layer=layer, **more)


def times(factor: float) -> Weights:
    return lambda w: w.mul_(factor)


def weight_to(value: float) -> Callable[[nn.Module], None]:
    return lambda norm: norm.weight.fill_(value)


def garbage(norm: nn.Module) -> None:
    norm.weight.copy_(torch.randn_like(norm.weight) * 3)


def eps_to_one(norm: nn.Module) -> None:
    """In the attribute that this norm reads."""
    found = [name for name in ("eps", "variance_epsilon") if hasattr(norm, name)]
    setattr(norm, found[0], 1.0)


def twins(w: torch.Tensor) -> None:
    half = w.shape[0] // 2
    w[half : 2 * half] = w[:half]


def first_quarter_zero(w: torch.Tensor) -> None:
    w[: max(1, w.shape[0] // 4)] = 0


def half_the_columns_zero(w: torch.Tensor) -> None:
    w[..., : w.shape[-1] // 2] = 0


def like_rand(w: torch.Tensor) -> None:
    w.copy_(torch.rand_like(w) * 2 * w.std())


@torch.no_grad()
def nan_in_ffn(base: Base, model: nn.Module) -> None:
    matrix(base, model, "ffn_out", 1)[3, 5] = torch.nan


@torch.no_grad()
def infinite_embedding(base: Base, model: nn.Module) -> None:
    matrix(base, model, "embed")[:] = torch.inf


def frozen_layer(base: Base, model: nn.Module) -> None:
    for name, p in model.named_parameters():
        if name.startswith(base.norms[0].format(l=1).rsplit(".", 1)[0] + "."):
            p.requires_grad_(False)


def frozen_norms(base: Base, model: nn.Module) -> None:
    norms(lambda norm: norm.requires_grad_(False))(base, model)


def frozen_embedding(base: Base, model: nn.Module) -> None:
    model.get_parameter(base.slots["embed"].name).requires_grad_(False)


def frozen_matrices(base: Base, model: nn.Module) -> None:
    for index in range(base.layers):
        model.get_parameter(base.slots["ffn_in"].name.format(l=index)).requires_grad_(False)


ROWS = bases(but=("torch_seq2seq", "isograd_lm"))
STACKS = bases(but=("torch_seq2seq",))
HEADED = bases(kinds=("causal", "pairs"), roles=("head",))

INITS = (
    state(
        "all-matrices-zero", "init-zero", over("attn_out", "ffn_out", "query", "ffn_in", "value", by=times(0)), STACKS
    ),
    state("ffn-of-one-layer-zero", "init-zero", over("ffn_in", "ffn_out", by=times(0), layer=1), ROWS, 1),
    state("values-zero", "init-zero", over("value", by=times(0)), bases(roles=("value",))),
    state("queries-of-one-layer-zero", "init-zero", over("query", by=times(0), layer=2), ROWS, 2),
    state(
        "all-matrices-ten-times",
        "init-large",
        over("query", "key", "value", "attn_out", "ffn_in", "ffn_out", by=times(10)),
        STACKS,
    ),
    state("ffn-out-thirty-times", "init-large", over("ffn_out", by=times(30)), STACKS),
    state("one-layer-twenty-times", "init-large", over("attn_out", "ffn_out", by=times(20), layer=2), ROWS, 2),
    state("queries-and-keys-eight-times", "init-large", over("query", "key", by=times(8)), ROWS),
    state(
        "all-but-the-writes-a-thousandth", "init-small", over("query", "key", "value", "ffn_in", by=times(1e-3)), STACKS
    ),
    state("one-layer-a-thousandth", "init-small", over("ffn_in", "ffn_out", by=times(3e-3), layer=1), ROWS, 1),
    state(
        "law-of-depth-turned-round",
        "init-depth",
        lambda b, m: over("attn_out", "ffn_out", by=times(2.0 * b.layers))(b, m),
        ("nano_gpt", "mini_llama", "einsum_lm"),
    ),
    state(
        "law-of-depth-in-attention-alone",
        "init-depth",
        lambda b, m: over("ffn_out", by=times((2.0 * b.layers) ** 0.5))(b, m),
        ("nano_gpt", "mini_llama", "einsum_lm"),
    ),
    state("queries-constant", "init-constant", over("query", by=lambda w: w.fill_(0.02)), ROWS),
    state("ffn-in-constant", "init-constant", over("ffn_in", by=lambda w: w.fill_(0.02), layer=1), ROWS, 1),
    state("half-the-rows-copies", "init-constant", rows("ffn_in", twins), ROWS),
    state("rand-for-randn", "init-mean", over("ffn_in", "ffn_out", by=like_rand), STACKS),
    state("one-head-zero", "init-partial", rows("value", first_quarter_zero), ROWS),
    state("one-head-of-one-layer-zero", "init-partial", rows("query", first_quarter_zero, layer=1), ROWS, 1),
    state("half-the-columns-zero", "init-partial", over("ffn_out", by=half_the_columns_zero), ROWS),
    state(
        "embedding-zero",
        "embedding-zero",
        over("embed", by=times(0)),
        bases(kinds=("causal", "masked", "pairs"), but=("einsum_lm",)),
    ),
    state(
        "embedding-fifty-times",
        "embedding-large",
        over("embed", by=times(50)),
        ("mini_llama", "einsum_lm", "torch_encoder", "hf_llama"),
    ),
    state("positions-fifty-times", "position-large", over("position", by=times(50)), bases(roles=("position",))),
    state("head-fifty-times", "logit-scale", over("head", by=times(50)), HEADED),
    state("nan-in-a-weight", "non-finite", nan_in_ffn, ROWS, 1),
    state(
        "infinite-embedding", "non-finite", infinite_embedding, ("mini_llama", "torch_encoder", "hf_llama", "einsum_lm")
    ),
)

NORM_WEIGHTS = (
    state("norm-weights-zero", "norm-weight", norms(weight_to(0.0)), STACKS),
    state("norm-weights-two", "norm-weight", norms(weight_to(2.0)), STACKS),
    state("norm-weights-garbage", "norm-weight", norms(garbage), STACKS),
    state("norm-weights-of-one-layer-ten", "norm-weight", norms(weight_to(10.0), layer=1), STACKS, 1),
    state("final-norm-weight-zero", "norm-weight", over("final", by=times(0)), bases(roles=("final",))),
    state("eps-of-one", "norm-eps", norms(eps_to_one), bases(but=("torch_seq2seq", "einsum_lm", "post_bert"))),
)

FROZEN = (
    state(
        "one-layer-frozen",
        "frozen",
        frozen_layer,
        ("nano_gpt", "mini_llama", "small_vit", "hf_llama", "einsum_lm"),
        1,
        training=True,
    ),
    state("norms-frozen", "frozen", frozen_norms, ROWS, training=True),
    state("embedding-frozen", "frozen", frozen_embedding, ROWS, training=True),
    state("ffn-in-frozen", "frozen", frozen_matrices, ROWS, training=True),
)


def stray(name: str, cause: str, make: Callable[[Base, nn.Module], Optimizer], on: tuple[str, ...]) -> Fault:
    return Fault(name=name, cause=cause, optimizer=make, on=on, training=True)


def adam(groups: object, base: Base, **options: float) -> AdamW:
    return AdamW(groups, lr=base.rate, fused=True, **{"weight_decay": 0.0, **options})  # type: ignore[arg-type]


def decaying(model: nn.Module) -> list[dict[str, object]]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": [p for p in model.parameters() if p.dim() < 2]}]


def matrices_alone(base: Base, model: nn.Module) -> Optimizer:
    return adam([p for p in model.parameters() if p.dim() < 2], base)


def lower_half(base: Base, model: nn.Module) -> Optimizer:
    every = list(model.parameters())
    return adam(every[: len(every) // 2], base)


def another(base: Base, model: nn.Module) -> Optimizer:
    return adam(build(base, seed=1).parameters(), base)


def head_at_zero(base: Base, model: nn.Module) -> Optimizer:
    groups = decaying(model)
    groups[0]["lr"] = 0.0
    return adam(groups, base)


def one_group_high(base: Base, model: nn.Module) -> Optimizer:
    groups = decaying(model)
    groups[0]["lr"] = 300 * base.rate
    return adam(groups, base)


def all_decayed(base: Base, model: nn.Module) -> Optimizer:
    return adam(model.parameters(), base, weight_decay=1.0)


SOME = ("nano_gpt", "mini_llama", "torch_encoder", "small_vit", "hf_llama", "einsum_lm")
OPTIMIZERS = (
    stray("matrices-not-in-the-optimizer", "optimizer-lacks-parameters", matrices_alone, SOME),
    stray("half-the-model-not-in-the-optimizer", "optimizer-lacks-parameters", lower_half, SOME),
    stray("optimizer-of-another-model", "optimizer-of-another-model", another, SOME),
    stray("rate-of-a-group-zero", "lr-zero", head_at_zero, SOME),
    stray("rate-of-a-group-300-times", "lr-high", one_group_high, SOME),
    stray("norms-decayed", "norms-decayed", all_decayed, SOME),
)

STATE = (*INITS, *NORM_WEIGHTS, *FROZEN, *OPTIMIZERS)


def healthy(base: Base, model: nn.Module) -> Optimizer:
    """Decay on the matrices, none elsewhere: what the twins of wrong optimizers are trained by."""
    return adam(decaying(model), base)


def plain(base: Base, model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1, momentum=0.9)
