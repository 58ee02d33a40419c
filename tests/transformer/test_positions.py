"""Position tables and ids against the papers' formulas, entry by entry."""

import math

import pytest
import torch

from isograd.transformer.positions import (
    ADDED,
    Rotary,
    Sinusoidal,
    position_ids,
    rotate,
    sinusoidal,
    sinusoidal_interleaved,
)
from tests.build import close, config


def rotary_tables(position: torch.Tensor, size: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    shape = {"hidden_size": size, "num_attention_heads": 1, "rope_theta": theta}
    return Rotary(config(position_embedding_type="rotary", **shape))(position, torch.float64)


@pytest.mark.parametrize("width", [4, 6, 16, 17])
def test_sinusoidal_is_fairseqs(width: int) -> None:
    """sin in the first half, cos in the second, frequencies 10000^(-j/(half - 1)), an odd width padded with zero."""
    table, half = sinusoidal(torch.arange(5), width), width // 2
    for p in range(5):
        for j in range(half):
            angle = p * 10000 ** (-j / (half - 1))
            assert table[p, j].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[p, half + j].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert table.shape == (5, width) and not table[:, 2 * half :].any()


@pytest.mark.parametrize("width", [4, 6, 16, 17])
def test_interleaved_is_the_original(width: int) -> None:
    """PE(p, 2j) = sin(p / 10000^(2j/d)), PE(p, 2j + 1) = cos(same)."""
    table = sinusoidal_interleaved(torch.arange(5), width)
    for p in range(5):
        for i in range(width):
            angle = p / 10000 ** ((i - i % 2) / width)
            assert table[p, i].item() == pytest.approx((math.cos if i % 2 else math.sin)(angle), abs=1e-6)


def test_the_two_conventions_differ() -> None:
    assert (sinusoidal(torch.arange(5), 16) - sinusoidal_interleaved(torch.arange(5), 16)).abs().max() > 0.5


@pytest.mark.parametrize("kind", ADDED)
@pytest.mark.parametrize("offset", [0, 2])
def test_pad_ids_get_the_zero_vector(kind: str, offset: int) -> None:
    table = Sinusoidal(kind, 8, offset)(torch.arange(6))
    assert not table[:offset].any()
    assert torch.equal(table[offset:], ADDED[kind](torch.arange(offset, 6), 8))


def test_rotation_turns_pairs_by_position_times_frequency() -> None:
    """(x_j, x_{j + d/2}) turns by p theta^(-2j/d): written as a complex product."""
    position, size, theta = torch.tensor([[0, 1, 5]]), 8, 100.0
    x = torch.randn(1, 2, 3, size, dtype=torch.float64)
    got = rotate(x, *rotary_tables(position, size, theta))
    pair = torch.complex(x[..., :4], x[..., 4:])
    angle = position[0, :, None].double() * torch.tensor([theta ** (-2 * j / size) for j in range(4)]).double()
    expected = pair * torch.polar(torch.ones_like(angle), angle)
    close(got, torch.cat([expected.real, expected.imag], -1), 1e-6)  # the tables are float32
    close(got.norm(dim=-1), x.norm(dim=-1), 1e-6)


def test_rotary_scores_depend_on_distance_only() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def score(at: int, to: int) -> torch.Tensor:
        tables = [rotary_tables(torch.tensor([[p]]), 8, 100.0) for p in (at, to)]
        return (rotate(q, *tables[0]) * rotate(k, *tables[1])).sum()

    close(score(7, 3), score(14, 10), 1e-6)
    assert (score(7, 3) - score(7, 4)).abs() > 1e-3


@pytest.mark.parametrize("offset", [0, 2])
def test_ids_count_what_is_not_padding(offset: int) -> None:
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1]])
    pad = max(offset - 1, 0)
    o = offset
    expected = torch.tensor([[o, o + 1, o + 2, pad, pad], [pad, pad, o, o + 1, o + 2], [o, pad, o + 1, pad, o + 2]])
    cpu = torch.device("cpu")
    assert torch.equal(position_ids(3, 5, 0, offset, mask, cpu), expected)
    assert torch.equal(position_ids(3, 2, 3, offset, mask, cpu), expected[:, 3:])  # three are in the cache
    assert torch.equal(position_ids(1, 2, 3, offset, None, cpu), torch.tensor([[o + 3, o + 4]]))
