"""One text in every format is one corpus; whatever is wrong with a file is said in one line."""

import gzip
import json
import lzma
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isograd.convert.checkpoints.tokenizers import train_tokenizer
from isograd.errors import DataError
from isograd.lab.data import load_corpus
from isograd.lab.data.corpus import encode, own_reader, split, unigram_entropy
from isograd.text import embedded, read

parquet = pytest.importorskip("pyarrow.parquet")
from pyarrow import table  # noqa: E402

ROWS = [f"Row {i} says naïve things, {i * i % 7} of them.\n" for i in range(40)]
TEXT = "".join(ROWS)


def lines(rows: list[str]) -> str:
    return "\n".join(json.dumps({"text": row}) for row in rows)


WRITERS: dict[str, Callable[[Path, list[str]], object]] = {
    "a.txt": lambda p, rows: p.write_text("".join(rows), encoding="utf-8"),
    "b.txt.gz": lambda p, rows: p.write_bytes(gzip.compress("".join(rows).encode())),
    "c.txt.xz": lambda p, rows: p.write_bytes(lzma.compress("".join(rows).encode())),
    "d.jsonl": lambda p, rows: p.write_text(lines(rows), encoding="utf-8"),
    "e.jsonl.gz": lambda p, rows: p.write_bytes(gzip.compress(lines(rows).encode())),
    "f.parquet": lambda p, rows: parquet.write_table(table({"text": rows, "other": list(range(len(rows)))}), p),
}
REAL = Path(__file__).parents[3] / "shared/data/multi30k-de-en/train.en.gz"


def written(folder: Path, name: str, rows: list[str]) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[name](path, rows)
    return str(path)


def says(source: str | Path, *parts: str, **options: str) -> None:
    """Reading raises one DataError of one line that holds all parts."""
    with pytest.raises(DataError) as error:
        load_corpus(str(source), **options)  # type: ignore[arg-type]
    message = str(error.value)
    assert "\n" not in message and len(message) < 400
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize("name", WRITERS)
def test_one_document_in_every_format(name: str, tmp_path: Path) -> None:
    """The whole text as one document: the same ids, entropy and hash, whatever holds it."""
    plain = load_corpus(written(tmp_path, "a.txt", [TEXT]))
    other = load_corpus(written(tmp_path / "elsewhere", name, [TEXT]))
    assert np.array_equal(plain.train, other.train) and np.array_equal(plain.valid, other.valid)
    assert (plain.sha256, plain.unigram_entropy) == (other.sha256, other.unigram_entropy)
    assert plain.characters == len(split([("", TEXT)])[0][0][1])


def test_many_documents_in_every_format(tmp_path: Path) -> None:
    """Rows are split alike in JSON lines and Parquet, and wherever the file lies."""
    names = [n for n in WRITERS if ".txt" not in n]
    hashes = {load_corpus(written(tmp_path / f / "x", n, ROWS)).sha256 for n in names for f in ("one", "two")}
    assert len(hashes) == 1


def test_rows_without_text_are_no_difference(tmp_path: Path) -> None:
    rows = [*ROWS[:5], "", *ROWS[5:]]
    a, b = (load_corpus(written(tmp_path, name, rows)) for name in ("d.jsonl", "f.parquet"))
    assert np.array_equal(a.train, b.train) and np.array_equal(a.valid, b.valid)


