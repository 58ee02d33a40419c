"""One parallel text in every format gives the same pairs; whatever is wrong is said in one line."""

import gzip
import json
import lzma
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isograd.errors import DataError
from isograd.lab.data.numbers import numbers
from isograd.lab.data.pairs import PairsFound, find_pairs

parquet = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets")
from pyarrow import table  # noqa: E402

GERMAN = ["Ein Hund läuft.", "Zwei\u2028Zeilen\x0bund\x85 doch\x1eeine", "", "Naïve 汉字 🐍", "zuletzt "]
ENGLISH = ["A dog runs.", "Two\u2029 lines\x0c and yet one", "no German", "na\u00efve", " last"]
PAIRS = list(zip(GERMAN, ENGLISH, strict=True))
NESTED = [{"translation": {"de": a, "en": b}} for a, b in PAIRS]
FLAT = [{"id": i, "en": b, "de": a} for i, (a, b) in enumerate(PAIRS)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    datasets.disable_progress_bars()


def text(lines: list[str], end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode()


def rows(content: list[dict[str, object]]) -> bytes:
    return text([json.dumps(row) for row in content])


def two_files(first: str, second: str, pack: Callable[[bytes], bytes] = bytes, **options: str) -> None:
    Path(first).write_bytes(pack(text(GERMAN, **options)))
    Path(second).write_bytes(pack(text(ENGLISH, **options)))


def folder(name: str, kind: str) -> None:
    path = Path(name)
    path.mkdir()
    if kind == "parquet":
        parquet.write_table(table({"de": GERMAN, "en": ENGLISH}), path / "train-00000.parquet")
        parquet.write_table(table({"de": ["eins"], "en": ["one"]}), path / "validation-00000.parquet")
    else:
        (path / "train.jsonl").write_bytes(rows(NESTED))
        (path / "validation.jsonl").write_bytes(rows([{"translation": {"de": "eins", "en": "one"}}]))


def card(name: str) -> None:
    """Two configurations, as a data set of the hub has them."""
    folder(name, "jsonl")
    (Path(name) / "README.md").write_text(
        "---\nconfigs:\n- config_name: de-en\n  data_files: train.jsonl\n"
        "- config_name: short\n  data_files: validation.jsonl\n---\n"
    )


WRITERS: dict[str, Callable[[], object]] = {
    "plain": lambda: two_files("plain.de", "plain.en"),
    "packed/data.v2": lambda: (
        Path("packed").mkdir(),
        two_files("packed/data.v2.de.gz", "packed/data.v2.en.gz", gzip.compress),
    ),
    "xz": lambda: two_files("xz.de.xz", "xz.en.xz", lzma.compress),
    "windows": lambda: two_files("windows.de", "windows.en", lambda raw: b"\xef\xbb\xbf" + raw, end="\r\n"),
    "open": lambda: two_files("open.de", "open.en", lambda raw: raw[:-1]),
    "a.txt,b.txt.gz": lambda: (two_files("a.txt", "b.txt"), Path("b.txt.gz").write_bytes(gzip.compress(text(ENGLISH)))),
    "nested.jsonl": lambda: Path("nested.jsonl").write_bytes(rows(NESTED)),
    "flat.jsonl.gz": lambda: Path("flat.jsonl.gz").write_bytes(gzip.compress(rows(FLAT))),
    "flat.jsonl.xz": lambda: Path("flat.jsonl.xz").write_bytes(lzma.compress(b"\n" + rows(FLAT))),
    "flat.parquet": lambda: parquet.write_table(table({"de": GERMAN, "en": ENGLISH}), "flat.parquet"),
    "nested.parquet": lambda: parquet.write_table(
        table({k: [r[k] for r in NESTED] for k in NESTED[0]}), "nested.parquet"
    ),
    "columns": lambda: folder("columns", "parquet"),
    "translations": lambda: folder("translations", "jsonl"),
    "translations:train": lambda: folder("translations", "jsonl"),
    "set/de-en": lambda: card("set"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_same_pairs_in_every_format(name: str) -> None:
    WRITERS[name]()
    found = find_pairs(name, "de", "en")
    pairs = found.read()
    assert list(zip(pairs.source, pairs.target, strict=True)) == PAIRS
    assert len(pairs) == len(pairs.numbers) == len(PAIRS)
    back = find_pairs(",".join(reversed(name.split(","))), "en", "de").read()  # two named files change places
    assert list(zip(back.target, back.source, strict=True)) == PAIRS


@pytest.mark.parametrize("name", ["plain", "flat.parquet", "columns", "translations", "nested.jsonl"])
def test_the_key_follows_the_text(name: str) -> None:
    """Another time of writing alone is no matter to files; to data sets it may be."""
    WRITERS[name]()
    before = find_pairs(name, "de", "en").key
    assert find_pairs(name, "de", "en").key == before
    GERMAN[0], kept = "Ein Hund rennt.", GERMAN[0]
    NESTED[0]["translation"]["de"] = GERMAN[0]
    try:
        shutil.rmtree(name, ignore_errors=True)
        WRITERS[name]()
        again = find_pairs(name, "de", "en")
        assert again.key != before and again.read().source[0] == "Ein Hund rennt."
    finally:
        GERMAN[0] = NESTED[0]["translation"]["de"] = kept


def test_finding_reads_no_text() -> None:
    Path("bad.de").write_bytes(b"\xff")
    Path("bad.en").write_bytes(b"\xff")
    assert isinstance(find_pairs("bad", "de", "en"), PairsFound)


def test_the_plain_file_is_taken_before_the_packed_one() -> None:
    two_files("x.de", "x.en")
    Path("x.de.gz").write_bytes(gzip.compress(b"not this one\n"))
    assert find_pairs("x", "de", "en").read().source == GERMAN


def test_parts_of_a_data_set() -> None:
    folder("columns", "parquet")
    assert find_pairs("columns", "de", "en", "valid").read().source == ["eins"]
    assert find_pairs("columns:validation", "de", "en").read().target == ["one"]
    assert find_pairs("columns:train[:2]", "de", "en").read().source == GERMAN[:2]
    card("set")
    assert find_pairs("set/short", "de", "en", "train").read().source == ["eins"]


def test_number_words_by_name() -> None:
    for name, role, part in (("numbers", "valid", "valid"), ("numbers:test", "train", "test")):
        pairs = find_pairs(name, "de", "en", role).read()
        assert (pairs.source, pairs.target) == numbers(part)
    assert find_pairs("numbers", "de", "en").key != find_pairs("numbers", "en", "de").key
    assert find_pairs("numbers", "de", "en").name == "numbers:train"


def says(name: str, message: str, source: str = "de", target: str = "en", role: str = "train") -> None:
    with pytest.raises(DataError, match=message) as error:
        find_pairs(name, source, target, role).read()
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("german", "english", "message"),
    [
        (b"a\nb\nc\n", b"a\nb\n", r"^x\.de has 3 lines and x\.en has 2; line n of one must translate"),
        (b"a\nb", b"a\nb\n\n", r"^x\.de has 2 lines and x\.en has 3"),
        (b"a\nb\xffc\n", b"a\nb\n", r"^x\.de, line 2: not UTF-8 \(byte 0xff\)"),
        (b"a\nb\n", b"a\nb\nc\xe4\n", r"^x\.en, line 3: not UTF-8 \(byte 0xe4\)"),
        (b"", b"a\n", r"^x\.de: is empty"),
        (None, b"a\n", r"^x: no parallel text; looked for x\.de, x\.de\.gz, x\.de\.xz$"),
        (b"a\n", None, r"^x: no parallel text; looked for x\.en, x\.en\.gz, x\.en\.xz$"),
    ],
)
def test_two_files_that_are_no_pair(german: bytes | None, english: bytes | None, message: str) -> None:
    for name, raw in (("x.de", german), ("x.en", english)):
        if raw is not None:
            Path(name).write_bytes(raw)
    says("x", message)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"de": "a", "en": "b"}\n{"de": \n', r"^x\.jsonl, line 2: not JSON"),
        (b'{"de": "a", "en": "b"}\n\n{"de": "a", "fr": "b"}\n', r"line 3: .*a text 'en', found the keys de, fr$"),
        (b'{"de": "a", "en": 7}\n', r"line 1: .*a text 'en', found a int there$"),
        (b'{"translation": {"de": null, "en": "b"}}\n', r"line 1: .*a text 'de', found a NoneType there$"),
        (b'{"translation": "a"}\n', r"line 1: .*a text 'de', found a str$"),
        (b'["a", "b"]\n', r"line 1: .*a text 'de', found a list$"),
        (b'{"de": "a", "en": "\\ud800"}\n', r"line 1: 'en' holds half a surrogate pair"),
        (b'{"de": "a", "en": "\xff"}\n', r"line 1: not UTF-8"),
        (b"\xef\xbb\xbf", r"^x\.jsonl: holds no pairs$"),
        (b" \n", r"^x\.jsonl: is empty$"),
    ],
)
def test_rows_that_are_no_pairs(raw: bytes, message: str) -> None:
    Path("x.jsonl").write_bytes(raw)
    says("x.jsonl", message)


def test_what_is_not_there() -> None:
    two_files("x.de", "x.en")
    Path("data").mkdir()
    says("data/train", r"^data/train: no parallel text; looked for data/train\.de, data/train\.de\.gz")
    says("/nowhere/train", r"^/nowhere/train: no parallel text")
    says("./train", r"^\./train: no parallel text")
    says("x", r"looked for x\.fr, x\.fr\.gz", target="fr")
    says("x.jsonl", r"^x\.jsonl: no such file")
    says("x.de,y.en", r"^y\.en: no such file")
    says("x.de,data", r"^data: is a folder; name a file")
    says("x.de,x.en,x.fr", r"^x\.de,x\.en,x\.fr: expected two files, 'a\.de,b\.en'")
    says("x.de,", r"expected two files")
    says("numbers:dev", r"no such part")
    Path("x.parquet").write_bytes(b"PAR1 no parquet at all")
    says("x.parquet", r"^x\.parquet: cannot be read as Parquet")


def test_data_sets_that_cannot_be_loaded() -> None:
    for name in ("nobody/nothing", "nothing", "nobody/nothing/de-en", "nobody/nothing:test"):
        base = name.partition(":")[0]
        says(
            name, rf"^{name}: no {base}\.de, {base}\.de\.gz, {base}\.de\.xz here, and as a data set it cannot be loaded"
        )
    folder("columns", "parquet")
    says("columns:test", r"^columns:test: .*cannot be loaded: .*test")
    card("set")
    says("set/fr-en", r"^set/fr-en: .*cannot be loaded: .*de-en")
    Path("broken").mkdir()
    Path("broken/train.jsonl").write_text("[[")
    says("broken", r"^broken: .*cannot be loaded: Expected object or value")
    says("columns", r"^columns, row 1: expected an object with a text 'fr', found the keys de, en$", target="fr")


def test_without_the_datasets_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    says("wmt14/de-en", r"pip install 'isograd\[data\]'")
