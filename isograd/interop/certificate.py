"""The measured proof that two models compute the same: logits in three precisions, what they write, hashes, versions.

    certificate = certify(before, after)
    print(certificate)
    certificate.write(folder)              # certificate.json, the same for the same files

The largest difference between logits over the largest logit, at all places that count, is to be at most 1e-12 in fp64
and 1e-5 in fp32; in bf16 it is measured and not judged, since there the first model differs as much from itself.
"""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import isograd
from isograd.errors import IsogradError
from isograd.interop.measurement import Logits, Writing, measure
from isograd.interop.running import Precision, Side
from isograd.interop.sample import Sample, random_sample

NAME = "certificate.json"
LIMITS: Mapping[Precision, float | None] = {"fp64": 1e-12, "fp32": 1e-5, "bf16": None}
BEAMS = (1, 5)


class CertificateError(IsogradError):
    """A certificate that does not hold; nothing is to be handed on."""

    def __init__(self, certificate: "Certificate") -> None:
        super().__init__(f"the certificate does not hold: {'; '.join(certificate.failures())}")
        self.certificate = certificate


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What was measured.

    Attributes:
        about: what was done, in a few words.
        inputs: kind, sequences, tokens, padding, prompts.
        files: path -> sha256 of what was written; source: the same of what it was made from.
        notes: what its user should know, a sentence each.
        date: left out unless given, so that the same files have the same certificate.
    """

    about: str
    logits: tuple[Logits, ...]
    writing: tuple[Writing, ...]
    inputs: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    date: str | None = None

    @property
    def holds(self) -> bool:
        return not self.failures()

    def failures(self) -> list[str]:
        """What does not hold, each in a few words."""
        rows: tuple[Logits | Writing, ...] = (*self.logits, *self.writing)
        return [row.failure for row in rows if not row.holds]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        content = {"holds": self.holds, "failures": self.failures()} | asdict(self)
        content["logits"] = [asdict(row) | {"holds": row.holds} for row in self.logits]
        content["writing"] = [asdict(row) | {"search": row.search, "holds": row.holds} for row in self.writing]
        return {name: value for name, value in content.items() if name != "date" or value is not None}

    def write(self, folder: Path) -> Path:
        path = folder / NAME
        path.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")
        return path

    def __str__(self) -> str:
        lines = [self.about, *_table(self.logits), *map(_written, self.writing)]
        n = self.inputs
        tokens = f"{n['tokens']} tokens, {n['padding']} places of padding"
        lines.append(f"on {n['kind']}: {n['sequences']} sequences, {tokens}; {n['prompts']} prompts")
        verdict = "the certificate holds" if self.holds else "THE CERTIFICATE DOES NOT HOLD"
        return "\n".join(
            [*lines, *self.notes, f"{verdict}: {said}" if (said := "; ".join(self.failures())) else verdict]
        )


def certify(
    before: Side,
    after: Side,
    sample: Sample | None = None,
    *,
    about: str = "before and after",
    limits: Mapping[Precision, float | None] = LIMITS,
    beams: Sequence[int] = BEAMS,
    files: Mapping[str, str] | None = None,
    source: Mapping[str, str] | None = None,
    versions: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    date: str | None = None,
) -> Certificate:
    """Run both on the same inputs and compare.

    Args:
        before, after: a model (with `logits` in its outputs, or a tensor as output), a function from a batch to
            logits, a `Runner`, or one of these per precision, as {"fp64": ..., "fp32": ...}. A model serves every
            precision, by copies of it; a function or a `Runner` alone serves fp32.
        sample: what they read; None draws random ids for the one that is a model.
        limits: precision -> the largest relative difference; None is not judged. What is not named is not measured.
        files, source: hashes, as `hashes` gives them.
        versions: of further libraries.

    Raises:
        ValueError: no precision that is to be judged can be run on both sides.
    """
    sample = random_sample(_model(before, after)) if sample is None else sample
    logits, writing = measure(before, after, sample, limits, beams)
    if not any(row.limit is not None for row in logits):
        raise ValueError(f"nothing to judge: neither side runs in a precision with a limit ({dict(limits)})")
    return Certificate(
        about=about,
        logits=tuple(logits),
        writing=tuple(writing),
        inputs={"kind": sample.kind} | sample.counts(),
        files=dict(files or {}),
        source=dict(source or {}),
        versions=_versions() | dict(versions or {}),
        notes=tuple(notes),
        date=date,
    )


def hashes(folder: Path) -> dict[str, str]:
    """Path inside the folder -> sha256, of all files but a certificate."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != NAME)
    out = {}
    for path in files:
        with path.open("rb") as file:
            out[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return out


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
    }


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


def _written(row: Writing) -> str:
    said = "" if row.judged else " (not judged)"
    return f"{row.search} in {row.precision}: {row.equal} of {row.prompts} outputs equal, {row.tokens} tokens{said}"


def _number(value: float | None, absent: str) -> str:
    return absent if value is None else f"{value:.2g}"
