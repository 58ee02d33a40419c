"""Parity of a model before and after, in float64 throughout.

transformers casts to float32 in norms, softmax and rotary tables even where weights are float64; while the models run
here these casts go to float64, so that what differs is the change and not its rounding.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from isograd.convert.parity import ParityReport, Precision, Remembered, Runner, is_large, measure, runner_of
from isograd.convert.sample import random_sample

LIMITS: Mapping[Precision, float | None] = {"fp64": 1e-10, "fp32": 1e-5, "bf16": None}
_OTHER_CLASS = {**LIMITS, "fp64": 1e-7}  # classes of transformers keep constants, as Gemma's sqrt(d), in float32


def proven_of(kept: Remembered, rows: int, after: PreTrainedModel, *, about: str, **facts: Any) -> ParityReport:
    """As `proven`, in float32 alone, of a model that is no longer there and had so many rows of tokens."""
    own: dict[Precision, Runner] = {"fp32": _cut(runner_of(after.eval(), "fp32"), rows)}
    return measure(kept.side, own, kept.sample, about=about, limits=LIMITS, beams=(1,), **facts)


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
    rows = token_rows(before)
    doubles = wide if wide and wide[0] is not None and wide[1] is not None else (before, after)
    first, second = (_sides(model, double, rows) for model, double in zip((before, after), doubles, strict=True))
    wider = token_rows(after) > rows
    beams = (1,) if wider or is_large(before) else (1, 5)  # a beam adds up probabilities, which new tokens share
    sample, limits = random_sample(before, batches=1), LIMITS if type(before) is type(after) else _OTHER_CLASS
    return measure(first, second, sample, about=about, limits=limits, beams=beams, **facts)


def _sides(model: PreTrainedModel, double: PreTrainedModel, rows: int) -> dict[Precision, Runner]:
    if is_large(model):
        return {"fp32": _cut(runner_of(model.eval(), "fp32"), rows)}
    of: dict[Precision, PreTrainedModel] = {"fp64": double, "fp32": model, "bf16": model}
    return {p: _cut(runner_of(one, p, promoted=p == "fp64"), rows) for p, one in of.items()}


def token_rows(model: PreTrainedModel) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def _cut(runner: Runner, rows: int) -> Runner:
    return replace(runner, logits=lambda batch: runner.logits(batch)[..., :rows])
