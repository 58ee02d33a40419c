"""A folded model is plain and computes what the model did: 1e-12 in fp64, 1e-5 in fp32; no negative control does."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isograd.convert.folding import fold
from isograd.models import IsogradModel
from isograd.placement import CATALOGUE, ByKind, HeadScale, Learned, Norm, Placement, ProjectionNorm, Residual, Site
from isograd.placement.catalogue import register
from isograd.transformer.parameters import roles
from tests.build import HEADS, config, in_turn, inputs, model, randomised, tokens
from tests.golden import PAD, load

N = Norm()


def by_depth(site: Site) -> float:
    return 0.5 + site.slot / site.slots


POST, MIDDLE = Residual(post=N), Residual(post=N, mid=N)
VALUE = replace(MIDDLE, projections=ProjectionNorm(of=("value",)))
OWN = {  # name -> the placement, and the name of what it folds into
    "layer-scale": (Placement(each=Residual(pre=N, scale=Learned(init=0.1)), final=N), "pre-ln"),
    "gain-behind-out": (Placement(each=Residual(pre=N, out=N, scale=Learned(shape="scalar")), final=N), "sandwich"),
    "zero-scale": (Placement(each=Residual(scale=Learned(init=0.0, shape="scalar"))), "no-norm"),
    "bare-everything": (Placement(each=Residual(skip=Learned(), scale=by_depth)), "no-norm"),
    "post-everything": (
        Placement(
            each=ByKind(
                attn=replace(POST, skip=by_depth, scale=Learned(), head_scale=HeadScale()),
                ffn=replace(POST, skip=Learned(shape="scalar"), scale=1.5),
            )
        ),
        "post-ln",
    ),
    "half-and-half": (
        Placement(each=ByKind(attn=replace(POST, skip=Learned()), ffn=Residual(skip=Learned()))),
        "post-on-attention",
    ),
    "heads-before-mid": (Placement(each=ByKind(attn=replace(MIDDLE, head_scale=HeadScale()), ffn=POST)), "mid"),
    "heads-behind-value-norm": (
        Placement(each=ByKind(attn=replace(VALUE, head_scale=HeadScale()), ffn=POST)),
        "mid-and-value",
    ),
}
PLAIN = {
    "post-on-attention": Placement(each=ByKind(attn=POST, ffn=Residual())),
    "mid": Placement(each=ByKind(attn=MIDDLE, ffn=POST)),
    "mid-and-value": Placement(each=ByKind(attn=VALUE, ffn=POST)),
}
LIBRARY = {
    "layerscale": "pre-ln",
    "rezero": "no-norm",
    "skipinit": "no-norm",
    "depth-mup": "pre-ln",
    "admin": "post-ln",
    "admin-closed": "post-ln",
    "deepnorm": "post-ln",
    "normformer": "fairseq-pre-AF",
    "normformer-fairseq": "fairseq-pre-AF",
    "fairseq-post-AHFR": "fairseq-post-AF",
    "fairseq-pre-P": "pre-ln",
    "fairseq-pre-H-nofinal": "fairseq-pre-nofinal",
    "fairseq-post-FR-final": "fairseq-post-F-final",
}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    own = {name: placement for name, (placement, _) in OWN.items()} | PLAIN
    for name, placement in own.items():
        register(name, placement)
    yield
    for name in own:
        del CATALOGUE[name]


def feed(head: str) -> dict[str, Tensor]:
    """Three sequences, one padded on the right, one on the left."""
    given = inputs(head, batch=3)
    mask = torch.ones_like(given["input_ids"])
    mask[1, 4:] = 0
    mask[2, :2] = 0
    return given | {"attention_mask": mask}


def apart(first: Any, second: Any, head: str) -> float:
    """The largest difference of logits where tokens count, over the largest logit."""
    given = feed(head)
    with torch.no_grad():
        a, b = first(**given).logits, second(**given).logits
    if head in ("causal", "masked"):
        a, b = (x[given["attention_mask"].bool()] for x in (a, b))
    return float((a - b).abs().max() / a.abs().max())


def check(made: Any, head: str, *, placement: str) -> Any:
    """Fold in both precisions and compare; the folded fp64 model."""
    exact = made.double()
    folded = fold(exact, untie=True)
    assert folded.config.placement == placement
    assert "coefficient" not in roles(folded).values()
    assert apart(exact, folded, head) < 1e-12
    single = copy.deepcopy(exact).float()
    assert apart(single, fold(single, untie=True), head) < 1e-5
    return folded


@in_turn("head, name", [*HEADS], [*LIBRARY, *OWN], every=2)
def test_every_placement_with_coefficients(name: str, head: str) -> None:
    """Vectors, numbers, constants, at every depth; a ReZero gain is away from 0 here."""
    check(model(head, placement=name), head, placement=LIBRARY.get(name) or OWN[name][1])


@in_turn(
    "head, position, options",
    [*HEADS],
    ["learned", "sinusoidal", "sinusoidal_interleaved", "rotary", "none"],
    [
        {"embedding_norm": True},
        {"norm": "rmsnorm", "hidden_act": "swiglu", "bias": False, "position_offset": 2},
        {"norm": "rmsnorm", "embedding_norm": True, "scale_embedding": True},
        {"tie_word_embeddings": False, "scale_embedding": True, "position_offset": 2},
    ],
    every=3,
)
def test_every_shape(head: str, position: str, options: dict[str, Any]) -> None:
    made = model(head, placement="admin", position_embedding_type=position, **options)
    folded = check(made, head, placement="post-ln")
    table = position.startswith("sinusoidal") and not options.get("embedding_norm")
    assert folded.config.position_embedding_type == ("learned" if table else position)


def test_types_of_tokens() -> None:
    made = model("masked", placement="admin", type_vocab_size=2, next_sentence=True, dtype=torch.float64)
    types = tokens(3, 7, low=0, high=2)
    given = feed("masked") | {"token_type_ids": types}
    with torch.no_grad():
        torch.testing.assert_close(fold(made, untie=True)(**given).logits, made(**given).logits, rtol=0, atol=1e-12)


@in_turn("tie, share, norm", [False, True], [False, True], [False, True])
def test_tables_of_an_encoder_decoder(tie: bool, share: bool, norm: bool) -> None:
    if share and not tie:
        return
    made = model("seq2seq", placement="admin", tie_word_embeddings=tie, share_encoder_embeddings=share,
                 embedding_norm=norm)  # fmt: skip
    folded = check(made, "seq2seq", placement="post-ln")
    assert (folded.config.tie_word_embeddings, folded.config.share_encoder_embeddings) == (tie and norm, share and norm)
    target = folded.decoder.embedding.tokens.weight
    assert (folded.lm_head.weight is target) == (tie and norm)
    assert (folded.encoder.embedding.tokens.weight is target) == (share and norm)


def test_only_what_has_to_be_is_untied() -> None:
    """The first skip of a decoder that is 1 leaves its table alone, and then the encoder's alone is scaled."""
    made = model("seq2seq", placement="admin", dtype=torch.float64)
    torch.nn.init.ones_(made.decoder.layers[0].attn.combine.skip.weight)
    folded = fold(made)
    assert folded.config.tie_word_embeddings and apart(made, folded, "seq2seq") < 1e-12
    assert not torch.equal(folded.encoder.embedding.tokens.weight, made.encoder.embedding.tokens.weight)


