"""Terms of sums, streams and attention where models write them in ways of their own."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

from isograd.diagnose import Profile, profile
from isograd.diagnose.calibrate import calibrate
from isograd.diagnose.depth_profile.expected import expected
from isograd.diagnose.depth_profile.results import Expected, StackProfile, SublayerProfile
from tests import build
from tests.build import few
from tests.diagnose.test_profile import IDS, grown, rms, seen, var
from tests.lint.families import FAMILIES


def test_parallel_sublayers_do_not_count_as_each_others_skip() -> None:
    """GPT-NeoX: x + attn(x) + mlp(x) in one sum."""
    model = grown(FAMILIES["gpt-neox"].build())
    layers = [f"gpt_neox.layers.{i}" for i in range(3)]
    parts = {"attn": "attention.dense", "ffn": "mlp.dense_4h_to_h"}
    hooked = seen(model, {"input_ids": IDS}, [a for at in layers for a in (at, *(f"{at}.{p}" for p in parts.values()))])
    for row in profile(model, {"input_ids": IDS}).rows:
        at = layers[row.layer - 1]
        x, total = hooked[at]
        branch = hooked[f"{at}.{parts[row.kind]}"][1]
        assert row.branch_skip_ratio == pytest.approx(var(branch) / var(x), rel=1e-5)
        assert row.residual_rms == pytest.approx(rms(total), rel=1e-5)
        assert row.branch_skip_ratio != pytest.approx(var(branch) / var(total - branch), rel=1e-2)


@pytest.mark.parametrize(
    ("family", "branch"),
    [
        ("gemma2", {"attn": "post_attention_layernorm", "ffn": "post_feedforward_layernorm"}),
        ("olmo2", {"attn": "post_attention_layernorm", "ffn": "post_feedforward_layernorm"}),
    ],
)
def test_norms_on_what_the_branch_wrote_belong_to_it(family: str, branch: dict[str, str]) -> None:
    """With their gains, which no hand-written norm shows in one operation."""
    model = grown(FAMILIES[family].build())
    layers = [f"model.layers.{i}" for i in range(3)]
    hooked = seen(model, {"input_ids": IDS}, [f"{at}.{part}" for at in layers for part in branch.values()] + layers)
    for row in profile(model, {"input_ids": IDS}).rows:
        written = hooked[f"{layers[row.layer - 1]}.{branch[row.kind]}"][1]
        assert row.branch_variance == pytest.approx(var(written), rel=1e-4)
        if row.kind == "ffn":
            assert row.residual_rms == pytest.approx(rms(hooked[layers[row.layer - 1]][1]), rel=1e-5)


def test_scaled_branches() -> None:
    """DINOv2's learned scale is a part of the branch's term."""
    model = grown(FAMILIES["dinov2"].build())
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    found = profile(model, {"pixel_values": pixels})
    scales = [name for name, _ in model.named_modules() if name.endswith(("layer_scale1", "layer_scale2"))]
    hooked = seen(model, {"pixel_values": pixels}, scales)
    assert len(found.rows) == len(scales)
    for row, name in zip(found.rows, scales, strict=True):
        bare, scaled = hooked[name]
        assert row.branch_variance == pytest.approx(var(scaled), rel=1e-4)
        assert row.branch_variance != pytest.approx(var(bare), rel=1e-3)


@pytest.mark.parametrize("family", few(["llama", "gpt2", "bert", "marian", "t5"], ["llama", "t5"]))
def test_attention_in_either_form(family: str) -> None:
    """As one operation or as product, mask and softmax; shared keys, causal, padded and biased."""
    model = grown(FAMILIES[family].build())
    mask = torch.ones_like(IDS)
    mask[0, 6:] = 0
    inputs = {"input_ids": IDS, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = IDS[:, :5]
    forms = []
    for name in ("eager", "sdpa"):
        model.set_attn_implementation(name)
        forms.append([row for row in profile(model, inputs).rows if row.kind != "ffn"])
    fields = ("attention_entropy", "attention_entropy_min", "attention_uniform", "attention_share", "largest_logit")
    for one, other in zip(*forms, strict=True):
        for field in fields:
            assert getattr(one, field) == pytest.approx(getattr(other, field), rel=1e-4), (field, one.address)
    if family == "bert":
        assert forms[0][0].attention_uniform == pytest.approx((math.log(6) + math.log(9)) / 2)


def test_heads_of_torchs_own_attention() -> None:
    """Time first: heads are told from sequences; the weights are torch's."""
    model = grown(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0), 2, enable_nested_tensor=False)
    )
    x = torch.randn(7, 3, 16, generator=torch.Generator().manual_seed(0))
    first: Any = model.layers[0]
    with torch.no_grad():
        weights = first.self_attn(x, x, x, average_attn_weights=False)[1]  # (batch, heads, time, time)
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1)
    row = profile(model.eval(), (x,)).rows[0]
    assert row.attention_entropy == pytest.approx(float(entropy.mean()), rel=1e-4)
    assert row.attention_entropy_min == pytest.approx(float(entropy.mean((0, 2)).min()), rel=1e-4)
    assert 0 <= row.largest_position < 7 and 0 <= row.largest_channel < 16


