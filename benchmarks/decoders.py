"""Who takes part in `decode.py`: a model of isograd's, and transformers' model of the same function."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHAPE: dict[str, Any] = {
    "vocab_size": 8000,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "encoder_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "max_position_embeddings": 256,
    "hidden_act": "relu",
    "placement": "post-ln",
    "position_embedding_type": "sinusoidal",
    "scale_embedding": True,
    "share_encoder_embeddings": True,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is translated: ids with eos, and the forced number of tokens before eos (None: the model ends)."""

    sources: list[list[int]]
    lengths: list[int] | None
    model: str | None
    beam: int
    tokens: int


Translate = Callable[[], list[list[int]]]


def ours(model: Any, work: Work, early: bool = False) -> Translate:
    from isograd.models.search import translate_ids

    def translate() -> list[list[int]]:
        best: list[list[int]] = [[]] * len(work.sources)
        forced: dict[str, Any] = {} if work.lengths is None else {"lengths": work.lengths, "extra": 0}
        found = translate_ids(model, work.sources, beam=work.beam, tokens=work.tokens, early_stopping=early, **forced)
        for index, hypotheses in found:
            best[index] = hypotheses[0].tokens
        return best

    return translate


def by_ctranslate2(work: Work, kind: str) -> Translate:
    """The trained model, exported for that compute type, in batches of as many tokens as ours."""
    import tempfile

    import ctranslate2
    import torch

    from isograd.convert.checkpoints.vocabulary import pieces
    from isograd.convert.ctranslate2 import export_ctranslate2
    from isograd.lab.evaluate.loading import load_translation_model

    assert work.model is not None
    model, tokenizer = load_translation_model(work.model, torch.float32)
    read, written = (pieces(side, side.vocab_size) for side in (tokenizer.source, tokenizer.target))
    with tempfile.TemporaryDirectory() as folder:
        path = export_ctranslate2(model.eval(), tokenizer, f"{folder}/model")
        translator = ctranslate2.Translator(str(path), compute_type=kind, inter_threads=1, intra_threads=1)
    rows = [[read[i] for i in source] for source in work.sources]
    index, end = {token: i for i, token in enumerate(written)}, model.config.eos_token_id

    def translate() -> list[list[int]]:
        found = translator.translate_batch(
            rows, beam_size=work.beam, batch_type="tokens", max_batch_size=work.tokens // work.beam
        )
        return [[*(index[token] for token in result.hypotheses[0]), end] for result in found]

    return translate


def theirs(model: Any, work: Work, batch: int, early: bool) -> Translate:
    """`generate` in file order; its tokens up to the first eos after the start token."""
    import torch

    peer, config = peer_of(model), model.config
    pad, eos = config.pad_token_id, config.eos_token_id

    def translate() -> list[list[int]]:
        best = []
        for begin in range(0, len(work.sources), batch):
            rows = [torch.tensor(ids) for ids in work.sources[begin : begin + batch]]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
            lengths = None if work.lengths is None else torch.tensor(work.lengths[begin : begin + batch])
            longest = min(ids.shape[1] + 51, config.max_position_embeddings - 1)
            out = peer.generate(
                input_ids=ids,
                attention_mask=(ids != pad).long(),
                num_beams=work.beam,
                early_stopping=early,
                suppress_tokens=[pad],
                max_new_tokens=longest if lengths is None else int(lengths.max()) + 1,
                logits_processor=[] if lengths is None else [end_at(lengths.repeat_interleave(work.beam), eos)],
            )
            best += [[*row[: row.index(eos)], eos] if eos in row else row for row in out[:, 1:].tolist()]
        return best

    return translate


