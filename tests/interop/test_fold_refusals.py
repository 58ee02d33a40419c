"""What cannot be folded exactly is refused in one line that says why, and what to do where something can be done."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from isograd.convert.folding import NEAR_ZERO, fold
from isograd.errors import FoldError, InteropError
from isograd.placement import CATALOGUE, Norm, Placement, Residual
from isograd.placement.catalogue import register
from tests.build import model

RESSCALE = [name for name in CATALOGUE if "resscale" in name and not name.endswith("qkv")]


def refused(made: Any, message: str, **options: Any) -> None:
    before = copy.deepcopy(made.state_dict())
    with pytest.raises(FoldError, match=message) as caught:
        fold(made, **options)
    assert "\n" not in str(caught.value) and isinstance(caught.value, InteropError)
    assert all(torch.equal(v.nan_to_num(), before[n].nan_to_num()) for n, v in made.state_dict().items())


@pytest.mark.parametrize("name", ["post-ln", "pre-ln", "gpt2", "qk-norm"])
def test_a_plain_placement_has_nothing_to_fold(name: str) -> None:
    refused(model(placement=name), f"'{name}' has no coefficients to fold")


@pytest.mark.parametrize(
    ("head", "options", "readers"),
    [
        ("causal", {}, "the embedding and the head share"),
        ("masked", {}, "the embedding and the head share"),
        ("seq2seq", {}, "the embedding and the head share"),
        ("seq2seq", {"share_encoder_embeddings": True}, "encoder, decoder and head share"),
    ],
)
@pytest.mark.parametrize("name", ["admin", "deepnorm"])
def test_a_shared_table_is_untied_only_when_asked(name: str, head: str, options: dict[str, Any], readers: str) -> None:
    made = model(head, placement=name, **options)
    refused(made, rf"{readers}, .* untie=True \(--untie\) gives each its own copy$")
    assert fold(made, untie=True).config.placement == "post-ln"


def test_a_table_with_one_reader_needs_no_untying() -> None:
    for head, options in (
        ("causal", {"tie_word_embeddings": False}),
        ("classify", {}),
        ("masked", {"embedding_norm": True}),
    ):
        assert fold(model(head, placement="admin", **options)).config.placement == "post-ln"


@pytest.mark.parametrize("name", [*RESSCALE, "fairseq-pre-R"])
def test_a_skip_that_a_norm_in_front_reads(name: str) -> None:
    """The negative control: after the norm, as in fairseq-post-R, the same skip folds."""
    refused(model(placement=name), "the skip of ffn in layer 2 of the decoder cannot be folded: a norm in front of")
    assert fold(model(placement="fairseq-post-R")).config.placement == "post-ln"


def test_norms_that_no_placement_has() -> None:
    name = "normformer-resscale-qkv"
    refused(model(placement=name), rf"'{name}' without its coefficients is x <- x \+ LN\(Attn\(LN\(q\).* register")


def test_a_registered_placement_is_found() -> None:
    register("own", Placement(each=Residual(mid=Norm(), post=Norm(), scale=0.5)))
    try:
        made = model(placement="own", dtype=torch.float64)
        refused(made, r"'own' without its coefficients is x <- LN\(x \+ W_O LN\(.*, which the catalogue does not")
        register("own-plain", Placement(each=Residual(mid=Norm(), post=Norm())))
        assert fold(made).config.placement == "own-plain"
    finally:
        CATALOGUE.pop("own", None)
        CATALOGUE.pop("own-plain", None)


@pytest.mark.parametrize("value", [0.0, 1e-8, float("nan"), float("inf")])
def test_an_entry_that_cannot_be_divided_by(value: float) -> None:
    made = model(placement="admin", embedding_norm=True, dtype=torch.float64)
    skip = made.model.layers[1].attn.combine.skip.weight
    nn.init.constant_(skip, 2.0)
    skip.data[3] = value
    refused(made, r"the skip of attn in layer 2 of the decoder cannot be folded: its smallest entry is")


def test_entries_small_in_relation_to_the_largest() -> None:
    made = model(placement="admin", embedding_norm=True, dtype=torch.float64)
    skip = made.model.layers[1].ffn.combine.skip.weight
    nn.init.constant_(skip, 1e-9)
    assert fold(made).config.placement == "post-ln"  # all alike, small or not
    skip.data[0] = 1e-9 / NEAR_ZERO * 1.01
    refused(made, "the skip of ffn in layer 2")
    skip.data[0] = 1e-9 / NEAR_ZERO * 0.99
    assert fold(made).config.placement == "post-ln"


def test_a_gain_of_zero_folds() -> None:
    """Nothing is divided by it: a ReZero stack at its start."""
    register("zero", Placement(each=Residual(post=Norm(), scale=0.0)))
    try:
        folded = fold(model(placement="zero"))
        assert not folded.model.layers[0].attn.branch.out.weight.any()
    finally:
        del CATALOGUE["zero"]


class Adapter(nn.Module):
    """A low-rank reader beside a projection."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def test_another_reader_of_the_stream() -> None:
    made = model(placement="admin", embedding_norm=True)
    made.model.layers[0].attn.branch.query = Adapter(made.model.layers[0].attn.branch.query)
    refused(made, r"model\.layers\.0\.attn\.branch\.query \(Adapter\) is not of a model that isograd builds")
    made = model(placement="admin", embedding_norm=True)
    made.probe = nn.Linear(16, 2)
    refused(made, r"probe \(Linear\) is not of a model")


def test_a_weight_that_is_parametrized() -> None:
    made = model(placement="admin", embedding_norm=True)
    nn.utils.parametrizations.weight_norm(made.model.layers[0].ffn.branch.into)
    with pytest.raises(FoldError, match=r"ffn\.branch\.into \(ParametrizedLinear\) is not of a model"):
        fold(made)
