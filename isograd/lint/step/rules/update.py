"""The update: what the optimizer gets is what backward brought, once, in training mode, and it moves the weights."""

import math
from collections import defaultdict
from statistics import median

from torch import nn

from isograd.errors import many
from isograd.lint.step.recorder import Step
from isograd.lint.step.seen import Results, Seen, finding

STALE = 0.02  # of a gradient: what is left of the one before
BLOCKS = 4  # that are clipped each by itself, at least
NOISY = ("Dropout", "BatchNorm", "DropPath", "StochasticDepth")


def look(seen: Seen) -> Results:
    """All of the update."""
    steps = seen.steps
    if not steps:
        if not seen.failed:
            yield finding("no-update", "error", "no optimizer took a step", "call optimizer.step() after backward", 0.0)
        return
    yield from _mode(seen)
    yield from _count(seen)
    yield from _gradients(seen)
    yield from _moves(seen)


def by_mode(model: nn.Module) -> list[nn.Module]:
    """Modules that compute something else in evaluation mode."""
    return [m for m in model.modules() if type(m).__name__.startswith(NOISY) and getattr(m, "p", 1) != 0]


def _mode(seen: Seen) -> Results:
    noisy = {type(m).__name__ for m in by_mode(seen.setup.model)}
    first = [f for f in seen.forwards if f.graded]
    if noisy and first and not any(f.training for f in first):
        yield finding(
            "eval-mode",
            "error",
            f"updates are made in evaluation mode: {', '.join(sorted(noisy))} does nothing",
            "call model.train() before the loop, and after each evaluation",
            float(len(first)),
        )
    elif noisy and first and not all(f.training for f in first):
        yield finding(
            "eval-mode",
            "warning",
            "some updates are made in evaluation mode, others are not",
            "call model.train() after each evaluation",
            1.0,
        )


def _count(seen: Seen) -> Results:
    """Backward passes and optimizer steps of one update."""
    setup, steps = seen.setup, [s for s in seen.steps if s.backwards]
    by_update: dict[int, dict[int, int]] = {}
    for step in steps:
        own = by_update.setdefault(step.update, {})
        own[id(step.optimizer)] = own.get(id(step.optimizer), 0) + 1
    most = max((n for own in by_update.values() for n in own.values()), default=0)
    wanted = setup.accumulate
    if setup.kind == "loop" and wanted > 1 and most == wanted:
        yield finding(
            "step-each-part",
            "error",
            f"the optimizer steps {most} times in an update of {wanted} micro-batches: nothing is accumulated",
            "call optimizer.step() and zero_grad() once per update, after the last micro-batch",
            float(most),
        )
    elif setup.kind == "loop" and wanted > 1:
        passes = len([1 for u, _, _ in seen.record.backwards if u == 0])
        reach = max((s.backwards for s in steps if s.update == 0), default=0)
        if reach < wanted and (passes >= wanted or _alone(seen)):
            cleared = sum(0 < z < passes for z in seen.record.zeroed)
            between = (
                f": zero_grad() is called {many(cleared, 'time')} between them, and the last are kept"
                if cleared
                else ""
            )
            yield finding(
                "parts-lost",
                "error",
                f"of {wanted} micro-batches of an update the optimizer gets the gradients of {reach}{between}",
                "call zero_grad() once per update, and backward for each micro-batch",
                float(reach),
            )
        else:
            yield f"{wanted} micro-batches make an update"


def _alone(seen: Seen) -> bool:
    """Whether the only backward pass of an update holds one part's loss, and no sum of several."""
    own = [v for u, _, v in seen.record.backwards if u == 0]
    values = [c.value for c in seen.record.losses if c.update == 0 and c.value is not None]
    return len(own) == 1 and len(values) > 1 and abs(own[0] - values[-1]) < 1e-4 * abs(values[-1]) + 1e-6


