"""The weights of a plain post-ln or pre-ln model as CTranslate2's specification of a Transformer.

| ours | CTranslate2's |
| --- | --- |
| `embedding.tokens`, its scale, `embedding.norm` | `embeddings`, `scale_embeddings`, `layernorm_embedding` |
| positions, learned or computed, and token type 0 | `position_encodings.encodings`, a table from position 0 on |
| `attn.branch.query`, `key`, `value`; `out` | `self_attention.linear[0]`, one matrix; `[1]` |
| `cross.branch.query`; `key`, `value`; `out` | `attention.linear[0]`; `[1]`; `[2]` |
| `ffn.branch.into`, `out`; with a gate `gate`, `into` | `ffn.linear_0`, `linear_1`; `linear_0`, `linear_0_noact` |
| `query_norm`, `key_norm` of an attention | its `q_norm`, `k_norm`, over each head |
| `pre` or `post` of a sublayer; the tower's `norm` | its `layer_norm`; `layer_norm` |
| `embedding.project`, `project` of a decoder | `project_in`, `project_out` |
| `lm_head` | `decoder.projection` |
"""

from typing import Any

import torch
from torch import Tensor, nn

from isograd.errors import needed
from isograd.models import IsogradForCausalLM, IsogradForSeq2SeqLM, IsogradModel
from isograd.transformer.attention import Attention
from isograd.transformer.feedforward import FeedForward, GatedFeedForward
from isograd.transformer.norms import RMSNorm
from isograd.transformer.stack import Layer
from isograd.transformer.sublayer import Sublayer

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "swiglu": "SWISH"}
LONGEST = 1024  # tokens that CTranslate2 reads of a source by default


def specification(model: IsogradForSeq2SeqLM | IsogradForCausalLM) -> Any:
    """CTranslate2's specification with the model's weights in float32; vocabularies are not in it yet."""
    (specs,) = needed("export", "ctranslate2.specs.transformer_spec")
    if isinstance(model, IsogradForSeq2SeqLM):
        encoder, decoder = _tower(model.encoder), _tower(model.decoder)
        _set_linear(decoder.projection, model.lm_head)
        return specs.TransformerSpec(encoder, decoder)
    decoder = _tower(model.model)
    _set_linear(decoder.projection, model.lm_head)
    return specs.TransformerDecoderModelSpec(decoder)


def _tower(tower: IsogradModel) -> Any:
    common, specs = needed("export", "ctranslate2.specs.common_spec", "ctranslate2.specs.transformer_spec")
    config, embedding = tower.config, tower.embedding
    options: dict[str, Any] = {
        "pre_norm": True,  # here only: whether there is a final norm is asked beside it
        "no_final_norm": isinstance(tower.norm, nn.Identity),
        "activation": getattr(common.Activation, ACTIVATIONS[config.hidden_act]),
        "layernorm_embedding": config.embedding_norm,
        "ffn_glu": config.hidden_act == "swiglu",
        "rms_norm": any(isinstance(module, RMSNorm) for module in tower.modules()),
        "qk_norm": True,  # taken out where there is none
    }
    if tower.rotary:
        options |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.rope_theta}
    layers = [layer for layer in tower.layers if isinstance(layer, Layer)]
    depth, heads = len(layers), config.num_attention_heads
    if tower.causal:
        cross = layers[0].cross is not None
        options |= {"with_encoder_attention": cross, "project_in_out": True}
        spec = specs.TransformerDecoderSpec(depth, heads, **options)
        table = spec.embeddings
        _set_projection(spec, "project_in", embedding.project)
        _set_projection(spec, "project_out", tower.project)
    else:
        spec = specs.TransformerEncoderSpec(depth, heads, **options)
        table = spec.embeddings[0]
    spec.pre_norm = isinstance(layers[0].attn.post, nn.Identity)
    table.weight = _values(embedding.tokens.weight)
    spec.scale_embeddings = False if embedding.scale == 1.0 else float(embedding.scale)
    if not tower.rotary:
        spec.position_encodings.encodings = _positions(tower)
    _set_norm(getattr(spec, "layernorm_embedding", None), embedding.norm)
    _set_norm(getattr(spec, "layer_norm", None), tower.norm)
    for ours, theirs in zip(layers, spec.layer, strict=True):
        _set_attention(theirs.self_attention, ours.attn)
        if ours.cross is not None:
            _set_attention(theirs.attention, ours.cross)
        _set_feedforward(theirs.ffn, ours.ffn)
    return spec


def _positions(tower: IsogradModel) -> Tensor:
    """What is added at position 0, 1, ..: without a table here CTranslate2 would add sinusoids of its own."""
    config, embedding = tower.config, tower.embedding
    rows = config.max_position_embeddings if tower.longest else max(config.max_position_embeddings, LONGEST)
    table = torch.zeros(rows, config.hidden_size)
    if embedding.positions is not None:
        table += _values(embedding.positions(torch.arange(rows) + config.position_offset))
    if embedding.types is not None:
        table += _values(embedding.types.weight[0])
    return table


def _set_attention(spec: Any, sublayer: Sublayer) -> None:
    branch = sublayer.branch
    assert isinstance(branch, Attention)
    _set_norm(spec.layer_norm, sublayer.pre if isinstance(sublayer.post, nn.Identity) else sublayer.post)
    groups = (
        [[branch.query], [branch.key, branch.value]] if branch.is_cross else [[branch.query, branch.key, branch.value]]
    )
    for linear, group in zip(spec.linear, [*groups, [branch.out]], strict=True):
        _set_linear(linear, *group)
    (common,) = needed("export", "ctranslate2.specs.common_spec")
    for name, norm in (("q_norm", branch.query_norm), ("k_norm", branch.key_norm)):
        if isinstance(norm, nn.Identity):
            delattr(spec, name)
        else:
            setattr(spec, name, common.LayerNormSpec(rms_norm=isinstance(norm, RMSNorm)))
            _set_norm(getattr(spec, name), norm)


def _set_feedforward(spec: Any, sublayer: Sublayer) -> None:
    branch = sublayer.branch
    assert isinstance(branch, FeedForward)
    _set_norm(spec.layer_norm, sublayer.pre if isinstance(sublayer.post, nn.Identity) else sublayer.post)
    if isinstance(branch, GatedFeedForward):
        _set_linear(spec.linear_0, branch.gate)
        _set_linear(spec.linear_0_noact, branch.into)
    else:
        _set_linear(spec.linear_0, branch.into)
    _set_linear(spec.linear_1, branch.out)


def _set_linear(spec: Any, *projections: nn.Linear) -> None:
    """The projections on top of each other."""
    spec.weight = _values(torch.cat([projection.weight for projection in projections]))
    if projections[0].bias is not None:
        spec.bias = _values(torch.cat([projection.bias for projection in projections]))


def _set_projection(spec: Any, name: str, projection: nn.Module) -> None:
    """Between token vectors, or the head, of another width and the decoder; CTranslate2's encoder has none."""
    if isinstance(projection, nn.Linear):
        _set_linear(getattr(spec, name), projection)
    else:
        delattr(spec, name)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    if isinstance(norm, nn.Identity):
        return
    spec.gamma = _values(norm.weight)
    if hasattr(spec, "beta"):
        spec.beta = _values(norm.bias)


def _values(tensor: Any) -> Tensor:
    """A copy: CTranslate2 quantises in place."""
    return torch.as_tensor(tensor).detach().to("cpu", torch.float32, copy=True).contiguous()
