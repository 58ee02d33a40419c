"""Beam search by fairseq's rules.

    score = (log p(y_1) + .. + log p(y_n)) / n^length_penalty,   y_n = eos, n counts it

At each step the 2 * beam best continuations of a sentence are taken (with k ids that end a sentence, (1 + k) * beam).
Those by eos are finished if they are among the first `beam`; the first `beam` others live on. At the greatest length
eos is forced, at its own log-probability. Padding is never written, unless pad is eos.

With `early_stopping` a sentence stops when `beam` hypotheses are finished; they are not compared with what still lives.
That is fairseq's rule, and it harms a model that is nearly certain: short ones that it hardly believes in fill the
places while the right one is still being written. Without, a sentence goes on while a live beam is on the way to be the
best, and keeps its `beam` best.

`generate` of transformers 5.23, with a processor for the forced eos, gives 71 of the 100 reference lists: where more
hypotheses finish in a step than there are places left, it lets the better of them push out what was finished before.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Literal

import torch
from torch import Tensor

from isograd.models.decoding import Decoding
from isograd.models.seq2seq import IsogradForSeq2SeqLM

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Ids that a search treats as `generate` does, under the names of transformers' GenerationConfig.

    Args:
        start: what the decoder reads first (decoder_start_token_id).
        ends: each ends a sentence (eos_token_id).
        never: are never written (suppress_tokens, bad_words_ids of one token, and pad_token_id unless it ends).
        never_first: are not written first, or first after `first` (begin_suppress_tokens).
        first: is written first, at log-probability 0 (forced_bos_token_id); None: any.
        last: one of them is written at the greatest length, at log-probability 0 (forced_eos_token_id); none: one of
            `ends`, at its own log-probability.
    """

    start: int
    ends: list[int]
    never: list[int]
    never_first: list[int]
    first: int | None
    last: list[int]

    @classmethod
    def of(cls, model: IsogradForSeq2SeqLM) -> "SpecialTokens":
        """Those of the model's generation_config; start, eos and pad are the config's where it names none.

        Raises:
            ValueError: no start or eos, or an id that is not in the vocabulary.
        """
        given, config = model.generation_config, model.config
        start, ends, pad = (
            getattr(given if getattr(given, name) is not None else config, name)
            for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        )
        if start is None or not _ids(ends):
            raise ValueError("a search needs decoder_start_token_id and eos_token_id in the model's config")
        bad = [word[0] for word in given.bad_words_ids or () if len(word) == 1]
        never = [*_ids(pad), *bad]
        own = cls(
            start=int(start),
            ends=_ids(ends),
            never=[*(i for i in never if i not in _ids(ends)), *_ids(given.suppress_tokens)],
            never_first=_ids(given.begin_suppress_tokens),
            first=given.forced_bos_token_id,
            last=_ids(given.forced_eos_token_id),
        )
        written = [*own.ends, *own.never, *own.never_first, *own.last, *_ids(own.first)]
        if outside := sorted({i for i in written if not 0 <= i < config.vocab_size}):
            raise ValueError(f"a search with token ids {outside}, and the vocabulary has {config.vocab_size}")
        return own


@dataclass(frozen=True)
class Hypothesis:
    """One finished translation.

    Args:
        tokens: ids, the one that ended it included.
        score: the sum of log-probabilities over length^length_penalty.
        token_scores: the log-probability of each token, in nats.
    """

    tokens: list[int]
    score: float
    token_scores: list[float]


