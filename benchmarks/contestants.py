"""Who takes part in `step.py`: shapes, and builders of isograd's model and its peers at equal maths."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

IGNORE = -100
MASKED = 0.15


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One model and one batch; `causal` chooses the task."""

    causal: bool = True
    width: int = 256
    layers: int = 6
    heads: int = 8
    vocabulary: int = 8192
    time: int = 256
    batch: int = 8


CASES = {
    "causal": Shape(),
    "masked": Shape(causal=False, time=128, batch=16),
    "deep": Shape(width=128, layers=48, vocabulary=4096, time=128),
    "narrow": Shape(width=128),
    "study": Shape(width=64, layers=12, heads=4, vocabulary=100, time=32, batch=16),
}


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """What one process trains."""

    name: str
    build: str  # a key of BUILDERS
    package: str  # must be installed
    placement: str = ""  # isograd only
    bf16: bool = False
    note: str = ""


# The contestants. Each builder returns the model and the loss of one batch.

Loss = Callable[[dict[str, Any]], Any]


def isograd(shape: Shape, placement: str) -> tuple[Any, Loss]:
    from isograd.models import IsogradConfig, IsogradForCausalLM, IsogradForMaskedLM

    config = IsogradConfig(
        placement=placement,
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=shape.time,
        scale_embedding=False,  # as GPT-2 and BERT beside it
    )
    model = (IsogradForCausalLM if shape.causal else IsogradForMaskedLM)(config)
    return model, lambda batch: model(**batch).loss


def gpt2(shape: Shape, placement: str) -> tuple[Any, Loss]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.time,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # which its name does not say: a warning, and a break in a compiled graph
    return model, lambda batch: model(**batch).loss


def _bert_options(shape: Shape) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": 4 * shape.width,
        "max_position_embeddings": shape.time + 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _without_places(model: Any) -> Loss:
    return lambda batch: model(input_ids=batch["input_ids"], labels=batch["labels"]).loss


def bert(shape: Shape, placement: str) -> tuple[Any, Loss]:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(**_bert_options(shape)))
    return model, _without_places(model)


def roberta_prenorm(shape: Shape, placement: str) -> tuple[Any, Loss]:
    from transformers import RobertaPreLayerNormConfig, RobertaPreLayerNormForMaskedLM

    model = RobertaPreLayerNormForMaskedLM(RobertaPreLayerNormConfig(**_bert_options(shape)))
    return model, _without_places(model)


def modernbert(shape: Shape, placement: str) -> tuple[Any, Loss]:
    """With its sparse head; GeGLU of two thirds of the width, so that the products are as many; every layer global."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    config = ModernBertConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=8 * shape.width // 3,
        max_position_embeddings=shape.time,
        global_attn_every_n_layers=1,
        sparse_prediction=True,
        attn_implementation="sdpa",
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )
    model = ModernBertForMaskedLM(config)
    return model, _without_places(model)


def x_transformers(shape: Shape, placement: str) -> tuple[Any, Loss]:
    from x_transformers import Decoder, Encoder, TransformerWrapper

    layers = (Decoder if shape.causal else Encoder)(
        dim=shape.width,
        depth=shape.layers,
        heads=shape.heads,
        attn_dim_head=shape.width // shape.heads,
        attn_flash=True,
    )
    model = TransformerWrapper(
        num_tokens=shape.vocabulary, max_seq_len=shape.time, attn_layers=layers, tie_embedding=True
    )
    return model, _all_logits(model, shape)


def torch_nn(shape: Shape, placement: str) -> tuple[Any, Loss]:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(
                shape.width,
                shape.heads,
                4 * shape.width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            self.tokens = nn.Embedding(shape.vocabulary, shape.width)
            self.positions = nn.Embedding(shape.time, shape.width)
            nn.init.normal_(self.tokens.weight, std=0.02)
            self.layers = nn.TransformerEncoder(
                layer, shape.layers, nn.LayerNorm(shape.width), enable_nested_tensor=False
            )
            self.mask = nn.Transformer.generate_square_subsequent_mask(shape.time) if shape.causal else None

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
            return nn.functional.linear(self.layers(x, self.mask, is_causal=shape.causal), self.tokens.weight)

    model = Model()
    return model, _all_logits(model, shape)


def _all_logits(model: Any, shape: Shape) -> Loss:
    from torch.nn.functional import cross_entropy

    def loss(batch: dict[str, Any]) -> Any:
        logits, labels = model(batch["input_ids"]), batch["labels"]
        if shape.causal:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE)

    return loss


BUILDERS: dict[str, Callable[[Shape, str], tuple[Any, Loss]]] = {
    "isograd": isograd,
    "gpt2": gpt2,
    "bert": bert,
    "roberta_prenorm": roberta_prenorm,
    "modernbert": modernbert,
    "x_transformers": x_transformers,
    "torch_nn": torch_nn,
}

OURS = Contestant(name="isograd pre-ln", build="isograd", package="isograd", placement="pre-ln")
NORMFORMER = replace(OURS, name="isograd normformer", placement="normformer")
_NN = Contestant(name="torch.nn encoder", build="torch_nn", package="torch")
_X = Contestant(
    name="x-transformers",
    build="x_transformers",
    package="x-transformers",
    note="attention projections without biases, norms without offsets",
)
PEERS = {
    True: (Contestant(name="GPT2LMHeadModel", build="gpt2", package="transformers"), _X, _NN),
    False: (
        Contestant(name="BertForMaskedLM", build="bert", package="transformers", note="Post-LN, norm on the embedding"),
        Contestant(name="RobertaPreLayerNorm", build="roberta_prenorm", package="transformers"),
        Contestant(
            name="ModernBert, sparse head",
            build="modernbert",
            package="transformers",
            note="GeGLU and rotary positions, no biases",
        ),
        replace(_X, note=_X.note + "; no dense layer in the head"),
        replace(_NN, note="no dense layer in the head"),
    ),
}


def contestants(shape: Shape, dtypes: Sequence[str]) -> list[Contestant]:
    """Ours and the peers in fp32, and, where asked, all but NormFormer again under bf16 autocast."""
    plain = [OURS, *PEERS[shape.causal]]
    half = [replace(c, name=c.name + " bf16", bf16=True) for c in plain]
    return [*([*plain, NORMFORMER] if "fp32" in dtypes else []), *(half if "bf16" in dtypes else [])]


# One process: build, then answer the parent's calls with medians.
