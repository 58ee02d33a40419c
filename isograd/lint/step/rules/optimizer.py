"""The optimizer: whom it holds, how often, with which settings, and how far its first updates go."""

import re
from collections import Counter
from typing import Any

from torch import nn

from isograd.errors import many
from isograd.lint.running import optimizer as shared
from isograd.lint.step.seen import Results, Seen, finding

COUPLED = 0.02  # weight decay of Adam, from which on AdamW's is meant
FREEZE = "freeze the base: requires_grad_(False) before the adapters are added"
ADAPTER = re.compile(
    r"(^|[._])(lora_(a|b|down|up|embedding|magnitude)|(prefix|prompt)_enc)", re.I
)  # as peft calls them
MOST = 0.9  # of the base
ORTHOGONAL = re.compile(r"muon|orthogonal|newton", re.I)
FUSED = re.compile(r"qkv|c_attn|in_proj|query_key_value|kv_proj|wqkv", re.I)


def look(seen: Seen) -> Results:
    """All of the optimizer."""
    yield from _holds(seen)
    yield from _settings(seen)
    yield from _orthogonal(seen)
    yield from _adapters(seen)


def _groups(seen: Seen) -> list[tuple[Any, dict[str, Any]]]:
    return [(o, g) for o in seen.setup.optimizers for g in o.param_groups if g["params"]]


def _names(seen: Seen) -> dict[int, str]:
    return {id(p): n for n, p in seen.setup.model.named_parameters()}


def _holds(seen: Seen) -> Results:
    """What the model has and no optimizer holds, and the other way round."""
    names, model = _names(seen), seen.setup.model
    wrong: list[Any] = [*shared.held(model, [g for _, g in _groups(seen)], _reached(seen))]
    held = Counter(id(p) for _, g in _groups(seen) for p in g["params"])
    doubled = sorted(names.get(i, "") for i, times in held.items() if times > 1)
    if doubled:
        wrong.append(
            finding(
                "parameter-held-twice",
                "error",
                f"{many(len(doubled), 'parameter')} {'is' if len(doubled) == 1 else 'are'} held by two groups or"
                " optimizers: updated twice",
                "leave each parameter, tied ones too, to one group",
                float(len(doubled)),
                doubled[0],
            )
        )
    wanted = sum(p.requires_grad for p in model.parameters())
    still = f"; {len(names) - wanted} are frozen" if len(names) > wanted else ""
    yield from wrong or [f"holds all {wanted} parameters that want gradients, once{still}"]


def _reached(seen: Seen) -> list[Any]:
    """Parameters beside the model's own that the setup names, as a criterion's."""
    given = seen.setup.given
    parts = given.values() if isinstance(given, dict) else []
    return [p for part in parts if isinstance(part, nn.Module) for p in part.parameters()]


def _settings(seen: Seen) -> Results:
    model = {id(p): (n, p) for n, p in seen.setup.model.named_parameters()}
    for _optimizer, group in _groups(seen):
        betas = group.get("betas")
        if betas and len(betas) > 1 and betas[0] > betas[1] and betas[0] >= 0.99:
            yield finding(
                "betas-swapped",
                "warning",
                f"betas are {tuple(betas)}: the mean of gradients is longer than that of their squares",
                "write betas=(0.9, 0.999)",
                float(betas[0]),
            )
            break
    yield from _eps(seen)
    adam = [(o, g) for o, g in _groups(seen) if "betas" in g and not ORTHOGONAL.search(type(o).__name__)]
    peak = max((seen.peak(g) for _, g in adam), default=0.0)
    if adam:
        yield from shared.high(peak, type(adam[0][0]).__name__)
    coupled = [
        (o, g)
        for o, g in _groups(seen)
        if type(o).__name__ in ("Adam", "NAdam", "RAdam", "Adamax")
        and not g.get("decoupled_weight_decay")
        and float(g.get("weight_decay") or 0) >= COUPLED
    ]
    if coupled:
        optimizer, group = coupled[0]
        name, decay = type(optimizer).__name__, float(group["weight_decay"])
        yield finding(
            "decay-coupled",
            "warning",
            f"{name} with weight_decay={decay:g} adds {decay:g} times the weights to the gradient, and then divides"
            " by its size: that is no weight decay, and hides the gradient where it is small",
            "use AdamW, whose weight_decay is apart from the gradient",
            decay,
        )
    yield from shared.strong([g for _, g in _groups(seen)], lambda group: "")
    decayed = sorted(
        n
        for o, g in _groups(seen)
        if float(g.get("weight_decay") or 0) > 0
        for p in g["params"]
        if id(p) in model
        for n, q in [model[id(p)]]
        if q.ndim < 2
    )
    if decayed and any(float(g.get("weight_decay") or 0) == 0 for _, g in _groups(seen)):
        yield finding(
            "decay-of-vectors",
            "info",
            f"{many(len(decayed), 'bias or norm weight')} stand in a group with weight decay, though another group"
            " has none",
            "put p.ndim < 2 into the group without decay",
            float(len(decayed)),
            decayed[0],
        )


