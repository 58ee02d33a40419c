"""One layer of a transformers family against ours with copied weights: the wiring, and norms inside a branch.

The family's own forward runs; its layer is put together from the modules that carry the wiring, and where a branch is
not itself the question, both sides compute the same fixed map there.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from torch import Tensor, nn

from isograd.placement import ByKind, Norm, Placement, Residual, get
from isograd.placement.formula import Gate, ProjectionNorm
from isograd.placement.streams import Parallel
from isograd.transformer.stack import Layer, make_layers
from tests.build import config
from tests.transformer.test_streams import randomised

WIDTH, HEADS, INNER, COPIES, TIME, EPS = 16, 4, 24, 4, 5, 1e-6
CENTERED = Norm(kind="rmsnorm", centered=True)


class Fixed(nn.Module):
    """tanh(x W), W drawn once; `tuples`: with None behind it, as attentions return it."""

    def __init__(self, seed: int, tuples: bool) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.matrix, self.tuples = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64) * 0.5, tuples

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        u = torch.tanh(hidden_states.double() @ self.matrix).to(hidden_states.dtype)
        return (u, None) if self.tuples else u


ATTN, FFN = Fixed(1, True), Fixed(2, False)
Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A class of transformers that carries a design.

    Attributes:
        module, layer: where its layer is.
        placement: ours.
        parts: its modules, from the module that has its classes.
        weights: of its layer, by our names.
        norm: our configuration's kind of norm.
        own: branches that are compared too; the others are fixed maps on both sides.
        state: what x is there and here before the layer: (their arguments, our state).
        result: their output, ours -> two tensors.
        options: of our configuration.
    """

    module: str
    layer: str
    placement: Placement
    parts: Callable[[Any], Mapping[str, Any]]
    weights: Callable[[Any], Weights]
    about: str
    norm: str = "rmsnorm"
    own: tuple[str, ...] = ()
    state: Callable[[Tensor], tuple[tuple[Any, ...], Any]] = lambda x: ((x,), x)
    result: Callable[[Any, Any], tuple[Tensor, Tensor]] = lambda theirs, ours: (_first(theirs), _first(ours))
    options: Mapping[str, Any] = field(default_factory=dict)


def _first(out: Any) -> Tensor:
    tensor: Tensor = out[0] if isinstance(out, tuple) else out
    return tensor


def by_name(**names: str) -> Callable[[Any], Weights]:
    """attn__pre="input_layernorm" -> the parameters below either, by our names."""

    def weights(layer: Any) -> Weights:
        found: Weights = {}
        for ours, theirs in names.items():
            for name, value in layer.get_submodule(theirs).named_parameters():
                found[f"{ours.replace('__', '.')}.{name}"] = value
        return found

    return weights


def together(*several: Callable[[Any], Weights]) -> Callable[[Any], Weights]:
    return lambda layer: {name: value for one in several for name, value in one(layer).items()}


def normed(name: str, norm: Norm) -> Placement:
    """An entry with its norms before, after and in place of the model's."""

    def put(one: Residual) -> Residual:
        return replace(one, **{slot: norm for slot in ("pre", "mid", "out", "post") if getattr(one, slot)})

    placement = get(name)
    each = placement.each
    if isinstance(each, ByKind):
        return replace(placement, each=ByKind(attn=put(each.attn), ffn=put(each.ffn)))
    assert isinstance(each, Residual)
    return replace(placement, each=put(each))


def norms(kind: str, *names: str, **given: Any) -> Callable[[Any], dict[str, Any]]:
    """Norms of a family's class, and fixed maps for both branches."""

    def parts(m: Any) -> dict[str, Any]:
        made = nn.LayerNorm if kind == "LayerNorm" else getattr(m, kind)
        return {"self_attn": ATTN, "mlp": FFN} | {name: made(WIDTH, eps=EPS) for name in names} | given

    return parts


