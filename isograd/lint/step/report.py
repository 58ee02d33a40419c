"""Preflight: the step around a model, looked at before the run; a line for each group that is well."""

import inspect
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from isograd.errors import InputsError, hint
from isograd.lint.check import CODES as OF_CHECK
from isograd.lint.check import check
from isograd.lint.findings import Finding, Findings, by_harm
from isograd.lint.intent import Intents
from isograd.lint.step.rules import data, loss, optimizer, precision, processes, resume, schedule, update
from isograd.lint.step.seen import Rules, Seen, look
from isograd.lint.step.setup import setup_of
from isograd.trace.inputs import as_inputs, few_sequences, guess_inputs
from isograd.trace.record import is_large

GROUPS: dict[str, Rules] = {
    "loss": loss.look,
    "data": data.look,
    "step": update.look,
    "optimizer": optimizer.look,
    "schedule": schedule.look,
    "precision": precision.look,
    "processes": processes.look,
    "resume": resume.look,
}
FOLLOWS = {  # a code -> those that are its consequences
    "gradients-lost": ("weights-still", "gradient-missing", "gradient-zero"),
    "optimizer-of-another-model": ("weights-still", "gradient-missing", "gradients-lost", "optimizer-lacks-parameters"),
    "lr-zero": ("weights-still",),
    "schedule-not-stepped": ("weights-still", "lr-zero"),
    "step-each-part": ("schedule-per-batch",),
    "clip-before-unscale": ("eps-large",),
    "eval-mode": ("resume-differs",),
    "optimizer-lacks-parameters": ("resume-differs",),  # their gradients stay, and clipping reads them
    "data-empty": ("step-fails",),
    "scaler-not-updated": ("step-fails",),
    "loss-shifted": ("target-leaks", "initial-loss"),
    "target-leaks": ("future-leaks", "bidirectional-logits"),
    "targets-constant": ("data-sorted", "target-in-inputs", "target-unrelated"),
    "rows-never-drawn": ("same-batch", "data-sorted"),
    "data-changes": ("same-batch", "same-rows", "epochs-alike"),
    "same-batch": ("data-sorted", "epochs-alike"),
    "workers-alike": ("same-batch", "epochs-alike"),
    "loss-not-finite": ("resume-loses", "resume-differs", "gradients-add-up", "weights-still"),
    "batch-without-targets": ("output-not-finite", "loss-not-finite", "resume-loses", "resume-differs"),
    "data-not-finite": (
        "loss-not-finite",
        "resume-loses",
        "resume-differs",
        "not-finite",
        "output-not-finite",
        "gradients-add-up",
        "weights-still",
    ),
}
SEQUENCES = 4  # of a batch, that the model is checked with
OF_THE_STEP = (
    "buffer-unused",  # a loss outside the model may read it
    "lr-zero",
    "lr-high",
    "optimizer-lacks-parameters",
    "optimizer-of-another-model",
    "weight-decay-high",
)


@dataclass(frozen=True, kw_only=True)
class Preflight(Findings):
    """What `preflight` found: findings of the model and of the step around it, and a line for each group.

    Attributes:
        groups: name -> what was seen of it, in sentences.
        seconds: that it took.
    """

    groups: dict[str, str]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {"groups": self.groups, "seconds": round(self.seconds, 1)}

    def __str__(self) -> str:
        head, *rest = super().__str__().split("\n")
        lines = [f"{name:<10} {said}" for name, said in self.groups.items() if said]
        return "\n".join([head, *lines, *rest])


def preflight(
    model: Any = None,
    *,
    ignore: Iterable[str] = (),
    prove: bool | None = None,
    intent: Iterable[str] | str = (),
    name: str | None = None,
    **parts: Any,
) -> Preflight:
    """Rules at the whole step before a run: loss, data, optimizer, schedule, precision, resume, and the model.

    Some batches are taken and some updates are made; then all that is reached from what was given is put back, bit for
    bit: parameters, gradients, optimizer, scheduler, scaler, random numbers, counters.

        report = isograd.preflight(model, loss=loss, data=loader, optimizer=optimizer, steps=20_000)
        report = isograd.preflight(trainer)                      # of transformers or trl
        report = isograd.preflight((module, trainer, loader))    # of Lightning

    Args:
        model: the model, a trainer, or a dict of the parts below.
        loss: loss(model, batch), loss(output, batch), or a loss module of torch for batches (input, target); None where
            the model returns its loss.
        data: a DataLoader, or anything that can be iterated once for each epoch.
        optimizer, scheduler: one, or a list.
        scaler: torch.amp.GradScaler.
        steps: planned updates.
        accumulate: micro-batches of an update.
        clip: the largest norm of the gradient.
        autocast: the dtype of torch.autocast.
        step: step(batches), one whole update as the loop does it, on a list of `accumulate` micro-batches.
        save, load: the program's own checkpoint, to a path and from it.
        ignore: codes that are not reported.
        prove, intent: see `isograd.check`.

    Raises:
        InputsError: a part is missing or of another kind.
        ValueError: an unknown code or intent.
    """
    began, ignored = time.perf_counter(), known(ignore)
    Intents.given(intent)  # an unknown one is refused before anything runs
    setup = setup_of(model, **parts)
    seen = look(setup)
    found: dict[Finding, None] = {}
    groups: dict[str, str] = {}
    missed: list[str] = []
    try:
        if seen.failed:
            found[_failed(seen)] = None
        for group, rules in GROUPS.items():
            said: list[str] = []
            try:
                for one in rules(seen):
                    if isinstance(one, Finding):
                        found.setdefault(one)
                    else:
                        said.append(one)
            except Exception as error:  # one group that cannot look at an unusual program does not stop the others
                missed.append(f"{group}: {type(error).__name__}: {' '.join(str(error).split())}"[:200])
            groups[group] = "; ".join(said)
            seen.kept.restore()
        wiring = _checked(seen, ignored, prove, intent, missed)
    finally:
        seen.kept.restore()
    if wiring is not None:
        said_already = {f.code for f in found} | {*OF_THE_STEP, "not-found"}
        found |= dict.fromkeys(f for f in wiring if f.code not in said_already)
    codes = {f.code for f in found}
    hidden = {code for cause, effects in FOLLOWS.items() if cause in codes for code in effects} | ignored
    return Preflight(
        model=name or type(setup.model).__name__,
        placements=wiring.placements if wiring is not None else {},
        formulas=wiring.formulas if wiring is not None else {},
        findings=by_harm(f for f in found if f.code not in hidden),
        missed=(*seen.missed, *missed, *(wiring.missed if wiring is not None else ())),
        scheme=wiring.scheme if wiring is not None else "",
        groups=groups,
        seconds=time.perf_counter() - began,
    )


