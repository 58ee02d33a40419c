"""Models of transformers' own classes as isograd's, and isograd's as theirs: the same function, exactly.

    native = to_transformers(model)                  # the nearest class that can hold it
    native = to_transformers(model, "opt")
    model = from_transformers(AutoModelForCausalLM.from_pretrained("gpt2"))

What a family of classes is called, where it keeps its weights and what it can hold stands in `isograd.convert.hf`. A
placement with coefficients (ADMIN, DeepNorm, HeadScale) is folded into plain weights first. What changes on the way:

token table     times sqrt(d) where ours are scaled and the class does not scale; a tied head then keeps the old one
positions       row `first + p` holds position p, whatever row ours stands in; sinusoids written out, or none as 0
what it has and we have not: biases, token types, attention that never runs, as zeros
"""

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging

from isograd.convert.checkpoints.folder import Source, Written, copy_companions, must_have_weights
from isograd.convert.checkpoints.subwords import PairTokenizer
from isograd.convert.checkpoints.vocabulary import load_tokenizer
from isograd.convert.checkpoints.weights import depths, fill, from_theirs, refuse, to_theirs
from isograd.convert.folding import FoldError, fold, measure_fold
from isograd.convert.hf import FAMILIES
from isograd.convert.hf.family import Family, has_coefficients, norms_at
from isograd.convert.kinds import CAUSAL, CLASSIFIER, MASKED, PAIR, ModelKind, kind_of
from isograd.convert.parity import ParityReport, Remembered, Side, hashes, is_large, measure
from isograd.convert.sample import Sample, random_sample
from isograd.errors import InteropError, IsogradError, ModelError
from isograd.files import new_folder, read_json
from isograd.hub import from_pretrained, model_place
from isograd.models import IsogradConfig, IsogradModel, IsogradPreTrainedModel
from isograd.trace.load import load_model
from isograd.transformer.positions import ADDED

