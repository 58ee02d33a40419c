"""What a run left, or a name on the hub -> a model that translates, and its vocabularies."""

import json
import re
from pathlib import Path

import torch
from safetensors import SafetensorError

from isograd.data.subwords import PairTokenizer
from isograd.data.text import first_line
from isograd.errors import DataError, UnknownPlacement
from isograd.models import IsogradForSeq2SeqLM

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ["*.json", "*.safetensors"]


def load_translation_model(name: str | Path, dtype: torch.dtype) -> tuple[IsogradForSeq2SeqLM, PairTokenizer]:
    """The model, on the CPU, and its vocabularies.

    Args:
        name: the folder of a run or of its model, or a model's name on the Hugging Face hub.

    Raises:
        DataError: no model there, or none that translates.
    """
    folder = model_folder(name)
    tokenizer = _tokenizer(folder)
    model = _model(folder, dtype)
    _check_sizes(folder, model, tokenizer)
    return model, tokenizer


def model_folder(name: str | Path) -> Path:
    """Where the files of a model are: in the folder of a run or of its model, or fetched from the hub.

    Raises:
        DataError: no model there.
    """
    path = Path(name)
    if not path.exists():
        return _download(str(name))
    for folder in (path, path / "model"):
        if (folder / "config.json").is_file():
            return folder
    raise DataError(f"{path}: no config.json here or in model/; name the folder of a model, or of a run that has ended")


def _download(name: str) -> Path:
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise DataError(f"{name}: no such folder")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # the hub raises many kinds; a user needs one line
        raise DataError(
            f"{name}: no such folder here, and on the hub it cannot be loaded: {first_line(error)}"
        ) from error


def _tokenizer(folder: Path) -> PairTokenizer:
    if not (folder / "translation.json").is_file():
        raise DataError(f"{folder}: no translation.json beside the model; was it trained with task=translation?")
    try:
        return PairTokenizer.load(folder)
    except Exception as error:  # of JSON, of a key, and what the tokenizers library raises, which is an Exception
        raise DataError(f"{folder}: its vocabularies cannot be loaded ({first_line(error)})") from error


def _model(folder: Path, dtype: torch.dtype) -> IsogradForSeq2SeqLM:
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = content.get("model_type") if isinstance(content, dict) else None
        if kind != "isograd":
            raise ValueError(f"model_type is {kind!r}, expected 'isograd'")
        model, info = IsogradForSeq2SeqLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    except (OSError, ValueError, RuntimeError, SafetensorError, UnknownPlacement) as error:
        raise DataError(f"{folder}: the model cannot be loaded ({first_line(error)})") from error
    if info["missing_keys"]:
        raise DataError(f"{folder}: weights are missing, such as {min(info['missing_keys'])}")
    return model


def _check_sizes(folder: Path, model: IsogradForSeq2SeqLM, tokenizer: PairTokenizer) -> None:
    for side, ids, stack in (("source", tokenizer.source, model.encoder), ("target", tokenizer.target, model.decoder)):
        rows = stack.embedding.tokens.weight.shape[0]
        if ids.vocab_size > rows:
            raise DataError(f"{folder}: the {side} vocabulary has {ids.vocab_size} ids, the model's table {rows} rows")
