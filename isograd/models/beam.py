"""Beam search by fairseq's rules.

    score = (log p(y_1) + .. + log p(y_n)) / n^length_penalty,   y_n = eos, n counts it

At each step the 2 * beam best continuations of a sentence are taken. Those by eos are finished if they are among the
first `beam`; the first `beam` others live on. At the greatest length eos is forced, at its own log-probability.

With `early_stopping` a sentence stops when `beam` hypotheses are finished; they are not compared with what still lives.
That is fairseq's rule, and it harms a model that is nearly certain: short ones that it hardly believes in fill the
places while the right one is still being written. Without, a sentence goes on while a live beam is on the way to be the
best, and keeps its `beam` best.

`generate` of transformers 5.23, with a processor for the forced eos, gives 71 of the 100 reference lists: where more
hypotheses finish in a step than there are places left, it lets the better of them push out what was finished before.
"""

from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from isograd.models.decoding import Decoding


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


class BeamSearch:
    """The rules; a row is a sentence that has not stopped."""

    def __init__(
        self,
        decoding: Decoding,
        limits: list[int],
        beam: int,
        length_penalty: float,
        min_length: int,
        early_stopping: bool,
    ) -> None:
        config = decoding.model.config
        self.start, self.eos, self.pad = config.decoder_start_token_id, config.eos_token_id, config.pad_token_id
        self.decoding, self.limits, self.beam = decoding, limits, beam
        self.length_penalty, self.min_length = length_penalty, min_length
        self.early_stopping = early_stopping or beam == 1  # one beam is greedy, and ends where it ends
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
            by_eos = token == self.eos
            self._collect(best, by_eos, parent, own, live, time)
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
        tokens = torch.full(shape, self.start, device=device)
        return Live(tokens, None, totals, tokens[..., None][..., :0], totals[..., None][..., :0])

    def _candidates(self, logits: Tensor, live: "Live", time: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the 2 * beam best continuations of each row: total, token, beam, own log-probability."""
        log_p = logits.to(live.totals.dtype)
        log_p = torch.log_softmax(log_p, dim=-1, out=log_p)
        at_eos = log_p[..., self.eos].clone()
        if self.pad is not None:
            log_p[..., self.pad] = -torch.inf
        if time < self.min_length:
            log_p[..., self.eos] = -torch.inf
        log_p, ids = log_p.topk(min(2 * self.beam, log_p.shape[-1]), dim=-1)  # (rows, beams, 2 * beam)
        forced = [row for row, sentence in enumerate(self.sentences) if self.limits[sentence] <= time]
        if forced:
            log_p[forced] = -torch.inf
            log_p[forced, :, 0] = at_eos[forced]
            ids[forced, :, 0] = self.eos
        every = (live.totals[..., None] + log_p).flatten(1)
        best, flat = every.topk(min(2 * self.beam, every.shape[1]), dim=1)
        parent = flat // log_p.shape[2]
        return best, ids.flatten(1).gather(1, flat), parent, log_p.flatten(1).gather(1, flat)

    def _collect(self, best: Tensor, by_eos: Tensor, parent: Tensor, own: Tensor, live: "Live", time: int) -> None:
        """Accept what is finished, in the order of rank."""
        accepted = by_eos[:, : self.beam] & best[:, : self.beam].isfinite()
        for row, rank in accepted.nonzero().tolist():
            beam = int(parent[row, rank])
            hypothesis = Hypothesis(
                tokens=[*live.written[row, beam].tolist(), self.eos],
                score=float(best[row, rank]) / (time + 1) ** self.length_penalty,
                token_scores=[*live.scores[row, beam].tolist(), float(own[row, rank])],
            )
            self._accept(self.found[self.sentences[row]], hypothesis)

    def _accept(self, found: list[Hypothesis], hypothesis: Hypothesis) -> None:
        """The first `beam` of a sentence with early stopping, the best `beam` without."""
        if len(found) < self.beam:
            found.append(hypothesis)
        elif not self.early_stopping:
            worst = min(range(self.beam), key=lambda i: found[i].score)
            if found[worst].score < hypothesis.score:
                found[worst] = hypothesis

    def _stay(self, live: "Live", time: int) -> list[int]:
        """Rows that go on, each at its place; the last ones take the places of those that stop."""
        totals = live.totals.amax(dim=1).tolist()
        goes_on = [
            time < self.limits[sentence]
            and (len(self.found[sentence]) < self.beam or self._could_win(total, sentence, time))
            for total, sentence in zip(totals, self.sentences, strict=True)
        ]
        left = sum(goes_on)
        movers = (row for row in range(left, len(goes_on)) if goes_on[row])
        return [row if goes_on[row] else next(movers) for row in range(left)]

    def _could_win(self, total: float, sentence: int, time: int) -> bool:
        """Whether a beam of that sum, ended by the next token at no cost, would be the best (transformers' heuristic).

        What holds for every continuation would be the greatest length in its place, at twice the time.
        """
        if self.early_stopping:
            return False
        return total / (time + 2) ** self.length_penalty > max(h.score for h in self.found[sentence])

    def _sorted(self, found: list[Hypothesis]) -> list[Hypothesis]:
        if not found:
            raise ValueError("the model's log-probabilities are not finite: no hypothesis could be finished")
        return sorted(found, key=lambda hypothesis: -hypothesis.score)


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