ELSEWHERE = "isograd's own class (--to isograd) and ONNX (--to onnx) hold every model"
_OURS = "import isograd.models  # registers the class\n"
_INSTALL = "Its class is isograd's: install isograd to load it (`pip install isograd`)."
_NOT_SETTINGS = ("_from_model_config", "transformers_version")
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_COPIES = ("model.shared.weight", "cls.predictions.bias", "lm_head.bias")  # of what has another name as well


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A model and the class that holds it.

    Args:
        model: what is exported: the model itself, or its plain form where coefficients were folded.
        exact: every weight keeps its value, or parts of it their place; else some were folded or scaled, and rounded.
        notes: what its user should know, a sentence each.
    """

    family: Family
    model: IsogradPreTrainedModel
    kind: ModelKind
    exact: bool
    notes: tuple[str, ...]

    @property
    def class_name(self) -> str:
        second = self.family.second_head if self.model.config.next_sentence and self.kind == MASKED else None
        return second or self.family.classes[self.kind]


# Out.


def to_transformers(model: IsogradPreTrainedModel, to: str = "auto") -> PreTrainedModel:
    """The model as a class of transformers, in eval mode, in its dtype, on the CPU.

    Args:
        model: a model with a head; it stays as it is.
        to: a key of `FAMILIES`, or "auto" for the nearest class that can hold it.

    Raises:
        InteropError: no class, or not this one, computes the same; the message says why, and where it can go.
    """
    return built(fit(model, to))


def fit(model: IsogradPreTrainedModel, to: str = "auto") -> Fit:
    """Fold what has to be folded, and find the class.

    Raises:
        InteropError: as `to_transformers`.
    """
    kind = kind_of(model)
    if kind is None:
        raise InteropError(f"{type(model).__name__} has no head: export a language model, a translator or a classifier")
    if to != "auto" and to not in FAMILIES:
        raise InteropError(f"unknown class {to!r}: expected auto or one of {', '.join(FAMILIES)}")
    notes: list[str] = []
    plain = model
    asked = FAMILIES.values() if to == "auto" else (FAMILIES[to],)  # one may have options for the coefficients
    if has_coefficients(model.config) and all(family.reasons(model.config, kind) for family in asked):
        plain = _folded(_single(model), kind, notes)
    family = _home(plain.config, kind) if to == "auto" else FAMILIES[to]
    if why := family.reasons(plain.config, kind):
        raise InteropError(f"{to} cannot hold this model: {'; '.join(why)}. {_other_homes(plain.config, kind)}")
    exact = plain is model and family.table_factor(plain.config) == 1.0
    plain = plain if exact else _single(plain)
    if plain.dtype != model.dtype:
        dtype = str(model.dtype).removeprefix("torch.")
        notes.append(f"Weights of {dtype} are stored in float32, since some of them have new values.")
    notes += [*_stored(model.config, plain.config, family), *family.notes(kind)]
    return Fit(family=family, model=plain, kind=kind, exact=exact, notes=tuple(notes))


def homes(config: IsogradConfig, kind: ModelKind) -> list[str]:
    """Names of the families that can hold it, the nearest first: those that count positions as the model does."""
    found = [name for name, family in FAMILIES.items() if not family.reasons(config, kind)]
    return sorted(
        found, key=lambda name: (FAMILIES[name].rank, FAMILIES[name].first_row(config) != config.position_offset)
    )


def built(fit: Fit, *, shared: bool = False, emptied: bool = False) -> PreTrainedModel:
    """The class with the weights in it.

    Args:
        shared: the model's own tensors, where they are the same.
        emptied: the model loses its weights, so that it is nowhere held twice.
    """
    model, family, dtype = fit.model, fit.family, fit.model.dtype
    cls = getattr(transformers, fit.class_name)
    config = cls.config_class(**family.to_options(model.config, fit.kind))
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in cls(copy.deepcopy(config)).state_dict().items()}
    native, info = from_pretrained(
        cls,
        None,
        config=config,
        state_dict=_state(fit, shapes, shared=shared, emptied=emptied),
        dtype=dtype,
        output_loading_info=True,
    )
    assert not (info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]), info
    if fit.kind in (CAUSAL, PAIR):
        native.generation_config = _generation(model)
    family.complete(native)
    native.eval()
    assert isinstance(native, PreTrainedModel)
    return native


def measure_native(
    model: IsogradPreTrainedModel,
    fit: Fit,
    native: PreTrainedModel,
    sample: Sample | None = None,
    *,
    before: Remembered | None = None,
    **facts: Any,
) -> ParityReport:
    """The model beside its native class.

    Where weights were folded or scaled on the way, fp64 is measured on what becomes of the fp64 copy, in the class and
    the configuration that were loaded, before any rounding to the stored precision, which the fp32 row shows.

    Args:
        fit: what `fit` gave for the model.
        native: `built(fit)`, or what was loaded of it.
        before: what the model said, where it has lost its weights.
        facts: of `measure`.
    """
    exact, notes = native, [*fit.notes]
    if not (fit.exact or is_large(model)):
        exact = _in_double(model, fit, native)
        notes.append("Its fp64 row is of the fp64 copy, before weights are rounded to what is stored.")
    after: Side = {"fp64": fit.family.in_fp64(exact), "fp32": native, "bf16": native}
    about = f"{type(model).__name__} ({model.config.placement}) and {fit.class_name}"
    if before is not None:
        return measure(before.side, after, before.sample, about=about, notes=notes, **facts)
    return measure(model, after, sample, about=about, notes=notes, **facts)


def write_native(source: Source, folder: Path, to: str) -> Written:
    """A folder with what transformers' Auto classes need to load model and tokenizer."""
    done = fit(source.model, to)
    kept = Remembered.of(source.model, source.sample) if done.exact and is_large(source.model) else None
    built(done, shared=True, emptied=kept is not None).save_pretrained(folder)
    copy_companions(source.folder, folder)
    notes = (*done.notes, *_fit_tokenizer(source, folder, done))
    loaded = from_pretrained(getattr(transformers, done.class_name), folder)
    report = measure_native(
        source.model, done, loaded, source.sample, before=kept, files=hashes(folder), **source.facts
    )
    auto = "AutoModelForPreTraining" if done.class_name.endswith("ForPreTraining") else done.kind.auto
    use = lines_of_use(source, auto)
    return Written(
        to=done.family.name, form=done.class_name, library="transformers", use=use, report=report, notes=notes
    )


