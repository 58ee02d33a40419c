"""The loss: of which targets, over which positions, weighted how, and whether it is what it seems to be."""

import math
from typing import Any

import torch
from torch import Tensor

from isograd.lint.step.losses import CLASSES, NUMBERS, LossCall
from isograd.lint.step.rules import padding
from isograd.lint.step.seen import Results, Seen, finding
from isograd.trace.inputs import evaluating
from isograd.trace.record import undisturbed

SHIFTED = {
    0: "the token that the prediction has read last",
    2: "the token after the next",
    -1: "the token before the last",
    3: "the third token ahead",
}
SHOWN = 0.5  # of the targets, from which on they are visible
UNEQUAL = 3.0  # targets of one part over those of another
EXACT = 0.03
ALONG = 0.9  # cosine of gradients that are of one loss
LOGS = {"nll_loss": ", or take cross_entropy of the logits", "kl_div": "", "ctc_loss": ""}  # take logarithms
ROWS = 32  # of a batch that are compared with each other
SAME = 1e-6  # of a loss
MOVED = 0.05  # of a weight's spread
COPIED = 0.95  # the share of labels that are the inputs, moved


def look(seen: Seen) -> Results:
    """All of the loss."""
    yield from _said(seen)
    yield from _predicts(seen)
    yield from padding.look(seen)
    yield from _form(seen)
    yield from _weights(seen)


def _said(seen: Seen) -> Results:
    call = seen.main
    values = [value for _, _, value in seen.record.backwards]
    if broken := [value for value in values if not math.isfinite(value)]:
        empty = call is not None and call.name in CLASSES and not int(call.rows[2].sum())
        if not empty:
            yield finding(
                "loss-not-finite",
                "error",
                f"the loss is {broken[0]:g} in {len(broken)} of {len(values)} backward passes",
                "look for rows that are masked wholly, log(0), 0 / 0, or inputs that are not finite",
                float(len(broken)),
            )
    if len(values) > 2 and all(abs(v - math.log(2)) < SAME for v in values) and _is_constant(seen):
        yield finding(
            "loss-constant",
            "error",
            f"the loss is log 2 in all {len(values)} backward passes, and stays so when the weights are moved: a margin"
            " is that of something and itself",
            "give the reference weights of its own: copy.deepcopy(model).requires_grad_(False).eval()",
            values[0],
        )
    if call is None:
        losses = [value for _, _, value in seen.record.backwards]
        yield f"formed by no function of torch.nn.functional{f', {losses[0]:.3g} at first' if losses else ''}"
        return
    if call.name in CLASSES:
        given, _, counts = call.rows
        classes, scored = given.shape[-1], int(counts.sum())
        value = f"{call.value:.2f}, " if call.value is not None and call.reduction == "mean" else ""
        what = f"{value}cross-entropy of {scored:,} targets over {classes:,} classes"
        yield f"{what}; a guess loses {math.log(classes):.2f}"
    else:
        value = f"{call.value:.3g}, " if call.value is not None else ""
        yield f"{value}{call.name.replace('_', ' ')} of {call.given.numel():,} predictions"


def _predicts(seen: Seen) -> Results:
    """Which token a causal model is to predict, and whether a target is visible."""
    read = seen.reading
    if read is None:
        return
    if read.crossed:
        yield finding(
            "targets-mixed",
            "error",
            "predictions are flattened as (time, batch) and targets as (batch, time): changing one sequence moves"
            " predictions that are scored against the targets of others",
            "give both one layout before they are flattened: logits.transpose(0, 1)",
            read.share,
        )
        return
    if read.offset is None:
        call = seen.main
        if call is not None and call.target.ndim and not read.both:
            rows = call.rows[1]
            if rows.numel() == read.ids.numel() and mixed(read.ids, rows.view(len(read.ids), -1)):
                yield finding(
                    "targets-mixed",
                    "error",
                    "the targets are the next tokens of other rows of the batch",
                    "take inputs and targets from one slice, and shuffle both together",
                    read.share,
                )
        yield "targets are not later ids of the same row of the batch"
        return
    if read.both:
        if read.tried and read.visible > SHOWN and read.offset > 0:
            yield finding(
                "target-leaks",
                "error",
                f"the target is the id {read.offset} further on in {read.name}, and the model reads it:"
                f" changing it moved the prediction in {read.visible:.0%} of {read.tried} tries",
                "mask the attention: is_causal=True, or a triangular mask, in every layer",
                read.visible,
            )
        elif read.tried and read.offset == 0 and read.alone:
            yield finding(
                "target-leaks",
                "error",
                f"at {read.share:.0%} of the positions that count the target is the id that stands there in"
                f" {read.name}, and the model reads it",
                "hide what is to be predicted: put the mask token there, or count masked positions only",
                read.share,
            )
        return
    if read.ahead == 1:
        yield f"each prediction is scored against the next token of {read.name}, and cannot read it"
    elif read.ahead is not None and read.ahead <= 0 and read.tried and read.visible > SHOWN:
        yield finding(
            "target-leaks",
            "error",
            f"the target is {SHIFTED.get(read.ahead, 'an earlier token')}: changing it moved its own prediction in"
            f" {read.visible:.0%} of {read.tried} tries",
            "shift once: logits[:, :-1] against ids[:, 1:]",
            read.visible,
        )
    elif read.ahead is not None:
        target = SHIFTED.get(read.ahead, f"the token {read.ahead} places ahead")
        yield finding(
            "loss-shifted",
            "error",
            f"at {read.share:.0%} of the positions the target is {target} instead of the next",
            "shift once, in the data or in the loss: logits[:, :-1] against ids[:, 1:]",
            float(read.ahead),
        )


