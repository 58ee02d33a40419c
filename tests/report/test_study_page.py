"""The page of a study: what a rule says of every cell is found again, whatever was swept."""

import csv
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import binomtest  # type: ignore[import-untyped]

from isograd.lab.report.study.arms import against_no_warmup, design_of, found_in, in_line, showcase, study_arms, tuned
from isograd.lab.report.study.files import read_study
from isograd.lab.report.study.page import (
    StudyReport,
    comparison_section,
    main_section,
    sections,
    unlearnt,
    verdicts,
    warmup_section,
    write_study_report,
)
from isograd.lab.report.study.tables import arms_table, rates_table
from isograd.lab.report.style import svg
from tests.report.study_written import BASE, PLACEMENTS, Row, Rule, warmup_rule, write_study
from tests.report.test_page import checked
from tests.report.written import ENTROPY
from tests.study.arms import called

RATES = [3e-4, 1e-3, 3e-3]
WARMUP: Row = {"model.placement": PLACEMENTS, "training.warmup": [0, 50, 150], "training.lr": RATES}
SMALL: Row = {**BASE, "model": {**BASE["model"], "layers": 2}}


@pytest.fixture(scope="module")
def warmup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study") / "warmup", WARMUP, warmup_rule)


@pytest.fixture(scope="module")
def report(warmup: Path) -> StudyReport:
    return write_study_report(warmup)


def test_the_page_stands_alone(report: StudyReport) -> None:
    page = checked(report.page)
    assert report.page.parent.name == "report"
    assert all(" ".join(sentence.split()) in page.text for sentence in report.summary)
    for name in ("map", "equal-loss", "learning-rates", "losses", "gradients"):
        assert (report.page.parent / f"{name}.svg").exists() and (report.page.parent / f"{name}.png").exists()
    for what in ("sha256 of the data", "torch", "cells per hour", "training.lr", "same data order"):
        assert what in page.text
    assert "Left out" not in page.text


def test_numbers_by_hand(report: StudyReport) -> None:
    """Medians by Python's own statistics, rates by scipy, from the rule itself."""
    arms = {(a["model.placement"], a["training.warmup"], a["training.lr"]): a for a in report.results["arms"]}
    assert len(arms) == 45
    for (placement, warm, rate), arm in arms.items():
        ends = _ends(placement, warm, rate)
        losses = [end if isinstance(end, float) else {"collapsed": 3.02, "diverged": math.inf}[end] for end in ends]
        assert arm["median"] == pytest.approx(statistics.median(losses))
        assert (arm["interval"]["low"], arm["interval"]["high"]) == pytest.approx((min(losses), max(losses)))
        for how in ("collapsed", "diverged"):
            want = binomtest(ends.count(how), 3).proportion_ci(method="wilson")
            got = arm[how]
            assert (got["count"], got["rate"]["low"]) == (ends.count(how), pytest.approx(want.low, abs=1e-12))
            assert got["rate"]["high"] == pytest.approx(want.high)


def _ends(placement: str, warm: int, rate: float) -> list[float | str]:
    values = {"model.placement": placement, "training.warmup": warm, "training.lr": rate}
    return [warmup_rule(values, seed) for seed in (1, 2, 3)]


def test_what_trained_is_in_a_table(report: StudyReport, warmup: Path) -> None:
    counted = [_ends("post-ln", 0, rate).count("collapsed") for rate in RATES]
    lines = {line[:2]: line[-1] for line in map(tuple, rates_table(found_in(read_study(warmup))).lines)}
    assert lines["post-ln", "no warm-up"] == f"{9 - sum(counted)} finished, {sum(counted)} collapsed"
    assert lines["pre-ln", "no warm-up"] == "9 finished"
    assert report.summary[0].startswith("All 135 cells have ended (3 seeds): 124 finished, 7 collapsed, 4 diverged; lo")
    assert "lowest median validation loss: normformer, warm-up 150, LR 0.001, " in report.summary[0]


