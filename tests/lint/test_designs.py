"""Changes that are tried: what they compute."""

import torch
from torch import Tensor, nn

from isograd.lint.trial import Edit, Program, plus
from isograd.trace.record import record


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        for layer in self.layers:
            x = x + layer(x) if skip else layer(x)
        return x


def test_a_shortcut_that_is_tried_goes_through_all_layers() -> None:
    """What a change looks up is what earlier changes have made of it."""
    model, x = Stack(), torch.randn(2, 4)
    trace = record(model, x)
    made = [o.makes[0] for o in trace.operations if o.name == "linear"]
    values = {value: plus((1.0, before)) for value, before in zip(made, [*trace.inputs.values(), *made], strict=False)}
    program = Program(trace)
    given = {value: model.get_parameter(name) for value, name in program.parameters.items()}
    (changed,) = program.run(given, tuple(trace.outputs.values()), Edit(says="", values=values))
    torch.testing.assert_close(changed, model(x, skip=True))
    assert not torch.allclose(changed, model(x))
