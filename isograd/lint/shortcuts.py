"""Rules about shortcuts: one that is missing, added twice, starts after the norm, or goes around it."""

import re
from collections.abc import Iterator

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.proof.trial import Edit, Made, normed, plus
from isograd.lint.rules import Phase, rule
from isograd.trace.anatomy import TracedStack
from isograd.trace.attention import FUSED, is_attention, query_key_value
from isograd.trace.dataflow import SUMS, TracedNorm, bare, common_address, numbered
from isograd.trace.record import Operation
from isograd.trace.sublayers import TracedSublayer

EXACT = 1e-3
OFF = 0.5  # of 1: a factor that is far from it
LEAST = 0.2  # the smallest constant on one kind of branch alone: macaron layers have 1/2
MOST = 1.2  # the largest constant on a branch that nothing explains
MULTIPLIERS = (
    "residual_multiplier", "scale_depth", "residual_scale", "depth_scale", "conv_residual_weights",
    "feed_forward_residual_weights",
)  # fmt: skip


@rule(Phase.WIRING, "shortcut-missing", hides=(Phase.WIRING, Phase.INIT, Phase.GRADIENTS), suspicions=True)
def missing(checked: CheckedModel) -> Iterator[Finding]:
    """Attentions and feed-forwards whose output replaces the stream instead of being added to it."""
    if any("gru" in o.name for o in checked.trace.operations):  # a gate in place of the sum
        return
    found = [*_attentions_outside(checked), *_replaced(checked)]
    if found:
        posts = sum("post" in s.norms and "pre" not in s.norms for s in checked.anatomy.sublayers)
        address, what = min(found, key=lambda one: min(one[2], default=0))[:2]
        yield Finding(
            address=address,
            measured=float(len(found)),
            message=f"the {what} has no residual connection: its output replaces the stream"
            f" ({many(len(found), 'sublayer')})",
            remedy="x = norm(x + f(x)), not x = norm(f(x))"
            if 2 * posts > len(checked.anatomy.sublayers)
            else "x = x + f(norm(x)), not x = f(norm(x))",
            edit=Edit(says="x + f(x)", values={v: made for _, _, values in found for v, made in values.items()}),
        )
        return
    for stack in checked.anatomy.stacks:
        totals = {s.total: s for s in stack.sublayers}
        early = [s for s in stack.sublayers if s.skip_from and "post" not in s.norms and not s.design]
        passed = [(s, totals[s.read]) for s in early if s.read in totals and not _goes_on(checked, s)]
        passed = [(s, lost) for s, lost in passed if s.kind == "ffn" != lost.kind]  # not around a whole stage
        if 2 * len(passed) >= stack.layers:
            yield _early(passed)


def _goes_on(checked: CheckedModel, sublayer: TracedSublayer) -> bool:
    """Whether the sum that a branch reads reaches the output beside the branch: a second stream, as in RevNets."""
    trace, seen, todo = checked.trace, {sublayer.branch, sublayer.read}, [sublayer.read]
    while todo:
        new = {v for o in trace.read_by(todo.pop()) for v in o.makes} - seen
        seen |= new
        todo += new
    return not seen.isdisjoint(trace.outputs.values())


def _early(passed: list[tuple[TracedSublayer, TracedSublayer]]) -> Finding:
    """Of sublayers whose shortcut goes around the one before as well."""
    after, lost = passed[0]
    return Finding(
        code="shortcut-missing",
        address=lost.address,
        measured=float(len(passed)),
        message=f"the residual connection of the {after.kind} starts before the {lost.kind} and goes around it: the"
        f" output of the {lost.kind} reaches the next layer only through the {after.kind}"
        f" ({many(len(passed), 'layer')})",
        remedy="x = x + attn(norm(x)); x = x + ffn(norm(x)): add each branch to what it has read",
        edit=Edit(
            says="each branch added to what it has read",
            values={after.total: plus((1.0, lost.total), (-1.0, lost.read)) for after, lost in passed},
        ),
    )


