"""Losses as they are formed: which function of `torch.nn.functional` got what, and which ids were looked up."""

import math
from collections.abc import Iterator
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
    functional.ctc_loss: "ctc_loss",
}
SUBTRACTS = (Tensor.__sub__, Tensor.sub, torch.sub, Tensor.__rsub__, torch.rsub)
CLASSES = ("cross_entropy", "nll_loss", "kl_div")
READS = (Tensor.item, Tensor.__float__)  # of a number out of the graph
NUMBERS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
HALF = (torch.float16, torch.bfloat16)
NEAR = 40  # operations of a graph, that a value is said to come from
MOST = 400  # losses that are kept
LARGE = 1_000_000  # predictions
_THROUGH = (
    "View", "Reshape", "Alias", "Transpose", "Permute", "Slice", "ToCopy", "Squeeze", "Unsqueeze", "Expand", "Clone",
    "Select",
)  # fmt: skip


@dataclass(kw_only=True)
class LossCall:
    """One call of a loss function.

    Attributes:
        given, target: what it was called with, detached.
        made_by: the operation that made `given`, views left out: "SoftmaxBackward0".
        viewed: the shape of three axes or more that a view made `given` of; () where none did.
        value: of the mean, or the sum where that is its reduction; None where it reduces nothing.
        update, part: during which update, in which forward pass of it.
        level: how far the whole loss moves with all classes of a row together; 0 of any softmax.
        live: `given` with its graph, where that was asked for.
        counted: which rows move the whole loss, where that was measured.
    """

    name: str
    given: Tensor
    target: Tensor
    settings: dict[str, Any]
    made_by: str
    viewed: tuple[int, ...]
    value: float | None
    update: int
    part: int
    training: bool
    live: Tensor | None = None
    counted: Tensor | None = None
    level: float = 1.0

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
                rows = slope.reshape(-1, slope.shape[-1])
                self.counted = rows.abs().amax(-1) > 0
                self.level = float(rows.sum(-1).abs().max() / rows.abs().max().clamp_min(1e-30))
        self.live = None