def write_isograd(source: Source, folder: Path) -> Written:
    """isograd's own class, whatever the placement; `import isograd.models` registers it with the Auto classes."""
    source.model.save_pretrained(folder)
    copy_companions(source.folder, folder)
    name, before = type(source.model).__name__, _before(source)
    report = measure(
        before,
        from_pretrained(type(source.model), folder),
        source.sample,
        about=f"{name} ({source.model.config.placement}), saved and loaded",
        files=hashes(folder),
        **source.facts,
    )
    use = _OURS + lines_of_use(source, source.kind.auto)
    return Written(to="isograd", form=name, library="transformers", use=use, report=report, notes=(_INSTALL,))


def write_folded(source: Source, folder: Path, untie: bool = False) -> Written:
    """isograd's own class without coefficients."""
    model, folded = source.model, fold(source.model, untie=untie)
    folded.save_pretrained(folder)
    copy_companions(source.folder, folder)
    loaded = from_pretrained(type(folded), folder)
    report = measure_fold(model, loaded, source.sample, untie=untie, files=hashes(folder), **source.facts)
    use, name = _OURS + lines_of_use(source, source.kind.auto), type(folded).__name__
    return Written(to="folded", form=name, library="transformers", use=use, report=report, notes=(_INSTALL,))


def _before(source: Source) -> Side:
    """The model to compare with; of a large one what it says, and it loses its weights."""
    if not is_large(source.model):
        return source.model
    kept = Remembered.of(source.model, source.sample)
    source.model.to("meta")
    return kept.side


def lines_of_use(source: Source, auto: str) -> str:
    """Python that loads model and tokenizer from FOLDER, and runs them."""
    lines = [f"from transformers import {auto}, AutoTokenizer", "", f"model = {auto}.from_pretrained(FOLDER)"]
    tokenizer, writer = source.tokenizer, "tokenizer"
    if tokenizer is None:
        return "\n".join(lines)
    lines.append("tokenizer = AutoTokenizer.from_pretrained(FOLDER)")
    if isinstance(tokenizer, PairTokenizer) and not tokenizer.joint:
        lines.append('writer = AutoTokenizer.from_pretrained(FOLDER, subfolder="target_tokenizer")')
        writer = "writer"
    text = (getattr(tokenizer, "mask_token", None) if source.kind == MASKED else None) or "text"
    return "\n".join([*lines, source.kind.use.format(text=text, writer=writer)])


def _home(config: IsogradConfig, kind: ModelKind) -> Family:
    if found := homes(config, kind):
        return FAMILIES[found[0]]
    raise InteropError(_no_home(config, kind))


def _no_home(config: IsogradConfig, kind: ModelKind) -> str:
    """The reasons of the family that has the fewest."""
    found = {name: family.reasons(config, kind) for name, family in FAMILIES.items() if kind in family.classes}
    nearest = min(found, key=lambda name: len(found[name]))
    return (
        f"no class of transformers holds this model ({config.placement!r}, {kind.about}) exactly; of the nearest,"
        f" {nearest}: {'; '.join(found[nearest])}. {ELSEWHERE}"
    )


def _other_homes(config: IsogradConfig, kind: ModelKind) -> str:
    found = homes(config, kind)
    return f"It fits into {', '.join(found)} (--to {found[0]})" if found else ELSEWHERE


def _folded(model: IsogradPreTrainedModel, kind: ModelKind, notes: list[str]) -> IsogradPreTrainedModel:
    try:
        plain = fold(model, untie=True)
    except FoldError as error:
        raise InteropError(f"{error}; {_no_home(model.config, kind)}") from error
    notes.append(f"The coefficients of {model.config.placement} are folded into weights of {plain.config.placement}.")
    return plain


def _single(model: IsogradPreTrainedModel) -> IsogradPreTrainedModel:
    """In float32 at least: new values of weights in half precision would be rounded to 8 bits once more."""
    enough = torch.promote_types(model.dtype, torch.float32) == model.dtype
    return model if enough else copy.deepcopy(model).float()


