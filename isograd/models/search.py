"""Beam search over sentences of any lengths: `search` for one batch, `translate_ids` for as many as there are.

The rules are fairseq's; they stand in `isograd.models.beam`, the step of the network in `isograd.models.decoding`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from isograd.models.beam import BeamSearch, EarlyStopping, Hypothesis
from isograd.models.decoding import STEPS, Decoding, decoding_mode
from isograd.models.seq2seq import IsogradForSeq2SeqLM


def search(
    model: IsogradForSeq2SeqLM,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    beam: int = 5,
    length_penalty: float = 1.0,
    stretch: float = 1.0,
    extra: int = 50,
    limit: int | None = None,
    min_length: int = 1,
    early_stopping: EarlyStopping = False,
    lengths: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The `beam` hypotheses of every sentence, best first.

    Special tokens are those of `model.generation_config`: one or several eos, pad (which may be eos), forced and
    suppressed ones; see `isograd.models.beam.SpecialTokens`.

    Args:
        input_ids: sources (sentences, source), padded on either side, eos at their ends.
        attention_mask: (sentences, source), 1 where a token counts; None where all do.
        stretch, extra, limit: at most min(stretch * length of the source + extra, limit) tokens stand before eos;
            `limit=None` takes what the model's positions allow.
        min_length: at least so many tokens stand before eos.
        early_stopping: True stops a sentence when `beam` hypotheses are finished, as fairseq does; False goes on while
            a live beam, ended at the next token, would be the best, and "never" while one could at any length (one beam
            is greedy either way).
        lengths: the length of each source for that bound; None takes the number of its own tokens, so that a
            translation does not depend on the batch. fairseq takes the width of the batch.

    Raises:
        ValueError: an option out of its range, a model without the ids that a search needs, or with one beyond its
            vocabulary, logits that are not numbers.
    """
    if min(beam, len(input_ids)) < 1 or min(min_length, extra, stretch, limit or 0) < 0:
        raise ValueError(
            f"a search needs sentences, beam >= 1, and min_length, extra, stretch, limit >= 0;"
            f" got {len(input_ids)} sentences, {beam=}, {min_length=}, {extra=}, {stretch=}, {limit=}"
        )
    if early_stopping not in (True, False, "never"):
        raise ValueError(f"{early_stopping=} must be True, False or 'never'")
    if lengths is None:
        width = input_ids.shape[1]
        lengths = [width] * len(input_ids) if attention_mask is None else attention_mask.sum(dim=1).tolist()
    if len(lengths) != len(input_ids):
        raise ValueError(f"{len(lengths)} lengths for {len(input_ids)} sentences")
    longest = _longest(model, limit)
    limits = [min(int(stretch * length + extra), longest) for length in lengths]
    with torch.inference_mode(), decoding_mode(model):
        memory = model.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        decoding = Decoding(model, memory, attention_mask, beam)
        return BeamSearch(decoding, limits, beam, length_penalty, min_length, early_stopping).run()


def translate_ids(
    model: IsogradForSeq2SeqLM,
    sources: Sequence[Sequence[int]],
    *,
    tokens: int = 8192,
    beam: int = 5,
    lengths: Sequence[int] | None = None,
    **options: Any,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """(index of the source, its hypotheses) for every source, batch by batch, the longest first.

    Args:
        sources: ids of each sentence, eos at its end.
        tokens: bound on sentences * beam * length in a batch; a short source counts 16, as keys have room for so many.
        lengths, options: as in `search`.

    Raises:
        ValueError: an empty source, or one that is longer than a learned table of positions, by its index.
        OutOfMemoryError: torch's, also of a CPU.
    """
    longest = model.encoder.longest
    for index, source in enumerate(sources):
        if not len(source):
            raise ValueError(f"source {index} is empty; it needs eos at least")
        if longest is not None and len(source) > longest:
            raise ValueError(f"source {index} has {len(source)} tokens, and the model reads {longest} at most")
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    batches = _batches(order, [max(len(source), STEPS) * beam for source in sources], tokens)
    own = [len(source) for source in sources] if lengths is None else lengths
    return _translate(model, sources, batches, own, options | {"beam": beam})


def _translate(
    model: IsogradForSeq2SeqLM,
    sources: Sequence[Sequence[int]],
    batches: list[list[int]],
    lengths: Sequence[int],
    options: dict[str, Any],
) -> Iterator[tuple[int, list[Hypothesis]]]:
    pad = model.config.pad_token_id or 0
    for batch in batches:
        width = max(len(sources[index]) for index in batch)
        rows = torch.full((len(batch), width), pad)
        mask = torch.zeros_like(rows)
        for row, index in enumerate(batch):
            rows[row, : len(sources[index])] = torch.as_tensor(sources[index])
            mask[row, : len(sources[index])] = 1
        own = [lengths[index] for index in batch]
        try:
            found = search(model, rows.to(model.device), mask.to(model.device), lengths=own, **options)
        except RuntimeError as error:
            if "can't allocate memory" in str(error):  # a CPU's error has no class of its own
                raise torch.OutOfMemoryError(f"not enough memory for {options}") from error
            raise
        yield from zip(batch, found, strict=True)


def _batches(order: list[int], costs: list[int], bound: int) -> list[list[int]]:
    """Runs of `order`, longest first: sentences * cost of the first are within the bound, or one sentence is alone."""
    out: list[list[int]] = []
    for index in order:
        if out and (len(out[-1]) + 1) * costs[out[-1][0]] <= bound:
            out[-1].append(index)
        else:
            out.append([index])
    return out


def _longest(model: IsogradForSeq2SeqLM, limit: int | None) -> int:
    """Tokens before eos: the decoder reads one more, its start token."""
    allowed = model.config.max_position_embeddings - 1
    if limit is None:
        return allowed
    if model.decoder.longest is not None and limit > allowed:
        raise ValueError(f"limit={limit}, but the model's positions allow {allowed} tokens before eos")
    return limit
