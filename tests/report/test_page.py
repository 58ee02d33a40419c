"""The page: one file that stands alone, whole whatever became of the runs."""

import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import isograd
from isograd.lab.report.page import Table, latex
from isograd.lab.report.pages.runs import headline, results_table, spread, warnings, write_report
from isograd.lab.report.runs import arms_of, presented
from isograd.lab.report.style import MANY, Output, look, look_of, looks
from isograd.lab.study import labels
from isograd.lab.study.labels import NAMES
from isograd.placement import CATALOGUE
from isograd.placement.text import formulas
from tests.study.arms import called, compare_command, lines, read, runs

VOID = {"meta", "br", "hr", "img", "input", "link", "line", "path", "use", "rect"}
Edit = Callable[[Path], None]


class Page(HTMLParser):
    """Elements that are opened and never closed, or the other way round; ids; what an attribute loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        self.ids += [i for i in (of.get("id"),) if i]
        self.loads += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "srcset", "data", "action")]
        if tag not in VOID or ("svg" in self.open and tag not in ("line", "use")):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def checked(path: Path) -> Page:
    """The page, well-formed and self-contained."""
    source = path.read_text(encoding="utf-8")
    page = Page(source)
    assert source.startswith("<!doctype html>")
    assert not page.open and not page.wrong
    assert len(set(page.ids)) == len(page.ids), "an id stands twice"
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.loads)
    assert set(re.findall(r"url\(#([^)]*)\)", source)) <= set(page.ids)
    assert not re.findall(r"@import|<script[^>]*src|<link|<iframe|url\((?!#)", source)
    names = {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}  # of XML, nothing is loaded from there
    assert set(re.findall(r"https?://[^\"'\s<)]*", source)) <= names
    return page


@pytest.fixture(scope="module")
def compared(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default arms, two seeds."""
    out = tmp_path_factory.mktemp("compared")
    assert called(*compare_command(text, out, "--seeds", "0", "1", "--jobs", "1"))[0] == 0
    return out


@pytest.fixture
def study(compared: Path, tmp_path: Path) -> Path:
    """A copy to change: the folder alone, as a colleague gets it."""
    return Path(shutil.copytree(compared, tmp_path / "study"))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(read(path) | changes))


def in_order(out: Path) -> list[Path]:
    """As `compare` names them: by results.json."""
    by_key = {(r["model"]["placement"], r["training"]["warmup"], r["seed"]): p for p in runs(out)
              for r in [read(p / "run.json")]}  # fmt: skip
    return [by_key[r["placement"], r["warmup"], r["seed"]] for r in read(out / "results.json")]


def test_the_page(compared: Path) -> None:
    page = checked(compared / "report.html")
    placements = ["post-ln", "pre-ln", "normformer", "admin", "deepnorm"]
    squeezed = "".join(page.text.split())
    for name in placements:
        assert f"{NAMES[name]}, no warm-up" in page.text
        for formula in formulas(CATALOGUE[name]).values():
            assert "".join(formula.replace("<-", "←").replace(" * ", " · ").replace("_", "").split()) in squeezed
    assert "Post-LN, warm-up 6" in page.text
    built = read(runs(compared)[0] / "resolved.json")["data"]
    assert f"unigram entropy {built['unigram_entropy']:.3f}" in page.text
    assert built["sha256"] in page.text and "seeds 0, 1" in page.text
    provenance = read(runs(compared)[0] / "outcome.json")["provenance"]
    assert {"isograd", "torch", "transformers", "python"} <= set(provenance)
    assert all(version in page.text for version in provenance.values())
    assert isograd.__version__ in page.text
    titles = ["Training loss", "Gradients over depth", "Learned coefficients over depth", "Placements"]
    assert all(title in page.text for title in titles)
    assert "12 runs" in page.text