class BeamSearch:
    """The rules; a row is a sentence that has not stopped."""

    def __init__(
        self,
        decoding: Decoding,
        limits: list[int],
        beam: int,
        length_penalty: float,
        min_length: int,
        early_stopping: EarlyStopping,
    ) -> None:
        self.special = SpecialTokens.of(decoding.model)
        self.looked_at = (1 + len(self.special.ends)) * beam
        self.ends, self.never, self.never_first = (
            torch.tensor(ids, dtype=torch.long, device=decoding.open.device)
            for ids in (self.special.ends, self.special.never, self.special.never_first)
        )
        self.decoding, self.limits, self.beam = decoding, limits, beam
        self.length_penalty, self.min_length = length_penalty, min_length
        self.early_stopping = True if beam == 1 else early_stopping  # one beam is greedy, and ends where it ends
        self.sentences = list(range(len(limits)))  # of each row
        self.found: list[list[Hypothesis]] = [[] for _ in limits]

    def run(self) -> list[list[Hypothesis]]:
        """The hypotheses of every sentence, best first.

        Raises:
            ValueError: a sentence for which nothing could be finished.
        """
        live = self._first()
        for time in count():
            best, token, parent, own = self._candidates(self.decoding.step(live.tokens, live.parents), live, time)
            by_eos = self._ends(token, time)
            self._collect(best, by_eos, token, parent, own, live, time)
            chosen = by_eos.int().argsort(dim=1, stable=True)[:, : self.beam]
            totals = best.masked_fill(by_eos, -torch.inf)
            live = live.go_on(*(x.gather(1, chosen) for x in (token, parent, totals, own)))
            rows = self._stay(live, time)
            if not rows:
                break
            if len(rows) < len(self.sentences):
                self.sentences = [self.sentences[row] for row in rows]
                self.decoding.keep(rows)
                live = live.keep(rows)
        return [self._sorted(found) for found in self.found]

    def _first(self) -> "Live":
        """One beam per sentence, which has read nothing yet."""
        shape, device = (len(self.limits), 1), self.decoding.open.device
        totals = self.decoding.open.new_zeros(shape)
        tokens = torch.full(shape, self.special.start, device=device)
        return Live(tokens, None, totals, tokens[..., None][..., :0], totals[..., None][..., :0])

    def _candidates(self, logits: Tensor, live: "Live", time: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the `looked_at` best continuations of each row: total, token, beam, own log-probability."""
        log_p = logits.to(live.totals.dtype)
        log_p = torch.log_softmax(log_p, dim=-1, out=log_p)
        last, at_last = self._last(log_p)
        self._mask(log_p, time)
        count = max(self.looked_at, len(last))
        log_p, ids = log_p.topk(min(count, log_p.shape[-1]), dim=-1)  # (rows, beams, count)
        forced = self._at_limit(time)
        if forced:
            log_p[forced] = -torch.inf
            log_p[forced, :, : len(last)] = at_last[forced]
            ids[forced, :, : len(last)] = last
        every = (live.totals[..., None] + log_p).flatten(1)
        best, flat = every.topk(min(count, every.shape[1]), dim=1)
        parent = flat // log_p.shape[2]
        return best, ids.flatten(1).gather(1, flat), parent, log_p.flatten(1).gather(1, flat)

    def _last(self, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """The ids of which one is written at the greatest length, and their log-probabilities there."""
        if not self.special.last:
            return self.ends, log_p[..., self.ends]
        last = torch.tensor(self.special.last, device=log_p.device)
        return last, log_p.new_zeros((*log_p.shape[:-1], len(last)))

    def _mask(self, log_p: Tensor, time: int) -> None:
        """What may not be written now gets -inf, in place."""
        first = self.special.first
        log_p.index_fill_(-1, self.never, -torch.inf)
        if time < self.min_length:
            log_p.index_fill_(-1, self.ends, -torch.inf)
        if time == (0 if first is None else 1):
            log_p.index_fill_(-1, self.never_first, -torch.inf)
        if time == 0 and first is not None:
            log_p.fill_(-torch.inf)
            log_p[..., first] = 0.0

    def _ends(self, token: Tensor, time: int) -> Tensor:
        """Where a token ends its sentence: eos, and any at the greatest length."""
        ends = torch.isin(token, self.ends)
        ends[self._at_limit(time)] = True
        return ends

    def _at_limit(self, time: int) -> list[int]:
        return [row for row, sentence in enumerate(self.sentences) if self.limits[sentence] <= time]

    def _collect(
        self, best: Tensor, by_eos: Tensor, token: Tensor, parent: Tensor, own: Tensor, live: "Live", time: int
    ) -> None:
        """Accept what is finished, in the order of rank."""
        accepted = by_eos[:, : self.beam] & best[:, : self.beam].isfinite()
        for row, rank in accepted.nonzero().tolist():
            beam = int(parent[row, rank])
            hypothesis = Hypothesis(
                tokens=[*live.written[row, beam].tolist(), int(token[row, rank])],
                score=float(best[row, rank]) / (time + 1) ** self.length_penalty,
                token_scores=[*live.scores[row, beam].tolist(), float(own[row, rank])],
            )
            self._accept(self.found[self.sentences[row]], hypothesis)

    def _accept(self, found: list[Hypothesis], hypothesis: Hypothesis) -> None:
        """The first `beam` of a sentence with early stopping, the best `beam` without."""
        if len(found) < self.beam:
            found.append(hypothesis)
        elif self.early_stopping is not True:
            worst = min(range(self.beam), key=lambda i: found[i].score)
            if found[worst].score < hypothesis.score:
                found[worst] = hypothesis

    def _stay(self, live: "Live", time: int) -> list[int]:
        """Rows that go on, each at its place; the last ones take the places of those that stop."""
        totals = live.totals.amax(dim=1).tolist()
        goes_on = [
            time < self.limits[sentence]
            and total > -math.inf
            and (len(self.found[sentence]) < self.beam or self._could_win(total, sentence, time))
            for total, sentence in zip(totals, self.sentences, strict=True)
        ]
        left = sum(goes_on)
        movers = (row for row in range(left, len(goes_on)) if goes_on[row])
        return [row if goes_on[row] else next(movers) for row in range(left)]

    def _could_win(self, total: float, sentence: int, time: int) -> bool:
        """Whether a beam of that sum, ended by the next token at no cost, would be the best (transformers' heuristic).

        What holds for every continuation is the greatest length in its place ("never"), at twice the time.
        """
        if self.early_stopping is True:
            return False
        longest = self.early_stopping == "never" and self.length_penalty > 0
        length = self.limits[sentence] + 1 if longest else time + 2
        return total / length**self.length_penalty > max(h.score for h in self.found[sentence])

    def _sorted(self, found: list[Hypothesis]) -> list[Hypothesis]:
        if not found:
            raise ValueError("the model's log-probabilities are not finite: no hypothesis could be finished")
        return sorted(found, key=lambda hypothesis: -hypothesis.score)


def _ids(given: int | Iterable[int] | None) -> list[int]:
    """One id, several or none, each once."""
    if given is None:
        return []
    return [int(given)] if isinstance(given, int) else list(dict.fromkeys(map(int, given)))


@dataclass(frozen=True)
class Live:
    """The beams that go on: (rows, beams), histories (rows, beams, time)."""

    tokens: Tensor  # what each wrote last, and reads next
    parents: Tensor | None  # the beam of the step before that it goes on from
    totals: Tensor  # sums of log-probabilities
    written: Tensor
    scores: Tensor

    def go_on(self, tokens: Tensor, parents: Tensor, totals: Tensor, own: Tensor) -> "Live":
        """One token more, each beam behind its parent's history."""

        def grown(history: Tensor, new: Tensor) -> Tensor:
            before = history.gather(1, parents[..., None].expand(-1, -1, history.shape[2]))
            return torch.cat([before, new[..., None]], dim=2)

        return Live(tokens, parents, totals, grown(self.written, tokens), grown(self.scores, own))

    def keep(self, rows: list[int]) -> "Live":
        """Row `rows[i]` is at place i from now on."""
        index = torch.tensor(rows, device=self.tokens.device)
        parents = None if self.parents is None else self.parents[index]
        return Live(self.tokens[index], parents, self.totals[index], self.written[index], self.scores[index])
