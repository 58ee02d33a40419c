"""The setting with real attention: what a subject is, cut models, ADMIN's recursion, the change of the output."""

import copy

import pytest
import torch

from isograd.diagnose.calibrate import calibrate
from isograd.papers.theory.amplification import gradient_changes, output_changes
from isograd.papers.theory.gradients import _last_gradients, _square_means, of_layers, of_stacks
from isograd.papers.theory.networks import (
    cut,
    decoder,
    drawn_from,
    encoder_decoder,
    of_depths,
    prepared,
    profile_skips,
    shares,
    streams,
    tokens,
)
from isograd.transformer.parameters import Linear

SHAPE = {"hidden_size": 32}


def test_admins_recursion_is_what_the_calibration_finds() -> None:
    with drawn_from(1):
        ids, model = tokens(2, 9), decoder("admin", 6, **SHAPE)
    other = copy.deepcopy(model)
    found = profile_skips(model, ids)
    assert found == pytest.approx(calibrate(other, {"input_ids": ids})["decoder"], rel=1e-6)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_a_plain_init_is_xaviers() -> None:
    with drawn_from(1):
        small, plain = decoder("deepnorm", 8), decoder("deepnorm, plain init", 8)
    for module, other in zip(small.model.layers.modules(), plain.model.layers.modules(), strict=True):
        if isinstance(module, Linear):
            expected = (2 / sum(module.weight.shape)) ** 0.5
            assert float(other.weight.detach().std()) == pytest.approx(expected, rel=0.03)
            shrunk = module.role in ("value", "attn_out", "ffn_in", "ffn_out")
            assert float(module.weight.detach().std()) == pytest.approx(
                expected * (64**-0.25 if shrunk else 1), rel=0.03
            )


@pytest.mark.parametrize("subject", ["admin, skip 1", "admin-closed, skip 1"])
def test_without_its_skip_admin_is_post_ln(subject: str) -> None:
    ids = tokens(2, 9)
    with drawn_from(2), torch.no_grad():
        given = decoder(subject, 3, **SHAPE).model(ids).last_hidden_state
    with drawn_from(2), torch.no_grad():
        expected = decoder("post-ln", 3, **SHAPE).model(ids).last_hidden_state
    torch.testing.assert_close(given, expected)


def test_what_cannot_be_undone_is_refused() -> None:
    with pytest.raises(ValueError, match="'upside down' is nothing to change"):
        decoder("post-ln, upside down", 1, **SHAPE)


@pytest.mark.parametrize(
    ("subject", "models"), [("post-ln", 1), ("normformer", 1), ("admin", 1), ("deepnorm", 3), ("gpt2", 3)]
)
def test_one_draw_serves_all_depths_where_no_number_asks(subject: str, models: int) -> None:
    ids = tokens(1, 9)
    found = of_depths(subject, (1, 2, 4), ids, **SHAPE)
    assert len(found) == models
    assert [depth for _, served in found for depth in served] == [1, 2, 4]
    for model, served in found:
        assert len(model.model.layers) == max(served)


@pytest.mark.parametrize("subject", ["post-ln", "pre-ln", "admin"])
def test_a_cut_model_is_the_shallow_one(subject: str) -> None:
    """With the weights of the deep one's first layers; the last layer's gradient as a full backward pass has it."""
    with drawn_from(3):
        ids = tokens(1, 33)
        deep = prepared(subject, 4, ids)
        shallow = decoder(subject, 2)
    weights = {k: v for k, v in deep.state_dict().items() if not k.startswith(("model.layers.2.", "model.layers.3."))}
    shallow.load_state_dict(weights)
    shallow(input_ids=ids, labels=ids).loss.backward()
    expected = float(shallow.model.layers[1].ffn.branch.out.weight.grad.norm())
    assert _last_gradients(subject, (2, 4), 3)[0] == pytest.approx(expected, rel=1e-5)
    with torch.no_grad(), cut(deep, 2) as model:
        torch.testing.assert_close(model.model(ids).last_hidden_state, shallow.model(ids).last_hidden_state)
    assert len(deep.model.layers) == 4


def test_streams_are_what_the_final_norm_reads() -> None:
    ids = tokens(2, 9)
    model = decoder("pre-ln", 3, **SHAPE)
    with torch.no_grad():
        expected = model.model(ids).last_hidden_state
    torch.testing.assert_close(model.model.norm(streams(model, ids, (1, 3))[1]), expected)


def test_the_change_of_the_output_by_brute_force() -> None:
    """DeepNorm has a model per depth, drawn one after the other; so the first can be rebuilt here."""
    found = output_changes("deepnorm", (2, 3), 5)
    with drawn_from(5), torch.no_grad():
        ids = tokens(4, 32)
        shape = {"hidden_size": 64, "dtype": torch.float64, "init": None}
        first, _ = decoder("deepnorm", 2, **shape), decoder("deepnorm", 3, **shape)
        before = first.model(ids).last_hidden_state
        for name, weight in first.named_parameters():
            if name.startswith("model.layers.") and weight.ndim == 2:
                weight += 1e-5 * torch.sign(torch.randn(weight.shape, dtype=torch.float64))
        change = (first.model(ids).last_hidden_state - before) / 1e-5
    assert found[0] == pytest.approx(float((change**2).mean()), rel=1e-6)


def test_the_change_does_not_depend_on_the_step() -> None:
    """It is a derivative: small enough to be linear, large enough for float64."""
    fine, coarse = output_changes("pre-ln", (3,), 1, step=1e-6), output_changes("pre-ln", (3,), 1, step=1e-5)
    assert fine == pytest.approx(coarse, rel=1e-3)