def test_results_agree_with_the_runs(compared: Path) -> None:
    results = read(compared / "results.json")
    with (compared / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(results) == len(table) == len(runs(compared)) == 12
    for folder, result, row in zip(in_order(compared), results, table, strict=True):
        outcome, run = read(folder / "outcome.json"), read(folder / "run.json")
        assert {k: result[k] for k in outcome if k != "provenance"} == {
            k: v for k, v in outcome.items() if k != "provenance"
        }
        assert (result["lr"], result["layers"], result["steps"]) == (
            run["training"]["lr"], run["model"]["layers"], run["training"]["steps"]
        )  # fmt: skip
        assert row == {k: "" if v is None else str(v) for k, v in labels.flat(result)}


def test_means_over_seeds(compared: Path) -> None:
    """Once more by hand, from the outcomes: mean, lowest and highest; of the ratios the geometric mean."""
    arms, page = arms_of(in_order(compared)), checked(compared / "report.html")
    assert [len(a.runs) for a in arms] == [2] * 6
    for arm, cells in zip(arms, results_table(arms).lines, strict=True):
        one, two = (read(r.folder / "outcome.json") for r in arm.runs)
        low, high = sorted((one["final_loss"], two["final_loss"]))
        assert cells[2] == f"{(low + high) / 2:.3f} ({low:.3f} to {high:.3f})"
        assert f"{(low + high) / 2:.3f} ({low:.3f} to {high:.3f})" in page.text
        ratios = [(one[f"gradient_ratio_{w}"] * two[f"gradient_ratio_{w}"]) ** 0.5 for w in ("start", "end")]
        assert cells[4] == f"{ratios[0]:.2g} → {ratios[1]:.2g}"
        steps, mean, lowest, highest = arm.curve()
        first, second = ([r["loss"] for r in lines(run.folder / "metrics.jsonl")] for run in arm.runs)
        assert steps == list(range(1, 13))
        for i in (0, 3, 11):
            a, b = (statistics.fmean(of[max(0, i - 9) : i + 1]) for of in (first, second))
            assert (mean[i], lowest[i], highest[i]) == pytest.approx(((a + b) / 2, min(a, b), max(a, b)), rel=1e-12)


@pytest.mark.slow
def test_from_a_copied_folder(study: Path, compared: Path) -> None:
    """The same bytes, with no model and no torch in sight."""
    before = (compared / "report.html").read_bytes()
    for folder in runs(study):
        shutil.rmtree(folder / "model")
    folders = [str(study / p.name) for p in in_order(compared)]
    code = (
        "import sys; from pathlib import Path; from isograd.lab.report.pages.runs import write_report\n"
        f"write_report([Path(p) for p in {folders}], Path({str(study)!r}))\n"
        "assert not {'torch', 'transformers', 'accelerate'} & set(sys.modules)"
    )
    (study / "report.html").unlink()
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    assert (study / "report.html").read_bytes() == before


def diverged(folder: Path) -> None:
    edit(folder / "outcome.json", outcome="diverged", final_loss=None, validation_loss=None, gradient_ratio_end=None)
    rows = lines(folder / "metrics.jsonl")[:10]
    for row in rows[6:]:
        row |= {"loss": None, "grad_norm": None}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quantities = lines(folder / "quantities.jsonl")
    for row in quantities:
        row |= {k: None for k, v in row.items() if isinstance(v, float)} if row["step"] > 1 else {}
    (folder / "quantities.jsonl").write_text("".join(json.dumps(row) + "\n" for row in quantities))


def unobserved(folder: Path) -> None:
    (folder / "quantities.jsonl").unlink()
    edit(folder / "outcome.json", gradient_ratio_start=None, gradient_ratio_end=None)


def interrupted(folder: Path) -> None:
    for name in ("outcome.json", "metrics.jsonl", "quantities.jsonl"):
        (folder / name).unlink()


def cut_off(folder: Path) -> None:
    (folder / "outcome.json").unlink()
    for name in ("metrics.jsonl", "quantities.jsonl"):
        text = (folder / name).read_text()
        (folder / name).write_text(text[: len(text) // 2])


def failed_early(folder: Path) -> None:
    interrupted(folder)
    (folder / "resolved.json").unlink()
    (folder / "outcome.json").write_text('{"outcome": "failed", "error": "a <b> & more"}')


def flat(folder: Path) -> None:
    """Every number the same, and gradients of 0: nothing to scale an axis by."""
    for name in ("metrics.jsonl", "quantities.jsonl"):
        rows = [{k: 0.0 if isinstance(v, float) else v for k, v in r.items()} for r in lines(folder / name)]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    edit(folder / "outcome.json", gradient_ratio_start=None, gradient_ratio_end=None, final_loss=0.0)
    built = read(folder / "resolved.json")
    edit(folder / "resolved.json", data=built["data"] | {"unigram_entropy": 0.0})


def spoiled(folder: Path) -> None:
    (folder / "run.json").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("change", [diverged, unobserved, interrupted, cut_off, failed_early, flat])
@pytest.mark.parametrize("which", ["first", "only"])
def test_whatever_became_of_the_runs(study: Path, change: Edit, which: str) -> None:
    """The first run of many, and a single run: each is named with its outcome, and no warning is raised."""
    folders = in_order(study)
    folders = folders[:1] if which == "only" else folders
    change(folders[0])
    page = checked(write_report(folders, study))
    outcomes = [r.outcome["outcome"] for a in arms_of(folders) for r in a.runs]
    assert len(outcomes) == len(folders)
    assert all(outcome in page.text for outcome in outcomes)
    for arm in presented(arms_of(folders)):
        assert arm.label in page.text
    assert [r["outcome"] for r in read(study / "results.json")] == outcomes


def test_folders_without_a_run(study: Path) -> None:
    folders = in_order(study)
    spoiled(folders[0])
    assert len(arms_of([*folders, study / "nowhere"])) == 6
    with pytest.raises(ValueError, match="no runs"):
        write_report([study / "nowhere"], study)
    with pytest.raises(ValueError, match="no folders"):
        write_report([], study)


@pytest.mark.slow
def test_the_page_without_a_run(study: Path) -> None:
    folders = in_order(study)
    spoiled(folders[0])
    checked(write_report([*folders, study / "nowhere"], study))


@pytest.mark.parametrize(
    "losses, cell",
    [
        ([], "–"),
        ([2.0], "2.000"),
        ([2.0, 2.1], "2.050 (2.000 to 2.100)"),
        ([2.0, 2.1, 2.3], "2.133 (1.754 to 2.513)"),  # 4.3027 s / sqrt(3), s = 0.15275
    ],
)
def test_a_mean_has_its_interval(losses: list[float], cell: str) -> None:
    assert spread(losses, "{:.3f}") == cell


@pytest.mark.slow
def test_nine_arms_three_seeds(study: Path) -> None:
    """Nine lines that differ in colour or dash, in the key of the table too."""
    for name in ("gpt2", "admin-closed", "normformer-resscale"):
        for folder in in_order(study)[:2]:
            copy = Path(shutil.copytree(folder, study / f"{name}-{folder.name}"))
            run = read(copy / "run.json")
            edit(copy / "run.json", model=run["model"] | {"placement": name})
    folders = runs(study)
    for folder in list(folders)[::2]:
        copy = Path(shutil.copytree(folder, folder.with_name(folder.name + "-third")))
        edit(copy / "run.json", seed=2)
    arms = arms_of(runs(study))
    assert len(arms) == 9
    assert len({str(look(i)) for i in range(MANY)}) == MANY
    assert all(arm.look == look_of(arm.placement) for arm in arms if arm.label != "post-ln, warm-up 6")
    assert len({str(one) for one in looks(["pre-ln"] * 9)}) == 9
    named = ["pre-ln", *(f"mine-{at}" for at in range(5)), "post-ln"]  # of names that share colours
    colours = [one["color"] for one in looks(named)]
    assert len({*colours}) == len(named)
    assert colours[0] == look_of("pre-ln")["color"] and colours[-1] == look_of("post-ln")["color"]
    many = looks(f"mine-{at}" for at in range(20))
    assert len({str(one) for one in many}) == 20
    source = (write_report(runs(study), study)).read_text()
    checked(study / "report.html")
    keys = re.findall(r'stroke="(#\w+)" stroke-width="2.6" stroke-dasharray="([^"]*)"', source)
    assert len(keys) == len(set(keys)) == 9


def test_nothing_is_markup_or_a_formula(study: Path) -> None:
    """Names, paths and errors are text, in the page and in its figures."""
    nasty = "<b>&\"'$x_1$ {{ 7 * 7 }}"
    folders = in_order(study)
    for folder in folders[:2]:
        run, built = read(folder / "run.json"), read(folder / "resolved.json")
        edit(folder / "run.json", model=run["model"] | {"placement": nasty})
        edit(
            folder / "resolved.json", placement=nasty, about=nasty, data=built["data"] | {"source": f"/{nasty}/\udcff"}
        )
    source = write_report(folders, study).read_text(encoding="utf-8")
    page = checked(study / "report.html")
    assert "<b>" not in source and escape(nasty, quote=False)[:8] in source
    assert page.text.count(nasty) >= 4  # as it is: neither rendered by the template nor set as a formula


def test_the_headline_calls_nobody_best(study: Path) -> None:
    folders = in_order(study)
    short = headline(arms_of(folders))
    assert re.fullmatch(r"Too short to tell whether any arm trains \(about [\d,]+ more steps would tell\)\.", short)
    assert "best" not in short
    for folder in folders:
        edit(folder / "outcome.json", outcome="finished")
    text = headline(arms_of(folders))
    assert re.fullmatch(r"6 of 6 arms trained \(final losses [\d.]+ to [\d.]+ nats\)\.", text)
    assert not any("One seed" in line for line in warnings(arms_of(folders)))
    edit(folders[0] / "outcome.json", outcome="collapsed", final_loss=99.0)
    mixed = headline(arms_of(folders))
    assert mixed.startswith("6 of 6 arms trained (") and mixed.endswith(
        "; post-ln, no warm-up: 1 collapsed, 1 finished."
    )
    assert "99" not in mixed  # a collapsed seed is no training loss
    edit(folders[1] / "outcome.json", outcome="diverged", final_loss=None)
    assert headline(arms_of(folders)[:1]) == "post-ln, no warm-up: 1 collapsed, 1 diverged."
    assert any("One seed" in line for line in warnings(arms_of(folders[::2])))


def test_a_single_run_is_compared_with_nothing(study: Path) -> None:
    page = checked(write_report(in_order(study)[:1], study))
    assert page.text.startswith("Run: Post-LN") and "compared" not in page.text.partition("Results")[0]


@pytest.mark.slow
def test_for_a_paper(study: Path, tmp_path: Path) -> None:
    """A column wide, text as text; tables, curves and papers beside the page."""
    output = Output(formats=("svg", "pdf"), style="paper", width=3.25)
    write_report(in_order(study), tmp_path / "paper", everything=True, output=output)
    found = tmp_path / "paper"
    (size,) = re.findall(r'<svg[^>]* width="([\d.]+)pt"', (found / "gradients.svg").read_text())
    assert float(size) == pytest.approx(3.25 * 72) and "<text" in (found / "gradients.svg").read_text()
    pdf = (found / "loss.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and b"/Type3" not in pdf and not list(found.glob("*.png"))
    with (found / "tables/results.csv").open(newline="") as file:
        table = list(csv.reader(file))
    assert [tuple(line) for line in table] == list(results_table(presented(arms_of(in_order(study)))))
    assert r"\toprule" in (found / "tables/results.tex").read_text()
    with (found / "curves.csv").open(newline="") as file:
        curves = list(csv.DictReader(file))
    for folder in in_order(study)[:2]:
        mine = [row for row in curves if row["run"] == folder.name and row["quantity"] == "loss"]
        rows = lines(folder / "metrics.jsonl")
        assert [(int(row["step"]), float(row["value"])) for row in mine] == [(r["step"], r["loss"]) for r in rows]
    papers = (found / "references.bib").read_text()
    assert papers.count("@") == 5 and "eprint = {2002.04745}" in papers and "{xiong2020-2002.04745," in papers


def test_a_wide_column_of_words_is_broken_into_lines_in_latex() -> None:
    table = Table(header=["placement", "formula", "loss"], lines=[["mine", "x <- LN(x + f(x)) " * 5, "2.0"]], left=2)
    source = latex(table)
    assert source.startswith(r"\begin{tabular}{lp{0.7\linewidth}r}") and r"x $\gets$ LN(x + f(x))" in source
    assert latex(Table(header=["a", "b"], lines=[["c", "1"]])).startswith(r"\begin{tabular}{lr}")
