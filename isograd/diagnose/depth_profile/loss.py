"""A loss for any model and the gradients of every parameter from it: cross-entropy where the output is logits, else a
mean square against random targets.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map

from isograd.diagnose.quantities import mean_abs, norm
from isograd.trace.inputs import IGNORED
from isograd.trace.record import answer, arguments, field_of, stand_in

Target = Literal["next token", "given labels", "random labels", "random targets"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Objective:
    """What is asked of a model.

    Attributes:
        kind: "next token" of the ids that it reads, "given labels", "random labels" of all classes, or, where there are
            no logits, "random targets": the mean square of the output's distance to numbers drawn from N(0, 1).
        own: whether the loss that the model itself gives comes first, if it gives one.
        targets: of the shape of the logits without their last axis; of the output's shape for "random targets".
        classes: None where there are no logits.
        shift: whether the target of a position is one place further on.
    """

    kind: Target
    own: bool = False
    targets: Tensor
    classes: int | None = None
    shift: bool = False

    def loss(self, output: Any) -> Tensor:
        """Of what the model gave, in nats where there are logits."""
        if self.own and (own := field_of(output, "loss")) is not None:
            return own.mean()
        made = _answer(output)
        if self.classes is None:
            return (made - self.targets.to(made)).square().mean()
        logits = made[:, :-1] if self.shift else made
        targets = (self.targets[:, 1:] if self.shift else self.targets).to(made.device)
        return functional.cross_entropy(logits.reshape(-1, self.classes), targets.reshape(-1), ignore_index=IGNORED)

    @property
    def ln_classes(self) -> float | None:
        """ln of the number of classes: the loss of equal probabilities."""
        return None if self.classes is None else math.log(self.classes)


@dataclass(frozen=True, kw_only=True)
class GradientSizes:
    """By the names of parameters: Frobenius norms and mean |g|. Those that the loss does not depend on are missing."""

    loss: float
    norms: Mapping[str, float]
    means: Mapping[str, float]

    def norm(self, names: Iterable[str]) -> float | None:
        """Of several parameters together; None where none of them has a gradient."""
        found = [self.norms[name] for name in names if name in self.norms]
        return math.sqrt(math.fsum(n * n for n in found)) if found else None


def objective(
    output: Any, inputs: Mapping[str, Any], labels: Tensor | None, *, classes: int | None, decodes: bool, seed: int
) -> Objective:
    """What to ask of a model that gave `output`.

    Args:
        inputs: by the names of forward's arguments. With `labels` among them the model's own loss is asked for.
        labels: ids or classes; of a model that reads its own labels' past they are its inputs, and are shifted.
        classes: rows of logits, None where the output is none.
        decodes: whether what is asked for is the next token.
    """
    made = _answer(output)
    own = labels is None and isinstance(inputs.get("labels"), Tensor)
    given = inputs["labels"] if own else labels
    draw = torch.Generator().manual_seed(seed)
    if classes is None:
        targets = torch.randn(made.shape, generator=draw)
        return Objective(kind="given labels" if own else "random targets", own=own, targets=targets)
    rows = made.shape[:-1]
    ids = next((i for i in _ids(inputs) if i.shape == rows), None) if decodes else None
    if given is not None:
        if given.shape != rows and not own:
            raise ValueError(f"labels of shape {tuple(given.shape)} for logits of {tuple(made.shape)}")
        shift = ids is not None and "decoder_input_ids" not in inputs and made.ndim == 3
        return Objective(kind="given labels", own=own, targets=given, classes=classes, shift=shift)
    if ids is not None and rows[1] > 1:
        return Objective(kind="next token", targets=_unpadded(ids, inputs), classes=classes, shift=True)
    return Objective(kind="random labels", targets=torch.randint(classes, rows, generator=draw), classes=classes)


def gradients(model: nn.Module, inputs: Any, loss: Callable[[Any], Tensor], device: str = "cpu") -> GradientSizes:
    """One forward and backward pass in float32 without dropout (evaluation mode); all parameters take part.

    Each gradient is measured and dropped as soon as it is complete, so that they are never there all at once. The model
    stays as it is.

    Raises:
        RuntimeError: autograd cannot pass through the model.
    """
    twin = stand_in(model, shared=True).to(device)
    names: dict[Tensor, str] = {p: name for name, p in twin.named_parameters() if p.is_floating_point()}
    norms: dict[str, float] = {}
    means: dict[str, float] = {}

    def measure(parameter: Tensor) -> None:
        assert parameter.grad is not None
        grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        norms[names[parameter]], means[names[parameter]] = norm(grad).item(), mean_abs(grad).item()
        parameter.grad = None

    for parameter in names:
        parameter.requires_grad_(True)
        parameter.register_post_accumulate_grad_hook(measure)
    args, kwargs = tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, arguments(inputs))
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        value = loss(twin(*args, **kwargs))
        value.backward()
    return GradientSizes(loss=value.item(), norms=norms, means=means)


def _answer(output: Any) -> Tensor:
    found = answer(output)
    if found is None:
        raise ValueError(f"no numbers in the model's output, {type(output).__name__}")
    return found


def _unpadded(ids: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    mask = inputs.get("decoder_attention_mask" if "decoder_input_ids" in inputs else "attention_mask")
    fits = isinstance(mask, Tensor) and mask.shape == ids.shape
    return ids.masked_fill(mask == 0, IGNORED) if fits and mask is not None else ids


def _ids(inputs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Tensors of integers, those that a decoder reads first."""
    named = sorted(inputs.items(), key=lambda item: "decoder" not in item[0])
    for name, part in named:
        integers = isinstance(part, Tensor) and not part.is_floating_point() and part.dtype != torch.bool
        if integers and "mask" not in name and name != "labels":
            yield part
