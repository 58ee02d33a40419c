"""The forward pass of any model as a list of operations that can be run again with some values changed.

    trace = record(model, inputs)
    trace.replay({u: torch.zeros_like(trace[u])}, [s])     # the branch u silenced: what does the sum s become?

Values are numbered in the order of their making. Nothing is asked of the model but that it runs: operations are seen
where torch dispatches them, below modules and functions.
"""

import copy
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

_VIEWS = frozenset((
    "view", "_unsafe_view", "reshape", "_reshape_alias", "transpose", "permute", "expand", "unsqueeze", "squeeze",
    "slice", "select", "t", "numpy_T", "movedim", "swapaxes", "flatten", "unflatten", "alias", "detach", "narrow",
    "diagonal", "expand_as", "view_as", "contiguous", "split", "split_with_sizes", "chunk", "unbind", "tensor_split",
))  # fmt: skip
LARGE = 50_000_000  # parameters beyond which a model is neither copied nor run whole more often than needed
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Value:
    """The place of a tensor among the arguments of an operation."""

    index: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """One call: `function(*args, **kwargs)` with `Value` in the places of tensors.

    Attributes:
        name: of the function, as "linear" or "add_".
        reads: the tensors among its arguments, as values.
        makes: the tensors among its results, in order.
        module: address of the module that was running.
        lines: (code, instruction, line) of the call in the model's code: the innermost one outside torch, and where
            that lies in an installed package the innermost one outside of all; empty of what torch does by itself.
    """

    function: OpOverload
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    module: str
    lines: tuple[tuple[CodeType, int, int], ...] = ()


@dataclass(eq=False)
class Trace:
    """Values and operations of one forward pass.

    Attributes:
        values: every tensor, as it was when it was made.
        operations: in the order of running.
        maker: value -> index of the operation that made it; inputs, parameters and constants have none.
        readers: value -> indices of the operations that read it.
        names, buffers: value -> the name of the parameter, or of the buffer, that it is.
        inputs: address among the model's inputs -> value, of tensors only.
        outputs: address among the model's outputs -> value, of tensors only.
        ran: addresses of the modules that were called.
        called: from which line each module was called last; see `Operation.lines`.
        ports: value -> (address, number) of a module that takes it as an argument of that number, or that gives it as
            the number -1 - i of what it returns; of modules called once.
        shares: whether the values of parameters lie in the memory of the model's own.
        itself: whether the model itself was run, since a copy computes with its parameters, or cannot be made.
    """

    values: list[Tensor] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    maker: dict[int, int] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    buffers: dict[int, str] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    called: dict[str, tuple[tuple[CodeType, int, int], ...]] = field(default_factory=dict)
    ports: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    shares: bool = False
    itself: bool = False

    def __getitem__(self, value: int) -> Tensor:
        return self.values[value]

    def made_by(self, value: int) -> Operation | None:
        at = self.maker.get(value)
        return None if at is None else self.operations[at]

    def read_by(self, value: int) -> list[Operation]:
        return [self.operations[at] for at in self.readers.get(value, ())]

    def below(self, values: Iterable[int]) -> set[int]:
        """The values, and all that were computed from them."""
        found = set(values)
        start = min((min(self.readers.get(v, [len(self.operations)])) for v in found), default=0)
        for operation in self.operations[start:]:
            if not found.isdisjoint(operation.reads):
                found.update(operation.makes)
        return found

    def between(self, starts: Iterable[int], ends: Iterable[int], *, numbers: bool = False) -> list[Operation]:
        """The operations by which `ends` were computed from `starts`, in order.

        Args:
            numbers: for a replay: leave out ids and masks that were computed of numbers, what only they lead to, and
                what only leads to another start.
        """
        given = frozenset(starts) if numbers else frozenset()
        found, needed = set(starts), set(ends)
        first = min((min(self.readers.get(v, [len(self.operations)])) for v in found), default=0)
        last = max((self.maker.get(v, -1) for v in needed), default=-1)
        below: list[Operation] = []
        for operation in self.operations[first : last + 1]:
            read = found.intersection(operation.reads)
            if read:
                decides = numbers and any(self.values[v].is_floating_point() for v in read)
                made = [v for v in operation.makes if not decides or not _is_discrete(self.values[v])]
                found.update(made)
                below += [operation] if made else []
        steps: list[Operation] = []
        for operation in reversed(below):
            if not needed.isdisjoint(operation.makes):
                steps.append(operation)
                needed.update(v for v in operation.reads if v in found and v not in given)
        return steps[::-1]

    def above(self, values: Iterable[int]) -> set[int]:
        """The values, and all that they were computed from, except through values without an entry."""
        found = set(values)
        todo = list(found)
        while todo:
            at = self.maker.get(todo.pop())
            for value in () if at is None else self.operations[at].reads:
                if value not in found and self.values[value].numel():
                    found.add(value)
                    todo.append(value)
        return found

    @torch.no_grad()
    def replay(
        self, changes: Mapping[int, Tensor | Callable[[], Tensor]], wanted: Sequence[int], *, double: bool = False
    ) -> list[Tensor]:
        """What the `wanted` values become where the values of `changes` are replaced, for all who read them.

        Runs only the operations between the two, and lets values go after their last reader. A wanted value that
        nothing changed is returned as recorded. What numbers decide by comparison stays as recorded: which experts a
        token is sent to, which entries are the largest.

        Args:
            changes: tensors, or functions that give one each time it is read.
            double: half precision and float32 become float64, where the model itself asks for them too.
        """
        steps = self.between(changes, wanted, numbers=True)
        between = {v for step in steps for v in step.makes if not _is_discrete(self.values[v]) or _of_ids(self, step)}
        between = between.difference(changes)
        last = {value: at for at, operation in enumerate(steps) for value in operation.reads}
        known: dict[int, Tensor] = {}
        changes = {v: c if callable(c) else _laid_as(c, self.values[v]) for v, c in changes.items()}

        def value(at: int) -> Tensor:
            if at in known:
                return known[at]
            changed = changes.get(at)
            if changed is None:
                return in_double(self.values[at]) if double else self.values[at]
            return changed() if callable(changed) else changed

        for at, operation in enumerate(steps):
            made = _run(operation, value, double)
            known.update((v, t) for v, t in zip(operation.makes, made, strict=True) if v in between)
            for read in operation.reads:
                if last[read] == at and read not in wanted:
                    known.pop(read, None)
        return [value(at) for at in wanted]


