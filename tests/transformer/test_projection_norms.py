"""Norms on queries, keys and values: two published models by other hands, caches, precision, and what is refused."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from isograd.placement import ByKind, Norm, Placement, ProjectionNorm, Residual, sites
from isograd.transformer.parameters import decayed
from tests.build import HEADS, close, config, inputs, labelled, model, randomised, tokens
from tests.models.test_oracles import SHAPE, attention, copy, finished

N = Norm()
LLAMA = {"norm": "rmsnorm", "hidden_act": "swiglu", "bias": False, "position_embedding_type": "rotary"}
LLAMA |= {"tie_word_embeddings": False}
NAMES = ("qk-norm", "normformer-resscale-qkv")


def exact_norms(theirs: nn.Module) -> None:
    """Their RMSNorm computes in float32 whatever its input; torch's own with its gains computes in fp64."""
    found = [(n, m) for n, m in theirs.named_modules() if hasattr(m, "variance_epsilon")]
    for name, norm in found:
        made: Any = nn.RMSNorm(norm.weight.shape[0], eps=norm.variance_epsilon, dtype=torch.float64)
        made.weight = norm.weight
        parent, _, last = name.rpartition(".")
        setattr(theirs.get_submodule(parent), last, made)


def filled(ours: Any, theirs: Any, slot: str, norms: tuple[str, str]) -> Any:
    """Our model with their weights; `norms` are their names of what stands in our `slot` of the two sublayers."""
    exact_norms(theirs)
    copy(ours.model.embedding.tokens, theirs.model.embed_tokens)
    copy(ours.model.norm, theirs.model.norm)
    copy(ours.lm_head, theirs.lm_head)
    for layer, block in zip(ours.model.layers, theirs.model.layers, strict=True):
        own, branch = block.self_attn, layer.attn.branch
        attention(branch, own.q_proj, own.k_proj, own.v_proj, own.o_proj)
        copy(branch.query_norm, own.q_norm)
        copy(branch.key_norm, own.k_norm)
        for sublayer, norm in zip((layer.attn, layer.ffn), norms, strict=True):
            copy(getattr(sublayer, slot), getattr(block, norm))
        copy(layer.ffn.branch.gate, block.mlp.gate_proj)
        copy(layer.ffn.branch.into, block.mlp.up_proj)
        copy(layer.ffn.branch.out, block.mlp.down_proj)
    return ours


def test_qk_norm_is_qwen3() -> None:
    """One norm for each head, before the rotary positions."""
    theirs = finished(
        transformers.Qwen3ForCausalLM(
            transformers.Qwen3Config(
                **SHAPE, head_dim=4, num_key_value_heads=4, rms_norm_eps=1e-5, tie_word_embeddings=False
            )
        )
    )
    ours = filled(
        model(placement="qk-norm", dtype=torch.float64, **LLAMA),
        theirs,
        "pre",
        ("input_layernorm", "post_attention_layernorm"),
    )
    ids = tokens(3, 8)
    close(ours(ids).logits, theirs(ids).logits, 1e-9)
    for layer in ours.model.layers:  # the negative control: over the whole width with the same weights
        layer.attn.branch.query_norm = widened(layer.attn.branch.query_norm)
        layer.attn.branch.key_norm = widened(layer.attn.branch.key_norm)
        layer.attn.branch.norm_per_head = False
    assert (ours(ids).logits - theirs(ids).logits).abs().max() > 1e-3


def widened(norm: Any) -> nn.Module:
    made: Any = nn.RMSNorm(16, eps=norm.eps, dtype=torch.float64)
    made.weight = nn.Parameter(norm.weight.detach().repeat(4))
    return made


def test_norms_of_the_whole_width_are_olmo2() -> None:
    theirs = finished(
        transformers.Olmo2ForCausalLM(
            transformers.Olmo2Config(
                **SHAPE, rms_norm_eps=1e-5, tie_word_embeddings=False, pad_token_id=1, rope_theta=10000.0
            )
        )
    )
    ours = filled(
        model(placement="olmo2", dtype=torch.float64, **LLAMA),
        theirs,
        "out",
        ("post_attention_layernorm", "post_feedforward_layernorm"),
    )
    ids = tokens(3, 8)
    close(ours(ids).logits, theirs(ids).logits, 1e-9)


@pytest.mark.parametrize("head", ["causal", "seq2seq"])
@pytest.mark.parametrize("name", NAMES)
def test_a_cache_keeps_the_normalized_keys(name: str, head: str) -> None:
    """One token after the other gives the logits of all at once; keys of the memory are normalized once."""
    made, given = model(head, placement=name, dtype=torch.float64), inputs(head)
    written = "decoder_input_ids" if head == "seq2seq" else "input_ids"
    whole, cache, parts = made(**given).logits, None, []
    for t in range(given[written].shape[1]):
        out = made(**given | {written: given[written][:, t : t + 1]}, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    close(torch.cat(parts, 1), whole, 1e-10)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(name: str, head: str) -> None:
    """Under autocast queries, keys and values still meet in one dtype; loss and gradients are those of float32."""
    made, given = model(head, placement=name).train(), labelled(head)
    exact = made(**given).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = made(**given).loss
    loss.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=0.05)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())


def test_the_norms_bound_the_logits() -> None:
    """|q . k| / sqrt(size) <= |gain|^2 sqrt(size) for any weights: what QK-norm is for. Without it they grow."""

    def largest(name: str) -> Tensor:
        made = model(placement=name, random=False, bias=False, position_embedding_type="none")
        made.set_attn_implementation("eager")
        branch, x = made.model.layers[0].attn.branch, torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0))
        for leaf in (branch.query, branch.key):
            nn.init.normal_(leaf.weight, std=100.0)
        q, k = (
            branch._split(leaf(x), norm)
            for leaf, norm in ((branch.query, branch.query_norm), (branch.key, branch.key_norm))
        )
        return (q @ k.mT).abs().max() * branch.scaling

    assert largest("qk-norm") <= 4**0.5 + 1e-4 < largest("pre-ln") / 1000


def test_values_may_be_left_alone() -> None:
    first = model(placement="qk-norm").model.layers[0].attn.branch
    assert isinstance(first.value_norm, nn.Identity) and first.query_norm.normalized_shape == (4,)
    assert model(placement="normformer-resscale-qkv").model.layers[0].attn.branch.value_norm.normalized_shape == (16,)


def test_their_gains_do_not_decay() -> None:
    made = randomised(model(placement="normformer-resscale-qkv"))
    assert {n for n, _ in made.named_parameters() if "_norm." in n} <= set(decayed(made)[1])


@pytest.mark.parametrize("of", [(), ("query", "query"), ("out",), ("query", "ffn_in")])
def test_projections_that_are_none(of: Any) -> None:
    with pytest.raises(ValueError, match="expected each of 'query', 'key', 'value' at most once, and at least one"):
        ProjectionNorm(of=of)


def test_what_else_is_refused() -> None:
    with pytest.raises(ValueError, match="over='model': expected 'width'"):
        ProjectionNorm(of=("query",), over="model")
    norms = ProjectionNorm(of=("query",))
    for each in (Residual(projections=norms), ByKind(attn=Residual(), ffn=Residual(projections=norms))):
        with pytest.raises(ValueError, match="a feed-forward has no queries, keys and values"):
            Placement(each=each)
    assert config(placement="qk-norm").entry().of(sites(1, other=1)[1]).projections is not None
