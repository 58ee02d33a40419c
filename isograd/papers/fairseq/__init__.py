"""Checkpoints of fairseq 0.12 and of Transformer-Clinic (ADMIN's code, a fork of fairseq 0.8) as isograd models.

    model = from_fairseq(state, config)        state: their names -> tensors; config: the options of the run
    import_fairseq("checkpoint_best.pt", "out", dictionaries=["dict.de.txt", "dict.en.txt"])

Placements that no catalogue holds come from the options: `isograd.placement.flags`. An import is measured against the
original's equations on the original's weights (`isograd.papers.fairseq.original`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isograd.convert.checkpoints.checkpoint import Options, plain, read_checkpoint, tensors
from isograd.convert.checkpoints.vocabulary import save_tokenizer
from isograd.convert.checkpoints.weights import fill, refuse
from isograd.convert.kinds import MASKED, kind_of
from isograd.convert.parity import ParityReport, hashes, measure
from isograd.convert.sample import random_sample
from isograd.errors import DataError, InteropError
from isograd.files import new_folder, read_json
from isograd.hub import from_pretrained
from isograd.models import IsogradConfig
from isograd.models.base import IsogradPreTrainedModel
from isograd.papers.fairseq.dictionaries import tokenizer_of
from isograd.papers.fairseq.names import original_name, renamed, tables, upgraded
from isograd.papers.fairseq.options import config_from_fairseq, described, normed_before, options_of
from isograd.papers.fairseq.original import Original
from isograd.placement import Stack
from isograd.transformer.positions import sinusoidal

FIRST_WITH_VERSION = 2.0  # older stacks of fairseq end without a norm, whatever their options
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


def from_fairseq(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> IsogradPreTrainedModel:
    """The model with these weights, in their dtype, in eval mode.

    Sinusoidal positions are computed as fairseq computes them, in float32. A table that stands in the state
    (`sinusoidal_table`, `encoder_sinusoidal_table`, `decoder_sinusoidal_table`) is used as it is: where it differs from
    ours in any bit it becomes a learned table, frozen.

    Args:
        state: the state dict (`checkpoint["model"]`); sharing of tables is as the options say.
        config: the options by the original's names (`checkpoint["args"]`, or `checkpoint["cfg"]["model"]`, as a
            mapping), or a mapping that holds them under "config", with vocab_size, pad, bos and eos beside them.

    Raises:
        InteropError: options or weights that isograd has no place for, weights that are missing or of another shape.
    """
    options = options_of(config)
    given, stored = tables(state)
    given = _with_copies(upgraded(given), options)
    options = _of_one_stack(given, options)
    stored = {side: table for side, table in stored.items() if not _is_ours(table, options)}
    model = described(options).cls(_config(given, options, stored))
    weights = renamed(given, options)
    prefixes = {side: side if model.config.is_encoder_decoder else "model" for side in stored}
    for side, table in stored.items():
        weights[f"{prefixes[side]}.embedding.positions.weight"] = table
    fill(model, weights, lambda name: original_name(name, options))
    for prefix in prefixes.values():
        getattr(model, prefix).embedding.positions.weight.requires_grad_(False)
    return model.eval()


def import_fairseq(
    path: str | Path,
    out: str | Path,
    *,
    dictionaries: Sequence[str | Path] = (),
    codes: str | Path | None = None,
    options: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    date: str | None = None,
) -> ParityReport:
    """Write model, tokenizer, generation_config.json and parity.json into the new folder `out`.

    The parity report compares what was written with the original's equations on the original's weights.

    Args:
        path: a checkpoint of torch.save, or the tensors alone in safetensors.
        dictionaries: dict.txt, or the source's and the target's.
        codes: merges of subword-nmt.
        options: a JSON file of options, for a file of tensors alone.
        changes: options that are missing, or that are to be others.
        date: stands in the report if it is given.

    Raises:
        DataError, ValueError: a file that cannot be read or would run something, options or weights that isograd has no
            place for, a dictionary of another size; one line.
        ParityError: the model does not compute what the original does; nothing is written.
    """
    checkpoint = read_fairseq(path, options=options, changes=changes)
    model = from_fairseq(checkpoint.state, checkpoint.options)
    tokenizer = _tokenizer(checkpoint, model, dictionaries, codes)
    with new_folder(out) as part:
        model.save_pretrained(part)
        if tokenizer is not None:
            save_tokenizer(tokenizer, part)
        report = _measured(checkpoint, model, part, date)
        report.write(part)
    return report


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
        said = "no options in it ('args' or 'cfg'); give them as --options FILE.json"
        raise DataError(f"{path}: {said}; of torch.nn.Transformer? --heads N")
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
        content = read_json(path)
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
    options = checkpoint.options
    languages = (str(options.get("source_lang") or "source"), str(options.get("target_lang") or "target"))
    paths = [Path(path) for path in dictionaries]
    kind = kind_of(model)
    assert kind is not None
    return tokenizer_of(kind, model.config, paths, None if codes is None else Path(codes), languages)


def _measured(checkpoint: Checkpoint, model: IsogradPreTrainedModel, part: Path, date: str | None) -> ParityReport:
    """What was written and is read again, against the original's equations; of half precision, its copies in fp32."""
    options = dict(checkpoint.options)
    state, stored = tables(checkpoint.state)
    state |= {f"{stack}.embed_positions.weight": table for stack, table in stored.items()}
    written = from_pretrained(type(model), part, dtype=torch.promote_types(model.dtype, torch.float32))
    original = Original(model.config, upgraded(state), options).to(written.dtype)
    arch = options.get("arch") or options.get("_name") or type(model).__name__
    return measure(
        original,
        written,
        replace(random_sample(model, batches=1), new_tokens=_NEW_TOKENS),  # the equations keep no cache
        about=f"{checkpoint.path.name} ({arch}) imported as {model.config.placement}, against its equations",
        files=hashes(part),
        source=hashes(checkpoint.path),
        date=date,
    )


