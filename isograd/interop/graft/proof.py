"""Parity of a model before and after, in float64 throughout.

transformers casts to float32 in norms, softmax and rotary tables even where weights are float64; while the models run
here these casts go to float64, so that what differs is the change and not its rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from isograd.interop.parity import ParityReport, Precision, Runner, is_large, measure, runner_of
from isograd.interop.sample import Sample, random_sample

LIMITS: Mapping[Precision, float | None] = {"fp64": 1e-10, "fp32": 1e-5, "bf16": None}
_OTHER_CLASS = {**LIMITS, "fp64": 1e-7}  # classes of transformers keep constants, as Gemma's sqrt(d), in float32


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What a large model said, so that it need not be held beside another: its rows of tokens, and a runner.

    It answers for the batches of its own sample alone.
    """

    rows: int
    sample: Sample
    runner: Runner

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Remembered":
        sample, live = random_sample(model, batches=1), runner_of(model.eval(), "fp32", copied=False)
        logits = {id(batch): live.logits(batch).clone() for batch in sample.batches}
        generate = live.generate
        if generate is None:
            return cls(rows=_rows(model), sample=sample, runner=Runner(logits=lambda batch: logits[id(batch)]))
        texts = {id(prompt): generate(prompt, 1, sample.new_tokens) for prompt in sample.prompts}
        known = Runner(logits=lambda batch: logits[id(batch)], generate=lambda prompt, beams, new: texts[id(prompt)])
        return cls(rows=_rows(model), sample=sample, runner=known)

    def proven(self, after: PreTrainedModel, *, about: str, **facts: Any) -> ParityReport:
        """As `proven`, in float32 alone."""
        own: dict[Precision, Runner] = {"fp32": _cut(runner_of(after.eval(), "fp32", copied=False), self.rows)}
        return measure({"fp32": self.runner}, own, self.sample, about=about, limits=LIMITS, beams=(1,), **facts)


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
    rows = _rows(before)
    doubles = wide if wide and wide[0] is not None and wide[1] is not None else (before, after)
    first, second = (_sides(model, double, rows) for model, double in zip((before, after), doubles, strict=True))
    wider = _rows(after) > rows
    beams = (1,) if wider or is_large(before) else (1, 5)  # a beam adds up probabilities, which new tokens share
    sample, limits = random_sample(before, batches=1), LIMITS if type(before) is type(after) else _OTHER_CLASS
    return measure(first, second, sample, about=about, limits=limits, beams=beams, **facts)


def _sides(model: PreTrainedModel, double: PreTrainedModel, rows: int) -> dict[Precision, Runner]:
    if is_large(model):
        return {"fp32": _cut(runner_of(model.eval(), "fp32", copied=False), rows)}
    of: dict[Precision, PreTrainedModel] = {"fp64": double, "fp32": model, "bf16": model}
    return {p: _cut(runner_of(one, p, promoted=p == "fp64"), rows) for p, one in of.items()}


def _rows(model: PreTrainedModel) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def _cut(runner: Runner, rows: int) -> Runner:
    return replace(runner, logits=lambda batch: runner.logits(batch)[..., :rows])
