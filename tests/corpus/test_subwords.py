"""Vocabularies give back what they were given, in memory, from a folder and through transformers; merges cut as
subword-nmt cuts, and have the ids of fairseq's dictionary."""

import gzip
import io
from collections import Counter
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe
from transformers import AutoTokenizer

from isograd.convert.checkpoints.subwords import PairTokenizer, Subwords, read_subword_nmt, train_subwords
from isograd.errors import DataError
from isograd.lab.data.numbers import numbers

LINES = [
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich, <pad> und </s> 汉字 🐍!",
    "Eine Frau ist im Gespräch mit einer Person die als Freiheitsstatue gekleidet ist.",
    "A woman talking to a person dressed up as the statue of liberty.",
    "The men — all of them — are loading cotton onto a ▁truck; naïve cafe\u0301 @-@ it 's .",
]
KINDS = ("bpe", "unigram", "char")
TRAINED = {kind: train_subwords(LINES, kind, 400) for kind in KINDS}
ALPHABET = sorted({c for line in LINES for c in line})
IWSLT = Path(__file__).parents[3] / "shared/data/iwslt14-de-en"
real = pytest.mark.skipif(not IWSLT.exists(), reason="the real corpora are not beside this checkout")


def normal(line: str) -> str:
    return " ".join(line.split())


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40), max_size=3))
@settings(max_examples=150, deadline=None)
def test_any_text_comes_back(kind: str, lines: list[str]) -> None:
    rows = TRAINED[kind].encode(lines)
    assert TRAINED[kind].decode(rows) == [normal(line) for line in lines]
    for row in rows:
        assert row[-1] == TRAINED[kind].eos_id and all(4 <= i < TRAINED[kind].vocab_size for i in row[:-1])


@given(st.text(st.sampled_from(ALPHABET), max_size=60))
@settings(max_examples=150, deadline=None)
def test_characters_come_back_one_id_each(line: str) -> None:
    [row] = TRAINED["char"].encode([line])
    assert TRAINED["char"].decode([row]) == [normal(line)] and len(row) == len(normal(line)) + 1


def test_an_unseen_character_is_unknown_to_characters_alone() -> None:
    [row] = TRAINED["char"].encode(["Ж"])
    assert row == [TRAINED["char"].unk_id, TRAINED["char"].eos_id]
    assert all(TRAINED[k].decode(TRAINED[k].encode(["Ж"])) == ["Ж"] for k in ("bpe", "unigram"))


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids(kind: str) -> None:
    words = TRAINED[kind]
    assert (words.pad_id, words.unk_id, words.bos_id, words.eos_id) == (0, 1, 2, 3)
    [row] = words.encode(["</s><pad>"])
    assert row[-1] == 3 and min(row[:-1]) > 3  # in a text they are letters
    assert words.decode([[2, *row[:-1], 3, 0, 0]]) == ["</s><pad>"]
    assert words.encode([""]) == [[3]] and words.decode([[], [3, 0]]) == ["", ""]


def test_a_vocabulary_is_as_large_as_it_was_asked_for() -> None:
    lines = [f"word{i} {i * i} thing{i % 7}" for i in range(400)]
    assert train_subwords(lines, "bpe", 300).vocab_size == 300
    assert 260 <= train_subwords(lines, "unigram", 300).vocab_size <= 300
    assert train_subwords(["abba"], "char", 1).vocab_size == 6
    assert len(train_subwords(lines, "bpe", 300).encode(lines[-1:])[0]) < len(lines[-1])
    for kind in ("bpe", "unigram"):
        with pytest.raises(DataError, match=r"vocab_size=259: .* needs at least 260"):
            train_subwords(lines, kind, 259)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_ids_every_time(kind: str) -> None:
    lines = [f"{a} {b}" for a, b in zip(*numbers("valid"), strict=True)]
    several = {train_subwords(lines, kind, 400).tokenizer.to_str() for _ in range(3)}  # type: ignore[arg-type]
    assert len(several) == 1


@pytest.mark.parametrize("kind", [*KINDS, "merges"])
def test_saved_and_loaded_and_through_transformers(kind: str, tmp_path: Path) -> None:
    words = TRAINED[kind] if kind in TRAINED else read_subword_nmt(codes(tmp_path, LINES), None, LINES)
    words.save(tmp_path / "folder")
    again = Subwords.load(tmp_path / "folder")
    assert again.encode(LINES) == words.encode(LINES) and again.vocab_size == words.vocab_size
    assert again.decode(words.encode(LINES)) == [normal(line) for line in LINES]
    theirs = AutoTokenizer.from_pretrained(tmp_path / "folder")
    rows = theirs(LINES)["input_ids"]
    assert rows == words.encode(LINES)
    assert theirs.decode(rows[1], skip_special_tokens=True) == LINES[1]
    assert (theirs.pad_token_id, theirs.eos_token_id) == (words.pad_id, words.eos_id)
    batch = theirs(LINES[:3], padding=True, return_tensors="pt")
    assert batch["attention_mask"].sum().item() == sum(map(len, words.encode(LINES[:3])))