def test_each_at_its_own_best_rate(report: StudyReport) -> None:
    """Pre-ln is best at 0.003, an end of the sweep; at 0.001, where the others are best, it would have lost more."""
    by_rate = {rate: statistics.median(x for x in _ends("pre-ln", 50, rate) if isinstance(x, float)) for rate in RATES}
    assert min(by_rate, key=by_rate.__getitem__) == 3e-3
    found = {(c["arm"], tuple((c["under"] or {}).items())): c for c in report.results["comparisons"]}
    one = found["normformer, warm-up 50, LR 0.001", (("training.warmup", 50),)]
    mine, theirs = _ends("normformer", 50, 1e-3), _ends("pre-ln", 50, 3e-3)
    want = {str(s): m - t for s, m, t in zip((1, 2, 3), mine, theirs, strict=True)}  # type: ignore[operator]
    assert one["reference"] == "pre-ln, warm-up 50, LR 0.003"
    assert one["differences"] == pytest.approx(want)
    assert one["median"] == pytest.approx(statistics.median(want.values()))
    assert all(difference < 0 for difference in want.values())
    assert one["verdict"] == "too few seeds" and (one["p"], one["p_corrected"]) == (0.25, 1)
    assert any("An exact test of 3 seeds cannot give p below 0.25 (1 corrected)" in line for line in report.summary)
    edge = next(line for line in report.summary if line.startswith("Best learning rate at an end of the sweep"))
    assert edge.endswith(": post-ln; pre-ln.")


def test_each_warmup_against_none(warmup: Path, tmp_path: Path) -> None:
    """Of the same placement, each at its own best rate; post-ln's rate is another one without a warm-up."""
    found = found_in(read_study(warmup))
    pairs = {
        (one.mine.who, one.mine.values["training.warmup"]): one for one in against_no_warmup(found.chosen, found.design)
    }
    assert set(pairs) == {(who, warm) for who in PLACEMENTS for warm in (50, 150)}
    one = pairs["post-ln", 50]
    assert (one.mine.values["training.lr"], one.theirs.values["training.lr"]) == (1e-3, 3e-4)
    mine, theirs = _ends("post-ln", 50, 1e-3), _ends("post-ln", 0, 3e-4)
    without = [x if isinstance(x, float) else ENTROPY + 0.02 for x in theirs]
    want = {s: m - t for s, m, t in zip((1, 2, 3), mine, without, strict=True)}  # type: ignore[operator]
    assert one.found.differences == pytest.approx(want) and one.found.of == 10
    section = warmup_section(found)
    assert section is not None and section.table is not None and len(section.table.lines) == 10
    assert section.table.lines[0][:2] == ("post-ln, LR 0.001, warm-up 50", "post-ln, LR 0.0003, none")
    axes = {**WARMUP, "training.warmup": [50, 150]}
    never = found_in(read_study(write_study(tmp_path / "never", axes, warmup_rule, curves=False)))
    assert warmup_section(never) is None, "nothing trained without one"


def test_the_map_names_what_did_not_train(report: StudyReport) -> None:
    words = checked(report.page).text
    assert "3/3 collapsed" in words and "3/3 diverged" in words and "1/3 diverged" in words
    assert _map_has(report, ">2.072<") and not _map_has(report, ">3.020<")  # a collapsed square has a word, no number


def _map_has(report: StudyReport, number: str) -> bool:
    text = report.page.read_text()
    figure = text[text.index('id="part-map"') : text.index('id="part-rates"')]
    return number in figure


def test_a_loss_that_is_only_noise_has_no_winner(tmp_path: Path) -> None:
    """The negative control of `test_a_verdict_under_each_condition`: arms that differ in nothing but noise."""
    noise = [0.01, -0.02, 0.005, -0.01, 0.02]
    rule: Rule = lambda values, seed: 2.0 + noise[(seed + len(values["model.placement"])) % 5]  # noqa: E731
    axes: Row = {"model.placement": ["pre-ln", "post-ln", "admin"], "training.lr": [1e-3, 3e-3]}
    found = found_in(read_study(write_study(tmp_path / "noise", axes, rule, seeds=range(1, 9), base=SMALL)))
    said = verdicts(found)
    assert said[0] == "No difference seen from pre-ln, LR 0.001: post-ln, LR 0.001 (n = 8); admin, LR 0.001 (n = 8)."
    assert not any("lower validation" in line.lower() or "higher validation" in line.lower() for line in said)


