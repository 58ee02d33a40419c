"""One training step observed: what happened in each sublayer, as rows.

    probe = Probe(model)                      # an isograd model: finds its sublayers itself
    probe = Probe(model, ["h.0", "h.1"])      # any nn.Module, by address
    with probe.step(0):
        model(**batch).loss.backward()
        probe.read_gradients()                # after accumulation, before clipping
        optimizer.step()
    probe.rows

Outside `step` the model carries no hooks, so a compiled model runs compiled; run the observed step itself eagerly
(`torch.compiler.set_stance("force_eager")`), since compiled code does not see hooks that come later.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from isograd.diagnose.quantities import mean_abs, norm, rms, terms, variance
from isograd.diagnose.watch.layers import WatchedLayer, modules_at, sublayers_of
from isograd.transformer.parameters import Coefficient
from isograd.transformer.sublayer import Sublayer

Row = dict[str, Any]


FEW = 256  # values of a stream's parameter that are told by their mean, lowest and highest; more are a matrix


class Probe:
    """Measures sublayers during single steps.

    A row holds the facts of its sublayer (address; stack, layer and kind in isograd models), the step, and of these
    quantities the ones that the module has, as floats:

        gradient_norm       Frobenius norm of the gradient of all parameters of the module
        gradient_mean_abs   mean |gradient| of its last projection, W_O or W_2 (NormFormer's figure 3)
        residual_rms        root mean square of what the module hands on: the residual stream
        branch_skip_ratio   Var[scale * f(x)] / Var[skip * x]; of a foreign module Var[y - x] / Var[x], which is
                            meant for modules that add their input
        update_ratio        |W' - W| / |W| of the last projection
        skip, gain, heads, pre, mid, out, post, query, key, value
                            mean of the learned coefficient or norm weight, with its `_min` and `_max`
        stream.NAME         the same of a parameter of the stream's, of at most `FEW` values
    """

    def __init__(self, model: nn.Module, addresses: Sequence[str] | None = None) -> None:
        """Watch every sublayer of an isograd model, or the modules at `addresses` of any model.

        Raises:
            ValueError: no addresses given and no isograd sublayer in the model.
            AttributeError: an address that the model does not have.
        """
        if addresses is None:
            self.watched = sublayers_of(model)
        else:
            self.watched = [_of_module(a, m) for a, m in zip(addresses, modules_at(model, addresses), strict=True)]
        if not self.watched:
            raise ValueError("this model has no isograd sublayers; pass the addresses of the modules to watch")
        self._coefficients = [_coefficients(watched.module) for watched in self.watched]
        self.rows: list[Row] = []
        self._values: dict[tuple[int, str], Tensor] = {}
        self._before: dict[int, Tensor] = {}

    @contextmanager
    def step(self, step: int) -> Iterator["Probe"]:
        """Observe what happens inside as training step `step`; its rows are appended at the end."""
        self._values, self._before = {}, {}
        with torch.no_grad():
            self._read_coefficients()
        with ExitStack() as hooks:
            for index, watched in enumerate(self.watched):
                for handle in self._attach(index, watched.module):
                    hooks.callback(handle.remove)
            yield self
        with torch.no_grad():
            self._read_updates()
            self.rows.extend(self._collect(step))

    @torch.no_grad()
    def read_gradients(self, norms: Mapping[nn.Parameter, Tensor] | None = None) -> None:
        """Take the gradients as they stand: call after accumulation and unscaling, before clipping.

        Args:
            norms: Frobenius norms by parameter, where clipping has computed them anyway.
        """
        norms = norms or {}
        for index, watched in enumerate(self.watched):
            graded = [(p, p.grad) for p in watched.parameters if p.grad is not None]
            if graded:
                parts = [whole(norms[p] if p in norms else norm(grad)) for p, grad in graded]
                self._values[index, "gradient_norm"] = norm(torch.stack(parts))
            if watched.matrix is not None and watched.matrix.grad is not None:
                self._values[index, "gradient_mean_abs"] = whole(mean_abs(watched.matrix.grad))
                self._before[index] = watched.matrix.detach().clone()

    def _attach(self, index: int, module: nn.Module) -> list[Any]:
        def stream(_: nn.Module, args: Any, output: Any) -> None:
            y = output if isinstance(output, Tensor) else output[0]
            self._values[index, "residual_rms"] = rms(y)
            x = args[0] if args else None
            if not isinstance(module, Sublayer) and isinstance(x, Tensor) and x.shape == y.shape:
                self._values[index, "branch_skip_ratio"] = variance(y - x) / variance(x)

        def total(combine: nn.Module, args: tuple[Tensor, Tensor], _: Tensor) -> None:
            skip, branch = terms(combine, *(t.detach() for t in args))
            self._values[index, "branch_skip_ratio"] = variance(branch) / variance(skip)

        handles = [module.register_forward_hook(stream)]
        if isinstance(module, Sublayer):
            handles.append(module.combine.register_forward_hook(total))
        return handles

    def _read_updates(self) -> None:
        for index, before in self._before.items():
            matrix = self.watched[index].matrix
            assert matrix is not None
            self._values[index, "update_ratio"] = whole(norm(matrix - before)) / whole(norm(before))

    def _read_coefficients(self) -> None:
        for index, coefficients in enumerate(self._coefficients):
            for name, p in coefficients.items():
                values = whole(p.detach()).float()
                self._values[index, name] = values.mean()
                self._values[index, f"{name}_min"] = values.min()
                self._values[index, f"{name}_max"] = values.max()

    def _collect(self, step: int) -> list[Row]:
        """All values in one transfer from the device."""
        if not self._values:
            return []
        numbers = torch.stack([v.double() for v in self._values.values()]).tolist()
        rows: list[Row] = [{"step": step, **w.facts} for w in self.watched]
        for (index, name), number in zip(self._values, numbers, strict=True):
            rows[index][name] = number
        return rows


def _coefficients(module: nn.Module) -> Mapping[str, nn.Parameter]:
    """The learned coefficients and norm weights of a sublayer; of any other module none."""
    if not isinstance(module, Sublayer):
        return {}
    branch: Any = module.branch
    slots: dict[str, Any] = {"pre": module.pre, "mid": branch.mid, "out": module.out, "post": module.post}
    slots |= {role: getattr(branch, f"{role}_norm", None) for role in ("query", "key", "value")}
    scales = {name: getattr(module.combine, name, None) for name in ("skip", "scale")}
    scales["heads"] = getattr(branch, "heads", None)
    norms = {name: m.weight for name, m in slots.items() if getattr(m, "role", None) == "norm" and m.weight is not None}
    own = {name: m.weight for name, m in scales.items() if type(m) is Coefficient}  # as it is, not mapped
    stream = getattr(module, "stream", None)
    carried = stream.named_parameters() if isinstance(stream, nn.Module) else ()
    return norms | own | {f"stream.{name}": p for name, p in carried if p.numel() <= FEW}


def _of_module(address: str, module: nn.Module) -> WatchedLayer:
    parameters = list(module.parameters())
    matrix = next((p for p in reversed(parameters) if p.ndim >= 2), None)
    return WatchedLayer(module=module, facts={"address": address}, group=address, parameters=parameters, matrix=matrix)


def whole(x: Tensor) -> Tensor:
    """The full tensor of a sharded one."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x