def _stored(before: IsogradConfig, config: IsogradConfig, family: Family) -> list[str]:
    """What is stored otherwise, though no number differs."""
    notes = []
    if family.positions == "table" and before.position_embedding_type != "learned":
        notes.append(
            f"Its positions ({before.position_embedding_type}) are a table of {family.rows(config)} rows: no longer"
            " sequences."
        )
    tied = config.tie_word_embeddings and not family.unties(config)
    if (before.tie_word_embeddings and not tied) or (
        before.share_encoder_embeddings and not config.share_encoder_embeddings
    ):
        notes.append("Token tables that were one are stored apart: further training would let them drift.")
    return notes


def _state(fit: Fit, shapes: Mapping[str, torch.Size], *, shared: bool, emptied: bool) -> dict[str, Tensor]:
    """The state dict of the class, in the dtype of the model; `shapes`: of everything that the class wants."""
    model, family, config = fit.model, fit.family, fit.model.config
    state = {name: value.detach() for name, value in model.state_dict().items()}
    for stack, module in model.named_children():
        if not isinstance(module, IsogradModel):
            continue
        tokens = f"{stack}.embedding.tokens.weight"
        if (factor := family.table_factor(config)) != 1.0:
            state[tokens] = state[tokens] * factor  # in another tensor than a tied head's
        if family.positions in ("table", "permuted"):
            state[f"{stack}.embedding.positions.weight"] = _positions(module, family)
    state = family.arranged(state, config)
    offset = state.pop("lm_head.bias", None) if fit.kind == PAIR else None
    if emptied:
        model.to("meta")
    norms = dict.fromkeys(depths(config), norms_at(config) or "pre")
    table = family.names.modules(depths(config), norms, classifier=fit.kind == CLASSIFIER)
    theirs = to_theirs(state, table, family.names, config.num_attention_heads, emptied=True)
    if offset is not None:
        theirs["final_logits_bias"] = offset[None]
    return _completed(theirs, family, shapes, shared=shared)


def _positions(stack: IsogradModel, family: Family) -> Tensor:
    """The table, its rows where the class looks for them; rows before the first position are never read, but for pad.

    A pad token reads the row before the first one.
    """
    config: IsogradConfig = stack.config
    longest, width, tokens = family.rows(config), config.hidden_size, stack.embedding.tokens.weight
    first, ours = family.first_row(config), config.position_offset
    table = torch.zeros(first + longest, width, dtype=tokens.dtype)
    module = stack.embedding.positions
    if module is None:
        return table
    found = module(torch.arange(ours + longest, device=tokens.device)).to(table)
    kept = min(first, ours)
    table[first - kept :] = found[ours - kept :]
    return table


def _completed(
    theirs: dict[str, Tensor], family: Family, shapes: Mapping[str, torch.Size], *, shared: bool
) -> dict[str, Tensor]:
    """With what the class has beside: zeros that change nothing, copies of what it keeps under two names."""
    like = next(iter(theirs.values()))
    out: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        value = theirs[name] if name in theirs else _missing(name, shape, theirs, family, like)
        if value.shape != shape:  # the encoder's smaller vocabulary: the rows after it are never read
            assert value.shape[1:] == shape[1:] and len(value) < shape[0], (value.shape, shape)
            value = torch.cat([value, value.new_zeros(shape[0] - len(value), *shape[1:])])
        seen = value.data_ptr() in {one.data_ptr() for one in out.values()}  # what shares memory is saved once only
        out[name] = _own(value, value.dtype, shared=shared and not seen)
    lost = set(theirs) - set(shapes)
    assert not lost, lost
    return out


def _missing(name: str, shape: torch.Size, theirs: Mapping[str, Tensor], family: Family, like: Tensor) -> Tensor:
    if name == "model.shared.weight":
        return theirs["model.encoder.embed_tokens.weight"]
    if name.endswith(("predictions.bias", "lm_head.bias")):
        return theirs.get(name.replace("bias", "decoder.bias"), like.new_zeros(shape))
    unused = family.unused is not None and f".{family.unused}" in name
    silent = name.endswith(("bias", "token_type_embeddings.weight", "pooler.dense.weight"))
    assert unused or silent, name
    norm = unused and name.endswith("norm.weight")
    return like.new_ones(shape) if norm else like.new_zeros(shape)


