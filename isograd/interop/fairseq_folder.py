"""A checkpoint of fairseq or Transformer-Clinic -> the folder of an isograd model, whole or not at all."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isograd.errors import DataError
from isograd.files import new_folder
from isograd.interop.certificate import Certificate, CertificateError, certify, hashes
from isograd.interop.dictionaries import tokenizer_of
from isograd.interop.fairseq import from_fairseq
from isograd.interop.fairseq_equations import Original
from isograd.interop.fairseq_names import tables, upgraded
from isograd.interop.fairseq_options import Kind, kind_of, options_of
from isograd.interop.sample import random_sample
from isograd.interop.unpickle import Options, file_hash, plain, read_checkpoint, tensors
from isograd.interop.vocabulary import save_tokenizer
from isograd.models import IsogradPreTrainedModel

_NEW_TOKENS = 12


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What an import needs of a file.

    Attributes:
        state: weights by the original's names.
        options: flat, by the original's names.
        path: where it lay.
    """

    state: Mapping[str, Tensor]
    options: Mapping[str, Any]
    path: Path


def import_fairseq(
    path: str | Path,
    out: str | Path,
    *,
    dictionaries: Sequence[str | Path] = (),
    codes: str | Path | None = None,
    options: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    date: str | None = None,
) -> Certificate:
    """Write model, tokenizer, generation_config.json and certificate.json into the new folder `out`.

    The certificate compares what was written with the original's equations on the original's weights.

    Args:
        path: a checkpoint of torch.save, or the tensors alone in safetensors.
        dictionaries: dict.txt, or the source's and the target's.
        codes: merges of subword-nmt.
        options: a JSON file of options, for a file of tensors alone.
        changes: options that are missing, or that are to be others.
        date: stands in the certificate if it is given.

    Raises:
        DataError, ValueError: a file that cannot be read or would run something, options or weights that isograd has no
            place for, a dictionary of another size; one line.
        CertificateError: the model does not compute what the original does; nothing is written.
    """
    checkpoint = read_fairseq(path, options=options, changes=changes)
    model = from_fairseq(checkpoint.state, checkpoint.options)
    tokenizer = _tokenizer(checkpoint, model, dictionaries, codes)
    with new_folder(out) as part:
        model.save_pretrained(part)
        if tokenizer is not None:
            save_tokenizer(tokenizer, part)
        certificate = _certificate(checkpoint, model, part, date)
        if not certificate.holds:
            raise CertificateError(certificate)
        certificate.write(part)
    return certificate


def read_fairseq(
    path: str | Path, *, options: str | Path | None = None, changes: Mapping[str, Any] | None = None
) -> Checkpoint:
    """Weights and options of a checkpoint; nothing of it is run.

    Raises:
        DataError: as `import_fairseq`.
    """
    path = Path(path)
    content = read_checkpoint(path)
    if not isinstance(content, Mapping):
        raise DataError(f"{path}: a {type(content).__name__}, expected a checkpoint with 'model' and its options")
    state, found = _parts(content, path)
    given = _json(Path(options)) if options is not None else found
    if given is None and not changes:
        raise DataError(f"{path}: no options in it ('args' or 'cfg'); give them as --options FILE.json")
    try:
        return Checkpoint(state=tensors(state), options=options_of(given or {}) | dict(changes or {}), path=path)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _parts(content: Mapping[str, Any], path: Path) -> tuple[Any, dict[str, Any] | None]:
    """The state dict and the options, None where there are none."""
    if content and all(isinstance(value, Tensor) for value in content.values()):
        return content, None
    if not isinstance(content.get("model"), Mapping):
        raise DataError(f"{path}: no state dict under 'model'; found {', '.join(map(str, content)) or 'nothing'}")
    return content["model"], _options(content)


def _options(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of cfg, as fairseq 0.10 and later have it, what the model and the task say; of args, all."""
    cfg = plain(content.get("cfg"))
    if isinstance(cfg, Mapping) and isinstance(cfg.get("model"), Mapping):
        task = cfg.get("task")
        return options_of({**(task if isinstance(task, Mapping) else {}), **cfg["model"]})
    args = content.get("args")
    return dict(plain(args)) if isinstance(args, Options | Mapping) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: no JSON ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected an object of options, found a {type(content).__name__}")
    return content


def _tokenizer(
    checkpoint: Checkpoint, model: IsogradPreTrainedModel, dictionaries: Sequence[str | Path], codes: str | Path | None
) -> Any:
    if not dictionaries:
        if codes is not None:
            raise DataError(f"{codes}: merges need the dictionary of their pieces; give it as --dict")
        return None
    said = checkpoint.options
    languages = (str(said.get("source_lang") or "source"), str(said.get("target_lang") or "target"))
    kind: Kind = "pair" if model.config.is_encoder_decoder else "causal" if model.config.is_decoder else "masked"
    return tokenizer_of(
        kind, model.config, [Path(d) for d in dictionaries], None if codes is None else Path(codes), languages
    )


def _certificate(checkpoint: Checkpoint, model: IsogradPreTrainedModel, part: Path, date: str | None) -> Certificate:
    """What was written and is read again, against the original's equations; of half precision, its copies in fp32."""
    options = dict(checkpoint.options)
    state, stored = tables(checkpoint.state)
    state |= {f"{tower}.embed_positions.weight": table for tower, table in stored.items()}
    written = type(model).from_pretrained(part, dtype=torch.promote_types(model.dtype, torch.float32))
    original = Original(model.config, upgraded(state), options).to(written.dtype)
    arch = options.get("arch") or options.get("_name") or kind_of(options)
    return certify(
        original,
        written,
        replace(random_sample(model, batches=1), new_tokens=_NEW_TOKENS),  # the equations keep no cache
        about=f"{checkpoint.path.name} ({arch}) imported as {model.config.placement}, against its equations",
        files=hashes(part),
        source=file_hash(checkpoint.path),
        date=date,
    )
