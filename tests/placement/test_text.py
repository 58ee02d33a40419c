"""What the catalogue prints."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from isograd.placement import CATALOGUE, ByKind, HeadScale, Learned, Norm, Placement, Residual, Site, get, text
from isograd.placement.streams import Stream

FORMULAS = {
    "post-ln": ("x <- LN(x + Attn(x))", "x <- LN(x + Cross(x))", "x <- LN(x + FFN(x))"),
    "pre-ln": ("x <- x + Attn(LN(x))", "x <- x + Cross(LN(x))", "x <- x + FFN(LN(x))"),
    "gpt2": ("x <- x + Attn(LN(x))", "x <- x + Cross(LN(x))", "x <- x + FFN(LN(x))"),
    "normformer": (
        "x <- x + LN(W_O (heads * Heads(LN(x))))",
        "x <- x + Cross(LN(x))",
        "x <- x + W_2 LN(act(W_1 LN(x)))",
    ),
    "normformer-resscale": (
        "x <- x + LN(W_O (heads * Heads(LN(x))))",
        "x <- x + Cross(LN(x))",
        "x <- skip * x + W_2 LN(act(W_1 LN(x)))",
    ),
    "normformer-resscale-no-out": (
        "x <- x + W_O (heads * Heads(LN(x)))",
        "x <- x + Cross(LN(x))",
        "x <- skip * x + W_2 LN(act(W_1 LN(x)))",
    ),
    "normformer-resscale-no-mid": (
        "x <- x + LN(W_O (heads * Heads(LN(x))))",
        "x <- x + Cross(LN(x))",
        "x <- skip * x + FFN(LN(x))",
    ),
    "normformer-resscale-no-heads": (
        "x <- x + LN(Attn(LN(x)))",
        "x <- x + Cross(LN(x))",
        "x <- skip * x + W_2 LN(act(W_1 LN(x)))",
    ),
    "normformer-resscale-qkv": (
        "x <- x + LN(W_O (heads * Heads(LN(q), LN(k), LN(v) of LN(x))))",
        "x <- x + Cross(LN(x))",
        "x <- skip * x + W_2 LN(act(W_1 LN(x)))",
    ),
    "normformer-fairseq": (
        "x <- x + LN(heads * Attn(LN(x)))",
        "x <- x + Cross(LN(x))",
        "x <- x + W_2 LN(act(W_1 LN(x)))",
    ),
    "normformer-fairseq-resscale": (
        "x <- x + LN(heads * Attn(LN(x)))",
        "x <- x + Cross(LN(x))",
        "x <- skip * x + W_2 LN(act(W_1 LN(x)))",
    ),
    "admin": ("x <- LN(skip * x + Attn(x))", "x <- LN(skip * x + Cross(x))", "x <- LN(skip * x + FFN(x))"),
    "admin-closed": ("x <- LN(skip * x + Attn(x))", "x <- LN(skip * x + Cross(x))", "x <- LN(skip * x + FFN(x))"),
    "deepnorm": ("x <- LN(skip * x + Attn(x))", "x <- LN(skip * x + Cross(x))", "x <- LN(skip * x + FFN(x))"),
    "qk-norm": (
        "x <- x + Attn(LN(q), LN(k), v of LN(x))",
        "x <- x + Cross(LN(q), LN(k), v of LN(x))",
        "x <- x + FFN(LN(x))",
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name: str) -> None:
    assert tuple(text.formulas(get(name), cross=True).values()) == FORMULAS[name]
    assert list(text.formulas(get(name))) == ["attn", "ffn"]


def test_all_slots_at_once() -> None:
    n = Norm(kind="rmsnorm")
    every = Residual(pre=n, mid=n, out=n, post=n, skip=2.0, scale=Learned(), head_scale=HeadScale())
    assert text.formula(every, "attn") == "x <- RMS(skip * x + scale * RMS(W_O RMS(heads * Heads(RMS(x)))))"


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_says_what_it_is(name: str) -> None:
    entry = get(name)
    assert entry.about and entry.paper
    assert len(text.numbers(entry, 3)) == 6
    assert len(text.numbers(entry, 3, "decoder", other=2)) == 9


def test_numbers_of_deepnorm() -> None:
    row = text.numbers(get("deepnorm"), 2)[-1]
    assert row == {
        "layer": 2, "kind": "ffn", "skip": 4**0.25, "scale": 1.0,
        "init.value": 16**-0.25, "init.attn_out": 16**-0.25, "init.ffn_in": 16**-0.25, "init.ffn_out": 16**-0.25,
    }  # fmt: skip


def test_legend() -> None:
    assert "profile" in text.legend(get("admin"))[0]
    assert "sqrt((n + 1) / ln(n + 1) - 1)" in text.legend(get("admin-closed"))[0]
    assert "on what W_O reads" in text.legend(get("normformer"))[0]
    assert "on what W_O wrote" in text.legend(get("normformer-fairseq"))[0]
    assert text.legend(get("pre-ln")) == []
    assert text.legend(get("qk-norm")) == ["q, k: what W_Q, W_K wrote, normalized over each head on its own"]
    assert text.legend(get("normformer-resscale-qkv"))[-1].endswith(
        "W_Q, W_K, W_V wrote, normalized over the whole width"
    )
    assert [line for line in text.legend(get("deepnorm")) if line.startswith("init of value, attn_out, ffn_in,")]


def test_legend_sees_the_cross_attention() -> None:
    """A symbol that only the cross-attention's formula uses is explained too."""
    plain = Residual(pre=Norm())
    only = Placement(each=ByKind(attn=plain, ffn=plain, cross=Residual(pre=Norm(), scale=Learned(init=0.0))))
    assert "scale * " in text.formulas(only, cross=True)["cross"]
    assert any(line.startswith("scale:") for line in text.legend(only))


def test_where_a_norms_weight_begins() -> None:
    """A law of the site, as in depth-scaled sandwich norms; nothing where it is 1."""

    def shrunk(site: Site) -> float:
        """0.5 / sqrt(L)."""
        return float(0.5 * site.layers**-0.5)

    placement = Placement(each=Residual(pre=Norm(), out=Norm(init=shrunk)), final=Norm())
    assert "weight of the norm out: initialized to 0.5 / sqrt(L)" in text.legend(placement)
    assert [row["out.init"] for row in text.numbers(placement, 4)] == [0.25] * 8
    assert not any("weight of the norm" in line for line in text.legend(get("sandwich")))


@dataclass(frozen=True, kw_only=True)
class Silent(Stream):
    """One's own, which says nothing of what it does: that a branch reads x would be a guess."""

    def connection(self, site: Site, width: int, eps: float) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Told(Silent):
    reads: ClassVar[str] = "h, the mean of the last two"


def test_a_stream_of_ones_own_is_not_said_to_read_x() -> None:
    said = [text.legend(Placement(each=Residual(pre=Norm()), stream=one, about="-"))[0] for one in (Silent(), Told())]
    assert said[0].startswith("stream Silent: a branch reads what its connection's `read` returns (say it in `reads`")
    assert said[1].startswith(
        "stream Told: a branch reads h, the mean of the last two; state <- its connection's `write`"
    )
