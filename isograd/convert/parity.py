"""The parity report: the measured proof that two models compute the same function.

    report = measure(before, after)
    print(report)
    report.write(folder)                   # parity.json, the same for the same files

The largest difference between logits over the largest logit, at all positions that are no padding, must be at most
1e-12 in fp64 and 1e-5 in fp32; bf16 is measured and not judged, since there the first model differs as much from
itself. Generated tokens must be equal in the finest precision in which both can generate.
"""

import copy
import hashlib
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import GenerationConfig, PreTrainedModel

import isograd
from isograd.convert.sample import Batch, Sample, random_sample
from isograd.errors import IsogradError
from isograd.hub import remote_code_is_trusted

NAME = "parity.json"
Precision = Literal["fp64", "fp32", "bf16"]
DTYPES: Mapping[Precision, torch.dtype] = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
LIMITS: Mapping[Precision, float | None] = {"fp64": 1e-12, "fp32": 1e-5, "bf16": None}
BEAMS = (1, 5)
LARGE_LIMITS: Mapping[Precision, float | None] = {"fp32": 1e-4}  # of two correct ones at 1.1e9: 5e-6
LARGE = 300_000_000  # parameters beyond which nothing is computed in fp64


@dataclass(frozen=True, kw_only=True)
class Runner:
    """What can be compared.

    Attributes:
        logits: a batch of `Sample.batches` -> logits, (batch, time, vocabulary) or (batch, classes).
        generate: a prompt of `Sample.prompts`, beams (1 is greedy), new tokens at most -> for each sequence the ids
            after the prompt, without eos and what follows it.
    """

    logits: Callable[[Batch], Tensor]
    generate: Callable[[Batch, int, int], list[list[int]]] | None = None


ParityPart = nn.Module | Runner | Callable[[Batch], Tensor]
Side = ParityPart | Mapping[Precision, ParityPart]


