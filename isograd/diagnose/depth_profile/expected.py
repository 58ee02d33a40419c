"""What theory says of the start of a stack, as lines beside a depth profile; only where it speaks of the placement."""

import math
from collections.abc import Iterable, Iterator, Sequence

from isograd.diagnose.depth_profile.results import Expected, SublayerProfile, TowerProfile

Points = Iterable[tuple[SublayerProfile, float]]

_XAVIER = (0.25, 1.0)  # Var of the first feed-forward branch: 1/2 in the theory's setting
_NO_POST = frozenset(("pre-ln", "out-ln", "sandwich", "sub-ln", "normformer", "layerscale", "rezero", "none"))


def expected(towers: Sequence[TowerProfile], rows: Sequence[SublayerProfile]) -> tuple[Expected, ...]:
    """All lines that fit, tower by tower."""
    found: list[Expected] = []
    for tower in towers:
        own = [row for row in rows if row.tower == tower.name]
        lines = [*_stream(tower, own), *_dependency(tower, own), *_gradients(tower, own), *_entropy(tower, own)]
        found += [line for line in lines if line.index]
    return tuple(found)


def _stream(tower: TowerProfile, rows: Sequence[SublayerProfile]) -> Iterator[Expected]:
    ffn = [row for row in rows if row.kind == "ffn"]
    xavier = bool(ffn) and _XAVIER[0] <= (ffn[0].branch_variance or 0.0) <= _XAVIER[1]
    if _alone(tower, "post-ln"):
        source = "Xiong et al. 2020, Lemma 2: E|x|^2 = 3/2 d after the feed-forward; uniform attention, Xavier normal"
        yield _line("sum_rms", tower, "√1.5 after the ffn (theory)", source, ((row, math.sqrt(1.5)) for row in ffn))
    if _alone(tower, "pre-ln") and xavier and not tower.cross:
        source = "Xiong et al. 2020, Lemma 2: 1/2 to 3/2 per layer; uniform attention, Xavier normal"
        for label, slope in (("Lemma 2: at least", 0.5), ("Lemma 2: at most", 1.5)):
            points = ((row, math.sqrt(tower.start_rms**2 + slope * row.layer)) for row in ffn)
            yield _line("residual_rms", tower, label, source, points)
    if set(tower.placements) <= _NO_POST and all(abs(row.skip - 1) < 1e-3 for row in rows):
        source = "variances add where no branch knows of another: the start's and those of the branches, as measured"
        yield _line("residual_rms", tower, "branches add up unrelated", source, _added_up(tower, rows))


def _added_up(tower: TowerProfile, rows: Sequence[SublayerProfile]) -> Points:
    total = tower.start_rms**2
    for row in rows:
        if row.branch_variance is None:
            return
        total += row.branch_variance
        yield row, math.sqrt(total)


def _dependency(tower: TowerProfile, rows: Sequence[SublayerProfile]) -> Iterator[Expected]:
    if not (_alone(tower, "pre-ln") or _alone(tower, "admin")):
        return
    source = "Liu et al. 2020 (ADMIN): beta_ii^2 = 1/i, the sum grows as ln i; all branches of one variance"
    yield _line("dependency", tower, "1 / i", source, ((row, 1 / row.index) for row in rows))
    sums = ((row, sum(1 / i for i in range(1, row.index + 1))) for row in rows)
    yield _line("dependency_sum", tower, "1 + 1/2 + … + 1/i", source, sums)


def _gradients(tower: TowerProfile, rows: Sequence[SublayerProfile]) -> Iterator[Expected]:
    ffn = [row for row in rows if row.kind == "ffn" and row.gradient_mean_abs is not None]
    if not ffn:
        return
    last = ffn[-1].gradient_mean_abs or 0.0
    if _alone(tower, "post-ln") and tower.cross:
        source = "Xiong et al. 2020, appendix: a factor sqrt(2/3) per layer towards the input"
        points = ((row, last * (2 / 3) ** ((ffn[-1].layer - row.layer) / 2)) for row in ffn)
        yield _line("gradient_mean_abs", tower, "√(2/3) per layer", source, points)
    elif _alone(tower, "post-ln"):
        source = "Liu et al. 2020 (ADMIN), Theorem 1: without cross-attention no vanishing at the start"
        yield _line("gradient_mean_abs", tower, "level", source, ((row, last) for row in ffn))
    elif _alone(tower, "deepnorm"):
        source = "Wang et al. 2022 (DeepNet): balanced at the start; measured first/last 1.02 to 1.04"
        yield _line("gradient_mean_abs", tower, "level", source, ((row, last) for row in ffn))


def _entropy(tower: TowerProfile, rows: Sequence[SublayerProfile]) -> Iterator[Expected]:
    for kind in ("attn", "cross"):
        points = ((row, row.attention_uniform) for row in rows if row.kind == kind and row.attention_uniform)
        label = "ln of the keys seen" + (" (cross)" if kind == "cross" else "")
        yield _line("attention_entropy", tower, label, "entropy of equal weights", points)


def _alone(tower: TowerProfile, placement: str) -> bool:
    return set(tower.placements) == {placement}


def _line(quantity: str, tower: TowerProfile, label: str, source: str, points: Points) -> Expected:
    found = list(points)
    return Expected(
        quantity=quantity,
        tower=tower.name,
        label=label,
        source=source,
        index=tuple(row.index for row, _ in found),
        value=tuple(value for _, value in found),
    )
