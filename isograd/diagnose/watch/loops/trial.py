"""A few steps of a script once more, with one thing changed: what a process forked from it does in place of the script.

A trial goes on as the script itself, from the snapshot on. It sends its losses back and ends; it must leave no trace.
"""

import fcntl
import io
import math
import os
import pickle
import re
import resource
import signal
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

MOVED = 1e-3  # of its size each weight is moved by, in the trials of seeds 1 and 2
SAVED = 16 * 2**20  # bytes of a batch that is kept
_save = torch.save
HALF = (torch.float16, torch.bfloat16)
_QUERY_OR_KEY = re.compile(r"(^|\.)((w?[qk])|(query|key)|([qk]|query|key)_(proj|lin)|to_[qk]|w[qk])$", re.IGNORECASE)
_FUSED = re.compile(r"(^|\.)(\w*qkv\w*|c_attn|in_proj|query_key_value)$", re.IGNORECASE)
_LEAVE_TRACES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "os.system",
    "subprocess.Popen", "os.posix_spawn", "os.exec", "socket.connect", "os.kill",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is changed, from the snapshot to step `end`; nothing: the control.

    Attributes:
        batches: a step, and the step whose batch it gets in place of its own.
        rates: of each group of the optimizer, at the steps at which they are others.
        clip: gradients are clipped to this norm, from step `clip_from` on.
        calm: a module whose query and key weights give half the attention logits, and do not grow.
        float32: neither autocast nor casts to 16 bits; 16-bit weights in float32.
        undo: steps before which weights and optimizer are put back to what the update before left.
        redo: the step before which what was undone is done.
    """

    kind: str
    name: str
    end: int
    seed: int = 0
    batches: Mapping[int, int] = field(default_factory=dict)
    rates: Mapping[int, Sequence[float]] = field(default_factory=dict)
    clip: float | None = None
    clip_from: int = 0
    beta2: float | None = None
    eps: float | None = None
    calm: str | None = None
    float32: bool = False
    undo: range = range(0)
    redo: int | None = None


@dataclass(kw_only=True)
class Outcome:
    """What a trial sends back.

    Attributes:
        losses: by step.
        rates, norms: of the optimizer's groups, and of the gradients, by step.
        changed: steps before which weights or optimizer were changed by what is no update: how many numbers.
        attention: of modules with query weights, how many times their norm at the snapshot these came to.
        typical: root of Adam's second moment, its median over tensors; None with other optimizers.
        inputs: tensors that the model and the losses got in a step; a batch can be exchanged from two on.
        batches: of the last steps, as files of torch.save.
    """

    losses: dict[int, float] = field(default_factory=dict)
    rates: dict[int, list[float]] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)
    changed: dict[int, int] = field(default_factory=dict)
    attention: dict[str, float] = field(default_factory=dict)
    typical: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    half: bool = False
    inputs: int = 0
    batches: dict[int, bytes] = field(default_factory=dict)


class Running:
    """A trial that runs, in a process of its own."""

    def __init__(self, trial: Trial, step: int, model: nn.Module, optimizer: Optimizer, pipe: int, last: int) -> None:
        """At the end of step `step`; of the batches those until step `last` are kept."""
        self.trial, self.step, self.model, self.optimizer = trial, step, model, optimizer
        self.outcome = Outcome()
        self._pipe, self._last = pipe, last
        self._inputs: dict[int, list[Any]] = {}
        self._targets: dict[int, list[Tensor]] = {}
        self._calls = [0, 0]
        self._begun = False
        self._usual: list[float] = []
        self._undone: list[tuple[Tensor, Tensor, Tensor]] = []
        self._norms: dict[str, float] = {}
        alone(pipe)
        torch.set_num_threads(1)
        with torch.no_grad():
            self._begin()
        self._left = self._state()

    def _begin(self) -> None:
        trial, groups = self.trial, self.optimizer.param_groups
        if trial.seed:
            made = torch.Generator().manual_seed(trial.seed)
            for p in self.model.parameters():
                p.mul_(1 + MOVED * torch.randn(p.shape, generator=made).to(p.dtype))
        moments = [s["exp_avg_sq"].float().mean().sqrt().item() for s in self.optimizer.state.values() if
                   isinstance(s.get("exp_avg_sq"), Tensor)]  # fmt: skip
        self.outcome.typical = sorted(moments)[len(moments) // 2] if moments else None
        self.outcome.settings = {key: groups[0][key] for key in ("betas", "eps") if key in groups[0]}
        for group in groups:
            if trial.beta2 is not None and "betas" in group:
                group["betas"] = (group["betas"][0], trial.beta2)
            if trial.eps is not None and "eps" in group:
                group["eps"] = trial.eps
        for layer, name, weight in attention(self.model):
            self._norms[name] = weight.norm().item()
            if layer == trial.calm:
                weight.mul_(math.sqrt(0.5))
        self._watch_casts(trial.float32)
        if trial.float32:
            torch.set_autocast_enabled("cpu", False)
            self.model.float()
            for state in self.optimizer.state.values():
                state.update({k: v.float() for k, v in state.items() if isinstance(v, Tensor) and v.dtype in HALF})

    def _watch_casts(self, away: bool) -> None:
        """Casts to 16 bits are noticed, or left out."""
        seen = self.outcome

        def cast(old: Callable[..., Any], gives: torch.dtype | None = None) -> Callable[..., Any]:
            def call(it: Tensor, *args: Any, **kwargs: Any) -> Any:
                if gives in HALF or any(x in HALF for x in (*args, *kwargs.values()) if isinstance(x, torch.dtype)):
                    seen.half = True
                    if away and gives is not None:
                        return it.float()
                    if away:
                        args, kwargs = tree_map(lambda x: torch.float32 if x in HALF else x, (args, kwargs))
                return old(it, *args, **kwargs)

            return call

        entered = torch.autocast.__enter__

        def enter(it: Any) -> Any:
            seen.half = seen.half or bool(it._enabled)
            it._enabled = it._enabled and not away
            return entered(it)

        torch.autocast.__enter__ = enter  # type: ignore[method-assign]
        for name, gives in (("half", torch.float16), ("bfloat16", torch.bfloat16), ("to", None), ("type", None)):
            setattr(Tensor, name, cast(getattr(Tensor, name), gives))
        seen.half = seen.half or any(p.dtype in HALF for p in self.model.parameters())

    def forward(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Before the model is called: with what, instead."""
        self._before()
        return self._exchanged(self._inputs, 0, (args, kwargs))

    def target(self, target: Tensor) -> Tensor:
        """Before a loss: with what target, instead."""
        return self._exchanged(self._targets, 1, target)

    def _exchanged(self, kept: dict[int, list[Any]], which: int, own: Any) -> Any:
        """The batch of this step is kept, and that of another one is given where it is to be."""
        now, call = self.step + 1, self._calls[which]
        self._calls[which] += 1
        kept.setdefault(now, []).append(tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, own))
        other = kept.get(self.trial.batches.get(now, now), [])
        return other[call] if call < len(other) and now in self.trial.batches else own

    def update(self, loss: float) -> None:
        """Before the update of a step."""
        self._before()
        now, groups = self.step + 1, self.optimizer.param_groups
        self.outcome.losses[now] = loss
        self._usual = [group["lr"] for group in groups]
        self.outcome.rates[now] = [float(lr) for lr in self._usual]
        for group, lr in zip(groups, self.trial.rates.get(now, ()), strict=False):
            group["lr"] = lr
        held = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([g.float().norm() for g in held])).item() if held else 0.0
        self.outcome.norms[now] = norm
        if self.trial.clip is not None and norm > self.trial.clip and now >= self.trial.clip_from:
            for gradient in held:
                gradient.mul_(self.trial.clip / norm)

    def updated(self) -> None:
        """After the update of a step."""
        self.step += 1
        self._begun, self._calls = False, [0, 0]
        for group, lr in zip(self.optimizer.param_groups, self._usual, strict=True):
            group["lr"] = lr
        with torch.no_grad():
            for layer, name, weight in attention(self.model):
                norm = weight.norm().item()
                if self.step < self._last:
                    grown = norm / max(self._norms[name], 1e-30)
                    self.outcome.attention[layer] = max(grown, self.outcome.attention.get(layer, 0.0))
                if layer == self.trial.calm and norm > math.sqrt(0.5) * self._norms[name]:
                    weight.mul_(math.sqrt(0.5) * self._norms[name] / norm)
        self._left = self._state()
        if self.step >= self.trial.end:
            self.end()

    def _state(self) -> list[tuple[Tensor, Tensor]]:
        """Weights and the tensors of the optimizer, each with a copy."""
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        states = [x for p in held for x in self.optimizer.state.get(p, {}).values() if isinstance(x, Tensor)]
        return [(x, x.detach().clone()) for x in (*(p.data for p in held), *states)]

    def _before(self) -> None:
        """Whether something that is no update has changed weights or optimizer since the one before."""
        now = self.step + 1
        if not self._begun and now == self.trial.redo:
            for x, where, value in self._undone:
                x[where] = value
        self._begun = True
        for x, was in self._left if now != self.trial.redo else []:
            if torch.equal(x, was) or x.shape != was.shape:
                continue
            differs = (x != was) & ~(x.isnan() & was.isnan())
            if count := int(differs.sum()):
                self.outcome.changed[now] = self.outcome.changed.get(now, 0) + count
                if now in self.trial.undo:
                    self._undone.append((x, differs, x[differs].clone()))
                    x.copy_(was)

    def end(self) -> None:
        """Send what was found, and be gone."""
        with suppress(Exception):
            for step in range(self._last - 2, self._last + 1) if self.trial.kind == "control" else ():
                batch = {"inputs": self._inputs.get(step), "targets": self._targets.get(step)}
                self.outcome.inputs = sum(isinstance(x, Tensor) for x in tree_leaves(batch))
                if sum(x.nbytes for x in tree_leaves(batch) if isinstance(x, Tensor)) < SAVED:
                    _save(batch, file := io.BytesIO())
                    self.outcome.batches[step] = file.getvalue()
        with suppress(BaseException):
            content = pickle.dumps(self.outcome)
            while content:
                content = content[os.write(self._pipe, content) :]
        os._exit(0)