def _generation(model: IsogradPreTrainedModel) -> GenerationConfig:
    """The model's own settings, with a cache."""
    assert isinstance(model.generation_config, GenerationConfig)
    own = model.generation_config.to_diff_dict()
    return GenerationConfig(**{name: own[name] for name in own if name not in _NOT_SETTINGS} | {"use_cache": True})


def _in_double(model: IsogradPreTrainedModel, fitted: Fit, native: PreTrainedModel) -> PreTrainedModel:
    double = built(fit(copy.deepcopy(model).double(), fitted.family.name))
    made = from_pretrained(
        type(native), None, config=copy.deepcopy(native.config), state_dict=double.state_dict(), dtype=torch.float64
    )
    assert isinstance(made, PreTrainedModel)
    return made.eval()


def _fit_tokenizer(source: Source, folder: Path, fit: Fit) -> list[str]:
    """Make the files that were copied say what the class can read; what a user has to know beside.

    Token types go to classes that know them (GPT-2 would add the vectors of tokens 0 and 1), texts are cut where the
    position table ends, and of two vocabularies the source's is the one that `AutoTokenizer` finds.
    """
    tokenizer = source.tokenizer
    if tokenizer is None:
        return ["The model's folder had no tokenizer."]
    notes = []
    if isinstance(tokenizer, PairTokenizer):
        if not tokenizer.joint:
            for path in (folder / "source_tokenizer").iterdir():
                shutil.copyfile(path, folder / path.name)
            notes.append("The tokenizer reads the source; the one in target_tokenizer/ writes the target.")
        if tokenizer.tokenized:
            notes.append("It reads and writes Moses-tokenised text.")
        notes += _beyond(tokenizer)
    options: dict[str, Any] = {}
    if fit.kind in (CAUSAL, PAIR):
        options["model_input_names"] = ["input_ids", "attention_mask"]
    if fit.family.positions == "table":
        options["model_max_length"] = fit.family.rows(fit.model.config)
    for path in (folder / "tokenizer_config.json", folder / "target_tokenizer" / "tokenizer_config.json"):
        if path.is_file():
            content = read_json(path) | options
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return notes


def _beyond(tokenizer: PairTokenizer) -> list[str]:
    sides = {"source": tokenizer.source, "target": tokenizer.target}
    return [
        f"Ids of the {name} from {side.vocab_size} on are pieces without a row in the table: replace them by"
        f" {side.unk_id}, the unknown token, before the model reads them."
        for name, side in sides.items()
        if side.tokenizer.get_vocab_size() > side.vocab_size and (name == "source" or not tokenizer.joint)
    ]


# In.


def from_transformers(theirs: PreTrainedModel, *, shared: bool = False) -> IsogradPreTrainedModel:
    """The same function as an isograd model, in eval mode, in its dtype; `theirs` stays as it is.

    With `shared` both have the same tensors where one matrix is one matrix: nothing large is held twice.

    Sinusoids that the class computes are computed here, too; a table of others in their place becomes a learned one
    that is not trained (a saved model does not keep that).

    Raises:
        InteropError: a class that isograd has no counterpart for, an option or weights that it has no place for.
    """
    return _made(_read(theirs), theirs.dtype, shared=shared)


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What becomes of a model of transformers, its weights still where they were."""

    family: Family
    kind: ModelKind
    config: IsogradConfig
    state: dict[str, Tensor]


def _read(theirs: PreTrainedModel) -> _Read:
    family, kind = _counterpart(theirs)
    if why := family.unread(theirs.config):
        raise InteropError(why)
    options = family.from_options(theirs.config)
    state, rest = _renamed(theirs.state_dict(), family, kind, options)
    offset = rest.pop("final_logits_bias", None)
    if offset is not None and offset.any():
        state["lm_head.bias"] = offset[0]
    refuse(f"{type(theirs).__name__}: unexpected keys", set(rest) - set(_COPIES))
    options = family.read_positions(state, options)
    if options.get("position_embedding_type") in ADDED:
        state = {name: value for name, value in state.items() if not name.endswith("embedding.positions.weight")}
    return _Read(family=family, kind=kind, config=_config(theirs, family, kind, options, state), state=state)


def _made(read: _Read, dtype: torch.dtype, *, shared: bool) -> IsogradPreTrainedModel:
    """The model; what was read is emptied tensor by tensor, so that a matrix that is split is not held twice."""
    with torch.device("meta"):
        model = read.kind.cls(read.config)
    fill(model, {name: _own(read.state.pop(name), dtype, shared=shared) for name in [*read.state]})
    read.family.imported(model)
    return model.eval()


def under_our_names(theirs: PreTrainedModel, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What stands beside weights of theirs, by their names (gradients, an optimizer's moments), by ours.

    Raises:
        InteropError: as `from_transformers`.
    """
    family, kind = _counterpart(theirs)
    return _renamed(values, family, kind, family.from_options(theirs.config))[0]


