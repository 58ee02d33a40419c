"""Any model initialized anew by a named scheme: roles are found by tracing it, standard deviations come from one table.

    drawn = initialize(model, "gpt2", seed=0)

Matrices in layers are drawn by role and site, a fused W_QKV part by part; tables, the head and what else there is
outside layers by the scheme's own std for them. Norm weights begin at what leaves the norm alone, biases at 0. Trained
coefficients (LayerScale, gates) are no init's business and stay as they are.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from isograd.convert.checkpoints.folder import copy_companions
from isograd.errors import ModelError, RecipeError, hint
from isograd.files import new_folder
from isograd.lint.checked_model import CheckedModel
from isograd.placement import Site, sites
from isograd.placement.schemes import BASES, RANGE, SCHEMES, Scheme, Shape
from isograd.trace.anatomy import find_anatomy
from isograd.trace.inputs import as_inputs, guess_inputs
from isograd.trace.parts import WeightPart, parts


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Parameters of one role: how many, and the std that each was drawn with (the extremes over layers)."""

    role: str
    count: int
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Initialized:
    """What was done to a model.

    Attributes:
        kept: names of parameters that no scheme speaks of, which stay as they were.
    """

    scheme: str
    drawn: tuple[Drawn, ...]
    kept: tuple[str, ...]


def initialize(model: nn.Module, scheme: str, *, seed: int = 0, batch: Any = None) -> Initialized:
    """Draw the parameters of a model anew, in place.

    Args:
        model: any `nn.Module` in floating point.
        scheme: a name of `isograd.placement.schemes.SCHEMES`.
        batch: what `forward` takes, where it cannot be guessed.

    Raises:
        RecipeError: no such scheme.
        ModelError: no residual stack was found, or parameters are not in floating point.
        InputsError: no inputs given, and none that can be guessed.
    """
    if scheme not in SCHEMES:
        raise RecipeError(f"no scheme {scheme!r}; {hint(scheme, SCHEMES)}")
    if any(not p.is_floating_point() for p in model.parameters()):
        raise ModelError("quantized parameters cannot be drawn; load the model in floating point")
    inputs = guess_inputs(model) if batch is None else as_inputs(batch)
    anatomy = find_anatomy(model, inputs)
    if not anatomy.stacks:
        raise ModelError("no residual stack was found in this model; 'isograd check' says what was looked at")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        return _Drawer(model, CheckedModel(model, inputs, anatomy), scheme, generator).draw()