Found = tuple[str, str, dict[int, Made]]  # address, what it is, and the sums that are missing


def _attentions_outside(checked: CheckedModel) -> Iterator[Found]:
    """Attentions that belong to no sum, of as many queries as keys; of others, which may pool, those that several
    layers have.
    """
    dataflow, trace = checked.dataflow, checked.trace
    inside = {id(o) for s in checked.anatomy.sublayers for o in dataflow.between(s.read, s.branch)}
    oblong: dict[str, list[Found]] = {}
    for operation in trace.operations:
        if id(operation) in inside or not is_attention(dataflow, operation) or not operation.makes:
            continue
        fused = FUSED in operation.name
        scores = trace[operation.reads[0] if fused else operation.makes[0]]
        square = fused or scores.shape[-2] == scores.shape[-1]
        attended = query_key_value(dataflow, operation)
        begun = attended is not None and all(v in dataflow.live for v in attended)  # learned queries have no stream yet
        begun &= attended is not None and attended[2] not in trace.below(operation.makes)  # powers of the weights
        begun &= scores.ndim > 2 and scores.shape[-2] > 2 and operation.makes[0] in checked.reaching
        if begun and attended and not _is_beside(checked, operation):
            found = operation.module, "attention", _sum_around(checked, operation, attended[0])
            if square:
                yield found
            elif found[2]:
                oblong.setdefault(numbered(operation.module), []).append(found)
    yield from (one for alike in oblong.values() if len(alike) > 1 for one in alike)


def _sum_around(checked: CheckedModel, attention: Operation, query: int) -> dict[int, Made]:
    """The output projection's result plus what the queries were made of."""
    dataflow, trace = checked.dataflow, checked.trace
    below, above = trace.below(attention.makes), dataflow.above(query)
    products = [o for o in trace.operations if dataflow.is_product(o)]
    out = next((o for o in products if not below.isdisjoint(o.reads)), None)
    asked = [o for o in products if o.makes[0] in above]
    if out is None or not asked:
        return {}
    origin = dataflow.back(dataflow.data(asked[-1])[0])[0]
    end = next((v for v in sorted(trace.below(out.makes)) if trace[v].shape == trace[origin].shape), out.makes[0])
    return {end: plus((1.0, origin))}


def _is_beside(checked: CheckedModel, attention: Operation) -> bool:
    """Whether what its last matrix makes is added to what was not computed of it: x that a matrix of its own has made
    wider, where a stage begins.
    """
    dataflow, start = checked.dataflow, attention.makes[0]
    below = checked.trace.below([start])
    for total in (o for o in checked.trace.operations if bare(o) in SUMS and len(dataflow.data(o)) == 2):
        mine, others = ([v for v in dataflow.data(total) if (v in below) == own] for own in (True, False))
        if mine and others and checked.trace[mine[0]].shape == checked.trace[others[0]].shape:
            products = [o for o in dataflow.between(start, mine[0]) if dataflow.is_product(o)]
            if len(products) == 1:
                return True
    return False