@pytest.mark.parametrize("raw", [TEXT.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + TEXT.encode()])
def test_windows_line_ends_and_byte_order_marks_leave_no_trace(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "windows.txt").write_bytes(raw)
    assert read(str(tmp_path / "windows.txt"))[0][1] == TEXT
    (tmp_path / "windows.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps({"text": TEXT}).encode() + b"\r\n\r\n")
    assert read(str(tmp_path / "windows.jsonl")) == [("row 1", TEXT)]


@pytest.mark.parametrize(
    ("name", "raw", "parts"),
    [
        ("bad.txt", b"one\ntwo\nthr\xffee\n", ["bad.txt, line 3", "0xff", "UTF-8"]),
        ("bad.txt.gz", gzip.compress(b"one\n\xe9t\xe9\n", mtime=0), ["bad.txt.gz, line 2", "UTF-8"]),
        ("empty.txt", b"", ["empty.txt: is empty"]),
        ("blank.txt", b" \n\t\n", ["blank.txt: is empty"]),
        ("mark.txt", b"\xef\xbb\xbf", ["mark.txt: holds no text"]),
        ("broken.txt.gz", b"no gzip at all", ["broken.txt.gz: cannot be read"]),
        ("cut.txt.gz", gzip.compress(TEXT.encode(), mtime=0)[:-20], ["cut.txt.gz: cannot be read"]),
        ("flipped.txt.gz", gzip.compress(TEXT.encode(), mtime=0)[:30] + bytes(200), ["flipped.txt.gz: cannot be read"]),
        ("broken.txt.xz", b"no xz at all", ["broken.txt.xz: cannot be read"]),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', ["a.jsonl, line 2: not JSON"]),
        ("b.jsonl", b'{"text": "x"}\n\n{"body": "x", "id": 1}\n', ["b.jsonl, line 3", "'text'", "keys body, id"]),
        ("c.jsonl", b'{"text": 7}\n', ["c.jsonl, line 1", "a text 'text'", "found a int"]),
        ("d.jsonl", b'["x"]\n', ["d.jsonl, line 1", "found a list"]),
        ("e.jsonl", b'{"text": "\\ud800"}\n', ["e.jsonl, line 1", "surrogate"]),
        ("f.jsonl", b'{"text": ""}\n', ["f.jsonl: holds no text"]),
        ("a.parquet", b"PAR1 no parquet at all", ["a.parquet: cannot be read as Parquet"]),
        ("b.parquet", b"", ["b.parquet: cannot be read as Parquet"]),
    ],
)
def test_what_is_wrong_in_one_line(name: str, raw: bytes, parts: list[str], tmp_path: Path, cache: Path) -> None:
    (tmp_path / name).write_bytes(raw)
    says(tmp_path / name, *parts)
    assert not list(cache.glob("*"))


def test_parquet_columns(tmp_path: Path) -> None:
    parquet.write_table(table({"body": ["x"], "id": [3]}), tmp_path / "x.parquet")
    says(tmp_path / "x.parquet", "no column 'text'", "found body, id")
    says(tmp_path / "x.parquet", "row 1: column 'id' holds int, expected text", field="id")
    assert read(str(tmp_path / "x.parquet"), "body") == [("row 1", "x")]


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    says(tmp_path / "nothing.txt", "nothing.txt: no such file")
    says("./nothing", "nothing: no such file")
    says(tmp_path, "is a folder; name a file")


def test_a_data_set_of_the_hub_offline(cache: Path) -> None:
    pytest.importorskip("datasets")
    says("nobody/nothing", "'nobody/nothing' is not a file here", "cannot be loaded")
    assert not list(cache.glob("*"))


def test_the_cache_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cache .* cannot be written.*XDG_CACHE_HOME"):
        load_corpus(written(tmp_path, "a.txt", ROWS), cache=tmp_path / "file")


def test_the_embedded_default_is_prose_and_code() -> None:
    documents = embedded()
    code = [text for name, text in documents if name.endswith(".py")]
    prose = [text for name, text in documents if name.startswith("topic:")]
    assert sum(map(len, code)) > 1_000_000 and any("def " in text for text in code)
    assert sum(map(len, prose)) > 100_000 and any("The " in text for text in prose)
    assert documents == embedded()
    train, valid = split(documents)
    assert not {name for name, _ in train} & {name for name, _ in valid}
    assert sorted(train + valid) == sorted(documents)
    assert 0.01 < sum(len(t) for _, t in valid) / sum(len(t) for _, t in documents) < 0.15


def test_split_of_one_document() -> None:
    """The last twentieth, from a line's start where one is near."""
    for text in (TEXT, "x" * 999, "Title\n" + "x" * 999, "x" * 999 + "\n", "short"):
        [(_, train)], [(_, valid)] = split([("a", text)])
        assert train + valid == text
        assert len(text) // 20 <= len(valid) <= len(text) // 10
    assert split([("a", TEXT)])[0][0][1].endswith("\n")


def test_split_leaves_neither_part_empty() -> None:
    for count in range(2, 60):
        train, valid = split([(f"row {i}", str(i)) for i in range(count)])
        assert train and valid and len(train) + len(valid) == count


def test_validation_from_its_own_source(tmp_path: Path) -> None:
    own = written(tmp_path, "b.txt.gz", ["say things"])
    corpus = load_corpus(written(tmp_path, "a.txt", ROWS), valid=own)
    assert corpus.characters == len(TEXT)
    assert corpus.tokenizer.decode(corpus.valid.tolist()) == "say things"
    says(tmp_path / "a.txt", "c.txt: no such file", valid=str(tmp_path / "c.txt"))


def test_unigram_entropy_by_hand(tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, "a.txt", ROWS), valid=written(tmp_path, "b.txt.gz", ["x"]))
    counts = Counter(TEXT)
    expected = -sum(n / len(TEXT) * math.log(n / len(TEXT)) for n in counts.values())
    assert math.isclose(corpus.unigram_entropy, expected, rel_tol=1e-12)
    assert unigram_entropy(np.array([5, 5, 5])) == 0
    assert math.isclose(unigram_entropy(np.arange(8)), math.log(8))


@pytest.mark.skipif(not REAL.exists(), reason="the real corpora are not beside this checkout")
def test_entropy_of_a_real_corpus() -> None:
    documents = read(str(REAL))
    ids = encode(own_reader(train_tokenizer((t for _, t in documents), "char")), documents)
    assert len(ids) == len(documents[0][1])
    assert round(unigram_entropy(ids), 4) == 3.0017


def test_documents_of_one_name_leave_neither_part_empty() -> None:
    """Two files of one name in two folders; their first rows."""
    assert split([("a.txt", "one"), ("a.txt", "two")]) == ([("a.txt", "one")], [("a.txt", "two")])


def test_a_source_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    one, other = str(tmp_path / "a.txt"), str(tmp_path / "x/../a.txt")
    (tmp_path / "x").mkdir()
    for again in (one, other):
        with pytest.raises(DataError, match="is named twice"):
            load_corpus([one, again])
    (tmp_path / "x/a.txt").write_text(TEXT[::-1], encoding="utf-8")
    assert len(load_corpus([one, str(tmp_path / "x/a.txt")]).train) > len(TEXT) / 2


def test_blank_lines_alone_are_no_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("  \n\none\n \t\ntwo\n\n   ", encoding="utf-8")
    assert [text for _, text in read(str(tmp_path / "a.txt"), documents="blank-line")] == ["one\n", "two\n"]


@pytest.mark.parametrize("mask", [False, True])
def test_a_vocabulary_smaller_than_the_bytes_is_refused(mask: bool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    least = 260 + mask
    with pytest.raises(DataError, match=rf"vocab_size={least - 1}: BPE needs at least {least}"):
        load_corpus(str(tmp_path / "a.txt"), level="bpe", vocab_size=least - 1, mask=mask)
    corpus = load_corpus(str(tmp_path / "a.txt"), level="bpe", vocab_size=least, mask=mask)
    assert corpus.vocab_size == least
