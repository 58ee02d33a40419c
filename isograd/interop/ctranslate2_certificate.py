"""What CTranslate2 computes from an exported folder, beside the model it was made from.

A generator gives logits. A translator gives no logits of a given target but its log-probabilities, so these are
compared, and what both write by the same rules: greedy, and on real sentences beam 5 with `early_stopping=True`, which
is CTranslate2's rule. Any length is allowed: it would shut </s> out before the softmax, ours does behind it.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isograd.errors import needed
from isograd.interop.certificate import Certificate, certify, hashes
from isograd.interop.ctranslate2 import Holds, Quantization
from isograd.interop.ctranslate2_spec import LONGEST
from isograd.interop.running import Part, Runner
from isograd.interop.sample import Batch, Sample, random_sample
from isograd.interop.vocabulary import pieces, sides
from isograd.models import IsogradForSeq2SeqLM
from isograd.models.search import search

EXACT = 1e-5
QUANTIZED = 0.2  # of the largest logit: weights of 8 bits move it by some hundredths
EXTRA = 50  # tokens beyond the source that a translation may have, on both sides


def certify_ctranslate2(
    model: Holds,
    tokenizer: Any,
    folder: str | Path,
    sample: Sample | None = None,
    *,
    quantization: Quantization | None = None,
    **others: Any,
) -> Certificate:
    """The model against the folder that `export_ctranslate2` wrote from it, in float32 on one thread of the CPU.

    Args:
        sample: None draws random ids.
        quantization: what the folder was written with; then logits may differ by `QUANTIZED`, and nothing is written.
        others: hashes of the source and a date, as `certify` takes them.
    """
    (library,) = needed("export", "ctranslate2")
    sample = random_sample(model) if sample is None else sample
    options = {"device": "cpu", "inter_threads": 1, "intra_threads": 1}
    options["compute_type"] = "default" if quantization else "float32"
    pair = isinstance(model, IsogradForSeq2SeqLM)
    if isinstance(model, IsogradForSeq2SeqLM):
        ours: Part = _ours(copy.deepcopy(model).float())
        theirs = _translator(model, tokenizer, library.Translator(str(folder), **options))
    else:
        ours = model
        theirs = _generator(model, tokenizer, library.Generator(str(folder), **options))
    if quantization:
        sample = replace(sample, prompts=())
    beams = (1, 5) if pair and sample.kind != "random ids" else (1,)
    notes = ["Compared are the log-probabilities of given targets."] if pair else []
    return certify(
        {"fp32": ours},
        {"fp32": theirs},
        sample,
        about=f"{type(model).__name__} and CTranslate2" + (f" ({quantization})" if quantization else ""),
        limits={"fp32": QUANTIZED if quantization else EXACT},
        beams=beams,
        files=hashes(Path(folder)),
        versions={"ctranslate2": library.__version__},
        notes=notes,
        **others,
    )


def _ours(model: IsogradForSeq2SeqLM) -> Runner:
    def logits(batch: Batch) -> Tensor:
        with torch.inference_mode():
            logits = model(**batch).logits
        return logits.log_softmax(dim=-1).gather(2, _next(model, batch)[..., None])

    def write(prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
        ids, mask = prompt["input_ids"], prompt["attention_mask"]
        found = search(model, ids, mask, beam=beams, extra=EXTRA, min_length=0, early_stopping=True)
        return [_shortened(best.tokens[:-1], beams, new_tokens) for best, *_ in found]

    return Runner(logits=logits, write=write)


def _translator(model: IsogradForSeq2SeqLM, tokenizer: Any, library: Any) -> Runner:
    source, target = sides(tokenizer)
    read = pieces(source, model.encoder.embedding.tokens.num_embeddings)
    written = pieces(target, model.config.vocab_size)
    own = model.config
    pad = None if own.pad_token_id in (None, own.eos_token_id) else [[written[own.pad_token_id]]]

    def logits(batch: Batch) -> Tensor:
        """Log-probabilities of the next tokens, </s> behind the last one: (batch, time, 1)."""
        sources = _tokens(batch["input_ids"], batch["attention_mask"], read)
        targets = _tokens(batch["decoder_input_ids"], batch["decoder_attention_mask"], written)
        out = torch.zeros(*batch["decoder_input_ids"].shape, 1)
        for row, found in enumerate(library.score_batch(sources, [tokens[1:] for tokens in targets])):
            out[row, : len(found.log_probs), 0] = torch.tensor(found.log_probs)
        return out

    def write(prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
        sources = _tokens(prompt["input_ids"], prompt["attention_mask"], read)
        found = library.translate_batch(
            sources,
            beam_size=beams,
            length_penalty=1.0,
            max_decoding_length=min(max(map(len, sources)) + EXTRA, (model.decoder.longest or LONGEST) - 1),
            min_decoding_length=0,
            return_end_token=True,
            suppress_sequences=pad if beams == 1 else None,  # in a beam it would change the probabilities of the others
        )
        end = model.config.eos_token_id
        ids = [[written.index(token) for token in result.hypotheses[0]] for result in found]
        return [_shortened(row[:-1] if row[-1] == end else row, beams, new_tokens) for row in ids]

    return Runner(logits=logits, write=write)


def _generator(model: Holds, tokenizer: Any, library: Any) -> Runner:
    tokens = pieces(sides(tokenizer)[1], model.config.vocab_size)

    def logits(batch: Batch) -> Tensor:
        lengths = batch["attention_mask"].sum(dim=1).tolist()
        rows = [row[:length] for row, length in zip(batch["input_ids"].tolist(), lengths, strict=True)]
        out = torch.zeros(*batch["input_ids"].shape, len(tokens))
        found = torch.from_numpy(np.array(library.forward_batch(rows)))
        out[:, : found.shape[1]] = found
        return out

    def write(prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
        prompts = _tokens(prompt["input_ids"], prompt["attention_mask"], tokens)
        options = {"beam_size": beams, "max_length": new_tokens, "include_prompt_in_result": False}
        return [result.sequences_ids[0] for result in library.generate_batch(prompts, **options)]

    return Runner(logits=logits, write=write)


def _next(model: IsogradForSeq2SeqLM, batch: Batch) -> Tensor:
    """What each place of the decoder is to write: (batch, time), </s> at the last one that counts."""
    ids, lengths = batch["decoder_input_ids"], batch["decoder_attention_mask"].sum(dim=1)
    ids = ids.roll(-1, dims=1)
    ids[torch.arange(len(ids)), lengths - 1] = model.config.eos_token_id
    return ids


def _tokens(ids: Tensor, mask: Tensor, known: list[str]) -> list[list[str]]:
    """Rows of strings, without padding."""
    return [
        [known[i] for i in row[:length]] for row, length in zip(ids.tolist(), mask.sum(dim=1).tolist(), strict=True)
    ]


def _shortened(ids: list[int], beams: int, new_tokens: int) -> list[int]:
    """The beginning of what is written greedily, which may never end; a hypothesis of a beam as a whole."""
    return ids[:new_tokens] if beams == 1 else ids