def _replaced(checked: CheckedModel) -> Iterator[Found]:
    """What stands between a sum and the next sublayer, or the output, with two products and no sum around them."""
    dataflow, trace = checked.dataflow, checked.trace
    if not checked.attentions and not checked.takes_ids:  # between the blocks of a ResNet
        return
    sums = [s.total for s in checked.anatomy.sublayers]
    claimed = {name for s in checked.anatomy.sublayers for name in s.parameters}
    yield from _at_end(checked, claimed, claimed)
    found: list[tuple[TracedSublayer, int, str, str]] = []
    names_of: set[str] = set()  # of the matrices found
    for sublayer in checked.anatomy.sublayers:
        origin = dataflow.back(sublayer.read)[0]
        made = trace.made_by(origin)
        if made is None or not dataflow.is_product(made) or trace[origin].ndim < 3:
            continue
        above = dataflow.above(origin)
        before = [t for t in sums if t in above and sorted(trace[t].shape) == sorted(trace[origin].shape)]
        if not before:
            continue
        between = dataflow.between(max(before), origin)
        products = [o for o in between if dataflow.is_product(o)]
        fresh = not any(name in claimed for o in products for name in dataflow.weights(o))
        if len(products) >= 2 and fresh and not any(is_attention(dataflow, o) for o in between):
            what = "convolution" if any("conv" in o.name for o in products) else "feed-forward"
            found.append((sublayer, max(before), _holder(products), what))
            names_of.update(n for o in products for n in dataflow.weights(o))
    likes = {s.total: {numbered(n) for n in s.roles} for s in checked.anatomy.sublayers}
    of_stack = {k.name: set[str]().union(*(likes[s.total] for s in k.sublayers)) for k in checked.anatomy.stacks}
    stack_of = {s.total: s.stack for s in checked.anatomy.sublayers}
    if found:
        yield from _at_end(checked, claimed, names_of)
    for sublayer, total, where, what in found:
        alike = of_stack[stack_of[total]] & of_stack[sublayer.stack]  # else it leads from one stack to another
        if alike or len(found) > 1:
            yield where, what, {dataflow.back(sublayer.read)[0]: plus((1.0, total))}


def _at_end(checked: CheckedModel, claimed: set[str], alike_to: set[str]) -> Iterator[Found]:
    """Matrices between the last sum and the output whose likes in other layers stand in a branch, or have no sum."""
    dataflow, trace = checked.dataflow, checked.trace
    likes = {re.sub(r"\d+", "*", name) for name in alike_to}
    inside = trace.above([s.total for s in checked.anatomy.sublayers])
    for stack in checked.anatomy.stacks:
        below = (trace.below([stack.sublayers[-1].total]) & checked.reaching) - inside
        products = [o for o in trace.operations if not below.isdisjoint(o.makes) and dataflow.is_product(o)]
        after = [o for o in products if any(v in below for v in dataflow.data(o))]
        after = [o for o in after if not _is_added(checked, after, o)]
        names = [
            (o, n) for o in after for n in dataflow.weights(o) if n not in claimed and checked.parameters[n].ndim >= 2
        ]
        alike = [(o, n) for o, n in names if re.sub(r"\d+", "*", n) in likes]
        if len(alike) >= 2:
            last = stack.sublayers[-1].total
            yield _holder([o for o, _ in alike]), "feed-forward", {alike[-1][0].makes[0]: plus((1.0, last))}


def _is_added(checked: CheckedModel, products: list[Operation], operation: Operation) -> bool:
    """Whether what a product, or one that follows it, makes is added to another activation, as a step of a box."""
    dataflow, trace = checked.dataflow, checked.trace
    below = trace.below(operation.makes)
    roots = {o.makes[0] for o in products if o.makes[0] in below}
    for total in (o for o in trace.operations if bare(o) in SUMS and len(dataflow.data(o)) > 1):
        terms = {dataflow.root(v) for v in dataflow.data(total)}
        if terms & roots and terms - below:
            return True
    return False


def _holder(products: list[Operation]) -> str:
    return common_address(o.module for o in products) or products[0].module


@rule(
    Phase.WIRING, "shortcut-doubled", "factor-unexplained", hides={"shortcut-doubled": ("placement-mixed",
    "factor-unexplained")}, suspicions=True,
)  # fmt: skip
def factors(checked: CheckedModel) -> Iterator[Finding]:
    """Constants on the terms of a sum that no published residual has."""
    declared = any(checked.setting(name) for name in MULTIPLIERS)
    for stack in checked.anatomy.stacks if not declared else ():
        plain = [s for s in stack.sublayers if "post" not in s.norms and not s.skip.learned]
        doubled = [s for s in plain if abs(s.skip.value - 2) < EXACT or _again(checked, stack, s)]
        odd = [s for s in stack.sublayers if s not in doubled and _is_unexplained(checked, stack, s)]
        if doubled:
            yield _doubled(doubled)
        if odd:
            skip, scale, kind = odd[0].skip.value, odd[0].scale.value, odd[0].kind
            what = f"the sum is {skip:.3g} x + {scale:.3g} {kind}(x) in place of x + {kind}(x)"
            yield _factor(odd, scale if abs(skip - 1) < EXACT else skip, what)