def test_a_verdict_under_each_condition(tmp_path: Path) -> None:
    """Admin is worse by 0.1 and 0.3 at 2 and 4 layers, and not seen to differ at 6."""
    worse = {2: 0.1, 4: 0.3, 6: 0.0}

    def rule(values: Row, seed: int) -> float | str:
        more = worse[values["model.layers"]] if values["model.placement"] == "admin" else 0.0
        return 2.0 + more + 0.01 * (seed if values["model.placement"] == "admin" else 9 - seed)

    axes: Row = {"model.placement": ["pre-ln", "admin"], "model.layers": [2, 4, 6]}
    found = found_in(read_study(write_study(tmp_path / "depth", axes, rule, range(1, 9), SMALL, curves=False)))
    assert verdicts(found)[:3] == [
        "2 layers: higher validation loss than pre-ln: admin by 0.100 nats (n = 8).",
        "4 layers: higher validation loss than pre-ln: admin by 0.300 nats (n = 8).",
        "6 layers: no difference seen from pre-ln: admin (n = 8).",
    ]


def flat_rule(values: Row, seed: int) -> float | str:
    return 2.0 + 0.01 * seed


def layers_rule(values: Row, seed: int) -> float | str:
    """Post-ln at 6 layers: seed 1 diverges, 2 collapses."""
    broken: dict[int, str] = {1: "diverged", 2: "collapsed"}
    deep = values["model.placement"] == "post-ln" and values["model.layers"] == 6
    return broken.get(seed, 2.1) if deep else 2.0 + 0.01 * seed


@pytest.mark.parametrize(
    ("axes", "rule", "main", "words"),
    [
        ({"model.placement": ["post-ln", "pre-ln"], "model.layers": [2, 6]}, layers_rule, "against", "1/3"),
        ({"model.placement": ["post-ln", "pre-ln"], "training.lr": RATES}, flat_rule, "learning-rates", "0.0003"),
        ({"training.warmup": [0, 9], "training.lr": RATES, "model.layers": [2, 6]}, flat_rule, "map", "6 layers"),
        ({"training.clip": [0.1, 1.0]}, flat_rule, "against", "clip"),
        ({"model.norm": ["layernorm", "rmsnorm"]}, flat_rule, "seeds", "rmsnorm"),
    ],
)
def test_what_was_swept_decides_the_main_figure(tmp_path: Path, axes: Row, rule: Rule, main: str, words: str) -> None:
    found = sections(found_in(read_study(write_study(tmp_path / "study", axes, rule, base=SMALL))))
    assert found[0].name == main and found[0].figure is not None
    drawn = found[0].figure()
    assert drawn is not None
    assert words in svg(drawn, main)[0]
    assert any(one.name == "ratios" for one in found) == (main == "against")


def test_a_rate_at_which_nothing_trained_is_in_sight(tmp_path: Path) -> None:
    """At an end of the sweep, too: its marks stand above the panel, and the other rates where they belong."""
    rule: Rule = lambda values, seed: "collapsed" if values["training.lr"] == 3e-4 else 2.0 + 0.01 * seed  # noqa: E731
    axes: Row = {"model.placement": ["post-ln", "pre-ln"], "training.lr": [3e-4, 1e-3]}
    main = main_section(found_in(read_study(write_study(tmp_path / "study", axes, rule, base=SMALL))))
    assert main.name == "learning-rates" and main.figure is not None
    drawn = main.figure()
    assert drawn is not None
    low, high = drawn.panels[0].get_xlim()
    assert 2e-4 < low < 3e-4 and 1e-3 < high < 1.5e-3


def test_no_rate_is_best_where_a_collapse_ends_lower(tmp_path: Path) -> None:
    """A rate too small for its steps ends above the unigram entropy, and is called finished; its control ends below."""
    axes: Row = {"model.placement": ["post-ln", "pre-ln"], "training.lr": [1e-4, 1e-3]}

    def rule(values: Row, seed: int) -> float | str:
        if values["training.lr"] == 1e-3:
            return "collapsed"
        return 3.9 if values["model.placement"] == "post-ln" else 2.0

    found = found_in(read_study(write_study(tmp_path / "study", axes, rule, base=SMALL, curves=False)))
    assert not found.compared
    assert [line[1] for line in rates_table(found).lines] == [
        "none trained",
        "0.0001, the lowest of the sweep",
    ]


