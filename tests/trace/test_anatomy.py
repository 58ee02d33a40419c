"""The anatomy of the catalogue's models, and of equations written by hand, against what they are known to be."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isograd import IsogradConfig, IsogradForCausalLM, IsogradForSeq2SeqLM
from isograd.placement import CATALOGUE, get, sites
from isograd.placement.formula import PLAIN, Coupled
from isograd.trace.anatomy import Anatomy, find_anatomy
from isograd.transformer.sublayer import Sublayer
from tests.build import NAMES, few

IDS = torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(0))
ROLES = {"query": "query", "key": "key", "value": "value", "out": "attn_out"}
SHAPE: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}


def of_catalogue(placement: str, **options: Any) -> Anatomy:
    torch.manual_seed(0)
    config = IsogradConfig(placement=placement, is_decoder=True, **SHAPE, **options)
    return find_anatomy(IsogradForCausalLM(config), {"input_ids": IDS})


STREAMS = {  # what carries them is no single tensor: they are known by name, and their norms may be the stream's
    "parallel-shared": "pre-ln", "ngpt": "out+post", "variance-gate": "variance-gate", "siamesenorm": "siamesenorm",
    "x0-scalars": "x0-scalars", "affine-shortcut": "affine-shortcut", "mhc": "mhc",
    "hyper-connections-static": "hyper-connections-static", "hyper-connections": "hyper-connections",
    "independent-streams": "independent-streams", "gated-streams": "gated-streams", "residual": "residual",
    "attention-residuals": "attention-residuals", "attention-residuals-inkling": "attention-residuals-inkling",
}  # fmt: skip
FOLLOWED = {"parallel", "b2t", "residual", "spannorm", "value-residual"}  # of the streams
UNREAD = {name for name in CATALOGUE if get(name).stream != PLAIN} - FOLLOWED - STREAMS.keys()
READ = [
    pytest.param(name, marks=[] if name in (*NAMES, "sandwich", "b2t", "dyt", "spannorm") else pytest.mark.slow)
    for name in CATALOGUE
    if name not in UNREAD and (name not in STREAMS or name == "residual")
]


@pytest.mark.parametrize("placement", sorted(UNREAD))
def test_other_streams_are_looked_at_all_the_same(placement: str) -> None:
    """No crash, and whatever sublayers it finds are the model's."""
    found = of_catalogue(placement)
    assert {s.layer for s in found.sublayers} <= {1, 2, 3}


@pytest.mark.parametrize("placement", STREAMS)
def test_streams_have_their_names(placement: str) -> None:
    found = of_catalogue(placement)
    assert [(s.layer, s.kind) for s in found.sublayers] == [(n, k) for n in (1, 2, 3) for k in ("attn", "ffn")]
    assert {s.placement for s in found.sublayers} == {STREAMS[placement]}
    assert (len(found.stacks), found.missed) == (1, [])


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("placement", READ)
def test_norms_and_coefficients_of_the_catalogue(placement: str, norm: str) -> None:
    """What is found is what the entry says, at every site."""
    found = of_catalogue(placement, norm=norm)
    assert [(s.layer, s.kind) for s in found.sublayers] == [(n, k) for n in (1, 2, 3) for k in ("attn", "ffn")]
    for sublayer, site in zip(found.sublayers, sites(3, "decoder"), strict=True):
        residual = get(placement).at(site)
        for slot in ("pre", "mid", "out", "post"):
            assert (slot in sublayer.norms) == (getattr(residual, slot) is not None), (placement, slot)
        for want, coefficient in ((residual.skip, sublayer.skip), (residual.scale, sublayer.scale)):
            assert bool(coefficient.learned) == (not isinstance(want, float))
            if not isinstance(want, Coupled):  # which the other coefficient says
                assert coefficient.value == pytest.approx(want if isinstance(want, float) else want.init, rel=1e-4)
    assert bool(found.stacks[0].final) == (get(placement).final is not None)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_every_norm_has_its_eps_and_weight(norm: str) -> None:
    found = of_catalogue("pre-ln", norm=norm, norm_eps=1e-4)
    assert len(found.dataflow.norms) == 7
    for n in found.dataflow.norms.values():
        assert n.eps == 1e-4 and n.weight is not None


def test_parameters_and_addresses_are_those_of_the_sublayers() -> None:
    """Second source: the modules."""
    config = IsogradConfig(placement="normformer-resscale", is_decoder=True, **SHAPE)
    model = IsogradForCausalLM(config)
    found = find_anatomy(model, {"input_ids": IDS})
    modules = {address: m for address, m in model.named_modules() if isinstance(m, Sublayer)}
    assert [s.address for s in found.sublayers] == list(modules)
    for sublayer in found.sublayers:
        own = {f"{sublayer.address}.{name}" for name, _ in modules[sublayer.address].named_parameters()}
        assert set(sublayer.parameters) == own
        roles = {f"{sublayer.address}.branch.{name}.weight": role for name, role in ROLES.items()}
        if sublayer.kind == "attn":
            assert sublayer.roles == roles
        assert sublayer.last == f"{sublayer.address}.branch.out.weight"


def test_stacks() -> None:
    config = IsogradConfig(placement="pre-ln", encoder_layers=2, decoder_start_token_id=1, **SHAPE)
    found = find_anatomy(IsogradForSeq2SeqLM(config), {"input_ids": IDS, "decoder_input_ids": IDS.flip(1)})
    assert [(t.name, t.layers, len(t.sublayers)) for t in found.stacks] == [("encoder", 2, 4), ("decoder", 3, 9)]
    assert [s.kind for s in found.stacks[1].sublayers[:3]] == ["attn", "cross", "ffn"]


