"""The table of claims: README and docs/measured.md say no number that is not in it, and its thin slice holds."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.accept import items, page, row, runner, sentences
from benchmarks.accept.jobs import JOBS
from benchmarks.accept.row import Job, Measured, Row
from benchmarks.accept.runner import Desk, run
from benchmarks.accept.table import HELD, NOT_CLAIMS, ROWS
from isograd.lab.recipes import path_of
from isograd.papers.reproduce.registry import ITEMS

ROOT = Path(__file__).parents[1]
CLAIMED = {one.sentence for one in ROWS if one.page in HELD}


def said(name: str) -> list[str]:
    return sentences.sentences((ROOT / name).read_text(encoding="utf-8"))


def test_no_number_is_said_that_is_not_in_the_table() -> None:
    numbered = [one for page in HELD for one in said(page) if sentences.numbers(one)]
    assert [one for one in numbered if one not in CLAIMED and not one.startswith(tuple(NOT_CLAIMS))] == []
    assert len(set(numbered)) > 20, "the sentences are not found any more"


def test_a_number_is_found_however_it_is_written() -> None:
    """The negative control: what slips through here slips into README."""
    for text in (
        "It takes 3 seeds.",
        "It takes three seeds.",
        "at 1e-3",
        "58.0 ± 0.2 %",
        "in 9/10 runs",
        "LR=0.1",
        "12-layer",
    ):
        assert sentences.numbers(text), text
    for text in ("GPT-2 and Multi30k", "W_2", "Xiong et al. 2020", "`layers=48`", "Apache-2.0"):
        assert not sentences.numbers(text), text
    lines = "Of 5\nruns [two](a.md) collapse. **None** of 6 does.\n\n```\n7\n```\n\n| 8 | a |\n"
    assert sentences.sentences(lines) == ["Of 5 runs two collapse.", "None of 6 does.", "| 8 | a |"]


@pytest.mark.parametrize("one", ROWS, ids=lambda one: one.name)
def test_a_row_speaks_of_a_sentence_that_stands_there(one: Row) -> None:
    assert one.sentence in said(one.page)
    assert set(one.jobs) <= JOBS.keys()
    assert (one.tier == "slice") == (not one.jobs)
    if one.tier != "full":  # whatever it needs is in the repository
        assert not any(JOBS[name].needs for name in _all_jobs(one))


def test_every_sentence_is_measured_by_a_command_and_not_from_a_table_alone() -> None:
    """A first sight alone can be counted only once."""
    for sentence in CLAIMED:
        rows = [one for one in ROWS if one.sentence == sentence]
        assert any(not one.stored or one.name == "first-sight" for one in rows), sentence
    for begin in NOT_CLAIMS:
        assert any(one.startswith(begin) for page in HELD for one in said(page)), begin
    assert not any(one.startswith(tuple(NOT_CLAIMS)) for one in CLAIMED)


def _all_jobs(one: Row) -> list[str]:
    names = list(one.jobs)
    for name in names:
        names.extend(JOBS[name].after(frozenset(JOBS)))
    return names


def test_names_are_given_once_and_every_job_is_read() -> None:
    assert len({one.name for one in ROWS}) == len(ROWS)
    assert {name for one in ROWS for name in _all_jobs(one)} == JOBS.keys()


@pytest.mark.parametrize("name", sorted({word for job in JOBS.values() for word in job.command.split() if "/" in word}))
def test_the_files_that_commands_name_are_there(name: str) -> None:
    if not name.startswith("{") and "=" not in name:
        assert (ROOT / name).exists() or name in ITEMS or path_of(name)


def test_items_with_a_short_run_have_a_row_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the stored results: a verdict that a CPU repeats in ten minutes; another verdict does not hold."""
    names = list(ITEMS)[:3]
    found = {"reason": "so", "ours": [{"n": 3}], "with data": True, "core minutes": 2.0, "changed": []}
    stored = [{**found, "verdict": "not seen"}, {**found, "verdict": "not run"}]
    stored.append({**found, "verdict": "opposite", "core minutes": 12.0})
    (tmp_path / "results.json").write_text(json.dumps(dict(zip(names, stored, strict=True))))
    (tmp_path / "README.md").write_text(f"| item | verdict |\n|---|---|\n| [{names[0]}](a.md) | not seen |\n")
    monkeypatch.setattr(items, "ROOT", tmp_path)
    monkeypatch.setattr(items, "PAGE", "README.md")
    monkeypatch.setattr(items, "STORED", tmp_path / "results.json")
    (job,), (row,) = items.jobs(), items.rows()
    assert job.command == f"isograd reproduce {names[0]} --data {{data}} --jobs 1 --out {{out}}" and job.needs
    assert (row.sentence, row.jobs) == (f"| {names[0]} | not seen |", (job.name,))
    folder = tmp_path / "items" / names[0]
    folder.mkdir(parents=True)
    for verdict, holds in (("not seen", True), ("same direction", False)):
        (folder / "result.json").write_text(json.dumps({"verdict": verdict, "reason": "so"}))
        assert row.measure({job.name: tmp_path}).holds is holds


@pytest.mark.parametrize("one", [one for one in ROWS if one.tier == "slice"], ids=lambda one: one.name)
def test_the_thin_slice_holds(one: Row) -> None:
    found = one.measure({})
    assert found.holds, found.said


# The runner, on commands of a second.

