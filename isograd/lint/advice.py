"""What a collapse that is under way has to do with how the model is wired, in words of its own code."""

from typing import Any

from torch import nn

from isograd.errors import many
from isograd.lint import branches, norms, shortcuts, wiring
from isograd.lint.check import is_quantized
from isograd.lint.checked_model import CheckedModel
from isograd.lint.initial.collapse import NAMES, norms_moved, rule_of, schedule
from isograd.trace.anatomy import find_anatomy
from isograd.trace.inputs import as_inputs, guess_inputs
from isograd.trace.record import unwrapped

WIRED = (  # rules that hold for a trained model too, and whose faults keep a stack from training
    shortcuts.after_norm,
    shortcuts.missing,
    shortcuts.factors,
    shortcuts.bypassed,
    wiring.swapped,
    branches.bent,
    norms.axis,
)


def advice(model: nn.Module, batch: Any = None, lr: float | None = None) -> tuple[str, str] | None:
    """The cause and the remedy, of a model that may have moved from its initialization; None without a fault.

    A fault of the wiring goes first; else that norms stand on the sums, with the line to change, and the rate and the
    warm-up at which such stacks train, below `lr`. The model is copied.

    Raises:
        InputsError: no inputs given, and none that can be guessed.
    """
    model = unwrapped(model)
    if is_quantized(model):
        return None
    inputs = guess_inputs(model) if batch is None else as_inputs(batch)
    checked = CheckedModel(model, inputs, find_anatomy(model, inputs))
    for rule in WIRED:
        for one in rule(checked):
            if one.severity == "error":
                return f"isograd.check finds {one.code} at {one.address or 'the model'}: {one.message}", one.remedy
    for stack in checked.anatomy.stacks:
        if stack.function is not None:
            layers = many(stack.layers, f"{NAMES[stack.function]} layer")
            slower = schedule(rule_of(checked, stack), None if lr is None else lr / 2)
            return f"{layers}: each norm is on the sum of x and its branch, first at {stack.sublayers[0].address}", (
                f"{norms_moved(checked, stack)}; or {slower}" if slower else norms_moved(checked, stack)
            )
    return None