def _form(seen: Seen) -> Results:
    """What the loss function got."""
    if n := seen.record.spread:
        yield finding(
            "loss-broadcast",
            "error",
            f"predictions and targets of the shapes ({n}, 1) and ({n},) are subtracted: they are spread to ({n}, {n}),"
            " and each prediction is drawn to the mean of all targets",
            "give both one shape: prediction.squeeze(-1), or target.unsqueeze(-1)",
            float(n),
        )
    for call in seen.record.losses[:40]:
        shapes = tuple(call.given.shape), tuple(call.target.shape)
        if call.name in NUMBERS and shapes[0] != shapes[1] and call.given.numel() > 1:
            spread = torch.broadcast_shapes(*shapes)
            if math.prod(spread) > max(call.given.numel(), call.target.numel()):
                yield finding(
                    "loss-broadcast",
                    "error",
                    f"predictions {shapes[0]} and targets {shapes[1]} are spread to {tuple(spread)}:"
                    " each prediction is drawn to the mean of all targets",
                    "give both one shape: prediction.squeeze(-1), or target.unsqueeze(-1)",
                    float(math.prod(spread)),
                )
                break
        if call.name == "ctc_loss" and (share := _blanks(call)):
            message = f"{share:.0%} of the targets are {call.settings['blank']}, which is the blank of ctc_loss"
            remedy = "pass blank= as the model has it, often its last class, or begin the labels at 1"
            yield finding("blank-in-targets", "error", message, remedy, share)
            break
        if (wrong := _wrong(call)) and not _normalized(seen, call):
            message = f"{call.name} takes {wrong[0]} and got {wrong[1]}"
            yield finding("loss-of-probabilities", "error", message, wrong[2], call.value or 0.0)
            break
    yield from _regrouped(seen)
    yield from _constants(seen)
    main = seen.main
    if main is not None and main.name in CLASSES and not main.target.is_floating_point():
        counts = main.rows[2]
        whole = max(
            (abs(value) for *_, value in seen.record.backwards), default=math.inf
        )  # divided by the count later?
        if int(counts.sum()) and main.value is not None and main.reduction == "sum" and 2 * whole > abs(main.value):
            yield f"the sum over {int(counts.sum()):,} targets, not their mean"


def _is_constant(seen: Seen) -> bool:
    """Whether the loss of a batch is the same with all weights moved, where real updates move them, too."""
    model, draw = seen.setup.model, torch.Generator().manual_seed(3)
    try:
        with evaluating(model), undisturbed(model), torch.no_grad():
            before = float(seen.formed(seen.batches[0]).whole)
            for p in (p for p in model.parameters() if p.requires_grad):
                p.add_(torch.randn(p.shape, generator=draw).to(p) * (MOVED * p.std(correction=0) + 1e-3))
            after = float(seen.formed(seen.batches[0]).whole)
    except Exception:  # a loss that wants what is not there
        return False
    trained = any(change for step in seen.steps for _, change, _ in step.moved.values())
    return trained and abs(after - before) < SAME