def _is_unexplained(checked: CheckedModel, stack: TracedStack, sublayer: TracedSublayer) -> bool:
    """Whether constants are neither 1, nor small on all kinds of branches alike, nor (x + f(x)) / sqrt(2)."""
    skip, scale = sublayer.skip, sublayer.scale
    if skip.learned or scale.learned or not (skip.even and scale.even):
        return False
    ones = {s.kind for s in stack.sublayers if not s.scale.learned and abs(s.scale.value - 1) < EXACT}
    if 0 < scale.value < LEAST and ones and sublayer.kind not in ones:
        return True
    balanced = abs(skip.value**2 + scale.value**2 - 1) < 1e-2
    routed = sublayer.kind == "ffn" and checked.routed  # experts times how many are chosen
    large = scale.value > MOST and not routed
    return "post" not in sublayer.norms and not balanced and (abs(skip.value - 1) > EXACT or large)


def _again(checked: CheckedModel, stack: TracedStack, sublayer: TracedSublayer) -> bool:
    """Whether a sum holds what an earlier sublayer of the stack read, too."""
    trace = checked.trace
    beside = [s for s in stack.sublayers if s.total == sublayer.total]
    total = trace[sublayer.total].double()
    values = [(s.scale, trace[s.branch].double()) for s in beside] + [(sublayer.skip, trace[sublayer.read].double())]
    if any(x.shape != total.shape or not c.even for c, x in values):
        return False
    rest = total - sum(c.value * x for c, x in values)
    earlier = [s for s in stack.sublayers if s.read < sublayer.read]
    size = total.abs().max()
    if not earlier or earlier[-1].skip_from or rest.abs().max() < 1e-4 * size:  # two streams that are added at the end
        return False
    x = trace[earlier[-1].read].double()
    return x.shape == rest.shape and bool((rest - x).abs().max() < 1e-4 * size)


def _doubled(found: list[TracedSublayer]) -> Finding:
    return Finding(
        code="shortcut-doubled",
        address=found[0].address,
        measured=2.0,
        message="the residual stream is added twice, 2x + f(x), and doubles with every sublayer"
        f" ({many(len(found), 'sublayer')})",
        remedy="add the shortcut once: within the module or around it, x + f(norm(x))",
        edit=Edit(says="x + f(x)", values={s.total: plus((-1.0, _x(s))) for s in found}),
    )


def _x(sublayer: TracedSublayer) -> int:
    """What the shortcut of a sublayer carries."""
    return sublayer.enters if sublayer.enters >= 0 else sublayer.read


def _factor(found: list[TracedSublayer], value: float, message: str) -> Finding:
    return Finding(
        code="factor-unexplained",
        severity="warning",
        address=found[0].address,
        measured=value,
        message=f"{message} ({many(len(found), 'sublayer')})",
        remedy="remove the factor, or take one that a law of depth gives: 1/sqrt(2L) on the init of W_O and W_2, alpha"
        " = (2L)^(1/4) on the shortcut under a post norm (DeepNorm)",
        edit=Edit(
            says="both terms with factor 1",
            values={s.total: plus((1 - s.skip.value, _x(s)), (1 - s.scale.value, s.branch)) for s in found},
        ),
    )