@pytest.mark.parametrize(
    "options",
    [
        {"placement": "admin", "encoder_options": {"placement": "pre-ln"}},
        {"placement": "pre-ln", "encoder_options": {"placement": "deepnorm", "position_embedding_type": "sinusoidal"}},
        {"placement": "deepnorm", "encoder_options": {"hidden_size": 12, "num_attention_heads": 3}},
        {"placement": "admin", "input_size": 8, "output_size": 12, "tie_word_embeddings": False},
    ],
)
def test_towers_that_differ(options: dict[str, Any]) -> None:
    made = model("seq2seq", dtype=torch.float64, **options)
    folded = fold(made, untie=True)
    assert apart(made, folded, "seq2seq") < 1e-12
    assert {folded.config.of(t).placement for t in ("encoder", "decoder")} <= {"post-ln", "pre-ln"}


def test_a_projected_table_stays_tied() -> None:
    """Its projection takes the skip."""
    made = model("causal", placement="admin", input_size=8, output_size=8, dtype=torch.float64)
    folded = fold(made)
    assert folded.config.tie_word_embeddings and apart(made, folded, "causal") < 1e-12


def by_hand(made: Any, *, beta: bool = True, memory: bool = False) -> Any:
    """The fold of a fp64 ADMIN encoder-decoder with embedding norms, from its three steps (`papers`, not our code).

    1. gamma and beta of the norm before times omega; 2. the input columns of the branch over omega, of a
    cross-attention W_Q only; 3. omega is 1. `beta=False` and `memory=True` (W_K, W_V as well) are mistakes.
    """
    out = copy.deepcopy(made)
    state = out.state_dict()
    for tower, layers in (("encoder", 3), ("decoder", 2)):
        norm = f"{tower}.embedding.norm"
        kinds = ("attn", "ffn") if tower == "encoder" else ("attn", "cross", "ffn")
        for at in (f"{tower}.layers.{i}.{kind}" for i in range(layers) for kind in kinds):
            omega = state[f"{at}.combine.skip.weight"].clone()
            state[f"{norm}.weight"] *= omega
            if beta:
                state[f"{norm}.bias"] *= omega
            readers = ["into"] if at.endswith("ffn") else ["query", "key", "value"]
            if at.endswith("cross") and not memory:
                readers = ["query"]
            for reader in readers:
                state[f"{at}.branch.{reader}.weight"] /= omega[None, :]
            state[f"{at}.combine.skip.weight"].fill_(1.0)
            norm = f"{at}.post"
    return out