_SCRIPTS = {
    "count": "from pathlib import Path; import sys; (Path(sys.argv[1]) / 'n').open('a').write('1')",
    "copy": "import shutil, sys; shutil.copy(*sys.argv[1:])",
    "fails": "import sys; print('no', file=sys.stderr); sys.exit(3)",
    "waits": """
import os, sys, time
from pathlib import Path

began = Path(sys.argv[0]).with_name("began")
if not began.exists():
    began.write_text(str(os.getpid()))
    time.sleep(600)
(Path(sys.argv[1]) / "n").write_text("1")
""",
}
_COMMANDS = {
    "count": "python {scripts}/count.py {out}",
    "copy": "python {scripts}/copy.py {count}/n {out}",
    "fails": "python {scripts}/fails.py",
    "waits": "python {scripts}/waits.py {out}",
}


def a_desk(folder: Path) -> Desk:
    for name, text in _SCRIPTS.items():
        (folder / f"{name}.py").write_text(text)
    commands = {name: command.replace("{scripts}", str(folder)) for name, command in _COMMANDS.items()}
    jobs = {name: Job(name=name, command=command, minutes=1) for name, command in commands.items()}
    jobs["elsewhere"] = Job(name="elsewhere", command="python {data}/x.py", minutes=1, needs="x.py")
    about = dict.fromkeys(("date", "commit", "torch", "transformers", "python"), "x")
    return Desk(folder=folder / "out", jobs=jobs, say=[].append, code="a", about=about)


def a_row(job: str, expected: str = "1") -> list[Row]:
    def measure(folders: row.Folders) -> Measured:
        found = (folders[job] / "n").read_text()
        return Measured(said=found, holds=found == expected)

    about = {"page": "p", "sentence": "s", "rule": "it is 1", "n": "1 run"}
    return [Row(name="one", measure=measure, jobs=(job,), **about)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return a_desk(tmp_path)


def ran(rows: list[Row], desk: Desk) -> dict[str, runner.Result]:
    found: dict[str, runner.Result] = {}
    run(rows, desk, 2, lambda result: found.update({result["name"]: result}))
    return found


def test_what_was_measured_is_not_run_again_unless_the_code_differs(desk: Desk) -> None:
    first = ran(a_row("count"), desk)["one"]
    assert (first["verdict"], first["measured"]) == ("holds", "1")
    assert ran(a_row("count"), desk)["one"] == first, "kept, with its date"
    desk.forget(a_row("count"))
    assert ran(a_row("count"), desk)["one"]["measured"] == "1", "from nothing"
    desk.code = "b"
    old = [*(desk.folder / "jobs").iterdir()]
    assert ran(a_row("count"), desk)["one"]["key"] != first["key"]
    assert not old[0].exists(), "what was measured with other code is gone"


def test_a_job_waits_for_the_one_that_it_reads(desk: Desk) -> None:
    assert ran(a_row("copy"), desk)["one"]["verdict"] == "holds"
    assert {path.name.rpartition("-")[0] for path in (desk.folder / "jobs").iterdir()} == {"copy", "count"}


def test_rows_that_do_not_hold_fail_or_lack_files_are_said_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RETRIES", 0)
    assert ran(a_row("count", expected="2"), desk)["one"]["verdict"] == "does not hold"
    failed = ran(a_row("fails"), desk)["one"]
    assert failed["verdict"] == "failed" and Path(failed["measured"].split("see ")[1]).read_text() == "no\n"
    assert (
        not (desk.folder / "rows/one.json").exists()
        or json.loads((desk.folder / "rows/one.json").read_text())["verdict"] != "failed"
    )
    lacking = ran(a_row("elsewhere"), desk)["one"]
    assert (lacking["verdict"], lacking["measured"]) == ("skipped", "needs --data FOLDER with x.py")


@pytest.mark.slow
def test_a_kill_of_the_runner_ends_its_jobs_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """The command says that it has begun, sleeps for ever the first time, and ends at once the second."""
    main = f"from tests.test_accept import *\nrun(a_row('waits'), a_desk(Path({str(tmp_path)!r})), 1, print)"
    killed = subprocess.Popen([sys.executable, "-c", main], cwd=ROOT)
    began = tmp_path / "began"
    try:
        while not (began.exists() and began.read_text()):
            assert killed.poll() is None
            time.sleep(0.05)
        worker = psutil.Process(int(began.read_text()))
    finally:
        killed.kill()
        killed.wait()
    worker.wait()  # it ends by itself
    done = subprocess.run([sys.executable, "-c", main], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "'verdict': 'holds'" in done.stdout


def test_the_page_has_every_sentence_and_the_worst_of_its_verdicts(desk: Desk) -> None:
    about = dict.fromkeys(("isograd", "commit", "date", "torch", "transformers", "python", "device"), "x")
    rows = [
        {"name": n, "page": "p", "sentence": "All <3> hold.", "rule": "r", "n": "3", "tier": "accept", "stored": False}
        | {"jobs": ["count"], "verdict": verdict, "measured": n, "about": about, "cpu_seconds": 60.0}
        for n, verdict in (("a", "holds"), ("b", "does not hold"))
    ]
    desk.folder.mkdir()
    text = page.write_page(desk.folder, rows, dict(desk.jobs), about, "All rows").read_text()
    assert "All &lt;3&gt; hold." in text and text.count("<tr><td>") == 1
    assert re.search(r'class="verdict does-not-hold">does not hold</td>', text)
    assert json.loads((desk.folder / "accept.json").read_text())["rows"] == rows
