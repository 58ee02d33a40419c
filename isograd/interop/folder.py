"""From the folder of a model to an export: weights, tokenizer, certificate and card, whole or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isograd.data.subwords import PairTokenizer
from isograd.errors import ExportError
from isograd.evaluate.loading import model_folder
from isograd.files import new_folder
from isograd.interop.card import Card
from isograd.interop.certificate import Certificate, CertificateError, hashes
from isograd.interop.fold_folder import load_isograd, load_tokenizer
from isograd.interop.forms import FORMS, Source, as_native
from isograd.interop.native_fit import kind_of
from isograd.interop.native_targets import TARGETS
from isograd.interop.origin import origin
from isograd.interop.sample import random_sample, text_sample


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Args:
        folder: where.
        to: the class or format, as `--to` takes it.
        form: the class's own name, or the format's.
    """

    folder: Path
    to: str
    form: str
    certificate: Certificate


def export_folder(
    name: str | Path,
    out: str | Path,
    *,
    to: str = "auto",
    lines: Sequence[str] | None = None,
    date: str | None = None,
) -> Exported:
    """Export the model in `name` into the new folder `out`.

    Args:
        name: the folder of a run or of its model, or a name on the hub.
        to: a class of transformers (`isograd.interop.native_targets.TARGETS`), "auto" for the nearest one that can hold
            the model exactly, or a key of `isograd.interop.forms.FORMS`.
        lines: real text for the certificate, read with the model's own tokenizer; None draws random ids.
        date: stands in the certificate if it is given.

    Raises:
        DataError, ModelError: no model there, or none that can be loaded.
        ExportError: a form that cannot hold it, or `out` holds something.
        CertificateError: the export does not compute the same; nothing is written.
        ImportError: a library of the format is missing; the message names the extra.
    """
    if to not in ("auto", *TARGETS, *FORMS):  # before anything is loaded
        raise ExportError(f"unknown class {to!r}: expected auto or one of {', '.join((*TARGETS, *FORMS))}")
    folder = model_folder(name)
    model = load_isograd(folder)
    kind = kind_of(model)
    if kind is None:
        raise ExportError(f"{folder}: {type(model).__name__} has no head")
    tokenizer = load_tokenizer(folder) if lines is not None or has_tokenizer(folder) else None
    sample = random_sample(model) if lines is None else text_sample(model, tokenizer, lines)
    source = Source(
        folder=folder,
        model=model,
        kind=kind,
        tokenizer=tokenizer,
        sample=sample,
        source=hashes(folder),
        date=date,
    )
    with new_folder(out) as part:
        written = FORMS[to](source, part) if to in FORMS else as_native(source, part, to)
        certificate = written.certificate
        if not certificate.holds:
            raise CertificateError(certificate)
        certificate.write(part)
        Card(
            config=model.config,
            kind=kind,
            form=written.form,
            library=written.library,
            use=written.use,
            origin=origin(name),
            certificate=certificate,
            notes=written.notes,
            languages=tokenizer.languages if isinstance(tokenizer, PairTokenizer) else (),
        ).write(part)
    return Exported(folder=Path(out), to=written.to, form=written.form, certificate=certificate)


def has_tokenizer(folder: Path) -> bool:
    return any(any(folder.glob(name)) for name in ("tokenizer*", "*vocab*", "translation.json"))
