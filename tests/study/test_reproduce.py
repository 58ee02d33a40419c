"""Items: what each of the table must say, the rules of verdicts, and one item from its runs to its page."""

import json
import math
import os
import re
import shlex
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isograd import hub
from isograd.lab.recipes import path_of
from isograd.lab.report.pages.reproduce import read_rows
from isograd.lab.report.pages.reproduce_index import write_index
from isograd.lab.study.compare import plan
from isograd.lab.train.recipe import load_run
from isograd.papers.reproduce import judge
from isograd.papers.reproduce.context import Context
from isograd.papers.reproduce.data import HUB, found
from isograd.papers.reproduce.item import DECIDED, PAPERS, Full, Item, ItemText, Published, Rows, Runs
from isograd.papers.reproduce.plan import Asked, plan_item
from isograd.papers.reproduce.registry import ITEMS, by_paper, chosen, corpus
from tests.cli.test_compare import gone, started, wait_until_held
from tests.study.arms import called, refused
from tests.study.tiny_study import recipe


@pytest.mark.parametrize("item", ITEMS.values(), ids=lambda item: item.id)
def test_every_item_says_what_a_reader_must_know(item: Item) -> None:
    assert item.id.partition("/")[0] in PAPERS and item.claim.endswith(".") and item.claim.count(". ") == 0
    assert item.published and all(
        one.tag.split(":")[0] in ("paper", "code", "quoted", "memory") for one in item.published
    )
    assert item.size_paper and item.size_here
    assert not item.decided or (item.decided.partition(": ")[0] in DECIDED and item.decided.endswith("."))
    if item.missing:
        assert not item.runs and item.judge is None
    else:
        assert item.rule and item.judge and item.differs and (item.runs or item.measure)
    if item.full:
        path_of(item.full.recipe)


@pytest.mark.parametrize("item", [item for item in ITEMS.values() if item.runs], ids=lambda item: item.id)
def test_every_item_is_planned_on_the_embedded_texts(item: Item, tmp_path: Path) -> None:
    planned = plan_item(item, Asked(out=tmp_path))
    if planned.lacking:
        assert planned.lacking.startswith("no data: ") and any(c.embedded is None for c in item.corpora.values())
        return
    arms = {(runs.group, arm) for runs in item.runs for arm in runs.arms if runs.upon is None}
    assert arms <= {(member.group, member.arm) for member in planned.members}


def rows(column: str, **arms: list[float]) -> list[dict[str, Any]]:
    """Of each arm a value per seed; an infinite one is of a run that diverged."""
    return [
        {"arm": arm, "seed": seed, "outcome": "diverged" if math.isinf(value) else "finished", column: value}
        for arm, values in arms.items()
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    [
        ([1.0, 1.1, 1.2], [2.0, 2.1, 2.2], "same direction"),
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.2], "opposite"),
        ([1.0, 2.1, 1.2], [2.0, 1.1, 2.2], "not seen"),  # not with every seed
        ([1.0, 1.1, 1.2], [math.inf, 2.0, math.inf], "same direction"),  # diverged is worst
        ([1.0], [2.0], "not seen"),  # one seed has no interval
    ],
)
def test_paired(mine: list[float], theirs: list[float], verdict: str) -> None:
    ruled = judge.paired(rows("loss", a=mine, b=theirs), "loss", "a", "b", "lower")
    assert (ruled.verdict, ruled.ours[0].n) == (verdict, len(mine))
    assert ("one seed has no interval" in ruled.reason) is (len(mine) == 1)
    assert judge.paired(rows("loss", a=mine, b=theirs), "loss", "b", "a", "higher").verdict == verdict


def test_a_least_difference_is_asked_for() -> None:
    near = rows("loss", a=[1.0, 1.1, 1.2], b=[1.04, 1.14, 1.24])
    assert judge.paired(near, "loss", "a", "b", "lower").verdict == "same direction"
    assert judge.paired(near, "loss", "a", "b", "lower", least=0.05).verdict == "not seen"


def test_trains() -> None:
    some = rows("loss", good=[1.0, 1.0], bad=[math.inf, math.inf])
    assert judge.trains(some, yes=["good"], no=["bad"]).verdict == "same direction"
    assert judge.trains(some, yes=["bad"], no=["good"]).verdict == "opposite"
    assert judge.trains([*some, {"arm": "bad", "seed": 2, "outcome": "undecided"}], no=["bad"]).verdict == "not seen"
    assert judge.trains(some, yes=["absent"]).verdict == "not seen"