@rule(
    Phase.WIRING, "shortcut-after-norm", hides=("placement-mixed", "collapse-predicted"), suspicions=True,
)  # fmt: skip
def after_norm(checked: CheckedModel) -> Iterator[Finding]:
    """x = norm(x); x = x + f(x): the shortcut starts after the norm, whose module belongs to what follows."""
    if any(getattr(checked.config, n, False) for n in ("apply_residual_connection_post_layernorm",)):
        return
    for stack in checked.anatomy.stacks:
        pairs = [(s, after) for s, after in zip(stack.sublayers, stack.sublayers[1:], strict=False)]
        crossing = [(s, after) for s, after in pairs if s.norms.get("post") and s.total != after.total]
        unlike = {"mix", "cross"}  # positions by a convolution, and their norm; slots that read a normalized picture
        crossing = [(s, after) for s, after in crossing if unlike.isdisjoint((s.kind, after.kind))]
        pairs = [(s, after) for s, after in crossing if _belongs_to(s.norms["post"][0], after, s)]
        pairs += [(s, after) for s, after in crossing if s.placement == "pre+post" and after.placement == "none"
                  and not _belongs_to(s.norms["post"][0], s, after)]  # fmt: skip
        norms = {id(after): s.norms["post"][0] for s, after in pairs}
        found = list({id(after): after for _, after in pairs}.values())
        if found:
            yield Finding(
                address=found[0].address,
                measured=float(len(found)),
                message="the residual connection starts after the norm: x = norm(x), then x + f(x), which behaves as"
                f" Post-LN ({many(len(found), 'sublayer')})",
                remedy="keep x: x = x + f(norm(x)), not x = norm(x); x = x + f(x)",
                edit=Edit(
                    says="x + f(norm(x))",
                    values={s.total: plus((1.0, norms[id(s)].origin), (-1.0, s.read)) for s in found},
                ),
            )


def _belongs_to(norm: TracedNorm, after: TracedSublayer, before: TracedSublayer) -> bool:
    """Whether a norm's module stands in the module of the sublayer after it, and not in that of the one before."""
    return len(common_address([norm.address, after.address])) > len(common_address([norm.address, before.address]))


@rule(
    Phase.WIRING, "norm-bypassed", hides=("placement-mixed", "final-norm-missing", "parameter-unused"), suspicions=True,
)  # fmt: skip
def bypassed(checked: CheckedModel) -> Iterator[Finding]:
    """Branches of which one matrix reads the norm of x, and another x itself."""
    open_ = [s for s in checked.anatomy.sublayers if "pre" not in s.norms and not s.design and not checked.routed]
    found = [(s, name) for s in open_ for name in _bare(checked, s)]
    if found:
        yield Finding(
            address=found[0][1],
            measured=float(len(found)),
            message="this matrix reads x itself, while others of its branch read norm(x)"
            f" ({many(len(found), 'place')})",
            remedy="h = norm(x), and pass h to every projection of the branch: x + f(h)",
            edit=before_branch(checked, [s for s, _ in found]),
        )


def before_branch(checked: CheckedModel, sublayers: list[TracedSublayer]) -> Edit | None:
    """A norm in front of every matrix that reads x itself; None where there is none."""
    places: dict[int, set[int]] = {}
    number = {id(o): at for at, o in enumerate(checked.trace.operations)}
    for sublayer in sublayers:
        for operation in checked.dataflow.between(sublayer.read, sublayer.branch):
            if not checked.dataflow.is_product(operation):
                continue
            read = checked.dataflow.data(operation)[0]
            if checked.dataflow.back(read, sublayer.read) == (sublayer.read, []):
                places.setdefault(read, set()).add(number[id(operation)])
    if not places:
        return None
    readers = {value: frozenset(at) for value, at in places.items()}
    return Edit(says="x + f(norm(x))", values=dict.fromkeys(places, normed()), readers=readers)


def _bare(checked: CheckedModel, sublayer: TracedSublayer) -> list[str]:
    """Matrices that read x itself in a branch in which others read a norm of it."""
    dataflow, x = checked.dataflow, sublayer.read
    above = dataflow.above(sublayer.branch)
    if not any(n.scales and n.result in above and dataflow.back(n.origin, x)[0] == x for n in dataflow.norms.values()):
        return []
    products = [o for o in dataflow.between(x, sublayer.branch) if dataflow.is_product(o)]
    direct = [o for o in products if dataflow.back(dataflow.data(o)[0], x) == (x, [])]
    return [name for o in direct for name in dataflow.weights(o)]