def test_gradients_and_streams_have_a_number_per_layer() -> None:
    assert len(of_layers("normformer", 3, 0)) == len(_square_means("normformer", 3, 0)) == 3
    assert _square_means("post-ln", 3, 0)[0] > 1.2  # before the norm; after it 1


@pytest.mark.parametrize(
    ("subject", "attn"), [("pre-ln", "attn.branch.out"), ("normformer", "attn.out"), ("deepnorm", "attn.branch.out")]
)
def test_scaled_outputs(subject: str, attn: str) -> None:
    """W_2 and W_O of layer l by l^-0.5, or the norm after the attention where there is one; nothing else."""
    with drawn_from(1):
        plain = decoder(subject, 4, **SHAPE)
    with drawn_from(1):
        scaled = decoder(f"{subject}, outputs as l^-0.5", 4, **SHAPE)
    for (at, one), (_, other) in zip(plain.named_parameters(), scaled.named_parameters(), strict=True):
        parts = at.split(".")
        written = at.endswith((f"{attn}.weight", "ffn.branch.out.weight"))
        factor = (int(parts[2]) + 1) ** -0.5 if written else 1.0
        torch.testing.assert_close(other, factor * one)


def test_one_matrix_scaled() -> None:
    with drawn_from(1):
        plain, scaled = decoder("post-ln", 2, **SHAPE), None
    with drawn_from(1):
        scaled = decoder("post-ln, W_1 x 3", 2, **SHAPE)
    changed = {
        at for (at, one), two in zip(plain.named_parameters(), scaled.parameters(), strict=True) if (one != two).any()
    }
    assert changed == {f"model.layers.{i}.ffn.branch.into.weight" for i in (0, 1)}
    with drawn_from(1):
        both = encoder_decoder("post-ln", 1, hidden_size=32)
    with drawn_from(1):
        halved = encoder_decoder("post-ln, cross x 0.5", 1, hidden_size=32)
    ends = {
        at for (at, one), two in zip(both.named_parameters(), halved.parameters(), strict=True) if (one != two).any()
    }
    assert ends == {"decoder.layers.0.cross.branch.out.weight"}


def test_shares_by_hand() -> None:
    """Of DeepNorm's first sum: Var[branch] over Var[branch] + Var[skip x], from the modules called one by one."""
    ids = tokens(2, 9)
    with drawn_from(1):
        model = decoder("deepnorm", 2, **SHAPE)
    with torch.no_grad(), shares(model) as found:
        model.model(ids)
    assert len(found) == 4
    seen: list[torch.Tensor] = []
    first = model.model.layers[0].attn
    first.combine.register_forward_pre_hook(lambda _, args: seen.extend(args))
    with torch.no_grad():
        model.model(ids)
    x, u = (term.double().var(unbiased=False) for term in seen)
    assert found[0] == pytest.approx(float(u / (u + (2 * 2) ** 0.5 * x)), rel=1e-5)  # skip^2 = (2L)^(1/2)


def test_the_callers_random_state_stays() -> None:
    before = torch.get_rng_state()
    output_changes("post-ln", (1,), 1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("subject", "added"), [("post-ln", 0.5), ("post-ln, xavier-normal", 1.0)])
def test_what_the_cross_attention_adds(subject: str, added: float) -> None:
    """v of the factor 1 / sqrt(1 + v): half the variance of the stream with one matrix for W_Q, W_K, W_V, else all."""
    ratios: list[float] = []
    with drawn_from(0):
        model = encoder_decoder(subject, 12, hidden_size=256)
        source, target = tokens(4, 32), tokens(4, 32)
    for layer in model.decoder.layers:
        layer.cross.combine.register_forward_pre_hook(lambda _, terms: ratios.append(float(terms[1].var())))
    with torch.no_grad():
        model(input_ids=source, decoder_input_ids=target)
    assert sum(ratios) / 12 == pytest.approx(added, rel=0.15)


@pytest.mark.parametrize("subject", ["post-ln", "admin"])
def test_the_change_along_the_gradient_by_hand(subject: str) -> None:
    """Weights moved in place and the change read of the last hidden state; farther than at random."""
    depths, step = (2, 3), 1e-6
    found = gradient_changes(subject, depths, seed=3, step=step)
    for layers, change in zip(depths, found, strict=True):
        with drawn_from(3):
            ids = tokens(4, 32)
            model = prepared(subject, 3, ids, hidden_size=64, dtype=torch.float64, init=None)
        with cut(model, layers):
            before = model.model(ids).last_hidden_state.detach()
            model(input_ids=ids, labels=ids).loss.backward()
            with torch.no_grad():
                for parameter in model.model.layers.parameters():
                    if parameter.ndim == 2:
                        parameter += step * parameter.grad.sign()
            after = model.model(ids).last_hidden_state.detach()
        assert change == pytest.approx(float(((after - before) / step).square().mean()), rel=1e-5)
    at_random = output_changes(subject, depths, seed=3)
    assert all(along > 2 * random for along, random in zip(found, at_random, strict=True))


def test_gradients_of_a_hybrid() -> None:
    """The decoder's placement decides in the decoder, the encoder's in the encoder."""
    post, pre = of_stacks("post-ln", 6, 0), of_stacks("pre-ln", 6, 0)
    hybrid, reverse = of_stacks("pre-ln", 6, 0, "post-ln"), of_stacks("post-ln", 6, 0, "pre-ln")

    def falls(norms: list[float]) -> float:
        return (norms[0] / norms[-1]) ** (1 / 5)

    assert falls(post["decoder"]) < 0.9 < falls(hybrid["decoder"]) and falls(reverse["decoder"]) < 0.9
    assert falls(pre["encoder"]) > 1.05 < falls(reverse["encoder"]) and falls(hybrid["encoder"]) < 1.05
