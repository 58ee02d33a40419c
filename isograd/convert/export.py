"""From the folder of a model to an export: weights, tokenizer, parity report and card, complete or not at all."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from isograd.convert import ctranslate2, gguf, onnx
from isograd.convert.checkpoints.card import model_card
from isograd.convert.checkpoints.folder import Source, Written, load_isograd
from isograd.convert.checkpoints.vocabulary import load_tokenizer
from isograd.convert.hf import FAMILIES
from isograd.convert.kinds import kind_of
from isograd.convert.parity import hashes
from isograd.convert.pretrained import write_folded, write_isograd, write_native
from isograd.convert.sample import sample_of
from isograd.errors import InteropError
from isograd.files import new_folder
from isograd.hub import model_folder

FORMS: dict[str, Callable[..., Written]] = {
    **{name: partial(write_native, to=name) for name in ("auto", *FAMILIES)},
    "isograd": write_isograd,
    "folded": write_folded,
    "onnx": onnx.write,
    "ctranslate2": ctranslate2.write,
    "ctranslate2-int8": partial(ctranslate2.write, quantization="int8"),
    "gguf": gguf.write,
}


def export_folder(
    name: str | Path,
    out: str | Path,
    *,
    to: str = "auto",
    untie: bool = False,
    lines: Sequence[str] | None = None,
    date: str | None = None,
    license: str | None = None,  # noqa: A002  (the hub's word)
) -> Written:
    """Export the model in `name` into the new folder `out`.

    Args:
        name: the folder of a run or of its model, or a name on the hub.
        to: a key of `FORMS`: a class of transformers, "auto" for the nearest one that can hold the model exactly, our
            own, "folded" (our own without coefficients), or the format of another runtime.
        untie: with "folded", as in `fold`.
        lines: real text for the parity report, read with the model's own tokenizer; None draws random ids.
        date: stands in the report if it is given.
        license: of the model, an identifier of the hub such as "apache-2.0"; stands in the card if it is given.

    Raises:
        DataError, ModelError: no model there, or none that can be loaded.
        InteropError: a form that cannot hold it, or `out` holds something.
        ParityError: the export does not compute the same; nothing is written.
        ImportError: a library of the format is missing; the message names the extra.
    """
    if to not in FORMS:  # before anything is loaded
        raise InteropError(f"unknown class {to!r}: expected one of {', '.join(FORMS)}")
    folder = model_folder(name)
    model = load_isograd(folder)
    kind = kind_of(model)
    if kind is None:
        raise InteropError(f"{folder}: {type(model).__name__} has no head")
    tokenizer = load_tokenizer(folder)
    source = Source(
        folder=folder,
        model=model,
        kind=kind,
        tokenizer=tokenizer,
        sample=sample_of(model, tokenizer, lines),
        facts={"source": hashes(folder), "date": date},
    )
    with new_folder(out) as part:
        written = FORMS[to](source, part, **({"untie": True} if untie else {}))
        written.report.write(part)
        model_card(source, written, license).save(part / "README.md")
    return written
