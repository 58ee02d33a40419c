"""Generation with a cache is generation without one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from isograd.transformer.positions import POSITIONS
from tests.build import EVERY, EVERY_PART, NAMES, close, crossed, few, model, tokens

PAD = 1
LIMITS = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}


def steps(network: Any, ids: Tensor, **memory: Any) -> Tensor:
    """Logits with the tokens fed one, then two, then the rest at a time."""
    name = "decoder_input_ids" if memory else "input_ids"
    cache, out = None, []
    for part in ids.split([1, 2, ids.shape[1] - 3], dim=1):
        result = network(**memory, **{name: part}, past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        out.append(result.logits)
    assert cache.get_seq_length() == ids.shape[1]
    return torch.cat(out, 1)


@crossed("name, position", EVERY, POSITIONS)
def test_step_by_step_is_all_at_once(name: str, position: str) -> None:
    for dtype, atol in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        network = model(placement=name, position_embedding_type=position, dtype=dtype)
        ids = tokens(2, 9)
        with torch.no_grad():
            close(steps(network, ids), network(ids, use_cache=False).logits, atol)


@crossed("name, norm", EVERY, ["layernorm", "rmsnorm"])
def test_step_by_step_in_an_encoder_decoder(name: str, norm: str) -> None:
    source, written = tokens(2, 7), tokens(2, 9, seed=1)
    for dtype, atol in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        network = model("seq2seq", placement=name, norm=norm, dtype=dtype)
        with torch.no_grad():
            memory = network.encoder(source)
            whole = network(source, decoder_input_ids=written, use_cache=False).logits
            close(steps(network, written, encoder_outputs=memory), whole, atol)


@crossed("name, position", EVERY, ["learned", "sinusoidal", "rotary"])
def test_greedy_with_and_without_cache(name: str, position: str) -> None:
    network = model(placement=name, position_embedding_type=position, dtype=torch.float64)
    prompt = tokens(2, 5)
    cached = network.generate(prompt, use_cache=True, **LIMITS)
    assert torch.equal(cached, network.generate(prompt, use_cache=False, **LIMITS))
    assert torch.equal(cached, by_hand(network, prompt))


def by_hand(network: Any, ids: Tensor) -> Tensor:
    for _ in range(LIMITS["max_new_tokens"]):
        logits = network(ids, use_cache=False).logits[:, -1]
        logits[:, network.config.eos_token_id] = -torch.inf  # min_new_tokens
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    return ids


@pytest.mark.parametrize("name", few(NAMES, [EVERY_PART, "admin"]))
def test_greedy_in_an_encoder_decoder(name: str) -> None:
    network, source = model("seq2seq", placement=name, dtype=torch.float64), tokens(2, 6)
    cached = network.generate(source, use_cache=True, **LIMITS)
    assert torch.equal(cached, network.generate(source, use_cache=False, **LIMITS))
    assert (cached[:, 0] == network.config.decoder_start_token_id).all() and cached.shape == (2, 7)


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("position", POSITIONS)
def test_left_padded_prompts_generate_what_they_do_alone(position: str, offset: int) -> None:
    network = model(
        placement="normformer", position_embedding_type=position, position_offset=offset, dtype=torch.float64
    )
    short, long = tokens(1, 3), tokens(1, 6, seed=1)
    rows = torch.cat([torch.cat([short.new_full((1, 3), PAD), short], 1), long])
    mask = (rows != PAD).long()
    together = network.generate(rows, attention_mask=mask, **LIMITS)
    for row, alone in ((0, short), (1, long)):
        assert torch.equal(together[row, -6:], network.generate(alone, **LIMITS)[0, -6:])


def test_padded_sources_translate_as_they_do_alone() -> None:
    network = model("seq2seq", placement="admin", position_offset=2, dtype=torch.float64)
    short, long = tokens(1, 3), tokens(1, 6, seed=1)
    for side in ("left", "right"):
        fill = short.new_full((1, 3), PAD)
        rows = torch.cat([torch.cat([fill, short] if side == "left" else [short, fill], 1), long])
        together = network.generate(rows, attention_mask=(rows != PAD).long(), num_beams=3, **LIMITS)
        for row, alone in ((0, short), (1, long)):
            assert torch.equal(together[row], network.generate(alone, num_beams=3, **LIMITS)[0])


@crossed("name, head", EVERY, ["causal", "seq2seq"])
def test_beam_search(name: str, head: str) -> None:
    """The same without a cache, and its scores are the summed log-probabilities of what it returns."""
    network, source = model(head, placement=name, dtype=torch.float64), tokens(2, 5)
    given = LIMITS | {"num_beams": 4, "length_penalty": 0.0, "output_scores": True, "return_dict_in_generate": True}
    beam = network.generate(source, **given)
    written = beam.sequences
    assert torch.equal(written, network.generate(source, **given | {"use_cache": False}).sequences)
    feed = {"input_ids": written} if head == "causal" else {"input_ids": source, "decoder_input_ids": written}
    log_p = network(**feed, use_cache=False).logits.log_softmax(-1)[:, :-1]
    each = log_p.gather(2, written[:, 1:, None])[:, -LIMITS["max_new_tokens"] :]
    close(beam.sequences_scores.double(), each.sum((1, 2)), 1e-5)


@pytest.mark.parametrize("head", ["causal", "seq2seq"])
def test_sampling_with_the_same_seed(head: str) -> None:
    network, source = model(head), tokens(2, 5)
    given = {"max_new_tokens": 5, "do_sample": True, "top_k": 5}
    out = []
    for _ in range(2):
        torch.manual_seed(3)
        out.append(network.generate(source, **given))
    assert torch.equal(*out)


def test_the_last_logits_only() -> None:
    network, ids = model(dtype=torch.float64), tokens(2, 6)
    whole = network(ids).logits
    close(network(ids, logits_to_keep=1).logits, whole[:, -1:], 1e-12)
    close(network(ids, logits_to_keep=torch.tensor([0, 3])).logits, whole[:, [0, 3]], 1e-12)
