"""Parallel text as ids: what is kept and why not, what is held out, and a cache that is whole or absent."""

import gzip
import math
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import num2words
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isograd.errors import DataError
from isograd.lab.data import ParallelCorpus, load_parallel
from isograd.lab.data.batches import Ragged, loss_by_place
from isograd.lab.data.numbers import numbers
from isograd.lab.data.parallel import hold_out
from tests.build import few

LOAD = "import sys; from isograd.lab.data import load_parallel; c = load_parallel([sys.argv[1]], vocab_size=2000)"
DIES = (
    "import os, sys; sys.addaudithook(lambda event, arguments: event == sys.argv[2] and '.' + os.uname().nodename"
    " + '-' in str(arguments[0]) and os.kill(os.getpid(), 9))"
)
MULTI30K = Path(__file__).parents[3] / "shared/data/multi30k-de-en"


def written(folder: Path, pairs: list[tuple[str, str]], name: str = "text") -> str:
    folder.mkdir(exist_ok=True, parents=True)
    for i, language in enumerate(("de", "en")):
        (folder / f"{name}.{language}").write_text("".join(p[i] + "\n" for p in pairs), encoding="utf-8")
    return str(folder / name)


def pairs_of(count: int, words: str = "Wort") -> list[tuple[str, str]]:
    return [(f"{words} {i} und {i * i}", f"word {i} and {i * i}") for i in range(count)]


def listed(rows: Ragged) -> list[list[int]]:
    return [rows[i].tolist() for i in range(len(rows))]


def text_of(corpus: ParallelCorpus, part: str) -> list[tuple[str, str]]:
    """The pairs again, out of the ids."""
    sides = []
    for side in ("source", "target"):
        words = getattr(corpus.tokenizer, side)
        sides.append(words.decode(listed(getattr(corpus, f"{part}_{side}"))))
    return list(zip(*sides, strict=True))


def same(a: ParallelCorpus, b: ParallelCorpus) -> bool:
    arrays = [f"{part}_{side}" for part in ("train", "valid") for side in ("source", "target")]
    return all(listed(getattr(a, n)) == listed(getattr(b, n)) for n in arrays) and (
        (a.valid_lines, a.unigram_entropy, a.sha256, a.counts) == (b.valid_lines, b.unigram_entropy, b.sha256, b.counts)
    )


@pytest.fixture
def source(tmp_path: Path) -> str:
    return written(tmp_path, pairs_of(120))


# ids


def test_ids_by_hand(tmp_path: Path) -> None:
    """Characters have the ids 4, 5, .. in the alphabet's order; every side ends with </s>, 3."""
    train = written(tmp_path, [("ba", "c  a"), (" b", "aa")])
    valid = written(tmp_path, [("ab", "x")], "valid")
    corpus = load_parallel([train], [valid], vocabulary="char")
    assert listed(corpus.train_source) == [[6, 5, 3], [6, 3]]
    assert listed(corpus.train_target) == [[7, 4, 5, 3], [5, 5, 3]]
    assert listed(corpus.valid_source) == [[5, 6, 3]]
    assert listed(corpus.valid_target) == [[1, 3]]  # x is in no training text
    assert corpus.valid_lines == (["ab"], ["x"])
    counts = Counter([7, 4, 5, 3, 5, 5, 3])
    assert math.isclose(corpus.unigram_entropy, -sum(n / 7 * math.log(n / 7) for n in counts.values()))
    separate = load_parallel([train], [valid], vocabulary="char", joint=False)
    assert listed(separate.train_source) == [[5, 4, 3], [5, 3]]
    assert listed(separate.train_target) == [[6, 4, 5, 3], [5, 5, 3]]
    assert (separate.tokenizer.source.vocab_size, separate.tokenizer.target.vocab_size) == (6, 7)
    assert corpus.tokenizer.joint and not separate.tokenizer.joint


