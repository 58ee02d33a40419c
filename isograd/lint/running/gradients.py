"""Parameters that no gradient reaches, by one backward pass on labels of chance.

A parameter whose gradient is 0 because another one begins at 0 (ReZero, a zero W_O, adaLN-zero) gets one after the
first update. So all that have a gradient are moved a little, and the pass is repeated, before any is called stuck.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.rules import Phase, rule
from isograd.trace.dataflow import bare, different, numbered
from isograd.trace.record import answer, anything, arguments, fitted, tensors, undisturbed

ROUNDS = 3
DEAR = 5_000_000  # logits of a pass
STEP = 1e-2
STILL = 1e-5  # of the median gradient: what rounding leaves of none
CHANGED = 1e-5  # relative: more than rounding does
WRONG = 0.2  # relative: a directional derivative that is not the one that autograd gives
ROUNDED = ("round", "sign", "floor", "ceil", "argmax", "topk", "argmin", "bucketize")  # with gradients of their own


@rule(Phase.GRADIENTS, "gradient-cut", "gradient-zero", stops=("gradient-cut", "gradient-zero"))
def cut(checked: CheckedModel) -> Iterator[Finding]:
    """Parameters that the output depends on and that stay where they begin."""
    none, zero = _stuck(checked)
    choosing = [n for n in none if _only_chooses(checked, n)]
    none = [n for n in none if n not in choosing]
    if none:
        yield _finding(checked, "gradient-cut", none, "the output depends on it, and autograd gives it no gradient")
    elif choosing:
        yield Finding(
            code="gradient-cut",
            severity="warning",
            address=choosing[-1],
            measured=float(len(choosing)),
            message=f"{many(len(choosing), 'parameter')} of the router get no gradient: a top-k selection is not"
            " differentiable",
            remedy="train it by a loss of its own, or multiply the selected output by its score, as"
            " mixture-of-experts routers do",
        )
    zero = [n for n in zero if not _cancels_at_first(checked, n, zero)]
    if zero and all(_of_last_layer(checked, n, zero) for n in zero):  # as queries of places that nothing reads
        why = (
            "its gradient is exactly 0, though in the layers before it is not: the output reads less of the last layer"
        )
        remedy = (
            "read every position of the last layer; where one is meant, as a class token, this costs time and no harm"
        )
        yield replace(_finding(checked, "gradient-zero", zero, why), severity="warning", remedy=remedy)
    elif zero:
        yield _finding(checked, "gradient-zero", zero, "its gradient is exactly 0, and stays 0 after an update")
    elif not none and not choosing and (names := _aside(checked)):
        why = "only other outputs give it a gradient, though its choice of experts changes the first one"
        remedy = "multiply what an expert makes by its probability, which over its own sum is always 1 for one expert"
        yield replace(_finding(checked, "gradient-zero", names, why), severity="warning", remedy=remedy)
    if not none and not zero and not choosing and (wrong := _wrong_derivative(checked)) is not None:
        yield Finding(
            code="gradient-cut",
            severity="info" if checked.recurs or not _detached(checked) else "error",  # truncated on purpose, maybe
            address=_detached(checked) or "",
            measured=wrong,
            message=f"the loss changes with the token vectors by another amount than the gradient says (off by"
            f" {wrong:.0%}): part of the way, such as a shortcut, passes no gradient",
            remedy="remove .detach(), .data and torch.no_grad() from the forward pass",
        )


@rule(Phase.GRADIENTS, "parameter-unused")
def unread_rows(checked: CheckedModel) -> Iterator[Finding]:
    """A part of a fused projection that nothing reads: its rows alone have a gradient of exactly 0."""
    if checked.constant_weights:  # a single key makes queries and keys idle
        return
    fused = [n for role, names in checked.by_role.items() if "+" in role for n in names]
    mine = dict(checked.few.named_parameters())
    wanted = {n: mine[n] for n in dict.fromkeys(fused) if n in mine and mine[n].requires_grad and mine[n].ndim == 2}
    for name, grad in (_gradients(checked.few, checked, wanted) if wanted else {}).items():
        if grad is None or not grad.any():
            continue
        for rows in (grad, grad.T):
            still = (rows == 0).all(1)
            part = int(still.sum()) * 8 >= len(still) and not (checked.parameters[name] == 0).any()
            if part and not _are_read(checked, name, still):
                first = int(still.nonzero()[0])
                yield Finding(
                    address=name,
                    measured=float(still.sum()),
                    message=f"{int(still.sum())} of {len(still)} outputs of this fused matrix, from {first} on, go"
                    " nowhere: one of queries, keys and values is taken from the part of another",
                    remedy="q, k, v = qkv.chunk(3, dim=-1), and use each once",
                )
                return


def _are_read(checked: CheckedModel, name: str, rows: Tensor) -> bool:
    """Whether an output moves with these outputs of a matrix where what it makes is of size 1: a gradient that rounding
    takes away, as of scores far below 1, is none of 0.
    """
    trace = checked.trace
    products = (o for o in trace.operations if checked.dataflow.is_product(o))
    made = next(o.makes[0] for o in products if name in checked.dataflow.weights(o))
    if trace[made].shape[-1] != len(rows):
        return False
    draw = torch.Generator().manual_seed(0)
    one, noise = (torch.randn(trace[made].shape, generator=draw).to(trace[made]) for _ in range(2))
    outputs = [v for v in trace.outputs.values() if trace[v].is_floating_point()]
    before, after = (trace.replay({made: x}, outputs) for x in (one, torch.where(rows, noise, one)))
    return any(different(a, b) > CHANGED for a, b in zip(after, before, strict=True))


@rule(Phase.GRADIENTS, "frozen")
def frozen(checked: CheckedModel) -> Iterator[Finding]:
    """Matrices of the layers that are not trained, where most are."""
    inside = {name for s in checked.anatomy.sublayers for name in s.parameters}
    flags = {n: p.requires_grad for n, p in checked.model.named_parameters() if n in inside}
    still = [n for n, flag in flags.items() if not flag]
    if still and 2 * len(still) < len(flags):
        yield Finding(
            severity="warning",
            address=still[0],
            measured=float(len(still)),
            message=f"{len(still):,} of {len(flags):,} parameters of the layers have requires_grad=False",
            remedy="p.requires_grad_(True), unless freezing is intended",
        )


def _cancels_at_first(checked: CheckedModel, name: str, zero: list[str]) -> bool:
    """Whether a number of the first layer alone gets no gradient, and those of the same name elsewhere do."""
    likes = [n for n in checked.parameters if numbered(n) == numbered(name)]
    return checked.parameters[name].numel() == 1 and name == likes[0] and len(likes) > 2 and not {*likes[1:]} & {*zero}


def _of_last_layer(checked: CheckedModel, name: str, zero: list[str]) -> bool:
    """Whether this is the last of its name, by one of the numbers in it, and the others learn."""
    for number in re.finditer(r"\d+", name):
        start, end = re.escape(name[: number.start()]), re.escape(name[number.end() :])
        *before, last = (n for n in checked.parameters if re.fullmatch(rf"{start}\d+{end}", n))
        if before and name == last and not {*before} & {*zero}:
            return True
    return False


def _stuck(checked: CheckedModel) -> tuple[list[str], list[str]]:
    """Names of parameters without a gradient, and of those with one that stays 0."""
    twin = checked.twin
    reaching = _heard(checked)
    read = {n for v, n in checked.trace.names.items() if v in reaching}
    waiting = {n: p for n, p in twin.named_parameters() if n in read and p.requires_grad and p.is_floating_point()}
    waiting = {n: p for n, p in waiting.items() if p.numel()}
    kept = {n: p.data for n, p in waiting.items()}
    draw = torch.Generator().manual_seed(0)
    none: set[str] = set()
    try:
        for _ in range(ROUNDS):
            moves = _gradients(twin, checked, waiting, anything)
            none = {n for n in waiting if moves[n] is None}
            waiting = {n: p for n, p in waiting.items() if not moves[n]}
            if not waiting:
                break
            for name, parameter in twin.named_parameters():
                if name in kept and name not in waiting:
                    size = kept[name].square().mean().sqrt().clamp_min(STEP)
                    parameter.data = parameter.data + STEP * size * torch.randn(parameter.shape, generator=draw)
        if waiting:
            waiting = _in_training(checked, waiting, draw)
    finally:
        for name, parameter in twin.named_parameters():
            parameter.data = kept.get(name, parameter.data)
    return [n for n in waiting if n in none], [n for n in waiting if n not in none]


def _heard(checked: CheckedModel) -> set[int]:
    """What the outputs were computed of, except through the only weight of a single key, and what masks that were made
    of ids left out: a part that is for other tokens.
    """
    trace = checked.trace
    of_ids = {v for at, v in trace.inputs.items() if not trace[v].is_floating_point() and "mask" not in at}
    for operation in trace.operations:
        if not of_ids.isdisjoint(operation.reads) and not any(trace[v].is_floating_point() for v in operation.reads):
            of_ids.update(operation.makes)
    found = set(trace.outputs.values())
    todo = list(found)
    while todo:
        made = trace.made_by(todo.pop())
        if made is None:
            continue
        reads = made.reads if checked.constant_weights.isdisjoint(made.makes) else made.reads[2:3]  # its values
        masks = [trace[v] for v in made.reads if v in of_ids and trace[v].dtype == torch.bool]
        if masks and any(not mask.any() or mask.all() for mask in masks):
            continue
        new = [v for v in reads if v not in found and trace[v].numel()]
        found.update(new)
        todo += new
    return found


def _in_training(
    checked: CheckedModel, waiting: dict[str, nn.Parameter], draw: torch.Generator
) -> dict[str, nn.Parameter]:
    """Those without a gradient in training mode either, nor at other draws of those that are not zero: a router that
    weighs near ties alone has one at some of them.
    """
    with undisturbed(checked.twin):
        for _ in range(ROUNDS if waiting else 0):
            moves = _gradients(checked.twin, checked, waiting, anything, training=True)
            waiting = {n: p for n, p in waiting.items() if not moves[n]}
            for parameter in (p for p in waiting.values() if p.any()):
                size = parameter.data.square().mean().sqrt()
                parameter.data = size * torch.randn(parameter.shape, generator=draw)
    return waiting


def _aside(checked: CheckedModel) -> list[str]:
    """Matrices that move the first output of a model that routes far, and get no gradient from it: others give one."""
    mine = {n: p for n, p in checked.few.named_parameters() if p.ndim == 2 and p.requires_grad}
    if not checked.routed or checked.large or not mine:
        return []
    sizes = {n: float(g or 0) for n, g in _gradients(checked.few, checked, mine, Tensor.norm, alone=True).items()}
    before, found = checked.run(checked.inputs)[0], []
    for name in (n for n, size in sizes.items() if size < STILL * median(sizes.values())):
        kept = mine[name].data
        mine[name].data = kept.std() * torch.randn(kept.shape, generator=torch.Generator().manual_seed(0))
        after = checked.run(checked.inputs)[0]
        mine[name].data = kept
        found += [name] if before is not None and after is not None and different(after, before) > STEP else []
    return found


def _only_chooses(checked: CheckedModel, name: str) -> bool:
    """Whether all that was computed of a parameter with numbers ends before the output: ids and masks go on alone."""
    trace = checked.trace
    reached = {v for v, n in trace.names.items() if n == name}
    chosen = False
    for operation in trace.operations:
        if reached.isdisjoint(operation.reads) or checked.reaching.isdisjoint(operation.makes):
            continue
        made = [v for v in operation.makes if v in checked.reaching]
        numbers = [v for v in made if trace[v].is_floating_point()]
        chosen |= len(numbers) < len(made)
        reached.update(numbers)
    return chosen and reached.isdisjoint(trace.outputs.values())


def _gradients(
    model: nn.Module,
    checked: CheckedModel,
    parameters: dict[str, nn.Parameter],
    take: Callable[[Tensor], Any] = Tensor.clone,
    *,
    training: bool = False,
    alone: bool = False,
) -> dict[str, Any]:
    """What is taken of each gradient of the loss, by name; None where there is none. No two gradients are there at
    once.
    """
    every, taken = list(model.parameters()), dict[Tensor, Any]()
    wanted, before = set(parameters.values()), [p.grad for p in every]

    def note(parameter: Tensor) -> None:
        if parameter.grad is not None and parameter in wanted:
            taken[parameter] = take(parameter.grad) + taken.get(parameter, 0)
        parameter.grad = None

    hooks = [p.register_post_accumulate_grad_hook(note) for p in every if p.requires_grad]
    try:
        model.train(training)
        loss = _loss(model, checked, alone)
        model.eval()
        for p in every:
            p.grad = None
        if loss is not None and loss.requires_grad:
            loss.backward()  # not autograd.grad: a reversible layer calls backward() itself, on its way back
    except Exception:
        if not training:
            raise
    finally:
        model.eval()
        for hook in hooks:
            hook.remove()
        for p, grad in zip(every, before, strict=True):
            p.grad = grad
    return {name: taken.get(p) for name, p in parameters.items()}


def _loss(model: nn.Module, checked: CheckedModel, alone: bool = False) -> Tensor | None:
    """Cross-entropy against classes drawn evenly, and every other output, if any, times numbers drawn once."""
    args, kwargs = arguments(fitted(model, checked.inputs))
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        output = model(*args, **kwargs)
    main = answer(output)
    draw = torch.Generator().manual_seed(1)
    terms: list[Tensor] = []
    every = (torch.view_as_real(x) if x.is_complex() else x for _, x in tensors(main if alone else output))
    for part in every:
        if not part.is_floating_point() or not part.numel():
            continue
        if part is main and checked.logits is not None and part.ndim >= 2 and part.shape[-1] > 1:
            rows = part.flatten(0, -2)
            terms.append(F.cross_entropy(rows, torch.randint(rows.shape[-1], rows.shape[:1], generator=draw)))
        else:
            terms.append((part * torch.randn(part.shape, generator=draw).to(part)).sum() / part.numel() ** 0.5)
    return torch.stack(terms).sum() if terms else None


def _wrong_derivative(checked: CheckedModel) -> float | None:
    """|measured - computed| / |measured| of the derivatives along three directions of the token vectors; along one of a
    large model, with few layers, or of many logits.
    """
    if any(bare(o) in ROUNDED for o in checked.trace.operations):
        return None
    names = [n for n, by_ids in checked.tables.items() if by_ids and n != checked.head]
    names = names or [n for n, p in checked.parameters.items() if p.ndim >= 2 and n != checked.head]
    mine = dict(checked.few.named_parameters())
    if not names or not mine[names[0]].requires_grad:
        return None
    parameter = mine[names[0]]
    grad = _gradients(checked.few, checked, {names[0]: parameter})[names[0]]
    if grad is None:
        return None
    rows = (grad != 0).flatten(1).any(1).nonzero()[:, 0]  # of tokens that are there, and not of padding_idx
    grad = grad[rows]
    kept, draw = parameter.data, torch.Generator().manual_seed(2)
    size, moved = kept.square().mean().sqrt(), kept.clone()
    slopes: list[list[float]] = []
    try:
        parameter.data = moved
        dear = checked.logits is not None and checked.trace[checked.logits].numel() > DEAR
        for _ in range(1 if dear or checked.few is not checked.twin else 3):
            way = torch.randn(grad.shape, generator=draw) * size
            row = [_slope(checked, moved, rows, kept[rows], step * way) / (2 * step) for step in (STEP, STEP / 2)]
            slopes.append([*row, (grad * way).sum().item()])
    finally:
        parameter.data = kept
    coarse, fine, computed = torch.tensor(slopes).double().T
    if not fine.isfinite().all() or fine.norm() * STEP < 1e-5 or (coarse - fine).norm() > 0.1 * fine.norm():
        return None  # as small as rounding, or bent
    gap = ((fine - computed).norm() / fine.norm()).item()
    return gap if gap > WRONG else None


def _slope(checked: CheckedModel, parameter: Tensor, rows: Tensor, at: Tensor, step: Tensor) -> float:
    """loss(at + step) - loss(at - step), of some rows of a parameter."""
    losses = []
    for moved in (at + step, at - step):
        parameter[rows] = moved
        loss = _loss(checked.few, checked)
        losses.append(float("nan") if loss is None else loss.item())
    return losses[0] - losses[1]


def _detached(checked: CheckedModel) -> str | None:
    """The module in which an activation that reaches the output is detached."""
    made = (o for o in checked.trace.operations if bare(o) == "detach" and checked.dataflow.data(o))
    return next((o.module for o in made if not checked.reaching.isdisjoint(o.makes)), None)


def _finding(checked: CheckedModel, code: str, names: list[str], why: str) -> Finding:
    order = {n: v for v, n in checked.trace.names.items()}
    last = max(names, key=lambda n: max(checked.trace.readers.get(order[n], [0])))
    others = f", nor do {len(names) - 1} others" if len(names) > 1 else ""
    cut_ = code == "gradient-cut"
    return Finding(
        code=code,
        address=_detached(checked) or last if cut_ else last,
        measured=float(len(names)),
        message=f"{last} does not learn{others}: {why}",
        remedy="remove .detach(), .data, .item() and torch.no_grad() between it and the loss"
        if cut_
        else "two factors of one product begin at 0: initialize one of them otherwise (W_1 or W_2, W_V or W_O, W_Q or"
        " W_K)",
    )
