"""The model that is checked, and the questions that several rules ask about it."""

import math
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map
from transformers import PretrainedConfig, PreTrainedModel

from isograd.lint.attention.measured import MeasuredAttention, measured_attentions
from isograd.lint.intent import Intents, says_time_first
from isograd.trace.anatomy import Anatomy, TracedStack
from isograd.trace.attention import FUSED, MASKED
from isograd.trace.dataflow import LAYOUT, SUMS, Dataflow, bare
from isograd.trace.record import (
    Operation,
    Trace,
    answer,
    anything,
    arguments,
    fitted,
    is_large,
    record,
    stand_in,
    tensors,
)
from isograd.trace.reduced import few_layers

SAMPLE = 250_000  # entries whose standard deviation is known to 0.2 %


@dataclass(eq=False)
class CheckedModel:
    """A model, inputs that it runs on, and its anatomy.

    Attributes:
        lr, warmup: the peak learning rate and the warm-up steps that it is to be trained with, where known.
        optimizer: the one that is to train it, where given.
        intents: what the model is meant to do, as far as somebody says so.
        loss: of the output and the batch, where given.
        batch: what the loss is given as such; the inputs where None.
        reported: codes found so far: a consequence is not reported beside its cause.
    """

    model: nn.Module
    inputs: Any
    anatomy: Anatomy
    lr: float | None = None
    warmup: int | None = None
    optimizer: Any = None
    intents: Intents = field(default_factory=Intents)
    loss: Any = None
    batch: Any = None
    reported: set[str] = field(default_factory=set)
    _stds: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.inputs = tree_map(
            lambda part: part.cpu() if isinstance(part, Tensor) else part, self.inputs
        )  # as the copy

    @cached_property
    def large(self) -> bool:
        """Whether it has more parameters than are run through dozens of times."""
        return is_large(self.model)

    @property
    def trace(self) -> Trace:
        return self.anatomy.trace

    @property
    def dataflow(self) -> Dataflow:
        return self.anatomy.dataflow

    @cached_property
    def loss_trace(self) -> Trace | None:
        """The trace with a loss at its end: the model's own, or that of the loss that was given; None where there is
        none, or where the model computes otherwise with it.
        """
        if self.loss is None:
            return self.trace
        try:
            alone = self.inputs[0] if isinstance(self.inputs, tuple) and len(self.inputs) == 1 else self.inputs
            trace = with_loss(self.model, self.loss, self.inputs, alone if self.batch is None else self.batch)
        except Exception:  # a loss of another batch than the one that was guessed
            return self.trace
        same = all(a.makes == b.makes for a, b in zip(self.trace.operations, trace.operations, strict=False))
        return trace if same else None

    @cached_property
    def attentions(self) -> list[MeasuredAttention]:
        """Of all stacks, in the order of running."""
        return measured_attentions(self.anatomy)

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """By name, as the model holds them; a tied one under its first name."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    @cached_property
    def norm_weights(self) -> set[str]:
        """Names of the weights of all norms."""
        return {norm.weight for norm in self.dataflow.norms.values() if norm.weight}

    @cached_property
    def applied(self) -> set[str]:
        """Names of matrices that a product reads as they are, through a change of layout at most; not their exp."""
        direct = dict(self.trace.names)
        for operation in self.trace.operations:
            if bare(operation) in LAYOUT and operation.reads and operation.reads[0] in direct:
                direct |= dict.fromkeys(operation.makes, direct[operation.reads[0]])
        products = (o for o in self.trace.operations if self.dataflow.is_product(o))
        return {direct[v] for o in products for v in o.reads if v in direct}

    @cached_property
    def coefficients(self) -> set[str]:
        """Names of trained coefficients: vectors and numbers, other than norm weights, that multiply activations."""
        products = [
            o for o in self.trace.operations if bare(o) in ("mul", "div", "addcmul", "lerp") and self.dataflow.data(o)
        ]
        names = {name for operation in products for name in self.dataflow.weights(operation)}
        return {name for name in names if self.parameters[name].squeeze().ndim <= 1} - self.norm_weights

    @cached_property
    def routed(self) -> bool:
        """Whether scores choose what is run: experts that no token was sent to are read another time."""
        chosen = (o for o in self.trace.operations if bare(o) in ("topk", "argmax") and o.reads)
        return any(self.trace[o.reads[0]].is_floating_point() for o in chosen)

    @cached_property
    def at_init(self) -> bool:
        """Whether norm weights are even: training leaves none of them so. Weights that are NaN were trained."""
        if "not-finite" in self.reported:
            return False
        weights = [self.parameters[name].float() for name in self.norm_weights if name in self.parameters]
        even = [bool((w - w.flatten()[0]).abs().max() < 1e-6) for w in weights if w.numel() > 1]
        return 2 * sum(even) >= len(even)  # a few that are not were never initialized

    @cached_property
    def twin(self) -> nn.Module:
        """A copy on the CPU in float32 and eval mode; of a large model with its own parameters, which nothing writes
        to in place.
        """
        return self.model if self.trace.itself else stand_in(self.model, shared=self.trace.shares)

    @cached_property
    def few(self) -> nn.Module:
        """The twin with its zero matrices opened, to be run on other inputs; of a large model with its parameters,
        one layer of each kind and those like it left out.
        """
        if not self.large:
            shown = opened(self.model)
            return self.twin if shown is self.model else stand_in(shown)
        few = stand_in(self.twin, shared=True)
        few_layers(few, self.trace, self.inputs)
        return few

    @torch.no_grad()
    def run(self, inputs: Any, seed: int = 0) -> tuple[Tensor | None, list[Tensor]]:
        """The logits or the output's first tensor, and the losses beside it; what is drawn, is drawn from one seed."""
        output = self._made(inputs, seed)
        return answer(output), [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.ndim == 0]

    @torch.no_grad()
    def outputs(self, inputs: Any) -> list[Tensor]:
        """Every tensor of the output."""
        return [t for _, t in tensors(self._made(inputs))]

    def _made(self, inputs: Any, seed: int = 0) -> Any:
        args, kwargs = arguments(fitted(self.few, inputs))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU's alone, which is put back
            return self.few(*args, **kwargs)

    @cached_property
    def reaching(self) -> set[int]:
        """Every value that an output was computed from."""
        return self.trace.above(self.trace.outputs.values())

    @cached_property
    def recurs(self) -> bool:
        """Whether most matrices stand in several sublayers: layers that are run in a loop."""
        names = [n for s in self.anatomy.sublayers for n in s.roles]
        return 2 * len(set(names)) <= len(names) + 1

    @cached_property
    def named_time_first(self) -> bool | None:
        """Whether the user, or the names in its code, say that axes are (time, batch); None where neither does."""
        said = self.intents.says("time-first")
        return said if said is not None else says_time_first(self.model)

    @cached_property
    def time_first(self) -> bool:
        """Whether sequences stand as (time, batch): by intent, by names, by equal ids that differ along axis 0, by
        torch.nn.
        """
        if self.named_time_first is not None:
            return self.named_time_first
        if self.rows_of_outputs is not None:
            return self.rows_of_outputs == 1
        if self.takes_ids:
            return self.places_vary == 0 and not any(stack.time == 1 for stack in self.anatomy.stacks)
        by_torch = any(getattr(module, "batch_first", True) is False for module in self.model.modules())
        return by_torch and not self._rows_apart

    @property
    def _rows_apart(self) -> bool:
        """Whether outputs stay in all rows but the one whose input is changed: then axis 0 is the batch."""
        parts = self.inputs if isinstance(self.inputs, dict) else dict(enumerate(self.inputs))
        name = next((n for n, x in parts.items() if isinstance(x, Tensor) and x.ndim > 2), None)
        if name is None or not parts[name].is_floating_point():
            return False
        other = parts[name].clone()
        other[0] = 2 * other[0] + 1
        turned = {**parts, name: other}
        made = [self.run(x if isinstance(self.inputs, dict) else tuple(x.values()))[0] for x in (parts, turned)]
        if made[0] is None or made[1] is None or made[0].shape[:1] != other.shape[:1]:
            return False
        moved = (made[1] - made[0]).abs().flatten(1).amax(1)
        return bool(moved[0] > 0 and moved[1:].max() <= 1e-6 * made[0].abs().max())

    @property
    def rows_of_outputs(self) -> int | None:
        """The axis of the first sequences given that is as long as one number for each of them, given or returned."""
        every = [self.trace[v] for v in self.trace.inputs.values()]
        given = next((x for x in every if x.ndim in (2, 3)), None)
        several = [x.shape[:2] for x in every if x.ndim >= 2]
        if len({a for a, _ in several}) == 1 < len({b for _, b in several}):  # as long in front, and not behind
            return 0
        lengths = {len(x) for x in every if x.ndim == 1}
        if given is not None and given.shape[0] != given.shape[1] and lengths & {*given.shape[:2]}:
            return [*given.shape[:2]].index((lengths & {*given.shape[:2]}).pop())
        made = next((self.trace[v] for v in self.trace.outputs.values() if self.trace[v].ndim), None)
        if given is None or made is None or given.shape[0] == given.shape[1]:
            return None
        if made.ndim > 2 and made.shape[1] in given.shape[:2]:  # one for each position
            return None
        if made.shape == given.shape[:2]:  # a number for each position
            return None
        return next((axis for axis in (0, 1) if made.shape[0] == given.shape[axis]), None)

    @cached_property
    def token_stacks(self) -> list[TracedStack]:
        """Those that begin with vectors that given ids look up; all where none does."""
        below = self.trace.below(self.looked_up)
        return [s for s in self.anatomy.stacks if s.first in below] or self.anatomy.stacks

    @cached_property
    def looked_up(self) -> list[int]:
        """What tables give for the ids of the inputs; else for any."""
        given = set(self.trace.inputs.values())
        lookups = self.dataflow.lookups
        return [o.makes[0] for o in lookups if given & self.trace.above(o.reads[1:])] or [o.makes[0] for o in lookups]

    @cached_property
    def places_vary(self) -> int | None:
        """The axis along which equal tokens give unequal vectors where the first stack begins."""
        if not self.token_stacks or not self.looked_up:
            return None
        looked_up, first = max(self.looked_up, key=lambda v: self.trace[v].ndim), self.token_stacks[0].first
        x = self.trace[looked_up]
        if x.ndim != 3 or self.trace[first].shape[:2] != x.shape[:2]:
            return None
        begun = self.trace.replay({looked_up: x[:1, :1].expand_as(x).clone()}, [first])[0]
        size = begun.abs().max() * 1e-5
        return next((axis for axis in (1, 0) if (begun - begun.narrow(axis, 0, 1)).abs().max() > size), None)

    @property
    def config(self) -> Any:
        return getattr(self.model, "config", None) if isinstance(self.model, PreTrainedModel) else None

    def setting(self, name: str) -> Any:
        """Of the configuration, or the first of its parts that has it."""
        todo = [self.config]
        for config in todo:
            if (value := getattr(config, name, None)) is not None:
                return value
            todo += [part for part in vars(config).values() if isinstance(part, PretrainedConfig)] if config else []
        return None

    @cached_property
    def constant_weights(self) -> set[int]:
        """What attentions to a single key give, or softmaxes over one entry: nothing of queries, keys and scores."""
        return {o.makes[0] for o in self.trace.operations if o.makes and self._sees_one(o)}

    def _sees_one(self, operation: Operation) -> bool:
        """Whether all other keys are masked, or there are none."""
        if bare(operation) in ("softmax", "_softmax"):
            scores, weights = self.trace[operation.reads[0]], self.trace[operation.makes[0]]
            shown = (weights == 1) | ((weights == 0) & (scores < MASKED))
            return bool(scores.ndim) and (weights.shape[-1] == 1 or bool(shown.all()))
        if FUSED not in operation.name:
            return False
        masks = [self.trace[v] for v in operation.reads[3:4]]
        seen = [mask if mask.dtype == torch.bool else mask > MASKED for mask in masks]
        return self.trace[operation.reads[1]].shape[-2] == 1 or any(bool((s.sum(-1) == 1).all()) for s in seen)

    @cached_property
    def logits(self) -> int | None:
        """The value that is a distribution over a vocabulary or over classes, as a product with a weight gives it."""
        for at, value in self.trace.outputs.items():
            first = at == "0" and self.dataflow.product(value) is not None  # of (logits, loss), as in nanoGPT
            named = at == "logits" or ((at == "" or first) and self.takes_ids)
            if named and self.trace[value].ndim >= 2:
                return value
        return None

    @property
    def takes_ids(self) -> bool:
        """Whether integers come in; a mask of booleans is none."""
        given = (self.trace[v] for v in self.trace.inputs.values())
        return any(not x.is_floating_point() and x.dtype != torch.bool for x in given)

    @cached_property
    def head(self) -> str | None:
        """The name of the matrix that makes the logits."""
        if self.logits is None:
            return None
        product = self.dataflow.product(self.dataflow.root(self.logits))
        names = self.dataflow.weights(product) if product is not None else []
        return next((n for n in names if self.parameters[n].ndim >= 2), None)

    @cached_property
    def tables(self) -> dict[str, bool]:
        """Names of all looked-up tables -> whether the model's ids look up in them."""
        ids = {v for at, v in self.trace.inputs.items() if not self.trace[v].is_floating_point() and "mask" not in at}
        tables: dict[str, bool] = {}
        for operation in self.dataflow.lookups:
            if (name := self.dataflow.parameter(operation.reads[0])) is not None:
                by_ids = not ids.isdisjoint(self.trace.above(operation.reads[1:]))
                tables[name] = tables.get(name, False) or by_ids
        return tables

    @cached_property
    def vocabularies(self) -> set[int]:
        """How many rows the tables have in which given ids look up: as many classes are tokens."""
        return {len(self.parameters[name]) for name, by_ids in self.tables.items() if by_ids}

    @cached_property
    def idle_writers(self) -> set[str]:
        """W_O and W_2 of layers in which both are zero: new layers of a deeper model, which begin as the identity."""
        attention, feedforward = (self.by_role.get(role, []) for role in ("attn_out", "ffn_out"))
        if len(attention) != len(feedforward):
            return set()
        layers = zip(attention, feedforward, strict=True)
        return {name for layer in layers if not any(self.parameters[n].any() for n in layer) for name in layer}

    @cached_property
    def adapters(self) -> set[str]:
        """Names of the last matrices of low-rank adapters, B of W x + B A x: they begin at 0."""
        flow, found = self.dataflow, set[str]()
        for operation in self.trace.operations:
            terms = [flow.product(v) for v in flow.data(operation)] if bare(operation) in SUMS else []
            products = [p for p in terms if p is not None]
            for last in products:
                first = flow.product(flow.data(last)[0])
                if first is not None:
                    read = flow.root(flow.data(first)[0])
                    beside = any(flow.root(flow.data(p)[0]) == read for p in products if p is not last)
                    found.update(flow.weights(last) if beside else ())
        return found

    @cached_property
    def by_role(self) -> dict[str, list[str]]:
        """Role -> names of the matrices of all stacks that have it."""
        found: dict[str, list[str]] = {}
        for sublayer in self.anatomy.sublayers:
            for name, role in sublayer.roles.items():
                found.setdefault(role, []).append(name)
        return {role: list(dict.fromkeys(names)) for role, names in found.items()}

    def std(self, name: str) -> float:
        """The standard deviation of a parameter; of one with millions of entries, of rows evenly among them."""
        if name not in self._stds:
            weight = self.parameters[name]
            self._stds[name] = sample(weight).float().std(unbiased=False).item()
        return self._stds[name]


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module, loss: Any, batch: Any) -> None:
        super().__init__()
        self.model, self.loss, self.batch = model, loss, batch

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.loss(self.model(*args, **kwargs), self.batch)


