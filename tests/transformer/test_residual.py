"""The public parts: a plain GPT with each of them equals our own model; they run wherever torch's modules do."""

import difflib
import runpy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isograd import residual
from isograd.diagnose.calibrate import calibrate
from isograd.placement import CATALOGUE, Norm, Placement, Residual, register
from isograd.placement.streams import FirstValues
from isograd.residual import HyperConnections, Residuals
from isograd.transformer.parameters import decayed
from tests.build import close, model, tokens
from tests.transformer.test_streams import randomised

EXAMPLES = Path(__file__).parents[2] / "examples"
WIDTH, LAYERS = 16, 3
PARTS: dict[str, partial[Residuals]] = {  # what the branches' own norms are, and whether a final norm follows
    "hyper-connections": partial(residual.HyperConnections),
    "hyper-connections, static": partial(residual.HyperConnections, dynamic=False, copies=3),
    "mhc": partial(residual.ManifoldHyperConnections),
    "hy-v4": partial(residual.IndependentStreams),
    "gated-streams": partial(residual.GatedStreams, rank=3),
    "attention-residuals": partial(residual.AttentionResiduals),
    "attention-residuals, blocks, inkling": partial(residual.AttentionResiduals, block=2, norm_values=True),
    "denseformer": partial(residual.DepthAverages),
    "denseformer, dilated": partial(residual.DepthAverages, dilation=2, period=2),
    "parallel": partial(residual.ParallelBranches),
    "b2t": partial(residual.B2T),
    "residual": partial(residual.ResiDual),
    "siamesenorm": partial(residual.SiameseNorm),
    "parallel, one norm": partial(residual.ParallelBranches, shared_norm=True),
    "rezero": partial(residual.ReZero),
    "x0-scalars": partial(residual.InputScalars),
    "affine": partial(residual.AffineShortcut),
    "layerscale": partial(residual.LayerScale),
    "skipinit": partial(residual.SkipInit),
    "post-ln": partial(residual.PostNorm),
    "deepnorm": partial(residual.PostNorm, skip=(2 * LAYERS) ** 0.25),
    "admin": partial(residual.Admin),
    "variance-gate": partial(residual.VarianceGate),
}
NORMED = (
    "parallel, one norm",
    "rezero",
    "gated-streams",
    "b2t",
    "residual",
    "post-ln",
    "deepnorm",
    "admin",
)  # the residual has the norms


def made(name: str, *, seed: int = 0) -> Residuals:
    """In float64, every parameter random."""
    part = randomised(PARTS[name](WIDTH, layers=LAYERS, eps=1e-5).double(), seed)
    assert isinstance(part, Residuals)
    return part


def gpt(name: str) -> nn.Module:
    """The example's GPT around a part."""
    here = runpy.run_path(str(EXAMPLES / "gpt_residuals.py"))
    options: dict[str, Any] = {"norm": nn.Identity} if name in NORMED else {}
    shape = here["Config"](
        vocab=41, context=32, width=WIDTH, heads=4, layers=LAYERS, residual=lambda width, layers: made(name), **options
    )
    network: nn.Module = here["GPT"](shape).double()
    return network


def ours(name: str) -> nn.Module:
    """Our own model of the same placement: what the part says, and pre and final norms where the GPT has them."""
    placement = made(name).placement
    assert isinstance(placement.each, Residual)
    if name not in NORMED:
        placement = replace(placement, each=replace(placement.each, pre=Norm()), final=Norm())
    register("a part", placement)
    try:
        network: nn.Module = model(
            placement="a part",
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            intermediate_size=4 * WIDTH,
            tie_word_embeddings=True,
            dtype=torch.float64,
        )
        return network
    finally:
        CATALOGUE.pop("a part")


