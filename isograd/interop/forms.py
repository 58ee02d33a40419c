"""What a model can be exported as: classes of transformers, isograd's own, and the formats of other runtimes.

Each function writes into an empty folder and measures what it wrote.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import transformers

from isograd.data.subwords import PairTokenizer
from isograd.errors import ExportError
from isograd.interop.certificate import Certificate, certify, hashes
from isograd.interop.fold_folder import copy_companions
from isograd.interop.native import Plan, built, plan
from isograd.interop.native_certificate import certify_native
from isograd.interop.native_targets import Kind
from isograd.interop.native_weights import positions_of
from isograd.interop.sample import Sample
from isograd.models import IsogradPreTrainedModel

_AUTO: Mapping[Kind, str] = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "classifier": "AutoModelForSequenceClassification",
    "pair": "AutoModelForSeq2SeqLM",
}
_RUN: Mapping[Kind, str] = {
    "causal": "ids = model.generate(**tokenizer({text!r}, return_tensors='pt'), max_new_tokens=50)\n"
    "print(tokenizer.decode(ids[0], skip_special_tokens=True))",
    "masked": "logits = model(**tokenizer({text!r}, return_tensors='pt')).logits",
    "classifier": "logits = model(**tokenizer({text!r}, return_tensors='pt')).logits",
    "pair": "ids = model.generate(**tokenizer({text!r}, return_tensors='pt'))\n"
    "print({writer}.decode(ids[0], skip_special_tokens=True))",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is exported.

    Args:
        folder: that the model came from.
        tokenizer: a `PairTokenizer` or one of transformers; None where there is none.
        sample: what the certificate is measured on.
        source: hashes of the files in `folder`.
    """

    folder: Path
    model: IsogradPreTrainedModel
    kind: Kind
    tokenizer: Any
    sample: Sample
    source: Mapping[str, str]
    date: str | None = None


@dataclass(frozen=True, kw_only=True)
class Written:
    """What came of it; see `isograd.interop.card.Card` for form, library, use and notes."""

    to: str
    form: str
    library: str
    use: str
    certificate: Certificate
    notes: tuple[str, ...] = ()


def as_native(source: Source, folder: Path, to: str) -> Written:
    """A class of transformers, with what its Auto classes need to load model and tokenizer."""
    done = plan(source.model, to)
    built(done).save_pretrained(folder)
    copy_companions(source.folder, folder)
    notes = [*done.notes, *fit_tokenizer(source, folder, done)]
    loaded = getattr(transformers, done.class_name).from_pretrained(folder)
    certificate = certify_native(
        source.model,
        done,
        loaded,
        source.sample,
        files=hashes(folder),
        source=source.source,
        date=source.date,
    )
    return Written(
        to=done.name,
        form=done.class_name,
        library="transformers",
        use=_use(source.kind, done.class_name, source.tokenizer),
        certificate=certificate,
        notes=tuple(notes),
    )


def as_isograd(source: Source, folder: Path) -> Written:
    """isograd's own class, whatever the placement; `import isograd` registers it with the Auto classes."""
    source.model.save_pretrained(folder)
    copy_companions(source.folder, folder)
    name = type(source.model).__name__
    loaded = type(source.model).from_pretrained(folder)
    note = "Its class is isograd's: install isograd to load it (`pip install isograd`)."
    certificate = certify(
        source.model,
        loaded,
        source.sample,
        about=f"{name} ({source.model.config.placement}), saved and loaded",
        files=hashes(folder),
        source=source.source,
        date=source.date,
    )
    use = "import isograd.models  # registers the class\n" + _use(source.kind, name, source.tokenizer)
    return Written(to="isograd", form=name, library="transformers", use=use, certificate=certificate, notes=(note,))


def as_onnx(source: Source, folder: Path) -> Written:
    """ONNX graphs of any placement, in float32."""
    from isograd.interop.onnx import export_onnx
    from isograd.interop.onnx_certificate import certify_onnx

    export_onnx(source.model, folder, tokenizer=source.tokenizer)
    certificate = certify_onnx(source.model, folder, source.sample, source=source.source, date=source.date)
    use = "from isograd.interop.onnx import OnnxModel\n\nlogits = OnnxModel(FOLDER)(input_ids, attention_mask)"
    notes = ("The graphs are plain ONNX (no cache): onnxruntime runs them without isograd.",)
    return Written(to="onnx", form="ONNX", library="onnx", use=use, certificate=certificate, notes=notes)