def attention(model: nn.Module) -> list[tuple[str, str, Tensor]]:
    """The weights that make queries and keys, as views: the module that attends, the parameter, its values."""
    found: list[tuple[str, str, Tensor]] = []
    for name, parameter in model.named_parameters():
        module, _, last = name.rpartition(".")
        module, last = (module, last) if last != "in_proj_weight" else (f"{module}.in_proj", "weight")
        if last != "weight" or parameter.ndim != 2:
            continue
        (rows, columns), layer = parameter.shape, module.rpartition(".")[0]
        if _QUERY_OR_KEY.search(module):
            found.append((layer, name, parameter.data))
        elif _FUSED.search(module) and rows == 3 * columns:
            found.append((layer, name, parameter.data[: 2 * columns]))
        elif _FUSED.search(module) and columns == 3 * rows:  # of transformers' Conv1D
            found.append((layer, name, parameter.data[:, : 2 * rows]))
    return found


def alone(*keep: int) -> None:
    """From here on this process writes nowhere but to `keep`: not to the terminal, to files that are open, to sockets.

    Files that are opened for writing are none; files grow no more; what would delete or rename one, or begin a process,
    raises an error.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    nothing = os.open(os.devnull, os.O_RDWR)
    for one in map(int, os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else range(256)):  # noqa: PTH112, PTH208
        with suppress(OSError):
            kind, writes = os.fstat(one).st_mode, fcntl.fcntl(one, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
            if one not in (*keep, nothing) and (stat.S_ISSOCK(kind) or writes):
                os.dup2(nothing, one)
    opened = io.open

    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = any(letter in mode for letter in "wax+")
        return opened(os.devnull if writes else file, mode.replace("x", "w"), *args, **kwargs)

    def save(*_: Any, **__: Any) -> None:
        pass

    sys.modules["builtins"].open = io.open = open_  # type: ignore[attr-defined]
    torch.save = save
    sys.addaudithook(_refuse)


def _refuse(event: str, args: Any) -> None:
    if event in _LEAVE_TRACES:
        raise OSError(f"{event}: not in a trial")
    if event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR) and args[0] != os.devnull:
        raise OSError("a trial opens no file for writing")
