"""The model under the linter, and the questions that several rules ask about it."""

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from isograd.trace.anatomy import Anatomy
from isograd.trace.dataflow import Flow, bare
from isograd.trace.record import Operation, Trace, arguments, fitted, stand_in
from isograd.trace.structure import FoundSublayer


class Subject:
    """A model, inputs that it runs on, and its anatomy.

    Attributes:
        lr, warmup: the peak learning rate and the warm-up steps that it is to be trained with, where known.
        said: codes of the rules that have been asked: a consequence is not reported beside its cause.
    """

    def __init__(
        self, model: nn.Module, inputs: Any, anatomy: Anatomy, lr: float | None = None, warmup: int | None = None
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.anatomy = anatomy
        self.lr = lr
        self.warmup = warmup
        self.said: set[str] = set()

    @property
    def trace(self) -> Trace:
        return self.anatomy.trace

    @property
    def flow(self) -> Flow:
        return self.anatomy.flow

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """By name, as the model holds them; a tied one under its first name."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    @cached_property
    def gains(self) -> set[str]:
        """Names of the gains of all norms."""
        return {norm.gain for norm in self.flow.norms.values() if norm.gain}

    @cached_property
    def coefficients(self) -> set[str]:
        """Names of all trained coefficients: vectors and numbers, other than gains, that multiply activations."""
        products = [
            o for o in self.trace.operations if bare(o) in ("mul", "div", "addcmul", "lerp") and self.flow.data(o)
        ]
        names = {name for operation in products for name in self.flow.weights(operation)}
        return {name for name in names if self.parameters[name].squeeze().ndim <= 1} - self.gains

    @cached_property
    def at_start(self) -> bool:
        """Whether no norm's gain has moved: training leaves none of them even. What is no number has been trained."""
        if "not-finite" in self.said:
            return False
        gains = [self.parameters[name].float() for name in self.gains if name in self.parameters]
        return all((g - g.flatten()[0]).abs().max() < 1e-6 for g in gains if g.numel() > 1)

    @cached_property
    def twin(self) -> nn.Module:
        """A copy on the CPU in float32 and eval mode, to be run on other inputs."""
        return stand_in(self.model)

    @torch.no_grad()
    def run(self, inputs: Any) -> Tensor | None:
        """The logits, or whatever the output's first tensor is."""
        args, kwargs = arguments(fitted(self.twin, inputs))
        return first_tensor(self.twin(*args, **kwargs))

    @torch.no_grad()
    def run_whole(self, inputs: Any) -> list[Tensor]:
        """What `run` gives, and losses beside it."""
        args, kwargs = arguments(fitted(self.twin, inputs))
        out = self.twin(*args, **kwargs)
        losses = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.ndim == 0]
        first = first_tensor(out)
        return losses if first is None else [first, *losses]

    @cached_property
    def time_first(self) -> bool:
        """Whether sequences stand as (time, batch, width), which torch.nn says by `batch_first=False`."""
        return any(getattr(module, "batch_first", True) is False for module in self.model.modules())

    @property
    def config(self) -> Any:
        return getattr(self.model, "config", None) if isinstance(self.model, PreTrainedModel) else None

    @cached_property
    def logits(self) -> int | None:
        """The value that is a distribution over a vocabulary or over classes, as a product with a weight gives it."""
        for at, value in self.trace.outputs.items():
            first = at == "0" and self.flow.product(value) is not None  # of (logits, loss), as in nanoGPT
            named = at == "logits" or ((at == "" or first) and self.takes_ids)
            if named and self.trace[value].ndim >= 2:
                return value
        return None

    @property
    def takes_ids(self) -> bool:
        return any(not self.trace[v].is_floating_point() for v in self.trace.inputs.values())

    @cached_property
    def head(self) -> str | None:
        """The name of the matrix that makes the logits."""
        if self.logits is None:
            return None
        product = self.flow.product(self.flow.root(self.logits))
        names = self.flow.weights(product) if product is not None else []
        return next((n for n in names if self.parameters[n].ndim >= 2), None)

    @cached_property
    def tables(self) -> list[str]:
        """Names of all looked-up tables."""
        operations = [o for o in self.trace.operations if o.name == "embedding"]
        return [name for o in operations if (name := self.flow.parameter(o.reads[0])) is not None]

    @cached_property
    def token_tables(self) -> list[str]:
        """Names of the tables that ids look up in."""
        ids = {v for at, v in self.trace.inputs.items() if not self.trace[v].is_floating_point() and "mask" not in at}
        looked = [o for o in self.trace.operations if o.name == "embedding" and len(o.reads) > 1]
        named = [(self.flow.parameter(o.reads[0]), self.trace.above([o.reads[1]])) for o in looked]
        return [name for name, above in named if name is not None and not ids.isdisjoint(above)]

    def head_scales(self, sublayer: FoundSublayer) -> Iterator[str]:
        """Names of parameters with one entry per head that scale what the last projection wrote (after W_O)."""
        heads = self.heads(sublayer)
        value = sublayer.branch
        while heads:
            norm = self.flow.norms.get(value)
            for operation in self.flow.chain(value):
                yield from (n for n in self.flow.weights(operation) if self.parameters[n].numel() == heads)
            value = self.flow.root(value)
            if norm is None and value not in self.flow.norms:
                return
            value = (norm or self.flow.norms[value]).origin

    def heads(self, sublayer: FoundSublayer) -> int:
        """How many heads an attention has; 0 where that is not to be seen."""
        if sublayer.attention is None:
            return 0
        shape = self.trace[sublayer.attention.reads[0]].shape
        return shape[1] if len(shape) == 4 else 0

    def maker(self, value: int) -> Operation:
        made = self.trace.made_by(value)
        assert made is not None
        return made

    def std(self, name: str) -> float:
        return self.parameters[name].float().std(unbiased=False).item()


def first_tensor(output: Any) -> Tensor | None:
    """The logits of an output, else the first tensor in it that is no loss."""
    if isinstance(output, Tensor):
        return output
    if (logits := getattr(output, "logits", None)) is not None:
        return logits
    parts = list(output.values()) if isinstance(output, Mapping) else list(output) if output is not None else []
    return next((t for part in parts if (t := first_tensor(part)) is not None and t.ndim), None)


def xavier(weight: Tensor) -> float:
    """sqrt(2 / (fan_in + fan_out))."""
    return math.sqrt(2 / (weight.shape[0] + weight.shape[1]))