def as_ctranslate2(source: Source, folder: Path, quantization: Literal["int8"] | None = None) -> Written:
    """The folder that CTranslate2's Translator or Generator reads."""
    from isograd.interop.ctranslate2 import export_ctranslate2
    from isograd.interop.ctranslate2_certificate import certify_ctranslate2

    export_ctranslate2(source.model, _vocabulary(source, "CTranslate2"), folder, quantization=quantization)
    model: Any = source.model
    certificate = certify_ctranslate2(
        model,
        source.tokenizer,
        folder,
        source.sample,
        quantization=quantization,
        source=source.source,
        date=source.date,
    )
    name, call = ("Translator", "translate_batch") if source.kind == "pair" else ("Generator", "generate_batch")
    use = f"import ctranslate2\n\nresults = ctranslate2.{name}(FOLDER).{call}([tokens])"
    to = f"ctranslate2-{quantization}" if quantization else "ctranslate2"
    return Written(to=to, form="CTranslate2", library="ctranslate2", use=use, certificate=certificate)


def as_gguf(source: Source, folder: Path) -> Written:
    """One file for llama.cpp."""
    from isograd.interop.gguf import FILE, export_gguf
    from isograd.interop.gguf_certificate import certify_gguf

    export_gguf(source.model, _vocabulary(source, "llama.cpp"), folder)
    certificate = certify_gguf(source.model, folder, source.sample, source=source.source, date=source.date)
    use = f"from llama_cpp import Llama\n\nprint(Llama(f'{{FOLDER}}/{FILE}')('text', max_tokens=50))"
    return Written(to="gguf", form="GGUF", library="gguf", use=use.replace("'", '"'), certificate=certificate)


FORMS: dict[str, Callable[[Source, Path], Written]] = {
    "isograd": as_isograd,
    "onnx": as_onnx,
    "ctranslate2": as_ctranslate2,
    "ctranslate2-int8": partial(as_ctranslate2, quantization="int8"),
    "gguf": as_gguf,
}


def _vocabulary(source: Source, runtime: str) -> Any:
    """The tokenizer, without which the runtime has nothing to read."""
    if source.tokenizer is None:
        raise ExportError(f"{source.folder}: {runtime} needs a vocabulary, and no tokenizer lies beside the model")
    return source.tokenizer


def fit_tokenizer(source: Source, folder: Path, done: Plan) -> list[str]:
    """Make the files that were copied say what the class can read; what a user has to know beside.

    Token types go to classes that know them (GPT-2 would add the vectors of tokens 0 and 1), texts are cut where the
    position table ends, and of two vocabularies the source's is the one that `AutoTokenizer` finds.
    """
    tokenizer = source.tokenizer
    if tokenizer is None:
        return ["No tokenizer lay beside the model."]
    notes = []
    if isinstance(tokenizer, PairTokenizer):
        if not tokenizer.joint:
            for path in (folder / "source_tokenizer").iterdir():
                shutil.copyfile(path, folder / path.name)
            notes.append("The tokenizer reads the source; the one in target_tokenizer/ writes the target.")
        if tokenizer.tokenized:
            notes.append("It reads and writes Moses-tokenised text.")
        notes += _beyond(tokenizer)
    for path in (folder / "tokenizer_config.json", folder / "target_tokenizer" / "tokenizer_config.json"):
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            content |= _reading(done)
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return notes


def _reading(done: Plan) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if done.kind in ("causal", "pair"):
        options["model_input_names"] = ["input_ids", "attention_mask"]
    if done.target.positions == "table":
        options["model_max_length"] = positions_of(done.model.config)
    return options


def _beyond(tokenizer: PairTokenizer) -> list[str]:
    sides = {"source": tokenizer.source, "target": tokenizer.target}
    return [
        f"Ids of the {name} from {side.vocab_size} on are pieces without a row in the table: replace them by"
        f" {side.unk_id}, the unknown token, before the model reads them."
        for name, side in sides.items()
        if side.tokenizer.get_vocab_size() > side.vocab_size and (name == "source" or not tokenizer.joint)
    ]


def _use(kind: Kind, class_name: str, tokenizer: Any) -> str:
    auto = "AutoModelForPreTraining" if class_name.endswith("ForPreTraining") else _AUTO[kind]
    lines = [f"from transformers import {auto}, AutoTokenizer", "", f"model = {auto}.from_pretrained(FOLDER)"]
    if tokenizer is None:
        return "\n".join(lines)
    lines.append("tokenizer = AutoTokenizer.from_pretrained(FOLDER)")
    if isinstance(tokenizer, PairTokenizer) and not tokenizer.joint:
        lines.append('writer = AutoTokenizer.from_pretrained(FOLDER, subfolder="target_tokenizer")')
    text = tokenizer.mask_token if kind == "masked" and getattr(tokenizer, "mask_token", None) else "text"
    writer = "writer" if any("writer =" in line for line in lines) else "tokenizer"
    return "\n".join([*lines, _RUN[kind].format(text=text, writer=writer).replace("'", '"')])