def with_loss(model: nn.Module, loss: Any, inputs: Any, batch: Any) -> Trace:
    """The trace of a model and of a loss of its output and the batch; its only output is the loss."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says of a loss is looked for
        trace = record(_WithLoss(model, loss, batch), inputs)
    trace.names = {value: name.removeprefix("model.") for value, name in trace.names.items()}
    return trace


def opened(model: nn.Module) -> nn.Module:
    """A copy in which matrices of zeros are drawn from N(0, 0.02^2): what a gate, or a last projection, of zeros
    hides shows where it is a little open. The model itself where there is none, or where it is too large for a copy.
    """
    if is_large(model):
        return model
    empty = [n for n, p in model.named_parameters() if p.ndim >= 2 and p.numel() and not anything(p.detach())]
    if not empty or len(empty) == sum(p.ndim >= 2 for p in model.parameters()):
        return model
    try:
        copied = stand_in(model, in_half=True)
    except Exception:  # what cannot be copied is looked at as it is
        return model
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name in empty:
            parameter = copied.get_parameter(name)
            parameter.copy_(0.02 * torch.randn(parameter.shape, generator=draw))
    return copied


def sample(weight: Tensor) -> Tensor:
    """Rows evenly among those of a large matrix, about `SAMPLE` entries; a smaller one whole."""
    return weight[:: max(1, min(len(weight) // 64, weight.numel() // SAMPLE))] if weight.ndim else weight


def xavier(weight: Tensor) -> float:
    """sqrt(2 / (fan_in + fan_out))."""
    return math.sqrt(2 / (weight.shape[0] + weight.shape[1]))


def is_quantized(model: nn.Module) -> bool:
    """Whether matrices are stored in whole numbers: by modules of torch.ao, bitsandbytes or transformers, or as tensors
    that hold others, as torchao's do.
    """
    if any(is_traceable_wrapper_subclass(p) for p in model.parameters()):
        return True
    homes = ("torch.ao.", "torchao.", "bitsandbytes.", "optimum.quanto", "transformers.integrations")
    whole = any(type(m).__module__.startswith(homes) and "quant" in type(m).__module__ for m in model.modules())
    return whole or bool(getattr(model, "is_quantized", False))
