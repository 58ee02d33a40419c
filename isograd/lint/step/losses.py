"""Losses as they are formed: which function of `torch.nn.functional` got what, and which ids were looked up."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LOSSES: dict[Any, str] = {
    functional.cross_entropy: "cross_entropy",
    functional.nll_loss: "nll_loss",
    functional.binary_cross_entropy: "binary_cross_entropy",
    functional.binary_cross_entropy_with_logits: "binary_cross_entropy_with_logits",
    functional.mse_loss: "mse_loss",
    functional.l1_loss: "l1_loss",
    functional.smooth_l1_loss: "smooth_l1_loss",
    functional.huber_loss: "huber_loss",
    functional.kl_div: "kl_div",
}
SUBTRACTS = (Tensor.__sub__, Tensor.sub, torch.sub, Tensor.__rsub__, torch.rsub)
CLASSES = ("cross_entropy", "nll_loss", "kl_div")
NUMBERS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
MOST = 400  # losses that are kept
LARGE = 1_000_000  # predictions
_THROUGH = (
    "View",
    "Reshape",
    "Alias",
    "Transpose",
    "Permute",
    "Slice",
    "ToCopy",
    "Squeeze",
    "Unsqueeze",
    "Expand",
    "Clone",
    "Select",
)


@dataclass(kw_only=True)
class LossCall:
    """One call of a loss function.

    Attributes:
        given, target: what it was called with, detached.
        made_by: the operation that made `given`, views left out: "SoftmaxBackward0".
        value: of the mean, or the sum where that is its reduction; None where it reduces nothing.
        update, part: during which update, in which forward pass of it.
        live: `given` with its graph, where that was asked for.
        counted: which rows move the whole loss, where that was measured.
    """

    name: str
    given: Tensor
    target: Tensor
    settings: dict[str, Any]
    made_by: str
    value: float | None
    update: int
    part: int
    training: bool
    live: Tensor | None = None
    counted: Tensor | None = None

    @property
    def reduction(self) -> str:
        return str(self.settings.get("reduction", "mean"))

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of classes: predictions (n, classes), targets (n), and which of them count."""
        given, target = self.given, self.target
        if given.ndim > 2:
            given = given.movedim(1, -1)
        given = given.reshape(-1, given.shape[-1])
        target = (
            target.reshape(-1)
            if not target.is_floating_point()
            else target.movedim(1, -1).reshape(given.shape)
            if target.ndim > 2
            else target
        )
        if target.is_floating_point():
            counts = target.sum(-1) > 0
            return given, target.argmax(-1), counts if self.counted is None else counts & self.counted
        counts = target != int(self.settings.get("ignore_index", -100))
        return given, target, counts if self.counted is None else counts & self.counted

    def count(self, loss: Tensor) -> None:
        """Which rows move the whole loss, by its gradient; drops the graph."""
        if self.live is not None and loss.requires_grad:
            (slope,) = torch.autograd.grad(loss, self.live, retain_graph=True, allow_unused=True)
            if slope is not None and slope.ndim > 1:
                slope = slope.movedim(1, -1) if slope.ndim > 2 else slope
                self.counted = slope.reshape(-1, slope.shape[-1]).abs().amax(-1) > 0
        self.live = None


class LossMode(TorchFunctionMode):
    """Sees losses as they are formed, and which ids are looked up.

    Attributes:
        looked_up: where the ids of tables lie in memory.
        spread: how many predictions were subtracted from as many targets by a broadcast to a square; 0 where none.
    """

    def __init__(self, model: nn.Module, *, without_gradients: bool = False, live: bool = False) -> None:
        super().__init__()
        self.model, self._all, self._live = model, without_gradients, live
        self.losses: list[LossCall] = []
        self.looked_up: set[int] = set()
        self.spread = 0
        self.read: list[Tensor] = []  # what a model was called with, where that is kept
        self.update = self._part = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        if function in LOSSES and len(self.losses) < MOST:
            self._loss(LOSSES[function], found, args, kwargs)
        elif function is functional.embedding:
            self.looked_up.add(args[0].untyped_storage().data_ptr())
        elif function in SUBTRACTS and len(args) == 2:
            self._spread_out(*args)
        elif function is Tensor.backward:
            self._backward(args[0])
        return found

    def _kept(self, given: Tensor) -> Tensor:
        """Predictions, detached; of large ones, but for the first, one row in place of all."""
        whole = given.detach()
        return whole if len(self.losses) < 2 or given.numel() < LARGE else whole[:1].clone().expand_as(whole)

    def _spread_out(self, a: Any, b: Any) -> None:
        """A prediction (n, 1) minus a target (n), or the reverse: each is compared with all."""
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.requires_grad != b.requires_grad:
            shapes = [tuple(a.shape), tuple(b.shape)]
            n = max((shape[0] for shape in shapes if shape), default=0)
            if n > 1 and {*shapes} == {(n,), (n, 1)}:
                self.spread = n

    def _backward(self, loss: Tensor) -> None:
        """What backward was called on; after it."""

    def _loss(self, name: str, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.get("input")
        target = args[1] if len(args) > 1 else kwargs.get("target")
        if not isinstance(given, Tensor) or not isinstance(target, Tensor):
            return
        if not (self._all or torch.is_grad_enabled()):
            return
        value = float(found.detach()) if isinstance(found, Tensor) and found.ndim == 0 else None
        settings = {k: v for k, v in kwargs.items() if k in ("ignore_index", "reduction", "label_smoothing", "weight")}
        self.losses.append(
            LossCall(
                name=name,
                given=self._kept(given),
                target=target.detach(),
                settings=settings,
                made_by=_maker(given),
                value=value,
                update=self.update,
                part=self._part,
                training=self.model.training,
                live=given if self._live and given.requires_grad else None,
            )
        )


def _maker(value: Tensor) -> str:
    """The operation that made a value, as autograd names it, views and copies left out."""
    node: Any = value.grad_fn
    while node is not None and any(part in type(node).__name__ for part in _THROUGH) and node.next_functions:
        node = node.next_functions[0][0]
    return "" if node is None else type(node).__name__
