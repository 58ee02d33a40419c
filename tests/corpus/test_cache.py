"""The cache: read on the second call, whole or absent, safe for two processes at once."""

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from isograd.errors import DataError
from isograd.lab.data import Corpus, load_corpus

LOAD = "import sys; from isograd.lab.data import load_corpus; print(load_corpus(sys.argv[1]).sha256)"


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i} of some text\n" for i in range(200)))
    return str(path)


def times(cache: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in cache.rglob("*")}


def entries(cache: Path) -> list[Path]:
    return [p for p in cache.iterdir() if p.is_dir()]


def same(a: Corpus, b: Corpus) -> bool:
    return (
        np.array_equal(a.train, b.train)
        and np.array_equal(a.valid, b.valid)
        and (a.sha256, a.unigram_entropy, a.characters) == (b.sha256, b.unigram_entropy, b.characters)
        and a.tokenizer.to_str() == b.tokenizer.to_str()
    )


def test_the_second_call_reads_what_the_first_wrote(source: str, cache: Path) -> None:
    first = load_corpus(source)
    before = times(cache)
    assert same(first, load_corpus(source))
    assert times(cache) == before


def test_what_was_asked_for_decides_the_entry(source: str, cache: Path) -> None:
    corpora = [load_corpus(source), load_corpus(source, level="bpe", vocab_size=300)]
    corpora += [load_corpus(source, level="bpe", vocab_size=290), load_corpus(source, valid=source)]
    assert len({c.sha256 for c in corpora}) == len(entries(cache)) == 4
    assert load_corpus(source, vocab_size=99).sha256 == corpora[0].sha256  # characters have no size to choose


def test_a_changed_text_is_another_entry(source: str) -> None:
    before = load_corpus(source).sha256
    Path(source).write_text(Path(source).read_text().replace("some", "same"))
    assert load_corpus(source).sha256 != before


def test_what_a_killed_build_left_does_no_harm(source: str, cache: Path) -> None:
    first = load_corpus(source)
    [entry] = entries(cache)
    shutil.rmtree(entry)
    left = cache / f".{entry.name}.{platform.node()}-4194305-xyz"  # above the largest number that a process has
    left.mkdir(parents=True)
    (left / "train.npy").write_bytes(b"half")
    for path in cache.glob("*.digest"):
        path.unlink()
    assert same(first, load_corpus(source))
    assert not left.exists() and entry.exists()


def test_an_entry_that_lost_its_facts_is_built_again(source: str, cache: Path) -> None:
    first = load_corpus(source)
    [entry] = entries(cache)
    (entry / "facts.json").unlink()
    assert same(first, load_corpus(source))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"../..", b"0" * 64, b"a\x00b"])
def test_a_broken_digest_is_written_anew(content: bytes, source: str, cache: Path) -> None:
    first = load_corpus(source)
    [digest] = cache.glob("*.digest")
    whole = digest.read_bytes()
    digest.write_bytes(content)
    assert same(first, load_corpus(source)) and digest.read_bytes() == whole


@pytest.mark.parametrize("name", ["facts.json", "train.npy", "valid.npy", "tokenizer.json"])
def test_a_broken_entry_is_named(name: str, source: str, cache: Path) -> None:
    first = load_corpus(source)
    [entry] = entries(cache)
    half = (entry / name).read_bytes()[:20]
    (entry / name).unlink()  # `first` has mapped it
    (entry / name).write_bytes(half)
    with pytest.raises(DataError, match=rf"^the cache's entry {re.escape(str(entry))} cannot be read .* remove it$"):
        load_corpus(source)
    shutil.rmtree(entry)
    assert same(first, load_corpus(source))


@pytest.mark.slow
def test_two_processes_at_once(source: str, cache: Path) -> None:
    both = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", LOAD, source], stdout=subprocess.PIPE) for _ in range(2)
    ]
    printed = {p.communicate()[0] for p in both}
    assert [p.returncode for p in both] == [0, 0] and len(printed) == 1
    assert len(entries(cache)) == 1


def test_a_text_shorter_than_a_validation_part(tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("tiny")
    corpus = load_corpus(str(tmp_path / "tiny.txt"))
    assert (len(corpus.train), len(corpus.valid)) == (4, 0)


@pytest.mark.slow
def test_the_embedded_default_keeps_its_hash() -> None:
    first = load_corpus()
    assert first.sha256 == load_corpus().sha256
    assert first.vocab_size > 90 and len(first.train) > first.characters  # and an end between documents
    assert 2.5 < first.unigram_entropy < 4
