"""The streams against transformers' own connections with copied weights, and against equations by hand."""

import operator

import pytest
import torch
from torch import Tensor, nn

from isograd.placement.laws import Site, sites
from isograd.placement.streams import DepthAttention, DepthAverage, FirstInput, Hyper, LayerSkip, Parallel, TwoStreams
from isograd.transformer import streams
from isograd.transformer.streams.copies import doubly_stochastic, projected
from tests.build import close, config

WIDTH, COPIES = 16, 4
CONFIG = config(hidden_size=WIDTH, norm_eps=1e-6)
SITES = sites(3)


def connection(stream: object, site: Site = SITES[3], *, seed: int = 0) -> streams.Connection:
    """In float64, every parameter random."""
    made = streams.make_connection(stream, site, CONFIG).double()
    return randomised(made, seed)


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=draw, dtype=p.dtype) * 0.5)
    return module


def copies(seed: int = 1) -> Tensor:
    return torch.randn(2, 5, COPIES, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def written(seed: int = 2) -> Tensor:
    return torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' connections cast to float32; here the cast goes to float64."""
    monkeypatch.setattr(Tensor, "float", lambda self: self.double())


def stub(**values: object) -> object:
    return type("Config", (), values)()


def test_manifold_hyper_connections_are_deepseeks(in_double: None) -> None:
    module = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    theirs = module.DeepseekV4HyperConnection(
        stub(hc_mult=COPIES, hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-6, hidden_size=WIDTH)
    )
    ours = connection(Hyper(maps="sinkhorn"))
    theirs.fn, theirs.base, theirs.scale = ours.projection, ours.base, ours.factors
    state, u = copies(), written()
    post, comb, collapsed = theirs(state)
    x, held = ours.read(state)
    close(x, collapsed, 1e-9)
    close(ours.write(held, u), post[..., None] * u[..., None, :] + comb.transpose(-1, -2) @ state, 1e-9)


@pytest.mark.parametrize("wrong", ["outputs swapped", "no transpose", "Sinkhorn from exp", "no eps"])
def test_what_ports_get_wrong_differs(wrong: str) -> None:
    ours = connection(Hyper(maps="sinkhorn"))
    state, u = copies(), written()
    n = COPIES
    x, held = ours.read(state)
    logits = projected(state, ours.projection, 1e-6, False)
    order = (1, 0) if wrong == "outputs swapped" else (0, 1)
    parts = [logits[..., i * n : (i + 1) * n] * ours.factors[k] + ours.base[i * n : (i + 1) * n]
             for k, i in enumerate(order)]  # fmt: skip
    eps = 0.0 if wrong == "no eps" else 1e-6
    read, write = torch.sigmoid(parts[0]) + eps, 2 * torch.sigmoid(parts[1])
    mix = (logits[..., 2 * n :] * ours.factors[2] + ours.base[2 * n :]).unflatten(-1, (n, n))
    mix = mix.exp() if wrong == "Sinkhorn from exp" else torch.softmax(mix, -1) + 1e-6
    mix = doubly_stochastic(mix, 20, 1e-6)
    mix = mix if wrong == "no transpose" else mix.transpose(-1, -2)
    state_of = write[..., None] * u[..., None, :] + mix @ state
    differs = torch.dist((read[..., None] * state).sum(-2), x) + torch.dist(state_of, ours.write(held, u))
    assert differs > 1e-9


def test_independent_hyper_connections_are_hunyuans(in_double: None) -> None:
    module = pytest.importorskip("transformers.models.hy_v4.modeling_hy_v4")
    options = stub(hc_mult=COPIES, hc_eps=1e-6, rms_norm_eps=1e-6, hidden_size=WIDTH, hc_magnitude=2.0)
    theirs, head = module.HYV4HyperConnection(options), module.HYV4HyperHead(options)
    stream = Hyper(maps="independent")
    ours = connection(stream)
    theirs.fn, theirs.base, theirs.scale = ours.projection, ours.base, ours.factors
    state, u = copies(), written()
    post, collapsed = theirs(state)
    x, held = ours.read(state)
    close(x, collapsed, 1e-9)
    close(ours.write(held, u), state + post[..., None] * u[..., None, :], 1e-9)
    ends = randomised(streams.make_ends(stream, CONFIG).double())
    head.hc_fn, head.hc_base, head.hc_scale = ends.projection, ends.base, ends.factors
    close(ends.close(state), head(state), 1e-9)


def test_gated_streams_are_qwens(in_double: None) -> None:
    module = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")
    theirs = module.Qwen4ExpTextGatedResidual(
        stub(hc_count=COPIES, hidden_size=WIDTH, hc_lowrank=16, rms_norm_eps=1e-6)
    ).double()
    ours = connection(Hyper(maps="gated", rank=16))
    with torch.no_grad():
        theirs.hc_norm.weight.copy_(ours.weight.flatten())
        theirs.input_mix_weight_down.weight.copy_(ours.down)
        theirs.input_mix_weight_up.weight.copy_(ours.up)
        theirs.block_inject_weight.weight.copy_(ours.inject)
    state, u = copies(), written()
    mixed, flat, weights = theirs(state.flatten(-2))
    x, held = ours.read(state)
    close(x, mixed, 1e-9)
    whole = flat + (u[..., None, :] * weights[..., None]).flatten(-2)
    close(ours.write(held, u).flatten(-2), whole, 1e-9)


def test_attention_over_depth_is_inklings(in_double: None) -> None:
    module = pytest.importorskip("transformers.models.inkling2.modeling_inkling2")
    theirs = module.Inkling2BlockAttentionResidual(stub(hidden_size=WIDTH, _attn_implementation="eager"))
    ours = connection(DepthAttention(norm_values=True, block=1))
    theirs.query, ours.eps = ours.query, theirs.norm.eps
    sources = tuple(copies().unbind(-2))
    (expected,) = theirs(torch.stack(sources[:-1], dim=-2), sources[-1])
    close(ours.read(sources)[0], expected, 1e-9)


def test_attention_over_depth_by_hand() -> None:
    ours = connection(DepthAttention())
    ours.eps = 1e-6
    sources = copies().unbind(-2)
    scores = [(v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt() * ours.weight) @ ours.query for v in sources]
    weights = [s.exp() / sum(t.exp() for t in scores) for s in scores]
    close(ours.read(sources)[0], sum(w[..., None] * v for w, v in zip(weights, sources, strict=True)), 1e-12)


@pytest.mark.parametrize("maps", ["constant", "computed"])
def test_hyper_connections_by_hand(maps: str) -> None:
    ours = connection(Hyper(maps=maps))
    state, u = copies(), written()
    x, held = ours.read(state)
    got = ours.write(held, u)
    for b, t in ((0, 0), (1, 3)):
        rows = [state[b, t, j] for j in range(COPIES)]
        alpha, beta = ours.alpha.clone(), ours.beta.clone()
        if maps == "computed":
            for j, row in enumerate(rows):
                normed = (row - row.mean()) / (row.var(correction=0) + 1e-6).sqrt() * ours.norm_weight
                alpha[j] = alpha[j] + ours.factors[0] * torch.tanh(ours.maps[: COPIES + 1] @ normed)
                beta[j] = beta[j] + ours.factors[1] * torch.tanh(ours.maps[COPIES + 1] @ normed)
        close(x[b, t], sum(alpha[j, 0] * rows[j] for j in range(COPIES)), 1e-12)
        for i in range(COPIES):
            expected = sum(alpha[j, i + 1] * rows[j] for j in range(COPIES)) + beta[i] * u[b, t]
            close(got[b, t, i], expected, 1e-12)


def test_the_first_copy_that_is_read_changes_with_depth() -> None:
    """At init, sublayer k reads copy k mod n alone."""
    state = copies()
    for site in SITES:
        made = streams.make_connection(Hyper(maps="constant"), site, CONFIG).double()
        close(made.read(state)[0], state[..., (site.slot - 1) % COPIES, :], 0)


def test_sinkhorn_sums_to_one() -> None:
    c = doubly_stochastic(torch.rand(3, 4, 4, dtype=torch.float64) + 0.1, 20, 1e-6)
    ones = torch.ones(3, 4, dtype=torch.float64)
    close(c.sum(-1), ones, 1e-3)
    close(c.sum(-2), ones, 1e-3)


def test_one_layer_of_each_state_of_two() -> None:
    """A layer of two sublayers, branches f and g fixed maps, against the papers' lines."""
    draw = torch.Generator().manual_seed(5)
    f, g = (torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64) * 0.3 for _ in range(2))
    x, before = written(7), written(8)

    def norm(v: Tensor) -> Tensor:
        return (v - v.mean(-1, keepdim=True)) / v.var(-1, correction=0, keepdim=True).sqrt()

    def post(a: Tensor, b: Tensor) -> Tensor:
        return norm(a + b)

    def layer(stream: object, state: object, add: object) -> object:
        for site, weight in zip(SITES[2:4], (f, g), strict=True):
            made = connection(stream, site)
            read, held = made.read(state)
            state = made.write(held, read @ weight, add)
        return state

    close(layer(Parallel(), (x, before), operator.add)[0], x + x @ f + x @ g, 1e-12)
    h = norm(x + x @ f)
    close(layer(LayerSkip(), (x, before), post)[0], norm(x + h + h @ g), 1e-12)
    close(layer(LayerSkip(keep=False), (x, before), post)[0], norm(x + h @ g), 1e-12)
    two = layer(TwoStreams(), (x, before), post)
    close(two[0], norm(h + h @ g), 1e-12)
    close(two[1], before + x @ f + h @ g, 1e-12)
    made = connection(FirstInput(keep=1.1, first=0.2), SITES[2])
    close(made.read((x, before))[0], made.keep.weight * x + made.first.weight * before, 1e-12)


