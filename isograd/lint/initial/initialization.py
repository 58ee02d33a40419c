"""Rules about how parameters begin. They are silent about a trained model, whose norm weights have moved."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

import torch
from torch import Tensor

from isograd.lint.checked_model import CheckedModel, sample
from isograd.lint.findings import Finding
from isograd.lint.intent import says_tied
from isograd.lint.proof.trial import Edit, drawn, scaled
from isograd.lint.rules import Phase, rule
from isograd.placement import Role
from isograd.placement.schemes import BASES, RANGE, SCHEMES, Scheme, Shape
from isograd.trace.dataflow import bare, numbered
from isograd.trace.parts import WeightPart, parts

LOUD = 3.0  # standard deviation of logits at which the softmax has chosen before it has learned
MORE = 3.0  # nats above ln V
DROWNS = 10.0  # standard deviation of positions over that of tokens
LARGEST, SMALLEST = 4.0, 5e-4  # growth by a matrix; its standard deviation
RULED_OUT = -1e4  # logits that some models give to classes that cannot be
FAR = 1.25  # times off, above or below, that no sample of a matrix explains
ALONE = 2.0  # times off, of one weight among its like in other layers
MUCH = 2.5  # times what the other roles have: fused matrices and DeepNorm's beta of few layers have less
NORMAL = 3**0.5  # std 1/sqrt(fan_in) over that of U(+-1/sqrt(fan_in)), torch's own: both are usual
UNEQUAL = 1.35  # W_O over W_2, or the reverse, each over its scheme: torch's own layers have 1.26
WRITES: tuple[tuple[str, Role], ...] = (("attn", "attn_out"), ("ffn", "ffn_out"))


def scheme_of(checked: CheckedModel) -> str:
    """The names of the schemes (`isograd.placement.schemes`) that every matrix in the layers follows; "" for none."""
    found = _drawn(checked)
    if len({part.role for part, _ in found}) < 3:
        return ""
    followed = (
        name
        for name, one in SCHEMES.items()
        if all(abs(math.log(ratio)) < math.log(1.12) for ratio in _ratios(checked, found, one).values())
    )
    return " or ".join(followed)


def _drawn(checked: CheckedModel) -> list[tuple[WeightPart, float]]:
    """The matrices in the layers, fused ones in parts, and their standard deviations; nothing of a trained model, nor
    of one whose matrices cannot be taken apart.
    """
    try:
        found = [(p, p.of(checked.parameters[p.name])) for p in parts(checked.anatomy)] if checked.at_init else []
    except Exception:
        return []
    return [(part, sample(own).float().std(unbiased=False).item()) for part, own in found]


def _ratios(
    checked: CheckedModel, found: Sequence[tuple[WeightPart, float]], by: Scheme | str
) -> dict[tuple[str, Role], float]:
    """(kind of sublayer, role) -> the standard deviation over that of a scheme or a base, the median over sites."""
    named = getattr(checked.config, "initializer_range", None) or getattr(checked.config, "init_std", None)
    ratios: dict[tuple[str, Role], list[float]] = {}
    for part, own in found:
        shape = Shape(fan_in=part.fan_in, fan_out=part.fan_out, width=part.width, range=float(named or RANGE))
        std = BASES[by][1](shape) if isinstance(by, str) else by.std(part.role, part.site, shape)
        ratios.setdefault((part.site.kind, part.role), []).append(own / std)
    return {role: max(median(of), 1e-9) for role, of in ratios.items()}


@rule(Phase.INIT, "embedding-untied")
def untied(checked: CheckedModel) -> Iterator[Finding]:
    """A head that is not tied though the configuration says so, or that begins as a copy of the token table."""
    head = checked.head
    if head is None or head in checked.tables:
        return
    own = checked.parameters[head]
    alike = [t for n, by_ids in checked.tables.items() if by_ids and (t := checked.parameters[n]).shape == own.shape]
    copied = any(torch.equal(own, table) for table in alike)
    rows = max((len(checked.parameters[n]) for n, by_ids in checked.tables.items() if by_ids), default=0)
    words = len(own) == rows  # two classes are as many as BERT's two segments, and are not tied to them
    setting = says_tied(checked) if alike and words else None
    if copied or setting:
        yield Finding(
            address=head,
            measured=min((own - table).abs().max().item() for table in alike),
            message="the head is initialized as a copy of the token table, but they are two tensors"
            if copied
            else f"{setting} is set, which ties the head to the token table, but they are two tensors",
            remedy="tie them when all weights are made: head.weight = tokens.weight (tie_weights() of transformers)",
        )


@rule(Phase.INIT, "initial-loss")
def first_loss(checked: CheckedModel) -> Iterator[Finding]:
    """An initial loss far from that of equal probabilities, ln V; of a tied table, logits that are no longer small."""
    if checked.logits is None or not checked.at_init or checked.trace[checked.logits].shape[-1] < 2:
        return
    logits = checked.trace[checked.logits].double()
    classes, loud = logits.shape[-1], logits.std(dim=-1).mean().item()
    loss, factor = _first_loss(logits), _logit_factor(checked)
    far = loss > 2 * math.log(classes) + MORE  # logits with a temperature of their own begin with less
    tied = checked.head in checked.tables and factor < 1.1
    if far or (tied and loud > LOUD):
        grown = f", and the logits are multiplied by {factor:.3g}" if factor > 1.1 else ""
        yield Finding(
            severity="warning",
            address=checked.head or "logits",
            measured=loss,
            message=f"the initial loss is {loss:.3g} nats; equal probabilities of {classes} classes give ln {classes} ="
            f" {math.log(classes):.3g}{grown}; the logits have a standard deviation of {loud:.3g}"
            + (", and their table is tied" if tied else ""),
            remedy=TIED if tied else "remove the factor on the logits" if grown else HEAD if checked.head else SCORES,
        )


HEAD = "reduce the LM head's init, or normalize its input"
SCORES = "normalize along the features (dim=-1) what the products are formed of, or divide the logits by sqrt(d)"
TIED = (
    "initialize a tied table with std 1/sqrt(d) (nn.Embedding: 1) and multiply its vectors by sqrt(d) after the lookup;"
    " or initialize it with std 0.02, as GPT-2 does, and leave its vectors as they are"
)


@rule(Phase.POSITIONS, "positions-large", suspicions=True)
def positions(checked: CheckedModel) -> Iterator[Finding]:
    """A trained table of positions so large that it drowns the tokens it is added to."""
    tables = [n for n, by_ids in checked.tables.items() if by_ids]
    others = [n for n, by_ids in checked.tables.items() if not by_ids]
    added = [o for o in checked.trace.operations if bare(o) == "add"]
    others += [n for o in added for n in checked.dataflow.weights(o) if checked.parameters[n].squeeze().ndim == 2]
    if not checked.at_init or not tables:
        return
    width, usual = checked.parameters[tables[0]].shape[-1], checked.std(tables[0])
    for name in dict.fromkeys(others):
        weight = checked.parameters[name]
        lengths = weight.float().reshape(-1, weight.shape[-1]).norm(dim=1)
        fixed = len(lengths) > 1 and bool((lengths - lengths[0]).abs().max() < 1e-3 * lengths[0])  # sines and cosines
        if usual and weight.shape[-1] == width and not fixed and checked.std(name) > DROWNS * usual:
            yield Finding(
                severity="warning",
                address=name,
                measured=checked.std(name) / usual,
                message=f"position embeddings have {checked.std(name) / usual:.3g} times the standard deviation of"
                " token embeddings: in the sum they drown out the token",
                remedy="nn.init.normal_(positions.weight, std=0.02), as for the token table (nn.Embedding: 1)",
                edit=Edit(says="positions as large as tokens", parameters={name: scaled(usual / checked.std(name))}),
            )


@rule(
    Phase.VALUES, "init-large", "init-small", hides={"init-large": ("init-std", "initial-loss",
    "gradient-cut"), "init-small": ("init-std", "gradient-zero", "parameter-unused")},
    suspicions=True,
)  # fmt: skip
def sizes(checked: CheckedModel) -> Iterator[Finding]:
    """Matrices of the layers that multiply the size of what they read by far more than 1, or by next to nothing."""
    if not checked.at_init:
        return
    for role, names in checked.by_role.items():
        grows = {n: checked.std(n) * math.sqrt(_fan_in(checked.parameters[n])) for n in names}
        large = [n for n, g in grows.items() if g > LARGEST]
        writes = any(part in ("attn_out", "ffn_out") for part in role.split("+"))
        tiny = [
            n for n, g in grows.items() if 0 < checked.std(n) < SMALLEST and not (writes or _begins_at_bias(checked, n))
        ]
        for found, what in ((large, "large"), (tiny, "small")):
            if found:
                yield Finding(
                    code=f"init-{what}",
                    address=found[0],
                    measured=grows[found[0]],
                    message=f"{role} weights begin with a standard deviation of {checked.std(found[0]):.2g}: they make"
                    f" vectors {grows[found[0]]:.2g} times as long as those they read"
                    f" ({len(found)} of {len(names)} matrices)",
                    remedy="nn.init.normal_(weight, std=0.02) or xavier_uniform_",
                    edit=Edit(
                        says="matrices that keep the size of what they read",
                        parameters={n: drawn(_fan_in(checked.parameters[n]) ** -0.5) for n in found},
                    ),
                )


def _begins_at_bias(checked: CheckedModel, name: str) -> bool:
    """Whether a matrix hardly adds to a bias near 1: a gate that begins open, as gMLP's."""
    products = [o for o in checked.trace.operations if checked.dataflow.is_product(o)]
    beside = [n for o in products if name in (names := checked.dataflow.weights(o)) for n in names if n != name]
    biases = [b for n in beside if (b := checked.parameters[n]).ndim == 1]
    return any(abs(bias.float().mean().item()) > 0.5 for bias in biases)