def copied(network: nn.Module, mine: nn.Module) -> dict[str, Tensor]:
    """The weights of our model for the GPT's names; every one of both must have a partner."""
    theirs = {
        "embedding.tokens": "tokens",
        "embedding.positions": "positions",
        "norm": "ln_f",
        "stream": "residual.ends",
    }
    within = {"attn.branch.out": "attn.out", "ffn.branch.into": "mlp.0", "ffn.branch.out": "mlp.2",
              "attn.pre": "ln_1", "ffn.pre": "ln_2"}  # fmt: skip
    fused: dict[str, dict[str, Tensor]] = {}
    found: dict[str, Tensor] = {}
    state = {n.removeprefix("model."): p for n, p in mine.state_dict().items()}
    state = {n: p for n, p in state.items() if n != "lm_head.weight"}  # tied
    for name, tensor in state.items():
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            if rest.startswith(("attn.branch.query", "attn.branch.key", "attn.branch.value")):
                kind = rest.rsplit(".", 1)[-1]
                fused.setdefault(f"blocks.{layer}.attn.qkv.{kind}", {})[rest.split(".")[2]] = tensor
                continue
            at = next((k for k in within if rest.startswith(f"{k}.")), None)
            if at:
                name = f"blocks.{layer}.{within[at]}{rest.removeprefix(at)}"
            else:
                kind, rest = rest.split(".", 1)
                name = f"residual.parts.{2 * int(layer) + (kind == 'ffn')}.{rest}"
        else:
            at = next(k for k in theirs if name == k or name.startswith(f"{k}."))
            name = theirs[at] + name.removeprefix(at)
        found[name] = tensor
    found |= {name: torch.cat([of["query"], of["key"], of["value"]]) for name, of in fused.items()}
    return found | {"head.weight": found["tokens.weight"]}


@pytest.mark.parametrize("name", PARTS)
def test_a_plain_gpt_with_the_part_is_our_model(name: str) -> None:
    network, mine = gpt(name), ours(name)
    stream = {n: p for n, p in mine.named_parameters() if ".stream." in n or ".combine." in n or ".post." in n}
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in stream.values():
            p.copy_(torch.randn(p.shape, generator=draw, dtype=p.dtype) * 0.5)
    network.load_state_dict(copied(network, mine))
    ids = tokens(2, 9)
    close(network(ids), mine(input_ids=ids).logits, 1e-12)


@pytest.mark.parametrize("name", PARTS)
def test_without_the_coefficients_it_is_another_model(name: str) -> None:
    """The negative control: with other numbers in the part the logits differ."""
    network, ids = gpt(name), tokens(2, 9)
    before = network(ids)
    learned = randomised(network.residual, 7)
    if name != "parallel":
        assert any(True for _ in learned.parameters())
        assert (network(ids) - before).abs().max() > 1e-6


def test_ten_lines_differ() -> None:
    plain, changed = ((EXAMPLES / f"{name}.py").read_text().splitlines() for name in ("gpt", "gpt_residuals"))
    docstring = 1
    added = [x for x in difflib.ndiff(plain, changed) if x.startswith("+ ") and x.strip("+ ")]
    removed = [x for x in difflib.ndiff(plain, changed) if x.startswith("- ") and x.strip("- ")]
    assert len(added) - docstring <= 10 and len(removed) - docstring <= 10


def branches() -> list[Any]:
    draw = torch.Generator().manual_seed(3)
    weights = [torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64) * 0.3 for _ in range(2 * LAYERS)]
    return [partial(lambda w, x: torch.tanh(x @ w.to(x.dtype)), w) for w in weights]


