"""The laws' numbers against the papers' formulas, written out here once more."""

import math

import pytest

from isograd.placement import get, laws, sites

DEPTHS = [1, 2, 6, 12, 48, 100, 1000]
PAIRS = [(1, 1), (6, 6), (18, 6), (6, 18), (60, 12), (100, 100)]


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("n", DEPTHS)
def test_deepnorm_of_one_stack(n: int, stack: laws.Stack) -> None:
    """alpha = (2N)^(1/4), beta = (8N)^(-1/4), encoder-only and decoder-only."""
    for site in sites(n, stack):
        assert laws.deepnorm_skip(site) == pytest.approx(math.sqrt(math.sqrt(2 * n)), rel=1e-12)
        assert laws.deepnorm_init(site) == pytest.approx(1 / math.sqrt(math.sqrt(8 * n)), rel=1e-12)


@pytest.mark.parametrize(("n", "m"), PAIRS)
def test_deepnorm_of_an_encoder_decoder(n: int, m: int) -> None:
    """Encoder: alpha = 0.81 (N^4 M)^(1/16), beta = 0.87 (N^4 M)^(-1/16); decoder: (3M)^(1/4), (12M)^(-1/4)."""
    sixteenth = math.exp((4 * math.log(n) + math.log(m)) / 16)
    for site in sites(n, "encoder", m):
        assert laws.deepnorm_skip(site) == pytest.approx(0.81 * sixteenth, rel=1e-12)
        assert laws.deepnorm_init(site) == pytest.approx(0.87 / sixteenth, rel=1e-12)
    for site in sites(m, "decoder", n):
        assert laws.deepnorm_skip(site) == pytest.approx(math.exp(math.log(3 * m) / 4), rel=1e-12)
        assert laws.deepnorm_init(site) == pytest.approx(math.exp(-math.log(12 * m) / 4), rel=1e-12)


def test_deepnorm_stacks_differ() -> None:
    """The negative control: the encoder's constant in the decoder would be another number."""
    encoder, decoder = sites(6, "encoder", 6)[0], sites(6, "decoder", 6)[0]
    assert abs(laws.deepnorm_skip(encoder) - laws.deepnorm_skip(decoder)) > 0.1
    assert abs(laws.deepnorm_skip(encoder) - laws.deepnorm_skip(sites(6, "encoder")[0])) > 0.1


@pytest.mark.parametrize(("stack", "expected"), [("encoder", 6.0746), ("decoder", 7.1931)])
def test_admin_closed_at_one_hundred_layers(stack: laws.Stack, expected: float) -> None:
    """admin-torch's published values: 200 sublayers beside 300."""
    every = sites(100, stack, 100)
    assert len(every) == {"encoder": 200, "decoder": 300}[stack]
    assert {round(laws.admin_closed_skip(s), 4) for s in every} == {expected}


@pytest.mark.parametrize("n", DEPTHS)
def test_admin_closed_counts_sublayers(n: int) -> None:
    slots = 2 * n
    for site in sites(n):
        assert laws.admin_closed_skip(site) ** 2 == pytest.approx((slots + 1) / math.log(slots + 1) - 1, rel=1e-12)


@pytest.mark.parametrize("n", DEPTHS)
def test_gpt2_start(n: int) -> None:
    """1/sqrt(2 L): one residual sum per sublayer."""
    assert laws.gpt2_init(sites(n)[-1]) == pytest.approx((2 * n) ** -0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("layers", "stack", "other", "kinds"),
    [
        (3, "encoder", 0, 2),
        (3, "decoder", 0, 2),
        (3, "encoder", 5, 2),
        (3, "decoder", 5, 3),
    ],
)
def test_sites_in_forward_order(layers: int, stack: laws.Stack, other: int, kinds: int) -> None:
    every = sites(layers, stack, other)
    assert [s.slot for s in every] == list(range(1, layers * kinds + 1))
    assert {s.slots for s in every} == {layers * kinds}
    assert [s.layer for s in every] == [layer for layer in range(1, layers + 1) for _ in range(kinds)]
    assert [s.kind for s in every[:kinds]] == (["attn", "cross", "ffn"] if kinds == 3 else ["attn", "ffn"])
    assert {(s.layers, s.stack, s.other) for s in every} == {(layers, stack, other)}


def test_a_placement_resolves_its_laws() -> None:
    """`at` leaves no callable behind, and gives each site its own number."""
    first = sites(6, "encoder", 3)[0]
    assert get("deepnorm").at(first).skip == laws.deepnorm_skip(first)
    assert get("admin-closed").at(first).skip.init == laws.admin_closed_skip(first)
    assert get("deepnorm").init.at(first) == dict.fromkeys(
        ("value", "attn_out", "ffn_in", "ffn_out"), laws.deepnorm_init(first)
    )
    assert get("gpt2").init.at(sites(8)[0]) == {"attn_out": 0.25, "ffn_out": 0.25}
    assert get("pre-ln").init.at(first) == {}
