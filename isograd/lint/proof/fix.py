"""Proven changes, applied to a copy of the model where that is exact.

    findings = isograd.check(model, fix=True)
    findings.fixed                                 # a copy of the model with every change that was confirmed

Parameters begin otherwise in the copy. A value that is what one module gives, or takes, is changed by a hook on that
module; the other values that the change reads must be what modules give or take, too. What lies between is not changed.
"""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.proof.trial import Edit

Port = tuple[str, int]  # a module's address, and the number of its argument, or -1 - i of what it returns


class NotExact(Exception):  # noqa: N818
    """A change that no hook can make."""


def fixed(checked: CheckedModel, findings: Iterable[Finding]) -> tuple[nn.Module, list[str]]:
    """A copy of the model with the changes of errors, facts and confirmed suspicions, and the codes of those that could
    not be made.
    """
    model, left = copy.deepcopy(checked.model), list[str]()
    for finding in findings:
        if finding.edit and finding.severity == "error":
            try:
                _apply(checked, model, finding.edit)
            except NotExact:
                left.append(finding.code)
    return model, left


def _apply(checked: CheckedModel, model: nn.Module, edit: Edit) -> None:
    wanted = {value: _places(checked, edit, value) for value in edit.values}
    kept = _Kept()
    sources = {value: _port(checked, value) for value in _reads(checked, edit)}
    for value, ports in wanted.items():
        for address, number in ports:
            _hook(model.get_submodule(address), number, partial(edit.values[value], of=kept.of))
    for value, port in sources.items():  # after the changes: a shortcut carries the changed stream
        kept.watch(model, value, port)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, begin in edit.parameters.items():
            parameter = model.get_parameter(name)
            parameter.copy_(begin(parameter.detach().clone(), draw).to(parameter))


def _places(checked: CheckedModel, edit: Edit, value: int) -> list[Port]:
    """Where a value is changed: where it is given, or for some of its readers where they take it."""
    if value not in edit.readers:
        return [_port(checked, value, given=True)]
    taken = [port for port in checked.trace.ports.get(value, []) if port[1] >= 0]
    found = []
    for at in edit.readers[value]:
        module = checked.trace.operations[at].module
        port = next((port for port in taken if port[0] == module), None)
        if port is None:
            raise NotExact
        found.append(port)
    return list(dict.fromkeys(found))


def _port(checked: CheckedModel, value: int, given: bool = False) -> Port:
    for port in checked.trace.ports.get(value, []):
        if port[1] < 0 or not given:
            return port
    raise NotExact


def _reads(checked: CheckedModel, edit: Edit) -> set[int]:
    """The other values that a change looks up."""
    found: set[int] = set()

    def of(value: int) -> Tensor:
        found.add(value)
        return checked.trace[value]

    for value, change in edit.values.items():
        with torch.no_grad():
            change(checked.trace[value], of)
    return found


class _Kept:
    """Values of the pass that is running, by their numbers in the trace."""

    def __init__(self) -> None:
        self.values: dict[int, Tensor] = {}

    def of(self, value: int) -> Tensor:
        return self.values[value]

    def watch(self, model: nn.Module, value: int, port: Port) -> None:
        def note(x: Tensor) -> Tensor:
            self.values[value] = x
            return x

        _hook(model.get_submodule(port[0]), port[1], note)


def _hook(module: nn.Module, number: int, change: Callable[[Tensor], Tensor]) -> None:
    if number >= 0:
        module.register_forward_pre_hook(lambda _, args: (*args[:number], change(args[number]), *args[number + 1 :]))
        return

    def after(_: nn.Module, __: Any, out: Any) -> Any:
        at = -1 - number
        return (*out[:at], change(out[at]), *out[at + 1 :]) if isinstance(out, tuple) else change(out)

    module.register_forward_hook(after)
