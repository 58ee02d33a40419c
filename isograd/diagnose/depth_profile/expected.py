"""What theory predicts of a stack at initialization, as lines beside a depth profile; for the placements it covers."""

import math
from collections.abc import Iterable, Iterator, Sequence

from isograd.diagnose.depth_profile.results import Expected, StackProfile, SublayerProfile

Points = Iterable[tuple[SublayerProfile, float]]

_XAVIER = (0.25, 1.0)  # Var of the first feed-forward branch: 1/2 in the theory's setting
_NO_POST = frozenset(("pre-ln", "out-ln", "sandwich", "sub-ln", "normformer", "layerscale", "rezero", "none"))


def expected(stacks: Sequence[StackProfile], rows: Sequence[SublayerProfile]) -> tuple[Expected, ...]:
    """All lines that fit, stack by stack."""
    found: list[Expected] = []
    for stack in stacks:
        own = [row for row in rows if row.stack == stack.name]
        lines = [*_stream(stack, own), *_dependency(stack, own), *_gradients(stack, own), *_entropy(stack, own)]
        found += [line for line in lines if line.index]
    return tuple(found)


def _stream(stack: StackProfile, rows: Sequence[SublayerProfile]) -> Iterator[Expected]:
    ffn = [row for row in rows if row.kind == "ffn"]
    xavier = bool(ffn) and _XAVIER[0] <= (ffn[0].branch_variance or 0.0) <= _XAVIER[1]
    if _alone(stack, "post-ln"):
        source = "Xiong et al. 2020, Lemma 2: E|x|^2 = 3/2 d after the feed-forward; uniform attention, Xavier normal"
        yield _line("sum_rms", stack, "√1.5 after the ffn (theory)", source, ((row, math.sqrt(1.5)) for row in ffn))
    if _alone(stack, "pre-ln") and xavier and not stack.cross:
        source = "Xiong et al. 2020, Lemma 2: 1/2 to 3/2 per layer; uniform attention, Xavier normal"
        for label, slope in (("Lemma 2: at least", 0.5), ("Lemma 2: at most", 1.5)):
            points = ((row, math.sqrt(stack.input_rms**2 + slope * row.layer)) for row in ffn)
            yield _line("residual_rms", stack, label, source, points)
    if set(stack.placements) <= _NO_POST and all(abs(row.skip - 1) < 1e-3 for row in rows):
        source = "variances add where no branch knows of another: the input's and those of the branches, as measured"
        yield _line("residual_rms", stack, "branches add up unrelated", source, _added_up(stack, rows))


def _added_up(stack: StackProfile, rows: Sequence[SublayerProfile]) -> Points:
    total = stack.input_rms**2
    for row in rows:
        if row.branch_variance is None:
            return
        total += row.branch_variance
        yield row, math.sqrt(total)


def _dependency(stack: StackProfile, rows: Sequence[SublayerProfile]) -> Iterator[Expected]:
    if not (_alone(stack, "pre-ln") or _alone(stack, "admin")):
        return
    source = "Liu et al. 2020 (ADMIN): beta_ii^2 = 1/i, the sum grows as ln i; all branches of one variance"
    yield _line("dependency", stack, "1 / i", source, ((row, 1 / row.index) for row in rows))
    sums = ((row, sum(1 / i for i in range(1, row.index + 1))) for row in rows)
    yield _line("dependency_sum", stack, "1 + 1/2 + … + 1/i", source, sums)


def _gradients(stack: StackProfile, rows: Sequence[SublayerProfile]) -> Iterator[Expected]:
    ffn = [row for row in rows if row.kind == "ffn" and row.gradient_mean_abs is not None]
    if not ffn:
        return
    last = ffn[-1].gradient_mean_abs or 0.0
    if _alone(stack, "post-ln") and stack.cross:
        source = "Xiong et al. 2020, appendix: a factor sqrt(2/3) per layer towards the input"
        points = ((row, last * (2 / 3) ** ((ffn[-1].layer - row.layer) / 2)) for row in ffn)
        yield _line("gradient_mean_abs", stack, "√(2/3) per layer", source, points)
    elif _alone(stack, "post-ln"):
        source = "Liu et al. 2020 (ADMIN), Theorem 1: without cross-attention no vanishing at initialization"
        yield _line("gradient_mean_abs", stack, "flat", source, ((row, last) for row in ffn))
    elif _alone(stack, "deepnorm"):
        source = "Wang et al. 2022 (DeepNet): balanced at initialization; measured first/last 1.02 to 1.04"
        yield _line("gradient_mean_abs", stack, "flat", source, ((row, last) for row in ffn))


def _entropy(stack: StackProfile, rows: Sequence[SublayerProfile]) -> Iterator[Expected]:
    for kind in ("attn", "cross"):
        points = ((row, row.attention_uniform) for row in rows if row.kind == kind and row.attention_uniform)
        label = "ln of the keys seen" + (" (cross)" if kind == "cross" else "")
        yield _line("attention_entropy", stack, label, "entropy of equal weights", points)


def _alone(stack: StackProfile, placement: str) -> bool:
    return set(stack.placements) == {placement}


def _line(quantity: str, stack: StackProfile, label: str, source: str, points: Points) -> Expected:
    found = list(points)
    return Expected(
        quantity=quantity,
        stack=stack.name,
        label=label,
        source=source,
        index=tuple(row.index for row, _ in found),
        value=tuple(value for _, value in found),
    )