def test_the_weights_are_those_of_the_derivation() -> None:
    made = model("seq2seq", placement="admin", embedding_norm=True, dtype=torch.float64)
    mine, hand = fold(made).state_dict(), by_hand(made).state_dict()
    assert mine.keys() < hand.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, hand[name], rtol=1e-15, atol=0)
    assert apart(made, by_hand(made), "seq2seq") < 1e-12


@pytest.mark.parametrize("mistake", [{"memory": True}, {"beta": False}], ids=str)
def test_negative_control_mistakes_in_the_fold_are_seen(mistake: dict[str, bool]) -> None:
    made = model("seq2seq", placement="admin", embedding_norm=True, dtype=torch.float64)
    assert apart(made, by_hand(made, **mistake), "seq2seq") > 1e-2


def test_negative_control_a_scalar_fold_needs_its_own_eps() -> None:
    """LN(w x + f) = LN(x + f / w) with eps / w^2: exact with it, and seen at 1e-12 without."""
    made = model("causal", placement="deepnorm", dtype=torch.float64)
    skip = made.model.layers[0].attn.combine.skip
    scaled = model("causal", placement="post-ln", dtype=torch.float64)
    scaled.load_state_dict(made.state_dict())
    for layer in scaled.model.layers:
        for sublayer in (layer.attn, layer.ffn):
            for p in sublayer.branch.out.parameters():
                p.data /= skip
    assert 1e-12 < apart(made, scaled, "causal") < 1e-3
    for layer in scaled.model.layers:
        layer.attn.post.eps /= skip**2
        layer.ffn.post.eps /= skip**2
    assert apart(made, scaled, "causal") < 1e-12


@pytest.mark.parametrize("tag", ["init", "trained"])
def test_the_logits_of_the_original_admin(tag: str) -> None:
    """Transformer-Clinic's own numbers, from a model without its coefficients."""
    made, t, _ = load("admin/admin_perturbed_learned", tag)
    folded = fold(made, untie=True)
    ids, before = t["in/src_tokens"], t["in/prev_output_tokens"]
    with torch.no_grad():
        got = folded(input_ids=ids, attention_mask=(ids != PAD).long(), decoder_input_ids=before).logits
    expected = t["out64/logits"]
    assert folded.config.placement == "post-ln"
    torch.testing.assert_close(got[before != PAD], expected[before != PAD], rtol=0, atol=1e-9)


def test_heads_of_the_paper_against_the_reference() -> None:
    made, t, _ = load("headscale_paper/paperhs_lm_pre_AHF")
    folded = fold(made)
    ids = t["in/src_tokens"]
    with torch.no_grad():
        got = folded(input_ids=ids, attention_mask=(ids != PAD).long()).logits
    assert "coefficient" not in roles(folded).values()
    torch.testing.assert_close(got[ids != PAD], t["out64/logits"][ids != PAD], rtol=0, atol=1e-9)


def test_a_sinusoid_becomes_a_table_as_long_as_the_configuration_says() -> None:
    made = model("causal", placement="admin", position_embedding_type="sinusoidal", dtype=torch.float64)
    ids = tokens(1, 40)
    with pytest.raises(ValueError, match="max_position_embeddings=32"):
        fold(made, untie=True)(ids)
    made.config.max_position_embeddings = 48  # a sinusoid has no end, so this may be set at any time
    torch.testing.assert_close(fold(made, untie=True)(ids).logits, made(ids).logits, rtol=0, atol=1e-12)


