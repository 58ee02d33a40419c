"""The options of fairseq 0.12 and of Transformer-Clinic -> the configuration of an isograd model."""

from collections.abc import Iterable, Mapping
from typing import Any

from isograd.convert.checkpoints.weights import refuse
from isograd.convert.kinds import CAUSAL, MASKED, PAIR, ModelKind
from isograd.errors import InteropError
from isograd.models import IsogradConfig
from isograd.papers.fairseq import clinic
from isograd.placement import Stack
from isograd.placement.flags import flagged_name

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu_squared": "relu_squared",
}
FLAGS = {"A": "scale_attn", "H": "scale_heads", "F": "scale_fc", "R": "scale_resids"}
NAMED = {  # placements of the catalogue, by Pre-LN and flags
    (False, ""): "post-ln",
    (True, ""): "pre-ln",
    (True, "AHF"): "normformer-fairseq",
    (True, "AHFR"): "normformer-fairseq-resscale",
    (True, "APF"): "normformer",
    (True, "APFR"): "normformer-resscale",
}
OTHER_NETWORKS = (  # options that change the network into one that isograd does not have
    "adaptive_input",
    "adaptive_softmax_cutoff",
    "alibi",
    "base_layers",
    "character_embeddings",
    "cross_self_attention",
    "decoder_layers_to_keep",
    "encoder_layers_to_keep",
    "decoder_xformers_att_config",
    "encoder_xformers_att_config",
    "no_cross_attention",
    "tie_adaptive_weights",
)
OFF: tuple[Any, ...] = (None, False, 0, "", "None", [], ())  # values of an option that is not in use
_SIZES = ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
_OF_THE_ENCODER = {
    "placement": "placement",
    "embed_dim": "hidden_size",
    "ffn_embed_dim": "intermediate_size",
    "attention_heads": "num_attention_heads",
    "positions": "position_embedding_type",
    "longest": "max_position_embeddings",
}


def options_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """One flat mapping of the options.

    Args:
        config: options by name, or with the options under "config" or "model" and what belongs to them (vocabulary
            size, special ids) beside; those of a stack may lie under "encoder" and "decoder".
    """
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if name in ("config", "model") and isinstance(value, Mapping):
            flat |= {k: v for k, v in options_of(value).items() if k not in flat or name == "config"}
        elif name in ("encoder", "decoder") and isinstance(value, Mapping):
            flat |= {f"{name}_{option}": v for option, v in value.items()}
        else:
            flat[name] = value
    return flat


def config_from_fairseq(
    options: Mapping[str, Any],
    vocab_size: int,
    *,
    encoder_vocab_size: int | None = None,
    input_size: int | None = None,
    output_size: int | None = None,
    admin: bool = False,
    final: bool = True,
    learned: Mapping[Stack, int] | None = None,
) -> IsogradConfig:
    """The configuration that the options describe.

    Args:
        options: flat, by the original's names; with decoder_layers a language model, with encoder_layers a masked one,
            with both a translator. Ids of `pad`, `bos`, `eos` may stand among them; else 1, 0, 2.
        vocab_size: rows of the (decoder's) token table.
        encoder_vocab_size: rows of the encoder's, where it has its own.
        input_size, output_size: width of the decoder's token vectors, and of what its head reads, where it is another.
        admin: the weights have ADMIN's ratio vectors.
        final: False where a Pre-LN decoder's weights have no norm after the last layer, as in fairseq before 0.4.
        learned: stack -> positions of a stored table, where it is not the one that isograd would compute.

    Raises:
        InteropError: an option that isograd has no place for, or one that is missing, by its name.
    """
    kind = described(options)
    stacks: tuple[Stack, ...] = ("encoder", "decoder") if kind == PAIR else (_side(kind),)
    _refuse_missing(options, stacks, kind)
    _refuse_other_networks(options)
    admin = clinic.is_admin(options) or admin
    pad = int(options.get("pad", 1))
    of = {stack: _stack(options, stack, kind, admin, final, (learned or {}).get(stack)) for stack in stacks}
    main = of[stacks[-1]]
    shared = bool(options.get("share_all_embeddings"))
    tied = bool(options.get("share_decoder_input_output_embed", False)) or shared
    dropout = options.get("dropout", 0.0)
    return IsogradConfig(
        **{ours: main[theirs] for theirs, ours in _OF_THE_ENCODER.items()},
        vocab_size=vocab_size,
        num_hidden_layers=main["layers"],
        hidden_act=ACTIVATIONS[options.get("activation_fn", "gelu")],
        norm_eps=1e-5,  # fairseq has no other
        position_offset=pad + 1,
        scale_embedding=not options.get("no_scale_embedding", kind == MASKED),
        embedding_norm=bool(options.get("layernorm_embedding", kind == MASKED)),
        hidden_dropout=dropout,
        embedding_dropout=dropout,
        attention_dropout=options.get("attention_dropout", 0.0),
        activation_dropout=options.get("activation_dropout", 0.0) or options.get("relu_dropout", 0.0),
        tie_word_embeddings=not options.get("untie_weights_roberta") if kind == MASKED else tied,
        encoder_layers=of["encoder"]["layers"] if kind == PAIR else None,
        encoder_vocab_size=None if shared else encoder_vocab_size,
        encoder_options=_differing(of["encoder"], main) if kind == PAIR else None,
        share_encoder_embeddings=shared,
        is_decoder=kind == CAUSAL,
        input_size=input_size,
        output_size=output_size,
        calibration={"method": "fairseq"} if admin else None,  # the skips come with the weights
        bos_token_id=int(options.get("bos", 0)),
        pad_token_id=pad,
        eos_token_id=int(options.get("eos", 2)),
        decoder_start_token_id=int(options.get("eos", 2)),
    )