@dataclass(frozen=True, kw_only=True)
class Logits:
    """Logits of both models in one precision.

    Attributes:
        difference: the largest one between two logits; None where one is not a number.
        largest: the largest logit of the first model, in absolute value.
        relative: difference / largest.
        limit: of `relative`; None is not judged.
        rounding: the same of the first model in this precision and in the finest one; None for the finest.
        passed: within the limit.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("passed",)

    precision: Precision
    difference: float | None
    largest: float | None
    relative: float | None
    limit: float | None
    rounding: float | None = None

    @property
    def passed(self) -> bool:
        return self.limit is None or (self.relative is not None and self.relative <= self.limit)

    @property
    def failure(self) -> str:
        found = "are not numbers" if self.relative is None else f"differ by {self.relative:.2g} of the largest"
        return f"{self.precision} logits {found}, where {self.limit:g} is allowed"


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What both models generate from the same prompts.

    Attributes:
        beams: 1 is greedy.
        equal, prompts: how many of how many outputs are equal, token for token.
        tokens: that the first model generated.
        judged: all must be equal.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("search", "passed")

    precision: Precision
    beams: int
    equal: int
    prompts: int
    tokens: int
    judged: bool

    @property
    def passed(self) -> bool:
        return not self.judged or self.equal == self.prompts

    @property
    def failure(self) -> str:
        return f"{self.equal} of {self.prompts} {self.search} outputs are equal"

    @property
    def search(self) -> str:
        return "greedy" if self.beams == 1 else f"beam {self.beams}"

    def __str__(self) -> str:
        judged = "" if self.judged else " (not judged)"
        return (
            f"{self.search} in {self.precision}: {self.equal} of {self.prompts} outputs equal,"
            f" {self.tokens} tokens{judged}"
        )


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """What was measured.

    Attributes:
        about: what was done, in a few words.
        inputs: kind, sequences, tokens, padding, prompts.
        files: path -> sha256 of what was written; source: the same of what it was made from.
        notes: what a user should know, a sentence each.
        date: left out unless given, so that the same files have the same report.
    """

    about: str
    logits: tuple[Logits, ...]
    generated: tuple[Generated, ...]
    inputs: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    date: str | None = None

    @property
    def passed(self) -> bool:
        return not self.failures()

    def failures(self) -> list[str]:
        """What failed, each in a few words."""
        rows: tuple[Logits | Generated, ...] = (*self.logits, *self.generated)
        return [row.failure for row in rows if not row.passed]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        content = {"passed": self.passed, "failures": self.failures()} | asdict(self)
        content["logits"] = [asdict(row) | {"passed": row.passed} for row in self.logits]
        content["generated"] = [asdict(row) | {"search": row.search, "passed": row.passed} for row in self.generated]
        return {name: value for name, value in content.items() if name != "date" or value is not None}

    def write(self, folder: Path) -> Path:
        """Write parity.json.

        Raises:
            ParityError: the report did not pass: nothing is to be handed on.
        """
        if not self.passed:
            raise ParityError(self)
        path = folder / NAME
        path.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")
        return path

    def __str__(self) -> str:
        n = self.inputs
        tokens = f"{n['tokens']} tokens, {n['padding']} positions of padding"
        verdict = f"parity: FAILED: {'; '.join(self.failures())}" if self.failures() else "parity: passed"
        return "\n".join(
            [
                self.about,
                *_table(self.logits),
                *map(str, self.generated),
                f"on {n['kind']}: {n['sequences']} sequences, {tokens}; {n['prompts']} prompts",
                *self.notes,
                verdict,
            ]
        )


class ParityError(IsogradError):
    """Two models that do not compute the same; nothing is written."""

    exit_code = 1

    def __init__(self, report: ParityReport) -> None:
        super().__init__(f"parity failed: {'; '.join(report.failures())}")
        self.report = report


def measure(
    before: Side,
    after: Side,
    sample: Sample | None = None,
    *,
    about: str = "before and after",
    limits: Mapping[Precision, float | None] = LIMITS,
    beams: Sequence[int] = BEAMS,
    versions: Mapping[str, str] | None = None,
    **facts: Any,
) -> ParityReport:
    """Run both on the same inputs and compare; models of more than 300 million parameters in fp32 alone, on less.

    Args:
        before, after: a model (with `logits` in its outputs, or a tensor as output), a function from a batch to
            logits, a `Runner`, or one of these per precision, as {"fp64": ..., "fp32": ...}. A model serves every
            precision, by copies of it; a function or a `Runner` alone serves fp32.
        sample: what they read; None draws random ids for the one that is a model.
        limits: precision -> the largest relative difference; None is not judged. What is not named is not measured.
        versions: of further libraries.
        facts: files, source, notes, date of `ParityReport`.

    Raises:
        ValueError: no precision that is to be judged can be run on both sides.
    """
    sample = random_sample(_model(before, after)) if sample is None else sample
    logits: list[Logits] = []
    generated: list[Generated] = []
    exact: list[Tensor] | None = None
    large = any(is_large(part) for side in (before, after) for part in _models(side))
    if large:
        sample, beams, limits = sample.first(), (1,), LARGE_LIMITS
    for precision, limit in limits.items():
        parts = _part(before, precision), _part(after, precision)
        if parts[0] is None or parts[1] is None:
            continue
        promoted = precision == "fp64" and all(isinstance(part, PreTrainedModel) for part in parts) and _rotates(parts)
        writes = limit is not None and all(map(_generates, parts))
        found = [_found(part, precision, promoted, sample, beams if writes else ()) for part in parts]
        ours, theirs = (side.logits for side in found)
        difference, largest, relative = _difference(ours, theirs)
        logits.append(
            Logits(
                precision=precision,
                difference=difference,
                largest=largest,
                relative=relative,
                limit=limit,
                rounding=None if exact is None else _difference(exact, ours)[2],
            )
        )
        exact = ours if exact is None else exact
        generated += _generated(found[0], found[1], precision, judged=not generated)
    if not any(row.limit is not None for row in logits):
        raise ValueError(f"nothing to judge: neither side runs in a precision with a limit ({dict(limits)})")
    return ParityReport(
        about=about,
        logits=tuple(logits),
        generated=tuple(generated),
        inputs={"kind": sample.kind} | sample.counts(),
        versions=_versions() | dict(versions or {}),
        **facts,
    )


def hashes(path: str | Path) -> dict[str, str]:
    """Path inside a folder -> sha256 of all files but the report; of a file its name -> sha256."""
    path = Path(path)
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and p.name != NAME)
    out = {}
    for one in files:
        with one.open("rb") as file:
            name = one.name if one == path else one.relative_to(path).as_posix()
            out[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return out


def is_large(model: nn.Module) -> bool:
    """Whether it has more parameters than are copied where they need not be."""
    return sum(p.numel() for p in model.parameters()) > LARGE


def _models(side: Side) -> list[nn.Module]:
    return [one for one in (side.values() if isinstance(side, Mapping) else [side]) if isinstance(one, nn.Module)]


def _model(*sides: Side) -> nn.Module:
    for side in sides:
        for part in side.values() if isinstance(side, Mapping) else [side]:
            if isinstance(part, nn.Module) and hasattr(part, "config"):
                return part
    raise ValueError("neither side is a model with a configuration that tells its inputs: pass a sample")


def _versions() -> dict[str, str]:
    return {
        "isograd": isograd.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        **({"trust_remote_code": "yes"} if remote_code_is_trusted() else {}),
    }


def _part(side: Side, precision: Precision) -> Any:
    """What stands for the side in a precision; None where nothing does."""
    if isinstance(side, Mapping):
        return side.get(precision)
    return side if isinstance(side, nn.Module) or precision == "fp32" else None


def _rotates(parts: Sequence[Any]) -> bool:
    """Whether one has rotary positions: these transformers computes in float32, and sinusoids are read from tables."""
    return any(getattr(part.config, "position_embedding_type", None) == "rotary" for part in parts)


def _runner(part: Any, precision: Precision, *, promoted: bool) -> Runner:
    if isinstance(part, Runner):
        return part
    if not isinstance(part, nn.Module):
        return Runner(logits=part)
    return runner_of(part, precision, promoted=promoted)


def runner_of(part: nn.Module, precision: Precision, *, promoted: bool = False) -> Runner:
    """A model in a precision: a copy of it, or of a large one that is in this precision already the model itself.

    Args:
        promoted: casts to float32 inside the model go to float64.
    """
    copied = not is_large(part) or {p.dtype for p in part.parameters()} != {DTYPES[precision]}
    model: Any = copy.deepcopy(part).to(DTYPES[precision]).eval() if copied else part
    mode: Callable[[], Any] = Promoted if promoted else nullcontext

    def logits(batch: Batch) -> Tensor:
        with torch.inference_mode(), mode():
            out = model(**_on_device(model, batch))
        found = out if isinstance(out, Tensor) else out.logits if hasattr(out, "logits") else out[0]
        assert isinstance(found, Tensor)
        return found

    def generate(prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
        with mode():
            return _continued(model, prompt, beams, new_tokens)

    generates = hasattr(part, "can_generate") and model.can_generate()
    return Runner(logits=logits, generate=generate if generates else None)


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What a large model said in float32, so that it need not be held beside another.

    It answers for the batches and prompts of its own sample alone.
    """

    sample: Sample
    runner: Runner

    @classmethod
    def of(cls, model: nn.Module, sample: Sample | None = None) -> "Remembered":
        sample, live = (sample or random_sample(model)).first(), runner_of(model.eval(), "fp32")
        logits = {id(batch): live.logits(batch).clone() for batch in sample.batches}
        generate = live.generate
        if generate is None:
            return cls(sample=sample, runner=Runner(logits=lambda batch: logits[id(batch)]))
        texts = {id(prompt): generate(prompt, 1, sample.new_tokens) for prompt in sample.prompts}
        known = Runner(logits=lambda batch: logits[id(batch)], generate=lambda prompt, beams, new: texts[id(prompt)])
        return cls(sample=sample, runner=known)

    @property
    def side(self) -> Mapping[Precision, ParityPart]:
        """As `measure` takes it."""
        return {"fp32": self.runner}


