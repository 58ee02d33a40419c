"""Special tokens: pad = eos, several eos, forced and suppressed tokens, set against `generate`."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor

from isograd.models import search as module
from isograd.models.beam import BeamSearch
from isograd.models.search import Hypothesis, search
from tests.build import in_turn, model, tokens

START, EOS, OTHER = 0, 2, 7


class AsGenerate(BeamSearch):
    """Two rules of `generate`: of all that are finished the best are kept, and the worst of them is what to beat."""

    def _accept(self, found: list[Hypothesis], hypothesis: Hypothesis) -> None:
        found.append(hypothesis)

    def _stay(self, live: Any, time: int) -> list[int]:
        for found in self.found:
            found.sort(key=lambda hypothesis: -hypothesis.score)
            del found[self.beam :]
        return super()._stay(live, time)

    def _could_win(self, total: float, sentence: int, time: int) -> bool:
        if self.early_stopping is True:
            return False
        never = self.early_stopping == "never" and self.length_penalty > 0
        length = self.limits[sentence] + 1 if never else time + 1
        return total / length**self.length_penalty > min(h.score for h in self.found[sentence])


class LastAtItsOwn(LogitsProcessor):  # type: ignore[misc]
    """At the greatest length one of the eos, at its own log-probability."""

    def __init__(self, last: int, ends: Iterable[int]) -> None:
        self.last, self.ends = last, torch.tensor(list(ends))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] == self.last:
            scores = torch.full_like(scores, -torch.inf).index_copy(1, self.ends, scores[:, self.ends])
        return scores


def small(seed: int, pad: int | None, eos: Any, **generation: Any) -> Any:
    """With eos as probable as its neighbours, so that sentences end at different lengths."""
    torch.manual_seed(seed)
    ids = {"pad_token_id": pad, "eos_token_id": eos, "bos_token_id": 3, "decoder_start_token_id": START}
    made = model("seq2seq", vocab_size=17, dtype=torch.float64, tie_word_embeddings=False, **ids)
    with torch.no_grad():
        made.lm_head.weight.normal_()
        for end in [eos] if isinstance(eos, int) else eos:
            made.lm_head.weight[end] += 0.2
    made.generation_config.update(**generation)
    return made


def ends_of(network: Any) -> list[int]:
    eos = network.generation_config.eos_token_id
    return [eos] if isinstance(eos, int) else eos


def by_generate(network: Any, source: Tensor, beam: int, penalty: float, early: Any, extra: int) -> Any:
    given, longest = network.generation_config, source.shape[1] + extra + 1
    processors = [] if given.forced_eos_token_id is not None else [LastAtItsOwn(longest, ends_of(network))]
    pad = given.pad_token_id
    suppressed = [*(given.suppress_tokens or []), *([] if pad is None or pad in ends_of(network) else [pad])]
    out = network.generate(
        source,
        attention_mask=torch.ones_like(source),
        num_beams=beam,
        num_return_sequences=beam,
        length_penalty=penalty if beam > 1 else None,
        early_stopping=early if beam > 1 else None,
        max_new_tokens=longest,
        min_new_tokens=1,
        suppress_tokens=suppressed or None,
        logits_processor=processors,
        return_dict_in_generate=True,
        output_scores=True,
    )
    rows = []
    for row in out.sequences[:, 1:].tolist():
        end = next((i for i, token in enumerate(row) if token in ends_of(network)), len(row) - 1)
        rows.append(row[: end + 1])
    return rows, out.sequences_scores.tolist() if beam > 1 else None


SPECIAL: dict[str, tuple[int | None, Any, dict[str, Any]]] = {
    "pad-is-eos": (EOS, EOS, {}),
    "no-pad": (None, EOS, {}),
    "pad-is-start": (START, EOS, {}),
    "two-eos": (1, [EOS, OTHER], {}),
    "three-eos-with-pad": (OTHER, [EOS, OTHER, 11], {}),
    "forced-bos": (1, EOS, {"forced_bos_token_id": 5}),
    "forced-eos": (1, EOS, {"forced_eos_token_id": EOS}),
    "forced-both-and-pad-is-eos": (EOS, EOS, {"forced_bos_token_id": 5, "forced_eos_token_id": EOS}),
    "forced-eos-of-two": (1, [EOS, OTHER], {"forced_eos_token_id": OTHER}),
    "suppressed": (1, EOS, {"suppress_tokens": [4, 5, 6], "begin_suppress_tokens": [8, 9]}),
    "suppressed-behind-bos": (EOS, EOS, {"forced_bos_token_id": 5, "begin_suppress_tokens": [8, 9, EOS]}),
    "bad-words": (1, EOS, {"bad_words_ids": [[4], [6]]}),
}


SETTINGS = [(1, 1.0, True), (3, 1.0, True), (4, 0.0, True), (3, 1.0, False), (4, 2.0, False), (4, 2.0, "never")]


@in_turn("setting, name", SETTINGS, [*SPECIAL], ids=str)
def test_the_lists_of_generate(
    name: str, setting: tuple[int, float, bool | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every list and every score."""
    beam, penalty, early = setting
    monkeypatch.setattr(module, "BeamSearch", AsGenerate)
    pad, eos, generation = SPECIAL[name]
    seed = beam + 3 * list(SPECIAL).index(name)
    network, source = small(seed, pad, eos, **generation), tokens(1, 4, seed=seed, high=17)
    rows, scores = by_generate(network, source, beam, penalty, early, extra=3)
    found = search(network, source, beam=beam, length_penalty=penalty, extra=3, early_stopping=early)[0]
    assert [hypothesis.tokens for hypothesis in found] == rows
    if scores is not None:
        assert [hypothesis.score for hypothesis in found] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize("eos", [EOS, [EOS, OTHER]])