def _config(state: Mapping[str, Tensor], options: Mapping[str, Any], stored: Mapping[Stack, Tensor]) -> IsogradConfig:
    rows = {stack: table for stack in ("encoder", "decoder") if (table := _table(state, stack)) is not None}
    main = rows["decoder"] if "decoder" in rows else rows["encoder"]
    given_size = options.get("vocab_size")
    if given_size is not None and given_size != len(main):
        raise InteropError(f"vocab_size={given_size}, but the token table has {len(main)} rows")
    widths: dict[str, int | None] = {"input_size": None, "output_size": None}
    if "decoder.project_in_dim.weight" in state:
        widths["input_size"] = main.shape[1]
    if "decoder.project_out_dim.weight" in state:
        widths["output_size"] = len(state["decoder.project_out_dim.weight"])
    return config_from_fairseq(
        options,
        len(main),
        encoder_vocab_size=len(rows["encoder"]) if len(rows) == 2 else None,
        **widths,
        admin=any(name.endswith("_ratio_change") for name in state),
        final=not _ends_bare(state, options),
        learned={stack: len(table) - int(options.get("pad", 1)) - 1 for stack, table in stored.items()},
    )


def _with_copies(state: dict[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state with both names of a shared table: a format that stores it once keeps any of them."""
    one, other = "decoder.embed_tokens.weight", "decoder.output_projection.weight"
    shared = [(one, other)] if options.get("share_decoder_input_output_embed") else []
    if options.get("share_all_embeddings"):
        shared = [(one, other), (one, "encoder.embed_tokens.weight"), ("encoder.embed_tokens.weight", one)]
    if not options.get("untie_weights_roberta"):
        shared.append(("encoder.sentence_encoder.embed_tokens.weight", "encoder.lm_head.weight"))
    for name, source in shared:
        if name not in state and source in state:
            state[name] = state[source]
    return state


def _of_one_stack(state: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those of a stack that has no weights: fairseq's parsers leave some of both."""
    there = {stack for stack in ("encoder", "decoder") if _table(state, stack) is not None}
    if not there:
        raise InteropError("no embed_tokens.weight among the weights: is this the state dict of a Transformer?")
    refuse("missing options", [f"{t}_layers" for t in there if options.get(f"{t}_layers") is None])
    absent = {"encoder", "decoder"} - there
    return {name: value for name, value in options.items() if not any(name == f"{t}_layers" for t in absent)}


def _ends_bare(state: Mapping[str, Tensor], options: Mapping[str, Any]) -> bool:
    """Whether a Pre-LN decoder of the first fairseq, which had no norm after the last layer."""
    if described(options) == MASKED or not normed_before(options, "decoder") or "decoder.layer_norm.weight" in state:
        return False
    version = state.get("decoder.version")
    return version is None or float(version.flatten()[0]) < FIRST_WITH_VERSION


def _is_ours(table: Tensor, options: Mapping[str, Any]) -> bool:
    """Bit for bit, from the first position on."""
    first = int(options.get("pad", 1)) + 1
    ours = sinusoidal(torch.arange(len(table)), table.shape[1])
    return torch.equal(table[first:].float().cpu(), ours[first:])


def _table(state: Mapping[str, Tensor], stack: str) -> Tensor | None:
    names = (f"{stack}.embed_tokens.weight", f"{stack}.sentence_encoder.embed_tokens.weight")
    return next((state[name] for name in names if name in state), None)