class Promoted(TorchFunctionMode):
    """Casts of tensors to float32 go to float64: norms, softmax and rotations of transformers have them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        elif func in _CASTS:
            args = tuple(torch.float64 if one is torch.float32 else one for one in args)
            kwargs = {name: torch.float64 if one is torch.float32 else one for name, one in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))


_CASTS = frozenset((Tensor.to, Tensor.type, Tensor.softmax, torch.softmax, nn.functional.softmax))


def _continued(model: Any, prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
    """By the rules of transformers, whatever generation_config.json says: it may differ where the function does not."""
    config = model.config
    end = config.eos_token_id if isinstance(config.eos_token_id, int) else None
    pad = config.pad_token_id if isinstance(config.pad_token_id, int) else end or 0
    before, model.generation_config = (
        getattr(model, "generation_config", None),
        GenerationConfig(
            pad_token_id=pad,
            bos_token_id=config.bos_token_id,
            eos_token_id=end,
            decoder_start_token_id=getattr(config, "decoder_start_token_id", None),
        ),
    )
    with torch.inference_mode():
        out = model.generate(**_on_device(model, prompt), num_beams=beams, do_sample=False, max_new_tokens=new_tokens)
    model.generation_config = before  # it may be the model itself
    read = 1 if config.is_encoder_decoder else prompt["input_ids"].shape[1]
    return [until(end, row) for row in out[:, read:].tolist()]


def until(end: int | None, row: list[int]) -> list[int]:
    """The ids before the first `end`."""
    return row[: row.index(end)] if end in row else row


def _on_device(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    device = next(iter(model.parameters())).device
    return {name: value.to(device) for name, value in batch.items()}


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What one side computed: logits of each batch, and by number of beams a text for each prompt."""

    logits: list[Tensor]
    texts: dict[int, list[list[int]]]


