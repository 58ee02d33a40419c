"""The benchmark of silent faults: cases prove themselves, looks are processes of their own, messages are read once."""

import doctest
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.silent import rows, table, tools
from benchmarks.silent.cases import Case, cases, load, problems, proved, source
from benchmarks.silent.loops import CannotLookError, pair, through

EXAMPLES = Path(__file__).parent / "data" / "silent"
HERE = cases(EXAMPLES)
ALL = [*cases(), *HERE]


def case(name: str) -> Case:
    return load(EXAMPLES / f"{name}.py")


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_case_has_the_format(one: Case) -> None:
    assert list(problems(one)) == []
    compile(source(one, True), one.name, "exec")


def holds(one: Case) -> None:
    for twin, number, (low, high) in proved(one):
        assert low <= number <= high, twin


@pytest.mark.parametrize("name", ["embedding_after_optimizer", "mask_below_logits"])
def test_a_case_proves_itself(name: str) -> None:
    holds(case(name))


@pytest.mark.slow
@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_every_case_proves_itself(one: Case) -> None:
    holds(one)


def test_a_wrong_format_is_found() -> None:
    """The negative control."""
    good = case("mask_below_logits")
    for change, said in (
        ({"class": "other"}, "class"),
        ({"shows": "step"}, "no setup"),
        ({"source": "issue 75"}, "address"),
        ({"faulty": (0.0, 1.0)}, "overlap"),
        ({"kind": "oddity"}, "oddity"),
    ):
        assert any(said in line for line in problems(replace(good, about=good.about | change))), change
    assert list(problems(replace(good, about={})))


def test_a_twin_as_text_does_not_say_which_it_is() -> None:
    faulty, healthy = (source(case("accumulated_not_divided"), faulty) for faulty in (True, False))
    assert "loss = loss / parts" in healthy and "loss = loss / parts" not in faulty
    for text in (faulty, healthy):
        assert "CASE" not in text and "if " not in text and "proof" not in text


def test_a_tool_in_a_loop_sees_the_cases_own_steps() -> None:
    seen: list[float] = []
    names: list[str] = []

    def begin(model: object, optimizer: object) -> tuple:
        names.extend((type(model).__name__, type(optimizer).__name__))
        return lambda step, loss: seen.append(loss), lambda: [f"{len(seen)} steps"]

    assert through(case("accumulated_not_divided").module(), False, begin) == ["60 steps"]
    assert names == ["Model", "SGD"] and seen[0] == pytest.approx(3.5, abs=0.3) and seen[-1] < seen[0]


def test_a_tool_that_takes_pairs_gets_what_the_model_gets() -> None:
    given = pair(case("embedding_after_optimizer").module(), False)
    inputs, targets = given["batch"]
    assert torch.equal(inputs, targets[:, :-1]) and len(given["data"]) == 8
    given["loss_fn"](given["model"](inputs), targets).backward()
    assert all(p.grad is not None for p in given["model"].parameters())
    given = pair(case("head_without_shift").module(), False)
    assert (given["batch"][1] == -100).any() and not (given["batch"][0] == -100).any()


@pytest.mark.parametrize("faulty", [True, False])
def test_gradcheck_runs_in_float64_where_a_case_asks_for_float32(faulty: bool) -> None:
    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = self.weight.exp()
            return super().forward(x) * (scale.detach() if faulty else scale).sum()

    module = SimpleNamespace(
        build=lambda faulty: Model(3, 2), batch=lambda: torch.ones(4, 3), loss=lambda y, _: y.float().square().mean()
    )
    found = tools.TOOLS["gradcheck"].look(SimpleNamespace(module=lambda: module), faulty)  # type: ignore[arg-type]
    assert ["mismatch" in message for message in found] == [True] * faulty


def _said(one: Case, faulty: bool) -> list[str]:
    if one.name == "accumulated_not_divided":
        raise ValueError("no\nmore")
    if one.name == "head_without_shift":
        raise CannotLookError("nothing")
    return ["the loss is 3", "the mask of stand-in"] if faulty else ["the loss is 4"]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setitem(tools.TOOLS, "stand-in", tools.Tool("torch", frozenset({"model", "step", "run"}), _said))
    yield "stand-in"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_rows_a_form_and_the_table(stand_in: str, tmp_path: Path) -> None:
    made = {(row["case"], row["twin"]): row for row in rows.run(stand_in, HERE, tmp_path)}
    assert len(made) == 7 and not list(rows.run(stand_in, HERE, tmp_path)), "what is there is looked at again"
    assert made["accumulated_not_divided", "faulty"]["crash"] == "ValueError: no more"
    assert made["head_without_shift", "oddity"]["seen"] == ""
    form = rows.to_judge([stand_in], HERE, tmp_path)
    assert {row["case"]: row["said"] for row in form} == {
        "embedding_after_optimizer": "the mask of TOOL",
        "mask_below_logits": "the mask of TOOL",
    }
    for row in form:
        row["named"] = "yes" if "mask" in row["case"] else "no"
    assert rows.take(form, [stand_in], HERE, tmp_path) == 2
    assert not rows.to_judge([stand_in], HERE, tmp_path)
    (result,) = (line for line in table.page(HERE, tmp_path)[1].splitlines() if "stand-in" in line)
    cells = [cell.strip() for cell in result.split("|")[2:-1]]
    assert [cell.partition(",")[0] for cell in cells] == ["1 of 3", "1 of 2", "1 of 3", "2 of 3", "2 of 3", "0 of 1"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_look_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        tools.TOOLS, "waits", tools.Tool("torch", frozenset({"model"}), lambda *_: time.sleep(600) or [])
    )
    row = rows.look("waits", HERE[0], "faulty", limit=0.5)
    assert row["crash"] == "no answer in 0.5 s" and not row["alarm"]


def test_the_page_keeps_its_text_around_the_table() -> None:
    page = (Path(__file__).parents[1] / "docs" / "silent.md").read_text(encoding="utf-8")
    again = table.into(table.into(page, "| a |"), "| b |")
    assert "| b |" in again and "| a |" not in again
    assert again.partition(table.BEGIN)[0] == page.partition(table.BEGIN)[0]
    assert again.partition(table.END)[2] == page.partition(table.END)[2]


@pytest.mark.parametrize("module", [rows, table])
def test_examples(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted and not result.failed
