"""Batches by tokens: every pair once per epoch, never too many places, little padding, the same order each time."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isograd.errors import DataError
from isograd.lab.data.batches import Ragged, TokenBatches
from isograd.transformer.loss import IGNORE

PAD = 0


def ragged(rows: list[list[int]]) -> Ragged:
    flat = np.array([i for row in rows for i in row], dtype=np.uint16)
    return Ragged(flat=flat, offsets=np.cumsum([0, *map(len, rows)]))


def pairs(lengths: list[tuple[int, int]], seed: int = 0) -> tuple[Ragged, Ragged]:
    random = np.random.default_rng(seed)
    sides = [[random.integers(4, 90, n).tolist() for n in side] for side in zip(*lengths, strict=True)]
    return ragged(sides[0]), ragged(sides[1])


def like_iwslt(count: int) -> list[tuple[int, int]]:
    """Log-normal lengths around 20 subwords, the two sides of a pair alike."""
    random = np.random.default_rng(1)
    source = np.exp(random.normal(2.95, 0.65, count)).clip(1, 170)
    target = (source * np.exp(random.normal(0.02, 0.22, count))).clip(1, 170)
    return [(int(s) + 1, int(t) + 1) for s, t in zip(source, target, strict=True)]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60),
    st.integers(1, 200),
    st.integers(0, 20),
    st.sampled_from([None, 3]),
)
def test_an_epoch_holds_every_pair_once_in_batches_that_fit(
    lengths: list[tuple[int, int]], tokens: int, pool: int, seed: int | None
) -> None:
    source, target = pairs(lengths)
    batches = TokenBatches(source, target, tokens=tokens, pad=PAD, pool=pool, seed=seed)
    rows = [batches.rows(i) for i in range(len(batches))]
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(lengths)))
    for these in rows:
        longest = max(max(lengths[i]) for i in these)
        assert len(these) * longest <= tokens or len(these) == 1


def test_a_batch_holds_its_pairs_and_padding_elsewhere() -> None:
    source, target = pairs([(3, 5), (4, 2), (1, 1), (9, 7)])
    batches = TokenBatches(source, target, tokens=30, pad=PAD, seed=1)
    for i in range(len(batches)):
        batch, rows = batches.__getitems__([i]), batches.rows(i)
        assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
        for r, row in enumerate(rows):
            s, t = source[row].tolist(), target[row].tolist()
            assert batch["input_ids"][r].tolist() == s + [PAD] * (batch["input_ids"].shape[1] - len(s))
            assert batch["labels"][r].tolist() == t + [IGNORE] * (batch["labels"].shape[1] - len(t))
            assert batch["attention_mask"][r].sum() == len(s)


@pytest.mark.parametrize(("pool", "least"), [(0, 0.90), (8000, 0.87), (2000, 0.80)])
def test_fill_on_lengths_like_iwslt(pool: int, least: float) -> None:
    source, target = pairs(like_iwslt(20_000))
    batches = TokenBatches(source, target, tokens=4096, pad=PAD, seed=0, pool=pool)
    assert batches.fill() > least
    by_hand = [batches[i] for i in range(0, batches.until(1), 7)]
    held = sum(int(b["attention_mask"].sum() + (b["labels"] != IGNORE).sum()) for b in by_hand)
    assert held / sum(b["input_ids"].numel() + b["labels"].numel() for b in by_hand) == pytest.approx(
        batches.fill(), abs=0.02
    )


def test_random_batches_are_what_the_sorting_is_for() -> None:
    """Negative control: pools of one pair each are not sorted at all."""
    source, target = pairs(like_iwslt(2_000))
    unsorted = TokenBatches(source, target, tokens=4096, pad=PAD, seed=0, pool=1)
    assert len(unsorted) == 2_000  # a pool is cut on its own, so a pool of one is a batch of one
    rows = np.random.default_rng(0).permutation(2_000).reshape(-1, 40)
    s, t = source.lengths[rows], target.lengths[rows]
    assert (s.sum() + t.sum()) / (40 * (s.max(1) + t.max(1)).sum()) < 0.5


def test_the_order_is_a_function_of_the_seed_and_the_index_alone() -> None:
    source, target = pairs(like_iwslt(500))
    one = TokenBatches(source, target, tokens=600, pad=PAD, seed=5, batches=100, pool=64)
    other = TokenBatches(source, target, tokens=600, pad=PAD, seed=5, batches=100, pool=64)
    backwards = [other.rows(i).tolist() for i in reversed(range(100))][::-1]
    assert [one.rows(i).tolist() for i in range(100)] == backwards
    another = TokenBatches(source, target, tokens=600, pad=PAD, seed=6, batches=100, pool=64)
    assert [another.rows(i).tolist() for i in range(100)] != backwards


def test_epochs_differ_in_order_and_hold_the_same_pairs() -> None:
    source, target = pairs(like_iwslt(300))
    batches = TokenBatches(source, target, tokens=600, pad=PAD, seed=5, batches=1000)
    first = [batches.rows(i).tolist() for i in range(batches.until(1))]
    second = [batches.rows(i).tolist() for i in range(batches.until(1), batches.until(2))]
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(300))


def test_without_a_seed_the_shortest_come_first() -> None:
    source, target = pairs(like_iwslt(300))
    batches = TokenBatches(source, target, tokens=600, pad=PAD)
    widths = [max(batches[i]["input_ids"].shape[1], batches[i]["labels"].shape[1]) for i in range(len(batches))]
    assert widths == sorted(widths)


def test_nothing_to_read_is_refused() -> None:
    with pytest.raises(DataError, match="no sentence pairs"):
        TokenBatches(ragged([]), ragged([]), tokens=10, pad=PAD)
    source, target = pairs([(1, 1)])
    with pytest.raises(IndexError, match="batch 1 of 1"):
        TokenBatches(source, target, tokens=10, pad=PAD).rows(1)