def of(found: Profile, quantity: str) -> list[Expected]:
    return [line for line in found.expected if line.quantity == quantity]


def started(placement: str) -> Any:
    """As a training begins: ADMIN is calibrated. Before, it is Post-LN, and has the lines of that."""
    model = build.model("causal", random=False, placement=placement, scale_embedding=True)
    if model.config.entry().calibrate:
        calibrate(model, {"input_ids": build.tokens(4, 16)})
    return model


def test_lines_stand_beside_the_placements_that_they_speak_of() -> None:
    found = {name: profile(started(name)) for name in build.NAMES}
    with_dependency = {name for name, one in found.items() if of(one, "dependency")}
    with_level = {name for name, one in found.items() if of(one, "gradient_mean_abs")}
    assert {"pre-ln", "admin"} <= with_dependency and not with_dependency & {"post-ln", "deepnorm", "normformer"}
    assert {"post-ln", "deepnorm"} <= with_level and not with_level & {"pre-ln", "normformer", "admin"}
    assert [line.value for line in of(found["pre-ln"], "dependency")] == [(1, 1 / 2, 1 / 3, 1 / 4)]
    assert of(found["pre-ln"], "dependency_sum")[0].value[-1] == pytest.approx(25 / 12)
    assert of(found["post-ln"], "sum_rms")[0].value == (math.sqrt(1.5),) * 2
    level, last = of(found["post-ln"], "gradient_mean_abs")[0], found["post-ln"].rows[-1]
    assert set(level.value) == {last.gradient_mean_abs}
    for one in found.values():
        assert of(one, "attention_entropy")[0].value[0] == one.rows[0].attention_uniform


def test_a_post_ln_decoder_falls_by_the_root_of_two_thirds() -> None:
    found = profile(build.model("seq2seq", random=False, placement="post-ln", num_hidden_layers=4))
    encoder, decoder = of(found, "gradient_mean_abs")
    assert (encoder.stack, encoder.label) == ("encoder", "flat")
    steps = [low / high for low, high in zip(decoder.value, decoder.value[1:], strict=False)]
    assert steps == pytest.approx([math.sqrt(2 / 3)] * 3)


def test_the_bounds_of_lemma_2_only_in_its_setting() -> None:
    """A first feed-forward branch of variance 1/2, as squares of Xavier give it; a start of 0.02 is another setting."""
    found = profile(build.model("causal", random=False, placement="pre-ln"))
    (stack,) = found.stacks
    stack = dataclasses.replace(stack, input_rms=2.0)

    def bounds(variance: float, stack: StackProfile = stack) -> list[tuple[float, ...]]:
        rows: list[SublayerProfile] = [dataclasses.replace(row, branch_variance=variance) for row in found.rows]
        return [line.value for line in expected([stack], rows) if line.label.startswith("Lemma 2")]

    low, high = bounds(0.5)
    assert low == pytest.approx((math.sqrt(4.5), math.sqrt(5))) and high == pytest.approx(
        (math.sqrt(5.5), math.sqrt(7))
    )
    assert bounds(0.02) == []


def test_variances_add_up() -> None:
    """The line of unrelated branches holds for branches that are: random ones of great width."""
    found = profile(build.model("causal", random=False, placement="pre-ln", hidden_size=128, intermediate_size=128))
    (line,) = [one for one in of(found, "residual_rms") if "unrelated" in one.label]
    assert [row.residual_rms for row in found.rows] == pytest.approx(line.value, rel=0.1)
    total = found.stacks[0].input_rms ** 2 + sum(row.branch_variance or 0.0 for row in found.rows)
    assert line.value[-1] == pytest.approx(math.sqrt(total))