@pytest.mark.parametrize("vocabulary", ["bpe", "unigram", "char"])
@pytest.mark.parametrize("joint", [True, False])
def test_the_text_is_in_the_ids(vocabulary: str, joint: bool, source: str) -> None:
    corpus = load_parallel([source], [source], vocabulary=vocabulary, vocab_size=300, joint=joint)  # type: ignore[arg-type]
    assert text_of(corpus, "train") == text_of(corpus, "valid") == pairs_of(120)
    assert corpus.tokenizer.languages == ("de", "en") and not corpus.tokenizer.tokenized
    assert isinstance(corpus.train_source.flat, np.memmap) and corpus.train_source.flat.dtype == np.uint16
    assert corpus.train_source.offsets.dtype == np.int64


def test_the_other_direction(source: str) -> None:
    corpus = load_parallel([source], [source], source="en", target="de", vocabulary="char", tokenized=True)
    assert text_of(corpus, "train") == [(b, a) for a, b in pairs_of(120)]
    assert corpus.tokenizer.languages == ("en", "de") and corpus.tokenizer.tokenized


def test_sources_one_behind_the_other(tmp_path: Path) -> None:
    parts = [pairs_of(5, w) for w in ("eins", "zwei", "drei")]
    names = [written(tmp_path, part, f"part{i}") for i, part in enumerate(parts)]
    corpus = load_parallel(names, names[1:], vocabulary="char")
    assert text_of(corpus, "train") == [pair for part in parts for pair in part]
    assert text_of(corpus, "valid") == [*parts[1], *parts[2]]
    assert corpus.counts["read"] == corpus.counts["kept"] == 15 and corpus.source == ", ".join(names)
    assert load_parallel(names[::-1], names[1:], vocabulary="char").sha256 != corpus.sha256


def test_merges_and_dictionaries(tmp_path: Path) -> None:
    source = written(tmp_path, [("ab abc", "c ab"), ("b", "zab")])
    (tmp_path / "codes").write_text("#version: 0.2\na b</w>\na b\n")
    (tmp_path / "de").write_text("ab 5\nab@@ 4\nc 3\n")
    (tmp_path / "en").write_text("c 3\nab 1\n")
    options = {"vocabulary": "subword-nmt", "codes": str(tmp_path / "codes")}
    joint = load_parallel([source], [source], dictionaries=[str(tmp_path / "de")], **options)  # type: ignore[arg-type]
    assert listed(joint.train_source) == [[4, 5, 6, 2], [3, 2]]
    assert listed(joint.train_target) == [[6, 4, 2], [3, 4, 2]]
    two = [str(tmp_path / "de"), str(tmp_path / "en")]
    separate = load_parallel([source], [source], joint=False, dictionaries=two, **options)  # type: ignore[arg-type]
    assert listed(separate.train_source) == listed(joint.train_source)
    assert listed(separate.train_target) == [[4, 5, 2], [3, 5, 2]]
    collected = load_parallel([source], [source], **options)  # type: ignore[arg-type]
    assert collected.tokenizer.source.vocab_size == 4 + 5  # ab, c, ab@@, b, z@@
    (tmp_path / "de").write_text("ab@@ 5\nab 4\nc 3\n")
    again = load_parallel([source], [source], dictionaries=[str(tmp_path / "de")], **options)  # type: ignore[arg-type]
    assert listed(again.train_source) == [[5, 4, 6, 2], [3, 2]]


# what is left out


