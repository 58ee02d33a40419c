"""What a run is made of, however it is given: a model, its loss, data and optimizer, or a trainer that holds them.

Each form knows how to give batches, the loss of one, and how to make real updates.
"""

import copy
import inspect
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils._pytree import SUPPORTED_NODES, MappingKey, register_pytree_node, tree_map

from isograd.errors import InputsError, hint, nearest
from isograd.trace.record import arguments

KEYS = (
    "model",
    "loss",
    "data",
    "optimizer",
    "scheduler",
    "scaler",
    "steps",
    "accumulate",
    "clip",
    "autocast",
    "step",
    "save",
    "load",
)
_KINDS: dict[str, Any] = {  # of keys whose likes a run may have, as saved beside save
    "model": nn.Module,
    **dict.fromkeys(("loss", "step", "save", "load"), Callable),
    **dict.fromkeys(("steps", "accumulate"), int),
}
_MODEL = ("model", "net", "network", "module", "m")


@dataclass(kw_only=True)
class Setup:
    """A run before it begins.

    Attributes:
        loss: of the model and a micro-batch.
        data: can be iterated once for every epoch.
        optimizers, schedulers: all that there are.
        steps: updates that are planned; None where nobody said.
        accumulate: micro-batches of an update.
        clip: the largest norm of a gradient.
        autocast: the dtype in which operations are to run.
        step: the loop's own update of so many micro-batches; None: the usual one.
        save, load: the program's own checkpoint, to a path and from it.
        train: makes so many updates by a trainer's own loop; None: by `update`.
        kind: "loop", "Trainer" or "Lightning".
        undo: what making this setup changed, put back.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]
    data: Iterable[Any]
    optimizers: list[Optimizer]
    schedulers: list[Any] = field(default_factory=list)
    scaler: Any = None
    steps: int | None = None
    accumulate: int = 1
    clip: float | None = None
    autocast: torch.dtype | None = None
    step: Callable[[list[Any]], Any] | None = None
    save: Callable[[str], Any] | None = None
    load: Callable[[str], Any] | None = None
    train: Callable[[int], Any] | None = None
    kind: str = "loop"
    given: Any = None
    undo: Callable[[], None] | None = None

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def batches(self, count: int) -> list[Any]:
        """The first batches of an epoch, on the model's device."""
        return [moved(_opened(batch), self.device) for batch in islice(iter(self.data), count)]

    def cast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)

    def loss_of(self, batch: Any) -> Tensor:
        """Of one micro-batch, as the run forms it."""
        with self.cast():
            return loss_in(self.loss(self.model, batch), "loss")

    def update(self, batches: list[Any]) -> None:
        """One update, by the loop's own function where there is one."""
        if self.step is not None:
            self.step(batches)
            return
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            loss = self.loss_of(batch) / len(batches)
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        for optimizer in self.optimizers:
            if self.clip is not None:
                if self.scaler is not None:
                    self.scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], self.clip)
            optimizer.step() if self.scaler is None else self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()
        for scheduler in self.schedulers:
            if not isinstance(scheduler, ReduceLROnPlateau):  # it waits for a score
                scheduler.step()


def _opened(batch: Any) -> Any:
    """A batch; torch's trees then look into its kind of mapping, as transformers' BatchEncoding, as into a dict."""
    kind = type(batch)
    if isinstance(batch, UserDict) and kind not in SUPPORTED_NODES:

        def closed(values: Iterable[Any], whole: Any) -> Any:
            made = copy.copy(whole)
            made.data = dict(zip(whole.data, values, strict=True))
            return made

        register_pytree_node(
            kind,
            lambda one: (list(one.data.values()), one),
            closed,
            flatten_with_keys_fn=lambda one: ([(MappingKey(k), v) for k, v in one.data.items()], one),
        )
    return batch


def moved(batch: Any, device: torch.device) -> Any:
    return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) and x.device != device else x, batch)


def setup_of(given: Any = None, **parts: Any) -> Setup:
    """A setup of a trainer, of a (LightningModule, Trainer, data) tuple, or of its parts.

    Raises:
        InputsError: something else; names what is missing.
    """
    if isinstance(given, Mapping):
        near = {name: nearest(name, KEYS) for name in given if name not in KEYS}
        misspelt = [name for name, key in near.items() if key and isinstance(given[name], _KINDS.get(key, object))]
        if misspelt:  # what else a run has, as a criterion or a teacher, is put back with the rest
            raise InputsError(f"unknown key {misspelt[0]!r}: {hint(misspelt[0], KEYS)}")
        parts = {**{k: v for k, v in parts.items() if v is not None}, **given}
    elif isinstance(given, nn.Module) and "data" in parts and not _is_lightning(given):
        parts = {"model": given, **parts}
    elif given is not None:
        from isograd.lint.step import trainers

        return trainers.of(given, parts)
    return _of_parts({name: part for name, part in parts.items() if part is not None})


