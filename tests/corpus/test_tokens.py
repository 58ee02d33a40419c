"""Tokenizers give back what they were given; packed sequences predict every token once, in an order of their own."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from isograd.convert.checkpoints.tokenizers import SPECIAL, for_transformers, reads_text, train_tokenizer
from isograd.errors import DataError
from isograd.lab.data import PackedSequences
from isograd.lab.data.batches import as_is
from isograd.lab.data.corpus import encode, encode_characters, own_reader

TEXTS = ["Naïve texts, <pad> and </s> among them.\r\n\tTabs;  two spaces\x0b\u2028\x85 \U0001f40d 汉字 e\u0301\n"]
CHARACTERS = train_tokenizer(TEXTS, "char")
PIECES = train_tokenizer(TEXTS * 3, "bpe", 400)
IDS = np.arange(4, 4 + 53).astype(np.uint16)


@given(st.text(st.sampled_from(sorted(set(TEXTS[0]))), max_size=60))
@settings(max_examples=200, deadline=None)
def test_characters_round_trip(text: str) -> None:
    ids = encode(own_reader(CHARACTERS), [("", text)])
    assert CHARACTERS.decode(ids.tolist()) == text
    assert len(ids) == len(text) and (ids >= len(SPECIAL)).all()


@given(st.lists(st.text(max_size=20), max_size=4), st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_table_of_characters_is_the_tokenizer(texts: list[str], mask: bool) -> None:
    """Of known and unknown characters, in several documents, with empty ones."""
    documents = [(str(i), text + TEXTS[0][i::7]) for i, text in enumerate(texts)] + [("", "")] * len(texts)
    tokenizer = train_tokenizer(TEXTS, "char", mask=mask)
    reader = own_reader(tokenizer)
    assert reader.of_characters and not own_reader(PIECES).of_characters
    expected, found = encode(reader, documents), encode_characters(reader, documents)
    assert found.dtype == expected.dtype and found.tolist() == expected.tolist()


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_pieces_round_trip_any_text(text: str) -> None:
    ids = encode(own_reader(PIECES), [("", text)])
    assert PIECES.decode(ids.tolist()) == text
    assert (ids >= len(SPECIAL)).all()


@pytest.mark.parametrize("tokenizer", [CHARACTERS, PIECES], ids=["char", "bpe"])
def test_words_that_look_special_are_text(tokenizer: object, tmp_path: Path) -> None:
    """In memory, from the file, and through transformers: never the ids 0 to 3."""
    word = "<pad></s>"
    ids = tokenizer.encode(word).ids  # type: ignore[attr-defined]
    assert min(ids) >= 4
    tokenizer.save(str(tmp_path / "t.json"))  # type: ignore[attr-defined]
    assert reads_text(type(tokenizer).from_file(str(tmp_path / "t.json"))).encode(word).ids == ids  # type: ignore[attr-defined]
    for_transformers(tokenizer).save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(word)["input_ids"] == ids and again.decode(ids) == word
    assert [again.convert_tokens_to_ids(t) for t in SPECIAL.values()] == [0, 1, 2, 3]
    assert (again.pad_token_id, again.eos_token_id) == (0, 3)


def test_unknown_characters_and_the_size_of_a_vocabulary() -> None:
    tokenizer = train_tokenizer(["abc"], "char")
    assert tokenizer.encode("abz").ids == [4, 5, 1]
    assert tokenizer.get_vocab_size() == 4 + 3
    assert PIECES.get_vocab_size() <= 400
    assert encode(own_reader(tokenizer), [("", "abc"), ("", "c")]).tolist() == [4, 5, 6, 3, 6]
    assert encode(own_reader(tokenizer), []).dtype == np.uint16


@pytest.mark.parametrize("seed", [None, 0, 7])
@pytest.mark.parametrize("length", [1, 4, 52])
def test_every_token_is_predicted_once_per_pass(length: int, seed: int | None) -> None:
    data = PackedSequences(IDS, length, seed=seed)
    seen = torch.cat([data[i]["shift_labels"] for i in range(len(data))]).tolist()
    assert sorted(seen) == IDS[1 : 1 + len(data) * length].tolist()  # but for the tail
    assert len(IDS) - 1 - len(seen) < length
    for row in (data[i] for i in range(len(data))):
        assert row["input_ids"].dtype == torch.int64
        assert torch.equal(row["input_ids"][1:], row["shift_labels"][:-1])
        assert row["shift_labels"][-1] == row["input_ids"][-1] + 1  # the ids count upwards


def rows(data: PackedSequences, indices: range) -> list[int]:
    return [int(data[i]["input_ids"][0]) for i in indices]


def test_the_order_is_a_function_of_seed_and_index() -> None:
    one, two = (PackedSequences(IDS, 4, samples=13 * 4, seed=3) for _ in range(2))
    forwards = rows(one, range(52))
    assert list(reversed(rows(two, range(51, -1, -1)))) == forwards  # whatever was asked before
    assert PackedSequences(IDS, 4, samples=999, seed=3)[51]["input_ids"][0] == forwards[51]  # or how many there are
    passes = [tuple(forwards[k : k + 13]) for k in range(0, 52, 13)]
    assert len(set(passes)) == 4 and len({frozenset(p) for p in passes}) == 1  # each pass in an order of its own
    assert rows(PackedSequences(IDS, 4, samples=52, seed=4), range(52)) != forwards
    assert rows(PackedSequences(IDS, 4), range(13)) == IDS[0:52:4].tolist()  # no seed: the order of the text


def test_going_on_at_k_gives_the_same_samples() -> None:
    data = PackedSequences(IDS, 4, samples=40, seed=1)
    whole = list(DataLoader(data, batch_size=5, collate_fn=as_is))
    tail = list(DataLoader(torch.utils.data.Subset(data, range(15, 40)), batch_size=5, collate_fn=as_is))
    for late, early in zip(tail, whole[3:], strict=True):
        assert torch.equal(late["input_ids"], early["input_ids"])


@given(st.lists(st.integers(0, 39), min_size=1, max_size=9))
@settings(max_examples=50, deadline=None)
def test_a_batch_is_its_samples_stacked(indices: list[int]) -> None:
    data = PackedSequences(IDS, 4, samples=40, seed=5)
    batch = data.__getitems__(indices)
    for name, value in batch.items():
        assert torch.equal(value, torch.stack([data[i][name] for i in indices]))


def test_bounds() -> None:
    with pytest.raises(DataError, match="53 tokens, shorter than one sequence of 53"):
        PackedSequences(IDS, 53)
    data = PackedSequences(IDS, 4, samples=3)
    assert len(list(itertools.islice(data, 10))) == 3  # iteration ends
    for index in (-1, 3):
        with pytest.raises(IndexError):
            data[index]
