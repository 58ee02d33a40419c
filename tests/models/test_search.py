"""Beam search: fairseq's lists token for token, and how many of them `generate` gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor

from isograd.models import IsogradConfig, IsogradForSeq2SeqLM
from isograd.models import search as module
from isograd.models.beam import BeamSearch
from isograd.models.search import Hypothesis, search
from tests.golden import PAD, REDUCED, WHOLE, load, present

EOS = 2
SETTINGS = {
    "beam5_lenpen1.0": (5, 1.0),
    "beam5_lenpen0.6": (5, 0.6),
    "beam5_lenpen0.0": (5, 0.0),
    "beam4_lenpen2.0": (4, 2.0),
    "beam1_lenpen1.0": (1, 1.0),
}


def golden(dtype: torch.dtype = torch.float64, root: Path = REDUCED) -> tuple[Any, Tensor, dict[str, Any]]:
    network, t, index = load("beam/beam_pre", root=root)
    return network.to(dtype), t["in/src_tokens"], index["results"]


def by_rules(network: Any, ids: Tensor, setting: str, early: bool = True) -> list[list[Hypothesis]]:
    """As the golden lists were made: the length is the padded width, five more are allowed."""
    beam, penalty = SETTINGS[setting]
    mask, lengths = (ids != PAD).long(), [ids.shape[1]] * len(ids)
    options = {"length_penalty": penalty, "extra": 5, "early_stopping": early}
    return search(network, ids, mask, beam=beam, lengths=lengths, **options)


def words(found: Sequence[Hypothesis]) -> list[list[int]]:
    return [hypothesis.tokens for hypothesis in found]


@pytest.mark.parametrize("root", [REDUCED, WHOLE], ids=["reduced", "whole"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("setting", SETTINGS)
def test_fairseqs_lists(setting: str, dtype: torch.dtype, root: Path) -> None:
    if not present("beam/beam_pre", root):
        pytest.skip("beam/beam_pre is not beside this checkout")
    network, ids, results = golden(dtype, root)
    exact = dtype == torch.float64
    for found, expected in zip(by_rules(network, ids, setting), results[setting], strict=True):
        theirs = expected["hypotheses"]
        assert words(found) == [h["tokens"] for h in theirs]
        for ours, h in zip(found, theirs, strict=True):
            assert ours.score == pytest.approx(h["score_f64" if exact else "score"], abs=1e-9 if exact else 5e-5)
            assert ours.token_scores == pytest.approx(h["positional_scores"], abs=5e-5)
            assert sum(ours.token_scores) / len(ours.tokens) ** SETTINGS[setting][1] == pytest.approx(ours.score)


def test_single_sentences_give_the_same_lists() -> None:
    network, ids, results = golden()
    for row, expected in zip(ids, results["beam5_lenpen1.0"], strict=True):
        assert words(by_rules(network, row[None], "beam5_lenpen1.0")[0]) == [
            h["tokens"] for h in expected["hypotheses"]
        ]


class Loose(BeamSearch):
    """A wrong rule: eos is accepted wherever it stands among the 2 * beam best."""

    def _collect(self, best: Tensor, *rest: Any) -> None:
        beam, self.beam = self.beam, best.shape[1]
        super()._collect(best, *rest)
        self.beam = beam
        for found in self.found:
            del found[beam:]


class Short(BeamSearch):
    """A wrong rule: eos is not counted in the length."""

    def _collect(self, *args: Any) -> None:
        super()._collect(*args[:-1], args[-1] - 1 if args[-1] else 0)


class Early(BeamSearch):
    """A wrong rule: a sentence stops at its first finished hypothesis."""

    def _stay(self, live: Any, time: int) -> list[int]:
        for sentence in self.sentences:
            if self.found[sentence]:
                self.limits[sentence] = time
        return super()._stay(live, time)


@pytest.mark.parametrize("wrong", [Loose, Short, Early])
def test_a_broken_rule_changes_a_list(wrong: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    network, ids, results = golden()
    monkeypatch.setattr(module, "BeamSearch", wrong)
    different = 0
    for setting in ("beam5_lenpen0.6", "beam4_lenpen2.0"):
        for found, expected in zip(by_rules(network, ids, setting), results[setting], strict=True):
            different += words(found) != [h["tokens"] for h in expected["hypotheses"]]
    assert different > 0


class ForcedEos(LogitsProcessor):  # type: ignore[misc]
    """eos at the end at its own log-probability; transformers' own processor would give it 0."""

    def __init__(self, last: int) -> None:
        self.last = last

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] == self.last:
            scores = torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor([EOS]), scores[:, [EOS]])
        return scores


