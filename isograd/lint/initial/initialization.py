"""Rules about how parameters begin. They are silent about a trained model, whose norm weights have moved."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

import torch
from torch import Tensor

from isograd.lint.checked_model import CheckedModel, sample, xavier
from isograd.lint.findings import Finding
from isograd.lint.rules import Phase, rule
from isograd.lint.trial import Edit, drawn, scaled, times
from isograd.placement.schemes import BASES, RANGE, SCHEMES, Scheme, Shape
from isograd.trace.anatomy import TracedStack
from isograd.trace.attention import query_key_value
from isograd.trace.dataflow import bare, numbered
from isograd.trace.parts import WeightPart, outputs_axis, parts, value_rows
from isograd.trace.sublayers import TracedSublayer

LOUD = 3.0  # standard deviation of logits at which the softmax has chosen before it has learned
MORE = 3.0  # nats above ln V
DROWNS = 10.0  # standard deviation of positions over that of tokens
LARGEST, SMALLEST = 4.0, 5e-4  # growth by a matrix; its standard deviation
RULED_OUT = -1e4  # logits that some models give to classes that cannot be
FAR = 1.25  # times off, above or below, that no sample of a matrix explains
_SCHEMES = {name: said for name, (said, _) in BASES.items()}


def scheme_of(checked: CheckedModel) -> str:
    """The names of the schemes (`isograd.placement.schemes`) that every matrix in the layers follows; "" for none."""
    found = parts(checked.anatomy) if checked.at_init else []
    if len({part.role for part in found}) < 3:
        return ""
    named = getattr(checked.config, "initializer_range", None) or getattr(checked.config, "init_std", None)
    stds = [sample(part.of(checked.parameters[part.name])).float().std(unbiased=False).item() for part in found]
    own = list(zip(found, stds, strict=True))
    return " or ".join(name for name, one in SCHEMES.items() if _follows(own, one, float(named or RANGE)))


def _follows(found: Sequence[tuple[WeightPart, float]], scheme: Scheme, std: float) -> bool:
    """Whether the median over sites of each role is within 12 % of what the scheme gives."""
    ratios: dict[str, list[float]] = {}
    for part, own in found:
        shape = Shape(fan_in=part.fan_in, fan_out=part.fan_out, width=part.width, range=std)
        ratios.setdefault(part.role, []).append(own / scheme.std(part.role, part.site, shape))
    return all(abs(math.log(max(median(of), 1e-9))) < math.log(1.12) for of in ratios.values())


@rule(Phase.VALUES, "layers-identical", suspicions=True)
def identical(checked: CheckedModel) -> Iterator[Finding]:
    """Layers that are initialized as copies of one another."""
    for stack in checked.anatomy.stacks:
        groups: dict[tuple[str, ...], list[TracedSublayer]] = {}
        for sublayer in stack.sublayers:
            if sublayer.last is not None:
                weight = checked.parameters[sublayer.last]
                key = (sublayer.kind, str(tuple(weight.shape)), *map(repr, weight.flatten()[:64].tolist()))
                groups.setdefault(key, []).append(sublayer)
        copies = [group for group in groups.values() if _copied(checked, group)]
        if copies:
            many = max(copies, key=len)
            yield Finding(
                code="layers-identical",
                severity="warning",
                address=many[1].address,
                measured=float(len(many)),
                message=f"{len(many)} layers of the {stack.name} have identical initial weights, as copies have",
                remedy="initialize each layer separately (copy.deepcopy and torch's TransformerEncoder copy them)",
                edit=Edit(
                    says="each layer drawn by itself",
                    parameters={
                        n: drawn(checked.std(n)) for s in many[1:] for n in s.roles if checked.parameters[n].ndim >= 2
                    },
                ),
            )


@rule(Phase.INIT, "embedding-untied", "embedding-std")
def embedding(checked: CheckedModel) -> Iterator[Finding]:
    """A head that is not tied though the configuration says so; a tied table as large as an untied one may be."""
    declared = getattr(checked.config, "tie_word_embeddings", False) is True
    head = checked.head
    if head is not None and head not in checked.tables:
        own = checked.parameters[head]
        alike = [
            t for n, by_ids in checked.tables.items() if by_ids and (t := checked.parameters[n]).shape == own.shape
        ]
        copied = any(torch.equal(own, table) for table in alike)
        if (declared and alike) or copied:
            yield Finding(
                code="embedding-untied",
                severity="error",
                address=head,
                measured=min((own - table).abs().max().item() for table in alike),
                message="the head is initialized as a copy of the token table, but they are two tensors"
                if copied
                else "the configuration ties the head to the token table, but they are two tensors",
                remedy="call model.tie_weights() after replacing either, or set tie_word_embeddings=False",
            )
    elif head is not None and checked.at_init and _logit_factor(checked) < 1.1 and _is_loud(checked):
        loud = _loudness(checked)
        yield Finding(
            code="embedding-std",
            severity="warning",
            address=head,
            measured=checked.std(head),
            message=f"the tied token table has a standard deviation of {checked.std(head):.3g} at init, and the"
            f" logits one of {loud:.3g}: the initial loss is {_first_loss(checked):.3g} nats",
            remedy="initialize a tied table with std 1/sqrt(d) (nn.Embedding: 1) and multiply its vectors by sqrt(d)"
            " after the lookup; or initialize it with std 0.02, as GPT-2 does, and leave its vectors as they are",
        )


@rule(Phase.INIT, "initial-loss", suspicions=True)
def first_loss(checked: CheckedModel) -> Iterator[Finding]:
    """An initial loss far from that of equal probabilities, ln V."""
    if checked.logits is None or not checked.at_init or "embedding-std" in checked.reported:
        return
    classes = checked.trace[checked.logits].shape[-1]
    loss = _first_loss(checked)
    if classes > 1 and loss > math.log(classes) + MORE:
        factor = _logit_factor(checked)
        grown = f", and the logits are multiplied by {factor:.3g}" if factor > 1.1 else ""
        yield Finding(
            code="initial-loss",
            severity="warning",
            address=checked.head or "logits",
            measured=loss,
            message=f"the initial loss is {loss:.3g} nats; equal probabilities of {classes} classes give ln {classes} ="
            f" {math.log(classes):.3g}{grown}",
            remedy="remove the factor on the logits" if grown else "reduce the LM head's init, or normalize its input",
            edit=Edit(says="logits of size 1", values={checked.logits: times(1 / (_loudness(checked) or 1.0))}),
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
                code="positions-large",
                severity="warning",
                address=name,
                measured=checked.std(name) / usual,
                message=f"position embeddings have {checked.std(name) / usual:.3g} times the standard deviation of"
                " token embeddings: in the sum they drown out the token",
                remedy="nn.init.normal_(positions.weight, std=0.02), as for the token table (nn.Embedding: 1)",
                edit=Edit(says="positions as large as tokens", parameters={name: scaled(usual / checked.std(name))}),
            )


@rule(
    Phase.VALUES, "init-large", "init-small", hides={"init-large": ("init-std", "init-depth", "initial-loss",
    "embedding-std", "gradient-cut"), "init-small": ("init-std", "init-depth", "gradient-zero", "parameter-unused")},
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
                    severity="error",
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
    """Weights of one role whose standard deviation is off the scheme that the others follow."""
    if not checked.at_init or checked.recurs:  # at what depth a loop is scaled, it alone knows
        return
    for stack in checked.anatomy.stacks:
        roles = _by_role(checked, stack)
        schemes = {
            (name, factor): [_fits(checked, stack, role, roles[role], name, factor) for role in roles]
            for factor in (1.0, stack.layers**-0.5)  # of all roles alike, as B2T's
            for name in _SCHEMES
        }
        (name, _), fits = max(schemes.items(), key=lambda item: sum(f is None for f in item[1]))
        odd = [(role, fit) for role, fit in zip(roles, fits, strict=True) if fit is not None]
        yield from (
            f for names in roles.values() for like in _alike(names) if (f := _one_off(checked, like)) is not None
        )
        hidden = {"deepnorm-swapped", "init-depth", "init-large", "init-small"}
        if len(roles) < 3 or len(odd) * 2 > len(roles) or hidden & checked.reported:
            continue
        for role, ratio in odd:
            yield Finding(
                code="init-std",
                severity="warning",
                address=roles[role][0],
                measured=ratio,
                message=f"{role} weights of the {stack.name} have {ratio:.3g} times the standard deviation that"
                f" {_SCHEMES[name]}, which the others follow, gives",
                remedy="use one init scheme for all roles; scale only W_O and W_2 with depth",
                edit=Edit(says="the size that the others have", parameters={n: scaled(1 / ratio) for n in roles[role]}),
            )


@rule(Phase.INIT, "init-depth", suspicions=True)
def depth(checked: CheckedModel) -> Iterator[Finding]:
    """One of W_O and W_2 scaled down with depth, and the other not; or both, and their outputs once more."""
    if not checked.at_init or {"init-large", "init-small", "weights-zero"} & checked.reported:
        return
    for stack in checked.anatomy.stacks:
        roles = _by_role(checked, stack)
        if not {"attn_out", "ffn_out", "ffn_in"} <= set(roles) or stack.layers < 2:
            continue
        out, down, up = (median(checked.std(n) for n in roles[r]) for r in ("attn_out", "ffn_out", "ffn_in"))
        law = (2 * stack.layers) ** -0.5
        down_scaled = [abs(math.log(max(std, 1e-9) / max(up * law, 1e-9))) < math.log(1.15) for std in (out, down)]
        plain = [abs(math.log(max(std, 1e-9) / max(up, 1e-9))) < math.log(1.15) for std in (out, down)]
        if law < 0.8 and all(down_scaled) and _multiplied(stack):
            factor = stack.sublayers[0].scale.value
            yield Finding(
                code="init-depth",
                severity="warning",
                address=roles["attn_out"][0],
                measured=factor,
                message=f"depth is counted twice: W_O and W_2 start with 1/sqrt(2L) of the other matrices' standard"
                f" deviation, as in GPT-2, and what they make is multiplied by {factor:.3g} once more",
                remedy="keep one of the two: the init as in GPT-2 and x + f(norm(x)), or the factor and one standard"
                " deviation for all matrices",
            )
            continue
        if _fan_in_alone(checked, roles["ffn_in"][0], roles["ffn_out"][0]) and plain[0]:
            continue  # nn.Linear's own init, of W_2 from four times as many values, and 1/sqrt(2L) of two layers
        if law < 0.8 and ((down_scaled[0] and plain[1]) or (down_scaled[1] and plain[0])):
            missing, has = ("W_2", "W_O") if down_scaled[0] else ("W_O", "W_2")
            name = roles["ffn_out" if down_scaled[0] else "attn_out"][0]
            yield Finding(
                code="init-depth",
                severity="warning",
                address=name,
                measured=checked.std(name) / up,
                edit=Edit(
                    says="W_O and W_2 scaled alike",
                    parameters={n: scaled(law) for n in roles["ffn_out" if down_scaled[0] else "attn_out"]},
                ),
                message=f"{has} starts with 1/sqrt(2L) of the other matrices' standard deviation, as in GPT-2, and"
                f" {missing} with all of it: both write to the stream",
                remedy="nn.init.normal_(weight, std=0.02 / math.sqrt(2 * L)) for W_O and for W_2",
            )


def _multiplied(stack: TracedStack) -> bool:
    """Whether the output of every branch is multiplied by a constant that falls with depth."""
    scales = [s.scale for s in stack.sublayers]
    return all(s.even and not s.learned and s.value < 1.1 * stack.layers**-0.5 for s in scales)


def _fan_in_alone(checked: CheckedModel, up: str, down: str) -> bool:
    """Whether W_1 and W_2 make sums of one size: of d terms and of more."""
    terms = min(checked.parameters[up].shape), max(checked.parameters[down].shape)
    sizes = [checked.std(name) * math.sqrt(n) for name, n in zip((up, down), terms, strict=True)]
    return abs(math.log(max(sizes[0], 1e-9) / max(sizes[1], 1e-9))) < math.log(1.15)


@rule(Phase.INIT, "init-value-unscaled", hides=("init-std",), suspicions=True)
def value_start(checked: CheckedModel) -> Iterator[Finding]:
    """DeepNorm scales the init of W_V, W_O, W_1 and W_2; in a fused W_QKV the third part is easily forgotten."""
    if not checked.at_init:
        return
    for stack in checked.anatomy.stacks:
        layers = [s for s in stack.sublayers if s.placement == "deepnorm" and s.skip.value > 1 and s.attention]
        found = [(s, pair) for s in layers if (pair := _value_and_out(checked, s)) is not None]
        if not found:
            continue
        value, out = (median(pair[i] for _, pair in found) for i in (0, 1))
        if out < 0.9 and value > FAR * out:
            sublayer = found[0][0]
            yield Finding(
                code="init-value-unscaled",
                severity="error",
                address=_value_matrix(sublayer) or sublayer.address,
                measured=value / out,
                message=f"W_V has {value:.3g} of Xavier's standard deviation and W_O {out:.3g}:"
                " DeepNorm's beta was not applied to the value part",
                remedy="scale the rows of W_V in the fused matrix, too (beta for W_V, W_O, W_1, W_2; 1 for W_Q, W_K)",
            )
        queries = [n for s, _ in found for n, role in s.roles.items() if role == "query"]
        query = median(checked.std(n) / xavier(checked.parameters[n]) for n in queries) if queries else out
        if out > 0.9 and out > FAR * query:
            yield Finding(
                code="init-value-unscaled",
                severity="error",
                address=queries[0],
                measured=query,
                message=f"W_Q starts with {query:.3g} of Xavier's standard deviation, W_V and W_O with {value:.3g} and"
                f" {out:.3g}: DeepNorm's beta is applied to the wrong matrices",
                remedy="beta for W_V, W_O, W_1, W_2; 1 for W_Q, W_K",
            )


def _copied(checked: CheckedModel, group: list[TracedSublayer]) -> bool:
    names = {s.last for s in group if s.last}
    weights = [checked.parameters[name] for name in names]
    first = weights[0]
    return (
        len(weights) > 1 and first.numel() > 1 and bool(first.std() > 0) and all(torch.equal(first, w) for w in weights)
    )


def _loudness(checked: CheckedModel) -> float | None:
    if checked.logits is None:
        return None
    return checked.trace[checked.logits].double().std(dim=-1).mean().item()


def _is_loud(checked: CheckedModel) -> bool:
    loud = _loudness(checked)
    return loud is not None and loud > LOUD


def _logit_factor(checked: CheckedModel) -> float:
    """What the logits are multiplied by after the head's matrix."""
    if checked.logits is None or (product := checked.dataflow.product(checked.logits)) is None:
        return 1.0
    made = checked.trace[product.makes[0]].double()
    return (checked.trace[checked.logits].double().norm() / made.norm().clamp_min(1e-30)).item()