def test_all_collapsed_have_a_validation_loss_all_the_same(tmp_path: Path) -> None:
    rule: Rule = lambda values, seed: "collapsed"  # noqa: E731
    study = read_study(write_study(tmp_path / "study", {"training.lr": RATES}, rule, base=SMALL, curves=False))
    assert found_in(study).measure == "validation_loss"


def test_updates_are_told_where_they_differ(tmp_path: Path) -> None:
    """A budget in seconds or tokens buys one shape more of them than another."""
    axes: Row = {"model.placement": ["post-ln", "pre-ln"]}
    folder = write_study(tmp_path / "study", axes, flat_rule, base=SMALL, curves=False)
    found = found_in(read_study(folder))
    assert "updates" not in arms_table(found).header
    for outcome in folder.glob("cells/pre-ln*/outcome.json"):
        outcome.write_text(json.dumps({**json.loads(outcome.read_text()), "steps": 1234}))
    found = found_in(read_study(folder))
    header, *lines = arms_table(found)
    assert [line[header.index("updates")] for line in lines] == ["40", "1,234"]


def test_no_verdict_of_two_seeds(tmp_path: Path) -> None:
    """Neither in words nor in the table, be they ever so far apart."""
    rule: Rule = lambda values, seed: 2.0 + (values["model.placement"] == "admin") + 0.01 * seed  # noqa: E731
    axes: Row = {"model.placement": ["pre-ln", "admin"], "model.layers": [2, 4]}
    found = found_in(read_study(write_study(tmp_path / "study", axes, rule, seeds=(1, 2), base=SMALL, curves=False)))
    said = "too few seeds to compare with pre-ln: admin (higher with 2 of 2 seeds)."
    assert verdicts(found)[:2] == [f"2 layers: {said}", f"4 layers: {said}"]
    section = comparison_section(found)
    assert section and section.table and [line[-1] for line in section.table.lines] == ["too few seeds"] * 2


def test_arms_of_a_recipe(tmp_path: Path) -> None:
    """Names that mean something to HTML, matplotlib and a terminal are names."""
    arms: dict[str, Row] = {
        "pre-ln, no warm-up": {"model.placement": "pre-ln", "training.warmup": 0},
        "my [red]$x_1$<b>, clip 2": {"model.placement": "post-ln", "training.clip": 2},
    }
    folder = write_study(
        tmp_path / "arms", {"training.lr": [1e-3, 3e-3]}, flat_rule, arms=arms, base=SMALL, curves=False
    )
    code, out, _ = called("report", str(folder), "--reference", "pre-ln")
    assert code == 0 and "my [red]$x_1$<b>, clip 2" in out
    page = checked(folder / "report/report.html")
    assert "my [red]$x_1$<b>, clip 2" in page.text and "[post-ln, training.clip=2]" in page.text
    assert "Against pre-ln, no warm-up, seed by seed" in page.text


def test_a_study_under_way(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "begun", WARMUP, warmup_rule, ended=lambda i: i < 15, base=SMALL, curves=False)
    report = write_study_report(folder)
    assert report.summary[0].startswith("15 of 135 cells have ended")
    words = checked(report.page).text
    assert "not run" in words and "deepnorm 2." not in words  # a square of pre-ln; of deepnorm nothing has ended
    assert {cell["outcome"] for cell in report.results["cells"]} >= {"not ended", "finished"}
    folder = write_study(tmp_path / "none", {"training.lr": RATES}, flat_rule, ended=lambda i: False, base=SMALL)
    report = write_study_report(folder)
    assert report.summary == ["0 of 9 cells have ended (3 seeds)."] and checked(report.page)


def test_colours_hold_where_one_is_missing(tmp_path: Path) -> None:
    """Pre-ln has the look of the second in every figure, also where nothing of post-ln has ended."""
    folder = write_study(
        tmp_path / "one", {"model.placement": ["post-ln", "pre-ln"]}, flat_rule, ended=lambda i: i % 2 == 1
    )
    study = read_study(folder)
    design = design_of(study)
    arms = study_arms(study, design)
    ((_, shown),) = showcase(tuned(arms, design), arms, design)
    assert {who: arm.look for who, arm in in_line(shown, design).items()} == {"pre-ln": design.looks[1]}


