"""Roles, counts and weight decay: which parameters a placement has, and which of them decay."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from isograd.placement import ByKind, HeadScale, Norm, Placement, Residual, get, register, sites
from isograd.transformer.parameters import MATRICES, decayed, roles
from tests.build import HEADS, NAMES, TINY, close, config, labelled, model, randomised, tokens

LAYERS, WIDTH, COUNT = TINY["num_hidden_layers"], TINY["hidden_size"], TINY["num_attention_heads"]


def count(name: str, **options: object) -> int:
    return sum(p.numel() for p in model(placement=name, random=False, intermediate_size=None, **options).parameters())


# parameters above pre-ln of the same shape, in a decoder with W_1 of 4d
ADDED = {
    "post-ln": -2 * WIDTH,  # no final norm
    "pre-ln": 0,
    "gpt2": 0,
    "normformer": LAYERS * (10 * WIDTH + COUNT),
    "normformer-resscale": LAYERS * (11 * WIDTH + COUNT),
    "normformer-resscale-no-out": LAYERS * (9 * WIDTH + COUNT),
    "normformer-resscale-no-mid": LAYERS * (3 * WIDTH + COUNT),
    "normformer-resscale-no-heads": LAYERS * 11 * WIDTH,
    "normformer-resscale-qkv": LAYERS * (17 * WIDTH + COUNT),
    "normformer-fairseq": LAYERS * (10 * WIDTH + COUNT),
    "normformer-fairseq-resscale": LAYERS * (11 * WIDTH + COUNT),
    "admin": LAYERS * 2 * WIDTH - 2 * WIDTH,
    "admin-closed": LAYERS * 2 * WIDTH - 2 * WIDTH,
    "deepnorm": -2 * WIDTH,
    "qk-norm": LAYERS * 4 * WIDTH // COUNT,
}


@pytest.mark.parametrize("name", ADDED)
def test_parameters_above_pre_ln(name: str) -> None:
    assert count(name) - count("pre-ln") == ADDED[name]


@pytest.mark.parametrize(("layers", "width", "heads", "share"), [(12, 768, 12, 0.00074), (24, 1024, 16, 0.00069)])
def test_normformer_adds_less_than_a_tenth_of_a_percent(layers: int, width: int, heads: int, share: float) -> None:
    """L(10 d + heads) beside GPT-3's 125M and 355M: 0.074 % and 0.069 %, not the 0.4 % of the abstract."""
    with torch.device("meta"):
        shape = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "vocab_size": 50257}
        shape |= {"max_position_embeddings": 2048}
        base, ours = (count(name, **shape) for name in ("pre-ln", "normformer"))
    assert ours - base == layers * (10 * width + heads)
    assert (ours - base) / base == pytest.approx(share, rel=0.03)


def strip(name: str, own: str) -> None:
    """Register `name` without its HeadScale and without its learned skips."""
    each = get(name).each
    assert isinstance(each, ByKind)
    plain = {
        kind: replace(r, skip=1.0, head_scale=None)
        for kind, r in (("attn", each.attn), ("cross", each.cross), ("ffn", each.ffn))
    }
    register(own, Placement(each=ByKind(**plain), final=get(name).final))


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("normformer")])
def test_coefficients_at_their_start_change_nothing(name: str, own_catalogue: None) -> None:
    """HeadScale and ResScale of one: the function of the same weights without them."""
    strip(name, "stripped")
    with_them = model(placement=name, random=False, dtype=torch.float64)
    without = model(placement="stripped", random=False, dtype=torch.float64)
    weights = {k: v for k, v in with_them.state_dict().items() if ".heads." not in k and ".skip." not in k}
    without.load_state_dict(weights)
    ids = tokens(2, 7)
    close(with_them(ids).logits, without(ids).logits, 1e-12)
    coefficients = [n for n, role in roles(with_them).items() if role == "coefficient"]
    assert coefficients and not [n for n, role in roles(without).items() if role == "coefficient"]
    randomised(with_them)
    without.load_state_dict(with_them.state_dict(), strict=False)
    assert (with_them(ids).logits - without(ids).logits).abs().max() > 1e-3  # the negative control