def _first_loss(checked: CheckedModel) -> float:
    """Cross-entropy of the logits against labels drawn evenly, of classes that the model does not rule out itself:
    logsumexp - mean.
    """
    assert checked.logits is not None
    logits = checked.trace[checked.logits].double()
    possible = logits.masked_fill(logits <= RULED_OUT, math.nan)
    return (logits.logsumexp(-1) - possible.nanmean(-1)).mean().item()


def _expected(checked: CheckedModel, name: str, scheme: str) -> float:
    weight = checked.parameters[name]
    fan_out, fan_in = weight.shape[0], weight[0].numel()
    named = getattr(checked.config, "initializer_range", None) or getattr(checked.config, "init_std", None)
    width = min(fan_in, fan_out)
    return BASES[scheme][1](Shape(fan_in=fan_in, fan_out=fan_out, width=width, range=float(named or RANGE)))


def _fits(
    checked: CheckedModel, stack: TracedStack, role: str, names: list[str], scheme: str, factor: float
) -> float | None:
    """None where weights follow a scheme, plain, scaled with depth, or fused; else how many times off they are."""
    ratio = median(checked.std(n) / _expected(checked, n, scheme) for n in names) / factor
    layers, sublayers = stack.layers, len(stack.sublayers)
    folded = 1 / math.sqrt(_head_size(checked, stack)) if role.endswith("query") else 1.0  # T5's 1/sqrt(d/heads)
    known = [1.0, folded, 2**-0.5, 2**0.5, 1.5**0.5]  # Xavier of a fused matrix, drawn apart or as torch draws it
    deepnorm = [(8 * layers) ** -0.25, (12 * layers) ** -0.25, 0.87 * layers ** (-5 / 16)]  # beta
    fixup = [0.67 * layers**-0.25, (9 * layers) ** -0.25]
    glm = [(2 * layers) ** -0.5]  # GLM-130B's beta
    parts = role.split()[-1].split("+")
    if parts[-1] in ("attn_out", "ffn_out"):
        known += [(2 * layers) ** -0.5, layers**-0.5, sublayers**-0.5, *deepnorm, *fixup]  # GPT-2's, and what varies
        known += [2 / layers / (2 / 5) ** 0.5] if scheme == "small" else []  # Wang's
    elif "value" in parts or parts[-1] == "ffn_in":
        known += [*deepnorm, *fixup, *glm]
    if len(parts) == 3 and scheme != "small":  # of a fused matrix the values alone
        known += [k * ((2 + b * b) / 3) ** 0.5 for b in (*deepnorm, *glm) for k in (1.0, 1.5**0.5, 2**0.5)]
    near = any(abs(math.log(max(ratio, 1e-9) / k)) < math.log(1.12) for k in known)
    return None if near or ratio == 0 else ratio