CODES = frozenset(
    [
        "accumulation-undivided",
        "accumulation-unequal",
        "adapters-frozen",
        "autocast-missing",
        "base-trains",
        "batch-without-targets",
        "betas-swapped",
        "blank-in-targets",
        "clip-after-step",
        "clip-before-unscale",
        "clip-per-tensor",
        "data-changes",
        "data-empty",
        "data-not-finite",
        "data-sorted",
        "decay-coupled",
        "decay-of-vectors",
        "end-never-target",
        "epochs-alike",
        "eps-large",
        "eval-mode",
        "false-negatives",
        "gradient-cut",
        "gradient-missing",
        "gradients-add-up",
        "gradients-lost",
        "gradients-not-averaged",
        "inputs-scale",
        "loss-broadcast",
        "loss-constant",
        "loss-in-half",
        "loss-not-finite",
        "loss-of-probabilities",
        "loss-shifted",
        "lr-high",
        "lr-zero",
        "muon-fused",
        "muon-groups",
        "no-update",
        "optimizer-lacks-parameters",
        "optimizer-of-another-model",
        "padding-scored",
        "parameter-held-twice",
        "parts-lost",
        "ranks-differ",
        "ranks-same-data",
        "resume-differs",
        "resume-fails",
        "resume-loses",
        "rows-never-drawn",
        "same-batch",
        "same-rows",
        "scaler-bypassed",
        "scaler-missing",
        "scaler-not-updated",
        "scaler-unused",
        "schedule-ends-early",
        "schedule-not-stepped",
        "schedule-per-batch",
        "schedule-too-long",
        "step-each-part",
        "step-fails",
        "target-in-inputs",
        "target-leaks",
        "target-unrelated",
        "targets-constant",
        "targets-mixed",
        "targets-scale",
        "updates-rounded",
        "warmup-too-long",
        "weights-apart",
        "weight-decay-high",
        "weights-still",
        "workers-alike",
    ]
)  # that preflight itself reports


def known(codes: Iterable[str]) -> frozenset[str]:
    """The codes, all of them known.

    Raises:
        ValueError: one is not.
    """
    for code in codes:
        if code not in CODES | OF_CHECK:
            raise ValueError(f"unknown code {code!r}: {hint(code, sorted(CODES | OF_CHECK))}")
    return frozenset(codes)


def _failed(seen: Seen) -> Finding:
    return Finding(
        code="step-fails",
        severity="error",
        address="",
        measured=float(seen.updates),
        message=f"an update raised {seen.failed}",
        remedy="run one update by hand, and look at its traceback",
    )


def _checked(seen: Seen, ignore: frozenset[str], prove: bool | None, intent: Any, missed: list[str]) -> Findings | None:
    """`isograd.check` of the model on what its first forward pass got."""
    forward = next((f for f in seen.forwards if f.inputs is not None), None)
    if forward is None:
        missed.append("the model: its forward was not called")
        return None
    model = seen.record.called or seen.setup.model
    args, kwargs = forward.inputs
    kwargs = {name: value for name, value in kwargs.items() if name != "fused_lm_head"}  # of trl: it returns no logits
    batch = kwargs if kwargs and not args else args
    if args and kwargs:
        names = list(inspect.signature(model.forward).parameters)
        batch = dict(zip(names, args, strict=False)) | kwargs
    large = is_large(model)
    batch = few_sequences(model, as_inputs(batch), 2 if large or seen.wide else SEQUENCES)
    with suppress(InputsError):  # short inputs serve a large model, where they can be guessed
        batch = guess_inputs(model) if large else batch
    peaks = [p for o in seen.setup.optimizers for g in o.param_groups for p in [seen.peak(g)] if p == p]
    warmup = next((c.warmup for _, c in seen.courses if c.peak > c.rates[0]), 0)
    try:
        return check(
            model,
            batch,
            lr=max(peaks, default=None) if seen.setup.steps else None,
            warmup=warmup,
            prove=prove,
            intent=intent,
            ignore=ignore & OF_CHECK,
        )
    except Exception as error:  # a model that it cannot record
        missed.append(f"the model: {type(error).__name__}: {' '.join(str(error).split())}"[:200])
        return None


__all__ = ["Preflight", "preflight"]
