"""What happens in real updates: which losses are formed of what, what backward brings, and what the optimizer gets.

    with Recorder(model) as record:
        update(batches)
    record.losses, record.steps

It reads, and changes nothing: hooks on parameters, torch's hooks around `Optimizer.step`, and a mode that sees the loss
functions of `torch.nn.functional`.
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from isograd.lint.step.losses import LossMode

ENTRIES = 64  # of each parameter, that tell whether it was changed


@dataclass(kw_only=True)
class Step:
    """One call of an optimizer's step.

    Attributes:
        backwards: how many gradients came since its step before, or since they were set to zero.
        brought: the norm of their sum.
        cleared: of gradients that were set to zero and that no step had used.
        factor: what it got is so many times what backward brought since then, the scaler's factor divided out.
        stale: and so many times what it had got before.
        rest: the part of what it got that is neither, of its norm.
        clipped: what it had been multiplied by before it was unscaled, where a scaler unscaled it.
        scale: the scaler's factor in what backward brought, and whether it was divided out.
        norm: of the gradient that it got.
        each: of each tensor that is a multiple of what backward brought of it: which, and its norm.
        missing: names of parameters that it holds, that want a gradient and have none.
        rates: of its groups.
        moved: by name, (root mean square of the weights, of their change, share of entries that stand still although
            they have a gradient).
    """

    optimizer: Optimizer
    update: int
    backwards: int
    brought: float
    cleared: float
    factor: float
    stale: float
    rest: float
    clipped: float | None
    scale: float
    unscaled: bool
    norm: float
    each: list[tuple[float, float]]
    missing: list[str]
    zero: list[str]
    rates: list[float]
    moved: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    half: set[str] = field(default_factory=set)  # names of weights in 16 bits at that time
    apart: float = 0.0  # share of parameters that are others than at the first forward pass of the update
    later: float | None = None  # the norm of the same gradients at the next forward pass


@dataclass(kw_only=True)
class Forward:
    """A forward pass of the model."""

    update: int
    training: bool
    graded: bool
    autocast: torch.dtype | None
    inputs: Any


class Recorder(LossMode):
    """Records until it is left; see the module."""

    def __init__(self, model: nn.Module, ours: list[Optimizer] | None = None, *, counts: bool = False) -> None:
        """`counts` takes each round of the optimizers for an update; else `update` is set from outside."""
        super().__init__(model)
        self._ours, self._counting = ours, counts
        self.steps: list[Step] = []
        self.forwards: list[Forward] = []
        self.backwards: list[tuple[int, int, float]] = []  # update, part, value of what backward was called on
        self.scheduled: list[tuple[int, Any, int]] = []  # update, scheduler, how many optimizer steps came before it
        self.scaled: list[tuple[int, str]] = []  # update, what was called of the scaler
        self.first: dict[int, Tensor] = {}  # what several backward passes brought before the first step
        self._names = {id(p): n for n, p in model.named_parameters()}
        self._fresh: dict[int, Tensor] = {}
        self._before: dict[int, Tensor] = {}
        self._counts: dict[int, int] = {}
        self._weights: dict[int, Tensor] = {}
        self._clipped: dict[int, float] = {}
        self._at_first: dict[int, Tensor] = {}
        self._cleared: dict[int, float] = {}
        self.zeroed: list[int] = []  # after how many backward passes
        self.called: nn.Module | None = None  # what is called for an update: the model, or the part of it that is
        self.clips: list[bool] = []  # of each call of clip_grad_norm_, whether the optimizer had used the gradients
        self._scale = 1.0
        self._unscaled: set[int] = set()
        self._stack = ExitStack()
        self._depth: dict[str, int] = {}

    def __enter__(self) -> "Recorder":
        hooks = [register_optimizer_step_pre_hook(self._pre), register_optimizer_step_post_hook(self._post)]
        hooks += [p.register_hook(self._brought(p)) for p in self.model.parameters() if p.requires_grad]
        hooks += [m.register_forward_pre_hook(self._forward, with_kwargs=True) for m in _callable(self.model)]
        for hook in hooks:
            self._stack.callback(hook.remove)
        for kind in _kinds(LRScheduler):
            self._patch(kind, "step", self._schedule)
        self._patch(torch.amp.GradScaler, "unscale_", self._unscale)
        for name in ("update", "step"):
            self._patch(torch.amp.GradScaler, name, self._noted(name))
        for kind in (*_kinds(Optimizer), nn.Module):
            self._patch(kind, "zero_grad", self._zeroed)
        for place in (nn.utils, clip_grad):
            old = vars(place)["clip_grad_norm_"]
            self._stack.callback(vars(place).__setitem__, "clip_grad_norm_", old)
            vars(place)["clip_grad_norm_"] = self._clips(old)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def _patch(self, kind: Any, name: str, seen: Callable[[Any, tuple[Any, ...]], None]) -> None:
        old = vars(kind).get(name)
        if old is None:
            return

        def new(this: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._depth.get(name):  # what calls another of its kind is one call
                seen(this, args)
            self._depth[name] = self._depth.get(name, 0) + 1
            try:
                return old(this, *args, **kwargs)
            finally:
                self._depth[name] -= 1

        setattr(kind, name, new)
        self._stack.callback(setattr, kind, name, old)

    def _backward(self, loss: Tensor) -> None:
        self.backwards.append((self.update, self._part, float(loss.detach()) if loss.ndim == 0 else math.nan))

    def weights(self) -> list[list[float]]:
        """Of each update, what the mean losses of its parts were multiplied by; only where each part has one loss."""
        found = []
        for update in sorted({u for u, _, _ in self.backwards}):
            own = [
                (part, value)
                for at, (u, part, value) in enumerate(self.backwards)
                if u == update and at >= self._used(update)
            ]
            ratios = []
            for part, value in own:
                calls = [c for c in self.losses if (c.update, c.part) == (update, part) and c.value]
                if len(calls) == 1 and calls[0].reduction == "mean":
                    ratios.append(value / (calls[0].value or 1.0) / self._scale)
            if len(ratios) == len(own):
                found.append(ratios)
        return found

    def _used(self, update: int) -> int:
        """The first backward pass of an update whose gradients were not set to zero before its step."""
        first = next((at for at, (u, _, _) in enumerate(self.backwards) if u == update), 0)
        last = max((at for at, (u, _, _) in enumerate(self.backwards) if u == update), default=0)
        return max((z for z in self.zeroed if first < z <= last), default=first)

    def _forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.called = self.called or module
        if module is not self.called:
            return
        self._later()
        if not self._at_first and torch.is_grad_enabled():
            self._at_first = {id(p): p.detach().flatten()[:ENTRIES].clone() for p in self.model.parameters()}
        on = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        kind = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
        self._part += 1
        self.forwards.append(
            Forward(
                update=self.update,
                training=module.training,
                graded=torch.is_grad_enabled(),
                autocast=torch.get_autocast_dtype(kind) if on else None,
                inputs=(args, kwargs),
            )
        )
        for old in self.forwards[:-8]:
            old.inputs = None

    def _brought(self, parameter: nn.Parameter) -> Callable[[Tensor], None]:
        key = id(parameter)

        def add(gradient: Tensor) -> None:
            if gradient.is_sparse:
                return
            fresh = gradient.detach()
            self._fresh[key] = fresh.clone() if key not in self._fresh else self._fresh[key] + fresh
            self._counts[key] = self._counts.get(key, 0) + 1

        return add

    def _parameters(self, optimizer: Optimizer) -> list[nn.Parameter]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    @torch.no_grad()
    def _unscale(self, scaler: Any, args: tuple[Any, ...]) -> None:
        self._scale = float(scaler.get_scale())
        held = self._parameters(args[0])
        self._clipped[id(args[0])] = self._explained(held)[0]
        self._unscaled.add(id(args[0]))
        self.scaled.append((self.update, "unscale_"))

    def _noted(self, name: str) -> Callable[[Any, tuple[Any, ...]], None]:
        return lambda _, __: self.scaled.append((self.update, name))

    def _later(self, *_: Any) -> None:
        """What gradients are after the step, before they are set to zero or the next forward pass begins."""
        for step in self.steps:
            if step.later is None:
                held = self._parameters(step.optimizer)
                step.later = _norm([p.grad for p in held if p.grad is not None])

    def _clips(self, old: Callable[..., Any]) -> Callable[..., Any]:
        def clip(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.pop("parameters", ())
            given = [given] if isinstance(given, Tensor) else list(given)
            most = args[1] if len(args) > 1 else kwargs.get("max_norm", math.inf)
            if math.isfinite(float(most)):  # else the norm is asked for
                mine = {id(p) for p in given if p.grad is not None}
                held = {id(p) for p in self._parameters(self.steps[-1].optimizer)} if self.steps else set()
                self.clips.append(bool(mine) and mine <= held and not self._fresh)
            return old(given, *args[1:], **kwargs)

        return clip

    def _zeroed(self, owner: Any, args: tuple[Any, ...]) -> None:
        """Gradients are about to be set to zero: what backward has brought of them is gone."""
        self._later()
        held = self._parameters(owner) if isinstance(owner, Optimizer) else list(owner.parameters())
        for p in held:
            fresh = self._fresh.pop(id(p), None)
            if fresh is not None:
                self._cleared[id(p)] = _norm([fresh])
            self._counts.pop(id(p), None)
        self.zeroed.append(len(self.backwards))

    def _explained(self, held: list[nn.Parameter]) -> tuple[float, float, float, list[tuple[float, float]]]:
        """Gradients as so many times what backward brought, and what was there before; the part that is neither; and
        `Step.each`.
        """
        ff = fp = pp = gf = gp = gg = 0.0
        each: list[tuple[float, float]] = []
        for p in held:
            if p.grad is None or p.grad.is_sparse or id(p) not in self._fresh:
                continue
            g, f = p.grad.detach().float(), self._fresh[id(p)].float()
            b = self._before.get(id(p))
            own_ff, own_gf, own_gg = float((f * f).sum()), float((g * f).sum()), float((g * g).sum())
            ff, gf, gg = ff + own_ff, gf + own_gf, gg + own_gg
            if own_ff > 0 and own_gg - own_gf * own_gf / own_ff < 1e-4 * own_gg:
                each.append((own_gf / own_ff, math.sqrt(own_gg)))
            if b is not None:
                b = b.float()
                pp, fp, gp = pp + float((b * b).sum()), fp + float((f * b).sum()), gp + float((g * b).sum())
        if not math.isfinite(gg + ff) or ff == 0:
            return math.nan, 0.0, 0.0, []
        det = ff * pp - fp * fp
        if pp == 0 or det < 1e-6 * ff * pp:
            a, b_ = gf / ff, 0.0
        else:
            a, b_ = (gf * pp - gp * fp) / det, (gp * ff - gf * fp) / det
        rest = gg - a * gf - b_ * gp
        return a, b_ * math.sqrt(pp / gg) if gg else 0.0, math.sqrt(max(rest, 0.0) / gg) if gg else 0.0, each

    def _pre(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Before a step; where it is given a closure, which computes the gradients, after the closure."""
        if self._ours is not None and not any(optimizer is one for one in self._ours):
            return None
        closure = kwargs.get("closure") or next((a for a in args[1:] if callable(a)), None)
        if closure is None:
            self._taken(optimizer)
            return None
        called: list[bool] = []

        def compute() -> Any:
            with torch.enable_grad():
                loss = closure()
            if not called:
                called.append(True)
                self._taken(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": compute}
        return tuple(compute if a is closure else a for a in args), kwargs

    @torch.no_grad()
    def _taken(self, optimizer: Optimizer) -> None:
        """What an optimizer is about to use."""
        held = self._parameters(optimizer)
        factor, stale, rest, each = self._explained(held)
        if not self.steps and max(self._counts.values(), default=0) > 1:
            self.first = dict(self._fresh)
        scale, unscaled = self._scale, id(optimizer) in self._unscaled
        first = {id(p): self._at_first[id(p)] for p in held if id(p) in self._at_first}
        apart = [p for p in held if id(p) in first and _other(p.detach().flatten()[:ENTRIES], first[id(p)])]
        self._at_first = {key: value for key, value in self._at_first.items() if key not in first}
        self._unscaled.discard(id(optimizer))
        wanted = [p for p in held if p.requires_grad]
        self.steps.append(
            Step(
                optimizer=optimizer,
                update=self.update,
                factor=factor,
                stale=stale,
                rest=rest,
                backwards=max((self._counts.get(id(p), 0) for p in held), default=0),
                brought=_norm([self._fresh[id(p)] for p in held if id(p) in self._fresh]),
                cleared=math.hypot(*(self._cleared.get(id(p), 0.0) for p in held)),
                clipped=self._clipped.pop(id(optimizer), None),
                scale=scale,
                unscaled=unscaled,
                norm=_norm([p.grad for p in held if p.grad is not None]),
                each=each,
                missing=[self._name(p) for p in wanted if p.grad is None],
                apart=len(apart) / max(1, len(first)),
                zero=[self._name(p) for p in wanted if p.grad is not None and not bool(p.grad.any())],
                rates=[float(g.get("lr", math.nan)) for g in optimizer.param_groups],
            )
        )
        for p in held:
            if p.grad is not None and not p.grad.is_sparse:
                self._weights[id(p)] = p.detach().clone()
                self._before[id(p)] = p.grad.detach().clone()
            self._fresh.pop(id(p), None)
            self._counts.pop(id(p), None)
            self._cleared.pop(id(p), None)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """What the optimizer got for it in the last update."""
        return self._before.get(id(parameter))

    def scaler_is(self, scaler: Any) -> None:
        """The factor of a scaler that may not unscale by a call of its own."""
        self._scale = float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0

    @torch.no_grad()
    def _post(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self.steps or self.steps[-1].optimizer is not optimizer:
            return
        for p in self._parameters(optimizer):
            before = self._weights.pop(id(p), None)
            if before is None or p.grad is None or p.grad.is_sparse:
                continue
            if p.dtype in (torch.float16, torch.bfloat16):
                self.steps[-1].half.add(self._name(p))
            change = p.detach() - before
            graded = p.grad != 0
            still = float(((change == 0) & graded).sum() / graded.sum().clamp(min=1))
            size = float(before.float().square().mean().sqrt())
            self.steps[-1].moved[self._name(p)] = size, float(change.float().square().mean().sqrt()), still
        self._at_first = {}
        own = [s.optimizer for s in self.steps if s.update == self.update]
        self.update += self._counting and len(own) >= len(self._ours or [optimizer])

    def _schedule(self, scheduler: Any, args: tuple[Any, ...]) -> None:
        self.scheduled.append((self.update, scheduler, sum(s.update == self.update for s in self.steps)))

    def _name(self, parameter: Tensor) -> str:
        return self._names.get(id(parameter), "")


def _callable(model: nn.Module) -> list[nn.Module]:
    """A module of Lightning is seldom called itself, nor a wrapper of DDP by mistake: its largest part is."""
    parts = list(model.children()) if hasattr(model, "training_step") or hasattr(model, "no_sync") else []
    return [model, *sorted(parts, key=lambda part: -sum(p.numel() for p in part.parameters()))[:1]]


def _kinds(kind: type) -> list[type]:
    every: list[type] = type.__subclasses__(kind)
    return [kind, *(below for one in every for below in _kinds(one))]


def _norm(gradients: list[Tensor]) -> float:
    dense = [g.detach().float() for g in gradients if not g.is_sparse]
    return math.sqrt(sum(float((g * g).sum()) for g in dense))


def _other(now: Tensor, before: Tensor) -> bool:
    """Whether numbers were changed by more than adding and taking away again leaves."""
    return bool((now - before).abs().max() > 1e-5 * before.abs().max())
