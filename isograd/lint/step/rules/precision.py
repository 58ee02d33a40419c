"""The precision: which updates are rounded away, where autocast is, and how a scaler is used."""

from contextlib import suppress

import torch

from isograd.lint.step.losses import CLASSES, HALF
from isograd.lint.step.seen import Results, Seen, finding

LOST = 0.3  # of entries with a gradient that do not move
COARSE = 0.1  # nats between two numbers


def look(seen: Seen) -> Results:
    """All of the precision."""
    yield from _weights(seen)
    yield from _scaler(seen)
    yield from _autocast(seen)


def _weights(seen: Seen) -> Results:
    kinds: dict[torch.dtype, int] = {}
    for p in seen.setup.model.parameters():
        kinds[p.dtype] = kinds.get(p.dtype, 0) + p.numel()
    names = ", ".join(str(kind).removeprefix("torch.") for kind in kinds)
    lost = total = 0.0
    for step in seen.steps[1:] or seen.steps:
        if max(step.rates, default=0.0) <= 0:
            continue
        for name, (_, _, still) in step.moved.items():
            if name in step.half:
                lost, total = lost + still, total + 1
    if total and lost / total > LOST:
        yield finding(
            "updates-rounded",
            "error",
            f"{lost / total:.0%} of the entries with a gradient do not move: their update is smaller than half a"
            f" step of {names}",
            "keep weights in float32 and compute under torch.autocast, or round stochastically",
            lost / total,
        )
    else:
        yield f"weights in {names}" + (f"; {lost / total:.0%} of their updates are rounded away" if total else "")


def _scaler(seen: Seen) -> Results:
    scaler, steps = seen.setup.scaler, seen.steps
    enabled = scaler is not None and scaler.is_enabled()
    fp16 = any(f.autocast == torch.float16 for f in seen.forwards)
    clipped = [s for s in steps if s.clipped is not None and s.clipped < 0.999]
    if clipped:
        yield finding(
            "clip-before-unscale",
            "error",
            f"gradients are clipped while they are {clipped[0].scale:,.0f} times too large:"
            f" they shrink to {clipped[0].clipped:.2g} of themselves",
            "call scaler.unscale_(optimizer) before clip_grad_norm_",
            clipped[0].clipped or 0.0,
        )
        return
    if enabled:
        scaled = [v for u, _, v in seen.record.backwards]
        values = [c.value for c in seen.record.losses if c.value]
        is_scaled = bool(scaled and values and abs(scaled[0]) > 8 * abs(values[0]))
        raw = [s for s in steps if not s.unscaled]
        if is_scaled and raw and len(raw) == len(steps):
            yield finding(
                "scaler-bypassed",
                "error",
                f"the loss is scaled by {scaled[0] / values[0]:.3g}, and optimizer.step() gets gradients that are"
                " not unscaled",
                "call scaler.step(optimizer) instead of optimizer.step()",
                abs(scaled[0] / values[0]),
            )
        elif is_scaled and not any(what == "step" for _, what in seen.record.scaled):
            yield finding(
                "scaler-bypassed",
                "warning",
                "gradients are unscaled, and the step is optimizer.step(): one with inf or NaN is not left out",
                "call scaler.step(optimizer) instead of optimizer.step()",
                1.0,
            )
        elif is_scaled and not any(what == "update" for _, what in seen.record.scaled):
            yield finding(
                "scaler-not-updated",
                "error",
                "scaler.update() is never called: its factor stays, and overflows are not followed",
                "call scaler.update() after scaler.step()",
                0.0,
            )
        elif not is_scaled and values:
            yield finding(
                "scaler-unused",
                "warning",
                "a scaler is there, and the loss is not scaled by it",
                "call scaler.scale(loss).backward()",
                1.0,
            )
        else:
            yield "the loss is scaled, and gradients are unscaled before the step"
    elif fp16 and steps:
        zeros = sum(len(s.zero) for s in steps)
        yield finding(
            "scaler-missing",
            "error" if zeros else "warning",
            "autocast computes in float16, and no scaler keeps small gradients from becoming 0",
            "use torch.amp.GradScaler, or autocast to bfloat16",
            float(zeros),
        )


def _autocast(seen: Seen) -> Results:
    setup = seen.setup
    inside = [f for f in seen.forwards if f.graded]
    if setup.autocast is not None and setup.step is not None and inside and not any(f.autocast for f in inside):
        yield finding(
            "autocast-missing",
            "warning",
            f"autocast to {setup.autocast} is planned, and no forward pass runs under it",
            "put `with torch.autocast(...)` around the forward pass",
            1.0,
        )
    calls = [
        c
        for c in seen.record.losses
        if c.name in CLASSES and c.given.dtype in HALF and not any(f.autocast for f in inside)
    ]
    half = {p.dtype for p in setup.model.parameters()} & {*HALF}
    if calls and not half:
        yield finding(
            "loss-in-half", "info", f"the loss is computed in {calls[0].given.dtype}", "give it logits.float()", 1.0
        )
    step, size, dtype = seen.record.coarse or (0.0, 0.0, None)
    added = False
    with suppress(Exception):  # what is only added up passes the same gradient
        added = step >= COARSE and seen.nudged(seen.batches[0], apart=step)[2]
    if step >= COARSE and not added:
        message = (
            f"log-probabilities of about -{size:.0f} nats are subtracted in {dtype}, where numbers of that size are"
        )
        message += f" {step:.2g} nats apart: their difference is rounded to that"
        remedy = "take log_softmax and its sums in float32: logits.float().log_softmax(-1)"
        yield finding("loss-in-half", "warning", message, remedy, step)
    used = {str(f.autocast).removeprefix("torch.") for f in inside if f.autocast}
    if used:
        yield f"forward passes under autocast to {', '.join(sorted(used))}"
