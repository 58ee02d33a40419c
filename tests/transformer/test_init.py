"""Initialization, measured on the finished model: the framework may not have drawn them again."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from isograd.models import IsogradForCausalLM
from isograd.placement import Init, Norm, Placement, Residual, register
from isograd.transformer.init import SCHEMES
from isograd.transformer.parameters import Embedding, Linear, roles
from tests.build import HEADS, NAMES, model, theoretical_std

D, F, V, L, M = 48, 160, 300, 3, 2  # width, inner, vocabulary, layers, layers of the encoder
SHAPE = {
    "hidden_size": D,
    "intermediate_size": F,
    "vocab_size": V,
    "num_hidden_layers": L,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "random": False,
}


def xavier(fan_in: int, fan_out: int) -> float:
    return math.sqrt(2 / (fan_in + fan_out))


def torch_linear(fan_in: int) -> float:
    """U(+-1/sqrt(fan_in)) has the standard deviation 1/sqrt(3 fan_in)."""
    return 1 / math.sqrt(3 * fan_in)


# scheme -> role -> (standard deviation of the weight, standard deviation of the bias)
TABLES = {"embed": (D**-0.5, 0.0), "head": (D**-0.5, 0.0)}
FUSED = xavier(D, 3 * D)  # W_Q, W_K, W_V as one matrix of (3d, d)
RULES: dict[str, dict[str, tuple[float, float]]] = {
    "xavier-uniform": TABLES
    | dict.fromkeys(("query", "key", "value"), (FUSED, 0.0))
    | {"attn_out": (xavier(D, D), 0.0), "ffn_in": (xavier(D, F), 0.0), "ffn_out": (xavier(F, D), 0.0)},
    "xavier-normal": TABLES
    | dict.fromkeys(("query", "key", "value", "attn_out"), (xavier(D, D), 0.0))
    | {"ffn_in": (xavier(D, F), 0.0), "ffn_out": (xavier(F, D), 0.0)},
    "normal": dict.fromkeys(("embed", "head", "query", "key", "value", "attn_out", "ffn_in", "ffn_out"), (0.02, 0.0)),
    "small-init": dict.fromkeys(
        ("embed", "query", "key", "value", "attn_out", "ffn_in", "ffn_out"), ((0.4 / D) ** 0.5, 0.0)
    )
    | {"head": (D**-0.5, 0.0)},
    "unit": dict.fromkeys(  # rows of length 1, of W_O and W_2 columns: always of d entries
        ("embed", "head", "query", "key", "value", "attn_out", "ffn_in", "ffn_out"), (D**-0.5, 0.0)
    ),
    "fairseq": TABLES
    | dict.fromkeys(("query", "key", "value"), (FUSED, torch_linear(D)))
    | {
        "attn_out": (xavier(D, D), 0.0),
        "ffn_in": (torch_linear(D), torch_linear(D)),
        "ffn_out": (torch_linear(F), torch_linear(F)),
    },
}
UNIFORM = {"xavier-uniform", "fairseq"}


def has_std(values: Tensor, expected: float) -> None:
    """Within 6/sqrt(samples), and the mean likewise."""
    flat = values.detach().double().flatten()
    bound = 6 * expected / math.sqrt(flat.numel())
    assert abs(flat.square().mean().sqrt().item() - expected) <= bound
    assert abs(flat.mean().item()) <= bound


def leaves(made: nn.Module) -> list[tuple[str, Linear | Embedding]]:
    return [(n, m) for n, m in made.named_modules() if isinstance(m, Linear | Embedding)]


def matches(made: nn.Module, rule: dict[str, tuple[float, float]], gain: Callable[[str, str], float]) -> None:
    for name, leaf in leaves(made):
        weight, bias = rule[leaf.role]
        rows = leaf.weight
        if isinstance(leaf, Embedding) and leaf.padding_idx is not None:
            assert not leaf.weight[leaf.padding_idx].any()
            rows = leaf.weight[torch.arange(len(leaf.weight)) != leaf.padding_idx]
        has_std(rows, weight * gain(name, leaf.role))
        if getattr(leaf, "bias", None) is not None:
            has_std(leaf.bias, bias)


def one(name: str, role: str) -> float:
    return 1.0


@pytest.mark.parametrize("head", ["causal", "seq2seq"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme_by_role(scheme: str, head: str) -> None:
    made = model(head, init=scheme, **SHAPE)
    assert {leaf.role for _, leaf in leaves(made)} == set(RULES[scheme])
    matches(made, RULES[scheme], one)
    for _, leaf in leaves(made):  # a uniform draw has a sharp edge at sqrt(3) std; a normal one has not
        edge = leaf.weight.abs().max() / leaf.weight.std() < 1.8
        assert edge == (scheme in UNIFORM and leaf.role not in ("embed", "head"))


def test_deepnorm_gains() -> None:
    """beta on W_V, W_O, W_1, W_2; W_Q and W_K without it; each stack its own constant."""
    branch = {"value", "attn_out", "ffn_in", "ffn_out"}
    matches(
        model(placement="deepnorm", **SHAPE),
        RULES["xavier-normal"],
        lambda name, role: (8 * L) ** -0.25 if role in branch else 1.0,
    )
    beta = {"encoder": 0.87 * (M**4 * L) ** (-1 / 16), "decoder": (12 * L) ** -0.25}
    matches(
        model("seq2seq", placement="deepnorm", encoder_layers=M, **SHAPE),
        RULES["xavier-normal"],
        lambda name, role: beta[name.split(".")[0]] if role in branch else 1.0,
    )


def test_gpt2_gains() -> None:
    """N(0, 0.02^2), and 1/sqrt(2L) on what writes to the residual stream."""
    matches(
        model(placement="gpt2", **SHAPE),
        RULES["normal"],
        lambda name, role: (2 * L) ** -0.5 if role in ("attn_out", "ffn_out") else 1.0,
    )


def test_control_one_wrong_gain_is_seen() -> None:
    with pytest.raises(AssertionError):
        matches(model(placement="gpt2", **SHAPE), RULES["normal"], one)
    with pytest.raises(AssertionError):
        matches(model(init="xavier-uniform", **SHAPE), RULES["fairseq"], one)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NAMES)
def test_norms_and_coefficients_begin_at_their_init(name: str, head: str) -> None:
    made = model(head, placement=name, random=False)
    closed = {4: math.sqrt(5 / math.log(5) - 1), 6: math.sqrt(7 / math.log(7) - 1)}  # by sublayers of the stack
    slots = {"decoder.": 6, "encoder.": 6}  # 2 layers of 3 sublayers beside 3 layers of 2
    for parameter, role in roles(made).items():
        value = dict(made.named_parameters()).get(parameter)
        if value is None or role not in ("norm", "coefficient"):
            continue
        expected = 0.0 if parameter.endswith("bias") else 1.0
        if name == "admin-closed" and role == "coefficient":
            expected = closed[slots.get(parameter[:8], 4)]
        torch.testing.assert_close(value.detach(), torch.full_like(value, expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_theoretical_std_is_the_measured_one(scheme: str) -> None:
    made = model(init=scheme, placement="deepnorm", **SHAPE)
    for _, leaf in leaves(made):
        rows = leaf.weight[2:] if isinstance(leaf, Embedding) else leaf.weight
        has_std(rows, theoretical_std(leaf, made.config, scheme))


def test_placement_names_the_scheme_and_the_configuration_overrides_it(own_catalogue: None) -> None:
    register("own", Placement(each=Residual(pre=Norm()), init=Init(base="normal", gain={"query": 3.0})))
    matches(model(placement="own", **SHAPE), RULES["normal"], lambda n, role: 3.0 if role == "query" else 1.0)
    matches(
        model(placement="own", init="fairseq", **SHAPE),
        RULES["fairseq"],
        lambda n, role: 3.0 if role == "query" else 1.0,
    )


@pytest.mark.parametrize("head", ["causal", "masked", "seq2seq", "classify"])
def test_loading_draws_nothing_again(head: str, tmp_path: Path) -> None:
    made = model(head, placement="normformer-resscale")
    made.save_pretrained(tmp_path)
    torch.manual_seed(123)
    again = type(made).from_pretrained(tmp_path)
    for name, value in made.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_only_what_is_missing_is_drawn(tmp_path: Path) -> None:
    """A stack loaded under a new head: the stack as saved, the head by the scheme."""
    saved = model("masked")
    saved.save_pretrained(tmp_path)
    again = HEADS["classify"][0].from_pretrained(tmp_path, num_labels=3)
    for name, value in saved.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name
    has_std(again.dense.weight, xavier(16, 16))
    assert not again.dense.bias.any()


def test_equal_seeds_equal_init() -> None:
    def drawn(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return IsogradForCausalLM(model().config).state_dict()

    first, second, other = drawn(1), drawn(1), drawn(2)
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
