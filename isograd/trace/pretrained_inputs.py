"""Example inputs of a Hugging Face model: what its forward names, sized by its configuration."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

BATCH = 2
_LENGTH = 16
_TARGET = 12  # shorter than the source: a mix-up of the two is an error, not a number
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
_MAINS = (  # what a forward may begin with, in the order of trying
    "input_ids", "pixel_values", "input_features", "input_values", "pixel_values_videos", "flattened_patches",
    "past_values", "inputs_embeds", "hidden_states", "hidden_state", "x", "inputs", "latents",
)  # fmt: skip
_MELS = ("num_mel_bins", "feature_size", "n_mels", "input_feat_per_channel", "feat_dim", "input_dim", "hidden_size")
_TIMES = (64, 100, 128, 256, 1024, 3000)  # frames of a spectrogram
_SAMPLES = (4000, 16000, 24000)
_TRIES = 30

Inputs = dict[str, Any]


def of_pretrained(model: PreTrainedModel) -> Iterator[Inputs]:
    """Keyword inputs, the likeliest first; later ones are shorter, end in the end token, hold one sequence, begin with
    another of the arguments, or keep no cache.

    Ids are drawn from the vocabulary without the ids that the configuration calls special.
    """
    names = inspect.signature(model.forward).parameters
    needed = [n for n, p in names.items() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    main = model.main_input_name  # a list of two in OneFormer
    first = main if isinstance(main, str) and main in names else next(iter(names), "")
    mains = list(dict.fromkeys([first, *needed, *(n for n in _MAINS if n in names)]))
    for main in mains:
        masks = [n for n in names if n.endswith("mask") and "past" not in n and "head" not in n]
        for more in (needed, needed + masks) if main != "input_ids" and masks else (needed,):
            for inputs in islice(_by_main(model.config, main, names), _TRIES):
                yield _completed(model.config, inputs, more)
    if "use_cache" in names:
        for main in mains[:1]:
            for inputs in islice(_by_main(model.config, main, names), 1):
                yield _completed(model.config, inputs, needed) | {"use_cache": False}


def _by_main(config: PretrainedConfig, main: str, names: Iterable[str]) -> Iterator[Inputs]:
    if main == "input_ids":
        yield from _texts(config, names)
        return
    makers = {
        "pixel_values": _pictures,
        "pixel_values_videos": _pictures,
        "input_features": _spectrograms,
        "input_values": _sounds,
        "flattened_patches": _patches,
        "past_values": _series,
    }
    grid = next((n for n in names if n.endswith("grid_thw")), None)
    if grid is not None and main in ("hidden_states", "pixel_values"):
        patches = [value for value in _pictures(config) if value.ndim == 2]
        yield from ({main: value, grid: torch.tensor([[1, 4, 4]])} for value in patches)
    for value in makers.get(main, _vectors)(config):
        inputs = {main: value}
        if config.is_encoder_decoder and "decoder_input_ids" in names:
            inputs["decoder_input_ids"] = _ids(_text(config, decoder=True), len(value), _TARGET, seed=1, end=False)
        if "grid_thw" in names and value.ndim == 2:
            inputs |= {"grid_thw": torch.tensor([[1, 4, 4]])}
        yield inputs


def _texts(config: PretrainedConfig, names: Iterable[str]) -> Iterator[Inputs]:
    text = _text(config)
    if not _vocabulary(text):
        return
    for length in _lengths(config):
        for batch, end in ((BATCH, False), (BATCH, True), (1, False)):
            inputs = {"input_ids": _ids(text, batch, length, seed=0, end=end)}
            if "attention_mask" in names:
                inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if config.is_encoder_decoder and "decoder_input_ids" in names:
                target = min(length, _TARGET)
                inputs["decoder_input_ids"] = _ids(_text(config, decoder=True), batch, target, seed=1, end=end)
            yield inputs
            if "pixel_values" in names and hasattr(config, "vision_config"):  # two stacks side by side, as CLIP has
                for pictures in islice(_pictures(config), 2 if length == _lengths(config)[0] else 1):
                    yield inputs | {"pixel_values": pictures[:batch]}
            for other, make in (("input_features", _spectrograms), ("input_values", _sounds)):
                if other in names and hasattr(config, "audio_config") and length == _lengths(config)[0]:
                    yield inputs | {other: next(make(config))[:batch]}


def _completed(config: PretrainedConfig, inputs: Inputs, needed: list[str]) -> Inputs:
    """With what else forward needs: masks of ones, ids, an image, positions."""
    batch, time = (*next(iter(inputs.values())).shape, 1)[:2]
    made: Inputs = {}
    for name in needed:
        if name in inputs:
            continue
        if "mask" in name:
            made[name] = torch.ones(_masked_shape(inputs, batch, time), dtype=torch.long)
        elif name.endswith("input_ids"):
            made[name] = _ids(_text(config), batch, min(time, 8), seed=2, end=False)
        elif name.startswith("pixel_values"):
            made[name] = next(_pictures(config))[:batch]
        elif name == "past_time_features":
            made[name] = floats(batch, time, getattr(config, "num_time_features", 1) or 1, seed=3)
    return inputs | made


def _masked_shape(inputs: Inputs, batch: int, time: int) -> tuple[int, ...]:
    """Of a mask: a number per position; of images (batch, height, width), of a series the shape of its values."""
    if "pixel_values" in inputs:
        return (batch, *inputs["pixel_values"].shape[-2:])
    if "past_values" in inputs:
        return tuple(inputs["past_values"].shape)
    features = inputs.get("input_features")
    if features is not None and features.ndim == 3:
        return (batch, max(features.shape[1:]))
    return (batch, time)


def _text(config: PretrainedConfig, *, decoder: bool = False) -> PretrainedConfig:
    """The part of a composite configuration that speaks of text, at any depth."""
    nested = ("decoder", "text_config") if decoder else ("text_encoder", "encoder", "text_config", "decoder")
    parts = [getattr(config, name, None) for name in nested]
    parts += [] if _vocabulary(config) else list(vars(config).values())
    for part in parts:
        if isinstance(part, PretrainedConfig):
            if _vocabulary(part):
                return part
            if _vocabulary(found := _text(part, decoder=decoder)):
                return found
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
    last = getattr(config, "eos_token_id", None)
    if end and isinstance(last, int):
        ids[:, -1] = last
    return ids


def _special(config: PretrainedConfig) -> Iterator[int]:
    """Every id that the configuration gives a part of its own."""
    for name, value in config.to_dict().items():
        if isinstance(name, str) and name.endswith(("_token_id", "_token_index")) and value is not None:
            yield from value if isinstance(value, list) else [value]


def _lengths(config: PretrainedConfig) -> list[int]:
    """Sixteen, or what the positions hold; tables such as RoBERTa's lose a few rows, so shorter ones follow."""
    text = _text(config)
    positions = [getattr(text, name, None) for name in _POSITIONS]
    longest = min([p for p in positions if isinstance(p, int) and p > 0], default=_LENGTH)
    first = min(_LENGTH, longest)
    return [n for n in dict.fromkeys((first, first - 2, first // 2)) if n > 0]


def _pictures(config: PretrainedConfig) -> Iterator[Tensor]:
    """Images, then videos, then images cut into flat patches, four by four; of the size that a configuration names."""
    vision = _part(config, ("vision_config", "image_config", "vision_encoder_config", "backbone_config"))
    side = _first(vision, ("image_size", "img_size", "crop_size")) or _first(config, ("image_size",)) or 224
    channels = _first(vision, ("num_channels", "in_channels", "in_chans", "num_image_channels")) or 3
    frames = _first(vision, ("num_frames", "frames_per_clip", "clip_frames", "tubelet_size")) or 4
    sides = dict.fromkeys(((side, side) if isinstance(side, int) else tuple(side)[-2:], (64, 64), (224, 224)))
    patch = _first(vision, ("patch_size", "spatial_patch_size")) or 14
    patch = patch if isinstance(patch, int) else patch[-1]
    for height, width in sides:
        yield floats(BATCH, channels, height, width)
        yield floats(BATCH, frames, channels, height, width)
        yield floats(BATCH, 2, channels, height, width)
        yield floats(BATCH, channels, frames, height, width)
    for times in dict.fromkeys((_first(vision, ("temporal_patch_size",)) or 1, 1, 2)):
        yield floats(16, channels * times * patch * patch)


def _spectrograms(config: PretrainedConfig) -> Iterator[Tensor]:
    """(batch, mel, time) and (batch, time, mel), the time that the configuration names first."""
    audio = _part(config, ("audio_config", "encoder_config", "speech_config", "audio_encoder_config", "encoder"))
    for part in (audio, config)[: 1 if audio is config else 2]:
        sizes: list[Any] = [getattr(part, name, None) for name in _MELS]
        bands = list(dict.fromkeys(b for b in sizes if isinstance(b, int) and b > 0))[:2]
        named = getattr(part, "max_source_positions", None)
        times = [2 * named] if isinstance(named, int) else []
        for mel in bands:
            for time in dict.fromkeys((*times, *_TIMES[:3])):
                yield floats(BATCH, mel, time)
                yield floats(BATCH, time, mel)


def _sounds(config: PretrainedConfig) -> Iterator[Tensor]:
    """Samples; samples with a channel; a spectrogram of the length that the configuration names."""
    length, mel = (_first(config, names) for names in (("max_length", "spectrogram_length"), ("num_mel_bins",)))
    if isinstance(mel, int) and hasattr(config, "patch_size"):
        yield floats(BATCH, length if isinstance(length, int) and length > 20 else 1024, mel)
    for samples in _SAMPLES:
        yield floats(BATCH, samples)
        yield floats(BATCH, getattr(config, "audio_channels", None) or 1, samples)


def _patches(config: PretrainedConfig) -> Iterator[Tensor]:
    """Pix2Struct's: a row and a column before the pixels of each patch, from 1."""
    vision = _part(config, ("vision_config",))
    pixels = getattr(vision, "patch_embed_hidden_size", None) or 3 * 16 * 16
    patches = floats(BATCH, 16, pixels + 2)
    patches[..., :2] = torch.arange(1, 17).view(1, 16, 1)
    yield patches


def _series(config: PretrainedConfig) -> Iterator[Tensor]:
    """(batch, time, channels), the lags that a model looks back to in front."""
    lags = getattr(config, "lags_sequence", None) or [0]
    length = (_first(config, ("context_length",)) or 32) + max(lags)
    channels = _first(config, ("num_input_channels", "input_size")) or 1
    yield floats(BATCH, length) if channels == 1 and lags != [0] else floats(BATCH, length, channels)
    yield floats(BATCH, length, channels)
    yield floats(BATCH, length)


def _vectors(config: PretrainedConfig) -> Iterator[Tensor]:
    """Hidden states of a width that the configuration names; flat ones, then with channels in front, then ids."""
    names = ("hidden_size", "d_model", "embed_dim", "width", "dim", "in_channels", "input_dim", "latent_dim")
    widths = [getattr(part, name, None) for part in (config, _part(config, ("text_config",))) for name in names]
    for width in dict.fromkeys(w for w in widths if isinstance(w, int)):
        yield floats(BATCH, _LENGTH, width)
        yield floats(_LENGTH, width)
        yield floats(BATCH, width, _LENGTH)
    if _vocabulary(_text(config)):
        yield _ids(_text(config), BATCH, _LENGTH, seed=0, end=False)
    yield from islice(_pictures(config), 2)


def _part(config: PretrainedConfig, names: Iterable[str]) -> PretrainedConfig:
    """The first part of a composite configuration of one of these names, at any depth; else the whole."""
    for name in names:
        part = getattr(config, name, None)
        if isinstance(part, PretrainedConfig):
            return _part(part, names)
    return config


def _first(config: PretrainedConfig, names: Iterable[str]) -> Any:
    """The first setting of these names that has a value."""
    values = (getattr(config, name, None) for name in names)
    return next((v for v in values if v and not isinstance(v, Mapping | str)), None)


def floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