def attending(kind: str, name: str, *, heads: bool = True, **options: Any) -> Callable[[Any], Any]:
    """A family's attention, of `WIDTH` in `HEADS` heads that share nothing."""

    def attention(m: Any) -> Any:
        configuration = SimpleNamespace(
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            head_dim=WIDTH // HEADS,
            attention_dropout=0.0,
            attention_bias=False,
            rms_norm_eps=EPS,
            layer_norm_eps=EPS,
            sliding_window=None,
            layer_types=["full_attention"] * 2,
            _attn_implementation="sdpa",
            **options,
        )
        return getattr(m, kind)(configuration, layer_idx=1)

    return attention


def unrotated(x: Tensor) -> tuple[tuple[Any, ...], Any]:
    size = WIDTH // HEADS
    return (x, {"position_embeddings": (x.new_ones(1, TIME, size), x.new_zeros(1, TIME, size))}), x


def projections(o: str = "o_proj", **more: str) -> Callable[[Any], Weights]:
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": o} | more
    return by_name(**{f"attn__branch__{ours}": f"self_attn.{theirs}" for ours, theirs in names.items()})


QK = {"query_norm": "q_norm", "key_norm": "k_norm"}
SANDWICH = by_name(
    attn__pre="input_layernorm",
    attn__out="post_attention_layernorm",
    ffn__pre="pre_feedforward_layernorm",
    ffn__out="post_feedforward_layernorm",
)
GEMMA = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
PRE = by_name(attn__pre="input_layernorm", ffn__pre="post_attention_layernorm")
TWO = ("input_layernorm", "post_attention_layernorm")


