"""Anybody's training script, watched as it is: `isograd watch train.py --lr 3e-4`.

Nothing in the script is changed. The optimizer is found at its first `step`, the model among the modules that were
called before it, the loss where `backward` is called on it, and the targets where torch's cross-entropy gets them.
Gradients are read before `clip_grad_norm_` where the script clips, else before the optimizer's step.
"""

import atexit
import builtins
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from isograd.diagnose.watch import Watch, watch
from isograd.diagnose.watch.drift import Ranks
from isograd.diagnose.watch.updates import Thrown
from isograd.diagnose.watch.writers import alarm

if TYPE_CHECKING:
    from isograd.diagnose.watch.loops.spikes import Spikes

SCORES = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits")
LOOKS = 3  # losses whose scores are looked at
FEW = 1e-3  # that rows of probabilities may miss 1 by
CLIPS = ("clip_grad_norm_", "clip_grad_value_")
MODULES = 64  # called before the optimizer's first step, that are remembered
WAITS = 10  # backward passes without an optimizer's step, after which each is taken for an update made by hand


class ScriptWatch:
    """Finds what a script trains, and watches it.

    Attributes:
        watch: None until the first step of an optimizer.
    """

    def __init__(self, folder: Path | None, every: int = 1, spikes: "Spikes | None" = None, **settings: Any) -> None:
        """`spikes`: explains those of the loss; the settings are those of `isograd.watch`."""
        self.watch: Watch | None = None
        self._spikes = spikes
        self._scoring = False
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
        self._backwards = self._updates = 0
        self._begun: list[Tensor] = []  # of the weights, at the first backward pass
        self._schedules: dict[int, tuple[LRScheduler, int]] = {}
        self._taken: dict[int, tuple[int, float]] = {}  # of optimizers, by id: of their loaded state
        self._inner = False
        self._off = 0  # updates in a row with another rate than the schedule's
        self._unclipped: dict[nn.Parameter, Tensor] = {}  # of the first update, clipped before its optimizer is known
        self._earlier: Any = None  # the batch of the update before
        self._others = 0  # updates of other optimizers since the watched model was called
        self._since = 0  # and since its own optimizer's
        self._begins: dict[int, int] = {}  # of optimizers, by id: updates before their first
        self._thrown = Thrown([])
        self._loads = self._failed = False
        self._probable = 0  # calls of cross_entropy that were given probabilities, in a row; -1 after it was reported
        self._process = os.getpid()
        self._launched = "WORLD_SIZE" in os.environ  # each process by a launcher, and so watched, and not by the script
        self.stepped = False  # whether any optimizer did

    def __enter__(self) -> "ScriptWatch":
        self._replace(nn.Module, "__call__", self._calls)
        self._replace(Tensor, "backward", self._backward)
        for name in SCORES:
            self._replace(functional, name, self._scored)
        self._replace(torch.amp.GradScaler, "scale", self._scales)
        self._replace(DataLoader, "__iter__", self._loaded)
        self._replace(nn.Module, "load_state_dict", self._put_back)
        self._replace(Optimizer, "load_state_dict", self._resumed)
        for name in CLIPS:
            for owner in (clip_grad, nn.utils):
                self._replace(owner, name, self._before)
        for kind in _kinds(LRScheduler):
            if "step" in vars(kind):
                self._replace(kind, "step", self._scheduled)
        self._until.callback(register_optimizer_step_pre_hook(self._step).remove)
        if self._spikes is not None:
            self._until.callback(register_optimizer_step_post_hook(self._stepped).remove)
        return self

    @property
    def forked(self) -> bool:
        """Whether this is a process that the script has forked: it trains unwatched, and leaves the rows alone."""
        trial = self._spikes is not None and self._spikes.running is not None
        return os.getpid() != self._process and not trial

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._until.close()
        if self.forked:
            return
        if self._spikes is not None:
            self._spikes.close(wait=kind is not KeyboardInterrupt)
        if self.watch is not None:
            if kind in (None, SystemExit, KeyboardInterrupt):
                self.watch.close(ended=kind is not KeyboardInterrupt)
            else:
                self.watch.abandon()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        old = getattr(owner, name)
        setattr(owner, name, make(old))
        self._until.callback(setattr, owner, name, old)

    def _calls(self, old: Any) -> Any:
        """The outermost modules that are called before the first step, with what they are called with."""

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._depth or not torch.is_grad_enabled():
                return old(module, *args, **kwargs)
            if self._model is not None and not self._others:
                if getattr(module, "_orig_mod", None) is self._model:  # it was compiled since
                    self._batch = args, kwargs
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
            self._guarded(self._thrown.stop if kwargs.get("retain_graph") or args[1:] else self._thrown.before)
            old(loss, *args, **kwargs)
            self._guarded(self._thrown.after)
            self._backwards += 1
            if self._optimizer is None and (self._backwards >= WAITS or self._backwards == 1):
                self._guarded(self._by_hand)

        return backward

    def _scored(self, old: Any) -> Any:
        @wraps(old)
        def score(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002  (torch's names)
            if torch.compiler.is_compiling() or not torch.is_grad_enabled() or self._scoring:
                return old(input, target, *args, **kwargs)
            if old.__name__ == "cross_entropy" and not target.is_floating_point():
                self._target = target
            if old.__name__ == "cross_entropy" and 0 <= self._probable < LOOKS and input.requires_grad:
                self._guarded(self._look_at_scores, input)
            if self._spikes is not None and self._spikes.running is not None:
                target = self._spikes.running.target(target)
            self._scoring = True
            try:
                return old(input, target, *args, **kwargs)
            finally:
                self._scoring = False

        setattr(score, "__script_if_tracing_wrapper", True)  # torch.jit and dynamo then read the original
        setattr(score, "__original_fn", old)
        return score

    def _look_at_scores(self, scores: Tensor) -> None:
        """Whether cross-entropy is given probabilities, not all alike, where it takes logits."""
        with suppress(RuntimeError):  # under torch.func
            x = scores.detach().float()
            probable = x.ndim > 1 and x.shape[1] > 1 and bool((x >= 0).all()) and float(x.std()) > FEW
            self._probable = self._probable + 1 if probable and bool(((x.sum(1) - 1).abs() < FEW).all()) else -1

    def _loaded(self, old: Any) -> Any:
        def iterate(loader: Any) -> Any:
            self._loads = True
            return old(loader)

        return iterate

    def _put_back(self, old: Any) -> Any:
        def load(module: nn.Module, state: Any, *args: Any, **kwargs: Any) -> Any:
            self._guarded(self._is_own, module, state)
            return old(module, state, *args, **kwargs)

        return load

    def _is_own(self, module: nn.Module, state: Any) -> None:
        """Whether weights that are put back after some updates are the very tensors that were trained on since."""
        if self.watch is None or self._model is None or self._updates < WAITS:
            return
        known = any(row["signal"] == "state" for row in self.watch.warnings)
        if known or not any(m is module for m in self._model.modules()):
            return
        mine = {p.data_ptr() for p in module.parameters() if p.ndim > 1}
        if mine and mine <= {x.data_ptr() for x in tree_leaves(state) if isinstance(x, Tensor)}:
            what = "load_state_dict is given the model's own weights: it changes nothing"
            cause = "state_dict() holds the weights themselves, no copy: what was kept earlier was trained on since"
            remedy = "keep copy.deepcopy(model.state_dict())"
            self.watch.report(alarm(self._updates, "state", None, what, cause, remedy))

    def _resumed(self, old: Any) -> Any:
        def load(optimizer: Optimizer, state: Any) -> Any:
            steps = [one.get("step", 0) for one in state.get("state", {}).values() if isinstance(one, dict)]
            rates = [float(group.get("lr") or 0.0) for group in state.get("param_groups", ())]
            self._taken[id(optimizer)] = int(max(steps, default=0)), max(rates, default=0.0)
            return old(optimizer, state)

        return load

    def _scales(self, old: Any) -> Any:
        def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._scaler = scaler
            return old(scaler, *args, **kwargs)

        return scale

    def _scheduled(self, old: Any) -> Any:
        def step(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> Any:
            if self._inner:  # of a scheduler that holds others
                return old(scheduler, *args, **kwargs)
            self._schedules[id(scheduler)] = scheduler, self._schedules.get(id(scheduler), (scheduler, 0))[1] + 1
            self._inner = True
            try:
                return old(scheduler, *args, **kwargs)
            finally:
                self._inner = False

        return step

    def _follow_schedule(self, optimizer: Optimizer) -> None:
        """Whether the rate is the schedule's, and the schedule is stepped once per update."""
        own = [(s, n) for s, n in self._schedules.values() if getattr(s, "optimizer", None) is optimizer]
        if len(own) != 1 or self.watch is None or any(row["signal"] == "schedule" for row in self.watch.warnings):
            return
        scheduler, times = own[0]
        last = getattr(scheduler, "_last_lr", None) or []
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        off = len(last) == len(rates) and any(
            abs(a - float(b)) > 0.01 * abs(a) for a, b in zip(rates, last, strict=True)
        )
        self._off = self._off + 1 if off else 0
        each, (taken, rate) = times / max(1, self._updates), self._taken.get(id(optimizer), (0, 0.0))
        moves = rate > 0 and not 0.5 < max(rates, default=0.0) / rate < 2  # from where the state was
        name, processes = type(scheduler).__name__, int(os.environ.get("WORLD_SIZE", "1"))
        if self._updates == WAITS and each > 1.8 and round(each) != processes:  # accelerate steps once per process
            symptom = f"{name} is stepped {each:.0f} times per update"
            cause, remedy = f"it is over after 1/{each:.0f} of its steps", "step it once, after optimizer.step()"
        elif WAITS <= times <= 2 * WAITS and scheduler.last_epoch <= times and taken > 2 * WAITS and moves:
            symptom = f"{name} begins anew, and the optimizer's state is of step {taken}"
            cause = "a run that was resumed without its schedule: warm-up and decay begin again"
            remedy = "save and load scheduler.state_dict() beside the optimizer's; no fault if a new schedule is meant"
        elif self._off == WAITS:
            symptom = f"the rate is {rates[0]:.3g}, and {name} says {float(last[0]):.3g}"
            cause = "something else sets it: a state that was loaded after the schedule, or a second schedule"
            remedy = "load the optimizer's state first, then the schedule's; keep one of two schedules"
        else:
            return
        self.watch.report(alarm(self._updates, "schedule", None, symptom, cause, remedy))

    def _before(self, old: Any) -> Any:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if self.watch is None and not isinstance(parameters, Tensor):
                parameters = list(parameters)
                fresh = [p for p in parameters if p.grad is not None and p not in self._unclipped]
                self._unclipped |= {p: p.grad.clone() for p in fresh}
            self._guarded(self._measure)
            return old(parameters, *args, **kwargs)

        return clip

    def _guarded(self, look: Callable[..., None], *given: Any) -> None:
        """What goes wrong here ends the watching, and never the run."""
        if self._failed or self.forked:
            return
        try:
            look(*given)
        except Exception as error:
            self._failed = True
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
            print(f"isograd watch: the run goes on unwatched, after {what}", file=sys.stderr)

    def _follow(self, kind: type[nn.Module]) -> None:
        """Keep what the model is called with. A hook on the model itself would be saved with it."""
        own, old = "__call__" in vars(kind), kind.__call__

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return old(module, *args, **kwargs)
            if module is self._model and self._others:
                self._others = 0
                self._called.clear()
            if module is self._model and self._thrown.looks and torch.is_grad_enabled():
                self._thrown.called_with(tree_leaves((args, kwargs)))
            if module is self._model and torch.is_grad_enabled() and module.training:
                if self._spikes is not None and self._spikes.running is not None:
                    args, kwargs = self._spikes.running.forward(args, kwargs) or (args, kwargs)
                else:
                    self._batch = args, kwargs
            return old(module, *args, **kwargs)

        kind.__call__ = call  # type: ignore[method-assign]
        self._until.callback(lambda: setattr(kind, "__call__", old) if own else delattr(kind, "__call__"))

    def _step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Before any optimizer's step; where it is given a closure, which computes the gradients, after that."""
        closure = kwargs.get("closure") or next((a for a in args[1:] if callable(a)), None)
        if closure is None:
            self._guarded(self._stepping, optimizer)
            return None
        called: list[bool] = []

        def compute() -> Any:
            loss = closure()
            if not called:  # a line search calls it again
                called.append(True)
                self._guarded(self._stepping, optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": compute}
        return tuple(compute if a is closure else a for a in args), kwargs

    def _stepping(self, optimizer: Optimizer) -> None:
        """Of several optimizers the first one that came is the one that an update begins with."""
        self.stepped = True
        if self._model is None:
            self._find(optimizer)
        elif self._others >= WAITS or self._is_stage(optimizer):
            self._replaced(optimizer)
        if optimizer is not self._optimizer:
            self._thrown.stop()
            self._begins.setdefault(id(optimizer), self._updates)
            self._others, self._since = self._others + 1, self._since + 1
            if self._since >= WAITS and self.watch is not None and _held(optimizer) == _held(self._optimizer):
                self._optimizer = self.watch.trained_by.optimizer = optimizer  # made anew
                del self._losses[:-1]
        if optimizer is self._optimizer:
            self._since = 0
            self._begins[id(optimizer)] = -1
            self._follow_schedule(optimizer)
            self._updates += 1
            for row in self._thrown.update(self._updates):
                assert self.watch is not None
                self.watch.report(row)
            with self._first_update():
                self._measure()
            if self._spikes is not None:
                self._spikes.update(self._loss())
            self._losses.clear()
            self._measured = False
        self._unclipped.clear()

    def _replaced(self, optimizer: Optimizer) -> None:
        """Another model is trained, and the one that was watched is not called any more: built anew, most likely."""
        assert self.watch is not None
        before, name, earlier = self.watch, type(self._model).__name__, set[int]()
        if self._model is not None and self._is_stage(optimizer):
            self._called = {id(self._model): (self._model, self._batch)}
            earlier = before.trained_by.earlier | _held(self._optimizer)
        self._model, self._others = None, 0
        self._find(optimizer)
        if self._model is None:
            self._model = before._model
        elif self.watch is not before:
            before.close(ended=False)
            self.watch.goes_on(before)
            self.watch.trained_by.earlier = earlier
            del self._losses[:-1]
            said = f"another model is trained, a {type(self._model).__name__} in place of a {name}"
            said = f"{f'another optimizer trains the {name}' if earlier else said}; it is followed from here"
            print(f"isograd watch: after update {self._updates + WAITS} {said}", file=sys.stderr)

    def _is_stage(self, optimizer: Optimizer) -> bool:
        """Whether it has taken the place of the watched one, with other parameters of the same model."""
        if self._since < WAITS or self._begins.get(id(optimizer)) != self._updates or self._model is None:
            return False
        held = _held(optimizer)
        return held != _held(self._optimizer) and any(id(p) in held for p in self._model.parameters())

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer is self._optimizer and self._spikes is not None and self._model is not None and not self.forked:
            self._spikes.updated(self._model, optimizer)

    @contextmanager
    def _first_update(self) -> Iterator[None]:
        """Its gradients as they were before clipping; in later ones nothing is kept."""
        clipped = {p: p.grad for p in self._unclipped}
        for p, gradient in self._unclipped.items():
            p.grad = gradient
        yield
        for p, now in clipped.items():
            p.grad = now

    def _by_hand(self) -> None:
        """After a backward pass of a loop that has no optimizer, and moves weights: one that accumulates moves none."""
        if self._model is None:
            now = [p.detach().flatten()[:8].clone() for m, _ in self._called.values() for p in _graded(m)]
            self._begun = self._begun or now
            if all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(self._begun, now, strict=False)):
                return
            del self._losses[:-1]
            self._find(None)
        self._measure()
        self._losses.clear()
        self._measured = False

    def _find(self, optimizer: Optimizer | None) -> None:
        """The model: of the modules that were called the one with the most parameters that the optimizer holds, or that
        have gradients.
        """
        held = _held(optimizer)
        if optimizer is None:
            held = {id(p) for module, _ in self._called.values() for p in _graded(module)}
        best: tuple[int, nn.Module, Any] | None = None
        for module, inputs in self._called.values():
            own = [p for p in module.parameters() if id(p) in held]
            if own and (best is None or sum(p.numel() for p in own) > best[0]):
                best = sum(p.numel() for p in own), module, inputs
        if best is None:  # another optimizer's turn
            return
        self._optimizer, self._model, self._batch = optimizer, best[1], best[2]
        self._called.clear()
        self._follow(type(self._model))
        overflows = self._scaler is not None and self._scaler.is_enabled()
        self.watch = watch(self._model, optimizer=optimizer, overflows=overflows, **self._settings)
        self._thrown = Thrown([p for p in self._model.parameters() if id(p) in held and optimizer is not None])
        if self._launched:  # else a process that the script started would be waited for, which does not look
            self.watch.ranks = Ranks(self._model)

    def _measure(self) -> None:
        """Once per update: the gradients as they lie, with the loss and the batch."""
        if self.watch is None or self._measured or not self._losses:
            return
        self._measured = True
        loss = self._loss()
        if loss is None or (self._spikes is not None and self._spikes.running is not None):
            return
        if self._probable == LOOKS:
            what = "cross_entropy is given probabilities: rows that are positive and sum to 1"
            cause = "it applies a softmax of its own, and the loss hardly falls"
            self.watch.report(alarm(self._updates, "probabilities", None, what, cause, "give it the logits"))
            self._probable = -1
        batch, self._earlier = None if self._is_whole() else self._given(), self._batch
        with suppress(ValueError):  # no gradient at all: a step that the script leaves out
            self.watch.step(loss, batch=batch)

    def _is_whole(self) -> bool:
        """Whether the data is one batch, as a graph's: the same numbers as before, and no loader that has others."""
        now, before = ([x for x in tree_leaves(b) if isinstance(x, Tensor)] for b in (self._batch, self._earlier))
        same = len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
        return same and not self._loads and any(x.is_floating_point() for x in now)

    def _loss(self) -> Tensor | None:
        """Of this update so far: the sum over its parts."""
        if not self._losses:
            return None
        loss: Tensor = torch.stack([loss.float() for loss in self._losses]).sum()
        scaled = self._scaler is not None and self._scaler.is_enabled()
        return loss / self._scaler._get_scale_async() if scaled else loss

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


def _held(optimizer: Optimizer | None) -> set[int]:
    return set() if optimizer is None else {id(p) for group in optimizer.param_groups for p in group["params"]}


def _graded(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.grad is not None]


def _kinds(kind: type) -> list[type]:
    every: list[type] = type.__subclasses__(kind)
    return [kind, *(below for one in every for below in _kinds(one))]


def run(script: Path, arguments: Sequence[str], watching: ScriptWatch) -> int:
    """Run a script as `python script arguments` does, watched; its exit code, 1 where it raised, with its traceback."""
    words, path, ours = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=str(script), __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    try:
        with watching:
            exec(compile(script.read_bytes(), str(script), "exec", dont_inherit=True), vars(main))
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except (Exception, KeyboardInterrupt) as error:
        print(
            "".join(_without_us(traceback.TracebackException.from_exception(error)).format()), end="", file=sys.stderr
        )
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        atexit.register(_as_it_ran, main, sys.argv)
        sys.argv, sys.path[:], sys.modules["__main__"] = words, path, ours
    return 0


def _as_it_ran(main: ModuleType, words: list[str]) -> None:
    """Before what a script does at the end of the process, as saving a model of a class of its own."""
    sys.modules["__main__"], sys.argv = main, words


def _without_us(error: traceback.TracebackException) -> traceback.TracebackException:
    """A traceback as it would be without the watching, its causes too."""
    error.stack[:] = [frame for frame in error.stack if frame.filename != __file__]
    for other in (error.__cause__, error.__context__):
        if other is not None:
            _without_us(other)
    return error