def test_what_is_no_transformer() -> None:
    assert find_anatomy(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(3, 4)).stacks == []


class ByHand(nn.Module):
    """A stack of feed-forward sublayers from one equation, with nothing that a name could tell."""

    def __init__(self, equation: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor], layers: int = 3) -> None:
        super().__init__()
        self.equation = equation
        self.a = nn.ParameterList([nn.Parameter(torch.randn(8, 32) / 8**0.5) for _ in range(layers)])
        self.b = nn.ParameterList([nn.Parameter(torch.randn(32, 8) / 32**0.5) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        for a, b in zip(self.a, self.b, strict=True):
            x = self.equation(x, lambda v, a=a, b=b: F.gelu(v @ a) @ b)  # type: ignore[misc]
        return x


def layer_norm(x: Tensor) -> Tensor:
    """Written out."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def rms_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def l2_norm(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1) * 8**0.5


EQUATIONS: dict[str, tuple[Callable[..., Tensor], str, float, float]] = {
    "pre": (lambda x, f: x + f(layer_norm(x)), "pre-ln", 1, 1),
    "pre, RMS": (lambda x, f: f(rms_norm(x)) + x, "pre-ln", 1, 1),
    "pre, L2": (lambda x, f: x + f(l2_norm(x)), "pre-ln", 1, 1),
    "pre, DyT": (lambda x, f: x + f(torch.tanh(0.5 * x)), "none", 1, 1),
    "post": (lambda x, f: layer_norm(x + f(x)), "post-ln", 1, 1),
    "post, scaled": (lambda x, f: rms_norm(2.5 * x + f(x)), "deepnorm", 2.5, 1),
    "out": (lambda x, f: x + rms_norm(f(x)), "out-ln", 1, 1),
    "around": (lambda x, f: x + 0.5 * layer_norm(f(layer_norm(x))), "sandwich", 1, 0.5),
    "before and after the sum": (lambda x, f: layer_norm(8 * x + f(layer_norm(x))), "pre+post", 8, 1),
    "none": (lambda x, f: x + 0.25 * f(x), "none", 1, 0.25),
    "in place": (lambda x, f: (x * 1.0).add_(f(layer_norm(x))), "pre-ln", 1, 1),
    "subtracted": (lambda x, f: x - f(layer_norm(x)), "pre-ln", 1, 1),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_equations_by_hand(name: str) -> None:
    equation, placement, skip, gain = EQUATIONS[name]
    torch.manual_seed(0)
    found = find_anatomy(ByHand(equation), torch.randn(2, 5, 8))
    (stack,) = found.stacks
    assert [s.placement for s in stack.sublayers] == [placement] * 3
    assert [s.kind for s in stack.sublayers] == ["ffn"] * 3
    assert [(s.skip.value, s.scale.value) for s in stack.sublayers] == [pytest.approx((skip, gain), rel=1e-3)] * 3


def test_a_norm_is_what_scaling_does_not_move() -> None:
    """Negative control: the same shape of operations, divided by something that does not grow with x."""
    found = find_anatomy(
        ByHand(lambda x, f: x + f(x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + 1e-6))), torch.randn(2, 5, 8)
    )
    assert [s.placement for s in found.sublayers] == ["none"] * 3


SKIPS: dict[str, tuple[Callable[[int], float], str | None]] = {  # of sublayer i, and what 16 layers with it compute
    "never calibrated": (lambda i: 1.0, "post-ln"),
    "flat below 1": (lambda i: 0.8, "post-ln"),
    "flat above 1": (lambda i: 1.1, "post-ln"),
    "flat, not as high as DeepNorm's": (lambda i: 1.5, "post-ln"),
    "uneven around 1": (lambda i: 1 + 0.2 * (-1) ** i, "post-ln"),
    "after an embedding that is too small": (lambda i: 1.0 if i == 1 else (0.03 + 0.3 * (i - 2)) ** 0.5, "post-ln"),
    "as profiled": (lambda i: (0.8 + 0.2 * i) ** 0.5, "admin"),
    "DeepNorm's": (lambda i: 32**0.25, "deepnorm"),
}


@pytest.mark.parametrize("case", few(SKIPS, ["uneven around 1", "as profiled", "DeepNorm's"]))
def test_what_trained_skips_compute(case: str) -> None:
    law, function = SKIPS[case]
    model = IsogradForCausalLM(IsogradConfig(placement="admin", **(SHAPE | {"num_hidden_layers": 16})))
    sublayers = [m for m in model.modules() if isinstance(m, Sublayer)]
    for i, sublayer in enumerate(sublayers, start=1):
        torch.nn.init.constant_(sublayer.combine.skip.weight, law(i))
    (stack,) = find_anatomy(model, IDS).stacks
    assert stack.function == function
    assert {s.placement for s in stack.sublayers} == {"post-ln" if function == "post-ln" else "admin"}


@pytest.mark.parametrize("placement", ["post-ln", "deepnorm", "pre-ln"])
def test_what_constants_compute(placement: str) -> None:
    (stack,) = find_anatomy(IsogradForCausalLM(IsogradConfig(placement=placement, **SHAPE)), IDS).stacks
    assert stack.function == (None if placement == "pre-ln" else placement)
