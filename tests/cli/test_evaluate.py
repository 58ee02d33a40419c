"""`isograd evaluate`: scores of a model, or of a file."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from isograd.lab.evaluate.scores import score
from isograd.lab.evaluate.translation import Translator
from tests.evaluate.small import LINES, saved
from tests.study.arms import called, refused


@pytest.fixture(scope="session", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("small"))


@pytest.fixture(name="found")
def _found(folder: Path) -> list[str]:
    return [translation.text for translation in Translator.load(folder).translate(LINES)]


@pytest.fixture(name="files")
def _files(found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Half of the references are what the model writes."""
    monkeypatch.chdir(tmp_path)
    Path("t.de").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    with gzip.open("t.en.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in [*found[:3], *LINES[3:]])
    return ["--src", "t.de", "--ref", "t.en.gz"]


def evaluated(*words: str) -> dict[str, Any]:
    code, out, err = called("evaluate", *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_everything_as_json(folder: Path, found: list[str], files: list[str]) -> None:
    told = evaluated(str(folder), *files, "--out", "t.hyp")
    assert Path("t.hyp").read_text(encoding="utf-8") == "".join(f"{line}\n" for line in found)
    expected = score(found, [*found[:3], *LINES[3:]], tokenized=False, language="en").as_dict()
    assert {name: told[name] for name in expected} == expected
    assert told["exact_match"] == 50 and set(told["signatures"]) == {"bleu", "chrf", "ter", "legacy_bleu"}
    settings = {"model": str(folder), "sources": "t.de", "references": "t.en.gz", "precision": "fp32"}
    settings |= {"beam": 5, "length_penalty": 1.0, "tokens": 8192, "failures": []}
    assert {name: told[name] for name in settings} == settings
    assert told["lines_per_second"] * told["seconds"] == pytest.approx(6)
    assert {"isograd", "torch", "transformers", "sacrebleu", "sacremoses", "device"} <= set(told["provenance"])


def test_pairs_by_name(folder: Path, files: list[str]) -> None:
    """The languages are the model's."""
    told, named = evaluated(str(folder), *files), evaluated(str(folder), "--pairs", "t")
    for name in ("bleu", "chrf", "sources", "references"):
        assert named[name] == told[name]


def test_options_reach_the_search(folder: Path, files: list[str]) -> None:
    told = evaluated(str(folder), *files, "--beam", "1", "--length-penalty", "0.6", "--out", "t.hyp")
    found = Translator.load(folder).translate(LINES, beam=1, length_penalty=0.6)
    assert Path("t.hyp").read_text(encoding="utf-8").splitlines() == [translation.text for translation in found]
    assert (told["beam"], told["length_penalty"]) == (1, 0.6)


def test_the_table(folder: Path, files: list[str]) -> None:
    """Both BLEUs side by side, each with its signature, in a terminal of 80 columns."""
    told = evaluated(str(folder), *files)
    code, out, _ = called("evaluate", str(folder), *files)
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert rows[0] == ["BLEU", f"{told['bleu']:.2f}", told["signatures"]["bleu"]]
    assert rows[1] == ["chrF", f"{told['chrf']:.2f}", told["signatures"]["chrf"]]
    assert f"TER{told['ter']:.2f}{told['signatures']['ter']}" in "".join(out.split())  # a terminal of 80 wraps it
    assert rows[-4] == ["legacy", "BLEU", f"{told['legacy_bleu']:.2f}", told["signatures"]["legacy_bleu"]]
    assert rows[-3] == ["exact", "match", "50.00", *["%", "of", "the", "lines"]]
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines()[:5] if not line.startswith("TER"))
    assert "beam 5, length penalty 1" in out


def test_a_line_that_fails_is_scored_as_empty(folder: Path, files: list[str]) -> None:
    Path("t.de").write_text("".join(f"{line}\n" for line in [*LINES[:5], "a" * 80]), encoding="utf-8")
    code, out, err = called("evaluate", str(folder), *files, "--json")
    assert code == 1 and json.loads(out)["failures"][0]["line"] == 6
    assert err.startswith("isograd evaluate: line 6: 81 tokens") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: MODEL"),
        (["M"], "give --src FILE and --ref FILE, or --pairs SOURCE"),
        (["M", "--src", "t.de"], "give --src FILE and --ref FILE"),
        (["M", "--src", "t.de", "--ref", "t.de", "--pairs", "t"], "give --src FILE and --ref FILE"),
        (["M", "--src", "t.de", "--pairs", "t"], "give --src FILE and --ref FILE"),
        (["M", "--pairs", "nosuch.jsonl"], "nosuch.jsonl: no such file"),
        (["M", "--pairs", "t", "--out", "nosuch/t.hyp"], "nosuch/t.hyp: not a file in a folder that exists"),
        (["M", "--src", "t.de", "--ref", "short"], "t.de has 6 lines and short has 2"),
        (["M", "--src", "nosuch", "--ref", "t.de"], "nosuch: no such file"),
        (["M", "--src", "t.de", "--ref", "latin"], "latin, line 2: not UTF-8 (byte 0xfc)"),
        (["nosuch", "--pairs", "t"], "nosuch: no such folder"),
        (["M", "--pairs", "t", "--beam", "many"], "--beam"),
    ],
)
def test_refused(words: list[str], said: str, folder: Path, files: list[str]) -> None:
    Path("short").write_text("a\nb\n")
    Path("latin").write_bytes("a\nüber\n".encode("latin-1"))
    before = sorted(Path().iterdir())
    assert said in refused("evaluate", *(str(folder) if word == "M" else word for word in words))
    assert sorted(Path().iterdir()) == before


def test_what_is_given_says_what_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"is_encoder_decoder": true}')
    assert "give --src FILE and --ref FILE" in refused("evaluate", str(tmp_path))  # a translator
    assert "invalid choice: 'nothing'" in refused("evaluate", str(tmp_path), "--task", "nothing")


def test_an_import_is_heard(files: list[str]) -> None:
    assert "--import nosuch" in refused("evaluate", "x", "--import", "nosuch", "--pairs", "t")
    assert "--import nosuch" in refused("compare", "--import", "nosuch", "--placements", "pre-ln", "post-ln")


def test_a_missing_library(folder: Path, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    monkeypatch.delitem(sys.modules, "isograd.lab.evaluate.scores")
    assert "pip install 'isograd[mt]'" in refused("evaluate", str(folder), *files)