def _blanks(call: LossCall) -> float:
    """The share of targets, up to their lengths, that are the blank."""
    target, lengths = call.target, torch.as_tensor(call.settings.get("lengths"))
    if target.ndim == 2:
        target = target[torch.arange(target.shape[1], device=target.device) < lengths.to(target.device)[:, None]]
    return float((target == call.settings["blank"]).float().mean()) if len(target) else 0.0


def _regrouped(seen: Seen) -> Results:
    """Scores (batch, classes, places) viewed as (batch * places, classes): a row has entries of several places."""
    labels = [x.shape[1:] for b in seen.batches[:1] for x in seen.leaves(b).values() if not x.is_floating_point()]
    for call in seen.record.losses[:1]:
        shape, classes = call.viewed, call.given.shape[-1]
        if shape and call.given.ndim == 2 and shape[1] == classes != shape[-1] and shape[2:] in labels:
            message = (
                f"scores of shape {shape} are reshaped to {tuple(call.given.shape)}: a row, taken as the {classes}"
            )
            message += f" classes of one place, has one class at {classes} neighbouring places of {shape[-1]}"
            remedy = "move the classes to the end first: scores.movedim(1, -1).reshape(-1, scores.shape[1])"
            yield finding("targets-mixed", "error", message, remedy, float(classes))


def _constants(seen: Seen) -> Results:
    """A part of the loss that adds to its value and to no gradient: 1 more there, and only the value moves."""
    if not seen.record.constants or not seen.batches:
        return
    try:
        plain, moved, same = seen.nudged(seen.batches[0], nudge=1.0)
        with undisturbed(seen.setup.model):
            torch._foreach_mul_([p.data for p in seen.setup.model.parameters() if p.requires_grad], 1.1)
            other = seen.formed(seen.batches[0], counted=True)
    except Exception:  # it may be a count, or what a branch hangs on
        return
    pairs = zip(plain.constants, other.constants, strict=False)
    lost = [a[0] for a, b in pairs if not _refers(a, b, plain.losses)]
    if lost and abs(moved) > 1e-5 and same:
        message = f"the loss has a part without a gradient, {lost[0]}: adding 1 there moves the loss by"
        message += f" {moved:.2g} and no gradient, so that part trains nothing"
        remedy = "form it of what the trained model returns, without .item(), .detach() or no_grad()"
        yield finding("gradient-cut", "warning", message, remedy, moved)


def _refers(now: Any, later: Any, losses: list[LossCall]) -> bool:
    """Whether a loss that stays when the trained weights move has one of the same targets and a gradient beside it."""
    call, still = now[2], torch.equal(torch.as_tensor(now[1]), torch.as_tensor(later[1]))
    beside = [c for c in losses if still and call is not None and c.made_by and c.name == call.name]
    return any(torch.equal(c.target, call.target) for c in beside)


def _wrong(call: LossCall) -> tuple[str, str, str] | None:
    """Where a loss got probabilities for logits or logarithms, or the other way round: both, and what to do."""
    given, logs = call.given, "logarithms of probabilities"
    if call.name == "cross_entropy" and _probabilities(call):
        what = "probabilities (rows that sum to 1): it applies softmax again, and"
        return "logits", f"{what} the loss cannot fall below {_floor(call):.2f}", "pass the logits, without softmax"
    if call.name in LOGS and bool((given > 1e-4).any()):
        inside = bool(((given >= 0) & (given <= 1)).all())
        what = (
            f"{'probabilities' if inside else 'values above 0'} ({float(given.min()):.2g} to {float(given.max()):.2g})"
        )
        return logs, what, f"pass log_softmax(logits, -1){LOGS[call.name]}"
    if call.name == "binary_cross_entropy_with_logits" and "Sigmoid" in call.made_by:
        return "logits", "the output of a sigmoid", "pass the logits, or take binary_cross_entropy"
    if call.name == "kl_div" and bool((call.target < -1e-4).any()) and not call.settings.get("log_target"):
        return "a target of probabilities", "their logarithms", "pass log_target=True"
    return None


def _normalized(seen: Seen, call: LossCall) -> bool:
    """Whether scores that `nll_loss` picks from are made probabilities beside it: all classes together move nothing."""
    calls = seen.formed(seen.batches[0], counted=True).losses if call.name == "nll_loss" and seen.counted else []
    return max((c.level for c in calls if c.name == call.name), default=1.0) < 1e-3


