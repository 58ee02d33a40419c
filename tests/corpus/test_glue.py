"""A task of GLUE in every layout gives the same rows; whatever is wrong is said in one line."""

import gzip
import lzma
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isograd.errors import DataError
from isograd.lab.data.glue import TASKS, Examples, GlueData, load_glue
from tests.golden import WHOLE

FIRST = ['He said "no.', "A dog runs.", "Rain\u2028fell", "One , two", "It 's late.", "naïve 汉字"]
SECOND = ["No, he said.", "A dog walks.", "It rained", "Three", 'Late" it is', "Chinese"]
LABELS = [1, 0, 1, 0, 1, 1]
SCORES = [5.0, 3.25, 4.8, 0.0, 2.0, 1.0]
REAL = WHOLE.parent / "data/glue"


def rows(*columns: list[Any]) -> list[str]:
    return ["\t".join(map(str, row)) for row in zip(*columns, strict=True)]


def blank(text: str) -> list[str]:
    return [text] * len(FIRST)


RTE = [("entailment", "not_entailment")[label] for label in LABELS]
OTHER = blank("x")
PAIR, SINGLE = "index\tsentence1\tsentence2\tlabel", "sentence\tlabel"
MSR = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
MNLI = "index\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label"
NLI = ["entailment", "neutral", "contradiction", "neutral", "entailment", "neutral"]
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
STS = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
LAYOUTS: dict[str, tuple[str, str, list[str]]] = {  # name of a layout -> task, file, lines
    "mrpc": ("mrpc", "MRPC/train.tsv", [MSR, *rows(LABELS, OTHER, OTHER, FIRST, SECOND)]),
    "msr": ("mrpc", "MRPC/msr_paraphrase_train.txt", ["\ufeff" + MSR, *rows(LABELS, OTHER, OTHER, FIRST, SECOND)]),
    "rte": ("rte", "RTE/train.tsv", [PAIR, *rows(OTHER, FIRST, SECOND, RTE)]),
    "cola": ("cola", "CoLA/train.tsv", rows(OTHER, LABELS, blank("*"), FIRST)),
    "cola with a header": ("cola", "cola/train.tsv", [SINGLE, *rows(FIRST, LABELS)]),
    "sst-2": ("sst-2", "SST-2/train.tsv", [SINGLE, *rows(FIRST, LABELS)]),
    "mnli": ("mnli", "MNLI/train.tsv", [MNLI, *rows(OTHER, OTHER, OTHER, FIRST, SECOND, blank("neutral"), NLI)]),
    "qnli": ("qnli", "QNLI/train.tsv", ["index\tquestion\tsentence\tlabel", *rows(OTHER, FIRST, SECOND, RTE)]),
    "qqp": ("qqp", "QQP/train.tsv", [QQP, *rows(OTHER, OTHER, OTHER, FIRST, SECOND, LABELS), "7\tx\ty\tWhy?\tWhat"]),
    "sts-b": ("sts-b", "STS-B/train.tsv", [STS, *rows(*[OTHER] * 7, FIRST, SECOND, SCORES)]),
    "sts benchmark": ("sts-b", "STS-B/sts-train.csv", rows(*[OTHER] * 4, SCORES, FIRST, SECOND)),
    "sts with sources": ("sts-b", "stsb/sts-train.tsv", rows(*[OTHER] * 4, SCORES, FIRST, SECOND, OTHER, OTHER)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: str, lines: list[str], write_as: Callable[..., Any] = open, end: str = "\n") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with write_as(path, "wb") as file:
        file.write("".join(f"{line}{end}" for line in lines).encode())


def part(of: Examples) -> list[tuple[str, str | None, float]]:
    return list(zip(of.first, of.second or blank("")[: len(of)], of.labels, strict=True))


def expected(task: str) -> list[tuple[str, str | None, float]]:
    single = task in ("cola", "sst-2")
    labels: list[Any] = {
        "sts-b": SCORES,
        "rte": [RTE[i] == "not_entailment" for i in range(len(RTE))],
        "qnli": [RTE[i] == "not_entailment" for i in range(len(RTE))],
        "mnli": [0, 1, 2, 1, 0, 1],
    }.get(task, LABELS)
    return list(zip(FIRST, blank("") if single else SECOND, labels, strict=True))


def with_dev(task: str, path: str, lines: list[str]) -> GlueData:
    """The same lines as dev part, so that nothing is held out."""
    dev = "dev_matched" if task == "mnli" else "dev"
    write(str(Path(path).with_name(Path(path).name.replace("train", dev))), lines)
    return load_glue(task, Path(path).parts[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str) -> None:
    """Unbalanced quotation marks and other line separators are text."""
    task, path, lines = LAYOUTS[layout]
    write(path, lines)
    dev = "MRPC/dev.tsv" if layout == "msr" else path
    data = with_dev(task, dev, lines)
    assert part(data.train) == part(data.dev) == expected(task)
    assert (data.train.second is None) == (task in ("cola", "sst-2"))
    assert not data.held_out and data.test is None
    assert data.constant == pytest.approx(sum(SCORES) / 6 if task == "sts-b" else 1)
    assert data.classes == TASKS[task].classes


@pytest.mark.parametrize(("ending", "opened"), [(".gz", gzip.open), (".xz", lzma.open)])
def test_packed_and_with_other_line_ends(ending: str, opened: Any) -> None:
    task, path, lines = LAYOUTS["rte"]
    write(path, lines)
    plain = with_dev(task, path, lines)
    write("packed/RTE/train.tsv" + ending, lines, opened, end="\r\n")
    write("packed/RTE/dev.tsv", [*lines, ""])
    assert load_glue(task, "packed").sha256 == plain.sha256


def test_the_folder_of_the_task_or_of_all() -> None:
    task, path, lines = LAYOUTS["rte"]
    write(path, lines)
    write("RTE/dev.tsv", lines)
    assert load_glue(task, ".").sha256 == load_glue(task, "RTE").sha256
    with pytest.raises(DataError, match=r"no training part of sst-2: looked for train\.tsv"):
        load_glue("sst-2", "RTE")  # its own train.tsv is another task's


def numbered(count: int) -> list[str]:
    said = ("entailment", "not_entailment", "entailment", "entailment")
    return ["sentence1\tsentence2\tlabel"] + [f"a {i}\tb {i * i}\t{said[i % 4]}" for i in range(count)]


def test_a_dev_part_is_held_out_by_the_rows_alone() -> None:
    """Whatever their order; with all copies of a row; one in ten, of each class."""
    write("RTE/train.tsv", numbered(200))
    one = load_glue("rte", "RTE")
    assert (one.held_out, len(one.train), len(one.dev)) == (True, 180, 20)
    assert not set(part(one.dev)) & set(part(one.train)) and sum(one.dev.labels) == 5
    lines = numbered(200)[1:] * 2
    random.Random(0).shuffle(lines)
    write("RTE/train.tsv", [numbered(0)[0], *lines])
    other = load_glue("rte", "RTE")
    assert set(part(other.dev)) == set(part(one.dev)) and len(other.dev) == 40
    assert "held out" in one.facts()["dev"] and one.facts()["rows"] == {"train": 180, "dev": 20}
    write("RTE/train.tsv", numbered(4))
    with pytest.raises(DataError, match="no dev part, and 4 rows of train are too few"):
        load_glue("rte", "RTE")


def test_a_test_part_counts_where_it_has_labels() -> None:
    task, path, lines = LAYOUTS["rte"]
    write(path, lines)
    write("RTE/test.tsv", ["index\tsentence1\tsentence2", *rows(OTHER, FIRST, SECOND)])
    assert with_dev(task, path, lines).test is None
    task, path, lines = LAYOUTS["msr"]
    write(path, lines)
    write("MRPC/test.tsv", ["index\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows(OTHER, OTHER, OTHER, FIRST, SECOND)])
    assert with_dev(task, "MRPC/dev.tsv", lines).test is None
    write("MRPC/msr_paraphrase_test.txt", lines[:3])
    test = load_glue(task, "MRPC").test
    assert test and part(test) == expected(task)[:2]


def test_the_digest_is_of_the_rows() -> None:
    task, path, lines = LAYOUTS["rte"]
    write(path, lines)
    one = with_dev(task, path, lines).sha256
    write(path, [line.replace("dog", "cat") for line in lines])
    assert load_glue(task, "RTE").sha256 != one


@pytest.fixture(name="hub")
def _hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Writes a data set as it lies on the hub: a folder per configuration, Parquet inside."""
    parquet = pytest.importorskip("pyarrow.parquet")
    datasets = pytest.importorskip("datasets")
    from pyarrow import table

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    datasets.disable_progress_bars()

    def written(config: str, **parts: dict[str, list[Any]]) -> None:
        folder = Path("hub", config, "data")  # where any name of a part is known as one
        folder.mkdir(parents=True)
        for name, columns in parts.items():
            parquet.write_table(table(columns), folder / f"{name}-00000-of-00001.parquet")

    yield written
    datasets.enable_progress_bars()


@pytest.mark.parametrize(
    ("layout", "config"),
    [("rte", "rte"), ("cola", "cola"), ("sts-b", "stsb"), ("mrpc", "mrpc"), ("mnli", "mnli"), ("qqp", "qqp")],
)
def test_a_data_set_gives_the_same_rows(layout: str, config: str, hub: Callable[..., None]) -> None:
    task, path, lines = LAYOUTS[layout]
    write(path, lines)
    labels: list[Any] = {"sts-b": SCORES, "mnli": [0, 1, 2, 1, 0, 1]}.get(task, LABELS)
    names = {"mnli": ("premise", "hypothesis"), "qqp": ("question1", "question2")}.get(task, ("sentence1", "sentence2"))
    columns: dict[str, list[Any]] = (
        {"sentence": FIRST} if task == "cola" else dict(zip(names, (FIRST, SECOND), strict=True))
    )
    here = columns | {"label": labels, "idx": list(range(6))}
    matched = "_matched" if task == "mnli" else ""
    hub(config, train=here, **{f"validation{matched}": here, f"test{matched}": columns | {"label": [-1] * 6}})
    data = load_glue(task, "hub")
    assert data.sha256 == with_dev(task, path, lines).sha256
    assert data.test is None and data.source == f"hub ({config})"


def test_what_a_data_set_lacks(hub: Callable[..., None]) -> None:
    hub("rte", train={"sentence1": FIRST, "label": LABELS})
    says("rte", "hub", r"^hub \(rte\), train: no column 'sentence2'; found 'sentence1', 'label'$")
    hub("cola", train={"sentence": FIRST, "label": [1, 0, 7, 0, 1, 1]})
    says("cola", "hub", r"^hub \(cola\), train, row 3: label '7' is unknown; known are unacceptable \(0\), acceptable")
    hub("mrpc", validation={"sentence1": FIRST, "sentence2": SECOND, "label": LABELS})
    says("mrpc", "hub", "no part 'train'; found validation")
    says("sst-2", "hub", r"^hub \(sst2\): as a data set it cannot be loaded: ")
    says("mrpc", "nobody/has-this", "^nobody/has-this: no such folder here, and as a data set on the hub it")


def test_without_the_datasets_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    says("mrpc", "nyu-mll/glue", "needs the datasets library; pip install 'isograd\\[data\\]'")


def says(task: str, source: str, pattern: str) -> None:
    with pytest.raises(DataError, match=pattern) as error:
        load_glue(task, source)
    assert "\n" not in str(error.value)


BAD: dict[str, tuple[str, list[str], str]] = {
    "a missing column": ("rte", ["index\tsentence1\tsentence2\tlabell", "0\ta\tb\tentailment"],
                         r"RTE/train\.tsv: no column 'label'; found 'index', 'sentence1', 'sentence2', 'labell'$"),
    "two missing columns": ("rte", ["a\tsentence1\tb", "0\ta\tb"], "no columns 'sentence2' and 'label'; found 'a'"),
    "another separator": ("rte", ["sentence1,sentence2,label", "a,b,entailment"],
                          "no columns 'sentence1' and 'sentence2' and 'label'; found 'sentence1,sentence2,label'$"),
    "an unknown label": ("rte", [PAIR, "0\ta\tb\tentailment", "1\ta\tb\tneutral"],
                         r"line 3: label 'neutral' is unknown; known are entailment \(0\), not_entailment \(1\)$"),
    "no label": ("rte", [PAIR, "0\ta\tb\t"], "line 2: label '' is unknown"),
    "a short row": ("rte", [PAIR, "0\ta\tb\tentailment", "1\ta"], r"line 3: 2 columns, expected at least 4, divided"),
    "no sentence": ("rte", [PAIR, "0\ta\t \tentailment"], "line 2: a sentence is missing$"),
    "a header alone": ("rte", [PAIR], "has a header and no rows$"),
    "no number": ("sts-b", rows(*[OTHER] * 4, blank("five"), FIRST, SECOND), "line 1: score 'five' is no number$"),
    "nan": ("sts-b", rows(*[OTHER] * 4, blank("nan"), FIRST, SECOND), "line 1: score 'nan' is not from 0 to 5$"),
    "out of range": ("sts-b", rows(*[OTHER] * 4, blank("5.1"), FIRST, SECOND), "line 1: score '5.1' is not from 0"),
    "no header needed": ("cola", ["a\t1"], "line 1: 2 columns; expected source, label, mark, sentence with no header,"
                         " or a header with sentence, label$"),
    "an empty file": ("sst-2", [], "SST-2/train.tsv: is empty$"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_in_one_line(case: str) -> None:
    task, lines, pattern = BAD[case]
    write(f"{TASKS[task].folder}/train.tsv", lines)
    says(task, ".", pattern)


def test_bad_files_in_one_line() -> None:
    says(
        "wnli",
        ".",
        "'wnli' is not a task of GLUE; expected one of mrpc, rte, cola, sst-2, sts-b, mnli, qnli, qqp$",
    )
    says("rte", "./nothing", r"^\./nothing: no such folder$")
    says("rte", "/nothing/at/all", "^/nothing/at/all: no such folder$")
    Path("RTE").mkdir()
    says("rte", ".", r"^RTE: no training part of rte: looked for train\.tsv \(also \.gz, \.xz\), found nothing$")
    write("RTE/dev.tsv", LAYOUTS["rte"][2])
    says("rte", ".", "^RTE: no training part of rte: .* found dev.tsv$")
    says("rte", "RTE/dev.tsv", "is a file; name a folder$")
    Path("RTE/train.tsv").write_bytes("\n".join(LAYOUTS["rte"][2]).encode("utf-16"))
    says("rte", ".", "RTE/train.tsv, line 1: not UTF-8")
    Path("RTE/train.tsv").write_bytes(PAIR.encode() + b"\n0\tna\xefve\tb\tentailment\n")
    says("rte", ".", r"RTE/train.tsv, line 2: not UTF-8 \(byte 0xef\)")
    Path("RTE/train.tsv").unlink()
    Path("RTE/train.tsv.gz").write_bytes(b"no gzip")
    says("rte", ".", "cannot be read")


@pytest.mark.skipif(not REAL.exists(), reason="the whole GLUE files are not beside the repository")
@pytest.mark.parametrize(
    ("task", "train", "dev", "test"),
    [
        ("mrpc", 3668, 408, 1725),  # the MSR files; GLUE's own dev part is as large, of other rows
        ("rte", 2490, 277, None),
        ("cola", 8551, 1043, None),
        ("sts-b", 5749, 1500, 1379),
    ],
)
def test_the_real_files(task: str, train: int, dev: int, test: int | None) -> None:
    data = load_glue(task, REAL)
    assert (len(data.train), len(data.dev)) == (train, dev)
    assert (len(data.test) if data.test else None) == test
    if task == "mrpc":  # Dolan and Brockett 2005: 2,753 of 4,076 are paraphrases, and 1,147 of 1,725
        assert Counter([*data.train.labels, *data.dev.labels]) == {1: 2753, 0: 1323}
        assert data.test and Counter(data.test.labels)[1] == 1147