def sample(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_lives_as_any_module(name: str) -> None:
    """Calls one by one, checkpointing, state_dict and the meta device give the same numbers, bit for bit."""
    part, fs, x = made(name), branches(), sample().requires_grad_()
    expected = part(x, fs)
    state = part.open(x)
    for k, f in enumerate(fs):
        read, held = part.read(state, k)
        state = part.write(held, f(read), k)
    close(part.close(state), expected, 0)
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    state = part.open(x)
    for k, f in enumerate(fs):
        state = checkpoint(part[k], state, f, use_reentrant=False)
    close(torch.autograd.grad(part.close(state).square().sum(), x)[0], gradient, 0)
    with torch.device("meta"):
        far = PARTS[name](WIDTH, layers=LAYERS, eps=1e-5).double()
    far = far.to_empty(device="cpu")
    far.load_state_dict(part.state_dict())
    close(far(x, fs), expected, 0)


@pytest.mark.parametrize("name", PARTS)
def test_reset_parameters_is_the_init(name: str) -> None:
    torch.manual_seed(0)
    fresh = PARTS[name](WIDTH, layers=LAYERS)
    with torch.device("meta"):
        far = PARTS[name](WIDTH, layers=LAYERS)
    far.to_empty(device="cpu")
    for p in far.parameters():
        nn.init.constant_(p, torch.nan)
    far.reset_parameters()
    for (key, p), q in zip(fresh.named_parameters(), far.parameters(), strict=True):
        assert (p.std(correction=0) - q.std(correction=0)).abs() < 5e-3, key
        assert (p.mean() - q.mean()).abs() < 5e-3, key


@pytest.mark.parametrize("name", PARTS)
def test_autocast_leaves_what_is_carried_exact(name: str) -> None:
    """With branches that write the same, reads are those without autocast up to float32's rounding: no map and no sum
    of the state goes to bfloat16. Qwen4's gate is its own: two linear maps, computed as its class does.
    """
    part, x = made(name).float(), sample(torch.float32)
    written = [sample(torch.float32).bfloat16() * (k + 1) for k in range(len(part))]

    def outputs() -> Tensor:
        return part(x, [lambda _, u=u: u for u in written])

    expected = outputs()
    with torch.autocast("cpu", torch.bfloat16):
        got = outputs()
    assert got.dtype is expected.dtype is torch.float32
    close(got, expected, (0.05 if name == "gated-streams" else 1e-5) * expected.abs().max().item())


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("name", ["hyper-connections", "denseformer", "siamesenorm", "layerscale"])
def test_a_trace_takes_other_shapes(name: str) -> None:
    """And warns of no comparison that became a constant."""
    part, fs = EACH[name](WIDTH, layers=LAYERS).double().requires_grad_(False), branches()
    traced = torch.jit.trace(lambda x: part(x, fs), sample(), check_trace=False)
    other = torch.randn(3, 7, WIDTH, dtype=torch.float64)
    close(traced(other), part(other, fs), 1e-12)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("attention-residuals", "residual") else pytest.mark.slow)
        for name in PARTS
    ],
)
def test_compiles_without_graph_breaks(name: str) -> None:
    part, fs, x = made(name), branches(), sample()
    torch._dynamo.reset()  # each part compiles this one function anew, and eight times are allowed
    compiled = torch.compile(lambda x: part(x, fs), fullgraph=True, backend="eager")
    close(compiled(x), part(x, fs), 0)


@pytest.mark.parametrize("name", ["pre-ln", "post-ln", "deepnorm", "admin-closed", "gpt2"])
def test_an_entry_of_the_catalogue_with_all_its_norms(name: str) -> None:
    part, x = Residuals(name, WIDTH, layers=LAYERS).double(), sample()
    norms = {"pre-ln": 2 * LAYERS + 1, "gpt2": 2 * LAYERS + 1}.get(name, 2 * LAYERS)
    assert sum(isinstance(m, nn.LayerNorm) for m in part.modules()) == norms
    x = part(x, branches())
    close(x.var(-1, correction=0), torch.ones(2, 5, dtype=torch.float64), 1e-3)


def test_what_stands_inside_a_branch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"head_scale at attn of layer 1: inside the branch, which is yours"):
        Residuals("normformer", WIDTH, layers=LAYERS)
    with pytest.raises(ValueError, match="2 branches for 6 sublayers"):
        Residuals(Placement(each=Residual()), WIDTH, layers=LAYERS)(sample(), branches()[:2])


EACH = {name: part for name, part in PARTS.items() if "," not in name}


@pytest.mark.parametrize("name", EACH)
def test_a_state_that_was_not_opened_is_refused(name: str) -> None:
    """A batch of two unpacks as two tensors would, and a sum over the wrong axis has a shape too."""
    part = EACH[name](WIDTH, layers=LAYERS).double()
    opened, x = part.open(sample()), sample()
    wrong = x if isinstance(opened, tuple) or opened.ndim > x.ndim else (x, x)
    with pytest.raises(ValueError, match=r"attn of layer 1: the state is a t.*; expected a t"):
        part[0](wrong, torch.tanh)
    part[0](opened, torch.tanh)


@pytest.mark.parametrize("name", EACH)
def test_what_a_branch_must_not_return(name: str) -> None:
    """An attention's weights beside its output, or what would be broadcast."""
    part, x = EACH[name](WIDTH, layers=LAYERS).double(), sample()
    with pytest.raises(ValueError, match=r"ffn of layer 1: the branch returned a tuple .*the first of these\?"):
        part[1](part.open(x), lambda x: (x, None))
    read, held = part.read(part.open(x), 1)
    with pytest.raises(ValueError, match=r"returned a tensor \(2, 5, 1\); expected one tensor \(batch, time, 16\)"):
        part.write(held, read[..., :1], 1)
    with pytest.raises(ValueError, match=r"read a tensor \(2, 5, 16\) and returned a tensor \(2, 1, 16\)"):
        part[1](part.open(x), lambda x: x[:, :1])