def end_at(lengths: Any, eos: int) -> Any:
    """The processor that forces eos behind that many tokens, at its own log-probability."""
    import torch
    from transformers import LogitsProcessor

    class EndAt(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            rows = lengths <= input_ids.shape[1] - 1  # the start token is among them
            if rows.any():
                kept = scores[rows, eos]
                scores[rows] = -torch.inf
                scores[rows, eos] = kept
            return scores

    return EndAt()


def peer_of(model: Any) -> Any:
    """transformers' model of the same function, with the same weights."""
    import torch
    from transformers import MarianConfig, MarianMTModel, PegasusConfig, PegasusForConditionalGeneration

    c = model.config
    wanted = {"norm": "layernorm", "norm_eps": 1e-5, "bias": True, "embedding_norm": False, "hidden_act": "relu"}
    wanted |= {"share_encoder_embeddings": True}
    unlike = [f"{k}={getattr(c, k)}" for k, v in wanted.items() if getattr(c, k) != v]
    if c.placement not in ("post-ln", "pre-ln") or c.position_embedding_type in ("rotary", "none") or unlike:
        raise SystemExit(f"transformers has no {c.placement} model with {c.position_embedding_type} positions {unlike}")
    post = c.placement == "post-ln"
    config = (MarianConfig if post else PegasusConfig)(
        vocab_size=c.vocab_size,
        d_model=c.hidden_size,
        encoder_layers=c.encoder_layers,
        decoder_layers=c.num_hidden_layers,
        encoder_attention_heads=c.num_attention_heads,
        decoder_attention_heads=c.num_attention_heads,
        encoder_ffn_dim=c.intermediate_size,
        decoder_ffn_dim=c.intermediate_size,
        activation_function=c.hidden_act,
        max_position_embeddings=c.max_position_embeddings,
        scale_embedding=c.scale_embedding,
        pad_token_id=c.pad_token_id,
        eos_token_id=c.eos_token_id,
        bos_token_id=c.bos_token_id,
        decoder_start_token_id=c.decoder_start_token_id,
        forced_eos_token_id=None,
        **({"decoder_vocab_size": c.vocab_size} if post else {}),
    )
    peer: Any = (MarianMTModel if post else PegasusForConditionalGeneration)(config).eval()
    positions = torch.arange(c.max_position_embeddings)[None] + c.position_offset
    state = {"final_logits_bias": torch.zeros(1, c.vocab_size), "lm_head.weight": model.lm_head.weight.float()}
    state["model.shared.weight"] = state["lm_head.weight"]
    for tower in ("encoder", "decoder"):
        own = getattr(model, tower)
        state[f"model.{tower}.embed_positions.weight"] = own.embedding.positions(positions)[0].float()
        for name, value in own.state_dict().items():
            if not name.startswith("embedding.positions"):
                state[f"model.{tower}.{_their_name(name)}"] = value.float()
    peer.load_state_dict(state)
    return peer.to(model.dtype)


def _their_name(name: str) -> str:
    parts = {
        r"^norm\.": "layer_norm.",
        r"embedding\.tokens\.": "embed_tokens.",
        r"attn\.branch\.(q|k|v)\w+\.": r"self_attn.\1_proj.",
        r"cross\.branch\.(q|k|v)\w+\.": r"encoder_attn.\1_proj.",
        r"attn\.branch\.out\.": "self_attn.out_proj.",
        r"cross\.branch\.out\.": "encoder_attn.out_proj.",
        r"attn\.(pre|post)\.": "self_attn_layer_norm.",
        r"cross\.(pre|post)\.": "encoder_attn_layer_norm.",
        r"ffn\.(pre|post)\.": "final_layer_norm.",
        r"ffn\.branch\.into\.": "fc1.",
        r"ffn\.branch\.out\.": "fc2.",
    }
    for pattern, other in parts.items():
        name = re.sub(pattern, other, name)
    return name


def build(path: str | None) -> Any:
    """The trained model, or a random one that hardly ever writes eos."""
    import torch

    from isograd.lab.evaluate.loading import load_translation_model
    from isograd.models import IsogradConfig, IsogradForSeq2SeqLM

    if path is not None:
        return load_translation_model(path, torch.float32)[0].eval()
    torch.manual_seed(0)
    model = IsogradForSeq2SeqLM(IsogradConfig(**SHAPE)).eval()
    with torch.no_grad():
        offset = torch.randn(SHAPE["hidden_size"])
        model.decoder.layers[-1].ffn.post.bias.copy_(offset)  # W h has W b in it:
        model.lm_head.weight[SHAPE["eos_token_id"]] = -offset  # -|b|^2 at eos
    return model