def test_the_best_of_all_sequences(eos: Any) -> None:
    """With a beam for every prefix nothing is missed: the best of all that can be written, one pass each."""
    network, source = small(0, EOS, eos), tokens(1, 4, high=17)
    ends = ends_of(network)
    words = [token for token in range(17) if token not in ends]
    inner: list[list[int]] = [[a] for a in words] + [[a, b] for a in words for b in words]
    rows = torch.tensor([[START, *word, 0][:3] for word in inner])
    with torch.no_grad():
        log_p = network(source.expand(len(rows), -1), decoder_input_ids=rows).logits.log_softmax(-1)
    every = []
    for word, steps in zip(inner, log_p, strict=True):
        inside = sum(float(steps[i, token]) for i, token in enumerate(word))
        every += [((inside + float(steps[len(word), end])) / (len(word) + 1), [*word, end]) for end in ends]
    best = sorted(every, reverse=True)[:20]
    found = search(network, source, beam=len(inner), limit=2, early_stopping="never")[0][:20]
    assert [hypothesis.tokens for hypothesis in found] == [written for _, written in best]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _ in best], abs=1e-9)


def test_pad_that_is_eos_changes_nothing() -> None:
    """Padded sources in one batch end where they do alone, and where they do without a pad."""
    sources = [tokens(n, seed=n, high=17).tolist() for n in (6, 2, 4)]
    lists = []
    for pad in (EOS, None):
        network = small(1, pad, EOS)
        found = dict(module.translate_ids(network, sources, beam=3, extra=4))
        lists.append([[hypothesis.tokens for hypothesis in found[index]] for index in range(3)])
        alone = [search(network, torch.tensor([source]), beam=3, extra=4)[0] for source in sources]
        assert lists[-1] == [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in alone]
    assert lists[0] == lists[1]
    assert {len(tokens) for sentence in lists[0] for tokens in sentence} - {7, 9, 11}  # not all by force


def test_tokens_beyond_the_vocabulary() -> None:
    network, source = small(0, 1, EOS), tokens(1, 4, high=17)
    network.generation_config.eos_token_id = [EOS, 40]
    with pytest.raises(ValueError, match=r"token ids \[40\], and the vocabulary has 17"):
        search(network, source)
