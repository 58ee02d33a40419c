"""The folder of a trained model: its weights, and what goes along with them."""

import shutil
from pathlib import Path

from isograd.errors import InteropError
from isograd.models import IsogradPreTrainedModel
from isograd.trace.load import load_model

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_COMPANIONS = (  # what lies beside the weights and speaks of text
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "translation.json",
    "*_tokenizer",
)


def load_isograd(folder: Path) -> IsogradPreTrainedModel:
    """The trained isograd model of a folder, in eval mode and in the dtype of its weights.

    Raises:
        ModelError: it cannot be loaded.
        InteropError: no weights, or a model of another kind.
    """
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise InteropError(
            f"{folder}: a configuration without weights (*.safetensors); name the folder of a trained model"
        )
    model = load_model(str(folder))
    if not isinstance(model, IsogradPreTrainedModel):
        raise InteropError(f"{folder}: {type(model).__name__} is not a model of isograd's")
    return model.eval()


def copy_companions(folder: Path, out: Path) -> None:
    """What speaks of text and lies beside a model: tokenizers, vocabularies, languages."""
    for path in sorted({path for pattern in _COMPANIONS for path in folder.glob(pattern)}):
        if path.is_dir():
            shutil.copytree(path, out / path.name, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, out / path.name)