def _found(part: Any, precision: Precision, promoted: bool, sample: Sample, beams: Sequence[int]) -> _Found:
    """One side alone: its copy in this precision is gone before the other's is made."""
    runner = _runner(part, precision, promoted=promoted)
    texts: dict[int, list[list[int]]] = {}
    for width in beams if sample.prompts else ():
        assert runner.generate is not None
        texts[width] = [row for given in sample.prompts for row in runner.generate(given, width, sample.new_tokens)]
    return _Found(logits=[_counted(runner.logits(batch), batch) for batch in sample.batches], texts=texts)


def _generates(part: Any) -> bool:
    if isinstance(part, Runner):
        return part.generate is not None
    able: Any = getattr(part, "can_generate", None)
    return isinstance(part, nn.Module) and able is not None and bool(able())


def _generated(first: _Found, second: _Found, precision: Precision, *, judged: bool) -> list[Generated]:
    out = []
    for width in first.texts:
        pairs = list(zip(first.texts[width], second.texts[width], strict=True))
        out.append(
            Generated(
                precision=precision,
                beams=width,
                equal=sum(a == b for a, b in pairs),
                prompts=len(pairs),
                tokens=sum(len(a) for a, _ in pairs),
                judged=judged,
            )
        )
    return out


def _counted(logits: Tensor, batch: Batch) -> Tensor:
    """The logits in fp64, at the positions that are no padding: (positions, vocabulary)."""
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


def _table(rows: Sequence[Logits]) -> list[str]:
    head = ("logits", "difference", "largest", "relative", "limit", "own rounding")
    cells = [
        (
            row.precision,
            *(_number(value, "not a number") for value in (row.difference, row.largest, row.relative)),
            _number(row.limit, "none"),
            _number(row.rounding, ""),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *cells)]


def _number(value: float | None, absent: str) -> str:
    return absent if value is None else f"{value:.2g}"
