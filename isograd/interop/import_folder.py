"""Models of transformers' classes, and weights of torch's layers -> the folder of an isograd model, whole or not."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from isograd.data.text import first_line
from isograd.errors import DataError, ExportError
from isograd.files import new_folder
from isograd.interop.certificate import Certificate, CertificateError, certify, hashes
from isograd.interop.pretrained_state import from_transformers
from isograd.interop.sample import Sample
from isograd.interop.torch_original import Original
from isograd.interop.torch_state import Plan, from_torch
from isograd.interop.unpickle import file_hash, read_checkpoint, tensors
from isograd.models import IsogradModel, IsogradPreTrainedModel
from isograd.trace.load import load_model

_TOKENIZER = ("tokenizer*", "vocab*", "*.model", "*.spm", "merges.txt")


def import_pretrained(name: str | Path, out: str | Path, *, date: str | None = None) -> Certificate:
    """A model of transformers' into the new folder `out`, with its tokenizer and its settings of generation.

    Args:
        name: a folder, or a name on the hub.
        date: stands in the certificate if it is given.

    Raises:
        ModelError, ExportError: no model there, or one that has no counterpart here.
        CertificateError: the model does not compute what the original does; nothing is written.
    """
    theirs = load_model(str(name)).eval()
    if isinstance(theirs, IsogradPreTrainedModel) or not isinstance(theirs, PreTrainedModel):
        raise ExportError(f"{name}: a {type(theirs).__name__}, expected a model of transformers' own")
    model = from_transformers(theirs)
    tokenizer = _tokenizer(name)
    if tokenizer is not None:  # what begins and ends a text, where the configuration does not say
        model.config.bos_token_id = _first(model.config.bos_token_id, tokenizer.bos_token_id, tokenizer.cls_token_id)
        model.config.eos_token_id = _first(model.config.eos_token_id, tokenizer.eos_token_id, tokenizer.sep_token_id)
    if model.can_generate() and theirs.generation_config is not None:
        model.generation_config = copy.deepcopy(theirs.generation_config)
    with new_folder(out) as part:
        model.save_pretrained(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        about = f"{type(theirs).__name__} imported as {model.config.placement}"
        source = hashes(Path(name)) if Path(name).is_dir() else {}
        written = type(model).from_pretrained(part)
        certificate = certify(theirs, written, about=about, files=hashes(part), source=source, date=date)
        _held(certificate, part)
    return certificate


def import_torch(path: str | Path, out: str | Path, plan: Plan, *, date: str | None = None) -> Certificate:
    """Weights of torch's layers into the new folder `out`; the certificate compares with torch's own modules.

    Args:
        path: a state dict, of torch.save or safetensors; nothing in it is run.

    Raises:
        DataError, ExportError: a file that cannot be read, weights that have no place or are missing.
        CertificateError: the model does not compute what the original does; nothing is written.
    """
    state = _state(Path(path))
    model = from_torch(state, plan)
    with new_folder(out) as part:
        model.save_pretrained(part)
        written: Any = type(model).from_pretrained(part)
        bare = isinstance(model, IsogradModel)
        certificate = certify(
            Original(model.config, state, plan),
            _Layers(written) if bare else written,
            _vectors(model.config.hidden_size) if bare else None,
            about=f"{Path(path).name} imported as {model.config.placement}",
            files=hashes(part),
            source=file_hash(Path(path)),
            date=date,
        )
        _held(certificate, part)
    return certificate


def _held(certificate: Certificate, part: Path) -> None:
    if not certificate.holds:
        raise CertificateError(certificate)
    certificate.write(part)


def _state(path: Path) -> dict[str, Tensor]:
    content = read_checkpoint(path)
    if not isinstance(content, Mapping):
        raise DataError(f"{path}: a {type(content).__name__}, expected a state dict")
    inner = [content[name] for name in ("state_dict", "model_state_dict", "model") if name in content]
    try:
        return tensors(inner[0] if inner and isinstance(inner[0], Mapping) else content)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


class _Layers(nn.Module):
    """A tower that reads vectors, in its own precision."""

    def __init__(self, tower: IsogradModel) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor) -> Tensor:
        found = self.tower(inputs_embeds=inputs_embeds.to(self.tower.dtype), attention_mask=attention_mask)
        hidden: Tensor = found.last_hidden_state
        return hidden


def _vectors(width: int) -> Sample:
    draw = torch.Generator().manual_seed(0)
    mask = (torch.arange(24) < torch.tensor([24, 19, 14, 9])[:, None]).long()
    vectors = torch.randn(4, 24, width, generator=draw)
    return Sample(kind="random vectors", batches=[{"inputs_embeds": vectors, "attention_mask": mask}])


def _tokenizer(name: str | Path) -> Any:
    folder = Path(name)
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _TOKENIZER):
        return None
    try:
        return AutoTokenizer.from_pretrained(str(name))
    except Exception as error:  # of JSON, of a key, and what the tokenizers library raises, which is an Exception
        raise ExportError(f"{name}: no tokenizer that can be read ({first_line(error)})") from error


def _first(*ids: int | None) -> int | None:
    return next((i for i in ids if i is not None), None)
