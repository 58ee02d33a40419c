"""Search in every placement: the whole model's scores, whatever the batch; bounds; all is left as it was."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from isograd.models import decoding
from isograd.models import search as module
from isograd.models.search import Hypothesis, search, translate_ids
from isograd.placement import CATALOGUE, Learned, Norm, Placement, Residual, register
from isograd.transformer.positions import POSITIONS
from tests.build import EVERY, EVERY_PART, NAMES, crossed, few, model, tokens

PAD, EOS = 1, 2


def words(found: Sequence[Hypothesis]) -> list[list[int]]:
    return [hypothesis.tokens for hypothesis in found]


def small(placement: str = "pre-ln", position: str = "learned", **options: Any) -> Any:
    given = {"placement": placement, "position_embedding_type": position, "position_offset": 2, "dtype": torch.float64}
    return model("seq2seq", **(given | options))


def batch(*lengths: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """Sources of these lengths that end with eos, padded on one side, and the mask."""
    rows = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        ids = torch.cat([tokens(length - 1, seed=row), torch.tensor([EOS])])
        rows[row, -length:] = ids if left else rows[row, -length:]
        rows[row, :length] = rows[row, :length] if left else ids
    return rows, (rows != PAD).long()


def teacher_forced(network: Any, ids: Tensor, mask: Tensor, hypothesis: Hypothesis) -> list[float]:
    """log p of each token by one pass of the whole model, without a cache."""
    written = torch.tensor([[network.config.decoder_start_token_id, *hypothesis.tokens]])
    with torch.no_grad():
        logits = network(ids, attention_mask=mask, decoder_input_ids=written[:, :-1], use_cache=False).logits
    return logits.double().log_softmax(-1)[0].gather(1, written[0, 1:, None])[:, 0].tolist()


def scores_are_the_models(network: Any, ids: Tensor, mask: Tensor, atol: float = 1e-9, **options: Any) -> None:
    found = search(network, ids, mask, **({"beam": 3, "extra": 4} | options))
    for row, hypotheses in enumerate(found):
        assert hypotheses == sorted(hypotheses, key=lambda h: -h.score)
        for hypothesis in hypotheses:
            assert hypothesis.tokens[-1] == EOS and EOS not in hypothesis.tokens[:-1]
            expected = teacher_forced(network, ids[row : row + 1], mask[row : row + 1], hypothesis)
            assert hypothesis.token_scores == pytest.approx(expected, abs=atol)
            assert hypothesis.score == pytest.approx(sum(expected) / len(expected), abs=atol)


@crossed("name, position, left", EVERY, POSITIONS, [False, True])
def test_token_scores_are_those_of_the_whole_model(name: str, position: str, left: bool) -> None:
    scores_are_the_models(small(name, position), *batch(5, 3, 8, left=left))


@pytest.mark.parametrize(
    "options",
    [
        {"embedding_norm": True, "scale_embedding": True},
        {"norm": "rmsnorm", "hidden_act": "swiglu", "bias": False},
        {"tie_word_embeddings": False, "encoder_vocab_size": 60},
        {"attn_implementation": "eager"},
        {"position_offset": 0},
    ],
)
def test_token_scores_with_other_options(options: dict[str, Any]) -> None:
    scores_are_the_models(small("normformer", **options), *batch(5, 3))


def test_token_scores_of_a_registered_placement() -> None:
    every = Residual(pre=Norm(), mid=Norm(), out=Norm(), post=Norm(), skip=Learned(init=0.7), scale=lambda site: 0.5)
    name = "everything-at-once"
    register(name, Placement(each=every, final=Norm()))
    try:
        scores_are_the_models(small(name, "rotary"), *batch(5, 3))
    finally:
        CATALOGUE.pop(name)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_slots_that_are_given_up_are_not_missed(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network, (ids, mask) = small("admin", "rotary"), batch(9, 4, 6)
    roomy = search(network, ids, mask, beam=4)
    monkeypatch.setattr(decoding, "STEPS", steps)
    for a, b in zip(roomy, search(network, ids, mask, beam=4), strict=True):
        assert words(a) == words(b)
        assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=1e-9)


@pytest.mark.parametrize("name", few(["pre-ln", "normformer", "deepnorm"], ["normformer"]))
def test_a_sentence_does_not_depend_on_its_batch(name: str) -> None:
    network = small(name, "sinusoidal")
    sources = [[*tokens(n - 1, seed=n).tolist(), EOS] for n in (5, 2, 7, 4, 7, 1, 3)]
    alone = [search(network, torch.tensor([source]), beam=4)[0] for source in sources]
    for bound in (1, 200, 10000):
        found = dict(translate_ids(network, sources, beam=4, tokens=bound))
        assert sorted(found) == list(range(len(sources)))
        for index, hypotheses in found.items():
            assert words(hypotheses) == words(alone[index])
            for a, b in zip(hypotheses, alone[index], strict=True):
                assert a.token_scores == pytest.approx(b.token_scores, abs=1e-9)


def test_translation_goes_from_the_longest_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, whole = [], module.search

    def seen(network: Any, ids: Tensor, *args: Any, **options: Any) -> list[list[Hypothesis]]:
        sizes.append(tuple(ids.shape))
        return whole(network, ids, *args, **options)

    monkeypatch.setattr(module, "search", seen)
    sources = [[*tokens(n - 1, seed=n).tolist(), EOS] for n in (20, 2, 40, 12, 33, 4)]
    network = small(max_position_embeddings=64)
    order = [index for index, _ in translate_ids(network, sources, beam=2, tokens=80, limit=5)]
    assert [len(sources[index]) for index in order] == [40, 33, 20, 12, 4, 2]
    assert sizes == [(1, 40), (1, 33), (2, 20), (2, 4)]  # the last two count 16 each
    assert list(translate_ids(small(), [])) == []


@pytest.mark.parametrize("name", few(NAMES, [EVERY_PART, "admin"]))
def test_one_beam_is_greedy(name: str) -> None:
    network, (ids, mask) = small(name), batch(6, 6, 6)
    longest = 6 + 5
    out = network.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=longest + 1,
        min_new_tokens=1,
        do_sample=False,
        suppress_tokens=[PAD],
        forced_eos_token_id=EOS,
    )[:, 1:].tolist()
    found = search(network, ids, mask, beam=1, extra=5)
    assert [words(hypotheses) for hypotheses in found] == [[row[: row.index(EOS) + 1]] for row in out]


# Bounds, padding, and what a search leaves as it was.


def never(network: Any, *ids: int) -> Any:
    """The same model, whose last bias makes these tokens improbable (or certain, for the negative of an id)."""
    with torch.no_grad():
        network.decoder.norm.bias.fill_(10.0)
        for token in ids:
            network.lm_head.weight[abs(token)] = -5.0 if token > 0 else 5.0
    return network


def test_pad_is_never_written() -> None:
    network = never(small(tie_word_embeddings=False), -PAD)
    ids, mask = batch(6, 4)
    with torch.no_grad():
        assert (network(ids, attention_mask=mask, decoder_input_ids=ids[:, :1]).logits.argmax(-1) == PAD).all()
    for hypotheses in search(network, ids, mask):
        assert not [h for h in hypotheses if PAD in h.tokens]


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"stretch": 0.5, "extra": 2}, (5, 4)),
        ({"stretch": 0.0, "extra": 3}, (3, 3)),
        ({"stretch": 3.0, "extra": 0, "limit": 7}, (7, 7)),
        ({"stretch": 9.0}, (31, 31)),
        ({"extra": 1, "lengths": [2, 3]}, (3, 4)),
        ({"stretch": 0.0, "extra": 0}, (0, 0)),
    ],
)
def test_the_greatest_length(options: dict[str, Any], lengths: tuple[int, int]) -> None:
    """A model that hardly ever writes eos is made to, after exactly so many tokens."""
    network, (ids, mask) = never(small(tie_word_embeddings=False), EOS), batch(6, 5)
    found = search(network, ids, mask, beam=3, **options)
    assert [{len(h.tokens) - 1 for h in hypotheses} for hypotheses in found] == [{n} for n in lengths]
    scores_are_the_models(network, ids, mask, **options)


@pytest.mark.parametrize("shortest", [0, 1, 4])
def test_the_smallest_length(shortest: int) -> None:
    network, (ids, mask) = never(small(tie_word_embeddings=False), -EOS), batch(6, 5)
    for hypotheses in search(network, ids, mask, beam=1, min_length=shortest):
        assert len(hypotheses[0].tokens) - 1 == shortest


def test_more_beams_than_words() -> None:
    network, (ids, mask) = small(), batch(4, 3)
    scores_are_the_models(network, ids, mask, beam=50, limit=3)


def test_bfloat16_with_few_and_with_many_keys() -> None:
    """Beyond 256 keys of either kind attention stays in bfloat16."""
    network = small("pre-ln", "sinusoidal", dtype=torch.bfloat16, max_position_embeddings=512)
    scores_are_the_models(network, *batch(6, 4), atol=0.2)
    scores_are_the_models(network, *batch(270, 4), atol=0.2, beam=20, limit=20)


def test_a_search_leaves_all_as_it_was() -> None:
    network, (ids, mask) = small(hidden_dropout=0.5), batch(5, 3)
    expected = [words(found) for found in search(network, ids, mask)]
    network.train()
    network.encoder.layers[0].eval()
    network.config._attn_implementation = "flex_attention"
    modes, state = [m.training for m in network.modules()], torch.get_rng_state()
    weights = {k: v.clone() for k, v in network.state_dict().items()}
    assert [words(found) for found in search(network, ids, mask)] == expected
    with pytest.raises(IndexError):
        search(network, ids + 100, mask)
    assert [m.training for m in network.modules()] == modes
    assert network.config._attn_implementation == "flex_attention"
    assert torch.equal(torch.get_rng_state(), state) and torch.is_grad_enabled()
    assert all(torch.equal(v, weights[k]) for k, v in network.state_dict().items())
    assert not [p for p in network.parameters() if p.is_inference() or p.grad is not None]


def test_a_generator_that_is_left_early_leaves_all_as_it_was() -> None:
    network = small().train()
    found: Iterator[Any] = translate_ids(network, [[5, EOS], [6, 7, EOS]], tokens=1)
    next(found)
    assert network.training and not torch.is_inference_mode_enabled()


def test_bad_input() -> None:
    network, (ids, mask) = small(), batch(5, 3)
    for wrong in ({"beam": 0}, {"min_length": -1}, {"extra": -1}, {"stretch": -0.5}, {"limit": -1}):
        with pytest.raises(ValueError, match="a search needs sentences, beam >= 1"):
            search(network, ids, mask, **wrong)
    with pytest.raises(ValueError, match="early_stopping='sometimes' must be True, False or 'never'"):
        search(network, ids, mask, early_stopping="sometimes")
    with pytest.raises(ValueError, match="limit=32, but the model's positions allow 31 tokens"):
        search(network, ids, mask, limit=32)
    with pytest.raises(ValueError, match="1 lengths for 2 sentences"):
        search(network, ids, mask, lengths=[3])
    with pytest.raises(ValueError, match="source 1 is empty"):
        translate_ids(network, [[3, EOS], []])
    with pytest.raises(ValueError, match="source 0 has 33 tokens, and the model reads 32 at most"):
        translate_ids(network, [[3] * 33])
    with pytest.raises(ValueError, match="decoder_start_token_id and eos_token_id"):
        search(small(eos_token_id=None), ids, mask)
    with torch.no_grad():
        network.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        search(network, ids, mask)


def test_many_random_sentences_in_random_batches() -> None:
    """Sentences leave at different steps and others take their places: nobody gets another's keys."""
    draw = random.Random(0)
    network = small("normformer", "rotary")
    lengths = [draw.randrange(1, 12) for _ in range(40)]
    ids, mask = batch(*(n + 1 for n in lengths))
    scores_are_the_models(network, ids, mask, beam=2, stretch=0.7, extra=1)
