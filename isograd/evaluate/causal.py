"""What a run left, or any causal language model of the Hugging Face hub -> the model and its tokenizer."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
)

import isograd.models  # noqa: F401  (registers isograd's with the Auto classes)
from isograd.data.text import first_line
from isograd.errors import DataError

T = TypeVar("T")

_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


def load_causal_model(name: str | Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """The model, on the CPU, and its tokenizer.

    Args:
        name: the folder of a run or of a model, or a model's name on the hub.

    Raises:
        DataError: no model there, none that reads from left to right, or one whose tokenizer is another's.
    """
    place = _place(name)
    config = _loaded(name, lambda: AutoConfig.from_pretrained(place))
    _must_read_left_to_right(name, config)
    tokenizer = _loaded(name, lambda: AutoTokenizer.from_pretrained(place), "the tokenizer")
    model, info = _loaded(
        name, lambda: AutoModelForCausalLM.from_pretrained(place, dtype=dtype, output_loading_info=True)
    )
    if info["missing_keys"]:
        raise DataError(f"{name}: weights are missing, such as {min(info['missing_keys'])}")
    _check_sizes(name, config, tokenizer, model.get_input_embeddings().weight.shape[0])
    model.config.use_cache = False  # nothing is generated
    return model.eval(), tokenizer


def empty_context(config: Any, tokenizer: Any) -> int | None:
    """The token that stands before a text without a context; None leaves it to the harness.

    The harness takes <s> where there is one. isograd's runs put </s> between documents and never show <s>.
    """
    return tokenizer.eos_token_id if config.model_type == "isograd" else None


def _place(name: str | Path) -> str:
    path = Path(name)
    if not path.exists():
        if _NAME.fullmatch(str(name)):
            return str(name)
        raise DataError(f"{name}: no such folder")
    for folder in (path, path / "model"):
        if (folder / "config.json").is_file():
            return str(folder)
    raise DataError(f"{path}: no config.json here or in model/; name the folder of a model, or of a run that has ended")


def _loaded(name: str | Path, load: Callable[[], T], what: str = "the model") -> T:
    try:
        return load()
    except Exception as error:  # of JSON, of safetensors, of tokenizers, and the hub's many kinds
        here = Path(name).exists()
        where = f"{what} cannot be loaded" if here else f"no such folder here, and on the hub {what} cannot be loaded"
        raise DataError(f"{name}: {where} ({first_line(error)})") from error


def _must_read_left_to_right(name: str | Path, config: Any) -> None:
    kind = next(iter(config.architectures or []), config.model_type)
    if config.is_encoder_decoder:
        raise DataError(f"{name}: {kind} is an encoder-decoder; zero-shot tasks score with a causal language model")
    both_ways = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    if both_ways or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise DataError(
            f"{name}: {kind} does not read from left to right; zero-shot tasks score with a causal language model"
        )


def _check_sizes(name: str | Path, config: Any, tokenizer: Any, rows: int) -> None:
    """More ids than rows cannot be read. Fewer are common on the hub, where tables are rounded up; not in isograd."""
    ids = len(tokenizer)
    if ids > rows or (ids < rows and config.model_type == "isograd"):
        raise DataError(f"{name}: the vocabulary has {ids} ids, the model's table {rows} rows; one is not the other's")
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise DataError(f"{name}: the tokenizer has no start or end token, which stands for an empty context")