def swapped_gate(layer: Any) -> Weights:
    """Qwen3-Next writes each head's queries and gates with one matrix."""
    q = layer.self_attn.q_proj.weight.view(HEADS, 2, WIDTH // HEADS, WIDTH)
    return {f"attn.branch.{name}.weight": q[:, i].reshape(WIDTH, WIDTH) for i, name in enumerate(("query", "gate"))}


def copies(x: Tensor) -> Tensor:
    """Copies that differ."""
    draw = torch.Generator().manual_seed(9)
    return x[..., None, :] + torch.randn(*x.shape[:-1], COPIES, WIDTH, generator=draw, dtype=x.dtype)


def hyper(family: str, **options: Any) -> Callable[[Any], dict[str, Any]]:
    def parts(m: Any) -> dict[str, Any]:
        made = SimpleNamespace(hc_mult=COPIES, hc_eps=EPS, rms_norm_eps=EPS, hidden_size=WIDTH, **options)
        both = {name: getattr(m, f"{family}HyperConnection")(made) for name in ("attn_hc", "ffn_hc")}
        return norms(f"{family}RMSNorm", *TWO)(m) | both

    return parts


def hyper_weights(layer: Any) -> Weights:
    found = PRE(layer)
    for kind, one in (("attn", layer.attn_hc), ("ffn", layer.ffn_hc)):
        for ours, theirs in (("projection", "fn"), ("base", "base"), ("factors", "scale")):
            found[f"{kind}.stream.{ours}"] = getattr(one, theirs)
    return found


def gated_parts(m: Any) -> dict[str, Any]:
    made = SimpleNamespace(hc_count=COPIES, hidden_size=WIDTH, hc_lowrank=16, rms_norm_eps=EPS)
    one = m.Qwen4ExpTextGatedResidual
    attend = Fixed(1, True)
    return {"layer_type": "full_attention", "ple": None, "self_attn": attend, "mlp": FFN} | {
        f"{name}_hyper_connection": one(made) for name in ("attn", "mlp")
    }


def gated_weights(layer: Any) -> Weights:
    names = {"weight": "hc_norm", "down": "input_mix_weight_down", "up": "input_mix_weight_up"}
    names |= {"inject": "block_inject_weight"}
    both = {"attn": layer.attn_hyper_connection, "ffn": layer.mlp_hyper_connection}
    return {
        f"{kind}.stream.{ours}": getattr(one, theirs).weight
        for kind, one in both.items()
        for ours, theirs in names.items()
    }


def inkling_parts(m: Any) -> dict[str, Any]:
    made = SimpleNamespace(hidden_size=WIDTH, _attn_implementation="eager")
    reads = {name: m.Inkling2BlockAttentionResidual(made) for name in ("attention_input", "mlp_input")}
    plain = {"post_attention_convolution": Passed(), "post_mlp_convolution": Passed(), "is_block_boundary": True}
    return norms("Inkling2RMSNorm", *TWO)(m) | reads | plain


class Passed(nn.Module):
    def forward(self, x: Tensor, **_: Any) -> Tensor:
        return x


def inkling_weights(layer: Any) -> Weights:
    return PRE(layer) | {"attn.stream.query": layer.attention_input.query, "ffn.stream.query": layer.mlp_input.query}


def sources(x: Tensor) -> tuple[tuple[Any, ...], Any]:
    """One closed block, and the open one."""
    before = copies(x)[..., 0, :]
    return (x, before[..., None, :]), (before, x)


def muse_parts(m: Any) -> dict[str, Any]:
    gate = SimpleNamespace(hidden_size=WIDTH, residual_gate_temperature=1.0)
    pre = {name: m.MuseSparkTextCenteredRMSNorm(WIDTH, eps=EPS) for name in (GEMMA[0], GEMMA[2])}
    gates = {f"post_{name}_residual_gate": m.MuseSparkResidualGate(gate) for name in ("attention", "feedforward")}
    plain = {name: m.MuseSparkRMSNorm(WIDTH, eps=EPS, with_scale=False) for name in (GEMMA[1], GEMMA[3])}
    return {"self_attn": ATTN, "mlp": FFN} | pre | gates | plain


MUSE = replace(
    get("variance-gate"),
    each=replace(get("variance-gate").each, pre=CENTERED, out=Norm(kind="rmsnorm", affine=False)),  # type: ignore[type-var]
)


def zaya_weights(layer: Any) -> Weights:
    names = {"skip": "residual_scale", "skip_offset": "residual_bias"}
    names |= {"scale": "hidden_states_scale", "scale_offset": "hidden_states_bias"}
    both = {"attn": layer.post_attention_residual_scale, "ffn": layer.post_mlp_residual_scale}
    return PRE(layer) | {
        f"{kind}.stream.{ours}.weight": getattr(one, theirs)
        for kind, one in both.items()
        for ours, theirs in names.items()
    }


class Routed(Fixed):
    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return super().forward(hidden_states), None


def bitnet_parts(m: Any) -> dict[str, Any]:
    made = SimpleNamespace(hidden_size=WIDTH, intermediate_size=INNER, hidden_act="silu", rms_norm_eps=EPS)
    return norms("BitNetRMSNorm", *TWO)(m) | {
        "self_attn": attending("BitNetAttention", "")(m),
        "mlp": m.BitNetMLP(made),
    }


def kosmos_parts(m: Any) -> dict[str, Any]:
    made = SimpleNamespace(
        embed_dim=WIDTH,
        ffn_dim=INNER,
        activation_function="gelu",
        dropout=0.0,
        activation_dropout=0.0,
        layer_norm_eps=EPS,
        _attn_implementation="sdpa",
    )
    options = {"embed_dim": WIDTH, "num_heads": HEADS, "is_decoder": True, "is_causal": True, "layer_idx": 1}
    return {
        "self_attn": m.KosmosTextAttention(made, add_inner_attn_layernorm=True, **options),
        "self_attn_layer_norm": nn.LayerNorm(WIDTH, EPS),
        "ffn": m.Kosmos2TextFFN(made),
        "final_layer_norm": nn.LayerNorm(WIDTH, EPS),
        "dropout": 0.0,
    }


HEADS_OWN = ProjectionNorm(of=("query", "key"), over="heads")
QWEN3_NEXT = Placement(
    each=ByKind(
        attn=Residual(
            pre=CENTERED,
            gate=Gate(),
            projections=ProjectionNorm(of=("query", "key"), over="head", norm=CENTERED),
        ),
        ffn=Residual(pre=CENTERED),
    )
)
COHERE = replace(get("parallel-shared"), each=ByKind(attn=Residual(projections=HEADS_OWN), ffn=Residual()))
NO_BIAS: dict[str, Any] = {"bias": False}


def neox(parallel: bool) -> Family:
    def parts(m: Any) -> dict[str, Any]:
        more = {"attention": ATTN, "use_parallel_residual": parallel}
        plain = {"post_attention_dropout": nn.Identity(), "post_mlp_dropout": nn.Identity()}
        return norms("LayerNorm", *TWO)(m) | more | plain

    return Family(
        module="gpt_neox",
        layer="GPTNeoXLayer",
        placement=get("parallel" if parallel else "pre-ln"),
        parts=parts,
        weights=PRE,
        norm="layernorm",
        about=f"wiring, use_parallel_residual={parallel}",
    )


def sandwiched(module: str, prefix: str) -> Family:
    return Family(
        module=module,
        layer=f"{prefix}DecoderLayer",
        placement=normed("sandwich", CENTERED),
        parts=norms(f"{prefix}RMSNorm", *GEMMA),
        weights=SANDWICH,
        about="wiring, norms stored around 1",
    )


FAMILIES: dict[str, Family] = {
    "Gemma 2": sandwiched("gemma2", "Gemma2"),
    "Gemma 3": sandwiched("gemma3", "Gemma3"),
    "OLMo 2": Family(
        module="olmo2",
        layer="Olmo2DecoderLayer",
        placement=get("olmo2"),
        parts=lambda m: (
            norms("Olmo2RMSNorm", GEMMA[1], GEMMA[3])(m) | {"self_attn": attending("Olmo2Attention", "")(m)}
        ),
        weights=together(
            by_name(attn__out="post_attention_layernorm", ffn__out="post_feedforward_layernorm"), projections(**QK)
        ),
        own=("attn",),
        state=unrotated,
        options=NO_BIAS,
        about="wiring and attention, QK-norm over the width",
    ),
    "Cohere": Family(
        module="cohere",
        layer="CohereDecoderLayer",
        placement=COHERE,
        parts=lambda m: (
            norms("CohereLayerNorm", "input_layernorm")(m)
            | {"self_attn": attending("CohereAttention", "", use_qk_norm=True)(m)}
        ),
        weights=together(by_name(attn__stream__norm="input_layernorm"), projections(**QK)),
        norm="layernorm",
        own=("attn",),
        state=unrotated,
        options=NO_BIAS,
        about="wiring, one norm for both branches, and attention, a QK-norm per head",
    ),
    "GPT-NeoX, parallel": neox(True),
    "GPT-NeoX, sequential": neox(False),
    "GPT-J": Family(
        module="gptj",
        layer="GPTJBlock",
        placement=get("parallel-shared"),
        parts=norms("LayerNorm", "ln_1", attn=ATTN),
        weights=by_name(attn__stream__norm="ln_1"),
        norm="layernorm",
        about="wiring, one norm for both branches",
    ),
    "Qwen3": Family(
        module="qwen3",
        layer="Qwen3DecoderLayer",
        placement=get("qk-norm"),
        parts=lambda m: norms("Qwen3RMSNorm", *TWO)(m) | {"self_attn": attending("Qwen3Attention", "")(m)},
        weights=together(PRE, projections(**QK)),
        own=("attn",),
        state=unrotated,
        options=NO_BIAS,
        about="wiring and attention, QK-norm shared by heads",
    ),
    "Qwen3-Next": Family(
        module="qwen3_next",
        layer="Qwen3NextDecoderLayer",
        placement=QWEN3_NEXT,
        parts=lambda m: (
            norms("Qwen3NextRMSNorm", *TWO, block_type="full_attention")(m)
            | {"self_attn": attending("Qwen3NextAttention", "")(m)}
        ),
        weights=together(
            PRE,
            swapped_gate,
            by_name(
                attn__branch__key="self_attn.k_proj",
                attn__branch__value="self_attn.v_proj",
                attn__branch__out="self_attn.o_proj",
                attn__branch__query_norm="self_attn.q_norm",
                attn__branch__key_norm="self_attn.k_norm",
            ),
        ),
        own=("attn",),
        state=unrotated,
        options=NO_BIAS,
        about="wiring and gated attention, norms stored around 1",
    ),
    "Dinov2": Family(
        module="dinov2",
        layer="Dinov2Layer",
        placement=get("layerscale"),
        parts=lambda m: (
            norms("LayerNorm", "norm1", "norm2", attention=ATTN, drop_path=nn.Identity())(m)
            | {
                f"layer_scale{i}": m.Dinov2LayerScale(SimpleNamespace(hidden_size=WIDTH, layerscale_value=1.0))
                for i in (1, 2)
            }
        ),
        weights=together(
            by_name(attn__pre="norm1", ffn__pre="norm2"),
            lambda layer: {
                "attn.combine.scale.weight": layer.layer_scale1.lambda1,
                "ffn.combine.scale.weight": layer.layer_scale2.lambda1,
            },
        ),
        norm="layernorm",
        about="wiring, LayerScale",
    ),
    "BitNet": Family(
        module="bitnet",
        layer="BitNetDecoderLayer",
        placement=get("sub-ln-bitnet"),
        parts=bitnet_parts,
        weights=together(
            PRE,
            projections(mid="attn_sub_norm"),
            by_name(
                ffn__branch__gate="mlp.gate_proj",
                ffn__branch__into="mlp.up_proj",
                ffn__branch__out="mlp.down_proj",
                ffn__branch__mid="mlp.ffn_sub_norm",
            ),
        ),
        own=("attn", "ffn"),
        state=unrotated,
        options=NO_BIAS | {"hidden_act": "swiglu"},
        about="whole layer, norms before W_O and W_2 (with SiLU for its ReLU²)",
    ),
    "Kosmos-2": Family(
        module="kosmos2",
        layer="Kosmos2TextBlock",
        placement=get("sub-ln-kosmos2"),
        parts=kosmos_parts,
        weights=together(
            by_name(attn__pre="self_attn_layer_norm", ffn__pre="final_layer_norm"),
            projections("out_proj", mid="inner_attn_ln"),
            by_name(ffn__branch__into="ffn.fc1", ffn__branch__out="ffn.fc2", ffn__branch__mid="ffn.ffn_layernorm"),
        ),
        norm="layernorm",
        own=("attn", "ffn"),
        about="whole layer, norms before W_O and W_2",
    ),
    "DeepSeek-V4": Family(
        module="deepseek_v4",
        layer="DeepseekV4DecoderLayer",
        placement=get("mhc"),
        parts=hyper("DeepseekV4", hc_sinkhorn_iters=20),
        weights=hyper_weights,
        state=lambda x: ((copies(x),), copies(x)),
        about="wiring, manifold-constrained hyper-connections",
    ),
    "HY-V4": Family(
        module="hy_v4",
        layer="HYV4DecoderLayer",
        placement=get("independent-streams"),
        parts=lambda m: hyper("HYV4", hc_magnitude=2.0)(m) | {"self_attn": Indexed(1, True)},
        weights=hyper_weights,
        state=lambda x: ((copies(x),), copies(x)),
        about="wiring, independent hyper-connections",
    ),
    "Qwen4-exp": Family(
        module="qwen4_exp",
        layer="Qwen4ExpTextDecoderLayer",
        placement=get("gated-streams"),
        parts=gated_parts,
        weights=gated_weights,
        state=lambda x: ((copies(x).flatten(-2), None), copies(x)),
        result=lambda theirs, ours: (theirs, ours.flatten(-2)),
        about="wiring, gated streams",
    ),
    "Inkling 2": Family(
        module="inkling2",
        layer="Inkling2SlidingDecoderLayer",
        placement=replace(
            get("attention-residuals-inkling"), stream=replace(get("attention-residuals-inkling").stream, block=1)
        ),
        parts=inkling_parts,
        weights=inkling_weights,
        state=sources,
        result=lambda theirs, ours: (theirs, ours[-1]),
        about="wiring, attention over depth",
    ),
    "Muse Spark": Family(
        module="muse_spark",
        layer="MuseSparkTextDecoderLayer",
        placement=MUSE,
        parts=muse_parts,
        weights=together(
            by_name(attn__pre="input_layernorm", ffn__pre="pre_feedforward_layernorm"),
            lambda layer: {
                "attn.combine.scale.weight": layer.post_attention_residual_gate.gate,
                "ffn.combine.scale.weight": layer.post_feedforward_residual_gate.gate,
            },
        ),
        about="wiring, variance gate (its input-scaled norm as a plain one)",
    ),
    "Zaya": Family(
        module="zaya",
        layer="ZayaDecoderLayer",
        placement=get("affine-shortcut"),
        parts=lambda m: (
            norms("ZayaRMSNorm", *TWO, mlp=Routed(2, False))(m)
            | {f"post_{n}_residual_scale": m.ZayaResidualScaling(WIDTH) for n in ("attention", "mlp")}
        ),
        weights=zaya_weights,
        about="wiring, affine shortcut",
    ),
}


class Indexed(Fixed):
    """HY-V4's attention returns indices, too."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return *super().forward(hidden_states), None


def theirs_of(family: Family) -> Any:
    """Its layer in float64, every parameter random, without what its own constructor would need."""
    try:
        module = import_module(f"transformers.models.{family.module}.modeling_{family.module}")
        kind = getattr(module, family.layer)
    except (ImportError, AttributeError):
        pytest.skip(f"transformers {transformers.__version__} has no {family.layer}")
    layer = kind.__new__(kind)
    nn.Module.__init__(layer)
    for name, part in family.parts(module).items():
        setattr(layer, name, part)
    for one in layer.modules():  # Inkling 2's norm has an eps of its own
        if hasattr(one, "eps") and isinstance(one.eps, float) and "Unweighted" in type(one).__name__:
            one.eps = EPS
    return randomised(layer.double()).eval()


def ours_of(family: Family, layer: Any, placement: Placement | None = None, *, strict: bool = True) -> Layer:
    """Our second layer of three with their weights, fixed maps where they have them."""
    options = {"norm": family.norm, "norm_eps": EPS} | dict(family.options)
    shape = config(**options)
    shape._attn_implementation = "sdpa"
    made = make_layers(shape, placement or family.placement, "decoder", 3, 0, True)[1].double().eval()
    assert isinstance(made, Layer)
    for kind, fixed in (("attn", ATTN), ("ffn", FFN)):
        if kind not in family.own:
            getattr(made, kind).branch = fixed
    given, own = family.weights(layer), dict(made.named_parameters())
    with torch.no_grad():
        for name, value in given.items():
            if name in own:
                own[name].copy_(value.view(own[name].shape))
    if strict:
        left = {name for name in own.keys() - given.keys() if not name.endswith("bias")}  # a norm's, 0
        assert not left and not given.keys() - own.keys(), (left, given.keys() - own.keys())
    return made


def difference(family: Family, placement: Placement | None = None) -> float:
    """The largest difference of one layer's output, over its largest value."""
    layer = theirs_of(family)
    made = ours_of(family, layer, placement, strict=placement is None)
    x = torch.randn(2, TIME, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (*given,), state = family.state(x)
    words = given.pop() if isinstance(given[-1], dict) else {}
    if isinstance((placement or family.placement).stream, Parallel):
        state = (state, state)
    with torch.no_grad():
        theirs, got = family.result(layer(*given, **words), made(state))
    return ((theirs - got).abs().max() / theirs.abs().max()).item()


@contextmanager
def promoted() -> Iterator[None]:
    """transformers casts to float32 inside norms and maps; here these casts go to float64."""
    to = Tensor.to

    def to_double(self: Tensor, *given: Any, **words: Any) -> Tensor:
        given = tuple(torch.float64 if one is torch.float32 else one for one in given)
        words = {name: torch.float64 if one is torch.float32 else one for name, one in words.items()}
        return to(self, *given, **words)

    with mock.patch.object(Tensor, "float", Tensor.double), mock.patch.object(Tensor, "to", to_double):
        yield