def test_finished_is_not_learnt(tmp_path: Path) -> None:
    """A cell may end with a training loss that is none of a collapse, and know nothing of held-out text."""
    rule: Rule = lambda values, seed: 3.4 if seed == 1 and values["training.lr"] == 3e-3 else 2.0  # noqa: E731
    folder = write_study(tmp_path / "study", {"training.lr": [1e-3, 3e-3]}, rule, base=SMALL)
    found = found_in(read_study(folder))
    assert list(unlearnt(found)) == [
        "Finished, with a validation loss not below the unigram entropy, by those of the training text"
        " where a run does not record others: pre-ln, LR 0.003 (1 of 3 seeds)."
    ]


@pytest.mark.parametrize(("excess", "named"), [(0.1, True), (-0.2, False)])
def test_validation_text_has_a_unigram_loss_of_its_own(tmp_path: Path, excess: float, named: bool) -> None:
    """Of rarer tokens, say: a loss above the training text's entropy may be well below what frequencies give there."""
    folder = write_study(tmp_path / "study", {"training.lr": [1e-3]}, lambda *_: ENTROPY + 0.3, base=SMALL)
    for path in folder.glob("cells/*/outcome.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"judged": {"held_out_excess": excess}}))
    said = list(unlearnt(found_in(read_study(folder))))
    assert said == ["Finished, with a validation loss not below the unigram entropy: pre-ln (3 of 3 seeds)."] * named


def test_undecided_is_neither_trained_nor_collapsed(tmp_path: Path) -> None:
    """It has its column, its marks and a sentence with what is missing; its arm is never the best one."""

    def rule(values: Row, seed: int) -> float | str:
        return "undecided" if values["training.lr"] == 3e-4 and seed > 1 else 2.0 + 0.01 * seed

    axes: Row = {"model.placement": ["post-ln"], "training.lr": RATES, "training.warmup": [0, 50]}
    page = write_study_report(write_study(tmp_path / "short", axes, rule, base=SMALL))
    found = found_in(read_study(tmp_path / "short"))
    assert "Undecided, too short to tell: 4 of 18 cells" in " ".join(page.summary)
    assert "up to 203 more steps would tell" in " ".join(page.summary)
    header, lines = page.table.header, page.table.lines
    assert [line[header.index("undecided")].split(" ")[0] for line in lines][::2] == ["2/3", "0/3", "0/3"]
    assert {line[header.index("collapsed")].split(" ")[0] for line in lines} == {"0/3"}
    short = [arm for arm in found.arms if arm.values["training.lr"] == 3e-4]
    assert not any(arm.trains for arm in short) and all(arm.trouble == ["2/3 undecided"] for arm in short)
    whole = found_in(read_study(write_study(tmp_path / "whole", axes, lambda *_: 2.0, base=SMALL, curves=False)))
    assert "undecided" not in arms_table(whole).header


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_the_same_bytes_again(tmp_path: Path) -> None:
    axes: Row = {"model.placement": ["post-ln", "pre-ln"], "training.warmup": [0, 9], "training.lr": [1e-3, 3e-3]}
    folder = write_study(tmp_path / "study", axes, warmup_rule, base=SMALL, curves=False)
    pages = [write_study_report(folder, tmp_path / name).page for name in ("one", "two")]
    names = files(pages[0].parent)
    assert "map.png" in names and names == files(pages[1].parent)
    for name in names:
        one, two = (page.parent.joinpath(name).read_bytes() for page in pages)
        assert one == two, name


def test_results_for_a_program(report: StudyReport) -> None:
    folder = report.page.parent
    assert json.loads((folder / "results.json").read_text())["summary"] == report.summary
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 135 and {row["outcome"] for row in rows} == {"finished", "collapsed", "diverged"}
    one = next(row for row in rows if row["model.placement"] == "admin" and row["seed"] == "2")
    want = warmup_rule({key: _number(one[key]) for key in WARMUP}, 2)
    assert float(one["validation_loss"]) == pytest.approx(want)


def _number(text: str) -> float | int | str:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


@pytest.mark.slow
def test_no_torch() -> None:
    code = "import sys, isograd.lab.report.study.page; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
