"""Two models on the same inputs: how far their logits are apart, and whether they write the same."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isograd.interop.running import Precision, Runner, Side, runner
from isograd.interop.sample import Batch, Sample


@dataclass(frozen=True, kw_only=True)
class Logits:
    """Logits of both models in one precision.

    Attributes:
        difference: the largest one between two logits; None where one is not a number.
        largest: the largest logit of the first model, in absolute value.
        relative: difference / largest.
        limit: of `relative`; None is not judged.
        rounding: the same of the first model in this precision and in the finest one; None for the finest.
    """

    precision: Precision
    difference: float | None
    largest: float | None
    relative: float | None
    limit: float | None
    rounding: float | None = None

    @property
    def holds(self) -> bool:
        return self.limit is None or (self.relative is not None and self.relative <= self.limit)

    @property
    def failure(self) -> str:
        said = "are not numbers" if self.relative is None else f"differ by {self.relative:.2g} of the largest"
        return f"{self.precision} logits {said}, where {self.limit:g} is allowed"


@dataclass(frozen=True, kw_only=True)
class Writing:
    """What both models write behind the same prompts.

    Attributes:
        beams: 1 is greedy.
        equal, prompts: how many of how many are equal, token for token.
        tokens: that the first model wrote.
        judged: all have to be; so it is in the finest precision that both can write in.
    """

    precision: Precision
    beams: int
    equal: int
    prompts: int
    tokens: int
    judged: bool

    @property
    def holds(self) -> bool:
        return not self.judged or self.equal == self.prompts

    @property
    def failure(self) -> str:
        return f"{self.equal} of {self.prompts} {self.search} outputs are equal"

    @property
    def search(self) -> str:
        return "greedy" if self.beams == 1 else f"beam {self.beams}"


def measure(
    before: Side, after: Side, sample: Sample, limits: Mapping[Precision, float | None], beams: Sequence[int]
) -> tuple[list[Logits], list[Writing]]:
    """A row per precision that both sides have, in the order of `limits`; one per search in each that is judged."""
    logits: list[Logits] = []
    writing: list[Writing] = []
    exact: list[Tensor] | None = None
    for precision, limit in limits.items():
        first, second = runner(before, precision), runner(after, precision)
        if first is None or second is None:
            continue
        ours, theirs = ([_counted(side.logits(batch), batch) for batch in sample.batches] for side in (first, second))
        rounding = None if exact is None else _difference(exact, ours)[2]
        exact = ours if exact is None else exact
        difference, largest, relative = _difference(ours, theirs)
        logits.append(
            Logits(
                precision=precision,
                difference=difference,
                largest=largest,
                relative=relative,
                limit=limit,
                rounding=rounding,
            )
        )
        if limit is not None:
            writing += _written(first, second, precision, sample, beams, judged=not writing)
    return logits, writing


def _written(
    first: Runner, second: Runner, precision: Precision, sample: Sample, beams: Sequence[int], *, judged: bool
) -> list[Writing]:
    if first.write is None or second.write is None or not sample.prompts:
        return []
    out = []
    for width in beams:
        pairs = [
            pair
            for prompt in sample.prompts
            for pair in zip(
                first.write(prompt, width, sample.new_tokens),
                second.write(prompt, width, sample.new_tokens),
                strict=True,
            )
        ]
        equal = sum(a == b for a, b in pairs)
        tokens = sum(len(ours) for ours, _ in pairs)
        out.append(
            Writing(precision=precision, beams=width, equal=equal, prompts=len(pairs), tokens=tokens, judged=judged)
        )
    return out


def _counted(logits: Tensor, batch: Batch) -> Tensor:
    """The logits in fp64, at the places that count: (places, vocabulary)."""
    logits = logits.detach().to("cpu", torch.float64)
    mask = batch.get("decoder_attention_mask", None if "decoder_input_ids" in batch else batch.get("attention_mask"))
    if mask is None or mask.shape != logits.shape[:2]:
        return logits.flatten(0, -2)
    return logits[mask.bool().cpu()]


def _difference(first: list[Tensor], second: list[Tensor]) -> tuple[float | None, float | None, float | None]:
    """The largest difference, the largest entry of the first, their ratio; None for what is not a number."""
    a, b = torch.cat(first), torch.cat(second)
    if a.shape != b.shape:
        raise ValueError(f"logits of shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be compared")
    difference, largest = float((a - b).abs().max()), float(a.abs().max())
    relative = difference / largest if largest else difference
    found = [value if math.isfinite(value) else None for value in (difference, largest, relative)]
    return found[0], found[1], found[2]
