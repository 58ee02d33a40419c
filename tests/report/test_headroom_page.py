"""The headroom map from headroom.json alone: the page, the figure, and sentences by the one rule."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from isograd.errors import UserError
from isograd.lab.report.pages.headroom import (
    boundaries,
    comparisons,
    findings,
    headline,
    headroom_map,
    places,
    read_headroom,
    write_headroom,
)
from tests.report.headroom_written import FIVE, Edges, headroom_of, write
from tests.report.test_page import checked
from tests.study.arms import called, refused

TWO: Edges = {
    ("post-ln", 0): (4.1e-4, 5.2e-4, 4.6e-4),
    ("post-ln", 50): (1.5e-3, 1.9e-3, 1.7e-3),
    ("pre-ln", 0): (0.04, 0.05, 0.055),
    ("pre-ln", 50): (0.05, 0.07, 0.06),
}


def said(content: dict[str, Any], start: str) -> str:
    """The one sentence that begins so."""
    (found,) = [line for line in findings(content) if line.startswith(start)]
    return found


def test_the_page_of_five_placements(tmp_path: Path) -> None:
    page = write_headroom(write(tmp_path, headroom_of(FIVE, warmup=50, placement="post-ln")))
    assert page == tmp_path / "report/report.html"
    checked(page)
    text = page.read_text()
    assert all(name in text for name, _ in FIVE) and "LR finder" not in text
    assert {p.name for p in page.parent.iterdir()} == {
        *("report.html", "headroom.png", "headroom.svg", "headroom.csv", "results.csv", "results.json", "tables")
    }
    assert {p.stem for p in page.parent.glob("tables/*")} == {"headroom", "comparisons", "runs", "settings"}


def test_results_are_a_row_per_training(tmp_path: Path) -> None:
    content = headroom_of(TWO)
    out = write_headroom(write(tmp_path, content), tmp_path / "paper").parent
    results = json.loads((out / "results.json").read_text())
    trials = [(c["placement"], c["warmup"], c["seed"], t["lr"]) for c in content["chains"] for t in c["tried"]]
    assert [(r["placement"], r["warmup"], r["seed"], r["lr"]) for r in results] == trials
    for row in results:
        if row["verdict"] == "finished":
            assert row["lr"] <= row["boundary_low"] < row["boundary_high"]
    table = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert [float(row["lr"]) for row in table] == [row["lr"] for row in results]


def test_the_margin_of_the_users_setting() -> None:
    """By hand, from the brackets; on either side, and inside."""
    content = headroom_of(TWO, lr=1e-3, warmup=0, placement="pre-ln")
    ends = [c["boundary"] for c in content["chains"] if (c["placement"], c["warmup"]) == ("pre-ln", 0)]
    middle = sorted((end["low"] * end["high"]) ** 0.5 for end in ends)[1]
    low, high = min(end["low"] for end in ends), max(end["high"] for end in ends)
    times = f"{middle / 1e-3:.2g} times ({low / 1e-3:.2g} to {high / 1e-3:.2g})"
    margin = f"{times} below the boundary of pre-ln, which is {middle:.3g} (n = 3)."
    assert f"Your LR 0.001 with warm-up 0 is {margin}" in headline(content)
    above = headline(headroom_of(TWO, lr=0.4, warmup=0, placement="pre-ln"))
    assert re.search(r" times \(.* to .*\) above the boundary of pre-ln, ", above) and "below" not in above
    inside = headline(headroom_of(TWO, lr=0.047, warmup=0, placement="pre-ln"))
    assert re.search(r"inside the interval of the boundary of pre-ln, which is 0.05\d+ \(n = 3\)", inside)
    elsewhere = headline(headroom_of(TWO, lr=1e-3, warmup=20, placement="pre-ln"))
    assert elsewhere == "Your warm-up of 20 was not tried; LR 0.001 has no margin here."
    another = headline(headroom_of(TWO, lr=1e-3, warmup=0, placement="admin"))
    assert another.startswith("Your LR 0.001 with warm-up 0, against the boundaries: post-ln ")


def nine(edges: Edges) -> Edges:
    """Each boundary with nine seeds, three times those of three: enough for ten comparisons."""
    return {name: [edge * (1 + i / 50) for i in range(3) for edge in three] for name, three in edges.items()}


def test_the_rule_decides_who_is_above() -> None:
    """Nine seeds apart, seeds that disagree, and three seeds, with which nothing is above anything."""
    apart = headroom_of(nine(TWO))
    assert re.fullmatch(
        r"warm-up 0: lower boundary than pre-ln: post-ln by \d+ times \(n = 9\)\.", said(apart, "warm-up 0:")
    )
    near: Edges = {("post-ln", 0): (0.01, 0.02, 0.04), ("pre-ln", 0): (0.02, 0.03, 0.03)}
    line = said(headroom_of(nine(near)), "warm-up 0:")
    assert line == "warm-up 0: no difference seen from pre-ln: post-ln (n = 9)."
    line = said(headroom_of(TWO), "warm-up 0:")
    assert line == "warm-up 0: too few seeds to compare with pre-ln: post-ln (lower with 3 of 3 seeds)."
    (why,) = [line for line in findings(headroom_of(TWO)) if "Holm" in line]
    assert why.startswith("p is corrected for 4 comparisons") and why.endswith("it takes 8 seeds.")


def test_warm_ups_of_a_placement() -> None:
    content = headroom_of(nine(TWO))
    assert said(content, "post-ln: ") == "post-ln: lower boundary than warm-up 50: warm-up 0 by 4 times (n = 9)."
    assert said(content, "pre-ln: ").startswith("pre-ln: ")


def test_all_pairs_are_corrected_for() -> None:
    """The highest of five is chosen by its boundary: ten pairs stand side by side, not four."""
    (why,) = [line for line in findings(headroom_of(FIVE)) if "Holm" in line]
    warmups = len({warmup for _, warmup in FIVE})
    assert f"corrected for {10 * warmups + 5 * (warmups * (warmups - 1) // 2)} comparisons" in why


def test_open_ends() -> None:
    """Above the highest rate, and nothing that trains: bounds, and no number is made up."""
    ends: Edges = {("post-ln", 0): (0, 0, 0), ("pre-ln", 0): (5, 5, 5), ("admin", 0): (0.01, 0.011, 0.012)}
    content = headroom_of(ends, lr=1e-3)
    table = {line[0]: dict(zip(boundaries(content).header, line, strict=True)) for line in boundaries(content).lines}
    assert table["post-ln"]["boundary (LR)"] == "none" and table["pre-ln"]["boundary (LR)"] == "above 1"
    assert table["post-ln"]["your LR"].startswith("far (at least ")
    assert table["pre-ln"]["your LR"] == "far (at least 1,000 times) below"
    assert said(content, "warm-up 0:").startswith("warm-up 0: too few seeds to compare with pre-ln: admin (lower")
    sizes = {one.mine: one.size for one in comparisons(content) if one.theirs == "pre-ln"}
    assert re.fullmatch(r"at least \d+ times", sizes["admin"]) and sizes["post-ln"] == "none trains"
    assert not re.search(r"\b(inf|nan|None)\b", " ".join(findings(content)) + str(boundaries(content).lines))


def changed(content: dict[str, Any], index: int, **boundary: Any) -> dict[str, Any]:
    content["chains"][index]["boundary"] |= boundary
    return content


def test_what_is_odd_is_said() -> None:
    plain = findings(headroom_of(TWO))
    assert not [line for line in plain if "monotone" in line or "stopped" in line]
    again = changed(headroom_of(TWO), 1, again=[4e-3], under=[1e-5])
    who = "post-ln, warm-up 0, seed 2 is not monotone"
    assert any(line.startswith(f"{who}: trained again at 0.004, above 0.000") for line in findings(again))
    assert any("seed 2 is not monotone: diverged at 1e-05, below" in line for line in findings(again))
    stopped = changed(headroom_of(TWO), 0, kind="stopped", low=None, high=None)
    stopped["chains"][0]["tried"][-1] |= {"verdict": "failed", "error": "no room"}
    assert any(re.search(r"seed 1 stopped: the run at [\d.e-]+ failed \(no room\)", line) for line in findings(stopped))
    short = headroom_of(TWO)
    short["chains"][0]["tried"] = [
        one | ({"verdict": "undecided"} if one["lr"] == short["chains"][0]["boundary"]["high"] else {})
        for one in short["chains"][0]["tried"]
    ]
    assert any("is undecided; with more training.steps" in line for line in findings(short))
    assert not any("undecided" in line for line in findings(headroom_of(TWO)))
    running = headroom_of(TWO)
    running["chains"][2]["boundary"] = None
    assert headline(running).startswith("1 of 12 chains are not decided yet. Your LR")


def test_the_figure_shows_every_training_and_the_boundary() -> None:
    """Marks at the rates that were tried; the line through the medians; a star at the user's setting."""
    content = headroom_of(TWO, lr=1e-3, warmup=50)
    drawn = headroom_map(content)
    assert [axes.get_title() for axes in drawn.panels] == ["post-ln", "pre-ln"]
    for axes, name in zip(drawn.panels, ("post-ln", "pre-ln"), strict=True):
        tried = sorted(t["lr"] for c in content["chains"] if c["placement"] == name for t in c["tried"])
        marks = [line for line in axes.lines if line.get_marker() in ("o", "x", "_") and len(values(line)) == 1]
        assert sorted(value for line in marks for value in values(line)) == pytest.approx(tried)
        (line,) = [line for line in axes.lines if line.get_linestyle() == "-"]
        medians = [place.level.middle for place in places(content) if place.placement == name and place.level]
        assert values(line) == pytest.approx(medians) and axes.get_yscale() == "log"
        (star,) = [line for line in axes.lines if line.get_marker() == "*"]
        assert (list(np.asarray(star.get_xdata())), values(star)) == ([50], [1e-3])
        assert inside(axes, tried)


