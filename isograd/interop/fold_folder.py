"""From the folder of a model to one with the folded model, its tokenizer and certificate, whole or not at all."""

import copy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from isograd.data.subwords import PairTokenizer
from isograd.data.text import first_line
from isograd.errors import ExportError
from isograd.evaluate.loading import model_folder
from isograd.files import new_folder
from isograd.interop.certificate import Certificate, CertificateError, certify, hashes
from isograd.interop.fold import fold
from isograd.interop.sample import Sample, random_sample, text_sample
from isograd.models import IsogradPreTrainedModel
from isograd.trace.load import load_model

COMPANIONS = (  # what lies beside the weights and speaks of text
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "translation.json",
    "*_tokenizer",
)
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def fold_folder(
    name: str | Path,
    out: str | Path,
    *,
    untie: bool = False,
    lines: Sequence[str] | None = None,
    date: str | None = None,
) -> Certificate:
    """Fold the model in `name` into the new folder `out`: model, tokenizer, generation_config.json, certificate.json.

    Args:
        name: the folder of a run or of its model, or a name on the hub.
        untie: as in `fold`.
        lines: real text for the certificate, read with the model's own tokenizer; None draws random ids.
        date: stands in the certificate if it is given.

    Raises:
        DataError, ModelError: no model there, or none that can be loaded.
        ExportError: one that cannot be folded, or `out` holds something.
        CertificateError: the folded model does not compute the same; nothing is written.
    """
    folder = model_folder(name)
    model = load_isograd(folder)
    sample = random_sample(model) if lines is None else text_sample(model, load_tokenizer(folder), lines)
    folded = fold(model, untie=untie)
    with new_folder(out) as part:
        folded.save_pretrained(part)
        copy_companions(folder, part)
        written = type(folded).from_pretrained(part)
        certificate = certify_fold(
            model, written, sample, untie=untie, files=hashes(part), source=hashes(folder), date=date
        )
        if not certificate.holds:
            raise CertificateError(certificate)
        certificate.write(part)
    return certificate


def certify_fold(
    model: IsogradPreTrainedModel,
    folded: IsogradPreTrainedModel,
    sample: Sample | None = None,
    *,
    untie: bool = False,
    **options: Any,
) -> Certificate:
    """The certificate of a fold.

    fp64 is measured on the fold of the fp64 copy, before any cast: the cast to fp32 is what the fp32 row measures. Of
    weights that are stored in half precision it is the fold of their fp32 copy, and the bf16 row shows the cast.

    Args:
        folded: `fold(model)`, or what was loaded of it.
        options: of `certify`.
    """
    exact = copy.deepcopy(model).double()
    half = torch.promote_types(model.dtype, torch.float32) != model.dtype
    single = fold(copy.deepcopy(model).float(), untie=untie) if half else folded
    return certify(
        {"fp64": exact, "fp32": model, "bf16": model},
        {"fp64": fold(exact, untie=untie), "fp32": single, "bf16": folded},
        sample,
        about=f"{model.config.placement} folded into {folded.config.placement}",
        notes=_notes(model, folded, half=half),
        **options,
    )


def load_isograd(folder: Path) -> IsogradPreTrainedModel:
    """The trained isograd model of a folder, in eval mode and in the dtype of its weights.

    Raises:
        ModelError: it cannot be loaded.
        ExportError: no weights, or a model of another kind.
    """
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ExportError(
            f"{folder}: a configuration without weights (*.safetensors); name the folder of a trained model"
        )
    model = load_model(str(folder))
    if not isinstance(model, IsogradPreTrainedModel):
        raise ExportError(f"{folder}: {type(model).__name__} is not a model of isograd's")
    return model.eval()


def load_tokenizer(folder: Path) -> Any:
    """A `PairTokenizer` of a model that translates, else the tokenizer as transformers reads it.

    Raises:
        ExportError: there is none, or it cannot be read.
    """
    try:
        if (folder / "translation.json").is_file():
            return PairTokenizer.load(folder)
        if any(folder.glob("tokenizer*")) or any(folder.glob("*vocab*")):
            return AutoTokenizer.from_pretrained(str(folder))
    except Exception as error:  # of JSON, of a key, and what the tokenizers library raises, which is an Exception
        raise ExportError(f"{folder}: no tokenizer that can be read ({first_line(error)})") from error
    raise ExportError(f"{folder}: no tokenizer beside the model to read a text with")


def copy_companions(folder: Path, out: Path) -> None:
    """What speaks of text and lies beside a model: tokenizers, vocabularies, languages."""
    for path in sorted({path for pattern in COMPANIONS for path in folder.glob(pattern)}):
        if path.is_dir():
            shutil.copytree(path, out / path.name, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, out / path.name)


def _notes(before: IsogradPreTrainedModel, after: IsogradPreTrainedModel, *, half: bool) -> list[str]:
    old, new = before.config, after.config
    notes = []
    if new.position_embedding_type != old.position_embedding_type:
        rows = new.max_position_embeddings
        notes.append(f"Sinusoidal positions are a table of {rows} now; raise max_position_embeddings first for more.")
    if (new.tie_word_embeddings, new.share_encoder_embeddings) != (
        old.tie_word_embeddings,
        old.share_encoder_embeddings,
    ):
        notes.append("Token tables that were one are stored apart: further training would let them drift.")
    if half:
        notes.append(f"Weights are stored in {str(before.dtype).removeprefix('torch.')}: see the row bf16.")
    return notes