def _fan_in(weight: Tensor) -> int:
    return min(weight[0].numel(), weight.numel() // weight.shape[-1])


@rule(Phase.INIT, "init-std", suspicions=True)
def stds(checked: CheckedModel) -> Iterator[Finding]:
    """Weights of one role far larger than the scheme that the others follow gives; W_O and W_2 apart from one another;
    a single weight unlike those of the other layers.
    """
    if checked.recurs or {"init-large", "init-small"} & checked.reported:
        return
    for stack in checked.anatomy.stacks:
        names = {n for s in stack.sublayers for n in s.roles} - checked.idle_writers
        own = [(part, std) for part, std in _drawn(checked) if part.name in names and std > 0]
        yield from _single(own)
        schemes = {base: _ratios(checked, own, base) for base in BASES}
        base, ratios = min(schemes.items(), key=lambda item: _spread(item[1]))
        if len(ratios) < 3 or any(s.placement == "deepnorm" for s in stack.sublayers):
            continue
        usual = median(ratios.values())
        odd = {role: ratio / usual for role, ratio in ratios.items() if ratio > MUCH * usual}
        writes = {role: ratios[role] for role in WRITES if role in ratios}
        if not odd and len(writes) == 2 and max(writes.values()) > UNEQUAL * min(writes.values()):
            ratio = max(writes.values()) / min(writes.values())
            odd = {} if abs(ratio - NORMAL) < 0.03 * NORMAL else {max(writes, key=lambda r: writes[r]): ratio}
        for (kind, role), ratio in odd.items():
            found = [part.name for part, _ in own if (part.site.kind, part.role) == (kind, role)]
            yield Finding(
                severity="warning",
                address=found[0],
                measured=ratio,
                message=f"{role} weights of the {stack.name} have {ratio:.3g} times the standard deviation that"
                f" {BASES[base][0]} gives beside the others"
                + (
                    ": one of W_O and W_2 is scaled with depth, the other is not"
                    if len(odd) == 1 and ratio < MUCH
                    else ""
                ),
                remedy="use one init scheme for all roles; scale only W_O and W_2 with depth, and both alike",
                edit=Edit(
                    says="the size that the others have",
                    parameters={n: scaled(1 / ratio) for n in dict.fromkeys(found)},
                ),
            )


def _spread(ratios: dict[tuple[str, Role], float]) -> float:
    """How far roles that read the stream lie apart, and W_O from W_2: these two may be scaled with depth."""
    logs = [math.log(ratio) for role, ratio in ratios.items() if role not in WRITES]
    writes = [math.log(ratios[role]) for role in WRITES if role in ratios]
    apart = abs(writes[0] - writes[1]) if len(writes) == 2 else 0.0
    return apart + (median(abs(one - median(logs)) for one in logs) if logs else math.inf)


def _single(own: Sequence[tuple[WeightPart, float]]) -> Iterator[Finding]:
    """A weight of another size than its like in all other layers, where those agree."""
    groups: dict[str, dict[str, float]] = {}
    for part, std in own:
        groups.setdefault(numbered(part.name), {}).setdefault(part.name, std)
    for stds in groups.values():
        usual = median(stds.values())
        odd = [name for name, std in stds.items() if not 1 / FAR < std / usual < FAR]
        if len(stds) > 3 and len(odd) == 1 and not 1 / ALONE < stds[odd[0]] / usual < ALONE:
            yield Finding(
                code="init-std",
                severity="warning",
                address=odd[0],
                measured=stds[odd[0]] / usual,
                message=f"this weight has {stds[odd[0]] / usual:.3g} times the standard deviation of the same one"
                f" in the other {len(stds) - 1} layers",
                remedy="initialize all layers alike, or by one rule of depth",
                edit=Edit(says="the size that the others have", parameters={odd[0]: scaled(usual / stds[odd[0]])}),
            )


def _logit_factor(checked: CheckedModel) -> float:
    """What the logits are multiplied by after the head's matrix."""
    if checked.logits is None or (product := checked.dataflow.product(checked.logits)) is None:
        return 1.0
    made = checked.trace[product.makes[0]].double()
    return (checked.trace[checked.logits].double().norm() / made.norm().clamp_min(1e-30)).item()


def _first_loss(logits: Tensor) -> float:
    """Cross-entropy of the logits against labels drawn evenly, of classes that the model does not rule out itself:
    logsumexp - mean.
    """
    possible = logits.masked_fill(logits <= RULED_OUT, math.nan)
    return (logits.logsumexp(-1) - possible.nanmean(-1)).mean().item()
