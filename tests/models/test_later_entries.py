"""What the entries since 2021 are at init, what decays in them, and where they can be built."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from isograd.convert.hf.family import CAUSAL
from isograd.convert.pretrained import homes
from isograd.models import IsogradForCausalLM
from isograd.placement import CATALOGUE
from isograd.transformer.parameters import Embedding, Linear, decayed
from tests.build import LATER, ONE_PER_STREAM, close, config, few, labelled, model, tokens
from tests.transformer.test_init import SHAPE, D, L, has_std, xavier

each = pytest.mark.parametrize("name", few(LATER, ONE_PER_STREAM))
FIRST_AS_PRE_LN = ["hyper-connections-static", "hyper-connections", "affine-shortcut", "denseformer"]


def as_initialized(name: str, **options: Any) -> Any:
    return model(placement=name, random=False, dtype=torch.float64, num_hidden_layers=4, **options)


@pytest.mark.parametrize("name", FIRST_AS_PRE_LN)
def test_at_init_it_is_pre_ln(name: str) -> None:
    """With equal weights. Hyper-connections sum n equal copies, which the final norm does not see but for its eps."""
    ours, plain, ids = as_initialized(name, norm_eps=1e-12), as_initialized("pre-ln", norm_eps=1e-12), tokens(2, 8)
    missing = ours.load_state_dict(plain.state_dict(), strict=False)
    assert not missing.unexpected_keys and all(".stream." in key for key in missing.missing_keys)
    close(ours(ids).logits, plain(ids).logits, 1e-5)
    for p in ours.parameters():  # the negative control: anywhere else it is not
        p.data += 0.05 * torch.randn_like(p)
    changed = ours.state_dict()
    plain.load_state_dict({n: changed[n] for n in plain.state_dict()})
    assert (ours(ids).logits - plain(ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["rezero", "skipinit"])
def test_without_a_scale_the_stack_is_the_identity(name: str) -> None:
    """L and 2 L layers compute the embedding, bit for bit."""
    for layers in (2, 4):
        made = model(placement=name, random=False, num_hidden_layers=layers)
        x = torch.randn(2, 5, 16)
        assert torch.equal(made.model.run_layers(x, torch.arange(5)[None], None), x)
    assert not torch.equal(model(placement=name).model.run_layers(x, torch.arange(5)[None], None), x)


def test_x0_scalars_begin_collinear_with_the_embedding() -> None:
    made, x = as_initialized("x0-scalars"), torch.randn(2, 5, 16, dtype=torch.float64)
    states: list[Tensor] = []
    for layer in made.model.layers:
        layer.register_forward_hook(lambda _, args, out: states.append(out[0]))
    made.model.run_layers(x, torch.arange(5)[None], None)
    origin = made.model.first(x)
    for state in states:
        cosine = torch.cosine_similarity(state, origin, dim=-1)
        close(cosine, torch.ones_like(cosine), 1e-6)
    keep = [layer.attn.stream.keep.weight.item() for layer in made.model.layers]
    assert keep == pytest.approx([1.15, 1.15 - 0.1 / 3, 1.05 + 0.1 / 3, 1.05])


def test_attention_residuals_begin_as_a_mean() -> None:
    made, x = as_initialized("attention-residuals"), torch.randn(2, 5, 16, dtype=torch.float64)
    sources = tuple(torch.randn_like(x) for _ in range(5))
    close(made.model.layers[2].attn.stream.read(sources)[0], sum(sources) / 5, 1e-12)


def test_the_gate_begins_near_a_half() -> None:
    """The attention branch has a quarter of the variance of its twin without a gate."""
    x = torch.randn(8, 16, 256)
    found = {}
    for name in ("gated-attention", "pre-ln"):
        torch.manual_seed(0)
        made = model(placement=name, random=False, hidden_size=256, num_hidden_layers=1, init="normal")
        found[name] = made.model.layers[0].attn.branch(x)[0].var()
    state = [n for n, _ in made.named_parameters()]
    assert state and 0.2 < found["gated-attention"] / found["pre-ln"] < 0.3


def test_sandwich_grows_by_one_per_sublayer_and_peri_ln_from_one() -> None:
    """Var of the stream after n sublayers is 1 + n within 15 %, and no W_O or W_2 changes it."""
    made, ids = model(placement="peri-ln", random=False, hidden_size=128, num_hidden_layers=6), tokens(4, 32)
    found: list[float] = []
    for layer in made.model.layers:
        for sublayer in (layer.attn, layer.ffn):
            sublayer.register_forward_hook(lambda _, args, out: found.append(float(out.detach().var())))
    made(ids)
    assert all(abs(v / (n + 1) - 1) < 0.15 for n, v in enumerate(found, start=1)), found
    before = made(ids).logits
    for name, p in made.named_parameters():
        if name.endswith("branch.out.weight"):
            p.data *= 100
    close(made(ids).logits, before, 1e-3)


def test_layernorm_scaling_keeps_the_stream_small() -> None:
    """1 + v H_L against 1 + v L: the sum of 1/l in place of the number of layers."""
    grown = {}
    for name in ("layernorm-scaling", "pre-ln"):
        torch.manual_seed(1)
        made = model(
            placement=name, random=False, hidden_size=64, num_hidden_layers=48, init="xavier-normal", bias=False
        )
        x = torch.randn(4, 16, 64)
        stream: list[Tensor] = []
        made.model.norm.register_forward_pre_hook(lambda _, args, stream=stream: stream.append(args[0]))
        made.model.run_layers(x, torch.arange(16)[None], None)
        grown[name] = float(stream[0].detach().var()) - 1
    assert grown["layernorm-scaling"] < grown["pre-ln"] / 5, grown


# entry -> the std of each role in layer l of L, of a decoder of width D
def test_inits_by_role() -> None:
    inner = SHAPE["intermediate_size"]
    small = 1 / math.sqrt(2.5 * D)
    fused = xavier(D, 3 * D)
    base = {"query": fused, "key": fused, "value": fused, "attn_out": xavier(D, D), "ffn_in": xavier(D, inner)}
    base["ffn_out"] = base["ffn_in"]
    sub_ln, fix = math.sqrt(math.log(2 * L)), 0.67 * L**-0.25
    expected: dict[str, Any] = {
        "hybridnorm": lambda role, layer: (
            D**-0.5 if role == "head" else small / math.sqrt(2 * L) if role.endswith("_out") else small
        ),
        "ds-init": lambda role, layer: (
            D**-0.5
            if role in ("embed", "head")
            else (xavier(D, D) if role in ("query", "key", "value") else base[role])
            / math.sqrt(layer)
            * (math.sqrt(2) * fused / xavier(D, D) if role in ("query", "key", "value") else 1.0)
        ),
        "b2t": lambda role, layer: D**-0.5 if role in ("embed", "head") else base[role] / math.sqrt(L),
        "sub-ln": lambda role, layer: (
            D**-0.5
            if role in ("embed", "head")
            else (xavier(D, inner) if role.startswith("ffn") else xavier(D, D))
            * (1.0 if role in ("query", "key") else sub_ln)
        ),
        "t-fixup": lambda role, layer: {
            "embed": D**-0.5 * (9 * L) ** -0.25,
            "head": D**-0.5,
            "query": fused,
            "key": fused,
            "value": math.sqrt(2) * fused * fix,
        }.get(role, base.get(role, 0.0) * fix),
        "x0-scalars": lambda role, layer: (
            D**-0.5 if role in ("embed", "head") else 0.0 if role.endswith("_out") else base[role]
        ),
        "completep": lambda role, layer: 0.02,
    }
    for name, std in expected.items():
        made = model(placement=name, **SHAPE)
        for address, leaf in made.named_modules():
            if isinstance(leaf, Linear | Embedding) and "positions" not in address:
                layer = int(address.split("layers.")[1].split(".")[0]) + 1 if "layers." in address else 0
                rows = leaf.weight[2:] if isinstance(leaf, Embedding) else leaf.weight
                has_std(rows, std(leaf.role, layer))


@each
def test_matrices_decay_and_nothing_of_a_stream(name: str) -> None:
    made = model(placement=name, position_embedding_type="sinusoidal")
    matrices = (".query.weight", ".key.weight", ".value.weight", ".branch.out.weight", ".into.weight", ".gate.weight")
    held = name == "ngpt"
    expected = {
        n
        for n, p in made.named_parameters()
        if n.endswith((*matrices, ".tokens.weight", "lm_head.weight")) and not held
    }
    yes, no = decayed(made)
    assert set(yes) == expected and not set(yes) & set(no) and len(yes) + len(no) == len(list(made.parameters()))


@each
def test_built_on_the_meta_device(name: str) -> None:
    """No constant is lost: the model has no buffers of its own, and computes the same with the weights put in."""
    made, ids = model(placement=name), tokens(2, 6)
    with torch.device("meta"):
        empty = IsogradForCausalLM(config(placement=name))
    assert not {n for n, _ in empty.named_buffers()} - {n for n, _ in made.named_buffers()}
    empty.load_state_dict(made.state_dict(), assign=True)
    empty.tie_weights()
    empty.eval()
    if not [n for n, b in empty.named_buffers() if b.is_meta]:
        assert torch.equal(empty(ids).logits, made(ids).logits)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize("name", LATER)
def test_compiles_without_a_graph_break(name: str) -> None:
    torch._dynamo.reset()
    made, given = model(placement=name).train(), labelled("causal")
    whole = torch.compile(made, backend="eager", fullgraph=True)
    loss = whole(**given).loss
    loss.backward()
    close(loss, made(**given).loss, 1e-6)


@pytest.mark.parametrize("name", few(LATER, ["layerscale", "ds-init", "sandwich", "mhc", "gated-attention"]))
def test_only_a_model_of_plain_residuals_has_a_home(name: str) -> None:
    """In transformers' classes; layerscale and depth-mup have one when their coefficients are folded."""
    fits = {"qk-clip", "completep", "ds-init"}
    home = homes(config(placement=name), CAUSAL)
    assert bool(home) == (name in fits), f"{name} has the modules of {home or 'none'}: see `fits`"


def test_every_later_entry_says_where_it_is_from() -> None:
    for name in LATER:
        entry = CATALOGUE[name]
        assert entry.group and entry.paper and entry.note and isinstance(entry.families, tuple)
