"""The state of everything that can be reached from some objects, put back bit for bit.

    with kept(model, optimizer, step):
        step(batch)              # may train, count, draw random numbers, or set attributes

Reached are attributes, items, closures, and the globals that functions name. Tensors and arrays get their old values
where they lie (arrays that lie in a file stay as they are); containers and objects get their old contents; all random
generators go back. An iterator that has begun cannot go back, and is said.
"""

import array
import collections
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import BuiltinFunctionType, CellType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

MANY = 4096  # entries of a list from which on plain ones are not looked at singly
MOST = 500_000  # objects
_PLAIN = (str, bytes, int, float, complex, bool, type(None), range, slice, torch.dtype, torch.device, torch.Size)
_LEFT = (type, ModuleType, BuiltinFunctionType)


class Kept:
    """A state of what is reached from `roots`.

    Attributes:
        lost: what cannot be put back, by the name of its type.
    """

    def __init__(self, *roots: Any) -> None:
        self.lost: set[str] = set()
        self.also: Any = None  # called after a restore
        self._tensors: list[tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, bool]] = []
        self._undo: list[tuple[Any, ...]] = []
        self._known: dict[int, Any] = {}
        self._random = (random.getstate(), np.random.get_state(), torch.get_rng_state())
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
        self._torch = torch.get_default_dtype(), torch.get_deterministic_debug_mode(), torch.is_grad_enabled()
        waiting: collections.deque[Any] = collections.deque(roots)
        while waiting and len(self._known) < MOST:
            one = waiting.popleft()
            if isinstance(one, (*_PLAIN, *_LEFT)) or id(one) in self._known:
                continue
            self._known[id(one)] = one
            with suppress(Exception):  # an object that does not want to be looked at
                waiting.extend(self._keep(one))

    def _keep(self, one: Any) -> Iterator[Any]:
        """Remember its contents; what it holds."""
        if isinstance(one, Tensor):
            return self._tensor(one)
        if isinstance(one, np.ndarray):
            if one.flags.writeable and not isinstance(one, np.memmap):  # a corpus in a file may be larger than memory
                self._undo.append((one.__setitem__, ..., one.copy()))
            return iter(())
        if isinstance(one, bytearray | array.array):
            self._undo.append((one.__setitem__, slice(None), one[:]))
            return iter(())
        if isinstance(one, torch.Generator):
            self._undo.append((one.set_state, one.get_state()))
            return iter(())
        if isinstance(one, random.Random | np.random.RandomState | np.random.Generator):
            return self._generator(one)
        if isinstance(one, GeneratorType) or (hasattr(one, "__next__") and not hasattr(one, "__dict__")):
            self.lost.add(getattr(one, "__qualname__", type(one).__name__))
            return iter(())
        if hasattr(one, "readable"):  # a file
            return iter(())
        if isinstance(one, dict | list | set | collections.deque | tuple | frozenset):
            return self._container(one)
        if isinstance(one, CellType):
            held = one.cell_contents  # an empty one raises
            self._undo.append((setattr, one, "cell_contents", held))
            return iter([held])
        if isinstance(one, FunctionType):
            return self._function(one)
        if isinstance(one, MethodType):
            return iter([one.__self__, one.__func__])
        return self._object(one)

    def _tensor(self, one: Tensor) -> Iterator[Any]:
        if one.is_meta or not one.is_leaf:
            return iter(())
        grad = one.grad
        kept = (one, one.data, one.detach().clone(), grad, None if grad is None else grad.detach().clone())
        self._tensors.append((*kept, one.requires_grad))
        return iter([vars(one)])

    def _generator(self, one: Any) -> Iterator[Any]:
        if isinstance(one, np.random.Generator):
            bits = one.bit_generator
            self._undo.append((setattr, bits, "state", bits.state))
        elif isinstance(one, np.random.RandomState):
            self._undo.append((one.set_state, one.get_state()))
        else:
            self._undo.append((one.setstate, one.getstate()))
        return iter(())

    def _container(self, one: Any) -> Iterator[Any]:
        if isinstance(one, dict):
            self._undo.append((_fill, one, dict.copy(one) if type(one) is dict else dict(one.items())))
            inner: list[Any] = [*one.values()]
        else:
            inner = list(one)
            if not isinstance(one, tuple | frozenset):
                self._undo.append((_fill, one, list(one)))
        if len(inner) > MANY and isinstance(inner[0], _PLAIN):
            return iter(())
        return iter(inner)

    def _function(self, one: FunctionType) -> Iterator[Any]:
        if "site-packages" in (one.__code__.co_filename or ""):
            return iter(one.__closure__ or ())
        found: list[Any] = [*(one.__closure__ or ()), *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        found.append(one.__dict__)  # a counter that is an attribute of the function
        for name in one.__code__.co_names:
            value = one.__globals__.get(name)
            if name in one.__globals__ and not isinstance(value, _LEFT):
                self._undo.append((one.__globals__.__setitem__, name, value))
                found.append(value)
            elif name not in one.__globals__:
                self._undo.append((one.__globals__.pop, name, None))
        return iter(found)

    def _object(self, one: Any) -> Iterator[Any]:
        found: list[Any] = []
        if hasattr(one, "__dict__"):
            found.append(one.__dict__)
        if hasattr(one, "func") and hasattr(one, "keywords"):  # a partial function
            found += [one.func, one.args, one.keywords]
        for kind in type(one).__mro__:
            names = kind.__dict__.get("__slots__", ())
            for name in [names] if isinstance(names, str) else names:
                if name in ("__dict__", "__weakref__"):
                    continue
                if not hasattr(one, name):
                    self._undo.append((object.__delattr__, one, name))
                else:
                    value = getattr(one, name)
                    self._undo.append((object.__setattr__, one, name, value))
                    found.append(value)
        return iter(found)

    def restore(self) -> None:
        """Put everything back; can be called again."""
        torch.set_default_dtype(self._torch[0])
        torch.set_deterministic_debug_mode(self._torch[1])
        self._contents()
        torch.set_grad_enabled(self._torch[2])

    @torch.no_grad()
    def _contents(self) -> None:
        for one, data, values, grad, of_grad, wanted in self._tensors:
            with suppress(Exception):
                one.requires_grad_(wanted)
            one.data = data
            one.data.copy_(values)
            one.grad = grad
            if grad is not None and of_grad is not None:
                grad.copy_(of_grad)
        for act, *arguments in self._undo:
            with suppress(Exception):
                act(*arguments)
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])
        torch.set_rng_state(self._random[2])
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        if self.also is not None:
            self.also()


def _fill(one: Any, contents: Any) -> None:
    """The old contents of a dict, a list, a set or a deque, where they have changed."""
    if isinstance(one, dict):
        pairs = zip(one.items(), contents.items(), strict=False)
        if len(one) == len(contents) and all(a is b and x is y for (a, x), (b, y) in pairs):
            return
        kind = collections.OrderedDict if isinstance(one, collections.OrderedDict) else dict
        kind.clear(one)  # a subclass' own may do more
        kind.update(one, contents)
    elif isinstance(one, list):
        one[:] = contents
    else:
        one.clear()
        one.update(contents) if isinstance(one, set) else one.extend(contents)


@contextmanager
def kept(*roots: Any) -> Iterator[Kept]:
    """What is reached from `roots` is as it was when the block ends."""
    state = Kept(*roots)
    try:
        yield state
    finally:
        state.restore()