@pytest.mark.parametrize("name", EACH)
def test_an_input_of_another_width_is_refused(name: str) -> None:
    part = EACH[name](WIDTH, layers=LAYERS)
    for x, said in (
        (torch.randn(2, 5, 1), r"x is a tensor \(2, 5, 1\); expected floating point, \(batch, time, 16\)"),
        (torch.zeros(2, WIDTH, dtype=torch.long), r"x is a tensor \(2, 16\) of torch.int64"),
    ):
        with pytest.raises(ValueError, match=said):
            part.open(x)


@pytest.mark.parametrize("name", EACH)
def test_small_and_odd_shapes(name: str) -> None:
    """One feature, one layer, one token; nothing at all; more axes than three."""
    for width, layers, shape in ((1, 1, (1, 1)), (7, 2, (1, 3)), (8, 2, (0, 3)), (8, 2, (2, 0)), (8, 2, (2, 3, 4))):
        part = EACH[name](width, layers=layers)
        x = part(torch.randn(*shape, width), [torch.tanh] * len(part))
        assert x.shape == (*shape, width) and x.isfinite().all()
    part = EACH[name](8, layers=2).bfloat16()
    assert part(torch.randn(2, 3, 8).bfloat16(), [torch.tanh] * 4).dtype is torch.bfloat16


def test_numbers_that_make_no_part() -> None:
    for make, said in (
        (partial(residual.HyperConnections, 8.0, layers=2), "width=8.0, layers=2: integers of at least 1"),
        (partial(residual.ReZero, 8, layers=0), "width=8, layers=0: integers of at least 1"),
        (partial(residual.ReZero, 8, layers=2, eps=-1.0), "eps=-1.0: above 0"),
        (partial(residual.HyperConnections, 8, layers=2, copies=2.5), "copies=2.5, .* integers of at least 1"),
        (partial(residual.AttentionResiduals, 8, layers=2, block=-1), "block=-1: an integer of at least 0"),
        (partial(residual.DepthAverages, 8, layers=2, period=0), "dilation=1, period=0: integers of at least 1"),
        (partial(residual.IndependentStreams, 8, layers=2, magnitude=0.0), "magnitude=0.0: above 0"),
        (partial(residual.VarianceGate, 8, layers=2, init=1.0), "init=1.0: a sigmoid lies between 0 and 1"),
        (partial(residual.LayerScale, 8, layers=2, init="0.1"), "init='0.1': a number or a law"),
        (partial(residual.ValueResidual, layers=0), "layers=0: an integer of at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            make()
    with pytest.raises(ValueError, match="layer 1 mixes the first layer's values: hand on `first`"):
        residual.ValueResidual(layers=2)(sample(), 1)


def test_a_held_state_is_not_the_state() -> None:
    part = residual.HyperConnections(WIDTH, layers=LAYERS).double()
    with pytest.raises(ValueError, match="`write` takes what `read` returned second"):
        part.write(part.open(sample()), sample(), 0)


def test_admins_profile_is_that_of_our_model() -> None:
    options = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "intermediate_size": 4 * WIDTH}
    mine = model(placement="admin", tie_word_embeddings=True, dtype=torch.float64, **options)
    network, ids = gpt("admin"), tokens(2, 9)
    network.load_state_dict(copied(network, mine))
    part = network.residual
    with part.calibrating() as skips:
        network(ids)
    assert skips == pytest.approx(calibrate(mine, {"input_ids": ids})["decoder"], rel=1e-9)
    assert skips[0] == 1.0 and len(set(skips)) == 2 * LAYERS
    for k, skip in enumerate(skips):
        close(part[k].combine.skip.weight, torch.full((WIDTH,), skip, dtype=torch.float64), 1e-12)
    close(network(ids), mine(input_ids=ids).logits, 1e-12)


def test_a_profile_that_is_none() -> None:
    part = residual.Admin(WIDTH, layers=LAYERS).double()
    for batches in ([], [sample()] * 2, [sample() * torch.nan]):
        with pytest.raises(ValueError, match="of 6 sublayers: run one finite batch, once"), part.calibrating():
            for batch in batches:
                part(batch, branches())
        assert all((p.combine.skip.weight == 1).all() for p in part)
    with pytest.raises(ValueError, match="nothing to calibrate"), residual.ReZero(4, layers=1).calibrating():
        pass
    assert not any(p.combine._forward_hooks for p in part)


def test_gains_of_the_branches_init() -> None:
    assert Residuals("deepnorm", WIDTH, layers=8).init_gains(0)["value"] == pytest.approx(64**-0.25)


@pytest.mark.parametrize("learned", [False, True])
def test_value_residual_is_our_models(learned: bool) -> None:
    """A GPT whose attentions mix their values by the part, and our model of `FirstValues`, with copied weights."""
    here = runpy.run_path(str(EXAMPLES / "gpt.py"))
    network = here["GPT"](here["Config"](vocab=41, context=32, width=WIDTH, heads=4, layers=LAYERS)).double()
    values = residual.ValueResidual(layers=LAYERS, mix=0.3, learned=learned)
    placement = replace(CATALOGUE["value-residual"], stream=FirstValues(mix=0.3, learned=learned))
    register("mixed values", placement)
    try:
        options = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "intermediate_size": 4 * WIDTH}
        mine = model(placement="mixed values", tie_word_embeddings=True, dtype=torch.float64, **options)
    finally:
        CATALOGUE.pop("mixed values")
    weights = copied(network, mine)
    shares = {n: weights.pop(n) for n in [*weights] if ".stream." in n}
    for name, share in shares.items():  # residual.parts.2.stream.own.weight
        _, _, k, _, *rest = name.split(".")
        values.mixes[int(k) // 2].get_submodule(rest[0]).weight.data = share
    network.load_state_dict(weights)
    first: Tensor | None = None

    def mix(layer: int, module: nn.Module, _: Any, qkv: Tensor) -> Tensor:
        nonlocal first
        q, k, v = qkv.chunk(3, dim=-1)
        v, first = values(v, layer, first)
        return torch.cat([q, k, v], dim=-1)

    ids = tokens(2, 9)
    assert (network(ids) - mine(input_ids=ids).logits).abs().max() > 1e-6
    for layer, block in enumerate(network.blocks):
        block.attn.qkv.register_forward_hook(partial(mix, layer))
    close(network(ids), mine(input_ids=ids).logits, 1e-12)


def test_values_are_no_stream_of_a_part() -> None:
    with pytest.raises(ValueError, match=r"use isograd\.residual\.ValueResidual"):
        Residuals("value-residual", WIDTH, layers=LAYERS)


def test_the_page_runs() -> None:
    """The loop of docs/residual.md, around branches of one's own."""
    page = (EXAMPLES.parent / "docs/residual.md").read_text(encoding="utf-8")
    block = page.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"x": torch.randn(2, 3, 768), "branches": [nn.Identity()] * 24}
    exec(compile(block, "docs/residual.md", "exec"), names)
    assert names["x"].shape == (2, 3, 768)