class _Drawer:
    def __init__(self, model: nn.Module, checked: CheckedModel, scheme: str, generator: torch.Generator) -> None:
        self.model, self.checked, self.name, self.generator = model, checked, scheme, generator
        self.scheme: Scheme = SCHEMES[scheme]
        self.parameters = dict(model.named_parameters())
        self.stds: dict[str, list[float]] = {}
        self.done: set[str] = set()
        named = getattr(checked.config, "initializer_range", None) or getattr(checked.config, "init_std", None)
        self.range = float(named or RANGE)
        self.found = parts(checked.anatomy)
        self.width = self.found[0].width if self.found else 1

    def draw(self) -> Initialized:
        for part in self.found:
            self._part(part)
        self._tables()
        self._norms()
        self._rest()
        rows = [Drawn(role=r, count=len(of), low=min(of), high=max(of)) for r, of in self.stds.items()]
        kept = tuple(name for name in self.parameters if name not in self.done)
        return Initialized(scheme=self.name, drawn=tuple(rows), kept=kept)

    def _part(self, part: WeightPart) -> None:
        std = self.scheme.std(part.role, part.site, self._shape(part.fan_in, part.fan_out))
        weight = self.parameters[part.name]
        drawn = self._draws(part.of(weight).shape, std, weight)
        if part.rows is None:
            weight.copy_(drawn)
        else:
            weight.index_copy_(part.axis, part.rows.to(weight.device), drawn)
        self._note("query, key" if part.role in ("query", "key") else part.role, part.name, std)

    def _draws(self, shape: torch.Size, std: float, like: Tensor, uniform: bool | None = None) -> Tensor:
        """In float32 on the CPU, from one generator: the same on every device and in every dtype."""
        if self.scheme.uniform if uniform is None else uniform:
            bound = 3**0.5 * std
            return (torch.rand(shape, generator=self.generator) * 2 * bound - bound).to(like)
        return (torch.randn(shape, generator=self.generator) * std).to(like)

    def _shape(self, fan_in: int, fan_out: int) -> Shape:
        return Shape(fan_in=fan_in, fan_out=fan_out, width=self.width, range=self.range)

    def _note(self, role: str, name: str, std: float) -> None:
        self.stds.setdefault(role, []).append(std)
        self.done.add(name)

    def _site(self) -> Site:
        """The deepest stack's first: what a law of depth reads for a table."""
        if self.found:
            return max((part.site for part in self.found), key=lambda site: site.layers)
        return sites(1)[0]

    def _tables(self) -> None:
        embeddings = {id(m.weight): m for m in self.model.modules() if isinstance(m, nn.Embedding)}
        named = [*self.checked.tables, *([self.checked.head] if self.checked.head is not None else [])]
        for name in dict.fromkeys(named):
            weight = self.parameters[name]
            if not weight.requires_grad or name in self.done:  # sines and cosines
                self.done.add(name)
                continue
            head = name == self.checked.head and name not in self.checked.tables
            shape = self._shape(weight.shape[-1], weight.shape[0])
            std = self.scheme.table(shape) if head else self.scheme.table_std(self._site(), shape)
            weight.copy_(self._draws(weight.shape, std, weight, uniform=False))
            module = embeddings.get(id(weight))
            if module is not None and module.padding_idx is not None:
                weight[module.padding_idx].zero_()
            self._note("head" if head else "table", name, std)

    def _norms(self) -> None:
        owners = {id(p): m for m in self.model.modules() for p in m.parameters(recurse=False)}
        for name in self.checked.norm_weights & self.parameters.keys():
            weight = self.parameters[name]
            owner = owners.get(id(weight))
            weight.fill_(0.0 if owner is not None and _around_one(owner, weight) else 1.0)
            self.done.add(name)
            if owner is not None:
                for other, p in self.parameters.items():
                    if owners.get(id(p)) is owner and other not in self.done and p.shape == weight.shape:
                        p.zero_()
                        self.done.add(other)

    def _rest(self) -> None:
        """Biases and matrices outside layers; coefficients stay."""
        for name, p in self.parameters.items():
            if name in self.done or name in self.checked.coefficients:
                continue
            if p.ndim == 1 and name.rpartition(".")[2].endswith("bias"):
                p.zero_()
                self.done.add(name)
            elif p.ndim == 2 and min(p.shape) > 1 and p.requires_grad:
                std = BASES[self.scheme.base][1](self._shape(p.shape[1], p.shape[0]))
                p.copy_(self._draws(p.shape, std, p))
                self._note("outside layers", name, std)


def _around_one(owner: nn.Module, weight: Tensor) -> bool:
    """Whether a norm stores its weight as the distance from 1: with a weight of 0 it still gives something."""
    twin = copy.deepcopy(owner).float().cpu()
    for p in twin.parameters():
        p.zero_()
    try:
        made = twin(torch.randn(2, weight.numel(), generator=torch.Generator().manual_seed(0)))
    except Exception:  # its forward wants more than a vector: a plain weight then
        return False
    return isinstance(made, Tensor) and bool(made.abs().max() > 1e-3)


def write(model: nn.Module, out: Path, source: str) -> None:
    """The model into a new folder, whole or not at all: a checkpoint of its class, or its weights as model.safetensors.

    Raises:
        FileExistsError: there is something of that name.
    """
    from safetensors.torch import save_model

    with new_folder(out) as folder:
        if isinstance(model, PreTrainedModel):
            model.save_pretrained(folder)
            if Path(source).is_dir():
                copy_companions(Path(source), folder)
        else:
            save_model(model, str(folder / "model.safetensors"))


def rows_of(made: Initialized) -> Iterator[tuple[str, str, str]]:
    """Role, count and std, as a table has them."""
    for one in made.drawn:
        span = f"{one.low:.4g}" if one.high - one.low < 1e-12 else f"{one.low:.4g} to {one.high:.4g}"
        yield one.role, str(one.count), span
