"""The forecast of a run against real models: every parameter, every byte of state, and what autograd keeps."""

from collections import Counter
from typing import Any

from torch import nn

from isograd.lab.train.forecast.memory import parameters
from isograd.models import IsogradConfig
from isograd.transformer.parameters import roles
from tests.build import HEADS, NAMES, TINY, crossed, model

TASK = {"causal": "language", "masked": "masked", "seq2seq": "translation", "classify": "classification"}
PART = dict.fromkeys(("query", "key", "value", "attn_out"), "attention") | dict.fromkeys(
    ("ffn_in", "ffn_out"), "feed-forward"
)
PART |= dict.fromkeys(("norm", "coefficient"), "norms and coefficients")
PART |= {"embed": "embedding", "head": "head", "dense": "head"}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "untied": {"tie_word_embeddings": False, "bias": False, "norm": "rmsnorm", "position_offset": 2},
    "gated": {"hidden_act": "swiglu", "position_embedding_type": "rotary", "embedding_norm": True},
    "wide": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": None}
    | {"type_vocab_size": 2},
}
PAIR: dict[str, dict[str, Any]] = {
    "tiny": {"share_encoder_embeddings": True},
    "untied": {"encoder_vocab_size": 53},
    "gated": {},
    "wide": {},
}


def counted(real: nn.Module) -> dict[str, int]:
    """Parameters of a real model by part; a tied table is one parameter."""
    role_of, count = roles(real), Counter(dict.fromkeys(PART.values(), 0))
    for name, p in real.named_parameters():
        count[PART[role_of[name]]] += p.numel()
    return dict(count)


def shaped(head: str, name: str, shape: str) -> tuple[nn.Module, IsogradConfig]:
    options = SHAPES[shape] | (PAIR[shape] if head == "seq2seq" else {})
    options = options | ({"next_sentence": True} if (head, shape) == ("masked", "wide") else {})
    real = model(head, placement=name, random=False, **options)
    return real, real.config


@crossed("name, head, shape", NAMES, HEADS, SHAPES)
def test_parameters_are_those_of_the_model(name: str, head: str, shape: str) -> None:
    real, config = shaped(head, name, shape)
    assert parameters(config, TASK[head]) == counted(real)


def test_the_count_depends_on_every_option() -> None:
    """Negative control: one option less, and another number."""
    config = model("seq2seq", placement="normformer-resscale", random=False, **SHAPES["wide"]).config
    full = sum(parameters(config, "translation").values())
    for key, value in {"hidden_size": TINY["hidden_size"], "num_hidden_layers": 2, "encoder_layers": 2}.items():
        other = config.to_dict() | {key: value}
        assert sum(parameters(IsogradConfig(**other), "translation").values()) < full, key
