"""The options of fairseq 0.12 and of Transformer-Clinic -> the configuration of an isograd model."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from isograd.models import IsogradConfig

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu_squared": "relu_squared",
}
FLAGS = {"A": "scale_attn", "H": "scale_heads", "F": "scale_fc", "R": "scale_resids"}
PLACEMENTS = {
    (False, ""): "post-ln",
    (True, ""): "pre-ln",
    (True, "AHF"): "normformer-fairseq",
    (True, "AHFR"): "normformer-fairseq-resscale",
}
OTHER_NETWORKS = (  # options that change the network into one that isograd does not have
    "adaptive_input",
    "adaptive_softmax_cutoff",
    "alibi",
    "character_embeddings",
    "cross_self_attention",
    "no_cross_attention",
    "no_decoder_final_norm",
)


def config_from_fairseq(
    options: Mapping[str, Any],
    vocab_size: int,
    *,
    encoder_vocab_size: int | None = None,
    placement: str | None = None,
    pad: int = 1,
    bos: int = 0,
    eos: int = 2,
) -> IsogradConfig:
    """The configuration that fairseq's options describe.

    Args:
        options: with decoder_layers a language model, with encoder_layers a masked one, with both a translator.
        vocab_size: rows of the (decoder's) token table.
        encoder_vocab_size: rows of the encoder's, where it has its own.
        placement: a name in the catalogue in place of what the options say.
        pad, bos, eos: ids; positions begin behind pad, and a decoder with eos.

    Raises:
        ValueError: an option that isograd has no place for, by its name.
    """
    kind = kind_of(options)
    side = "encoder" if kind == "masked" else "decoder"
    sizes = (f"{side}_{name}" for name in ("embed_dim", "ffn_embed_dim", "attention_heads"))
    refuse("options that are missing", [name for name in sizes if name not in options])
    _refuse_other_networks(options, side)
    if kind == "pair":
        _refuse_unequal_towers(options)
        if placement is None and _flags(options):
            raise ValueError(
                f"{', '.join(_flags(options).values())}: fairseq scales in a translator's decoder only, and no"
                " placement does; pass placement= if both towers were built with it"
            )
    shared = bool(options.get("share_all_embeddings"))
    tied = options.get("share_decoder_input_output_embed", False) or shared
    dropout = options.get("dropout", 0.0)
    learned = options.get(f"{side}_learned_pos", kind == "masked")
    activation = options.get("activation_fn", "relu")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation_fn={activation!r}; expected one of {', '.join(ACTIVATIONS)}")
    return IsogradConfig(
        placement=placement or _placement(options, side),
        vocab_size=vocab_size,
        hidden_size=options[f"{side}_embed_dim"],
        num_hidden_layers=options[f"{side}_layers"],
        num_attention_heads=options[f"{side}_attention_heads"],
        intermediate_size=options[f"{side}_ffn_embed_dim"],
        hidden_act=ACTIVATIONS[activation],
        position_embedding_type=(
            "none" if options.get("no_token_positional_embeddings") else "learned" if learned else "sinusoidal"
        ),
        position_offset=pad + 1,
        max_position_embeddings=_longest(options, kind),
        scale_embedding=not options.get("no_scale_embedding", False),
        embedding_norm=bool(options.get("layernorm_embedding", False)),
        hidden_dropout=dropout,
        embedding_dropout=dropout,
        attention_dropout=options.get("attention_dropout", 0.0),
        activation_dropout=options.get("activation_dropout", 0.0) or options.get("relu_dropout", 0.0),
        tie_word_embeddings=not options.get("untie_weights_roberta") if kind == "masked" else bool(tied),
        encoder_layers=options["encoder_layers"] if kind == "pair" else None,
        encoder_vocab_size=None if shared else encoder_vocab_size,
        share_encoder_embeddings=shared,
        is_decoder=kind == "causal",
        bos_token_id=bos,
        pad_token_id=pad,
        eos_token_id=eos,
        decoder_start_token_id=eos,
    )


def kind_of(options: Mapping[str, Any]) -> Literal["causal", "masked", "pair"]:
    """What the options describe: a language model, a masked one, a translator."""
    towers = [tower for tower in ("encoder", "decoder") if options.get(f"{tower}_layers") is not None]
    if not towers:
        raise ValueError("neither encoder_layers nor decoder_layers among the options")
    return "pair" if len(towers) == 2 else "masked" if towers == ["encoder"] else "causal"


def refuse(what: str, names: Iterable[str]) -> None:
    """Raise ValueError with all names, where there are any."""
    if names := sorted(names):
        raise ValueError(f"{what}: {', '.join(names)}")


def _flags(options: Mapping[str, Any]) -> dict[str, str]:
    return {letter: name for letter, name in FLAGS.items() if options.get(name)}


def _placement(options: Mapping[str, Any], side: str) -> str:
    if str(options.get("init_type", "")).startswith("adaptive"):
        return "admin"
    key = bool(options.get(f"{side}_normalize_before", False)), "".join(_flags(options))
    if key not in PLACEMENTS:
        raise ValueError(
            f"no placement has {side}_normalize_before={key[0]} with {', '.join(_flags(options).values())}:"
            " register one and pass placement="
        )
    return PLACEMENTS[key]


def _longest(options: Mapping[str, Any], kind: str) -> int:
    """The longest sequence; of targets in a translator."""
    names = ("max_positions",) if kind == "masked" else ("max_target_positions", "tokens_per_sample")
    return next((options[name] for name in names if options.get(name) is not None), 1024)


def _refuse_other_networks(options: Mapping[str, Any], side: str) -> None:
    found = [f"{name}={options[name]}" for name in OTHER_NETWORKS if options.get(name)]
    width = options[f"{side}_embed_dim"]
    sizes = (f"{side}_input_dim", f"{side}_output_dim")
    found += [f"{name}={options[name]}" for name in sizes if options.get(name) not in (None, width)]
    refuse("options of a network that isograd does not have", found)


def _refuse_unequal_towers(options: Mapping[str, Any]) -> None:
    names = ["embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos"]
    pairs = [(f"encoder_{name}", f"decoder_{name}") for name in names]
    if options.get("decoder_learned_pos"):
        pairs.append(("max_source_positions", "max_target_positions"))
    found = [f"{a}={options.get(a)} and {b}={options.get(b)}" for a, b in pairs if options.get(a) != options.get(b)]
    refuse("options in which the towers of an isograd model cannot differ", found)
