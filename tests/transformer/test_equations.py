"""Every placement computes its paper's equation: fp64, all norms and coefficients random, 1e-12."""

from functools import partial

import pytest
import torch
from torch import Tensor

from isograd.placement import Norm, Placement, Residual, get, register
from isograd.placement.laws import sites
from isograd.transformer.stack import Layer, make_layers
from tests.build import NAMES, close, config, randomised
from tests.transformer.by_hand import CROSS, EQUATIONS, Attend, State, Weights, layernorm, rmsnorm

WIDTH, HEADS = 16, 4
NORMS = {"layernorm": layernorm, "rmsnorm": rmsnorm}
TOWERS = {"encoder": ("encoder", 0), "decoder": ("decoder", 0), "cross": ("decoder", 6)}
ALPHA = {"encoder": 4**0.25, "decoder": 4**0.25, "cross": 6**0.25}  # (2 * 2)^(1/4), and (3 * 2)^(1/4) beside an encoder


def layer(name: str, norm: str, stack: str) -> Layer:
    """The second layer of two, its numbers all random."""
    which, other = TOWERS[stack]
    made = make_layers(config(norm=norm), get(name), which, 2, other, which == "decoder")[1]
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return randomised(made).double().eval()


def by_hand(name: str, state: dict[str, State], x: Tensor, memory: Tensor, stack: str, norm: str) -> Tensor:
    """One layer by the table of equations; raises KeyError if the weights are not those of `name`."""
    attn, form, cross, ffn, feed = EQUATIONS[name]
    skip = ALPHA[stack]
    w = {kind: Weights(s, NORMS[norm]) for kind, s in state.items()}
    x = attn(w["attn"], x, getattr(Attend(HEADS, TOWERS[stack][0] == "decoder"), form), skip)
    if stack == "cross":
        x = cross(w["cross"], x, getattr(Attend(HEADS, False, memory), CROSS.get(name, "plain")), skip)
    x = ffn(w["ffn"], x, feed, skip)
    assert all(w[kind].read == set(state[kind]) for kind in state), "an equation left a weight unread"
    return x


def states(made: Layer) -> dict[str, State]:
    kinds = ("attn", "ffn") if made.cross is None else ("attn", "cross", "ffn")
    return {kind: dict(getattr(made, kind).state_dict()) for kind in kinds}


def sample() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    return tuple(torch.randn(2, time, WIDTH, generator=draw, dtype=torch.float64) for time in (5, 8))


@pytest.mark.parametrize("stack", TOWERS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_its_papers_equation(name: str, norm: str, stack: str) -> None:
    made, (x, memory) = layer(name, norm, stack), sample()
    got = run(made, x, memory if stack == "cross" else None)
    close(got, by_hand(name, states(made), x, memory, stack, norm), 1e-12)


def run(made: Layer, x: Tensor, memory: Tensor | None = None) -> Tensor:
    """The layer with the mask that a model would hand it."""
    time = x.shape[1]
    later = torch.full((time, time), -torch.inf, dtype=x.dtype).triu(1) if made.attn.branch.is_causal else None
    return made(x, memory, mask=later)


def same_equation(a: str, b: str) -> bool:
    return EQUATIONS[a] == EQUATIONS[b]


@pytest.mark.parametrize("other", NAMES)
@pytest.mark.parametrize("name", NAMES)
def test_no_other_equation_fits(name: str, other: str) -> None:
    made, (x, memory) = layer(name, "layernorm", "decoder"), sample()
    expected = partial(by_hand, other, states(made), x, memory, "decoder", "layernorm")
    if same_equation(name, other):
        close(run(made, x), expected(), 1e-12)
        return
    try:
        far = (run(made, x) - expected()).abs().max()
    except (KeyError, AssertionError, RuntimeError):
        return  # the other placement has other weights, or of other shapes
    assert far > 1e-2


def test_the_paper_and_fairseq_scale_different_things() -> None:
    """Equal weights, and the two HeadScales still differ; with all scales equal to 1 they do not."""
    paper, released = (layer(name, "layernorm", "decoder") for name in ("normformer", "normformer-fairseq"))
    released.load_state_dict(paper.state_dict())
    x, _ = sample()
    assert (run(paper, x) - run(released, x)).abs().max() > 1e-2
    for made in (paper, released):
        torch.nn.init.ones_(made.attn.branch.heads.weight)
    close(run(paper, x), run(released, x), 1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_a_wrong_epsilon_shows_in_fp64(norm: str) -> None:
    made, (x, memory) = layer("post-ln", norm, "decoder"), sample()
    expected = by_hand("post-ln", states(made), x, memory, "decoder", norm)
    for module in made.modules():
        if hasattr(module, "eps"):
            module.eps = 1e-6
    assert (run(made, x) - expected).abs().max() > 1e-9


def test_all_fields_of_a_residual_at_once(own_catalogue: None) -> None:
    """post(skip * x + gain * out(f(pre(x)))) with mid inside f: every norm used, both coefficients constants."""
    n = Norm()
    every = Residual(pre=n, mid=n, out=n, post=n, skip=1.5, scale=lambda s: s.slot / 4)
    register("every", Placement(each=every))
    made, (x, _) = layer("every", "layernorm", "decoder"), sample()
    w = {kind: Weights(s, layernorm) for kind, s in states(made).items()}
    heads = torch.cat(Attend(HEADS, True).heads(w["attn"], w["attn"].norm("pre", x)), -1)
    branch = w["attn"].linear("branch.out", w["attn"].norm("branch.mid", heads))
    middle = w["attn"].norm("post", 1.5 * x + 0.75 * w["attn"].norm("out", branch))  # slot 3 of 4
    inner = torch.nn.functional.gelu(w["ffn"].linear("branch.into", w["ffn"].norm("pre", middle)))
    branch = w["ffn"].linear("branch.out", w["ffn"].norm("branch.mid", inner))
    expected = w["ffn"].norm("post", 1.5 * middle + 1.0 * w["ffn"].norm("out", branch))
    close(run(made, x), expected, 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_addresses_are_the_same_in_every_placement(name: str) -> None:
    made = layer(name, "layernorm", "cross")
    for kind in ("attn", "cross", "ffn"):
        assert {"pre", "branch", "out", "combine", "post"} <= {n for n, _ in getattr(made, kind).named_children()}
    assert made.ffn.site == sites(2, "decoder", 6)[-1]
