"""How many parameters a run's model has, from its recipe alone: no model is built and no data is read.

    parameters = tables + sum over sites (matrices + norms + coefficients) + final norms + head

The vocabulary is the one that the recipe asks for; data may have fewer tokens. Characters are taken as 256.
"""

from collections import Counter
from typing import Literal

from isograd.models import IsogradConfig
from isograd.placement import Norm, Placement, Residual, Site, Stack, sites
from isograd.placement.formula import Learned

Part = Literal["embedding", "attention", "feed-forward", "head", "norms and coefficients"]
PARTS: tuple[Part, ...] = ("embedding", "attention", "feed-forward", "head", "norms and coefficients")
_PER_FEATURE = {"layernorm": 2, "rmsnorm": 1}  # a gain, and an offset


def parameters(config: IsogradConfig, task: str) -> dict[Part, int]:
    """Trainable numbers by what they do; a tied table counts once, as embedding.

    Args:
        task: "language", "masked", "translation" or "classification": which head stands on top.
    """
    count: Counter[Part] = Counter(dict.fromkeys(PARTS, 0))
    for tower in config.stacks():
        count.update(_tower(config, tower))
    count.update(_head(config, task))
    if config.share_encoder_embeddings:
        count["embedding"] -= config.vocab_size * config.hidden_size
    return dict(count)


def norm_size(norm: Norm | None, features: int, config: IsogradConfig) -> int:
    """Gains and offsets of a norm slot."""
    if norm is None:
        return 0
    return features * _PER_FEATURE[config.norm if norm.kind == "model" else norm.kind]


def head_table(config: IsogradConfig, task: str) -> int:
    """Entries of the head's own table; none where it is the embedding's, or where no token is predicted."""
    return 0 if config.tie_word_embeddings or task == "classification" else config.vocab_size * config.hidden_size


def attention_matrices(config: IsogradConfig) -> int:
    """W_Q, W_K, W_V, W_O, each (width, width), with their biases."""
    return 4 * _linear(config.hidden_size, config.hidden_size, config)


def feedforward_matrices(config: IsogradConfig) -> int:
    """W_1 and W_2, and the gate of a gated one, with their biases."""
    width, inner = config.hidden_size, config.intermediate_size
    into = 2 if config.hidden_act == "swiglu" else 1
    return into * _linear(width, inner, config) + _linear(inner, width, config)


def _tower(config: IsogradConfig, tower: Stack) -> Counter[Part]:
    entry, width = config.entry(), config.hidden_size
    rows = (config.encoder_vocab_size if tower == "encoder" else None) or config.vocab_size
    if config.position_embedding_type == "learned":
        rows += config.max_position_embeddings + config.position_offset
    rows += config.type_vocab_size
    ends = norm_size(entry.final, width, config) + norm_size(Norm() if config.embedding_norm else None, width, config)
    count: Counter[Part] = Counter({"embedding": rows * width, "norms and coefficients": ends})
    layers, other = config.depths(tower)
    for site in sites(layers, tower, other):
        count.update(_sublayer(config, entry, site))
    return count


def _sublayer(config: IsogradConfig, entry: Placement, site: Site) -> dict[Part, int]:
    small = _norms_and_coefficients(config, entry.of(site), site)
    if site.kind == "ffn":
        return {"feed-forward": feedforward_matrices(config), "norms and coefficients": small}
    return {"attention": attention_matrices(config), "norms and coefficients": small}


def _norms_and_coefficients(config: IsogradConfig, residual: Residual, site: Site) -> int:
    width = config.hidden_size
    last = config.intermediate_size if site.kind == "ffn" else width  # what the last projection reads
    around = sum(norm_size(norm, width, config) for norm in (residual.pre, residual.out, residual.post))
    learned = [c for c in (residual.skip, residual.scale) if isinstance(c, Learned)]
    coefficients = sum(width if c.shape == "width" else 1 for c in learned)
    heads = config.num_attention_heads if residual.head_scale else 0
    return around + norm_size(residual.mid, last, config) + _projection_norms(config, residual) + coefficients + heads


def _projection_norms(config: IsogradConfig, residual: Residual) -> int:
    norms = residual.projections
    if norms is None:
        return 0
    features = config.hidden_size if norms.over == "width" else config.hidden_size // config.num_attention_heads
    return len(norms.of) * norm_size(norms.norm, features, config)


def _head(config: IsogradConfig, task: str) -> dict[Part, int]:
    """On top: a table of its own where none is tied; a masked LM's and a classifier's inner layers."""
    width, rows = config.hidden_size, config.vocab_size
    table = head_table(config, task)
    match task:
        case "masked":
            norm = norm_size(Norm(), width, config)
            second = width * width + width + 2 * (width + 1) if config.next_sentence else 0
            return {"head": table + width * width + width + rows + second, "norms and coefficients": norm}
        case "classification":
            return {"head": width * width + width + config.num_labels * (width + 1)}
        case _:
            return {"head": table}


def _linear(fan_in: int, fan_out: int, config: IsogradConfig) -> int:
    return fan_out * (fan_in + config.bias)