def values(line: Any) -> list[float]:
    return [float(y) for y in np.asarray(line.get_ydata())]


def inside(axes: Axes, rates: list[float]) -> bool:
    low, high = axes.get_ylim()
    return low < min(rates) and max(rates) < high


@pytest.mark.slow
def test_one_warm_up_and_many_placements(tmp_path: Path) -> None:
    """A region as wide as its panel; a name with a dollar sign is no formula."""
    many: Edges = {(f"mine-{i}$x$", 0): (0.01 * 2**i,) for i in range(7)}
    page = write_headroom(write(tmp_path, headroom_of(many)))
    checked(page)
    drawn = headroom_map(headroom_of({("pre-ln", 0): (0.01,)}))
    (axes,) = drawn.panels
    (line,) = [line for line in axes.lines if line.get_linestyle() == "-"]
    assert len(values(line)) == 2 and axes.get_xlim()[0] < 0 < axes.get_xlim()[1]


def test_before_anything_is_decided(tmp_path: Path) -> None:
    """As after the first round."""
    content = headroom_of(TWO)
    for chain in content["chains"]:
        chain["tried"], chain["boundary"] = chain["tried"][:1], None
    for row in content["levels"]:
        row["level"] = None
    checked(write_headroom(write(tmp_path, content)))
    assert {line[2] for line in boundaries(content).lines} == {"unknown"}


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"chains": [], "levels": 3}',
        json.dumps({**headroom_of(TWO), "chains": [{"placement": "pre-ln"}]}),
        json.dumps({**headroom_of(TWO), "levels": [{"placement": "pre-ln", "warmup": 0, "level": {"n": 3}}]}),
        json.dumps({**headroom_of(TWO), "base": {}}),
        json.dumps({**headroom_of(TWO), "search": {"low": 1e-5}}),
    ],
)
def test_a_file_that_is_no_search(tmp_path: Path, broken: str) -> None:
    (tmp_path / "headroom.json").write_text(broken)
    with pytest.raises(ValueError, match=r"headroom.json: not what study --find max-lr writes"):
        write_headroom(tmp_path)
    assert not (tmp_path / "report").exists()
    with pytest.raises(ValueError, match=r"no headroom.json in it"):
        read_headroom(tmp_path / "nowhere")


