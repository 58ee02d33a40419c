"""What Xiong et al. 2020 measure at initialization (figure 3), on any encoder-decoder and batches of real text.

expected gradient of W    |1/n sum_b g_b|_F over n batches; beside it the mean of the norms
bounded                   Z >= 0 is (epsilon, delta)-bounded if |Z - E Z| <= epsilon E Z with probability 1 - delta
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isograd.diagnose.quantities import exact, norm
from isograd.transformer.loss import IGNORE
from isograd.transformer.sublayer import Sublayer

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class MatrixGradient:
    """Of one matrix of a feed-forward sublayer, over batches.

    Attributes:
        layer: from 1, in its stack.
        matrix: "W_1" or "W_2".
        expected: Frobenius norm of the mean gradient.
        mean: mean of the Frobenius norms; never below `expected`, and equal to it where all gradients agree.
    """

    stack: str
    layer: int
    matrix: str
    expected: float
    mean: float


def expected_gradients(model: nn.Module, batches: Iterable[Batch], last: bool = False) -> list[MatrixGradient]:
    """W_1 and W_2 of every feed-forward sublayer.

    Args:
        last: only W_2 of the last layer of the last stack; then next to no backward pass is needed.

    Raises:
        ValueError: no batch.
    """
    places = _feed_forward(model)[-1:] if last else _feed_forward(model)
    matrices = [matrix for *_, matrix in places]
    sums, norms, count = [torch.zeros_like(exact(m)) for m in matrices], [0.0] * len(matrices), 0
    with _asked_for(model, matrices):
        for batch in batches:
            count += 1
            for i, grad in enumerate(torch.autograd.grad(model(**batch).loss, matrices)):
                sums[i] += exact(grad)
                norms[i] += float(norm(grad))
    if not count:
        raise ValueError("no batch to take gradients on")
    return [
        MatrixGradient(stack=stack, layer=layer, matrix=name, expected=float(norm(total / count)), mean=sizes / count)
        for (stack, layer, name, _), total, sizes in zip(places, sums, norms, strict=True)
    ]


@torch.no_grad()
def last_states(model: nn.Module, batches: Iterable[Batch]) -> Tensor:
    """|x|^2 at every target of the batches, x the last sum of the last stack, before any norm on it; float64.

    That is x^{post,5}_L of Post-LN and x^{pre}_{L+1} of Pre-LN, of which Theorem 1 asks that they are bounded.
    """
    *_, last = (module for module in model.modules() if isinstance(module, Sublayer))
    found: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        found.append(out.double().square().sum(-1)[here])

    handle = last.combine.register_forward_hook(keep)
    try:
        for batch in batches:
            here = batch["labels"] != IGNORE
            model(**batch)
    finally:
        handle.remove()
    return torch.cat(found)


def outside(values: Tensor | Sequence[float], epsilon: float) -> float:
    """delta: the share of values for which |Z - mean Z| > epsilon mean Z.

    >>> outside([1.0, 1.0, 1.0, 1.0, 1.5], 0.1), outside([0.95, 1.05], 0.1)
    (0.2, 0.0)
    """
    z = torch.as_tensor(values, dtype=torch.float64)
    return float(((z - z.mean()).abs() > epsilon * z.mean()).double().mean())


def _feed_forward(model: nn.Module) -> list[tuple[str, int, str, nn.Parameter]]:
    """Stack, layer, name and matrix, in the order of the forward pass."""
    found = []
    for module in model.modules():
        if isinstance(module, Sublayer) and module.site.kind == "ffn":
            branch = module.branch
            for name, part in (("W_1", "into"), ("W_2", "out")):
                matrix = branch.get_submodule(part).get_parameter("weight")
                found.append((str(module.site.stack), module.site.layer, name, matrix))
    return found


@contextmanager
def _asked_for(model: nn.Module, matrices: Sequence[nn.Parameter]) -> Iterator[None]:
    """Gradients of these parameters alone, and of the others as before at the end."""
    before = {p: p.requires_grad for p in model.parameters()}
    model.requires_grad_(False)
    for matrix in matrices:
        matrix.requires_grad_()
    try:
        yield
    finally:
        for p, wanted in before.items():
            p.requires_grad_(wanted)