def _eps(seen: Seen) -> Results:
    """Adam's eps against the gradients that it is added to."""
    above = total = 0
    for _optimizer, group in _groups(seen):
        eps = group.get("eps")
        if eps is None or "betas" not in group or float(eps) <= 0:
            continue
        for p in group["params"]:
            before = seen.record.gradient(p)
            if before is not None:
                some = before[before != 0].abs()
                above += int((some < eps).sum())
                total += some.numel()
    if total and above / total > 0.5:
        yield finding(
            "eps-large",
            "warning",
            f"Adam's eps is above the gradient in {above / total:.0%} of the entries: updates there fade to nothing",
            "take eps=1e-8, or scale the loss",
            above / total,
        )


def _orthogonal(seen: Seen) -> Results:
    """What an optimizer that makes matrices orthogonal must not have."""
    names = _names(seen)
    tables = {id(m.weight): n for n, m in seen.setup.model.named_modules() if isinstance(m, nn.Embedding)}
    heads = _heads(seen)
    for optimizer, group in _groups(seen):
        if not (ORTHOGONAL.search(type(optimizer).__name__) or group.get("use_muon")) or group.get("use_muon") is False:
            continue
        wrong = {}
        for p in group["params"]:
            what = (
                "an embedding"
                if id(p) in tables
                else "the output head"
                if id(p) in heads
                else "a vector"
                if p.ndim < 2
                else ""
            )
            if what:
                wrong[names.get(id(p), "")] = what
        if wrong:
            name, what = next(iter(wrong.items()))
            yield finding(
                "muon-groups",
                "error",
                f"{type(optimizer).__name__} holds {what}{f' and {len(wrong) - 1} more' if len(wrong) > 1 else ''}:"
                " it is made for the matrices between, whose updates it makes orthogonal",
                "leave embeddings, the output head, norm weights and biases to AdamW",
                float(len(wrong)),
                name,
            )
        fused = [names[id(p)] for p in group["params"] if id(p) in names and FUSED.search(names[id(p)]) and p.ndim == 2]
        if fused and not wrong:
            yield finding(
                "muon-fused",
                "info",
                f"{type(optimizer).__name__} makes {many(len(fused), 'fused projection')} orthogonal as a whole",
                "split Q, K and V before it is made orthogonal, as published implementations do",
                float(len(fused)),
                fused[0],
            )


def _heads(seen: Seen) -> set[int]:
    """Weights whose rows are the classes of the loss and which are applied last."""
    call = seen.main
    if call is None:
        return set()
    classes = call.given.shape[1] if call.given.ndim > 1 else 0
    found = [m.weight for m in seen.setup.model.modules() if isinstance(m, nn.Linear) and m.out_features == classes]
    return {id(w) for w in found[-1:]} if classes else set()


def _adapters(seen: Seen) -> Results:
    """Adapters that do not train, or a base that trains beside them."""
    adapters, base, trained = with_adapters(dict(seen.setup.model.named_parameters()))
    if not adapters:
        return
    still = [n for n, p in adapters.items() if not p.requires_grad]
    if len(still) == len(adapters):
        yield finding(
            "adapters-frozen",
            "error",
            f"all {len(still)} adapter weights are frozen",
            "set requires_grad_(True) on them",
            float(len(still)),
            still[0],
        )
    elif base and len(trained) > MOST * len(base):
        yield finding(
            "base-trains",
            "warning",
            f"{len(trained)} of {len(base)} matrices of the base train beside the adapters",
            FREEZE,
            float(len(trained)),
            trained[0],
        )
    else:
        yield f"{len(adapters)} adapter weights train, {len(base) - len(trained)} matrices of the base are frozen"


def with_adapters(named: dict[str, nn.Parameter]) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter], list[str]]:
    """By name: adapters, matrices of the base below them, and which of these train."""
    adapters = {n: p for n, p in named.items() if ADAPTER.search(n)}
    base = {n: p for n, p in named.items() if n not in adapters and p.ndim > 1}
    return adapters, base, [n for n, p in base.items() if p.requires_grad]