def _probabilities(call: LossCall) -> bool:
    given = call.rows[0].float()
    sums = given.sum(-1)
    return given.shape[-1] > 1 and bool((given >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all())


def _floor(call: LossCall) -> float:
    """Of a softmax of a row that is 1 at one place and 0 elsewhere."""
    classes = call.rows[0].shape[-1]
    return math.log(math.e + classes - 1) - 1


def _weights(seen: Seen) -> Results:
    """How micro-batches are weighted within an update."""
    if seen.setup.accumulate < 2 and not any(step.backwards > 1 for step in seen.steps):
        return
    parts: dict[tuple[int, int], list[LossCall]] = {}
    for call in seen.record.losses:
        if call.name in CLASSES and not call.target.is_floating_point() and call.training:
            parts.setdefault((call.update, call.part), []).append(call)
    scored = [int(max(calls, key=lambda c: c.given.numel()).rows[2].sum()) for calls in parts.values()]
    ones = [values for values in seen.record.weights() if len(values) > 1] or _measured(seen)
    count = max(1, len(seen.parts))  # a loop may divide the sum of gradients by it, before the step
    by = count if seen.steps and all(abs(s.factor * count - 1) < EXACT for s in seen.steps) else 1
    for weights in ([weight / by for weight in one] for one in ones[:1]):
        total = sum(weights)
        if abs(total - len(weights)) < EXACT * len(weights):
            yield finding(
                "accumulation-undivided",
                "warning",
                f"the {len(weights)} losses of an update are added, not averaged:"
                f" its gradient is {len(weights)} times that of their mean, and clipping and SGD see it so large",
                f"divide each loss by {len(weights)}",
                total,
            )
        elif abs(total * len(weights) - 1) < EXACT:
            message = f"the gradient of an update of {len(weights)} micro-batches is {total:.2g} of that of their mean"
            message += f" loss: it is divided by {len(weights)} once too often"
            remedy = "divide the losses once: by their number, or by the number of targets in all of them, not by both"
            yield finding("accumulation-undivided", "warning", message, remedy, total)
        elif abs(total - 1) < EXACT:
            each = dict.fromkeys((f"{min(weights):.2f}", f"{max(weights):.2f}"))
            yield f"{len(weights)} micro-batches make an update, weighted {' to '.join(each)} each"
            low, high = min(scored, default=0), max(scored, default=0)
            if low and high / low >= UNEQUAL and max(weights) - min(weights) < 1e-3:
                yield finding(
                    "accumulation-unequal",
                    "info",
                    f"parts of an update have {low} to {high} targets, and weigh the same:"
                    f" a target in the shorter one counts {high / low:.1f} times as much",
                    "sum the losses of the targets, and divide by the number of targets of the whole update",
                    high / low,
                )


def _measured(seen: Seen) -> list[list[float]]:
    """Weights of parts by the gradient before the first step, beside that of the mean of their losses."""
    wanted: dict[int, Tensor] = {}
    for batch in seen.parts if seen.record.first and len(seen.parts) > 1 else ():
        try:
            slopes = seen.gradient(seen.formed(batch, counted=True).whole)
        except Exception:  # a loop with a step alone
            return []
        wanted = {key: wanted.get(key, 0.0) + slope / len(seen.parts) for key, slope in slopes.items()}
    pairs = [
        (seen.record.first[key].double(), slope.double()) for key, slope in wanted.items() if key in seen.record.first
    ]
    both, own, mean = (sum(float((x[i] * x[j]).sum()) for x in pairs) for i, j in ((0, 1), (0, 0), (1, 1)))
    weight = both / mean / seen.steps[0].scale / len(seen.parts) if mean else 0.0
    return [[weight] * len(seen.parts)] if both > ALONG * math.sqrt(own * mean) > 0 else []


def mixed(x: Tensor, y: Tensor) -> bool:
    """Whether the rows of y are the next tokens of x's rows, of others than their own.

    >>> x = torch.arange(30).view(3, 10) * 7 % 11
    >>> y = x.roll(-1, dims=1)
    >>> mixed(x, y.roll(1, dims=0)), mixed(x, y), mixed(x, y * 0)
    (True, False, False)
    """
    x, y = x[:ROWS], y[:ROWS]
    asked = (y >= 0)[:, None, :-1]
    same = ((y[:, None, :-1] == x[None, :, 1:]) & asked).sum(-1) / asked.sum(-1).clamp(min=1)
    own = same.diagonal().clone()
    same.fill_diagonal_(0.0)
    return bool(same.shape[0] > 1 and (same.amax(1) > COPIED).float().mean() > 0.5 and own.max() < COPIED)
