"""A GGUF file beside the model it was made from, as transformers' own reader of GGUF understands it.

That reader was not written by us and undoes what llama.cpp's converter does. llama.cpp itself is not run here.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import transformers
from transformers.utils import logging

from isograd.errors import needed
from isograd.interop.certificate import Certificate, certify, hashes
from isograd.interop.gguf import FILE, held
from isograd.interop.native import built
from isograd.interop.sample import Sample
from isograd.models import IsogradPreTrainedModel

EXACT = 1e-5
HALF = 1e-2  # of the largest logit: float16 keeps three digits of a weight


def certify_gguf(
    model: IsogradPreTrainedModel,
    folder: str | Path,
    sample: Sample | None = None,
    *,
    half: bool = False,
    **others: Any,
) -> Certificate:
    """The model against the file that `export_gguf` wrote from it, in float32.

    Args:
        sample: None draws random ids.
        half: the file holds float16; then logits may differ by `HALF`.
        others: of `certify`.
    """
    needed("export", "gguf")
    done = held(model)
    config = built(done).config  # the reader would take GPT-2's inner width and positions for the usual ones
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        loaded = getattr(transformers, done.class_name).from_pretrained(folder, gguf_file=FILE, config=config)
    finally:
        if bars:
            logging.enable_progress_bar()
    return certify(
        {"fp32": model},
        {"fp32": loaded.eval()},
        sample,
        about=f"{type(model).__name__} ({model.config.placement}) and a GGUF file ({done.name})",
        limits={"fp32": HALF if half else EXACT},
        files=hashes(Path(folder)),
        versions={"gguf": version("gguf")},
        notes=(*done.notes, "The file was read by transformers; llama.cpp was not run."),
        **others,
    )
