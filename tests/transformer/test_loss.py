"""The chunked loss against torch's cross-entropy on the whole matrix of logits, and against the originals' sums."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from isograd.transformer import loss
from isograd.transformer.loss import IGNORE, linear_cross_entropy, smoothing_of
from tests.build import close
from tests.golden import PAD, REDUCED, WHOLE, present, read

ROWS, WIDTH, VOCABULARY = 23, 6, 11


def problem(dtype: torch.dtype = torch.float64, ignored: int = 5, rows: int = ROWS) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(7)
    hidden, weight, bias = (
        torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((rows, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    )
    target = torch.randint(VOCABULARY, (rows,), generator=draw)
    target[torch.randperm(rows, generator=draw)[:ignored]] = IGNORE
    return hidden, weight, bias, target


def with_gradients(loss: Tensor, *leaves: Tensor) -> list[Tensor]:
    return [loss, *torch.autograd.grad(3 * loss, leaves)]  # 3: the incoming gradient must be used


@pytest.mark.parametrize("chunk", [1, 7, 512])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rows", "ignored"), [(ROWS, 5), (100, 1)])  # left out; too few to leave out
def test_values_and_gradients_are_torchs(
    chunk: int, smoothing: float, with_bias: bool, rows: int, ignored: int
) -> None:
    hidden, weight, bias, target = problem(ignored=ignored, rows=rows)
    leaves = (hidden, weight, bias) if with_bias else (hidden, weight)
    b = bias if with_bias else None
    ours = linear_cross_entropy(hidden, weight, target, bias=b, label_smoothing=smoothing, chunk=chunk)
    plain = F.cross_entropy(F.linear(hidden, weight, b), target, label_smoothing=smoothing)
    for got, expected in zip(with_gradients(ours, *leaves), with_gradients(plain, *leaves), strict=True):
        close(got, expected, 1e-12)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 40), chunk=st.integers(1, 45), ignored=st.integers(0, 39), eps=st.floats(0, 0.9))
def test_any_shape_and_chunk(rows: int, chunk: int, ignored: int, eps: float) -> None:
    hidden, weight, bias, target = problem(ignored=min(ignored, rows - 1), rows=rows)
    ours = linear_cross_entropy(hidden, weight, target, bias=bias, label_smoothing=eps, chunk=chunk)
    plain = F.cross_entropy(F.linear(hidden, weight, bias), target, label_smoothing=eps)
    leaves = (hidden, weight, bias)
    for got, expected in zip(with_gradients(ours, *leaves), with_gradients(plain, *leaves), strict=True):
        close(got, expected, 1e-12)


def on_target_and_all(log_p: Tensor, target: Tensor, eps: float) -> Tensor:
    """1 - eps on the target, and eps/V on every class."""
    one_hot = F.one_hot(target, log_p.shape[1]).to(log_p.dtype)
    return -(((1 - eps) * one_hot + eps / log_p.shape[1]) * log_p).sum()


def on_target_and_others(log_p: Tensor, target: Tensor, eps: float) -> Tensor:
    """1 - eps on the target, and eps/(V - 1) on every other class."""
    others = torch.full_like(log_p, eps / (log_p.shape[1] - 1))
    return -(others.scatter(1, target[:, None], 1 - eps) * log_p).sum()


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.3, 0.95])
@pytest.mark.parametrize(
    ("name", "rule", "other"),
    [("torch", on_target_and_all, on_target_and_others), ("fairseq", on_target_and_others, on_target_and_all)],
)
def test_both_definitions_of_smoothing_by_hand(
    name: str, rule: Callable[..., Tensor], other: Callable[..., Tensor], eps: float
) -> None:
    hidden, weight, bias, target = problem()
    kept = target != IGNORE
    leaves = (hidden, weight, bias)
    eps_here = smoothing_of(eps, name, VOCABULARY)
    ours = linear_cross_entropy(hidden, weight, target, bias=bias, label_smoothing=eps_here, items=1, chunk=7)
    by_hand = rule(F.linear(hidden[kept], weight, bias).log_softmax(-1), target[kept], eps)
    for got, expected in zip(with_gradients(ours, *leaves), with_gradients(by_hand, *leaves), strict=True):
        close(got, expected, 1e-12)
    control = other(F.linear(hidden[kept], weight, bias).log_softmax(-1), target[kept], eps)
    assert (ours - control).abs() > 1e-4 or not eps


@pytest.mark.parametrize(
    ("case", "tag", "name", "summed"),  # the originals' own sums, float32
    [
        ("admin/admin_perturbed_learned", "init/", "torch", 102.46592712402344),
        ("admin/admin_perturbed_learned", "trained/", "torch", 102.32564544677734),
        ("encdec/ed_post_plain", "", "fairseq", 113.90034484863281),
        ("encdec/ed_pre_plain", "", "fairseq", 116.03829956054688),
    ],
)
def test_the_originals_smoothed_losses(case: str, tag: str, name: str, summed: float) -> None:
    """Transformer-Clinic (fairseq 0.8) has torch's definition, fairseq 0.12 its own; eps 0.1."""
    if not (present(case, REDUCED) or present(case, WHOLE)):
        pytest.skip(f"{case} is not beside this checkout")
    tensors, _ = read(case)
    logits, target = tensors[f"{tag}out64/logits"].flatten(0, 1), tensors["in/target"].flatten()
    target = target.where(target != PAD, IGNORE)
    classes = logits.shape[1]

    def smoothed(definition: str) -> float:
        eps = smoothing_of(0.1, definition, classes)
        same = torch.eye(classes, dtype=logits.dtype)  # W h = h: the logits as they are
        return linear_cross_entropy(logits, same, target, label_smoothing=eps, items=1).item()

    assert smoothed(name) == pytest.approx(summed, rel=5e-7)
    assert smoothed("fairseq" if name == "torch" else "torch") != pytest.approx(
        summed, rel=5e-7
    )  # the negative control


