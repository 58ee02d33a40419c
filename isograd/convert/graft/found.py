"""What a change has to know of a model, found by computation: the list of layers, which option counts them, what each
layer's last writers are. No name of a module or an option stands here.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from isograd.errors import GraftError
from isograd.hub import from_pretrained
from isograd.models import IsogradConfig
from isograd.trace.anatomy import Anatomy, TracedStack, find_anatomy
from isograd.trace.dataflow import Dataflow
from isograd.trace.inputs import guess_inputs
from isograd.trace.record import Operation
from isograd.trace.sublayers import TracedSublayer

State = dict[str, Tensor]


class GraftSubject:
    """A model of one stack, and what was found in it.

    Raises:
        GraftError: no stack, several, or layers that are not in one list.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        if not isinstance(model, PreTrainedModel):
            raise GraftError(f"a {type(model).__name__}: expected a model of transformers' or of isograd's own")
        self.model = model
        self.config: PretrainedConfig = model.config
        if self.config.is_encoder_decoder:
            raise GraftError(f"{type(model).__name__} has an encoder and a decoder: models of one stack are changed")

    @cached_property
    def anatomy(self) -> Anatomy:
        """Of a model in float64 by a copy in float32: casts that do nothing there would stand between operations."""
        traced = copy.deepcopy(self.model).float() if self.model.dtype == torch.float64 else self.model
        return find_anatomy(traced, guess_inputs(self.model))

    @property
    def dataflow(self) -> Dataflow:
        return self.anatomy.dataflow

    @cached_property
    def stack(self) -> TracedStack:
        found = self.anatomy.stacks
        if len(found) != 1:
            missed = f" ({self.anatomy.missed[0]})" if self.anatomy.missed else ""
            raise GraftError(
                f"{type(self.model).__name__}: {len(found)} stacks of layers found{missed}; one is expected"
            )
        return found[0]

    @cached_property
    def layers(self) -> "Layers":
        return _layers(self)

    @property
    def state(self) -> State:
        """The weights, not copied."""
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def value(self, name: str) -> int:
        """The value that a parameter is in the trace."""
        return next(v for v, n in self.dataflow.trace.names.items() if n == name)

    def product(self, sublayer: TracedSublayer) -> Operation:
        """The last product of a branch, with W_O or W_2."""
        trace = self.dataflow.trace
        region = self.dataflow.between(sublayer.read, sublayer.branch)
        found = [o for o in region if sublayer.last in self.dataflow.weights(o)]
        if not found:
            raise GraftError(f"{sublayer.address}: no projection that writes its result was found")
        assert trace is not None
        return found[-1]


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The list that the layers stand in.

    Attributes:
        address: of the list in the model.
        option: of the configuration, which counts them.
        lists: options with an entry per layer.
        sublayers: of each place in the list, in the order of running.
    """

    address: str
    count: int
    option: str
    lists: tuple[str, ...]
    sublayers: tuple[tuple[TracedSublayer, ...], ...]

    def at(self, index: int) -> str:
        return f"{self.address}.{index}."

    def place(self, name: str) -> tuple[int, str] | None:
        """The layer that a parameter lies in, and its name there; None outside of the layers."""
        head, _, rest = name.removeprefix(f"{self.address}.").partition(".")
        return (int(head), rest) if name.startswith(f"{self.address}.") and head.isdecimal() else None

    def changes(self, config: PretrainedConfig, sources: list[int]) -> dict[str, Any]:
        """The options of a model whose layers are these of the old ones, in order."""
        own = {name: [getattr(config, name)[i] for i in sources] for name in self.lists}
        return {self.option: len(sources), **own}


def changed(config: PretrainedConfig, changes: Mapping[str, Any]) -> PretrainedConfig:
    """A copy with other values."""
    own = copy.deepcopy(config)
    for name, value in changes.items():
        setattr(own, name, value)
    return own


def shapes(model: PreTrainedModel, config: PretrainedConfig) -> PreTrainedModel | None:
    """A model of the same class without values; None where the class refuses the configuration."""
    try:
        with torch.device("meta"):
            made: PreTrainedModel = type(model)(config)
    except Exception:  # a class may raise what it likes on options that contradict each other
        return None
    return made


def options(config: PretrainedConfig, kind: type) -> Iterator[tuple[str, Any]]:
    """Options with a value of a kind, a bool being no number."""
    for name, value in config.to_dict().items():
        if (
            isinstance(value, kind)
            and not isinstance(value, bool)
            and not name.startswith("_")
            and hasattr(config, name)
        ):
            yield name, getattr(config, name)


def rebuilt(model: PreTrainedModel, state: State, changes: Mapping[str, Any]) -> PreTrainedModel:
    """A model of the same class with other options and weights, which are not copied; in eval mode.

    Raises:
        GraftError: the class has no place for these weights.
    """
    config = changed(model.config, changes)
    try:
        made, info = from_pretrained(
            type(model), None, config=config, state_dict=state, dtype=model.dtype, output_loading_info=True
        )
    except Exception as error:
        raise GraftError(f"{type(model).__name__} cannot be built with {dict(changes)}: {error}") from error
    problems = [f"{kind.replace('_', ' ')}: {min(map(str, names))}" for kind, names in info.items() if names]
    if problems:
        raise GraftError(f"{type(model).__name__} with {dict(changes)}: {problems[0]}")
    assert isinstance(made, PreTrainedModel)
    _keep_buffers(model, made)
    if made.can_generate() and model.generation_config is not None:
        made.generation_config = copy.deepcopy(model.generation_config)
    return made.eval()


def _keep_buffers(model: PreTrainedModel, made: PreTrainedModel) -> None:
    """What a class computes as it is built, as rotary tables: the same numbers, however they were rounded before."""
    before = dict(model.named_buffers())
    for name, value in made.named_buffers():
        if name in before and before[name].shape == value.shape:
            value.copy_(before[name])


def _layers(subject: GraftSubject) -> Layers:
    for address, module in subject.model.named_modules():
        if isinstance(module, nn.ModuleList) and (places := _places(address, len(module), subject.stack.sublayers)):
            lists = tuple(name for name, value in options(subject.config, list) if len(value) == len(module))
            option = _count_option(subject.model, address, len(module), lists)
            return Layers(address=address, count=len(module), option=option, lists=lists, sublayers=places)
    raise GraftError(f"{type(subject.model).__name__}: its layers are not in one list, or share their weights")


def _places(address: str, count: int, sublayers: list[TracedSublayer]) -> tuple[tuple[TracedSublayer, ...], ...] | None:
    """The sublayers by their places in a list, where all matrices lie in it and the places follow each other."""
    found: list[list[TracedSublayer]] = [[] for _ in range(count)]
    last = 0
    for sublayer in sublayers:
        heads = {name.removeprefix(f"{address}.").partition(".")[0] for name in sublayer.roles}
        if len(heads) != 1 or not all(name.startswith(f"{address}.") for name in sublayer.roles):
            return None
        head = heads.pop()
        if not head.isdecimal() or int(head) < last:
            return None
        last = int(head)
        found[last].append(sublayer)
    return tuple(map(tuple, found)) if all(found) else None


def _count_option(model: PreTrainedModel, address: str, count: int, lists: tuple[str, ...]) -> str:
    """The option that makes the list longer."""
    if isinstance(model.config, IsogradConfig):  # a stored formula has no line for one layer more
        return "num_hidden_layers"
    own = {name: [*getattr(model.config, name), getattr(model.config, name)[-1]] for name in lists}
    for name, value in options(model.config, int):
        if value == count:
            made = shapes(model, changed(model.config, {name: count + 1, **own}))
            if made is not None and len(made.get_submodule(address)) == count + 1:
                return name
    raise GraftError(f"{type(model).__name__}: no option of its configuration makes {address} longer")
