"""Who takes part in `translation.py`: isograd's encoder-decoder and its peers, with isograd's weights.

Each builder returns a model in training mode and its loss of one batch: label-smoothed cross-entropy per target token.
In all of them dropout acts on the sum of the embeddings and on each branch's output, and nowhere else.
"""

import re
from collections.abc import Callable
from typing import Any

WIDTH, LAYERS, HEADS, INNER = 256, 6, 8, 1024
SMOOTHING = 0.1
IGNORE = -100

Loss = Callable[[dict[str, Any]], Any]


def ours(facts: dict[str, Any], placement: str, dropout: float) -> Any:
    """isograd's model; `facts` are the vocabulary's size, its special ids and the longest sentence."""
    import torch

    from isograd.models import IsogradConfig, IsogradForSeq2SeqLM

    torch.manual_seed(0)
    config = IsogradConfig(
        placement=placement,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        encoder_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        hidden_act="relu",
        position_embedding_type="sinusoidal",
        scale_embedding=True,
        share_encoder_embeddings=True,
        hidden_dropout=dropout,
        embedding_dropout=dropout,
        **facts,
    )
    return IsogradForSeq2SeqLM(config).train()


def isograd(facts: dict[str, Any], placement: str, dropout: float) -> tuple[Any, Loss]:
    model = ours(facts, placement, dropout)
    return model, lambda batch: model(**batch, label_smoothing=SMOOTHING).loss


def marian(facts: dict[str, Any], placement: str, dropout: float) -> tuple[Any, Loss]:
    import torch
    from transformers import MarianConfig, MarianMTModel

    given = ours(facts, placement, dropout)
    config = MarianConfig(
        decoder_vocab_size=facts["vocab_size"],
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=INNER,
        decoder_ffn_dim=INNER,
        activation_function="relu",
        scale_embedding=True,
        dropout=dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        forced_eos_token_id=None,
        use_cache=False,
        **facts,
    )
    model: Any = MarianMTModel(config).train()
    table = given.encoder.embedding.positions(torch.arange(facts["max_position_embeddings"]))
    state = {"final_logits_bias": torch.zeros(1, facts["vocab_size"])}
    state |= dict.fromkeys(("lm_head.weight", "model.shared.weight"), given.lm_head.weight)
    for tower in ("encoder", "decoder"):
        state[f"model.{tower}.embed_positions.weight"] = table
        for name, value in getattr(given, tower).state_dict().items():
            state[f"model.{tower}.{_renamed(name, _MARIAN)}"] = value
    model.load_state_dict(state)

    def loss(batch: dict[str, Any]) -> Any:
        out = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            decoder_input_ids=given.prepare_decoder_input_ids_from_labels(batch["labels"]),
        )
        return _smoothed(out.logits, batch["labels"])

    return model, loss


def torch_nn(facts: dict[str, Any], placement: str, dropout: float) -> tuple[Any, Loss]:
    import torch
    from torch import nn

    given = ours(facts, placement, dropout)
    pre = placement == "pre-ln"

    def final() -> nn.Module | None:
        return nn.LayerNorm(WIDTH) if pre else None

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            options: dict[str, Any] = {"dropout": dropout, "batch_first": True, "norm_first": pre}
            encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, **options)
            decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, INNER, **options)
            self.tokens = nn.Embedding(facts["vocab_size"], WIDTH, padding_idx=facts["pad_token_id"])
            self.drop = nn.Dropout(dropout)
            self.network = nn.Transformer(
                WIDTH,
                HEADS,
                custom_encoder=nn.TransformerEncoder(encoder, LAYERS, final(), enable_nested_tensor=False),
                custom_decoder=nn.TransformerDecoder(decoder, LAYERS, final()),
                batch_first=True,
            )
            positions = given.encoder.embedding.positions(torch.arange(facts["max_position_embeddings"]))
            self.register_buffer("positions", positions)

        def embed(self, ids: Any) -> Any:
            return self.drop(self.tokens(ids) * WIDTH**0.5 + self.get_buffer("positions")[: ids.shape[1]])

        def forward(self, source: Any, padding: Any, target: Any) -> Any:
            h = self.network(
                self.embed(source),
                self.embed(target),
                tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,  # no mask of the target's padding: labels ignore it
            )
            return nn.functional.linear(h, self.tokens.weight)

    model = Model().train()
    for module in model.modules():  # dropout where isograd and Marian have it
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            module.dropout.p = 0.0
    model.load_state_dict(_torch_state(given, model.state_dict()["positions"]))

    def loss(batch: dict[str, Any]) -> Any:
        target = given.prepare_decoder_input_ids_from_labels(batch["labels"])
        return _smoothed(model(batch["input_ids"], batch["attention_mask"] == 0, target), batch["labels"])

    return model, loss


def _smoothed(logits: Any, labels: Any) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORE, label_smoothing=SMOOTHING)


def _torch_state(given: Any, positions: Any) -> dict[str, Any]:
    """Weights under torch's names; query, key and value are joined there."""
    import torch

    state = {"tokens.weight": given.lm_head.weight, "positions": positions}
    for tower in ("encoder", "decoder"):
        weights = getattr(given, tower).state_dict()
        for name, value in weights.items():
            if "query" in name:
                value = torch.cat([weights[name.replace("query", role)] for role in ("query", "key", "value")])
            if not re.search(r"key|value|embedding", name):
                state[f"network.{tower}.{_renamed(name, _TORCH[tower])}"] = value
    return state


def _renamed(name: str, rules: dict[str, str]) -> str:
    for pattern, other in rules.items():
        name = re.sub(pattern, other, name)
    return name


_MARIAN = {
    r"embedding\.tokens\.": "embed_tokens.",
    r"attn\.branch\.(q|k|v)\w+\.": r"self_attn.\1_proj.",
    r"cross\.branch\.(q|k|v)\w+\.": r"encoder_attn.\1_proj.",
    r"attn\.branch\.out\.": "self_attn.out_proj.",
    r"cross\.branch\.out\.": "encoder_attn.out_proj.",
    r"attn\.post\.": "self_attn_layer_norm.",
    r"cross\.post\.": "encoder_attn_layer_norm.",
    r"ffn\.post\.": "final_layer_norm.",
    r"ffn\.branch\.into\.": "fc1.",
    r"ffn\.branch\.out\.": "fc2.",
}
_TORCH = {
    tower: {
        r"attn\.branch\.query\.": "self_attn.in_proj_",
        r"cross\.branch\.query\.": "multihead_attn.in_proj_",
        r"attn\.branch\.out\.": "self_attn.out_proj.",
        r"cross\.branch\.out\.": "multihead_attn.out_proj.",
        r"attn\.(pre|post)\.": "norm1.",
        r"cross\.(pre|post)\.": "norm2.",
        r"ffn\.(pre|post)\.": f"norm{last}.",
        r"ffn\.branch\.into\.": "linear1.",
        r"ffn\.branch\.out\.": "linear2.",
    }
    for tower, last in (("encoder", 2), ("decoder", 3))
}

BUILDERS: dict[str, Callable[[dict[str, Any], str, float], tuple[Any, Loss]]] = {
    "isograd": isograd,
    "MarianMTModel": marian,
    "torch.nn.Transformer": torch_nn,
}
PEERS = {"post-ln": ("isograd", "MarianMTModel", "torch.nn.Transformer"), "pre-ln": ("isograd", "torch.nn.Transformer")}
