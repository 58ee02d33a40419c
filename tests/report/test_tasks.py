"""What a page shows of a task, the task says: a new one needs no line in `isograd.lab.report`."""

from pathlib import Path
from types import MappingProxyType

import pytest

from isograd.lab.report.pages.runs import CHARTS, makers, write_report
from isograd.lab.report.runs import arms_of
from isograd.lab.train.tasks import TASKS, Task
from isograd.lab.train.tasks.language import LanguageModelling
from tests.report.written import curve, put, ramp, written


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_every_task_says_what_a_page_needs(task: type[Task]) -> None:
    assert set(task.charts) <= set(CHARTS) and {"page", "table"} <= set(task.captions)


class Copying(LanguageModelling):
    name = "copying"
    charts = ("validation",)
    captions = MappingProxyType({"page": "Nats per copied token.", "table": "nats"})


def test_a_new_task_has_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "copying", Copying)
    end = {"final_loss": 1.0, "validation_loss": 1.2}
    folder = written(tmp_path, "pre-ln", task="copying", outcome=end, validation=curve(2.0, 1.2), metrics=ramp([2.0]))
    run = arms_of([folder])[0].first.run
    put(folder / "run.json", run | {"copying": {"span": 4}})
    assert makers(arms_of([folder]))[0] is CHARTS["validation"] and CHARTS["loss"] not in makers(arms_of([folder]))
    page = write_report([folder], tmp_path / "page").read_text()
    assert "Nats per copied token." in page and "span 4" in page
