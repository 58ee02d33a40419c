"""Anybody's training script, watched as it is: `isograd watch train.py --lr 3e-4`.

Nothing in the script is changed. The optimizer is found at its first `step`, the model among the modules that were
called before it, the loss where `backward` is called on it, and the targets where torch's cross-entropy gets them.
Gradients are read before `clip_grad_norm_` where the script clips, else before the optimizer's step.
"""

import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from isograd.diagnose.watch import Watch, watch

CLIPS = ("clip_grad_norm_", "clip_grad_value_")
MODULES = 64  # called before the optimizer's first step, that are remembered


class ScriptWatch:
    """Finds what a script trains, and watches it.

    Attributes:
        watch: None until the first step of an optimizer.
    """

    def __init__(self, folder: Path | None, every: int = 1, **settings: Any) -> None:
        self.watch: Watch | None = None
        self._settings = {"folder": folder, "every": every} | settings
        self._until = ExitStack()
        self._called: dict[int, tuple[nn.Module, Any]] = {}
        self._depth = 0
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None
        self._batch: Any = None
        self._target: Tensor | None = None
        self._losses: list[Tensor] = []
        self._scaler: Any = None
        self._measured = False
        self._unclipped: dict[
            nn.Parameter, Tensor
        ] = {}  # of the first update, which is clipped before its optimizer is known

    def __enter__(self) -> "ScriptWatch":
        self._replace(nn.Module, "__call__", self._calls)
        self._replace(Tensor, "backward", self._backward)
        self._replace(functional, "cross_entropy", self._scored)
        self._replace(torch.amp.GradScaler, "scale", self._scales)
        for name in CLIPS:
            for owner in (clip_grad, nn.utils):
                self._replace(owner, name, self._before)
        self._until.callback(register_optimizer_step_pre_hook(self._step).remove)
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._until.close()
        if self.watch is not None:
            self.watch.close() if kind in (None, SystemExit, KeyboardInterrupt) else self.watch.abandon()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        old = getattr(owner, name)
        setattr(owner, name, make(old))
        self._until.callback(setattr, owner, name, old)

    def _calls(self, old: Any) -> Any:
        """The outermost modules that are called before the first step, with what they are called with."""

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._model is not None or self._depth or not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return old(module, *args, **kwargs)
            if len(self._called) < MODULES:
                self._called[id(module)] = module, (args, kwargs)
            self._depth += 1
            try:
                return old(module, *args, **kwargs)
            finally:
                self._depth -= 1

        return call

    def _backward(self, old: Any) -> Any:
        def backward(loss: Tensor, *args: Any, **kwargs: Any) -> Any:
            if loss.ndim == 0:
                self._losses.append(loss.detach())
            return old(loss, *args, **kwargs)

        return backward

    def _scored(self, old: Any) -> Any:
        def cross_entropy(given: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() and torch.is_grad_enabled() and not target.is_floating_point():
                self._target = target
            return old(given, target, *args, **kwargs)

        return cross_entropy

    def _scales(self, old: Any) -> Any:
        def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._scaler = scaler
            return old(scaler, *args, **kwargs)

        return scale

    def _before(self, old: Any) -> Any:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if self.watch is None and not isinstance(parameters, Tensor):
                parameters = list(parameters)
                fresh = [p for p in parameters if p.grad is not None and p not in self._unclipped]
                self._unclipped |= {p: p.grad.clone() for p in fresh}
            self._measure()
            return old(parameters, *args, **kwargs)

        return clip

    def _forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled() and module.training:
            self._batch = args, kwargs

    def _step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Before any optimizer's step; of several the first one that came is the one that an update begins with."""
        if self._model is None:
            self._find(optimizer)
        if optimizer is self._optimizer:
            with self._first_update():
                self._measure()
            self._losses.clear()
            self._measured = False
        self._unclipped.clear()

    @contextmanager
    def _first_update(self) -> Iterator[None]:
        """Its gradients as they were before clipping; in later ones nothing is kept."""
        clipped = {p: p.grad for p in self._unclipped}
        for p, gradient in self._unclipped.items():
            p.grad = gradient
        yield
        for p, now in clipped.items():
            p.grad = now

    def _find(self, optimizer: Optimizer) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        best: tuple[int, nn.Module, Any] | None = None
        for module, inputs in self._called.values():
            own = [p for p in module.parameters() if id(p) in held]
            if own and (best is None or sum(p.numel() for p in own) > best[0]):
                best = sum(p.numel() for p in own), module, inputs
        if best is None:  # another optimizer's turn
            return
        self._optimizer, self._model, self._batch = optimizer, best[1], best[2]
        self._called.clear()
        self._until.callback(self._model.register_forward_pre_hook(self._forward, with_kwargs=True).remove)
        overflows = self._scaler is not None and self._scaler.is_enabled()
        self.watch = watch(self._model, optimizer=optimizer, overflows=overflows, **self._settings)

    def _measure(self) -> None:
        """Once per update: the gradients as they lie, with the loss and the batch."""
        if self.watch is None or self._measured or not self._losses:
            return
        self._measured = True
        loss: Tensor = torch.stack([loss.float() for loss in self._losses]).sum()
        if self._scaler is not None and self._scaler.is_enabled():
            loss = loss / self._scaler._get_scale_async()
        with suppress(ValueError):  # no gradient at all: a step that the script leaves out
            self.watch.step(loss, batch=self._given())

    def _given(self) -> Any:
        """The batch in a form that the watch reads: what the model got, and the targets beside ids."""
        args, kwargs = self._batch if self._batch is not None else ((), {})
        if kwargs and not args:
            return kwargs
        ids = next((x for x in args if isinstance(x, Tensor)), None)
        if len(args) == 1 and not kwargs and ids is not None and self._target is not None:
            same = self._target.numel() == ids.numel()
            return (ids, self._target.view(ids.shape) if same else self._target)
        return args or kwargs


def run(script: Path, arguments: Sequence[str], watching: ScriptWatch) -> int:
    """Run a script as `python script arguments` does, watched; its exit code."""
    words, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with watching:
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv, sys.path[:] = words, path
    return 0
