"""What a run left, or a name on the hub -> a model and its tokenizer: one that translates, or a causal one."""

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
from isograd.convert.checkpoints.subwords import PairTokenizer
from isograd.errors import DataError, IsogradError, UnknownPlacement, first_line
from isograd.files import read_json
from isograd.hub import from_pretrained, model_folder, model_place
from isograd.models import IsogradConfig, IsogradForSeq2SeqLM
from isograd.trace.load import other_shapes

T = TypeVar("T")


def load_causal_model(name: str | Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """The model, on the CPU, and its tokenizer.

    Args:
        name: the folder of a run or of a model, or a model's name on the hub.

    Raises:
        DataError: no model there, none that reads from left to right, or one whose tokenizer is another's.
    """
    place = str(model_place(str(name)) or name)
    config = _loaded(name, lambda: from_pretrained(AutoConfig, place))
    _must_read_left_to_right(name, config)
    tokenizer = _loaded(name, lambda: from_pretrained(AutoTokenizer, place), "the tokenizer")
    model, _ = weights_in(AutoModelForCausalLM, place, name, dtype)
    _check_vocabulary(name, config, tokenizer, model.get_input_embeddings().weight.shape[0])
    model.config.use_cache = False  # nothing is generated
    return model.eval(), tokenizer


def empty_context(config: Any, tokenizer: Any) -> int | None:
    """The token that stands before a text without a context; None leaves it to the harness.

    The harness takes <s> where there is one. isograd's runs put </s> between documents and never show <s>.
    """
    return tokenizer.eos_token_id if config.model_type == "isograd" else None


def weights_in(
    kind: Any, place: str | Path, name: str | Path, dtype: torch.dtype, what: str = "the model"
) -> tuple[Any, list[str]]:
    """A model of this class with all its weights, and the names of weights there that it has no place for.

    Raises:
        DataError: it cannot be loaded, or weights are missing.
    """
    options = {"dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True}
    model, info = _loaded(name, lambda: from_pretrained(kind, place, **options), what)
    if shapes := other_shapes(info):
        raise DataError(f"{name}: {what} cannot be loaded ({shapes})")
    if info["missing_keys"]:
        raise DataError(f"{name}: weights are missing, such as {min(info['missing_keys'])}")
    return model, sorted(info["unexpected_keys"])


def _loaded(name: str | Path, load: Callable[[], T], what: str = "the model") -> T:
    try:
        return load()
    except Exception as error:  # of JSON, of safetensors, of tokenizers, and the hub's many kinds
        if isinstance(error, IsogradError) and not isinstance(error, UnknownPlacement):
            raise
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


def _check_vocabulary(name: str | Path, config: Any, tokenizer: Any, rows: int) -> None:
    """More ids than rows cannot be read. Fewer are common on the hub, where tables are rounded up; not in isograd."""
    ids = len(tokenizer)
    if ids > rows or (ids < rows and config.model_type == "isograd"):
        raise DataError(f"{name}: the vocabulary has {ids} ids, the model's table {rows} rows; one is not the other's")
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise DataError(f"{name}: the tokenizer has no start or end token, which stands for an empty context")


def load_translation_model(name: str | Path, dtype: torch.dtype) -> tuple[IsogradForSeq2SeqLM, PairTokenizer]:
    """The model, on the CPU, and its vocabularies.

    Args:
        name: the folder of a run or of its model, or a model's name on the Hugging Face hub.

    Raises:
        DataError: no model there, or none that translates.
    """
    folder = model_folder(name)
    tokenizer = _tokenizer(folder)
    _loaded(folder, lambda: own_config(folder / "config.json"))
    model: IsogradForSeq2SeqLM = weights_in(IsogradForSeq2SeqLM, folder, folder, dtype)[0]
    _check_sizes(folder, model, tokenizer)
    return model, tokenizer


def own_config(path: Path) -> dict[str, Any]:
    """What a config.json of isograd's says.

    Raises:
        OSError: it cannot be read; ValueError: it is not JSON, or of another library's model.
    """
    content = read_json(path)
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind != IsogradConfig.model_type:
        raise ValueError(f"model_type is {kind!r}, expected {IsogradConfig.model_type!r}")
    own: dict[str, Any] = content
    return own


def _tokenizer(folder: Path) -> PairTokenizer:
    if not (folder / "translation.json").is_file():
        raise DataError(f"{folder}: no translation.json in the model's folder; was it trained with task=translation?")
    return _loaded(folder, lambda: PairTokenizer.load(folder), "its vocabularies")


def _check_sizes(folder: Path, model: IsogradForSeq2SeqLM, tokenizer: PairTokenizer) -> None:
    for side, ids, stack in (("source", tokenizer.source, model.encoder), ("target", tokenizer.target, model.decoder)):
        rows = stack.embedding.tokens.weight.shape[0]
        if ids.vocab_size > rows:
            raise DataError(f"{folder}: the {side} vocabulary has {ids.vocab_size} ids, the model's table {rows} rows")