@pytest.mark.parametrize("name", ["", "Torch", "fairseq0.8", "eps/V"])
def test_definitions_nobody_has_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'torch' or 'fairseq', not '{name}'"):
        smoothing_of(0.1, name, VOCABULARY)


@pytest.mark.parametrize("items", [1, 7, torch.tensor(13)])
def test_items_divide_the_sum(items: int | Tensor) -> None:
    hidden, weight, bias, target = problem()
    ours = linear_cross_entropy(hidden, weight, target, bias=bias, items=items)
    plain = F.cross_entropy(F.linear(hidden, weight, bias), target, reduction="sum") / items
    leaves = (hidden, weight, bias)
    for got, expected in zip(with_gradients(ours, *leaves), with_gradients(plain, *leaves), strict=True):
        close(got, expected, 1e-12)


def test_nothing_to_predict() -> None:
    """All rows ignored: a sum of zero with gradients of zero; the mean of nothing is torch's."""
    hidden, weight, bias, target = problem(ignored=ROWS)
    for value in with_gradients(
        linear_cross_entropy(hidden, weight, target, bias=bias, label_smoothing=0.1, items=1), hidden, weight, bias
    ):
        assert not value.any()
    mean = linear_cross_entropy(hidden, weight, target)
    assert not torch.autograd.grad(mean, hidden, retain_graph=True)[0].any()
    assert mean.isnan() and F.cross_entropy(F.linear(hidden, weight), target).isnan()
    empty = linear_cross_entropy(hidden[:0], weight, target[:0], items=1)
    assert empty == 0


@pytest.mark.parametrize("frozen", ["hidden", "weight", "bias"])
def test_only_what_asks_gets_a_gradient(frozen: str) -> None:
    named = dict(zip(("hidden", "weight", "bias", "target"), problem(), strict=True))
    named[frozen] = named[frozen].detach()
    linear_cross_entropy(named["hidden"], named["weight"], named["target"], bias=named["bias"], chunk=7).backward()
    for name in ("hidden", "weight", "bias"):
        assert (named[name].grad is None) == (name == frozen)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, in forward mode