def _alike(names: list[str]) -> list[list[str]]:
    """By what they are called in every layer; all together where hardly any has its like."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(numbered(name), []).append(name)
    return list(groups.values()) if max(map(len, groups.values()), default=0) > 3 else [names]


def _is_far(checked: CheckedModel, name: str, ratio: float) -> bool:
    """Farther than another draw of so few numbers would be."""
    drawn = 1 + 5 * (2 * checked.parameters[name].numel()) ** -0.5 if name in checked.parameters else 1.0
    return not 1 / max(FAR, drawn) < ratio < max(FAR, drawn)


def _one_off(checked: CheckedModel, names: list[str]) -> Finding | None:
    """A weight of another size than its like in all other layers, where those agree."""
    stds = {name: checked.std(name) for name in names if name not in checked.idle_writers}
    usual = median(stds.values()) if stds else 0.0
    odd = [name for name, std in stds.items() if usual and _is_far(checked, name, std / usual)]
    if len(odd) != 1 or len(names) < 4:
        return None
    return Finding(
        code="init-std",
        severity="warning",
        address=odd[0],
        measured=stds[odd[0]] / usual,
        message=f"this weight has {stds[odd[0]] / usual:.3g} times the standard deviation of the same one"
        f" in the other {len(names) - 1} layers",
        remedy="initialize all layers alike, or by one rule of depth",
        edit=Edit(says="the size that the others have", parameters={odd[0]: scaled(usual / max(stds[odd[0]], 1e-12))}),
    )


def _head_size(checked: CheckedModel, stack: TracedStack) -> int:
    attention = next((s.attention for s in stack.sublayers if s.attention is not None), None)
    attended = query_key_value(checked.dataflow, attention) if attention is not None else None
    return checked.trace[attended[0]].shape[-1] if attended is not None else 1


def _by_role(checked: CheckedModel, stack: TracedStack) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for sublayer in stack.sublayers:
        for name, role in sublayer.roles.items():
            if checked.parameters[name].ndim == 2:
                found.setdefault(role if sublayer.kind in ("attn", "ffn") else f"{sublayer.kind} {role}", []).append(
                    name
                )
    return found


def _value_matrix(sublayer: TracedSublayer) -> str | None:
    return next((name for name, role in sublayer.roles.items() if "value" in role.split("+")), None)


def _value_and_out(checked: CheckedModel, sublayer: TracedSublayer) -> tuple[float, float] | None:
    """Standard deviation over Xavier's, of W_V (of its part in a fused matrix) and of W_O."""
    name = _value_matrix(sublayer)
    if name is None or sublayer.last is None:
        return None
    weight, out = checked.parameters[name].float(), checked.parameters[sublayer.last].float()
    width = min(weight.shape)
    if "+" in sublayer.roles[name]:
        flow = checked.dataflow
        weight = weight.index_select(outputs_axis(flow, name, weight), value_rows(flow, sublayer))
    part = weight.std(unbiased=False).item() / xavier(torch.empty(width, width))
    return part, out.std(unbiased=False).item() / xavier(out)