def test_beyond_and_both() -> None:
    above, below = (
        judge.beyond("ratio", [2.0, 3.0, 2.5], 1.0, "higher"),
        judge.beyond("ratio", [2.0, 3.0], 4.0, "higher"),
    )
    assert (above.verdict, above.ours[0].value, above.ours[0].low, above.ours[0].high) == ("same direction", 2.5, 2, 3)
    assert below.verdict == "opposite"
    assert judge.both(above, above).verdict == "same direction" and judge.both(above, below).verdict == "not seen"
    reason = judge.both(above, below).reason
    assert reason == f"1 of 2 conditions hold. Not: {below.reason} Holds: {above.reason}"
    whole, part = judge.every(above, above), judge.every(above, below)
    assert (whole.verdict, whole.reason) == ("same direction", "2 of 2 conditions hold.")
    assert part.verdict == "not seen" and part.reason.startswith("1 of 2 conditions hold. Not: ") and part.ours


def test_a_corpus_is_found_or_says_what_is_missing(tmp_path: Path) -> None:
    corpus = ItemText(name="text", folder="some", files=("a.txt",), settings={"data.source": ["{folder}/a.txt"]})
    assert found(corpus, None) == (None, "no data: --data FOLDER with some/ (text)")
    assert found(corpus, tmp_path) == (None, "no data: some/a.txt is not there below --data")
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "a.txt").write_text("x")
    assert found(corpus, tmp_path) == ({"data.source": [str(tmp_path / "some" / "a.txt")]}, "text")


def test_corpora_by_their_names_on_the_hub(tmp_path: Path) -> None:
    """The same items with and without; what is no data set there says so."""
    settings, _ = found(corpus("multi30k"), HUB)
    assert settings and settings["pairs.train"] == ["bentrevett/multi30k"]
    assert found(corpus("glue/RTE"), HUB)[0] == {"glue.source": "nyu-mll/glue"}
    assert found(corpus("wikipedia"), HUB) == (None, "no data: no name on the hub; --data FOLDER with wikipedia-en/")
    settings, name = found(corpus("wmt-en-de"), HUB)
    assert settings and settings["pairs.valid"] == ["wmt/wmt14/de-en:validation"]
    assert "4.5 million" in name  # not the part that the folder has
    planned = plan_item(ITEMS["normformer2021/gradients-fig3"], Asked(out=tmp_path, data=HUB))
    assert {cell.run.data.field for cell in planned.cells} == {"en"}  # type: ignore[attr-defined]


def test_one_text_in_the_place_of_a_corpus(tmp_path: Path) -> None:
    """Of an item that reads plain text; the others are not run, and say why."""
    text = tmp_path / "my.txt"
    text.write_text("some words")
    assert found(corpus("captions"), text) == ({"data.source": str(text)}, "the text my.txt")
    assert found(corpus("iwslt14"), text)[1] == (
        "no data: my.txt is one text, and this item reads iwslt14-de-en/ below --data FOLDER"
    )
    planned = plan_item(ITEMS["normformer2021/gradients-fig3"], Asked(out=tmp_path, data=text))
    assert {cell.run.data.source for cell in planned.cells} == {str(text)}  # type: ignore[attr-defined]


def test_the_compare_that_makes_the_same_runs(tmp_path: Path) -> None:
    """Read back, the line on the page plans the item's own runs, rates and all."""
    planned = plan_item(ITEMS["normformer2021/gradients-fig3"], Asked(out=tmp_path, overrides=("training.steps=200",)))
    words = shlex.split(planned.compare)
    assert words[:2] == ["isograd", "compare"]
    (before, *arms) = " ".join(words[3 : words.index("--seeds")]).split(" --arm ")
    seeds = [int(word) for word in words[words.index("--seeds") + 1 :]]
    made = plan(tmp_path, load_run(path_of(words[2]), before.split()), [arm.split() for arm in arms], seeds)
    assert {one.run.as_dict()["training"]["lr"] for one in made} == {5e-3, 1e-3}
    assert {replace(one.run, name=None) for one in made} == {replace(cell.run, name=None) for cell in planned.cells}


def _slow_is_higher(found: Rows) -> Any:
    return judge.paired(found, "final_loss", "fast", "slow", "lower")