def described(options: Mapping[str, Any]) -> ModelKind:
    """What the options describe: a language model, a masked one, a translator."""
    stacks = [stack for stack in ("encoder", "decoder") if options.get(f"{stack}_layers") is not None]
    if not stacks:
        raise InteropError("neither encoder_layers nor decoder_layers among the options")
    return PAIR if len(stacks) == 2 else MASKED if stacks == ["encoder"] else CAUSAL


def normed_before(options: Mapping[str, Any], stack: str) -> bool:
    """Whether a stack is Pre-LN."""
    return bool(options.get(f"{stack}_normalize_before", False))


def scales_before_projection(options: Mapping[str, Any]) -> bool:
    """Whether heads are scaled in the paper's place, which no option of fairseq's says."""
    place = str(options.get("headscale_position", "")).lower()
    return "paper" in place or "before" in place


def _side(kind: ModelKind) -> Stack:
    return "encoder" if kind == MASKED else "decoder"


def _stack(
    options: Mapping[str, Any], stack: Stack, kind: ModelKind, admin: bool, final: bool, stored: int | None
) -> dict[str, Any]:
    """What a stack is built from, by the keys of `_OF_THE_ENCODER`, and its layers."""
    learned = options.get(f"{stack}_learned_pos", kind == MASKED)
    positions = "learned" if learned else "sinusoidal"
    return {
        **{name: int(options[f"{stack}_{name}"]) for name in _SIZES},
        "placement": _placement(options, stack, kind, admin, final),
        "positions": "none" if options.get("no_token_positional_embeddings") else "learned" if stored else positions,
        "longest": stored or _longest(options, stack, kind),
    }


def _placement(options: Mapping[str, Any], stack: Stack, kind: ModelKind, admin: bool, final: bool) -> str:
    pre, flags = normed_before(options, stack), _flags(options, stack)
    if admin:
        if pre or flags:
            found = (
                f"{stack}_normalize_before" if pre else ", ".join(FLAGS[letter.replace("P", "H")] for letter in flags)
            )
            raise InteropError(f"ADMIN's ratios are for Post-LN without NormFormer's changes, and {found} is set")
        return "admin"
    ends = stack == "encoder" or (final and not options.get("no_decoder_final_norm"))
    if (pre, flags) in NAMED and (ends or not pre):
        return NAMED[pre, flags]
    return flagged_name(pre=pre, flags=flags, final=pre and ends)


def _flags(options: Mapping[str, Any], stack: Stack) -> str:
    """Letters of NormFormer's changes in a stack; P in place of H where heads are scaled before W_O."""
    prefix = "enc_" if stack == "encoder" else ""
    letters = "".join(letter for letter, name in FLAGS.items() if options.get(prefix + name))
    return letters.replace("H", "P") if scales_before_projection(options) else letters


def _differing(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, Any] | None:
    changes = {ours: encoder[theirs] for theirs, ours in _OF_THE_ENCODER.items() if encoder[theirs] != decoder[theirs]}
    if encoder["positions"] != "learned":
        changes.pop("max_position_embeddings", None)  # of no table, and of nothing that is built
    return changes or None


def _longest(options: Mapping[str, Any], stack: Stack, kind: ModelKind) -> int:
    """The longest sequence of a stack."""
    names = {
        MASKED: ("max_positions", "tokens_per_sample"),
        CAUSAL: ("max_target_positions", "tokens_per_sample"),
        PAIR: ("max_source_positions" if stack == "encoder" else "max_target_positions",),
    }[kind]
    return next((int(options[name]) for name in names if options.get(name) is not None), 1024)


def _refuse_missing(options: Mapping[str, Any], stacks: Iterable[Stack], kind: ModelKind) -> None:
    """Options that weights do not show, and that no default of fairseq's settles."""
    names = [f"{stack}_{name}" for stack in stacks for name in _SIZES]
    if kind != MASKED:
        names += [*(f"{stack}_normalize_before" for stack in stacks), "activation_fn"]
    refuse("options that are missing", [name for name in names if options.get(name) is None])
    activation = options.get("activation_fn", "gelu")
    if activation not in ACTIVATIONS:
        raise InteropError(f"activation_fn={activation!r}; expected one of {', '.join(ACTIVATIONS)}")


def _refuse_other_networks(options: Mapping[str, Any]) -> None:
    found = [f"{name}={options[name]}" for name in OTHER_NETWORKS if options.get(name) not in OFF]
    refuse("options of a network that isograd does not have", found)