def test_what_it_does_not_touch() -> None:
    """W_O, W_2, biases of the branches, the last norm, the head: bit for bit."""
    made = model("seq2seq", placement="admin", embedding_norm=True)
    folded, before = fold(made).state_dict(), made.state_dict()
    same = {name for name, value in folded.items() if torch.equal(value, before[name])}
    for tower, last in (("encoder", 2), ("decoder", 1)):
        assert f"{tower}.layers.{last}.ffn.post.weight" in same
    assert {n for n in folded if ".branch.out." in n or (".branch." in n and n.endswith("bias"))} <= same
    assert {n for n in folded if ".cross.branch.key" in n or ".cross.branch.value" in n} <= same
    assert "decoder.layers.0.attn.post.weight" not in same and "decoder.layers.0.attn.branch.query.weight" not in same


def test_the_model_stays_as_it_is() -> None:
    made = model("seq2seq", placement="admin", share_encoder_embeddings=True, calibration={"method": "admin"},
                 dtype=torch.float64).train()  # fmt: skip
    before, options = copy.deepcopy(made.state_dict()), made.config.to_dict()
    torch.manual_seed(3)
    folded = fold(made, untie=True)
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(3))
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert made.config.to_dict() == options and made.training and folded.training
    assert made.lm_head.weight is made.encoder.embedding.tokens.weight
    assert folded.config.calibration is None
    ours = {p.data_ptr() for p in made.parameters()}
    assert not any(p.data_ptr() in ours for p in folded.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_saved_and_loaded_it_is_the_same(dtype: torch.dtype, tmp_path: Path) -> None:
    made = model("seq2seq", placement="admin", dtype=dtype, share_encoder_embeddings=True)
    made.generation_config.num_beams = 3
    folded = fold(made, untie=True)
    folded.save_pretrained(tmp_path)
    again = type(made).from_pretrained(tmp_path)
    assert {p.dtype for p in again.parameters()} == {dtype}
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in folded.state_dict().items())
    assert again.generation_config.num_beams == 3
    assert again.config.to_dict() | {"_name_or_path": ""} == folded.config.to_dict() | {"_name_or_path": ""}
    assert apart(folded, again, "seq2seq") < 1e-15  # a product's last bit may depend on where its factors lie


def test_folded_in_fp64_and_cast_at_the_end() -> None:
    """bf16 weights are rounded once: those of the fold of the fp64 copy."""
    made = model("causal", placement="admin", embedding_norm=True, dtype=torch.bfloat16)
    exact, rounded = fold(copy.deepcopy(made).double()).state_dict(), fold(made).state_dict()
    assert all(torch.equal(exact[name].bfloat16(), value) for name, value in rounded.items())


def test_dtypes_may_be_mixed() -> None:
    made = model("causal", placement="admin", embedding_norm=True, dtype=torch.bfloat16)
    for name, module in made.named_modules():
        if name.endswith("post"):
            module.float()
    wanted = {name: p.dtype for name, p in made.named_parameters()}
    assert all(p.dtype == wanted[name] for name, p in fold(made).named_parameters())


@in_turn("beams, head", [1, 4], ["causal", "seq2seq"])
def test_it_writes_the_same(head: str, beams: int) -> None:
    made = model(head, placement="admin", dtype=torch.float64)
    given = {"input_ids": tokens(4, 5), "num_beams": beams, "max_new_tokens": 12, "min_new_tokens": 12}
    first, second = made.generate(**given), fold(made, untie=True).generate(**given)
    assert torch.equal(first, second) and len(first.unique()) > 2


def test_coefficients_of_any_sign_and_size() -> None:
    made = model("seq2seq", placement="admin", dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if "combine.skip" in name:
                p.copy_(torch.rand(p.shape, generator=draw) * 8 + 0.5)
                p[::3] *= -1
                p[1] = 1e-4
    assert apart(made, fold(made, untie=True), "seq2seq") < 1e-12


def test_one_tower_without_a_head() -> None:
    made = randomised(IsogradModel(config(placement="admin")).double().eval())
    folded = fold(made)
    ids = tokens(2, 6)
    a, b = (m(ids).last_hidden_state for m in (made, folded))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_training_goes_on_from_a_folded_model() -> None:
    folded = fold(model("causal", placement="admin"), untie=True).train()
    folded(**inputs("causal"), labels=inputs("causal")["input_ids"]).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in folded.parameters())
