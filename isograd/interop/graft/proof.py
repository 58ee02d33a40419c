"""Parity of a model before and after, in float64 throughout.

transformers casts to float32 in norms, softmax and rotary tables even where weights are float64; while the models run
here these casts go to float64, so that what differs is the change and not its rounding.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from isograd.interop.graft.found import is_large
from isograd.interop.parity import ParityReport, Precision, Runner, measure, runner_of
from isograd.interop.sample import random_sample

LIMITS: Mapping[Precision, float | None] = {"fp64": 1e-10, "fp32": 1e-5, "bf16": None}
_SMALL = (torch.float32, torch.float16, torch.bfloat16)


class Promoted(TorchFunctionMode):
    """What asks for a smaller float gets float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            return args[0].double()
        wide = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*(_wide(value) for value in args), **wide)


def proven(
    before: PreTrainedModel,
    after: PreTrainedModel,
    *,
    about: str,
    wide: tuple[PreTrainedModel | None, PreTrainedModel | None] | None = None,
    **facts: Any,
) -> ParityReport:
    """The parity report of an exact change. What the second model knows of further tokens is not compared.

    A large model is compared in float32 alone, without copies.

    Args:
        wide: both in float64, changed there: what the rounding of new weights does is then in the float32 row alone.
            None takes copies of `before` and `after`.
    """
    rows = before.get_input_embeddings().weight.shape[0]
    doubles = wide if wide and wide[0] is not None and wide[1] is not None else (before, after)
    first, second = (_sides(model, double, rows) for model, double in zip((before, after), doubles, strict=True))
    wider = after.get_input_embeddings().weight.shape[0] > rows
    beams = (1,) if wider or is_large(before) else (1, 5)  # a beam adds up probabilities, which new tokens share
    sample = random_sample(before, batches=1)
    return measure(first, second, sample, about=about, limits=LIMITS, beams=beams, **facts)


def _sides(model: PreTrainedModel, double: PreTrainedModel, rows: int) -> dict[Precision, Runner]:
    if is_large(model):
        return {"fp32": _cut(runner_of(model.eval(), "fp32", copied=False), rows)}
    of: dict[Precision, PreTrainedModel] = {"fp64": double, "fp32": model, "bf16": model}
    made = {precision: _cut(runner_of(one, precision), rows) for precision, one in of.items()}
    return made | {"fp64": _promoted(made["fp64"])}


def _cut(runner: Runner, rows: int) -> Runner:
    return replace(runner, logits=lambda batch: runner.logits(batch)[..., :rows])


def _promoted(runner: Runner) -> Runner:
    def inside(call: Callable[..., Any] | None) -> Any:
        def run(*args: Any) -> Any:
            with Promoted():
                return call(*args)  # type: ignore[misc]

        return run if call is not None else None

    return Runner(logits=inside(runner.logits), generate=inside(runner.generate))


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _SMALL else value