@pytest.mark.parametrize("word", ["broke", "stuck"])
def test_words_of_an_earlier_version_are_refused(tmp_path: Path, word: str) -> None:
    text = json.dumps(headroom_of(TWO))
    assert '"verdict": "collapsed"' in text
    (tmp_path / "headroom.json").write_text(text.replace('"collapsed"', f'"{word}"'))
    with pytest.raises(UserError, match=f"verdict '{word}' is of an earlier version of isograd; search again"):
        write_headroom(tmp_path)


@pytest.mark.slow
def test_the_page_needs_no_torch(tmp_path: Path) -> None:
    write(tmp_path, headroom_of(TWO))
    code = (
        "import sys, pathlib; from isograd.lab.report.pages.headroom import write_headroom;"
        f"write_headroom(pathlib.Path({str(tmp_path)!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
def test_the_command_makes_the_page_anew(tmp_path: Path) -> None:
    """`isograd report` on the folder of a search, with the same page; a broken file is one line."""
    content = headroom_of(TWO)
    page = write_headroom(write(tmp_path, content)).read_text()
    (tmp_path / "cells").mkdir()
    code, out, _ = called("report", str(tmp_path), "--out", str(tmp_path / "paper"), "--json")
    told = json.loads(out)
    assert code == 0 and (tmp_path / "paper/report.html").read_text() == page
    assert told["findings"] == findings(content) and told["levels"] == content["levels"]
    code, out, _ = called("report", str(tmp_path))
    assert code == 0 and findings(content)[0].split(";")[0] in " ".join(out.split())
    (tmp_path / "headroom.json").write_text("{}")
    assert "not what study --find max-lr writes" in refused("report", str(tmp_path))