@pytest.mark.parametrize("name", PARTS)
def test_only_the_users_matrices_decay(name: str) -> None:
    network = gpt(name)
    yes, no = decayed(network)
    assert not [n for n in yes if n.startswith("residual.")] and any(n.startswith("residual.") for n in no) == (
        name != "parallel"
    )
    assert "blocks.0.mlp.0.weight" in yes


def test_an_index_beyond_the_sublayers_says_how_many_there_are() -> None:
    residual = HyperConnections(8, layers=12)
    with pytest.raises(
        IndexError, match=r"sublayer 24: this residual has 24, 0 to 23: 12 layers with 2 sublayers each"
    ):
        residual[24]
    assert residual[-1] is residual[23]


def through(residual: Residuals, count: int) -> torch.Tensor:
    state = residual.open(torch.randn(1, 3, 8))
    for k in range(count):
        state = residual[k](state, torch.tanh)
    return residual.close(state)


def test_a_stack_made_twice_as_deep_is_said_once(recwarn: pytest.WarningsRecorder) -> None:
    """layers= of one that counts sublayers; skipping some, as layer drop does, is no fault."""
    residual = HyperConnections(8, layers=24)
    for _ in range(2):
        through(residual, 24)
    (said,) = [str(one.message) for one in recwarn]
    assert said.startswith("24 of 48 sublayers ran between open and close: 24 layers with 2 sublayers each")
    whole = HyperConnections(8, layers=3)
    through(whole, 6)
    state = whole.open(torch.randn(1, 3, 8))
    for k in (0, 1, 4, 5):
        state = whole[k](state, torch.tanh)
    whole.close(state)
    assert len(recwarn) == 1
