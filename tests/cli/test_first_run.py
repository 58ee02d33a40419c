"""From a text to a page: `isograd train --new`, `isograd train`, `isograd report --open`."""

import gzip
import json
import os
import random
from pathlib import Path

import pytest
import yaml

from isograd.lab.data.pairs import find_pairs
from isograd.lab.train.recipe import load_run
from isograd.lab.train.suggest import choose, look, recipe_for
from tests.study.arms import TEXT, called, refused

FEW = ["training.steps=4", "training.batch=2", "training.valid_every=2", "training.warmup=1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_from_a_text_to_a_page(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe trains unchanged; its steps are lowered here for the sake of time."""
    (here / "my text.txt").write_text(TEXT)
    code, out, err = called("train", "--new", "my text.txt")
    assert (code, err) == (0, "") and "isograd train 'my text.yaml'" in out
    code, out, err = called("train", "my text.yaml", *FEW)
    assert code == 0, err
    assert ("step 4 of" not in err and "finished" in err) or "undecided" in err
    assert called("report", "--open", "runs/my text")[:2] == (0, "runs/my text/report/report.html\n")
    page = Path("runs/my text/report/report.html")
    assert page.is_file()
    (here / "browser").write_text('#!/bin/sh\necho "$1" > opened\n')
    (here / "browser").chmod(0o755)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("BROWSER", str(here / "browser"))
    before = page.stat().st_mtime_ns
    assert called("report", "--open", "runs/my text")[:2] == (0, f"opened {page}\n")
    assert page.stat().st_mtime_ns == before  # it was new enough
    assert (here / "opened").read_text().strip() == page.resolve().as_uri()
    assert json.loads(called("report", "--open", str(page), "--json")[1]) == {"page": str(page)}
    (here / "other").mkdir()
    (here / "other" / "explain.html").write_text("a page of another verb")
    assert called("report", "--open", "other")[1] == "opened other/explain.html\n"
    os.utime("runs/my text/outcome.json")
    called("report", "--open", "runs/my text", "--json")
    assert page.stat().st_mtime_ns > before


def korean(characters: int) -> str:
    draw = random.Random(0)
    return "".join(chr(draw.randrange(0xAC00, 0xAC00 + 2000)) for _ in range(characters))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", TEXT[:2000], {"level": "char", "length": 32, "documents": "file"}),
        ("b.txt.gz", TEXT * 4, {"level": "char", "length": 128, "documents": "file"}),
        ("c.txt", korean(20_000), {"level": "bpe", "length": 128, "documents": "file"}),
        ("d.txt", "\n\n".join([TEXT[:400]] * 25), {"level": "char", "documents": "blank-line"}),
        ("e.jsonl", "".join(json.dumps({"id": "x", "body": TEXT[:300]}) + "\n" for _ in range(9)), {"field": "body"}),
    ],
)
def test_settings_follow_from_the_text(name: str, text: str, said: dict[str, object], here: Path) -> None:
    data = text.encode()
    (here / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    code, out, _ = called("train", "--new", name, "--out", "mine.yaml", "--json")
    assert code == 0
    run = json.loads(out)
    assert {key: run["data"][key] for key in said} == said
    assert run["recipe"] == "mine.yaml" and run["data"]["source"] == name
    assert yaml.safe_load(Path("mine.yaml").read_text())["data"]["source"] == name


LINES = [(f"{i} eins zwei {i % 7}", f"one two {i % 7} {i}") for i in range(300)]


def write_sides(here: Path, one: str, other: str) -> None:
    for side, name in enumerate((one, other)):
        (here / name).write_text("".join(f"{pair[side]}\n" for pair in LINES))


def test_parallel_text_gives_a_recipe_of_a_translation_that_trains(here: Path) -> None:
    write_sides(here, "my.de", "my.en")
    assert "300 pairs" in called("train", "--new", "my.de", "my.en")[1]
    run = load_run(Path("my.yaml"))
    assert (run.name, run.task, run.pairs.source, run.pairs.target) == ("my", "translation", "de", "en")
    few = ["training.steps=2", "training.warmup=1", "training.valid_every=2", "search.pairs=0", "model.width=16"]
    code, _, err = called("train", "my.yaml", *few, "--json")
    assert code == 0, err
    assert (here / "runs" / "my" / "model" / "config.json").exists()


@pytest.mark.parametrize(
    ("names", "given", "languages"),
    [
        (("a.fr.txt", "a.en.txt"), ["a.fr.txt", "a.en.txt"], ("fr", "en")),
        (("one.txt", "two.txt"), ["one.txt,two.txt"], ("source", "target")),
    ],
)
def test_which_files_are_parallel(
    names: tuple[str, str], given: list[str], languages: tuple[str, str], here: Path
) -> None:
    write_sides(here, *names)
    run = json.loads(called("train", "--new", *given, "--out", "x.yaml", "--json")[1])
    assert (run["task"], run["pairs"]["source"], run["pairs"]["target"]) == ("translation", *languages)


def test_files_that_are_not_parallel_are_text(here: Path) -> None:
    """The negative control: other names, or another number of lines."""
    write_sides(here, "one.txt", "two.txt")
    assert json.loads(called("train", "--new", "one.txt", "two.txt", "--json")[1])["task"] == "language"
    write_sides(here, "a.de", "a.en")
    with (here / "a.en").open("a") as file:
        file.write("one more line\n")
    assert json.loads(called("train", "--new", "a.de", "a.en", "--json")[1])["task"] == "language"


def test_two_columns_are_parallel_text(here: Path) -> None:
    (here / "pairs.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in LINES))
    assert json.loads(called("train", "--new", "pairs.tsv", "--json")[1])["pairs"]["train"] == ["pairs.tsv"]
    found = find_pairs("pairs.tsv", "source", "target").read()
    assert list(zip(found.source, found.target, strict=True)) == LINES
    (here / "three.tsv").write_text("a\tb\tc\n" * 300)
    assert "three.tsv, line 1: expected source, a tab and target, found 3 columns" in refused(
        "train", "--new", "three.tsv"
    )
    (here / "few.tsv").write_text("a\tb\n" * 3)
    assert "few.tsv: 3 pairs; a first run needs at least 200" in refused("train", "--new", "few.tsv")


def test_a_masked_recipe_trains(here: Path) -> None:
    (here / "my.txt").write_text(TEXT)
    assert called("train", "--new", "my.txt", "--task", "masked")[0] == 0
    assert load_run(Path("my.yaml")).task == "masked"
    code, _, err = called("train", "my.yaml", *FEW)
    assert code == 0, err


def test_every_kind_of_recipe_can_be_read(here: Path) -> None:
    """Of any size: what is chosen is no contradiction."""
    for size in (1_300, 6_000, 60_000, 300_000, 1_100_000):
        (here / "x.txt").write_text((TEXT * (1 + size // len(TEXT)))[:size])
        facts = look(["x.txt"])
        path = here / f"{size}.yaml"
        path.write_text(recipe_for(["x.txt"], facts, path))
        run = load_run(path)
        assert run.places == choose(facts).length
        assert facts.characters / 20 > run.places  # the part that is held out has a sequence


def test_bad_input_is_one_line(here: Path) -> None:
    assert refused("train", "--new", "nothing.txt").endswith("nothing.txt: no such file")
    (here / "s.txt").write_text("short")
    assert refused("train", "--new", "s.txt").endswith("s.txt: 5 characters; a first run needs at least 1,280")
    (here / "n.jsonl").write_text('{"id": 3}\n')
    assert "the first row has no text" in refused("train", "--new", "n.jsonl")
    (here / "s.yaml").write_text("mine")
    assert refused("train", "--new", "s.txt").endswith("s.yaml exists; name another by --out FILE")
    assert (here / "s.yaml").read_text() == "mine"
    assert refused("report", "--open", "runs/none").endswith("runs/none is not there")
    (here / "empty").mkdir()
    assert "nothing to report on in empty" in refused("report", "--open", "empty")