def _gradients(seen: Seen) -> Results:
    steps = [s for s in seen.steps if s.backwards or s.norm]
    later = [s for s in steps if s.update > 0]
    stale = [s for s in later if abs(s.stale) > STALE and s.rest < 0.05]
    if later and len(stale) > len(later) / 2:
        yield finding(
            "gradients-add-up",
            "error",
            f"the gradient of an update holds {abs(stale[0].stale):.0%} of its norm from the update before",
            "call optimizer.zero_grad() once per update",
            abs(stale[0].stale),
        )
        return
    lost = [s for s in seen.steps if not s.norm and (s.brought or s.cleared)]
    bare = [s for s in seen.steps if not s.norm]
    if (lost and len(lost) > len(seen.steps) / 2) or (
        len(bare) == len(seen.steps) and not any(s.backwards for s in bare)
    ):
        yield finding(
            "gradients-lost",
            "error",
            "backward brings gradients, and at the optimizer's step there are none"
            if lost
            else "no gradient is there at the optimizer's step",
            "call zero_grad() after step(), or before backward: not between",
            0.0,
        )
        return
    apart = [s for s in seen.steps if s.apart > 0.5]
    if len(apart) > len(seen.steps) / 2:
        yield finding(
            "weights-apart",
            "error",
            f"{apart[0].apart:.0%} of the parameters are others at the optimizer's step than at the forward pass of the"
            " update: something else moves them in between, and nothing moves them back",
            "put a perturbation back before the step: p.data.copy_(before)",
            apart[0].apart,
        )
    cut = [s.factor for s in steps if s.factor == s.factor and not s.unscaled]
    clipped = [f for f in cut if f < 0.999]
    after = [
        s for s in seen.steps if s.later is not None and 0 < s.later < 0.99 * s.norm and s.update < len(seen.steps)
    ]
    late = len(seen.record.clips) >= len(steps) > 1 and all(seen.record.clips)
    if late or (after and not clipped and len(after) >= max(1, len(steps) - 1)):
        sizes = f" (from {after[0].norm:.3g} to {after[0].later:.3g})" if after else ""
        yield finding(
            "clip-after-step",
            "error",
            f"gradients are clipped{sizes} after the optimizer has used them",
            "call clip_grad_norm_ before optimizer.step()",
            (after or steps)[0].norm,
        )
    apiece = [(s, factors) for s in steps for factors in [_apiece(s)] if factors]
    if len(apiece) > len(steps) / 2:
        step, factors = apiece[0]
        message = f"{len(factors)} parts of the gradient have the same norm at the step, each cut by another factor"
        message += (
            f" ({min(factors):.2g} to {max(factors):.2g}): they are clipped one by one, so the whole gradient has"
        )
        message += f" another direction, and a norm of {step.norm:.3g}"
        remedy = "clip all together: clip_grad_norm_(model.parameters(), max_norm)"
        yield finding("clip-per-tensor", "warning", message, remedy, step.norm)
    norms = [s.norm for s in steps if s.norm == s.norm]
    if norms:
        share = f"; clipped to {min(clipped):.2g} of it" if clipped else ""
        yield f"gradient norm {min(norms):.3g} to {max(norms):.3g} at the step{share}"
    alone = len({id(s.optimizer) for s in steps}) == 1
    never = sorted(set.intersection(*[{*s.missing} for s in steps]) - {""}) if alone else []
    if never:
        total = len({n for s in steps for n in (*s.moved, *s.missing)})
        yield finding(
            "gradient-missing",
            "warning",
            f"{many(len(never), 'parameter')} of {total} that the optimizer holds got no gradient in"
            f" {many(seen.updates, 'update')}",
            "use them in the loss, take the detach() or no_grad() out, or freeze them: requires_grad_(False)",
            float(len(never)),
            never[0],
        )


def _apiece(step: Step) -> list[float]:
    """The factors of parts that are clipped one by one: each is cut to one limit, or lies below it."""
    top = max((factor for factor, _ in step.each), default=0.0)
    parts: dict[float, list[float]] = defaultdict(list)
    for factor, norm in step.each if 0 < top * step.scale < 1.001 else ():
        parts[round(factor / top, 4)].append(norm)
    cut = {factor: math.hypot(*norms) for factor, norms in parts.items() if factor < 0.999}
    limit = median(cut.values()) if cut else 0.0
    alike = [factor for factor, norm in cut.items() if abs(norm - limit) < 2e-3 * limit]
    whole = [norm for factor, norms in parts.items() if factor >= 0.999 for norm in norms]
    return alike if len(alike) >= max(BLOCKS, 0.9 * len(cut)) and max(whole, default=0.0) < 1.01 * limit else []


def _moves(seen: Seen) -> Results:
    """Whether weights move once the rate is above 0."""
    names: dict[str, float] = {}
    live = [s for s in seen.steps if any(rate > 0 for rate in s.rates) and s.norm > 0]
    for step in live:
        for name, (size, change, _) in step.moved.items():
            names[name] = max(names.get(name, 0.0), change / size if size else change)
    if live and names and not any(names.values()):
        yield finding(
            "weights-still",
            "error",
            f"no weight has moved in {many(len(live), 'update')} with gradients and a rate above 0",
            "the optimizer's step is skipped, or is another model's",
            0.0,
        )
    elif names:
        middle = sorted(names.values())[len(names) // 2]
        yield f"an update moves a matrix by {middle:.2g} of its size (median of {len(names)})"