def head_sums(name: str, out_bias: bool) -> list[Tensor]:
    """Per layer: sum over heads of gamma * dL/dgamma, after LN's eps is made small enough to not matter."""
    made = model(placement=name, dtype=torch.float64)
    for module in made.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-12
    scales = [layer.attn.branch.heads.weight for layer in made.model.layers]
    with torch.no_grad():
        for layer in made.model.layers:
            layer.attn.branch.out.bias.mul_(float(out_bias))
    made(**labelled("causal")).loss.backward()
    assert all(s.grad.abs().max() > 1e-4 for s in scales)
    return [(s * s.grad).sum().abs() for s in scales]


@pytest.mark.parametrize(
    ("name", "out_bias", "zero"),
    [
        ("normformer", False, True),
        ("normformer", True, False),
        ("normformer-fairseq", False, True),
        ("normformer-fairseq", True, True),
    ],
)
def test_the_norm_after_attention_undoes_a_common_factor_of_the_heads(name: str, out_bias: bool, zero: bool) -> None:
    """LN(c u) = LN(u), so sum_h gamma_h dL/dgamma_h = 0: in the paper's form only while W_O has no bias."""
    sums = head_sums(name, out_bias)
    assert all(s < 1e-6 for s in sums) if zero else all(s > 1e-4 for s in sums)


LAYER_MATRICES = {"query", "key", "value", "attn_out", "ffn_in", "ffn_out"}
COEFFICIENTS = {name for name in NAMES if name.startswith(("normformer", "admin"))}
HEAD_ROLES = {"causal": {"head"}, "masked": {"head", "dense"}, "seq2seq": {"head"}, "classify": {"dense"}}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_acts_on_matrices_only(name: str, head: str) -> None:
    made = model(head, placement=name, tie_word_embeddings=False, embedding_norm=True)
    yes, no = decayed(made)
    named, role_of = dict(made.named_parameters()), roles(made)
    assert sorted(yes + no) == sorted(named)
    assert {role_of[n] for n in yes} == LAYER_MATRICES | {"embed"} | HEAD_ROLES[head]
    assert all(n.endswith("weight") and named[n].ndim == 2 for n in yes)
    kept = {role_of[n] for n in no if not n.endswith("bias")}
    assert kept == {"norm"} | ({"coefficient"} if name in COEFFICIENTS else set())
    assert all(n in no for n in named if n.endswith("bias"))


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_a_role(name: str, head: str, norm: str) -> None:
    made = model(head, placement=name, norm=norm, embedding_norm=True, hidden_act="swiglu")
    assert set(dict(made.named_parameters())) <= set(roles(made))


def test_coefficients_of_two_dimensions_do_not_decay() -> None:
    """HeadScale is stored as (heads, 1): by its shape alone it would pass for a matrix."""
    made = model(placement="normformer")
    two = [n for n, p in made.named_parameters() if p.ndim == 2 and roles(made)[n] == "coefficient"]
    assert two and not set(two) & set(decayed(made)[0])


def test_a_model_that_is_not_ours_goes_by_dimensions() -> None:
    foreign = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    yes, no = decayed(foreign)
    assert yes == ["0.weight", "1.weight"] and no == ["1.bias", "2.weight", "2.bias"]


def test_roles_of_a_bare_leaf() -> None:
    made = model(placement="normformer")
    assert roles(made.lm_head) == {"weight": "head"}
    assert set(roles(made).values()) <= MATRICES | {"norm", "coefficient"}
    assert made.model.layers[0].ffn.branch.mid.normalized_shape == (TINY["intermediate_size"],)


def test_a_norm_before_the_last_projection_of_attention(own_catalogue: None) -> None:
    """`mid` in an attention: a norm of the width before W_O (HeadScale before it)."""
    register("mid", Placement(each=ByKind(attn=Residual(mid=Norm(), head_scale=HeadScale()), ffn=Residual())))
    attention = model(placement="mid").model.layers[0].attn.branch
    h = torch.randn(2, 3, COUNT, WIDTH // COUNT)
    expected = attention.out(attention.mid((h * attention.heads.weight.view(1, 1, COUNT, 1)).reshape(2, 3, WIDTH)))
    close(attention._project(h), expected, 0)
    assert config(placement="mid").entry().of(sites(1, other=1)[1]).mid == Norm()
