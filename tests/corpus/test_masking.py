"""Masking and the two ways of cutting: counts, fates, order, what is never touched."""

from typing import Any

import numpy as np
import pytest
import torch

from isograd.errors import DataError
from isograd.lab.data.masking import MaskedSequences, Masking, SegmentPairs

BEGIN, END, PAD, MASK, VOCABULARY = 2, 3, 0, 59, 60
WORD = np.arange(VOCABULARY) % 3 == 0
Batch = dict[str, torch.Tensor]


def text(size: int = 4000, documents: int = 1, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    ids = draw.integers(4, MASK, size).astype(np.uint16)
    for i in range(1, documents):
        ids[i * size // documents] = END
    return ids


def sentences(ids: np.ndarray, length: int = 32, seed: int | None = 0, **masking: Any) -> MaskedSequences:
    return MaskedSequences(ids, length, Masking(mask=MASK, **masking), begin=BEGIN, end=END, samples=1000, seed=seed)


def pairs(ids: np.ndarray, length: int = 32, seed: int | None = 0, samples: int | None = 1000) -> SegmentPairs:
    masking = Masking(mask=MASK)
    return SegmentPairs(ids, length, masking, begin=BEGIN, end=END, pad=PAD, word=WORD, samples=samples, seed=seed)


def original(batch: Batch) -> torch.Tensor:
    """What stood there before the masking."""
    return torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])


def test_full_sentences_are_the_text_between_two_marks() -> None:
    ids = text()
    batch = sentences(ids, seed=None).__getitems__(range(4))
    rows = original(batch)
    assert rows[:, 1:-1].flatten().tolist() == ids[: 4 * 30].tolist()
    assert rows[:, 0].tolist() == [BEGIN] * 4 and rows[:, -1].tolist() == [END] * 4


def test_a_pass_holds_every_sequence_once_and_the_next_one_masks_anew() -> None:
    data = sentences(text(30 * 20))
    first, second = (data.__getitems__(range(at, at + 20)) for at in (0, 20))
    whole = [sorted(map(tuple, original(batch).tolist())) for batch in (first, second)]
    assert whole[0] == whole[1] and not torch.equal(original(first), original(second))
    masks = [
        {tuple(row): tuple(labels) for row, labels in zip(original(b).tolist(), b["labels"].tolist(), strict=True)}
        for b in (first, second)
    ]
    assert all(masks[0][row] != masks[1][row] for row in masks[0])


def test_a_sample_is_a_function_of_its_number() -> None:
    for data, again in ((sentences(text()), sentences(text())), (pairs(text(4000, 9)), pairs(text(4000, 9)))):
        alone = again.__getitems__([37])
        row = data.__getitems__([5, 37, 900])
        for name in ("input_ids", "labels"):
            assert torch.equal(alone[name][0], row[name][1]), name
    assert not torch.equal(sentences(text(), seed=1)[0]["labels"], sentences(text())[0]["labels"])


def fates(batch: Batch) -> tuple[float, float, float, float]:
    """Share of the tokens that is predicted; of these the shares masked, replaced, kept."""
    chosen = batch["labels"] != -100
    now, was = batch["input_ids"][chosen], batch["labels"][chosen]
    masked, kept = (now == MASK).float().mean(), (now == was).float().mean()
    return float(chosen.float().mean()), float(masked), float(1 - masked - kept), float(kept)


def test_fifteen_percent_of_which_eighty_ten_ten() -> None:
    share, masked, replaced, kept = fates(sentences(text(), length=102).__getitems__(range(1000)))
    n = 1000 * 15
    assert share == pytest.approx(15 / 102)  # exactly 15 of each 100 ordinary tokens
    chance = 1 / (MASK - 4)  # a replacement is the same token now and then
    for got, expected in ((masked, 0.8), (replaced, 0.1 * (1 - chance)), (kept, 0.1 + 0.1 * chance)):
        assert abs(got - expected) < 4 * (expected * (1 - expected) / n) ** 0.5


def test_the_foil_other_rates() -> None:
    share, masked, replaced, kept = fates(
        sentences(text(), length=102, rate=0.4, random=0.0, kept=0.5).__getitems__(range(1000))
    )
    assert share == pytest.approx(40 / 102) and replaced == 0
    assert abs(kept - 0.5) < 0.02 and abs(masked - 0.5) < 0.02


def test_special_tokens_are_neither_predicted_nor_put_in() -> None:
    batch = sentences(text(4000, documents=200), rate=0.9, random=1.0, kept=0.0).__getitems__(range(500))
    before = original(batch)
    special = before < 4
    assert int((before[:, 1:-1] == END).sum()) > 100
    assert torch.equal(batch["input_ids"][special], before[special])
    assert (batch["labels"][special] == -100).all()
    new = batch["input_ids"][batch["labels"] != -100]
    assert int(new.min()) >= 4 and int(new.max()) < MASK and len(new.unique()) == MASK - 4


@pytest.mark.parametrize("make", [sentences, pairs])
def test_the_places_are_those_with_a_label(make: Any) -> None:
    batch = make(text(4000, documents=7)).__getitems__(range(50))
    assert batch["masked_positions"].tolist() == (batch["labels"].flatten() != -100).nonzero().squeeze(1).tolist()


def test_one_is_predicted_at_least() -> None:
    batch = sentences(text(), length=4, rate=0.01).__getitems__(range(20))
    assert ((batch["labels"] != -100).sum(1) == 1).all()


def taken_apart(batch: Batch, row: int) -> tuple[list[int], list[int]]:
    """A and B, from the types and the mask."""
    ids, types, mask = (original(batch)[row], batch["token_type_ids"][row], batch["attention_mask"][row].bool())
    first, second = ids[(types == 0) & mask].tolist(), ids[types == 1].tolist()
    assert (first[0], first[-1], second[-1]) == (BEGIN, END, END)
    assert (ids[~mask] == PAD).all() and (types[~mask] == 0).all() and (batch["labels"][row][~mask] == -100).all()
    return first[1:-1], second[:-1]


def test_segments_continue_or_come_from_another_document() -> None:
    documents = [text(size, seed=size).tolist() for size in range(60, 160)]
    ids = np.array([t for d in documents for t in [*d, END]][:-1], dtype=np.uint16)
    batch = pairs(ids).__getitems__(range(600))

    def of(part: list[int]) -> set[int]:
        return {n for n, d in enumerate(documents) if any(d[i : i + len(part)] == part for i in range(len(d)))}

    following = 0
    for row in range(600):
        first, second = taken_apart(batch, row)
        assert first and second and len(first) + len(second) <= 29
        continues = any(
            d[i : i + len(first + second)] == first + second for d in documents for i in range(len(d) - len(first))
        )
        if not batch["next_sentence_label"][row]:
            assert continues and (WORD[second[0]] or not WORD[(first + second)[1:]].any())
            following += 1
        elif len(first) > 2 and len(second) > 2:  # long enough to be in one place only
            assert not of(first) & of(second)
    assert abs(following - 300) < 4 * (600 * 0.25) ** 0.5


def test_windows_do_not_run_over_the_end_of_a_document() -> None:
    ids = np.array([*range(10, 50), END, *range(10, 45), END, *range(10, 15)])
    data = pairs(ids, samples=None, seed=None)
    assert data.windows.tolist() == [[0, 29], [29, 40], [41, 70]]  # six and five tokens are too few
    assert data.documents.tolist() == [0, 0, 1]


def test_too_little_text() -> None:
    with pytest.raises(DataError, match="shorter than one sequence of 32"):
        sentences(text(29))
    with pytest.raises(DataError, match="two documents at least"):
        pairs(text(400))