def _is_lightning(given: Any) -> bool:
    return any(
        kind.__module__.startswith(("lightning", "pytorch_lightning")) for kind in type(given).__mro__[:-1]
    ) and (hasattr(given, "training_step"))


def _of_parts(parts: dict[str, Any]) -> Setup:
    for name in ("model", "data", "optimizer"):
        if name not in parts:
            raise InputsError(
                f"a setup needs model, data and optimizer, and a loss where the model returns none: {name} is missing"
            )
    model = parts["model"]
    if not isinstance(model, nn.Module):
        raise InputsError(f"model is of type {type(model).__name__}; expected an nn.Module")
    if not hasattr(parts["data"], "__iter__") and not hasattr(parts["data"], "__getitem__"):
        raise InputsError(
            f"data is of type {type(parts['data']).__name__}; expected a DataLoader, or what can be iterated"
        )
    made = Setup(
        model=model,
        loss=loss_function(parts.get("loss"), model),
        data=parts["data"],
        optimizers=_several(parts["optimizer"]),
        schedulers=_several(parts.get("scheduler")),
        **{
            name: parts[name]
            for name in ("scaler", "steps", "clip", "autocast", "step", "save", "load")
            if name in parts
        },
        accumulate=int(parts.get("accumulate", 1)),
        given=parts,
    )
    for optimizer in made.optimizers:
        if not hasattr(optimizer, "param_groups"):
            raise InputsError(f"optimizer is of type {type(optimizer).__name__}; expected a torch.optim.Optimizer")
    return made


def _several(one: Any) -> list[Any]:
    if isinstance(one, Mapping):
        several = [*one.values()]
    else:
        several = [] if one is None else list(one) if isinstance(one, list | tuple) else [one]
    return [_within(part) for part in several]


def _within(part: Any) -> Any:
    """What a wrapper holds, as accelerate's: torch's hooks name the optimizer and the schedule that are stepped."""
    for name, kind in (("optimizer", Optimizer), ("scheduler", LRScheduler)):
        held = getattr(part, name, None)
        if isinstance(held, kind) and not isinstance(part, LRScheduler):
            return held
    return part


def loss_function(loss: Any, model: nn.Module) -> Callable[[nn.Module, Any], Tensor]:
    """A loss of the model and a batch, whichever form it was given in: loss(model, batch), loss(output, batch), a loss
    of torch over (output, target) with batches (input, target), or None where the model returns its own.
    """
    if loss is None:
        return _own_loss
    if isinstance(loss, nn.modules.loss._Loss):
        return lambda net, batch: loss(net(batch[0]), batch[1])
    try:
        names = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):
        names = []
    if names[:2] == ["input", "target"]:  # of torch.nn.functional
        return lambda net, batch: loss(net(batch[0]), batch[1])
    hints: dict[str, Any] = {}
    if names and names[0] not in _MODEL:
        try:
            hints = get_type_hints(loss)
        except Exception:
            hints = {}
    first = hints.get(names[0]) if names else None
    if names and (names[0] in _MODEL or (isinstance(first, type) and issubclass(first, nn.Module))):
        return loss

    def either(net: nn.Module, batch: Any) -> Tensor:
        return loss(called(net, batch), batch)

    return either


def called(model: nn.Module, batch: Any) -> Any:
    """The output for a batch; of a pair whose second is the target, for the first alone where forward takes one."""
    args, kwargs = arguments(batch)
    needed = [
        p
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if kwargs:
        known = {p.name for p in needed}
        takes_all = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(model.forward).parameters.values())
        return model(**(kwargs if takes_all else {k: v for k, v in kwargs.items() if k in known}))
    required = sum(p.default is p.empty for p in needed)
    return model(*args[: max(required, 1)])


def _own_loss(model: nn.Module, batch: Any) -> Tensor:
    args, kwargs = arguments(batch)
    return loss_in(model(*args, **kwargs), type(model).__name__)


def loss_in(found: Any, name: str) -> Tensor:
    """The loss, or the one in what is returned."""
    if isinstance(found, Tensor) and name == "loss":
        return found
    loss = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", None)
    if loss is None:
        parts: Sequence[Any] = found if isinstance(found, tuple | list) else [found]
        loss = next((x for x in parts if isinstance(x, Tensor) and x.ndim == 0 and x.is_floating_point()), None)
    if loss is None:
        raise InputsError(
            f"loss returns {type(found).__name__}; expected a tensor, or one under 'loss'"
            if name == "loss"
            else f"{name} returns no loss; give loss="
        )
    return loss