def test_b2t_leaves_the_last_layer_as_it_is() -> None:
    x, before, u = written(7), written(8), written(9)
    inner, last = (connection(LayerSkip(last=False), site) for site in (SITES[3], SITES[5]))
    close(inner.write((x, before), u)[0], x + before + u, 1e-12)
    close(last.write((x, before), u)[0], x + u, 1e-12)


@pytest.mark.parametrize(("dilation", "period"), [(1, 1), (2, 1), (1, 3), (4, 5)])
def test_averages_over_depth_as_released(dilation: int, period: int) -> None:
    """Blocks are x -> tanh(x W) here; outputs lie in `dilation` groups, averaged each by itself."""
    layers, x = 11, written()
    stream = DepthAverage(dilation=dilation, period=period)
    weights = torch.randn(layers, WIDTH, WIDTH, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 0.3
    made = [connection(stream, site, seed=site.slot) for site in sites(layers)]
    groups: list[list[Tensor]] = [[] for _ in range(dilation)]
    groups[0].append(x)
    expected, state = x, streams.make_ends(stream, CONFIG).open(x)
    for block, weight in enumerate(weights):
        for part in made[2 * block : 2 * block + 2]:
            state = part(state, lambda read, w=weight: torch.tanh(read @ w))
        for _ in range(2):
            expected = expected + torch.tanh(expected @ weight)
        group = groups[(block + 1) % dilation]
        group.append(expected)
        if (block + 1) % period == 0:
            shares = made[2 * block + 1].shares
            assert shares.shape == ((block + 1 + dilation) // dilation,)  # of the released `DWAModules`
            expected = torch.einsum("s,s...->...", shares, torch.stack(group))
        else:
            assert made[2 * block + 1].shares is None
        close(state[0], expected, 1e-12)