def _renamed(
    values: Mapping[str, Tensor], family: Family, kind: ModelKind, options: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    layers = (
        {"encoder": options["encoder_layers"], "decoder": options["num_hidden_layers"]}
        if kind == PAIR
        else {"model": options["num_hidden_layers"]}
    )
    norms = "post" if options["placement"] == "post-ln" else "pre"
    table = family.names.modules(layers, dict.fromkeys(layers, norms), classifier=kind == CLASSIFIER)
    return from_theirs(values, table, family.names, options["num_attention_heads"])


def _own(value: Tensor, dtype: torch.dtype, *, shared: bool) -> Tensor:
    """A contiguous tensor with a storage of its own, or the one that was given if it is such."""
    whole = value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes
    return value.detach().to(dtype, copy=not (shared and whole), memory_format=torch.contiguous_format)


def import_pretrained(name: str | Path, out: str | Path, *, date: str | None = None) -> ParityReport:
    """A model of transformers' into the new folder `out`, with its tokenizer and its settings of generation.

    Args:
        name: a folder, or a name on the hub.
        date: stands in the report if it is given.

    Raises:
        ModelError, InteropError: no model there, or one that has no counterpart here.
        ParityError: the model does not compute what the original does; nothing is written.
    """
    theirs = _theirs(name)
    read, about = _read(theirs), type(theirs).__name__
    dtype: Any = theirs.dtype
    before = _original(theirs, read.family)
    model = _made(read, dtype, shared=True)
    tokenizer = load_tokenizer(model_place(str(name)) or name)
    _complete_ids(model.config, tokenizer)
    if model.can_generate() and theirs.generation_config is not None:
        model.generation_config = copy.deepcopy(theirs.generation_config)
    with new_folder(out) as part:
        model.save_pretrained(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        cls, placement = type(model), model.config.placement
        del model  # of a large one nothing is left: it is read again
        report = measure(
            before.side if isinstance(before, Remembered) else before,
            from_pretrained(cls, part),
            before.sample if isinstance(before, Remembered) else None,
            about=f"{about} imported as {placement}",
            files=hashes(part),
            source=hashes(name) if Path(name).is_dir() else {},
            date=date,
        )
        report.write(part)
    return report


def read_pretrained(name: str) -> tuple[IsogradPreTrainedModel, Any]:
    """A model of transformers' as one of ours, and its tokenizer; nothing is written.

    Raises:
        ModelError, InteropError: as `import_pretrained`.
    """
    with silent():
        theirs = _theirs(name)
        try:
            model = from_transformers(theirs, shared=True)
        except ValueError as error:  # a size that no model of ours has
            raise error if isinstance(error, IsogradError) else InteropError(f"{name}: {error}") from error
        tokenizer = load_tokenizer(model_place(name) or name)
    _complete_ids(model.config, tokenizer)
    return model, tokenizer


@contextmanager
def silent() -> Iterator[None]:
    """transformers' bars and notices off."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _theirs(name: str | Path) -> PreTrainedModel:
    if (folder := model_place(str(name), ModelError)) is not None:
        must_have_weights(folder)
    theirs = load_model(str(name)).eval()
    if isinstance(theirs, IsogradPreTrainedModel) or not isinstance(theirs, PreTrainedModel):
        raise InteropError(f"{name}: a {type(theirs).__name__}, expected a model of transformers' own")
    return theirs


def _complete_ids(config: IsogradConfig, tokenizer: Any) -> None:
    """What begins and ends a text, where the configuration does not say."""
    if tokenizer is not None:
        config.bos_token_id = _first(config.bos_token_id, tokenizer.bos_token_id, tokenizer.cls_token_id)
        config.eos_token_id = _first(config.eos_token_id, tokenizer.eos_token_id, tokenizer.sep_token_id)


def _original(theirs: PreTrainedModel, family: Family) -> Side | Remembered:
    """To compare with; of a large model what it says, and it loses its weights."""
    whole = family.comparable(theirs)
    if not is_large(theirs):
        return {"fp64": family.in_fp64(theirs), "fp32": whole, "bf16": whole}
    kept = Remembered.of(whole, random_sample(theirs))
    theirs.to("meta")
    return kept


def _counterpart(theirs: PreTrainedModel) -> tuple[Family, ModelKind]:
    name, why = type(theirs).__name__, _reason(theirs)
    read = [(family, kind) for family in FAMILIES.values() for kind in family.classes if kind not in family.only_out]
    known = {family.classes[kind]: (family, kind) for family, kind in read}
    known |= {family.second_head: (family, kind) for family, kind in read if family.second_head and kind == MASKED}
    if why is not None:
        raise InteropError(f"{name}: no counterpart here: {why}")
    if name not in known:
        raise InteropError(f"{name}: no counterpart here; expected one of {', '.join(known)}")
    return known[name]


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")
_REASONS = {  # what a class's name begins with
    "its attention scores get a trained bias by relative position, which isograd's attention has not": (
        "T5",
        "MT5",
        "UMT5",
        "LongT5",
        "SwitchTransformers",
        "MPNet",
    ),
    "its attention scores are sums of products with relative positions (disentangled attention)": (
        "Deberta",
        "DebertaV2",
    ),
    "its attention scores get a bias by distance (ALiBi)": ("Bloom", "Mpt"),
    "its layers are recurrent or state spaces, not attention": ("Mamba", "Rwkv", "FalconMamba", "RecurrentGemma"),
    "its attention compresses keys and values (multi-head latent attention)": ("Deepseek",),
    "its token vectors are factorized and its layers share their weights": ("Albert",),
}


def _reason(theirs: Any) -> str | None:
    """Why a class of transformers has no counterpart here; None where no more is known than that no family has it."""
    name, config = type(theirs).__name__, theirs.config
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantised; load it in floating point (`model.dequantize()`) and save that"
    if hasattr(config, "vision_config") or hasattr(config, "audio_config"):
        return "it reads more than text; name its text model"
    for why, prefixes in _REASONS.items():
        if any(name.startswith(f"{prefix}{rest}") for prefix in prefixes for rest in ("For", "V", "Model", "LM")):
            return why
    if any(getattr(config, option, None) for option in _EXPERTS):
        return "its feed-forwards are mixtures of experts, and isograd's are one branch each"
    return None


def _config(
    theirs: PreTrainedModel, family: Family, kind: ModelKind, options: dict[str, Any], state: Mapping[str, Tensor]
) -> IsogradConfig:
    config: Any = theirs.config
    options = {"scale_embedding": False} | options | {name: getattr(config, name, None) for name in _IDS}
    table = theirs.get_input_embeddings().weight
    if kind == PAIR:
        source, table = theirs.get_encoder().embed_tokens.weight, theirs.get_decoder().embed_tokens.weight
        own = None if len(source) == len(table) else len(source)
        options |= {"encoder_vocab_size": own, "share_encoder_embeddings": source is table}
    head = family.head(theirs)
    tied = isinstance(head, nn.Module) and head.weight is table
    if kind == PAIR and not tied:
        options["share_encoder_embeddings"] = False  # one table for all three, or each its own
    if kind == CLASSIFIER:
        tied, labels = True, ("num_labels", "problem_type")
        options |= {name: getattr(config, name) for name in labels}
    return IsogradConfig(
        **options,
        vocab_size=len(table),
        tie_word_embeddings=tied,
        head_bias="lm_head.bias" in state,
        next_sentence="next_sentence.dense.weight" in state,
        is_decoder=kind == CAUSAL,
    )


def _first(*ids: int | None) -> int | None:
    return next((i for i in ids if i is not None), None)