def tiny(folder: Path, text: Path, **changes: Any) -> Item:
    """An item of four runs of six steps: a tenth of a rate falls less far."""
    runs = Runs(
        recipe=str(recipe(folder, text=text, axes=None)),
        arms={"fast": ("pre-ln", "training.lr=1e-2"), "slow": ("pre-ln", "training.lr=1e-5")},
        seeds=(1, 2),
    )
    settings = {
        "title": "a rate",
        "claim": "Rates matter.",
        "published": (Published(label="loss", value=1.0, tag="paper"),),
        "size_paper": "large",
        "size_here": "tiny",
        "rule": "lower",
        "judge": _slow_is_higher,
        "runs": (runs,),
        "run_charts": ("loss",),
        **changes,
    }
    return Item(id="xiong2020/tiny", **settings)


@pytest.fixture
def item(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> Item:
    found = tiny(tmp_path, text)
    monkeypatch.setitem(ITEMS, found.id, found)
    return found


def test_from_runs_to_page(item: Item, tmp_path: Path) -> None:
    """Runs, verdict by the rule, files; the second time nothing is trained, another item takes the same runs."""
    out = tmp_path / "out"
    command = ["reproduce", item.id, "--out", str(out), "--jobs", "1", "--json"]
    code, said, _ = called(*command)
    (result,) = json.loads(said)["items"]
    assert (code, result["verdict"], [one["n"] for one in result["ours"]]) == (0, "same direction", [2, 2])
    folder = out / "items" / item.id
    written = read_rows(folder / "rows.csv")
    outcomes = {path.parent.name: json.loads(path.read_text()) for path in out.glob("cells/*/outcome.json")}
    assert sorted(outcomes) == sorted(result["cells"]) and len(outcomes) == 4
    losses = sorted(outcome["final_loss"] for outcome in outcomes.values())
    assert sorted(row["final_loss"] for row in written) == pytest.approx(losses, rel=1e-12)
    page = (folder / "item.html").read_text()
    for said_there in (item.claim, "Same direction", "xiong2020/tiny", "4 runs", result["reason"]):
        assert said_there in page
    before = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/outcome.json")}
    assert called(*command)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("cells/*/outcome.json")} == before


def test_the_index_names_every_item_and_links_its_section(item: Item, tmp_path: Path) -> None:
    """Every link leads to a section or a file that is there; another run of the command changes nothing, also where the
    runs are not any more."""
    out, index = tmp_path / "out", tmp_path / "index"
    assert called("reproduce", item.id, "--out", str(out), "--jobs", "1")[0] == 0
    assert called("reproduce", "--index", str(index), "--out", str(out))[0] == 0
    files = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    pages = {path.name: content.decode() for path, content in files.items() if path.suffix == ".md"}
    assert pages.keys() == {"README.md", *(f"{paper}.md" for paper in PAPERS)}
    for name, text in pages.items():
        for file, _, place in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", text)):
            assert (index / file).is_file() or not file, (name, file)
            assert not place or f"\n## {place}\n" in pages[file or name], (name, file, place)
    assert all(f"| [{one}](" in pages["README.md"] for one in ITEMS) and "1 *same direction*" in pages["README.md"]
    page = pages["xiong2020.md"]
    section = page[page.index("## tiny\n") :]
    assert item.claim in section and item.rule in section and "| in the paper | here |" in section
    assert "| loss: **1** | " in section and "(xiong2020-tiny-loss.svg)" in section
    assert "[Runs, 4 lines](rows/xiong2020-tiny.csv)" in section
    result = json.loads((out / "items" / item.id / "result.json").read_text())
    stored = json.loads((index / "results.json").read_text())[item.id]
    assert (stored["verdict"], stored["runs"]) == ("same direction", 4)
    assert str(tmp_path) not in "".join(pages.values()) and result["reason"] in section
    runs = read_rows(index / "rows/xiong2020-tiny.csv")
    assert [(run["arm"], run["seed"]) for run in runs] == [("fast", 1), ("slow", 1), ("fast", 2), ("slow", 2)]
    for place in (out, tmp_path / "elsewhere"):
        assert called("reproduce", "--index", str(index), "--out", str(place))[0] == 0
        assert {path: path.read_bytes() for path in index.rglob("*") if path.is_file()} == files
    _with_damaged_files(out / "items" / item.id, ["reproduce", "--index", str(index), "--out", str(out)])


