"""Unusual parts of a setup: everything is put back, and what is said of them is true."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau

import isograd
from isograd.errors import InputsError
from isograd.lint.padding import filler_of
from tests.preflight.test_restored import different, state


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def setup(**parts: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    data = [[torch.randn(8, 8), torch.randint(0, 4, (8,))] for _ in range(8)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "data": data, "optimizer": optimizer, "loss": loss} | parts


def looping(also: Callable[[Any], Any]) -> dict[str, Any]:
    """With a step that does something more."""
    made = setup()

    def step(batches: list[Any]) -> None:
        made["optimizer"].zero_grad()
        loss(made["model"], batches[0]).backward()
        made["optimizer"].step()
        also(made)

    return made | {"step": step}


def ends(made: Any) -> None:
    raise SystemExit(3)


def interrupts(made: Any) -> None:
    raise KeyboardInterrupt


def changes_torch(made: Any) -> None:
    global CHANGED
    CHANGED = True  # type: ignore[name-defined]
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)


def adds_a_group(made: Any) -> None:
    made["optimizer"].add_param_group({"params": [nn.Parameter(torch.zeros(3))]})


@pytest.mark.parametrize("also", [ends, interrupts, changes_torch, adds_a_group])
def test_what_a_step_does_is_put_back(also: Callable[[Any], Any]) -> None:
    made = looping(also)
    before = state(model=made["model"], optimizer=made["optimizer"])
    try:
        found = isograd.preflight(made, prove=False)
        assert {f.code for f in found.errors} == ({"step-fails"} if also in (ends, changes_torch) else set())
    except KeyboardInterrupt:
        assert also is interrupts
    assert different(before, state(model=made["model"], optimizer=made["optimizer"])) == []
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled() and "CHANGED" not in globals()


@pytest.mark.parametrize(
    "form",
    [lambda m, b: {"loss": loss(m, b), "other": 1}, lambda m, b: (loss(m, b), 1), functional.cross_entropy],
)
def test_a_loss_of_another_form(form: Any) -> None:
    form = (lambda model, batch: form_(model, batch)) if (form_ := form) is not functional.cross_entropy else form
    assert not isograd.preflight(setup(loss=form), prove=False).errors


def test_a_schedule_that_waits_for_a_score() -> None:
    made = setup(steps=100)
    made["scheduler"] = ReduceLROnPlateau(made["optimizer"])
    assert not isograd.preflight(made, prove=False).errors
    made = looping(lambda m: m["scheduler"].step(1.0)) | {"steps": 100}
    made["scheduler"] = ReduceLROnPlateau(made["optimizer"])
    made["step"].__closure__[-1].cell_contents.update(scheduler=made["scheduler"])
    assert not isograd.preflight(made, prove=False).errors


class Plain:
    """An optimizer of one's own, without a rate."""

    def __init__(self, model: nn.Module) -> None:
        self.param_groups = [{"params": [*model.parameters()]}]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.param_groups[0]["params"]:
            p.grad = None

    def step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.data -= 0.0 if p.grad is None else 0.01 * p.grad


class Rateless(torch.optim.Optimizer):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p -= 0.01 * (0.0 if p.grad is None else p.grad)


def test_an_optimizer_without_a_rate() -> None:
    made = setup()
    found = isograd.preflight(made | {"optimizer": Rateless(made["model"])}, prove=False)
    assert not found.errors and "nan" not in str(found)
    isograd.preflight(made | {"optimizer": Plain(made["model"])}, prove=False)


def test_what_cannot_be_looked_at_is_said() -> None:
    class Fails:
        def __getitem__(self, at: int) -> Any:
            raise KeyError("no such row")

    with pytest.raises(InputsError, match="data raised KeyError"):
        isograd.preflight(setup(data=Fails()))
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(InputsError, match="lazy"):
        isograd.preflight(setup(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)))
    assert isinstance(model[0].weight, nn.UninitializedParameter)


@pytest.mark.parametrize(("silent", "filler"), [(False, None), (True, 7)])
def test_a_class_at_the_end_of_rows_is_padding_where_the_inputs_end_there(silent: bool, filler: int | None) -> None:
    """Frames of sound: a unit may last to the end of a row, while a filled row is silent there."""
    torch.manual_seed(0)
    frames, units = torch.randn(6, 12, 5), torch.randint(0, 7, (6, 12))
    for row, begin in enumerate((12, 8, 10, 12, 6, 9)):
        units[row, begin:] = 7
        frames[row, begin:] *= not silent
    assert filler_of(units, [frames, units]) == filler


def test_what_else_a_run_has_is_put_back() -> None:
    """An average of the weights that the step moves, named beside the parts that are known."""
    given = setup()
    average = torch.optim.swa_utils.AveragedModel(given["model"])

    def step(batches: list[Any]) -> None:
        given["optimizer"].zero_grad()
        loss(given["model"], batches[0]).backward()
        given["optimizer"].step()
        average.update_parameters(given["model"])

    before = state(ema=average)
    isograd.preflight(given | {"step": step, "ema": average})
    assert not different(before, state(ema=average))


@pytest.mark.parametrize("flat", [True, False])
def test_numbers_of_rows_are_no_classes(flat: bool) -> None:
    """Tokens of packed texts one after the other, each with the number of its text; or rows in the order of classes."""
    torch.manual_seed(0)
    classes = torch.arange(64).div(16, rounding_mode="floor")
    inputs = torch.randint(0, 50, (64,)) if flat else torch.randn(64, 8)
    model: nn.Module = nn.Sequential(nn.Embedding(50, 8) if flat else nn.Identity(), nn.Linear(8, 50))

    def own(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch["x"]), batch["x"] if flat else batch["row"])

    data = [{"x": inputs[at : at + 8], "row": classes[at : at + 8]} for at in range(0, 64, 8)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = isograd.preflight({"model": model, "data": data, "optimizer": optimizer, "loss": own})
    assert ("data-sorted" in found.codes) is not flat
