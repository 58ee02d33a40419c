"""fairseq 0.12 and Transformer-Clinic in fp64: logits to 1e-9, summed losses, every gradient to 1e-8."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isograd.transformer.positions import sinusoidal
from tests.build import close
from tests.golden import PAD, REDUCED, WHOLE, load, present, read, renamed, under

CAUSAL = [
    "lm/lm_post_none",
    "lm/lm_post_AR",
    "lm/lm_pre_none",
    "lm/lm_pre_plain_learned_gelu",
    "lm/lm_pre_noscaleemb_lnemb",
    "lm/lm_pre_AHF",
    "lm/lm_pre_AHFR",
    "headscale_paper/paperhs_lm_pre_AHF",
]
SEQ2SEQ = ["encdec/ed_post_plain", "encdec/ed_pre_plain", "encdec/ed_pre_decAHFR"]
MASKED = ["mlm/mlm_post", "mlm/mlm_pre"]
ADMIN = ["admin/admin_perturbed_learned"]


def cases(names: list[str]) -> Any:
    """Every case once from the reduced files (where it is among them) and once from the whole ones (where present)."""
    here = [(name, root) for name in names for root in (REDUCED, WHOLE) if root == WHOLE or present(name, root)]
    return pytest.mark.parametrize(
        ("case", "root"),
        [
            pytest.param(
                name,
                root,
                id=f"{name}-{'reduced' if root == REDUCED else 'whole'}",
                marks=pytest.mark.skipif(not present(name, root), reason=f"{name} is not beside this checkout"),
            )
            for name, root in here
        ],
    )


def agree(got: Tensor, expected: Tensor, at: Tensor) -> None:
    close(got[at], expected[at], 1e-9)


def gradients_agree(model: Any, tensors: dict[str, Tensor], index: dict[str, Any]) -> None:
    """Every stored gradient; the reduced files hold some of them, the whole files all."""
    expected = renamed(under(tensors, "grad64/"), index["config"])
    named = dict(model.named_parameters())
    assert expected and set(expected) <= set(named)
    if "reduced" not in index:
        assert set(expected) == set(named)
    for name, value in expected.items():
        torch.testing.assert_close(named[name].grad, value, rtol=0, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")


def shifted_labels(target: Tensor) -> Tensor:
    return target.where(target != PAD, -100)


@cases(CAUSAL)
def test_causal(case: str, root: Path) -> None:
    model, t, index = load(case, root=root)
    ids, target = t["in/src_tokens"], t["in/target"]
    mask = (ids != PAD).long()
    for given in (mask, None):  # right padding: a causal model needs no mask
        agree(model(ids, attention_mask=given, use_cache=False).logits, t["out64/logits"], mask.bool())
    # our labels are the inputs themselves: put the last target, eos, behind every row
    tail = ids.new_full((len(ids), 1), PAD)
    whole = torch.cat([ids, tail], 1).scatter(
        1, mask.sum(1, keepdim=True), target.gather(1, mask.sum(1, keepdim=True) - 1)
    )
    loss = model(whole, labels=shifted_labels(whole), num_items_in_batch=1).loss
    torch.testing.assert_close(loss, t["out64/loss"][0], rtol=1e-10, atol=0)
    loss.backward()
    gradients_agree(model, t, index)


def run_seq2seq(case: str, root: Path, tag: str = "") -> None:
    model, t, index = load(case, tag, root)
    source, target, written = t["in/src_tokens"], t["in/target"], t["in/prev_output_tokens"]
    masks = {"attention_mask": (source != PAD).long(), "decoder_attention_mask": (written != PAD).long()}
    out = model(source, decoder_input_ids=written, use_cache=False, **masks)
    agree(out.logits, t["out64/logits"], written != PAD)
    agree(out.encoder_last_hidden_state, t["out64/encoder_out"], source != PAD)
    # the decoder's input is the target shifted behind eos: the model makes it from the labels
    loss = model(
        source, attention_mask=masks["attention_mask"], labels=shifted_labels(target), num_items_in_batch=1
    ).loss
    torch.testing.assert_close(loss, t["out64/loss"][0], rtol=1e-10, atol=0)
    loss.backward()
    gradients_agree(model, t, index)


@cases(SEQ2SEQ)
def test_encoder_decoder(case: str, root: Path) -> None:
    run_seq2seq(case, root)


@pytest.mark.parametrize("tag", ["init", "trained"])
@cases(ADMIN)
def test_admin_with_given_omegas(case: str, root: Path, tag: str) -> None:
    run_seq2seq(case, root, tag)


@cases(ADMIN)
def test_admin_profile_is_what_the_initialised_model_holds(case: str, root: Path) -> None:
    model, t, _ = load(case, "init", root)
    for stack in ("encoder", "decoder"):
        skips = [p for n, p in getattr(model, stack).named_parameters() if n.endswith("combine.skip.weight")]
        profiled = t[f"profile/{stack}_omegas"].double()
        assert len(skips) == len(profiled)
        for skip, omega in zip(skips, profiled, strict=True):
            close(skip.detach(), omega.expand_as(skip), 1e-7)


@cases(MASKED)
def test_masked(case: str, root: Path) -> None:
    model, t, index = load(case, root=root)
    ids, labels = t["in/src_tokens"], shifted_labels(t["in/target"])
    mask = (ids != PAD).long()
    agree(model(ids, attention_mask=mask).logits, t["out64/logits"], mask.bool())
    rows, columns = t["in/masked_positions"].T
    flat = rows * ids.shape[1] + columns
    for positions in (None, flat):
        model.zero_grad()
        out = model(ids, attention_mask=mask, labels=labels, masked_positions=positions, num_items_in_batch=1)
        torch.testing.assert_close(out.loss, t["out64/loss"][0], rtol=1e-10, atol=0)
        out.loss.backward()
        gradients_agree(model, t, index)


@cases(["beam/beam_pre"])
def test_trained_translator_in_fp32(case: str, root: Path) -> None:
    model, t, _ = load(case, root=root)
    source, written = t["in/src_tokens"], t["in/prev_output_tokens"]
    logits = model.float()(source, attention_mask=(source != PAD).long(), decoder_input_ids=written).logits
    close(logits[written != PAD], t["out/teacher_forced_logits"][written != PAD], 3e-5)


@cases(["lm/lm_pre_AHFR", "encdec/ed_post_plain"])
def test_sinusoidal_table_is_fairseqs_bit_for_bit(case: str, root: Path) -> None:
    tensors, _ = read(case, root)
    table = next(v for k, v in tensors.items() if k.endswith("sinusoidal_table"))
    ours = sinusoidal(torch.arange(len(table)), table.shape[1])
    assert torch.equal(ours[2:], table[2:])
    assert not table[PAD].any()  # and our Sinusoidal module gives pads the zero vector


@pytest.mark.parametrize("mistake", ["eps", "gelu", "scale", "offset"])
@cases(["headscale_paper/paperhs_lm_pre_AHF"])
def test_single_mistakes_are_seen(case: str, root: Path, mistake: str) -> None:
    """The negative control: what one wrong number does is far outside the tolerance."""
    model, t, _ = load(case, root=root)
    ids = t["in/src_tokens"]
    if mistake == "eps":
        for module in model.modules():
            if hasattr(module, "eps"):
                module.eps = 1e-6
    elif mistake == "gelu":
        for layer in model.model.layers:
            layer.ffn.branch.act = lambda x: torch.nn.functional.gelu(x, approximate="tanh")
    elif mistake == "scale":
        model.model.embedding.scale = 1.0
    else:
        model.config.position_offset = 0
    with torch.no_grad():
        far = (model(ids, attention_mask=(ids != PAD).long()).logits - t["out64/logits"])[ids != PAD].abs().max()
    assert far > 1e-6
