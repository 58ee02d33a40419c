"""A user's own placement, end to end; and what a placement refuses."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from isograd.errors import UnknownPlacement
from isograd.placement import CATALOGUE, ByKind, HeadScale, Init, Learned, Norm, Placement, Residual, get, register
from isograd.placement.stored import restored, stored
from isograd.placement.streams import Stream
from isograd.residual import Residuals
from isograd.transformer.parameters import decayed
from tests.build import HEADS, close, config, labelled, model

N = Norm()
OWN = Placement(
    each=ByKind(
        attn=Residual(
            pre=N, mid=N, out=N, scale=Learned(init=lambda s: 1 / s.layer, shape="scalar"), head_scale=HeadScale()
        ),
        ffn=Residual(pre=N, out=Norm(kind="rmsnorm"), skip=0.5, scale=lambda s: s.slots**-0.5),
    ),
    final=N,
    init=Init(base="xavier-normal", gain={"ffn_out": 0.5}),
    about="a placement of one's own",
)


@pytest.mark.parametrize("head", HEADS)
def test_own_placement_trains_saves_and_loads(head: str, own_catalogue: None, tmp_path: Path) -> None:
    assert register("own", OWN) is OWN
    made, given = model(head, placement="own", random=False).train(), labelled(head)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    before = made(**given).loss
    before.backward()
    assert all(p.grad is not None for p in made.parameters())
    optimizer.step()
    after = made.eval()(**given).loss
    assert after < before
    made.save_pretrained(tmp_path)
    again = type(made).from_pretrained(tmp_path)
    assert torch.equal(again(**given).loss, after)
    assert again.config.placement == "own"


def test_own_coefficients_start_where_their_law_says(own_catalogue: None) -> None:
    register("own", OWN)
    layers = model(placement="own", random=False).model.layers
    assert [layer.attn.combine.scale.weight.tolist() for layer in layers] == [[1.0], [0.5]]
    assert layers[1].ffn.combine.skip == 0.5 and layers[1].ffn.combine.scale == 0.5
    assert isinstance(layers[1].ffn.out, torch.nn.RMSNorm)


def test_a_taken_name_is_refused(own_catalogue: None) -> None:
    with pytest.raises(ValueError, match="'pre-ln' is in the catalogue already; pass overwrite=True"):
        register("pre-ln", OWN)
    assert register("pre-ln", OWN, overwrite=True) is get("pre-ln") is OWN


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("preln", "pre-ln"), ("deepnrom", "deepnorm"), ("normformer-fairseq-rescale", "normformer-fairseq-resscale")],
)
def test_an_unknown_name_names_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(UnknownPlacement, match=f"unknown placement '{wrong}': did you mean '{near}'"):
        get(wrong)
    with pytest.raises(KeyError):
        get(wrong)


def test_a_far_name_lists_all() -> None:
    with pytest.raises(UnknownPlacement) as info:
        get("zzz")
    assert all(name in str(info.value) for name in CATALOGUE)
    assert str(info.value).startswith("unknown")  # not KeyError's quoted repr


def test_a_feed_forward_has_no_heads() -> None:
    with pytest.raises(ValueError, match="a feed-forward has no heads: put HeadScale on the attention"):
        Placement(each=Residual(pre=N, head_scale=HeadScale()))
    with pytest.raises(ValueError, match="no heads"):
        Placement(each=ByKind(attn=Residual(pre=N), ffn=Residual(head_scale=HeadScale())))
    Placement(each=ByKind(attn=Residual(head_scale=HeadScale()), ffn=Residual()))


LEARNED, FIXED = Residual(post=N, skip=Learned()), Residual(post=N)


@pytest.mark.parametrize(
    "each",
    [
        FIXED,
        ByKind(attn=FIXED, ffn=LEARNED),
        ByKind(attn=LEARNED, ffn=FIXED),
        ByKind(attn=LEARNED, cross=FIXED, ffn=LEARNED),
    ],
)
def test_a_calibration_needs_learned_skips_everywhere(each: Residual | ByKind) -> None:
    with pytest.raises(ValueError, match="calibrate='admin' sets learned skips"):
        Placement(each=each, calibrate="admin")


def test_placements_are_frozen_values() -> None:
    assert Residual(pre=Norm()) == Residual(pre=N)
    with pytest.raises(AttributeError):
        get("pre-ln").final = None
    with pytest.raises(TypeError):
        Residual(N)
    assert config(placement="deepnorm").entry() is CATALOGUE["deepnorm"]


def test_a_stream_of_ones_own(own_catalogue: None, tmp_path: Path) -> None:
    """The page's: by hand, trained, saved, loaded, and as a part of another model."""
    page = (Path(__file__).parents[2] / "docs/placements.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(from dataclasses.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, "placements.md", "exec"), names)
    part, x = Residuals("highway", 16, layers=1).double(), torch.randn(2, 3, 16, dtype=torch.float64)
    state = x
    for k in range(2):
        nn.init.normal_(part[k].stream.weight)
        w, b = part[k].stream.weight, part[k].stream.bias
        t = 1 / (1 + (-(state @ w.T) - b).exp())
        state = (1 - t) * state + t * torch.tanh(part[k].pre(state))
    close(part(x, [torch.tanh] * 2), part.final(state), 1e-12)
    made, given = model("causal", placement="highway", random=False), labelled("causal")
    loss = made(**given).loss
    loss.backward()
    assert all(p.grad is not None for p in made.parameters())
    assert (made.model.layers[0].attn.stream.bias == -1).all()
    assert not [name for name in decayed(made)[0] if ".stream." in name]
    made.save_pretrained(tmp_path)
    assert torch.equal(type(made).from_pretrained(tmp_path)(**given).loss, loss)


def test_a_stream_without_a_part_is_refused(own_catalogue: None) -> None:
    class Bare(Stream):
        """No method."""

    register("bare", Placement(each=Residual(), stream=Bare()))
    with pytest.raises(TypeError, match=r"Bare: a stream of your own has a method connection\(site, width, eps\)"):
        model("causal", placement="bare")
    formula = stored("gone", Placement(each=Residual(), stream=Bare()), 2, "decoder", 0)
    formula["stream"]["is"] = "Gone"
    with pytest.raises(ValueError, match="there is no stream 'Gone'; import the module that has it"):
        restored({"decoder": formula})