# subword-nmt and fairseq


def codes(folder: Path, lines: list[str], merges: int = 60) -> Path:
    """Learnt by subword-nmt itself."""
    path = folder / "codes"
    with path.open("w", encoding="utf-8") as out, redirect_stderr(io.StringIO()):  # its progress
        learn_bpe(io.StringIO("\n".join(lines)), out, merges, min_frequency=1)
    return path


def pieces_of_subword_nmt(path: Path, lines: list[str]) -> list[list[str]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
    bpe = BPE(io.StringIO(text))
    return [bpe.process_line(line).split(" ") for line in lines]


def looked_up(pieces: list[list[str]], dictionary: list[str]) -> list[list[int]]:
    """fairseq's arithmetic: line n, counted from 0, has the id n + 4; </s> is 2, <unk> is 3."""
    ids = {token: n + 4 for n, token in enumerate(dictionary)}
    return [[ids.get(token, 3) for token in row] + [2] for row in pieces]


def test_the_ids_are_the_dictionarys(tmp_path: Path) -> None:
    path = codes(tmp_path, LINES)
    cut = pieces_of_subword_nmt(path, LINES)
    tokens = [token for token, _ in Counter(t for row in cut for t in row).most_common()]
    known = tokens[::2]  # every other piece is unknown
    (tmp_path / "dict.txt").write_text("".join(f"{t} {i}\n" for i, t in enumerate(known)), encoding="utf-8")
    words = read_subword_nmt(path, tmp_path / "dict.txt")
    assert (words.bos_id, words.pad_id, words.eos_id, words.unk_id) == (0, 1, 2, 3)
    assert words.vocab_size == len(known) + 4
    expected = looked_up(cut, known)
    assert words.encode(LINES) == expected and 3 in expected[0]
    assert words.encode(LINES) != looked_up(cut, known[::-1])
    words.save(tmp_path / "saved")
    again = Subwords.load(tmp_path / "saved")
    assert again.encode(LINES) == expected and again.vocab_size == words.vocab_size


def test_without_a_dictionary_the_pieces_are_counted(tmp_path: Path) -> None:
    lines = ["lower low lowest", "low  new newer", "newest low wide ", " wider"]
    path = codes(tmp_path, lines, 12)
    cut = [[t for t in row if t] for row in pieces_of_subword_nmt(path, lines)]
    counts = Counter(t for row in cut for t in row)
    tokens = sorted(counts, key=lambda t: (-counts[t], t))
    words = read_subword_nmt(path, None, lines)
    assert words.vocab_size == len(tokens) + 4 and words.encode(lines) == looked_up(cut, tokens)
    assert words.decode(words.encode(lines)) == [normal(line) for line in lines]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return codes(
        tmp_path_factory.mktemp("learnt"), ["ab ab abc abca caab bcab abba ß's ß's 🐍🐍 🐍🐍a cc ccc aaaa aaa"], 15
    )


@given(some=st.lists(st.text("abcß🐍'", min_size=1, max_size=9), max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_words_are_cut_as_subword_nmt_cuts_them(learnt: Path, some: list[str]) -> None:
    line = " ".join(some)
    cut = [[t for t in row if t] for row in pieces_of_subword_nmt(learnt, [line])]
    tokens = sorted({t for row in cut for t in row})
    words = read_subword_nmt(learnt, None, [line])
    assert sorted(map(words.tokenizer.id_to_token, range(4, words.vocab_size))) == sorted(map(as_piece, tokens))
    assert words.decode(words.encode([line])) == [line]
    assert [[as_token(words.tokenizer.id_to_token(i)) for i in row[:-1]] for row in words.encode([line])] == cut


def as_piece(token: str) -> str:
    return token[:-2] if token.endswith("@@") else token + "</w>"


def as_token(piece: str) -> str:
    return piece[:-4] if piece.endswith("</w>") else piece + "@@"


def test_only_a_blank_divides_words(tmp_path: Path) -> None:
    """A no-break space or a tab is a letter of its word, as for subword-nmt."""
    lines = ["a\u00a0b c\td  e\u2028f"]
    path = codes(tmp_path, ["ab cd"], 1)
    words = read_subword_nmt(path, None, lines)
    cut = [[t for t in row if t] for row in pieces_of_subword_nmt(path, lines)]
    assert [[as_token(words.tokenizer.id_to_token(i)) for i in row[:-1]] for row in words.encode(lines)] == cut


@pytest.mark.parametrize(
    ("merges", "dictionary", "message"),
    [
        ("#version: 0.1\na b\n", "a 1\n", r"codes, line 1: expected '#version: 0.2'.*found '#version: 0.1'"),
        ("a b\n", "a 1\n", r"codes, line 1: expected '#version: 0.2'.*found 'a b'"),
        ("#version: 0.2\na b\na b c\n", "a 1\n", r"codes, line 3: expected a merge.*found 'a b c'"),
        ("#version: 0.2\n\na b\n", "a 1\n", r"codes, line 2: expected a merge"),
        ("#version: 0.2\na b\n", "a 1\nb\n", r"dict, line 2: expected 'token count'.*found 'b'"),
        ("#version: 0.2\na b\n", "a 1\nb x\n", r"dict, line 2: expected 'token count'"),
        ("#version: 0.2\na b\n", "a 1\nb 1\na 3\n", r"dict, line 3: 'a' is there already"),
        ("#version: 0.2\na b\n", "<unk> 1\n", r"dict, line 1: '<unk>' is there already"),
        ("", "a 1\n", r"codes: is empty"),
        ("#version: 0.2\na b\n", "", r"dict: is empty"),
        ("#version: 0.2\n< s>\n", "a 1\n", r"a merge or a dictionary has the piece '<s>'"),
        ("#version: 0.2\na b\n", "<pad>@@ 1\n", r"a merge or a dictionary has the piece '<pad>'"),
        (None, "a 1\n", r"codes: no such file"),
        ("#version: 0.2\na b\n", None, r"dict: no such file"),
    ],
)
def test_files_that_cannot_be_used(merges: str | None, dictionary: str | None, message: str, tmp_path: Path) -> None:
    for name, text in (("codes", merges), ("dict", dictionary)):
        if text is not None:
            (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message) as error:
        read_subword_nmt(tmp_path / "codes", tmp_path / "dict")
    assert "\n" not in str(error.value)


def test_a_merge_that_stands_twice_counts_once_and_first(tmp_path: Path) -> None:
    text = "#version: 0.2\r\nb c</w>\r\na b\r\na b\r\nab c</w>\r\nb c</w>\r\n"
    (tmp_path / "codes").write_bytes(text.encode())
    words = read_subword_nmt(tmp_path / "codes", None, ["abc ab"])
    pieces = [words.tokenizer.id_to_token(i) for i in words.encode(["abc ab"])[0]]
    assert pieces == ["a", "bc</w>", "a", "b</w>", "</s>"]


@real
@pytest.mark.parametrize(("language", "joint"), [("de", True), ("en", True), ("de", False), ("en", False)])
def test_a_thousand_real_lines(language: str, joint: bool) -> None:
    """IWSLT14's published merges and dictionaries: subword-nmt's pieces, fairseq's ids."""
    lines = gzip.decompress((IWSLT / f"valid.{language}.gz").read_bytes()).decode().split("\n")[:1000]
    path = IWSLT / f"dict.{'joined' if joint else language}.txt.gz"
    dictionary = [line.rsplit(" ", 1)[0] for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    words = read_subword_nmt(IWSLT / "bpe-10000.code.gz", path)
    cut = pieces_of_subword_nmt(IWSLT / "bpe-10000.code.gz", lines)
    assert words.vocab_size == len(dictionary) + 4 == {"de": 8848, "en": 6632}[language] * (not joint) + 10152 * joint
    assert words.encode(lines) == looked_up(cut, dictionary)
    if not joint:  # the joined one is of a text without HTML escapes
        assert sum(row.count(3) for row in words.encode(lines)) < 20
        whole = [n for n, row in enumerate(words.encode(lines)) if 3 not in row]
        decoded = words.decode(words.encode(lines))
        assert all(decoded[n] == lines[n] for n in whole)


# both sides


def test_a_pair_of_vocabularies_in_a_folder(tmp_path: Path) -> None:
    german, english = train_subwords(LINES[:2], "bpe", 300), train_subwords(LINES[2:], "char", 0)
    joint = PairTokenizer(german, german, ("de", "fr"), tokenized=True)
    joint.save(tmp_path / "joint")
    assert (tmp_path / "joint/tokenizer.json").exists() and not (tmp_path / "joint/source_tokenizer").exists()
    again = PairTokenizer.load(tmp_path / "joint")
    assert again.joint and again.languages == ("de", "fr") and again.tokenized
    assert again.target.encode(LINES) == german.encode(LINES)
    separate = PairTokenizer(german, english)
    separate.save(tmp_path / "separate")
    assert not (tmp_path / "separate/tokenizer.json").exists()
    again = PairTokenizer.load(tmp_path / "separate")
    assert not again.joint and again.languages == ("de", "en") and not again.tokenized
    assert again.source.encode(LINES) == german.encode(LINES)
    assert again.target.encode(LINES) == english.encode(LINES) != german.encode(LINES)


def test_a_folder_that_holds_no_translation(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"translation\.json: no such file"):
        PairTokenizer.load(tmp_path)
    PairTokenizer(TRAINED["char"], TRAINED["char"]).save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json: no such file"):
        PairTokenizer.load(tmp_path)
