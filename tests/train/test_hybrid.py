"""An encoder of one placement beside a decoder of another: a recipe's `model.encoder_placement`."""

from pathlib import Path

import pytest
import torch

from isograd.diagnose.calibrate import calibrate
from isograd.errors import RecipeError
from isograd.lab.study.labels import labels
from isograd.lab.train.run import Run
from isograd.lab.train.train import initial_model, train
from isograd.models import IsogradConfig, IsogradForSeq2SeqLM
from tests.build import close, randomised, tokens
from tests.train.recipes import losses, read_json, small_translation
from tests.transformer.by_hand import layernorm
from tests.transformer.test_equations import by_hand, states


def hybrid(encoder: str, decoder: str, **model: object) -> Run:
    shape = {"placement": decoder, "encoder_placement": encoder, "layers": 2, "encoder_layers": 2, "heads": 4}
    return small_translation(model=shape | model)


def built(run: Run) -> IsogradForSeq2SeqLM:
    return randomised(IsogradForSeq2SeqLM(run.config())).double().eval()


@pytest.mark.parametrize(("encoder", "decoder"), [("post-ln", "pre-ln"), ("pre-ln", "post-ln")])
def test_both_stacks_are_their_own_equations(encoder: str, decoder: str) -> None:
    model = built(hybrid(encoder, decoder))
    source, target = tokens(2, 5), tokens(2, 4, seed=1)
    at = torch.arange(5)
    expected = {}
    for name, ids in (("encoder", source), ("decoder", target)):
        stack, placement = getattr(model, name), encoder if name == "encoder" else decoder
        x = stack.embedding(stack.embedding.tokens(ids), at[: ids.shape[1]])
        for layer in stack.layers:
            kind = "cross" if name == "decoder" else "encoder"
            x = by_hand(placement, states(layer), x, expected.get("encoder", x), kind, "layernorm")
        if placement == "pre-ln":
            x = layernorm(x, stack.norm.weight, stack.norm.bias)
        expected[name] = x
    close(model(input_ids=source, decoder_input_ids=target).logits, model.lm_head(expected["decoder"]), 1e-12)


def test_only_the_stack_that_asks_for_it_is_calibrated() -> None:
    batch = {"input_ids": tokens(2, 5), "decoder_input_ids": tokens(2, 4, seed=1)}
    for encoder, decoder, stack in (("admin", "pre-ln", "encoder"), ("pre-ln", "admin", "decoder")):
        torch.manual_seed(0)
        found = calibrate(mixed := IsogradForSeq2SeqLM(hybrid(encoder, decoder).config()), batch)
        torch.manual_seed(0)
        whole = calibrate(IsogradForSeq2SeqLM(hybrid("admin", "admin").config()), batch)
        assert list(found) == [stack] and mixed.config.calibration["method"] == "admin"
        if stack == "encoder":  # a decoder's profile reads what the encoder writes
            assert found["encoder"] == pytest.approx(whole["encoder"])
        assert found[stack][0] == 1.0 and found[stack][-1] > 1.2
        assert IsogradConfig.from_dict(mixed.config.to_dict()).calibration == mixed.config.calibration


def test_a_run_says_both_placements(tmp_path: Path) -> None:
    run = hybrid("admin", "pre-ln")
    assert run.folder_name().startswith("admin+pre-ln-2l-2l-")
    assert small_translation().folder_name().startswith("pre-ln-1l-2l-")
    assert train(run, tmp_path)["outcome"] in ("finished", "undecided")
    resolved = read_json(tmp_path / "resolved.json")
    assert resolved["placement"] == "pre-ln, admin encoder"
    assert resolved["formulas"]["encoder ffn"] == "x <- LN(skip * x + FFN(x))  in the encoder"
    assert resolved["formulas"]["ffn"] == "x <- x + FFN(LN(x))"
    skips = [site["skip"] for site in resolved["sites"]]
    assert len(skips) == 10 and list(resolved["calibration"]) == ["method", "encoder"]
    said = labels([run.as_dict(), hybrid("pre-ln", "pre-ln").as_dict(), small_translation().as_dict()])
    assert said[0].startswith("pre-ln, no warm-up") and "admin encoder" in said[0] and "none" not in "".join(said)


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(RecipeError, match="did you mean 'post-ln'"):
        hybrid("postln", "pre-ln").config()


def test_the_model_before_the_first_update(tmp_path: Path) -> None:
    """As the run drew and profiled it: its skips, and its loss on the first batch."""
    run = small_translation(model={"placement": "admin", "dropout": 0.0}, training={"label_smoothing": 0.0, "steps": 1})
    train(run, tmp_path)
    torch.manual_seed(99)  # whatever was drawn before
    task, model = initial_model(run)
    calibration = read_json(tmp_path / "resolved.json")["calibration"]
    assert calibration == model.config.calibration
    assert model(**task.samples[0]).loss.item() == pytest.approx(losses(tmp_path)[0], rel=1e-5)