@pytest.mark.parametrize(("smoothing", "chunk"), [(0.0, 512), (0.1, 7)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_first_and_second_derivatives_by_differences(with_bias: bool, smoothing: float, chunk: int) -> None:
    """The stored gradients are constants: a Hessian from them would lack the loss's own curvature."""
    hidden, weight, bias, target = problem(rows=9, ignored=2)

    def mean(*leaves: Tensor) -> Tensor:
        h, w, *b = leaves
        return linear_cross_entropy(h, w, target, bias=b[0] if b else None, label_smoothing=smoothing, chunk=chunk)

    leaves = (hidden, weight, bias) if with_bias else (hidden, weight)
    assert torch.autograd.gradcheck(mean, leaves, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(mean, leaves)


def test_second_derivative_of_a_frozen_head() -> None:
    hidden, weight, _, target = problem()
    (first,) = torch.autograd.grad(linear_cross_entropy(hidden, weight.detach(), target), hidden, create_graph=True)
    (ours,) = torch.autograd.grad(first.square().sum(), hidden)
    (first,) = torch.autograd.grad(F.cross_entropy(hidden @ weight.detach().t(), target), hidden, create_graph=True)
    close(ours, torch.autograd.grad(first.square().sum(), hidden)[0], 1e-12)


@pytest.mark.parametrize(("rows", "ignored"), [(ROWS, 5), (100, 1)])
def test_what_stands_in_ignored_rows_does_not_matter(rows: int, ignored: int) -> None:
    """Padding need not be numbers; where few rows are ignored they are computed with the others."""
    hidden, weight, bias, target = problem(ignored=ignored, rows=rows)
    expected = with_gradients(linear_cross_entropy(hidden, weight, target, bias=bias), hidden, weight, bias)
    for value in (torch.nan, torch.inf):
        spoilt = hidden.detach().masked_fill((target == IGNORE)[:, None], value).requires_grad_()
        found = linear_cross_entropy(spoilt, weight, target, bias=bias)
        for got, exact in zip(with_gradients(found, spoilt, weight, bias), expected, strict=True):
            close(got, exact, 1e-12)


@pytest.mark.parametrize("wrong", [-1, -99, VOCABULARY, 1000])
def test_targets_out_of_the_vocabulary_are_refused(wrong: int) -> None:
    """As torch's cross-entropy refuses them; only IGNORE is ignored."""
    hidden, weight, _, target = problem()
    target[0] = wrong
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        F.cross_entropy(hidden @ weight.t(), target)
    with pytest.raises(RuntimeError, match="out of bounds"):
        linear_cross_entropy(hidden, weight, target)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "every second row": lambda t: t.repeat_interleave(2, dim=0)[::2],
    "transposed": lambda t: t.t().contiguous().t(),
    "a part of a wider matrix": lambda t: F.pad(t, (2, 3))[:, 2:-3],
    "the same row": lambda t: t[:1].expand_as(t),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_operands_may_be_views(view: str, dtype: torch.dtype) -> None:
    """A head that is a slice of a larger table, states that are a slice of a batch, one bias for all classes."""
    hidden, weight, bias, target = (t.detach() for t in problem(dtype))
    hidden, weight = VIEWS[view](hidden), VIEWS[view](weight)
    bias = bias[:1].expand(VOCABULARY)

    def gradients(loss: Callable[..., Tensor], *leaves: Tensor) -> list[Tensor]:
        leaves = tuple(t.detach().requires_grad_() for t in leaves)
        return with_gradients(loss(*leaves), *leaves)

    found = gradients(lambda h, w, b: linear_cross_entropy(h, w, target, bias=b, chunk=7), hidden, weight, bias)
    exact = gradients(
        lambda h, w, b: F.cross_entropy(F.linear(h, w, b), target), hidden.double(), weight.double(), bias.double()
    )
    for got, expected in zip(found, exact, strict=True):
        close(got.double(), expected, 1e-12 if dtype == torch.float64 else 0.03)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_gradients_in_the_dtype_of_their_owners(dtype: torch.dtype) -> None:
    hidden, weight, bias, target = problem(torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        loss = linear_cross_entropy(hidden, weight, target, bias=bias, chunk=7)
    assert loss.dtype == torch.float32
    plain = F.cross_entropy(F.linear(hidden, weight, bias), target)
    got, expected = with_gradients(loss, hidden, weight, bias), with_gradients(plain, hidden, weight, bias)
    for value, exact in zip(got, expected, strict=True):
        assert value.dtype == torch.float32
        close(value, exact, 0.05)


def test_half_precision_leaves() -> None:
    hidden, weight, bias, target = problem(torch.bfloat16)
    loss = linear_cross_entropy(hidden, weight, target, bias=bias, chunk=7)
    assert loss.dtype == torch.float32  # or better
    assert {g.dtype for g in with_gradients(loss, hidden, weight, bias)[1:]} == {torch.bfloat16}


def errors(loss: Callable[..., Tensor], exact: list[Tensor], *given: Tensor) -> list[float]:
    """How far gradients are from the exact ones, relative to their length."""
    leaves = [t.detach().clone().requires_grad_() for t in given]
    found = torch.autograd.grad(loss(*leaves), leaves)
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]


@pytest.mark.parametrize("autocast", [False, True], ids=["pure", "autocast"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "classes", "chunk"), [(4096, 300, 64), (2000, 100, 16), (777, 50, 7), (1500, 2000, 256)]
)
def test_half_precision_is_as_exact_as_the_whole_matrix(
    rows: int, classes: int, chunk: int, dtype: torch.dtype, autocast: bool
) -> None:
    """A sum over chunks in bfloat16 was up to seven times as far off; a rounding more than the plain head's is left."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(s, generator=draw) for s in ((rows, 48), (classes, 48), (classes,))]
    weights[1] *= 48**-0.5
    given = [w.to(dtype) if not autocast else w.to(dtype).float() for w in weights]
    target = torch.randint(classes, (rows,), generator=draw)
    target[::10] = IGNORE

    def ours(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=autocast):
            return linear_cross_entropy(h, w, target, bias=b, chunk=chunk)

    def plain(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=autocast):
            return F.cross_entropy(F.linear(h, w, b).float(), target)

    leaves = [t.double().requires_grad_() for t in given]
    exact = list(torch.autograd.grad(F.cross_entropy(F.linear(*leaves), target), leaves))
    for found, expected in zip(errors(ours, exact, *given), errors(plain, exact, *given), strict=True):
        assert found < 1.5 * expected


class Sizes(TorchDispatchMode):
    """Numbers of elements of everything that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen += [t.numel() for t in (out if isinstance(out, tuple | list) else [out]) if isinstance(t, Tensor)]
        return out


def largest(chunk: int, rows: int) -> int:
    hidden = torch.randn(rows, 2, requires_grad=True)
    weight = torch.randn(101, 2, requires_grad=True)
    target = torch.arange(rows) % 101
    with Sizes() as sizes:
        linear_cross_entropy(hidden, weight, target, chunk=chunk, label_smoothing=0.1).backward()
    return max(sizes.seen)


def test_the_matrix_of_logits_never_exists() -> None:
    """At most chunk x V numbers at a time, however many rows."""
    for chunk in (4, 16, 64):
        assert largest(chunk, 200) == chunk * 101
    assert largest(512, 200) == 200 * 101  # the negative control: one chunk is the whole matrix
    assert all(largest(8, a) == largest(8, b) for a, b in pairwise((50, 100, 400)))


def test_rows_without_a_target_have_no_logits() -> None:
    """Where they are more than a few; elsewhere nothing is copied."""
    hidden, weight, _, target = problem(ignored=8)
    for targets, rows in ((target, ROWS - 8), (target.clamp(min=0), ROWS)):
        with Sizes() as sizes:
            linear_cross_entropy(hidden, weight, targets).backward()
        assert max(sizes.seen) == rows * VOCABULARY
    kept, targets = loss.labelled(hidden, target)
    assert kept.equal(hidden[target != IGNORE])
    assert targets.equal(target[target != IGNORE])
    assert loss.labelled(hidden, target.clamp(min=0))[0] is hidden


class Products(TorchDispatchMode):
    """How many matrix products are computed."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func._schema.name in ("aten::mm", "aten::addmm", "aten::addmm_", "aten::linear")
        return func(*args, **(kwargs or {}))


def test_evaluation_computes_no_gradients() -> None:
    """Under no_grad one product per chunk, the logits; with gradients three."""
    hidden, weight, _, target = problem()
    with Products() as trained:
        linear_cross_entropy(hidden, weight, target)
    with torch.no_grad(), Products() as evaluated:
        linear_cross_entropy(hidden, weight, target)
    assert (trained.count, evaluated.count) == (3, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chunk", [7, 512])
def test_few_passes_are_as_near_as_many(dtype: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does with logits of 16 bits, here on a CPU, beside float64; some targets are nearly certain."""
    hidden, weight, _, target = problem(ignored=5, rows=100)
    kept = target != IGNORE
    with torch.no_grad():
        hidden[:30] += 4 * weight[target[:30].clamp(0)]
        hidden[~kept] = torch.nan
    expected = with_gradients(F.cross_entropy(hidden.nan_to_num() @ weight.t(), target), hidden, weight)
    off: dict[bool, list[float]] = {}
    for few in (False, True):
        monkeypatch.setattr(loss, "_in_few_passes", lambda *_, few=few: few)
        leaves = [leaf.detach().float().requires_grad_() for leaf in (hidden, weight)]
        with torch.autocast("cpu", dtype):
            value = linear_cross_entropy(*leaves, target, chunk=chunk)
        got = with_gradients(value, *leaves)
        off[few] = [((g - e).abs().max() / e.abs().max()).detach().item() for g, e in zip(got, expected, strict=True)]
    bound = 4 * torch.finfo(dtype).eps
    for few, many in zip(off[True], off[False], strict=True):
        assert few <= max(1.2 * many, bound) and few < 0.05, off
