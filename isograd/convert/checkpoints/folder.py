"""The folder of a trained model, what is exported of it, and what came of that."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isograd.convert.kinds import ModelKind
from isograd.convert.parity import ParityReport
from isograd.convert.sample import Sample
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


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is exported.

    Args:
        folder: that the model came from.
        tokenizer: a `PairTokenizer` or one of transformers; None where there is none.
        sample: what the parity report is measured on.
        facts: of the report: hashes of the files in `folder`, a date.
    """

    folder: Path
    model: IsogradPreTrainedModel
    kind: ModelKind
    tokenizer: Any
    sample: Sample
    facts: Mapping[str, Any]

    def vocabulary(self, runtime: str) -> Any:
        """The tokenizer, without which the runtime has nothing to read."""
        if self.tokenizer is None:
            raise InteropError(
                f"{self.folder}: {runtime} needs a vocabulary, and no tokenizer is in the model's folder"
            )
        return self.tokenizer


@dataclass(frozen=True, kw_only=True)
class Written:
    """What came of it.

    Args:
        to: the class or format, as `--to` takes it.
        form: the class's own name, or the format's.
        library: that runs it, in the hub's words.
        use: lines of Python that load and run it.
        notes: what its user should know, a sentence each.
    """

    to: str
    form: str
    library: str
    use: str
    report: ParityReport
    notes: tuple[str, ...] = ()


def load_isograd(folder: Path) -> IsogradPreTrainedModel:
    """The trained isograd model of a folder, in eval mode and in the dtype of its weights.

    Raises:
        ModelError: it cannot be loaded.
        InteropError: no weights, or a model of another kind.
    """
    must_have_weights(folder)
    model = load_model(str(folder))
    if not isinstance(model, IsogradPreTrainedModel):
        raise InteropError(f"{folder}: {type(model).__name__} is not a model of isograd's")
    return model.eval()


def must_have_weights(folder: Path) -> None:
    """A configuration alone would be a model at initialization.

    Raises:
        InteropError: there are none.
    """
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise InteropError(
            f"{folder}: a configuration without weights (*.safetensors); name the folder of a trained model"
        )


def copy_companions(folder: Path, out: Path) -> None:
    """What speaks of text and lies beside a model: tokenizers, vocabularies, languages."""
    for path in sorted({path for pattern in _COMPANIONS for path in folder.glob(pattern)}):
        if path.is_dir():
            shutil.copytree(path, out / path.name, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, out / path.name)
