"""What holds for every placement with every norm and every kind of position."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isograd.transformer.positions import POSITIONS
from tests.build import EVERY, close, crossed, inputs, model, tokens

NORMS = ["layernorm", "rmsnorm"]
every_model = crossed("name, norm, position", EVERY, NORMS, POSITIONS)
every_position = pytest.mark.parametrize("position", POSITIONS)
PAD = 1


def made(head: str, name: str, norm: str = "layernorm", position: str = "learned", **options: Any) -> Any:
    given = {"placement": name, "norm": norm, "position_embedding_type": position}
    return model(head, dtype=torch.float64, **(given | options))


def padded(ids: Tensor, left: int, right: int) -> tuple[Tensor, Tensor, slice]:
    """The rows with padding on both sides, the mask, and where the rows now are."""
    batch, time = ids.shape
    sides = [ids.new_full((batch, n), PAD) for n in (left, right)]
    whole, here = torch.cat([sides[0], ids, sides[1]], 1), slice(left, left + time)
    mask = torch.zeros_like(whole)
    mask[:, here] = 1
    return whole, mask, here


@every_model
def test_a_decoder_does_not_see_the_future(name: str, norm: str, position: str) -> None:
    decoder, ids = made("causal", name, norm, position), tokens(2, 8)
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1 - 3) % 38 + 3
    before, after = decoder(ids).logits, decoder(changed).logits
    close(before[:, :5], after[:, :5], 1e-12)
    assert (before[:, 5:] - after[:, 5:]).abs().amax(-1).min() > 1e-8


@every_model
def test_an_encoder_does(name: str, norm: str, position: str) -> None:
    encoder, ids = made("masked", name, norm, position), tokens(2, 8)
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1 - 3) % 38 + 3
    assert (encoder(ids).logits - encoder(changed).logits).abs().amax(-1).min() > 1e-8


@every_model
def test_padding_changes_nothing(name: str, norm: str, position: str) -> None:
    """Left, right, both; in a decoder, an encoder, and in source and target of an encoder-decoder."""
    ids, written = tokens(2, 6), tokens(2, 5, seed=1)
    for head in ("causal", "masked"):
        network = made(head, name, norm, position)
        alone = network(ids).logits
        for left, right in ((0, 3), (3, 0), (2, 2)):
            whole, mask, here = padded(ids, left, right)
            close(network(whole, attention_mask=mask).logits[:, here], alone, 1e-10)
    network = made("seq2seq", name, norm, position)
    alone = network(ids, decoder_input_ids=written).logits
    for left, right in ((0, 3), (3, 0)):
        whole, mask, _ = padded(ids, left, right)
        target, target_mask, here = padded(written, left, right)
        masks = {"attention_mask": mask, "decoder_attention_mask": target_mask}
        close(network(whole, decoder_input_ids=target, **masks).logits[:, here], alone, 1e-10)


@settings(max_examples=20, deadline=None)
@given(left=st.integers(0, 9), right=st.integers(0, 9), time=st.integers(1, 12), position=st.sampled_from(POSITIONS))
def test_any_padding_changes_nothing(left: int, right: int, time: int, position: str) -> None:
    decoder, ids = made("causal", "normformer", position=position), tokens(2, time)
    whole, mask, here = padded(ids, left, right)
    close(decoder(whole, attention_mask=mask).logits[:, here], decoder(ids).logits, 1e-10)


@pytest.mark.parametrize("offset", [0, 2])
def test_padding_that_is_not_masked_is_seen(offset: int) -> None:
    """The negative control: without the mask, padding on the left is read as words."""
    decoder, ids = made("causal", "pre-ln", position_offset=offset), tokens(2, 6)
    whole, mask, here = padded(ids, 3, 0)
    close(decoder(whole, attention_mask=mask).logits[:, here], decoder(ids).logits, 1e-10)
    assert (decoder(whole).logits[:, here] - decoder(ids).logits).abs().max() > 1e-3


@pytest.mark.parametrize("offset", [0, 2])
@every_position
def test_given_positions_are_counted_from_zero(position: str, offset: int) -> None:
    decoder, ids = made("causal", "pre-ln", position=position, position_offset=offset), tokens(2, 6)
    places = torch.arange(6)[None].expand(2, -1)
    close(decoder(ids, position_ids=places).logits, decoder(ids).logits, 1e-12)
    moved = decoder(ids, position_ids=places * 2).logits
    assert ((moved - decoder(ids).logits).abs().max() > 1e-3) == (position != "none")


@crossed("name, norm, head", EVERY, NORMS, ["causal", "masked", "seq2seq", "classify"])
def test_eager_attention_is_sdpa(name: str, norm: str, head: str) -> None:
    network, feed = made(head, name, norm), inputs(head)
    feed["input_ids"], feed["attention_mask"], _ = padded(feed["input_ids"], 2, 1)
    out = {}
    for implementation in ("eager", "sdpa"):
        network.set_attn_implementation(implementation)
        out[implementation] = network(**feed).logits
    keep = feed["attention_mask"].bool() if head in ("causal", "masked") else slice(None)
    close(out["eager"][keep], out["sdpa"][keep], 1e-10)


@pytest.mark.parametrize("head", ["causal", "seq2seq", "masked"])
def test_hidden_states_and_attentions(head: str) -> None:
    """Layers + 1 states; eager weights sum to one, and a decoder's are lower triangular."""
    network, feed = made(head, "normformer"), inputs(head)
    network.set_attn_implementation("eager")
    out = network(**feed, output_hidden_states=True, output_attentions=True)
    pair = head == "seq2seq"
    states, weights = (
        (out.decoder_hidden_states, out.decoder_attentions) if pair else (out.hidden_states, out.attentions)
    )
    assert len(states) == 3 and len(weights) == 2
    for w in weights:
        close(w.sum(-1), torch.ones_like(w[..., 0]), 1e-12)
        assert (w.triu(1) == 0).all() == (head != "masked")
    if pair:
        assert len(out.encoder_hidden_states) == 4 and len(out.encoder_attentions) == 3
        assert [tuple(w.shape) for w in out.cross_attentions] == [(2, 4, 6, 7)] * 2


@pytest.mark.parametrize("decoder", [False, True])
def test_the_classifier_reads_the_first_or_the_last_token(decoder: bool) -> None:
    """First position of an encoder, last token that is not padding of a decoder; padding changes nothing."""
    network, ids = made("classify", "pre-ln", is_decoder=decoder), tokens(2, 6)
    alone = network(ids).logits
    for left, right in ((0, 3), (3, 0)):
        whole, mask, _ = padded(ids, left, right)
        close(network(whole, attention_mask=mask).logits, alone, 1e-10)
    hidden = network.model(ids, use_cache=False).last_hidden_state[:, -1 if decoder else 0]
    close(network.classifier(network.dense(hidden).tanh()), alone, 1e-12)


def test_inputs_embeds_in_place_of_ids() -> None:
    decoder, ids = made("causal", "pre-ln", scale_embedding=True), tokens(2, 6)
    close(decoder(inputs_embeds=decoder.get_input_embeddings()(ids)).logits, decoder(ids).logits, 0)
    for wrong in ({}, {"input_ids": ids, "inputs_embeds": torch.zeros(2, 6, 16)}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            decoder(**wrong)