def _laid_as(given: Tensor, recorded: Tensor) -> Tensor:
    """The tensor as the recorded one lies in memory: what reads it may take a view that no other layout allows."""
    if given.shape != recorded.shape or given.stride() == recorded.stride() or given.is_sparse or _overlaps(recorded):
        return given
    return torch.empty_strided(recorded.shape, recorded.stride(), dtype=given.dtype, device=given.device).copy_(given)


def _overlaps(tensor: Tensor) -> bool:
    """Whether two entries may share memory, as those of an expanded tensor or of sliding windows."""
    axes = sorted((step, n) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    return any(not step for step, _ in axes) or any(a * n > b for (a, n), (b, _) in pairwise(axes))


def _of_ids(trace: Trace, operation: Operation) -> bool:
    """Whether an operation computes with ids and masks alone."""
    return all(_is_discrete(trace.values[v]) for v in operation.reads)


def _is_discrete(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def record(model: nn.Module, inputs: Any, *, in_half: bool = False, shared: bool = False) -> Trace:
    """Run `model` once on `inputs`, a mapping of keywords, a tuple of arguments or one tensor, and keep what happened.

    Works on a copy in float32 (`in_half` keeps half-precision weights as they are) and eval mode: the model and its
    caches stay as they are. A model that cannot be copied, or whose copy computes with the model's own parameters, as
    with a closure over `self`, runs itself, and what the run left behind is put back.

    Args:
        shared: the copy has the model's own parameters where they are float32, unless the model writes to them.
    """
    model = unwrapped(model)
    for sharing in (True, False) if shared else (False,):
        try:
            twin = stand_in(model, in_half=in_half, shared=sharing)
            trace = recorded(twin, inputs, _own(model) if sharing else frozenset())
        except ValueError:  # there are no values to compute with
            raise
        except Exception:
            continue
        if not _reads(trace, model, sharing):
            trace.shares = sharing
            return trace
    with undisturbed(model):
        trace = recorded(model.eval(), inputs)
    trace.itself = True
    return trace


def recorded(model: nn.Module, inputs: Any, kept: frozenset[int] = frozenset()) -> Trace:
    """One pass through the model itself, in the mode in which it is; see `record`."""
    recorder = _Recorder(model, kept)
    device = next((p.device for p in model.parameters()), "cpu")
    args, kwargs = arguments(fitted(model, inputs, device))
    recorder.enter({**{str(i): a for i, a in enumerate(args)}, **kwargs})
    with torch.inference_mode(), plain_operations(), _addresses(model, recorder), recorder:
        out = model(*args, **kwargs)
    recorder.leave(out)
    return recorder.trace


def _own(model: nn.Module) -> frozenset[int]:
    """Where the numbers of the parameters lie."""
    return frozenset(place for p in model.parameters() if p.numel() and (place := memory(p)) is not None)


def _reads(trace: Trace, model: nn.Module, sharing: bool) -> bool:
    """Whether a value of the trace lies in the memory of the model's own parameters; of a copy that shares it, one that
    is no parameter of the copy and was computed of none.
    """
    own = _own(model)
    known = trace.names.keys() | trace.maker.keys() if sharing else ()
    return any(memory(x) in own for v, x in enumerate(trace.values) if x.numel() and v not in known)


def anything(tensor: Tensor) -> bool:
    """Whether an entry is not 0; of a large one the first row mostly says so."""
    return bool(tensor[:1].any()) or bool(tensor.any()) if tensor.ndim else bool(tensor)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, out of torch.compile, DataParallel and DistributedDataParallel."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def is_large(model: nn.Module) -> bool:
    """Whether it has more parameters than are copied, or run through dozens of times."""
    return sum(p.numel() for p in model.parameters()) > LARGE


def memory(tensor: Tensor) -> int | None:
    """Where a tensor's numbers lie; None of a kind that has no memory of its own, as a sparse one."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return None


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Whatever runs inside: parameters, buffers, modes, attributes and random numbers are as before afterwards."""
    tensors_before = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
    held = [(module, dict(vars(module)), _containers(module)) for module in model.modules()]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        with torch.no_grad():
            for tensor, before in tensors_before:
                if not torch.equal(tensor, before):
                    tensor.copy_(before)
        for module, attributes, containers in held:
            vars(module).clear()
            vars(module).update(attributes)
            for name, (container, contents) in containers.items():
                if isinstance(container, list):
                    container[:] = contents
                else:
                    container.clear()
                    container.update(contents)
                vars(module)[name] = container


def _containers(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Lists, dicts and sets that a module holds, and what is in them: a cache is filled in place."""
    return {name: (part, copy.copy(part)) for name, part in vars(module).items() if type(part) in (list, dict, set)}


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a forward pass, from what stands for them."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def answer(output: Any) -> Tensor | None:
    """The logits of an output, else the first tensor of numbers in it that is no loss."""
    logits = field_of(output, "logits")
    others = (t for at, t in tensors(output) if at != "loss" and t.is_floating_point() and t.ndim)
    return next(others, None) if logits is None else logits


def field_of(output: Any, name: str) -> Tensor | None:
    part = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return part if isinstance(part, Tensor) else None


def tensors(tree: Any) -> Iterator[tuple[str, Tensor]]:
    """Addresses and tensors of nested mappings, sequences and objects such as a ModelOutput."""
    if isinstance(tree, Tensor):
        yield "", tree
        return
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, tuple | list):
        items = enumerate(tree)
    elif isinstance(tree, torch.distributions.Distribution | SimpleNamespace) or is_dataclass(tree):
        items = vars(tree).items() if hasattr(tree, "__dict__") else ()
    for key, part in items:
        for below, tensor in tensors(part):
            yield f"{key}.{below}" if below else str(key), tensor


def fitted(model: nn.Module, inputs: Any, device: torch.device | str = "cpu") -> Any:
    """The inputs on a device, numbers in the model's precision."""
    floating = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)

    def fit(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        return part.to(device, floating) if part.is_floating_point() else part.to(device)

    return tree_map(fit, inputs)


def stand_in(model: nn.Module, *, in_half: bool = False, shared: bool = False) -> nn.Module:
    """A copy in eval mode, half-precision weights in float32 unless they are to stay.

    Args:
        shared: its parameters use the memory of the model's where they are float32 and on the CPU.

    Raises:
        ValueError: the model is on the meta device, where nothing has a value.
    """
    if any(t.is_meta for t in (*model.parameters(), *model.buffers())):
        raise ValueError("parameters or buffers are on the meta device and hold no values; build it on the CPU")
    if any(hasattr(p, "full_tensor") for p in model.parameters()):
        raise ValueError("parameters are shards of FSDP2; check the model before fully_shard, or a copy loaded whole")
    memo = _kept_activations(model)
    if shared:
        memo |= {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in model.parameters()}
    twin = copy.deepcopy(model, memo).eval().cpu()
    half = not in_half and any(p.dtype in (torch.float16, torch.bfloat16) for p in twin.parameters())
    return twin.float() if half else twin


def _kept_activations(model: nn.Module) -> dict[int, Any]:
    """What stands for activations that a forward pass left in a module, as weights of attention to be drawn later:
    with a graph behind them they cannot be copied.
    """
    left = (part for module in model.modules() for part in tree_leaves(list(vars(module).values())))
    return {id(t): t.detach() for t in left if isinstance(t, Tensor) and not t.is_leaf}


@dataclass(frozen=True, eq=False)
class _View:
    """How a tensor was cut out of the tensor that owns its memory: the operations, each on what the one before gave."""

    owner: Tensor
    steps: tuple[tuple[OpOverload, tuple[Any, ...], dict[str, Any], int], ...]

    def of(self, whole: Tensor) -> Tensor:
        for func, args, kwargs, which in self.steps:
            whole = _which(func(whole, *args, **kwargs), which)
        return whole


class _Recorder(TorchDispatchMode):
    """Writes down operations as they are dispatched.

    What is written into a part of a tensor is written into the whole and its other parts too, as functional
    operations: x[:, 1:] += u becomes a new x in which some entries were replaced.
    """

    def __init__(self, model: nn.Module, kept: frozenset[int]) -> None:
        super().__init__()
        self.trace = Trace()
        self._kept = kept  # memory that must stay as it is
        self.running: list[str] = [""]
        self._again: set[str] = set()  # modules that were called several times
        self._known: dict[int, int] = {}  # id of a tensor -> its newest value
        self._alive: list[Tensor] = []  # ids stay theirs as long as the tensors live
        self._views: dict[int, _View] = {}  # id of a tensor that has no memory of its own
        self._writes: dict[int, int] = {}  # id of an owner -> how often it was written to
        self._current: dict[int, int] = {}  # id of a view -> that number when its value was noted
        for name, tensor in model.named_parameters():
            self.trace.names[self._add(tensor)] = name
        for name, buffer in model.named_buffers():
            self.trace.buffers[self._add(buffer)] = name

    def enter(self, inputs: Any) -> None:
        self.trace.inputs = {at: self._value(t) for at, t in tensors(inputs)}

    def enter_module(self, address: str, args: tuple[Any, ...]) -> None:
        self.running.append(address)
        if address in self.trace.ran:  # another call: which of them is meant, no address can say
            self._again.add(address)
        self.trace.ran.add(address)
        self.trace.called[address] = _lines()
        self._note_ports(address, args, range(len(args)))

    def leave_module(self, address: str, output: Any) -> None:
        self.running.pop()
        parts = output if isinstance(output, tuple) else (output,)
        self._note_ports(address, parts, range(-1, -1 - len(parts), -1))

    def _note_ports(self, address: str, parts: Iterable[Any], numbers: Iterable[int]) -> None:
        for part, number in zip(parts, numbers, strict=True):
            if isinstance(part, Tensor) and (value := self._known.get(id(part))) is not None:
                self.trace.ports.setdefault(value, []).append((address, number))

    def leave(self, output: Any) -> None:
        self.trace.outputs = {at: self._value(t) for at, t in tensors(output)}
        ports = self.trace.ports
        self.trace.ports = {v: [p for p in found if p[0] not in self._again] for v, found in ports.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat, spec = tree_flatten((args, kwargs))
        places = [Value(self._value(t)) if isinstance(t, Tensor) else t for t in flat]
        writes = func._schema.is_mutable and func is not torch.ops.aten.detach_.default
        written = _written(func, args, kwargs) if writes else []
        if written:
            if any(memory(t) in self._kept for t in written):
                raise RuntimeError("the forward pass writes to a parameter")
            self._keep_what_will_change(written)
        out = func(*args, **kwargs)
        if not func._schema.is_mutable and any(out is t for t in flat):  # as x.to(its own dtype)
            return out
        kept_args, kept_kwargs = tree_unflatten(places, spec)
        results = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor)]
        self._note(func, kept_args, kept_kwargs, results)
        if written:
            for tensor in written:
                self._write_back(tensor)
        else:
            for which, result in enumerate(results):
                self._note_view(func, args, kwargs, result, which)
        return out

    def _note(self, func: Any, args: Any, kwargs: Any, results: Sequence[Tensor]) -> tuple[int, ...]:
        makes = tuple(self._add(t) for t in results)
        places = [p for p in tree_flatten((args, kwargs))[0] if isinstance(p, Value)]
        reads = tuple(dict.fromkeys(p.index for p in places))
        name = func._schema.name.split("::")[-1]
        reads = reads[:1] if name.endswith("_as") else reads  # of the other a shape or a dtype
        reads = () if name.endswith("_like") or name.startswith("new_") else reads  # these whatever it holds
        at = len(self.trace.operations)
        for value in reads:
            self.trace.readers.setdefault(value, []).append(at)
        self.trace.maker.update(dict.fromkeys(makes, at))
        self.trace.operations.append(
            Operation(
                function=func,
                name=name,
                args=tuple(args),
                kwargs=kwargs,
                reads=reads,
                makes=makes,
                module=self.running[-1],
                lines=_lines(),
            )
        )
        return makes

    def _value(self, tensor: Tensor) -> int:
        at = self._known.get(id(tensor))
        if at is None:
            return self._add(tensor)
        view = self._views.get(id(tensor))
        if view is None or self._current[id(tensor)] == self._writes.get(id(view.owner), 0):
            return at
        return self._cut(view, tensor)

    def _add(self, tensor: Tensor) -> int:
        self._known[id(tensor)] = len(self.trace.values)
        self._alive.append(tensor)
        self.trace.values.append(tensor)
        return len(self.trace.values) - 1

    def _note_view(self, func: Any, args: Any, kwargs: Any, result: Tensor, which: int) -> None:
        """Remember a tensor that was cut out of another one, by an operation with no other tensor in it."""
        whole = args[0] if args and isinstance(args[0], Tensor) else None
        if whole is None or whole is result:
            return
        others = [t for t in tree_leaves((args[1:], kwargs)) if isinstance(t, Tensor)]
        place = memory(result)
        if others or place is None or place != memory(whole) or not _is_view(func):
            return
        before = self._views.get(id(whole))
        step = (func, tuple(args[1:]), dict(kwargs), which)
        owner, steps = (before.owner, before.steps) if before else (whole, ())
        self._views[id(result)] = _View(owner, (*steps, step))
        self._current[id(result)] = self._writes.get(id(owner), 0)

    def _cut(self, view: _View, tensor: Tensor) -> int:
        """The value of a part after the whole was written to."""
        at = self._known[id(view.owner)]
        part: Any = view.owner
        for func, args, kwargs, which in view.steps:
            made = func(part, *args, **kwargs)
            parts = [made] if isinstance(made, Tensor) else list(made)
            at = self._note(func, (Value(at), *args), kwargs, parts)[which]
            part = parts[which]
        self._known[id(tensor)] = at
        self._current[id(tensor)] = self._writes.get(id(view.owner), 0)
        return at

    def _write_back(self, tensor: Tensor) -> None:
        """The value of the whole after a part of it was written to: its entries with those of the part in place."""
        view = self._views.get(id(tensor))
        owner = tensor if view is None else view.owner
        self._writes[id(owner)] = self._writes.get(id(owner), 0) + 1
        if view is None:
            return
        self._current[id(tensor)] = self._writes[id(owner)]
        entries = view.of(torch.arange(owner.numel(), device=owner.device).reshape(owner.shape))
        aten: Any = torch.ops.aten
        now = owner.clone()
        flat, part = (Value(self._known[id(t)]) for t in (owner, tensor))
        (rows,) = self._note(aten.reshape.default, (flat, [-1]), {}, [now.reshape(-1)])
        (new,) = self._note(aten.reshape.default, (part, [-1]), {}, [tensor.clone().reshape(-1)])
        index = Value(self._add(entries.reshape(-1)))
        (whole,) = self._note(
            aten.index_copy.default, (Value(rows), 0, index, Value(new)), {}, [now.clone().reshape(-1)]
        )
        (at,) = self._note(aten.reshape.default, (Value(whole), list(owner.shape)), {}, [now])
        self._known[id(owner)] = at

    def _keep_what_will_change(self, written: Sequence[Tensor]) -> None:
        """A copy of every recorded value that shares memory with a tensor that is written to."""
        places = {memory(t) for t in written} - {None}
        for at, value in enumerate(self.trace.values):
            if memory(value) in places:
                self.trace.values[at] = value.clone()


_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
INSTALLED = tuple({sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")})


def _lines() -> tuple[tuple[CodeType, int, int], ...]:
    """See `Operation.lines`."""
    frame: FrameType | None = sys._getframe(2)
    inner: tuple[CodeType, int, int] | None = None
    while frame is not None and frame.f_code is not recorded.__code__:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _HERE, "<")):
            here = (frame.f_code, frame.f_lasti, frame.f_lineno)
            if not file.startswith(INSTALLED):
                return (here,) if inner is None else (inner, here)
            inner = inner or here
        frame = frame.f_back
    return () if inner is None else (inner,)


def _which(made: Any, which: int) -> Tensor:
    part: Tensor = made if isinstance(made, Tensor) else made[which]
    return part


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an operation writes to."""
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    named = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    parts = [given.get(name) for name in named]
    return [t for part in parts for t in (part if isinstance(part, list | tuple) else [part]) if isinstance(t, Tensor)]


def _is_view(func: Any) -> bool:
    """Whether an operation returns a part or a layout of its argument, in the same memory."""
    name = func._schema.name.split("::")[-1]
    return name in _VIEWS


def _run(operation: Operation, value: Callable[[int], Tensor], double: bool) -> list[Tensor]:
    """The results of an operation on other values; what it writes to is copied first."""

    def fill(place: Any) -> Any:
        if not isinstance(place, Value):
            return torch.float64 if double and place in _FLOATS else place
        tensor = value(place.index)
        return tensor.clone() if operation.function._schema.is_mutable else tensor

    args = [filled(part, fill) for part in operation.args]
    kwargs = {name: filled(part, fill) for name, part in operation.kwargs.items()}
    if double and operation.name == "_grouped_mm" and args[2] is not None:  # torch has it in float32 and below only
        return [_grouped_product(*args[:3])]
    made = operation.function(*args, **kwargs)
    return [made] if isinstance(made, Tensor) else [t for t in tree_leaves(made) if isinstance(t, Tensor)]


def filled(part: Any, fill: Callable[[Any], Any]) -> Any:
    """An argument of an operation, which is a list at most: torch's own walk through trees takes ten times as long."""
    return [filled(one, fill) for one in part] if isinstance(part, list | tuple) else fill(part)


def _grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Rows up to each end times the matrix of their group, as in a mixture of experts."""
    made = rows.new_zeros(rows.shape[0], matrices.shape[-1])
    for (start, end), matrix in zip(pairwise([0, *ends.tolist()]), matrices, strict=False):
        made[start:end] = rows[start:end] @ matrix
    return made


def in_double(x: Tensor) -> Tensor:
    """Numbers of lower precision in float64, all else as it is."""
    return x.double() if x.dtype in _FLOATS else x


@contextmanager
def plain_operations() -> Iterator[None]:
    """torch.nn's fused encoder layer off: one opaque operation in which there is nothing to see."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@contextmanager
def _addresses(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Tells the recorder which module is running."""
    with ExitStack() as hooks:
        for address, module in model.named_modules():
            before = module.register_forward_pre_hook(lambda _, args, a=address: recorder.enter_module(a, args))
            after = module.register_forward_hook(lambda _, args, out, a=address: recorder.leave_module(a, out))
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        yield