def test_the_index_keeps_what_is_elsewhere_and_earlier_verdicts(item: Item, tmp_path: Path) -> None:
    """What another machine has found stays, and a verdict that changes leaves its line; the same one leaves none."""
    out, index = tmp_path / "out", tmp_path / "index"
    command = ("reproduce", item.id, "--out", str(out), "--index", str(index), "--jobs", "1")
    assert called(*command)[0] == 0
    stored = index / "results.json"
    content = json.loads(stored.read_text())
    assert content[item.id]["earlier"] == [] and content[item.id]["setup"] == item.setup()
    elsewhere = "xiong2020/warmup-fig2"
    old = content[item.id] | {"verdict": "opposite", "reason": "It was found before.", "date": "2026-01-02"}
    stored.write_text(json.dumps({elsewhere: old | {"setup": "another"}, item.id: old}))
    for _ in range(2):
        assert called(*command)[0] == 0
    content = json.loads(stored.read_text())
    assert [one["verdict"] for one in content[item.id]["earlier"]] == ["opposite"]
    assert content[elsewhere]["verdict"] == "opposite"
    text, page = ((index / name).read_text() for name in ("README.md", "xiong2020.md"))
    assert "opposite (its setup has changed since)" in text and "1 *same direction*" in text
    assert "- **Earlier**, 2026-01-02, commit" in page and "*opposite*: It was found before." in page
    stored.write_text("{")
    assert "results.json is damaged" in refused(*command[:1], "--index", str(index), "--out", str(out))