class LossMode(TorchFunctionMode):
    """Sees losses as they are formed, and which ids are looked up.

    Attributes:
        looked_up: where the ids of tables lie in memory.
        spread: how many predictions were subtracted from as many targets by a broadcast to a square; 0 where none.
        coarse: of log-probabilities in 16 bits that were subtracted: step between two numbers there, size, dtype.
        constants: what came without a gradient out of parameters or into a loss function, its value, its call.
        nudge: is added to each of `constants`; `apart`: to each difference that is `coarse`.
        whole: the loss of `Seen.formed`.
    """

    def __init__(self, model: nn.Module, *, without_gradients: bool = False, live: bool = False) -> None:
        super().__init__()
        self.model, self._all, self._live = model, without_gradients, live
        self.losses: list[LossCall] = []
        self.looked_up: set[int] = set()
        self.spread = 0
        self.coarse: tuple[float, float, torch.dtype] | None = None
        self.constants: list[tuple[str, Any, LossCall | None]] = []
        self.nudge = self.apart = 0.0
        self.whole = torch.tensor(0.0)
        self.read: list[Tensor] = []  # what a model was called with, where that is kept
        self.update = self._part = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        if function in LOSSES and len(self.losses) < MOST:
            call = self._loss(LOSSES[function], found, args, kwargs)
            if isinstance(found, Tensor) and not found.requires_grad:
                return self._constant(f"{LOSSES[function]} of values that have no gradient", found, call)
        elif function in READS and args[0].requires_grad:
            return self._constant("a number that .item() takes out of the graph", found)
        elif function is functional.embedding:
            self.looked_up.add(args[0].untyped_storage().data_ptr())
        elif function in SUBTRACTS and len(args) == 2:
            self.spread = squared(*args) or self.spread
            return found + self.apart if self._rounded(*args) and self.apart else found
        elif function is Tensor.backward:
            self._backward(args[0])
        return found

    def _kept(self, given: Tensor) -> Tensor:
        """Predictions, detached; of large ones, but for the first, one row in place of all."""
        whole = given.detach()
        return whole if len(self.losses) < 2 or given.numel() < LARGE else whole[:1].clone().expand_as(whole)

    def _rounded(self, a: Any, b: Any) -> bool:
        """Log-probabilities in 16 bits, of one of which a gradient is wanted, and how far apart numbers are there."""
        if not all(isinstance(x, Tensor) and x.dtype in HALF and x.ndim < 3 for x in (a, b)) or a.dtype != b.dtype:
            return False
        if found := any(_made_of(x, ("LogSoftmax", "Logsumexp", "NllLoss")) for x in (a, b)):
            size = float(torch.maximum(a.detach().abs(), b.detach().abs()).float().mean())
            step = torch.finfo(a.dtype).eps * 2.0 ** math.floor(math.log2(size)) if 0 < size < math.inf else 0.0
            self.coarse = max(self.coarse or (0.0, 0.0, a.dtype), (step, size, a.dtype), key=lambda one: one[0])
        return found

    def _constant(self, what: str, found: Any, call: LossCall | None = None) -> Any:
        self.constants.append((what, found, call))
        return found + self.nudge if self.nudge else found

    def _backward(self, loss: Tensor) -> None:
        """What backward was called on; after it."""

    def _loss(self, name: str, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LossCall | None:
        given = args[0] if args else kwargs.get("input")
        target = args[1] if len(args) > 1 else kwargs.get("target")
        if not isinstance(given, Tensor) or not isinstance(target, Tensor):
            return None
        if not (self._all or torch.is_grad_enabled()):
            return None
        if torch._C._functorch.is_functorch_wrapped_tensor(given):  # a gradient for each row, by vmap
            return None
        value = float(found.detach()) if isinstance(found, Tensor) and found.ndim == 0 else None
        settings = {
            k: v
            for k, v in kwargs.items()
            if k in ("ignore_index", "reduction", "label_smoothing", "weight", "log_target")
        }
        if name == "ctc_loss":
            named = dict(zip(("input_lengths", "target_lengths", "blank"), args[2:], strict=False)) | kwargs
            settings |= {"blank": named.get("blank", 0), "lengths": named.get("target_lengths")}
        self.losses.append(
            LossCall(
                name=name,
                given=self._kept(given),
                target=target.detach(),
                settings=settings,
                made_by=_maker(given),
                viewed=_viewed(given),
                value=value,
                update=self.update,
                part=self._part,
                training=self.model.training,
                live=given if self._live and given.requires_grad else None,
            )
        )
        return self.losses[-1]


def _maker(value: Tensor) -> str:
    """The operation that made a value, as autograd names it, views and copies left out."""
    last = [*_chain(value)][-1:]
    return type(last[0]).__name__ if last else ""


def _viewed(value: Tensor) -> tuple[int, ...]:
    """The shape, of three axes or more, of what a view made a value of."""
    shapes = [getattr(node, "_saved_self_sym_sizes", ()) for node in _chain(value) if "View" in type(node).__name__]
    return next((tuple(map(int, shape)) for shape in shapes if len(shape) > 2), ())


def _chain(value: Tensor) -> Iterator[Any]:
    """The views and copies that made a value, from the last to the first, and the operation before them."""
    node: Any = value.grad_fn
    while node is not None:
        yield node
        through = any(part in type(node).__name__ for part in _THROUGH) and node.next_functions
        node = node.next_functions[0][0] if through else None


def _made_of(value: Tensor, kinds: tuple[str, ...]) -> bool:
    """Whether one of the nearest operations of its graph is of these kinds."""
    near: list[Any] = [value.grad_fn]
    for node in near:
        if any(kind in type(node).__name__ for kind in kinds):
            return True
        if len(near) < NEAR and node is not None:
            near += [after for after, _ in node.next_functions]
    return False


def squared(a: Any, b: Any) -> int:
    """n where a prediction (n, 1) and a target (n), or the reverse, are subtracted, each from all; else 0."""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.requires_grad != b.requires_grad:
        shapes = [tuple(a.shape), tuple(b.shape)]
        n = max((shape[0] for shape in shapes if shape), default=0)
        return n if n > 1 and {*shapes} == {(n,), (n, 1)} else 0
    return 0
