"""Example inputs of a Hugging Face model: what its forward names, sized by its configuration."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

BATCH = 2
_LENGTH = 16
_TARGET = 12  # shorter than the source: a mix-up of the two is an error, not a number
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")


def of_pretrained(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """Keyword inputs, the likeliest first; later ones are shorter, end in the end token, or hold one sequence.

    Ids are drawn from the vocabulary without the ids that the configuration calls special.
    """
    config = model.config
    names = inspect.signature(model.forward).parameters
    main = model.main_input_name if model.main_input_name in names else next(iter(names))
    for length in _lengths(config):
        for batch, end in ((BATCH, False), (BATCH, True), (1, False)):
            inputs = _inputs(config, main, names, batch=batch, length=length, end=end)
            if inputs is None:
                return
            yield inputs
            if main != "input_ids":  # images and sound have one size
                return
            if "pixel_values" in names and hasattr(config, "vision_config"):  # two stacks side by side, as CLIP has
                yield inputs | {"pixel_values": _image(config.vision_config, batch)}


def _inputs(
    config: PretrainedConfig, main: str, names: Iterable[str], *, batch: int, length: int, end: bool
) -> dict[str, Tensor] | None:
    text = _text(config)
    if main == "input_ids" and _vocabulary(text):
        inputs = {"input_ids": _ids(text, batch, length, seed=0, end=end)}
        if "attention_mask" in names:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    elif main == "pixel_values":
        inputs = {"pixel_values": _image(getattr(config, "vision_config", config), batch)}
    elif main == "input_values":
        inputs = {"input_values": floats(batch, 4000)}
    elif main == "input_features" and hasattr(config, "num_mel_bins"):
        inputs = {"input_features": floats(batch, config.num_mel_bins, 2 * getattr(config, "max_source_positions", 50))}
    else:
        return None
    if config.is_encoder_decoder and "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = _ids(_text(config, decoder=True), batch, min(length, _TARGET), seed=1, end=end)
    return inputs


def _text(config: PretrainedConfig, *, decoder: bool = False) -> PretrainedConfig:
    """The part of a composite configuration that speaks of text."""
    nested = ("decoder", "text_config") if decoder else ("text_encoder", "encoder", "text_config", "decoder")
    for name in nested:
        part = getattr(config, name, None)
        if isinstance(part, PretrainedConfig) and _vocabulary(part):
            return part
    return config


def _vocabulary(config: PretrainedConfig) -> int | None:
    """Rows of the token table; of a config with one for the encoder and one for the decoder, the fewer."""
    rows = [getattr(config, name, None) for name in ("vocab_size", "encoder_vocab_size", "decoder_vocab_size")]
    return min((r for r in rows if isinstance(r, int)), default=None)


def _ids(config: PretrainedConfig, batch: int, length: int, *, seed: int, end: bool) -> Tensor:
    rows = _vocabulary(config) or 1
    special = set(_special(config))
    words = torch.tensor([i for i in range(rows) if i not in special] or [0])
    ids = words[torch.randint(len(words), (batch, length), generator=torch.Generator().manual_seed(seed))]
    last = config.eos_token_id
    if end and isinstance(last, int):
        ids[:, -1] = last
    return ids


def _special(config: PretrainedConfig) -> Iterator[int]:
    """Every id that the configuration gives a part of its own."""
    for name, value in config.to_dict().items():
        if name.endswith(("_token_id", "_token_index")) and value is not None:
            yield from value if isinstance(value, list) else [value]


def _lengths(config: PretrainedConfig) -> list[int]:
    """Sixteen, or what the positions hold; tables such as RoBERTa's lose a few rows, so shorter ones follow."""
    text = _text(config)
    positions = [getattr(text, name, None) for name in _POSITIONS]
    longest = min([p for p in positions if isinstance(p, int) and p > 0], default=_LENGTH)
    first = min(_LENGTH, longest)
    return [n for n in dict.fromkeys((first, first - 2, first // 2)) if n > 0]


def _image(config: Any, batch: int) -> Tensor:
    side = getattr(config, "image_size", None) or 224
    height, width = (side, side) if isinstance(side, int) else side
    return floats(batch, getattr(config, "num_channels", 3), height, width)


def floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