def test_all_takes_what_has_not_ended(item: Item, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item with a result of today's setup is left out; one whose rule was changed since is run again."""
    monkeypatch.setattr("isograd.papers.reproduce.registry.ITEMS", {item.id: item})
    command = ("reproduce", "--all", "--out", str(tmp_path), "--json", "--cores", str(min(os.sched_getaffinity(0))))
    before = os.sched_getaffinity(0)
    try:
        index = ("--index", str(tmp_path / "index"))
        assert [len(json.loads(called(*command, *index)[1])["items"]) for _ in range(2)] == [1, 0]
        called("reproduce", *index, "--out", str(tmp_path))
        elsewhere = [str(tmp_path / "another") if word == str(tmp_path) else word for word in command]
        assert json.loads(called(*elsewhere, *index)[1])["items"] == []
        changed = replace(item, rule=f"{item.rule} More.")
        monkeypatch.setattr("isograd.papers.reproduce.registry.ITEMS", {item.id: changed})
        assert len(json.loads(called(*command)[1])["items"]) == 1 and len(os.sched_getaffinity(0)) == 1
    finally:
        os.sched_setaffinity(0, before)
    assert "--cores 99: this process may be pinned to" in refused(*command[:-1], "99")


def _with_damaged_files(folder: Path, command: list[str]) -> None:
    """The file is named; changed settings are."""
    whole = {name: (folder / name).read_bytes() for name in ("result.json", "rows.csv")}
    for name, content in whole.items():
        for damaged in (b"", content[: len(content) // 2], b"\xff\x00", b"{}", b"[]"):
            (folder / name).write_bytes(damaged)
            assert f"{name} is damaged" in refused(*command)
        (folder / name).write_bytes(content)
    changed = json.loads(whole["result.json"]) | {"changed": ["training.steps=3"]}
    (folder / "result.json").write_text(json.dumps(changed))
    assert called(*command)[0] == 0
    index, page = (Path(command[2]) / name for name in ("README.md", "xiong2020.md"))
    assert (
        "1 of them at other settings" in index.read_text() and "same direction (other settings: " in index.read_text()
    )
    assert "**Same direction (other settings: training.steps=3).**" in page.read_text()


def test_full_is_forecast_and_refused(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the sizes of the recipe; without a GPU, where memory is too small, and without its data it is not started."""
    big = recipe(tmp_path, text=text, axes=None, file="full.yaml", arms=[["post-ln"], ["pre-ln"]])
    found = tiny(tmp_path, text, full=Full(recipe=str(big), devices=2))
    monkeypatch.setitem(ITEMS, found.id, found)
    command = ["reproduce", found.id, "--full", "--out", str(tmp_path / "out")]
    content = json.loads(called(*command, "--json")[1])[found.id]
    assert (content["devices"], len(content["runs"]), content["lacking"]) == (2, 4, None)
    whole = sum(one["flops"] for one in content["runs"]) / (2 * 1e14) / 3600
    assert content["hours"] == pytest.approx(whole, rel=1e-12) and "hours in all" in called(*command)[1]
    assert "this machine has no GPU" in refused(*command, "--run")
    assert "the forecast does not fit" in refused(*command, "--run", "--world-size", "1", "model.width=16384")
    lost = f"data.source={tmp_path / 'lost.txt'}"
    assert "data is missing" in refused(*command, "--run", "--world-size", "1", lost)
    assert "add --full" in refused("reproduce", found.id, "--run")
    assert not (tmp_path / "out").exists()
    monkeypatch.setitem(ITEMS, found.id, tiny(tmp_path, text))
    assert "has no recipe of the paper's size" in refused(*command)


@pytest.mark.slow
def test_full_runs_under_torchrun(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs on two processes; the second time neither is trained again."""
    big = recipe(tmp_path, text=text, axes=None, file="full.yaml", arms=[["post-ln"], ["pre-ln"]], seeds=[1])
    found = tiny(tmp_path, text, full=Full(recipe=str(big)))
    monkeypatch.setitem(ITEMS, found.id, found)
    command = ["reproduce", found.id, "--full", "--run", "--world-size", "2", "--out", str(tmp_path / "out")]
    assert called(*command)[0] == 0
    ended = {path: path.read_bytes() for path in (tmp_path / "out/full").rglob("outcome.json")}
    assert [json.loads(one)["steps"] for one in ended.values()] == [6, 6]
    assert (tmp_path / "out/full" / found.id / "report.html").exists()
    assert called(*command)[0] == 0 and all(path.read_bytes() == one for path, one in ended.items())


def test_wrong_use(item: Item, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert "did you mean 'xiong2020/tiny'?" in refused("reproduce", "xiong2020/tny", *out)
    assert "did you mean 'xiong2020'?" in refused("reproduce", "xiong202", *out)
    assert "did you mean 'xiong2020/warmup-fig2'?" in refused("reproduce", "warmpu-fig2", *out)
    assert "xiong2020/depth-gradients-fig3, normformer2021/gradients-fig3" in refused("reproduce", "FIG3", *out)
    assert chosen(["admin2020/"]) == chosen(["admin2020"])
    assert "name an item" in refused("reproduce", *out)
    assert "no such folder" in refused("reproduce", item.id, "--data", str(tmp_path / "none"), *out)
    assert "did you mean 'model.layers'?" in refused("reproduce", item.id, "model.layrs=1", *out)
    assert not (tmp_path / "out").exists()


def test_list(item: Item) -> None:
    code, out, err = called("reproduce", "--list", "--json")
    listed = json.loads(out)
    assert (code, err, list(listed)) == (0, "", [one.id for one in by_paper()])  # main tables first
    assert listed[item.id]["command"] == f"isograd reproduce {item.id}"
    assert item.id in called("reproduce", "--list")[1]


@pytest.mark.slow
def test_the_list_says_what_has_run(item: Item, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")]

    def states() -> dict[str, str]:
        listed = json.loads(called("reproduce", "--list", "--json", *out)[1])
        return {name: one["state"] for name, one in listed.items()}

    assert states()[item.id] == "not run yet"
    assert "have not run in" in called("reproduce", "--list", *out)[1]
    assert called("reproduce", item.id, *out)[0] == 0
    file = next((tmp_path / "out").rglob("result.json"))
    result = json.loads(file.read_text())
    now = states()
    assert now.pop(item.id) == f"{result['verdict']} ({result['date']})"
    assert {*now.values()} <= {"not run yet", "cannot run"}
    file.write_text(json.dumps(result | {"setup": "another"}))
    assert states()[item.id].endswith(", by another setup than today's)")


def test_several_items_go_on_after_one_that_fails(item: Item, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measure that raises, one that has no data, and one that works: exit code 1, and the last has its page."""
    needs = ItemText(name="none", folder="none", files=("x",), settings={})
    other = {
        "xiong2020/bad": replace(item, id="xiong2020/bad", measure=_bad),
        "xiong2020/lacks": replace(item, id="xiong2020/lacks", corpus=needs),
    }
    for name, one in other.items():
        monkeypatch.setitem(ITEMS, name, one)
    out = tmp_path / "out"
    code, said, err = called("reproduce", *other, item.id, "--out", str(out), "--jobs", "1", "--json")
    found = {one["item"]: one for one in json.loads(said)["items"]}
    assert code == 1 and "ZeroDivisionError" in err and "[3/3] xiong2020/tiny" in err
    assert [found[name]["verdict"] for name in (*other, item.id)] == [None, "not run", "same direction"]
    assert found["xiong2020/lacks"]["reason"] == "no data: --data FOLDER with none/ (none)"
    assert not (out / "items/xiong2020/bad/result.json").exists()
    assert (out / "items" / item.id / "item.html").exists()
    before = (out / "items" / item.id / "result.json").read_bytes()
    monkeypatch.setitem(ITEMS, item.id, replace(item, corpus=needs))  # its data is gone: the earlier result stays
    code, said, err = called("reproduce", item.id, "--out", str(out), "--jobs", "1", "--json")
    assert (code, json.loads(said)["items"][0]["verdict"]) == (0, "not run") and "the earlier result" in err
    assert (out / "items" / item.id / "result.json").read_bytes() == before


def _bad(context: Context) -> Rows:
    return [{"a": 1 / 0}]


@pytest.mark.slow
def test_what_takes_long_is_computed_once(item: Item, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the next command; with other runs it is computed again."""
    count = tmp_path / "count"

    def measure(context: Context) -> Rows:
        def long() -> int:
            with count.open("a") as file:
                file.write("1")
            return len(context.of(arm="fast"))

        return [{**row, "fast": context.once("how many", long)} for row in context.rows()]

    monkeypatch.setitem(ITEMS, item.id, replace(item, measure=measure))
    command = ["reproduce", item.id, "--out", str(tmp_path / "out"), "--jobs", "1"]
    for words, times in (([], 1), ([], 1), (["--seeds", "3"], 2)):
        assert called(*command, *words)[0] == 0 and count.read_text() == "1" * times
    folder = tmp_path / "out/items" / item.id
    assert [row["fast"] for row in read_rows(folder / "rows.csv")] == [1.0, 1.0]
    for kept in (folder / "kept").iterdir():
        kept.write_bytes(kept.read_bytes()[:9])
    assert called(*command, "--seeds", "3")[0] == 0 and count.read_text() == "111"


@pytest.mark.slow
def test_killed_and_continued(tmp_path: Path, text: Path) -> None:
    """An item of the table, killed in its second run: the first is not trained again, and the rows are those of one
    that nothing has disturbed, bit for bit."""
    tiny = ["model.layers=2", "model.width=16", "training.steps=40", "training.checkpoint_every=10"]
    command = [
        "reproduce",
        "normformer2021/scales-fig4",
        *tiny,
        f"data.source={text}",
        "--seeds",
        "1",
        "2",
        "--jobs",
        "1",
    ]
    out, whole = tmp_path / "out", tmp_path / "whole"
    killed = started([*command, "--out", str(out)], held_after=25, HELD_IN=out / "cells", HELD_ENDED=1)
    wait_until_held(killed, out / "cells", [20, 40])  # rows are written with a checkpoint
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    (first,) = out.glob("cells/*/outcome.json")
    before = first.stat().st_mtime_ns
    assert not (out / "items").exists() and gone(killed.pid)
    for folder in (out, whole):
        assert called(*command, "--out", str(folder))[0] == 0
    assert first.stat().st_mtime_ns == before
    rows, undisturbed = ((folder / "items/normformer2021/scales-fig4/rows.csv").read_bytes() for folder in (out, whole))
    assert rows == undisturbed and rows.count(b"\n") > 3


def test_the_pages_in_docs_are_of_this_table(tmp_path: Path) -> None:
    """Where they are not: isograd reproduce --index docs/results/reproduce --out FOLDER."""
    stored = Path(__file__).parents[2] / "docs/results/reproduce"
    shutil.copy(stored / "results.json", tmp_path)
    write_index([one.about() for one in by_paper()], tmp_path / "none", tmp_path)
    for page in tmp_path.glob("*.md"):
        assert (stored / page.name).read_text(encoding="utf-8") == page.read_text(encoding="utf-8"), page.name
    assert {page.name for page in stored.glob("*.md")} == {page.name for page in tmp_path.glob("*.md")}
    kept = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    undecided = [name for name, one in kept.items() if one["verdict"] in ("opposite", "not seen")]
    assert [name for name in undecided if not ITEMS[name].decided] == []


def test_a_name_on_the_hub_may_end_in_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: asked.append((*names, options["split"])))
    hub.load_dataset("wmt/wmt14/de-en", split="train")
    hub.load_dataset("bentrevett/multi30k", split="validation")
    assert asked == [("wmt/wmt14", "de-en", "train"), ("bentrevett/multi30k", None, "validation")]
