"""What a run left, or a name on the hub -> shape, tokenizer and weights of a model that is to be fine-tuned."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from isograd.data.text import file_sha256, first_line
from isograd.data.tokenizers import reads_text
from isograd.errors import DataError, RecipeError, UnknownPlacement
from isograd.evaluate.loading import model_folder, own_config
from isograd.hub import from_pretrained
from isograd.models import IsogradConfig, IsogradModel

_HEADS = ("head.", "lm_head.", "next_sentence.", "dense.", "classifier.")  # of our models; none is taken over
_SHAPE = ("config.json", "tokenizer.json")


@dataclass(frozen=True, kw_only=True)
class PreTrained:
    """A model of one stack that lies in a folder.

    Attributes:
        pad, begin, end: ids of <pad>, <s> and </s>.
    """

    name: str
    folder: Path
    config: IsogradConfig
    tokenizer: PreTrainedTokenizerFast
    pad: int
    begin: int
    end: int

    @property
    def reader(self) -> Tokenizer:
        """The tokenizer as it encodes plain text."""
        return reads_text(self.tokenizer.backend_tokenizer)

    @cached_property
    def shape_sha256(self) -> str:
        """Of all but the weights."""
        return _together([self.folder / name for name in _SHAPE])

    @cached_property
    def sha256(self) -> str:
        """Of the weights too."""
        return _together([*(self.folder / name for name in _SHAPE), *sorted(self.folder.glob("*.safetensors"))])

    @cached_property
    def stack(self) -> IsogradModel:
        """The pre-trained weights without their head, in fp32, on the CPU.

        Raises:
            DataError: weights are missing or not finite, or there are others than those of a stack and its head.
        """
        try:
            stack, info = from_pretrained(IsogradModel, self.folder, dtype=torch.float32, output_loading_info=True)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise DataError(f"{self.name}: the weights cannot be loaded ({first_line(error)})") from error
        if info["missing_keys"]:
            raise DataError(f"{self.name}: weights are missing, such as {min(info['missing_keys'])}")
        bad = [name for name, weight in stack.named_parameters() if not weight.isfinite().all()]
        if bad:
            raise DataError(f"{self.name}: weights are not finite, such as {bad[0]}; has its run diverged?")
        strange = [key for key in info["unexpected_keys"] if not key.startswith(_HEADS)]
        if strange:
            raise DataError(f"{self.name}: holds weights that this shape has not, such as {min(strange)}")
        found: IsogradModel = stack
        return found

    def pair_tokenizer(self, length: int) -> PreTrainedTokenizerFast:
        """The tokenizer, which of itself makes <s> A </s> or <s> A </s> B </s>, as a fine-tuned model reads it."""
        types = ["token_type_ids"] if self.config.type_vocab_size else []
        inputs = {"model_input_names": ["input_ids", *types, "attention_mask"], "model_max_length": length}
        tokenizer: PreTrainedTokenizerFast = from_pretrained(PreTrainedTokenizerFast, self.folder, **inputs)
        begin, end = (tokenizer.convert_ids_to_tokens(i) for i in (self.begin, self.end))
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {end} $B:1 {end}:1",
            special_tokens=[(begin, self.begin), (end, self.end)],
        )
        return tokenizer


def find_pretrained(name: str) -> PreTrained:
    """Shape and tokenizer, without the weights.

    Args:
        name: the folder of a run or of its model, or a model's name on the Hugging Face hub.

    Raises:
        DataError: no model there, or none that can be fine-tuned here.
    """
    folder = model_folder(name)
    config = _config(name, folder)
    tokenizer = _tokenizer(name, folder)
    if len(tokenizer) > config.vocab_size:
        raise DataError(
            f"{name}: its tokenizer has {len(tokenizer)} tokens, and the model's table {config.vocab_size} rows;"
            " they are of two different runs"
        )
    return PreTrained(name=name, folder=folder, config=config, tokenizer=tokenizer, **_special(name, config))


def config_here(name: str) -> IsogradConfig:
    """The configuration of a model's folder, or of a run's, without asking the hub.

    Raises:
        RecipeError: none is here, or it is not one of ours.
    """
    for path in (Path(name) / "config.json", Path(name) / "model" / "config.json"):
        if path.is_file():
            try:
                return IsogradConfig.from_dict(own_config(path))
            except (ValueError, TypeError, KeyError, UnknownPlacement) as error:
                raise RecipeError(f"glue.model={name}: {path} is no configuration of ours ({error})") from error
    raise RecipeError(f"glue.model={name}: no config.json here or in model/, so the shape is not known before training")


def _config(name: str, folder: Path) -> IsogradConfig:
    try:
        own_config(folder / "config.json")
        config: IsogradConfig = from_pretrained(IsogradConfig, folder)
    except (OSError, ValueError, UnknownPlacement) as error:
        raise DataError(f"{name}: its config.json cannot be read ({first_line(error)})") from error
    if config.is_encoder_decoder:
        raise DataError(f"{name}: is an encoder-decoder; fine-tuning takes a model of one stack, masked or causal")
    return config


def _special(name: str, config: IsogradConfig) -> dict[str, int]:
    found = {"pad": config.pad_token_id, "begin": config.bos_token_id, "end": config.eos_token_id}
    for role, id_ in found.items():
        if id_ is None:
            raise DataError(f"{name}: its config.json has no id of the token {role!r}, which every sequence needs")
    return {role: id_ for role, id_ in found.items() if id_ is not None}


def _tokenizer(name: str, folder: Path) -> PreTrainedTokenizerFast:
    if not (folder / "tokenizer.json").is_file():
        raise DataError(f"{name}: no tokenizer.json beside the model")
    try:
        found: PreTrainedTokenizerFast = from_pretrained(PreTrainedTokenizerFast, folder)
        return found
    except Exception as error:  # of JSON, of a key, and what the tokenizers library raises, which is an Exception
        raise DataError(f"{name}: its tokenizer cannot be loaded ({first_line(error)})") from error


def _together(files: list[Path]) -> str:
    return hashlib.sha256(json.dumps([file_sha256(file) for file in files]).encode()).hexdigest()