def by_generate(network: Any, ids: Tensor, beam: int, penalty: float) -> list[list[list[int]]]:
    longest = min(ids.shape[1] + 5, 23)
    out = network.generate(
        ids,
        attention_mask=(ids != PAD).long(),
        num_beams=beam,
        num_return_sequences=beam,
        length_penalty=penalty if beam > 1 else None,
        early_stopping=True if beam > 1 else None,
        max_new_tokens=longest + 1,
        min_new_tokens=1,
        suppress_tokens=[PAD],
        logits_processor=[ForcedEos(longest + 1)],
    )[:, 1:].tolist()
    rows = [row[: row.index(EOS) + 1] for row in out]
    return [rows[begin : begin + beam] for begin in range(0, len(rows), beam)]


class Merged(BeamSearch):
    """What generate does: of all that are finished, the best `beam` are kept."""

    def _accept(self, found: list[Hypothesis], hypothesis: Hypothesis) -> None:
        found.append(hypothesis)

    def _stay(self, live: Any, time: int) -> list[int]:
        for found in self.found:
            found.sort(key=lambda hypothesis: -hypothesis.score)
            del found[self.beam :]
        return super()._stay(live, time)


def test_how_many_of_the_lists_generate_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """71 of 100, and all 100 of ours once we let a better hypothesis push out one that was finished before."""
    network, ids, results = golden(torch.float32)
    monkeypatch.setattr(module, "BeamSearch", Merged)
    same = 0
    for setting, (beam, penalty) in SETTINGS.items():
        theirs = by_generate(network, ids, beam, penalty)
        assert theirs == [words(found) for found in by_rules(network, ids, setting)]
        expected = [[h["tokens"] for h in entry["hypotheses"]] for entry in results[setting]]
        same += sum(a == b for a, b in zip(theirs, expected, strict=True))
    assert same == 71


def test_without_early_stopping_the_best_is_as_good_or_better() -> None:
    """Its lists are the best of more that were finished: at each place no worse than fairseq's, and some better."""
    network, ids, _ = golden()
    better = dict.fromkeys(SETTINGS, 0)
    for setting in SETTINGS:
        for early, late in zip(by_rules(network, ids, setting), by_rules(network, ids, setting, False), strict=True):
            assert all(b.score >= a.score - 1e-12 for a, b in zip(early, late, strict=True))
            better[setting] += late[0].score > early[0].score + 1e-9
    assert better["beam1_lenpen1.0"] == 0 < sum(better.values())


class Certain(IsogradForSeq2SeqLM):
    """Writes 5 6 7 .. with probability 0.99 each and eos behind them; every other word shares the rest."""

    length = 12

    def __init__(self) -> None:
        super().__init__(
            IsogradConfig(
                vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, encoder_layers=1,
                pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2,
                position_embedding_type="none", share_encoder_embeddings=True,
            )
        )  # fmt: skip
        self.lm_head = Chain()


class Chain(torch.nn.Module):
    """Logits by the number of calls: as many as tokens have been written."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, hidden: Tensor) -> Tensor:
        logits = hidden.new_full((*hidden.shape[:-1], 40), 0.01 / 39).log()
        logits[..., 2] += 1.0  # eos is the likeliest of the unlikely
        logits[..., 5 + self.calls if self.calls < Certain.length else 2] = 0.0
        self.calls += 1
        return logits


def test_what_early_stopping_does_to_a_model_that_is_certain() -> None:
    """Short hypotheses that nobody believes in fill the beam before the right one is written."""
    ids = torch.tensor([[5, 2]])
    right = [*range(5, 5 + Certain.length), 2]
    assert words(search(Certain().eval(), ids, beam=5)[0])[0] == right
    assert words(search(Certain().eval(), ids, beam=5, early_stopping=True)[0])[0] != right
    assert words(search(Certain().eval(), ids, beam=1, early_stopping=True)[0])[0] == right
