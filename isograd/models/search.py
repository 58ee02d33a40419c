"""Beam search by fairseq's rules, and translation of many sentences with it.

    score = (log p(y_1) + .. + log p(y_n)) / n^length_penalty,   y_n = eos, n counts it

At each step the 2 * beam best continuations of a sentence are taken. Those by eos are finished if they are among the
first `beam`; the first `beam` others live on. A sentence stops when `beam` hypotheses are finished; they are not
compared with what still lives. At the greatest length eos is forced, at its own log-probability.

`generate` of transformers 5.23, with a processor for the forced eos, gives 71 of the 100 reference lists: where more
hypotheses finish in a step than there are places left, it lets the better of them push out what was finished before.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from isograd.models.decoding import Decoding
from isograd.models.seq2seq import IsogradForSeq2SeqLM


@dataclass(frozen=True)
class Hypothesis:
    """One finished translation.

    Args:
        tokens: ids, eos included.
        score: the sum of log-probabilities over length^length_penalty.
        token_scores: the log-probability of each token, in nats.
    """

    tokens: list[int]
    score: float
    token_scores: list[float]


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
    lengths: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The `beam` hypotheses of every sentence, best first.

    Args:
        input_ids: sources (sentences, source), padded on either side, eos at their ends.
        attention_mask: (sentences, source), 1 where a token counts; None where all do.
        stretch, extra, limit: at most min(stretch * length of the source + extra, limit) tokens stand before eos;
            `limit=None` takes what the model's positions allow.
        min_length: at least so many tokens stand before eos.
        lengths: the length of each source for that bound; None takes the number of its own tokens, so that a
            translation does not depend on the batch. fairseq takes the width of the batch.

    Raises:
        ValueError: an option out of its range, a model without the ids that a search needs, logits that are not
            numbers.
    """
    ids = _ids(model)
    if min(beam, len(input_ids)) < 1 or min(min_length, extra, stretch) < 0:
        raise ValueError(
            f"a search needs sentences, beam >= 1, and min_length, extra, stretch >= 0; got {len(input_ids)} sentences,"
            f" {beam=}, {min_length=}, {extra=}, {stretch=}"
        )
    if lengths is None:
        width = input_ids.shape[1]
        lengths = [width] * len(input_ids) if attention_mask is None else attention_mask.sum(dim=1).tolist()
    longest = _longest(model, limit)
    limits = [min(int(stretch * length + extra), longest) for length in lengths]
    with torch.inference_mode(), _ready(model):
        memory = model.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        decoding = Decoding(model, memory, attention_mask, beam)
        return _Search(decoding, limits, beam, length_penalty, min_length, ids).run()


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
        tokens: bound on sentences * beam * length in a batch.
        lengths, options: as in `search`.

    Raises:
        ValueError: an empty source, or one that is longer than a learned table of positions, by its index.
    """
    longest = model.encoder.longest
    for index, source in enumerate(sources):
        if not len(source):
            raise ValueError(f"source {index} is empty; it needs eos at least")
        if longest is not None and len(source) > longest:
            raise ValueError(f"source {index} has {len(source)} tokens, and the model reads {longest} at most")
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    batches = _batches(order, [len(source) * beam for source in sources], tokens)
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
        found = search(model, rows.to(model.device), mask.to(model.device), lengths=own, **options)
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


@dataclass(frozen=True)
class _Ids:
    start: int
    eos: int
    pad: int | None


def _ids(model: IsogradForSeq2SeqLM) -> _Ids:
    start, eos, pad = (getattr(model.config, f"{n}_token_id") for n in ("decoder_start", "eos", "pad"))
    if start is None or eos is None:
        raise ValueError("a search needs decoder_start_token_id and eos_token_id in the model's config")
    return _Ids(start, eos, pad)


def _longest(model: IsogradForSeq2SeqLM, limit: int | None) -> int:
    """Tokens before eos: the decoder reads one more, its start token."""
    allowed = model.config.max_position_embeddings - 1
    if limit is None:
        return allowed
    if model.decoder.longest is not None and limit > allowed:
        raise ValueError(f"limit={limit}, but the model's positions allow {allowed} tokens before eos")
    return limit


@contextmanager
def _ready(model: IsogradForSeq2SeqLM) -> Iterator[None]:
    """Eval mode, and attention that takes a mask per beam; both as they were at the end."""
    modes = [(module, module.training) for module in model.modules()]
    attention = model.config._attn_implementation
    model.eval()
    if attention != "eager":
        model.config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        model.config._attn_implementation = attention
        for module, mode in modes:
            module.training = mode


class _Search:
    """The rules; a row is a sentence that has not stopped."""

    def __init__(
        self, decoding: Decoding, limits: list[int], beam: int, length_penalty: float, min_length: int, ids: _Ids
    ) -> None:
        self.decoding, self.limits, self.beam, self.ids = decoding, limits, beam, ids
        self.length_penalty, self.min_length = length_penalty, min_length
        self.sentences = list(range(len(limits)))  # of each row
        self.found: list[list[Hypothesis]] = [[] for _ in limits]

    def run(self) -> list[list[Hypothesis]]:
        rows = len(self.limits)
        device = self.decoding.open.device
        tokens = torch.full((rows, 1), self.ids.start, device=device)
        totals = self.decoding.open.new_zeros((rows, 1))
        written, scores, parents = tokens.new_empty((rows, 1, 0)), totals.new_empty((rows, 1, 0)), None
        for time in count():
            logits = self.decoding.step(tokens, parents)
            best, token, parent, own = self._candidates(logits, totals, time)
            by_eos = token == self.ids.eos
            self._collect(best, by_eos, parent, own, written, scores, time)
            live = by_eos.int().argsort(dim=1, stable=True)[:, : self.beam]
            totals = best.masked_fill(by_eos, -torch.inf).gather(1, live)
            tokens, parents = token.gather(1, live), parent.gather(1, live)
            written = _grown(written, parents, tokens)
            scores = _grown(scores, parents, own.gather(1, live))
            rows_left = self._stay(time)
            if not rows_left:
                break
            if len(rows_left) < len(self.sentences):
                self.sentences = [self.sentences[row] for row in rows_left]
                self.decoding.keep(rows_left)
                index = torch.tensor(rows_left, device=device)
                tokens, parents, totals = tokens[index], parents[index], totals[index]
                written, scores = written[index], scores[index]
        return [self._sorted(sentence) for sentence in self.found]

    def _candidates(self, logits: Tensor, totals: Tensor, time: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the 2 * beam best continuations of each row: total, token, beam, own log-probability."""
        eos, pad = self.ids.eos, self.ids.pad
        logits = logits.to(totals.dtype)
        normaliser = logits.logsumexp(dim=-1, keepdim=True)
        at_eos = logits[..., eos] - normaliser[..., 0]
        if pad is not None:
            logits[..., pad] = -torch.inf
        if time < self.min_length:
            logits[..., eos] = -torch.inf
        top, ids = logits.topk(min(2 * self.beam, logits.shape[-1]), dim=-1)
        log_p = top - normaliser  # (rows, beams, 2 * beam)
        forced = [row for row, sentence in enumerate(self.sentences) if self.limits[sentence] <= time]
        if forced:
            log_p[forced] = -torch.inf
            log_p[forced, :, 0] = at_eos[forced]
            ids[forced, :, 0] = eos
        every = (totals[..., None] + log_p).flatten(1)
        best, flat = every.topk(min(2 * self.beam, every.shape[1]), dim=1)
        parent = flat // log_p.shape[2]
        return best, ids.flatten(1).gather(1, flat), parent, log_p.flatten(1).gather(1, flat)

    def _collect(
        self, best: Tensor, by_eos: Tensor, parent: Tensor, own: Tensor, written: Tensor, scores: Tensor, time: int
    ) -> None:
        """Accept what is finished, in the order of rank, until a sentence has `beam` hypotheses."""
        accepted = by_eos[:, : self.beam] & best[:, : self.beam].isfinite()
        for row, rank in accepted.nonzero().tolist():
            beam = int(parent[row, rank])
            hypothesis = Hypothesis(
                tokens=[*written[row, beam].tolist(), self.ids.eos],
                score=float(best[row, rank]) / (time + 1) ** self.length_penalty,
                token_scores=[*scores[row, beam].tolist(), float(own[row, rank])],
            )
            self._accept(self.found[self.sentences[row]], hypothesis)

    def _accept(self, found: list[Hypothesis], hypothesis: Hypothesis) -> None:
        if len(found) < self.beam:
            found.append(hypothesis)

    def _stay(self, time: int) -> list[int]:
        """Rows that go on, each at its place; the last ones take the places of those that stop."""
        goes_on = [
            len(self.found[sentence]) < self.beam and time < self.limits[sentence] for sentence in self.sentences
        ]
        left = sum(goes_on)
        movers = (row for row in range(left, len(goes_on)) if goes_on[row])
        return [row if goes_on[row] else next(movers) for row in range(left)]

    def _sorted(self, found: list[Hypothesis]) -> list[Hypothesis]:
        if not found:
            raise ValueError("the model's log-probabilities are not finite: no hypothesis could be finished")
        return sorted(found, key=lambda hypothesis: -hypothesis.score)


def _grown(history: Tensor, parents: Tensor, new: Tensor) -> Tensor:
    """(rows, beams, time) -> (rows, beams, time + 1), each beam behind its parent's history."""
    before = history.gather(1, parents[..., None].expand(-1, -1, history.shape[2]))
    return torch.cat([before, new[..., None]], dim=2)