def test_every_pair_that_is_left_out_is_counted(tmp_path: Path) -> None:
    """Characters, so that a token is a letter: 5 at most, and 2 to 1 at most."""
    pairs = [
        ("aaaaa", "aaa"),
        ("aaaaaa", "aaaa"),
        ("", "a"),
        ("a", " \t"),
        ("aa", "aaaa"),
        ("aa", "aaaaa"),
        ("aaa", "a"),
    ]
    valid = written(tmp_path, [("a" * 99, "a")], "valid")
    train = written(tmp_path, pairs)
    corpus = load_parallel([train], [valid], vocabulary="char", longest=5, ratio=2)
    assert corpus.counts == {"read": 7, "empty": 2, "long": 1, "ratio": 2, "held_out": 0, "kept": 2}
    assert text_of(corpus, "train") == [pairs[0], pairs[4]]
    assert text_of(corpus, "valid") == [("a" * 99, "a")]  # scored, whatever its length
    loose = load_parallel([train], [valid], vocabulary="char", longest=6)
    assert loose.counts == {"read": 7, "empty": 2, "long": 0, "ratio": 0, "held_out": 0, "kept": 5}


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=30, max_size=60))
def test_counts_add_up(lengths: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sum")
    pairs = [("a" * m + "b" * (i % 3), "c" * n) for i, (m, n) in enumerate([*lengths, (1, 1), (1, 2)])]
    source = written(folder, [*pairs, ("a", "")])
    corpus = load_parallel([source], vocabulary="char", longest=9, ratio=3, cache=folder)
    left_out = sum(corpus.counts[k] for k in ("empty", "held_out", "long", "ratio"))
    assert corpus.counts["read"] == len(pairs) + 1 == left_out + len(corpus.train_source)
    assert corpus.counts["kept"] == len(corpus.train_source) == len(corpus.train_target)
    lengths_left = list(zip(corpus.train_source.lengths - 1, corpus.train_target.lengths - 1, strict=True))
    assert all(max(p) <= 9 and max(p) <= 3 * min(p) for p in lengths_left)


@pytest.mark.parametrize(
    ("pairs", "options", "message"),
    [
        ([("", "a"), ("b", " ")], {}, r"no training pair is left of 2: 2 with an empty side$"),
        (
            [("aaa", "a"), ("aaaaaaa", "a"), ("", "b")],
            {"longest": 5, "ratio": 2.0, "valid": True},
            r"no training pair is left of 3: 1 with an empty side, 1 longer than .*, 1 of a higher ratio than ",
        ),
        ([("a", "b"), ("a", "b")], {}, r"1 different pairs are too few to hold one out; name a validation set"),
    ],
)
def test_nothing_is_left(
    pairs: list[tuple[str, str]], options: dict[str, object], message: str, tmp_path: Path, cache: Path
) -> None:
    valid = [written(tmp_path, [("a", "b")], "valid")] if options.pop("valid", False) else []
    with pytest.raises(DataError, match=message):
        load_parallel([written(tmp_path, pairs)], valid, vocabulary="char", **options)  # type: ignore[arg-type]
    assert not list(cache.glob("*"))


def test_an_empty_side_of_a_validation_set(source: str, tmp_path: Path) -> None:
    for pairs, where in (([("a", "b"), ("a", " ")], "valid.en, line 2"), ([("", "b"), ("a", "b")], "valid.de, line 1")):
        valid = written(tmp_path, pairs, "valid")
        with pytest.raises(DataError, match=rf"{where}: an empty side; a validation set has none"):
            load_parallel([source], [valid])


# what is held out


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=2)), max_size=80), st.randoms())
def test_held_out_pairs_are_in_no_training_set(some: list[tuple[str, str]], chance: random.Random) -> None:
    pairs = [("a", "b"), ("b", "a"), *some, *some[::3]]
    train, valid = hold_out(pairs, most=3)
    assert train and valid and not set(train) & set(valid)
    assert set(train) | set(valid) == set(pairs) and len(valid) == len(set(valid))
    assert len(valid) == min(3, max(1, len(set(pairs)) // 20))
    assert train == [p for p in pairs if p not in valid]
    shuffled = chance.sample(pairs, len(pairs))
    assert hold_out(shuffled, most=3)[1] == valid


def test_five_hundred_are_held_out(tmp_path: Path) -> None:
    pairs = pairs_of(11_000)
    corpus = load_parallel([written(tmp_path, [*pairs, *pairs[:1000]])], vocabulary="char")
    held = set(zip(*corpus.valid_lines, strict=True))
    assert len(held) == len(corpus.valid_source) == 500 and corpus.counts["held_out"] >= 500
    assert held == set(text_of(corpus, "valid")) and held <= set(pairs)
    assert not held & set(text_of(corpus, "train"))
    assert corpus.counts["kept"] == 12_000 - corpus.counts["held_out"] == len(corpus.train_source)


def test_the_vocabulary_is_of_the_training_part(tmp_path: Path) -> None:
    pairs = [(chr(0x4E00 + i), chr(0x5E00 + i)) for i in range(40)]
    corpus = load_parallel([written(tmp_path, pairs)], vocabulary="char", joint=False)
    assert corpus.tokenizer.source.vocab_size == 4 + 38
    assert listed(corpus.valid_source) == listed(corpus.valid_target) == [[1, 3], [1, 3]]


def test_number_words_have_a_validation_set_of_their_own() -> None:
    corpus = load_parallel(["numbers:test"], vocab_size=300)
    assert corpus.valid_lines == numbers("valid")
    assert text_of(corpus, "train") == list(zip(*numbers("test"), strict=True))
    assert corpus.counts["held_out"] == 0 and corpus.source == "numbers:test"


# the cache


def times(cache: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in cache.rglob("*")}


def test_the_second_call_reads_what_the_first_wrote(source: str, cache: Path) -> None:
    first = load_parallel([source], vocab_size=300)
    before = times(cache)
    again = load_parallel([source], vocab_size=300)
    assert same(first, again) and times(cache) == before
    assert text_of(first, "train") == text_of(again, "train") and again.tokenizer.joint


def test_the_second_call_makes_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_parallel(["numbers:test"], vocab_size=300)
    monkeypatch.setattr(num2words, "num2words", None)  # calling it is an error now
    assert same(first, load_parallel(["numbers:test"], vocab_size=300))
    with pytest.raises(TypeError):
        load_parallel(["numbers:test"], vocab_size=301)


def test_packed_or_elsewhere_it_is_the_same_text(source: str, tmp_path: Path) -> None:
    for language in ("de", "en"):
        packed = gzip.compress(Path(f"{source}.{language}").read_bytes())
        (tmp_path / f"packed.{language}.gz").write_bytes(packed)
    plain = load_parallel([source], vocab_size=300)
    assert same(plain, load_parallel([str(tmp_path / "packed")], vocab_size=300))
    assert same(plain, load_parallel([written(tmp_path / "elsewhere", pairs_of(120))], vocab_size=300))
    assert not same(plain, load_parallel([written(tmp_path, pairs_of(121), "more")], vocab_size=300))


def test_every_option_is_another_entry(source: str, cache: Path) -> None:
    options: list[dict[str, object]] = [{}, {"vocab_size": 300}, {"vocabulary": "unigram", "vocab_size": 300}]
    options += [{"vocabulary": "char"}, {"joint": False}, {"longest": 9}, {"ratio": 3.0}, {"valid": [source]}]
    options += [{"source": "en", "target": "de"}, {"tokenized": True}]
    corpora = [load_parallel([source], **given) for given in options]  # type: ignore[arg-type]
    assert len({c.sha256 for c in corpora}) == len(list(cache.iterdir())) == len(options)
    load_parallel([source], vocabulary="char", vocab_size=77)  # characters have no size to choose
    assert len(list(cache.iterdir())) == len(options)


def test_an_entry_that_lost_its_facts_is_built_again(source: str, cache: Path) -> None:
    first = load_parallel([source])
    [entry] = cache.iterdir()
    (entry / "facts.json").unlink()
    assert same(first, load_parallel([source]))


@pytest.mark.parametrize("event", few(["open", "os.rename"], ["os.rename"]))
def test_killed_in_the_middle(event: str, source: str, tmp_path: Path, cache: Path) -> None:
    """When it opens its first file; when everything is written, and still has its temporary name."""
    done = subprocess.run([sys.executable, "-c", f"{DIES}; {LOAD}", source, event])
    assert done.returncode == -signal.SIGKILL
    assert [p.name[:1] for p in cache.iterdir()] == ["."]
    whole = load_parallel([source], vocab_size=2000, cache=tmp_path / "undisturbed")
    assert same(load_parallel([source], vocab_size=2000), whole)
    assert same(load_parallel([source], vocab_size=2000), whole)


@pytest.mark.slow
def test_two_processes_at_once(source: str, cache: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", f"{LOAD}; print(c.sha256)", source]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    printed = {p.communicate()[0] for p in both}
    assert [p.returncode for p in both] == [0, 0] and len(printed) == 1
    assert len(list(cache.iterdir())) == 1


def test_the_cache_cannot_be_written(source: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cache .* cannot be written.*XDG_CACHE_HOME"):
        load_parallel([source], cache=tmp_path / "file")


# wrong use


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": []}, r"no source of parallel text; name at least one"),
        ({"vocabulary": "subword-nmt"}, r"subword-nmt' and codes .* belong together"),
        ({"codes": "x"}, r"subword-nmt' and codes .* belong together"),
        ({"dictionaries": ["x"]}, r"dictionaries are for vocabulary='subword-nmt'"),
        (
            {"vocabulary": "subword-nmt", "codes": "x", "joint": False, "dictionaries": ["x"]},
            r"1 dictionaries with joint=False: a joint vocabulary takes one, separate ones take two",
        ),
        ({"vocabulary": "subword-nmt", "codes": "x", "dictionaries": ["x", "y"]}, r"2 dictionaries with joint=True"),
        ({"vocabulary": "subword-nmt", "codes": "/nowhere/codes"}, r"^/nowhere/codes: no such file"),
        ({"vocab_size": 20}, r"vocab_size=20: 'bpe' needs at least 260"),
        ({"train": ["nowhere/at/all"]}, r"^nowhere/at/all: no "),
    ],
)
def test_wrong_use(options: dict[str, object], message: str, source: str, cache: Path) -> None:
    with pytest.raises(DataError, match=message) as error:
        load_parallel(**({"train": [source]} | options))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert not list(cache.glob("*"))


# rows of different lengths


@given(st.lists(st.lists(st.integers(0, 70_000), max_size=5), max_size=9))
def test_ragged_rows(rows: list[list[int]]) -> None:
    ragged = Ragged.of(rows, 70_001)
    assert listed(ragged) == rows and ragged.flat.dtype == np.uint32 and len(ragged) == len(rows)
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    keep = np.array([len(row) % 2 == 0 for row in rows], dtype=bool)
    assert listed(ragged.rows(keep)) == [row for row in rows if len(row) % 2 == 0]
    for beyond in (len(rows), -1):
        with pytest.raises(IndexError):
            ragged[beyond]


def test_the_smallest_type_that_holds_the_vocabulary() -> None:
    assert Ragged.of([[65_535]], 65_536).flat.dtype == np.uint16
    assert Ragged.of([[65_536]], 65_537).flat.dtype == np.uint32


@pytest.mark.skipif(not MULTI30K.exists(), reason="the real corpora are not beside this checkout")
def test_a_real_corpus() -> None:
    corpus = load_parallel([str(MULTI30K / "valid")], [str(MULTI30K / "test2016")], vocab_size=1000, longest=30)
    read = [
        gzip.decompress((MULTI30K / f"test2016.{s}.gz").read_bytes()).decode().split("\n")[:-1] for s in ("de", "en")
    ]
    assert corpus.valid_lines == tuple(read)
    assert [(" ".join(a.split()), " ".join(b.split())) for a, b in zip(*read, strict=True)] == text_of(corpus, "valid")
    assert corpus.counts["read"] == 1014 == corpus.counts["kept"] + corpus.counts["long"] and corpus.counts["long"] > 10


def test_loss_by_place_by_hand() -> None:
    """Counts by place, smoothed by the frequencies; negative control: places shifted by one change it."""
    rows = [[4, 5, 3], [4, 6, 6, 3], [5, 3]]
    held = [[4, 5, 3], [6, 3]]
    counts = {(t, v): 0 for t in range(5) for v in range(7)}
    for row in rows:
        for t, v in enumerate(row):
            counts[t, v] += 1
    total = {v: sum(counts[t, v] for t in range(5)) for v in range(7)}

    def q(v: int, t: int) -> float:
        here = sum(counts[t, u] for u in range(7))
        return (counts[t, v] + 5 * (total[v] + 1) / (9 + 7)) / (here + 5)

    expected = [-math.log(q(v, t)) for row in held for t, v in enumerate(row)]
    got = loss_by_place(Ragged.of(rows, 7), Ragged.of(held, 7), 7, places=5)
    assert got == pytest.approx(sum(expected) / 5, rel=1e-12)
    shifted = [-math.log(q(v, t + 1)) for row in held for t, v in enumerate(row)]
    assert got != pytest.approx(sum(shifted) / 5, rel=1e-3)
