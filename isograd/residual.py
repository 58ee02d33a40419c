"""Parts for any model: each published residual as an `nn.Module` around your own layers. Plain PyTorch in and out.

    residual = HyperConnections(768, layers=12, copies=4)

    state = residual.open(x)                          # x: (batch, time, width), what the first layer reads
    for k, branch in enumerate(branches):             # two per layer: attention, feed-forward
        x, held = residual.read(state, k)             # what the branch reads, and what `write` needs
        state = residual.write(held, branch(x), k)
    x = residual.close(state)                         # (batch, time, width), what your final norm reads

`residual[k]` is the part of sublayer k, a module of its own that a block can hold: `state = residual[k](state, branch)`
reads, computes and writes. A `branch` is f with the norm before it, `lambda x: self.attn(self.ln_1(x))`: the classes
here hold only the norms that stand outside of f (on the sum, at the end of a stream). `Residuals("mhc", ...)` makes
the part of any entry of the catalogue, with all of its norms.

The parts run under autograd, `torch.compile`, activation checkpointing and autocast, and on the meta device
(`to_empty`, then `reset_parameters`); they hold parameters only, no buffers. Their coefficients should not decay:
`isograd.transformer.parameters.decayed(model)` names what should and what should not.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.jit import is_tracing  # shapes are tensors there, and a comparison a constant of the trace

from isograd.errors import many
from isograd.placement import Learned, Norm, Placement, Residual, Site, get, sites
from isograd.placement.formula import Role
from isograd.placement.streams import FirstValues
from isograd.transformer.init import initialize
from isograd.transformer.norms import make_norm
from isograd.transformer.streams import State, make_connection, make_ends
from isograd.transformer.streams.copies import OfCopies
from isograd.transformer.streams.inputs import FirstValuesConnection
from isograd.transformer.sublayer import make_combine, share_scale

INSIDE = ("mid", "head_scale", "projections", "gate", "cap")  # what stands inside f, and is no part of the residual


class Common(TypedDict, total=False):
    """What every part takes."""

    cross: bool
    norm: Literal["layernorm", "rmsnorm"]
    eps: float


@dataclass(frozen=True, kw_only=True)
class PartShape:
    """What the modules of a residual ask of a configuration."""

    hidden_size: int
    norm: str
    norm_eps: float
    norm_bias: bool = True


class Part(nn.Module):
    """One sublayer: read gives pre(x); write is x <- post(skip * x + scale * out(u)), or the stream's own."""

    def __init__(self, placement: Placement, site: Site, shape: PartShape) -> None:
        super().__init__()
        residual, width = placement.at(site), shape.hidden_size
        if inside := [name for name in INSIDE if getattr(residual, name) is not None]:
            raise ValueError(
                f"{', '.join(inside)} at {site.kind} of layer {site.layer}: inside the branch, which is yours; build it"
                f" there, and pass the placement without it (dataclasses.replace(residual, {inside[0]}=None))"
            )
        if isinstance(placement.stream, FirstValues):
            raise ValueError("FirstValues mixes values inside the attention: use isograd.residual.ValueResidual there")
        self.width, self.where, self.ran = width, f"{site.kind} of layer {site.layer}", False
        self.pre = make_norm(residual.pre, width, shape)
        self.out = make_norm(residual.out, width, shape)
        self.combine = make_combine(residual, width)
        self.post = make_norm(residual.post, width, shape)
        self.stream = make_connection(placement.stream, site, shape)

    def add(self, x: Tensor, u: Tensor) -> Tensor:
        y: Tensor = self.post(self.combine(x, u))
        return y

    def read(self, state: State) -> tuple[Tensor, Any]:
        """What the branch reads (batch, time, width), and what `write` needs."""
        if not torch.compiler.is_compiling():
            self.ran = True
        if not (is_tracing() or self.stream.fits(state)):
            raise ValueError(
                f"{self.where}: the state is {_shown(state)}; expected {self.stream.carries}: what `open`, or the"
                " sublayer before, returned"
            )
        x, held = self.stream.read(state)
        return self.pre(x), held

    def write(self, held: Any, u: Tensor) -> State:
        """The state after the branch has written u (batch, time, width)."""
        if not (isinstance(u, Tensor) and (is_tracing() or u.shape[-1] == self.width)):
            raise ValueError(
                f"{self.where}: the branch returned {_shown(u)}; expected one tensor (batch, time, {self.width})"
                + (": the first of these?" if isinstance(u, tuple) else "")
            )
        if isinstance(self.stream, OfCopies) and not isinstance(held, tuple):
            raise ValueError(f"{self.where}: `write` takes what `read` returned second, not the state")
        u = self.out(u)
        return self.stream.write(held, u, self.add)

    def forward(self, state: State, branch: Callable[[Tensor], Tensor]) -> State:
        """A whole sublayer: the state after `branch` has read and written."""
        x, held = self.read(state)
        u = branch(x)
        if isinstance(u, Tensor) and not is_tracing() and u.shape != x.shape:
            raise ValueError(f"{self.where}: the branch read {_shown(x)} and returned {_shown(u)}; expected that shape")
        return self.write(held, u)


def _variance(x: Tensor) -> float:
    """Over all elements together, in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).var(correction=0).item()


def _kind(x: Any) -> str:
    return f" of {x.dtype}" if isinstance(x, Tensor) and not x.is_floating_point() else ""


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple ({', '.join(map(_shown, value))})"
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]


class Residuals(nn.Module):
    """The residuals of a whole stack, as any placement says them.

    Args:
        placement: an entry of the catalogue by name, or a `Placement`. All its norms but those inside a branch are
            built here: pre, out, post; `first` by `open` and `final` by `close`.
        width: d, of the tensors that branches read and write.
        layers: layers of the stack; each has an attention and a feed-forward.
        cross: each layer has a cross-attention between the two.
        norm: the kind of the norms that do not name their own.
        eps: of those norms.

    Raises:
        ValueError: the placement asks for something inside a branch (`mid`, `head_scale`, ...), which is yours.
    """

    def __init__(
        self,
        placement: str | Placement,
        width: int,
        *,
        layers: int,
        cross: bool = False,
        norm: Literal["layernorm", "rmsnorm"] = "layernorm",
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        if not (isinstance(width, int) and isinstance(layers, int) and width > 0 and layers > 0):
            raise ValueError(f"width={width!r}, layers={layers!r}: integers of at least 1 expected")
        if not eps > 0:
            raise ValueError(f"eps={eps}: above 0 is expected")
        if norm not in ("layernorm", "rmsnorm"):
            raise ValueError(f"norm={norm!r}: expected 'layernorm' or 'rmsnorm'")
        self.placement = get(placement) if isinstance(placement, str) else placement
        self.sites = sites(layers, "decoder", layers if cross else 0)
        shape = PartShape(hidden_size=width, norm=norm, norm_eps=eps)
        self.first = make_norm(self.placement.first, width, shape)
        self.width = width
        self.parts = nn.ModuleList(Part(self.placement, site, shape) for site in self.sites)
        for layer in range(layers):
            share_scale([part for part, site in zip(self, self.sites, strict=True) if site.layer == layer + 1])
        self.ends = make_ends(self.placement.stream, shape)
        self.final = make_norm(self.placement.final, width, shape)
        self._told = False

    def open(self, x: Tensor) -> State:
        """The state that the first sublayer reads, of x (batch, time, width)."""
        if not (isinstance(x, Tensor) and (is_tracing() or (x.is_floating_point() and x.shape[-1:] == (self.width,)))):
            raise ValueError(f"x is {_shown(x)}{_kind(x)}; expected floating point, (batch, time, {self.width})")
        if not torch.compiler.is_compiling():
            for part in self:
                part.ran = False
        return self.ends.open(self.first(x))

    def read(self, state: State, k: int) -> tuple[Tensor, Any]:
        """What branch k reads (batch, time, width), counted from 0, and what `write` needs."""
        return self[k].read(state)

    def write(self, held: Any, u: Tensor, k: int) -> State:
        """The state after branch k has written u (batch, time, width)."""
        return self[k].write(held, u)

    def close(self, state: State) -> Tensor:
        """One tensor (batch, time, width) of the state after the last sublayer."""
        if not torch.compiler.is_compiling():
            self._unused()
        y: Tensor = self.final(self.ends.close(state))
        return y

    def forward(self, x: Tensor, branches: list[Callable[[Tensor], Tensor]]) -> Tensor:
        """The whole stack around `branches`, one for each sublayer."""
        if len(branches) != len(self):
            raise ValueError(f"{len(branches)} branches for {len(self)} sublayers: one for each is expected")
        state = self.open(x)
        for part, branch in zip(self, branches, strict=True):
            state = part(state, branch)
        return self.close(state)

    def __getitem__(self, k: int) -> Part:
        if not -len(self) <= k < len(self):
            raise IndexError(f"sublayer {k}: this residual has {len(self)}, 0 to {len(self) - 1}: {self._counted()}")
        part = self.parts[k]
        assert isinstance(part, Part)
        return part

    def _counted(self) -> str:
        layers = self.sites[-1].layer
        each = len(self) // layers
        return f"{many(layers, 'layer')} with {each} sublayers each (layers= counts layers, not sublayers)"

    def _unused(self) -> None:
        """Warn once where only the first sublayers of the stack have run, all of them: it was made too deep."""
        ran = [part.ran for part in self]
        if not self._told and 0 < sum(ran) < len(ran) - 1 and all(ran[: sum(ran)]):
            self._told = True
            warnings.warn(
                f"{sum(ran)} of {len(self)} sublayers ran between open and close: {self._counted()}", stacklevel=3
            )

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Part]:
        return (self[k] for k in range(len(self)))

    @contextmanager
    def calibrating(self) -> Iterator[list[float]]:
        """ADMIN's profile: one batch through your model, once, and each skip is set before its sum is formed.

            with residual.calibrating() as skips:
                model(batch)                       # real data, before the first step

            skip_1 = 1,   skip_{i+1} = sqrt( Var[skip_i * x_{i-1}] + Var[f_i(x_{i-1})] )

        Raises:
            ValueError: the placement has no skip to calibrate, the sublayers did not run once each, or a variance is
                not finite.
        """
        if self.placement.calibrate is None:
            raise ValueError("nothing to calibrate: ADMIN's skips are set by a profile, `isograd.residual.Admin`")
        skips, upcoming = list[float](), 1.0

        def profiled(combine: Any, args: tuple[Tensor, Tensor], untuned: Tensor) -> Tensor:
            nonlocal upcoming
            skips.append(upcoming)
            skip, branch = args[0] * upcoming, combine.scale(args[1])
            upcoming = math.sqrt(_variance(skip) + _variance(branch))
            y: Tensor = skip + branch
            return y

        combines: list[Any] = [part.combine for part in self]
        with torch.no_grad(), ExitStack() as hooks:
            for combine in combines:
                hooks.callback(combine.register_forward_hook(profiled).remove)
            yield skips
            if len(skips) != len(self) or not math.isfinite(upcoming):
                raise ValueError(f"skips {skips[:3]} .. of {len(self)} sublayers: run one finite batch, once")
            for combine, value in zip(combines, skips, strict=True):
                combine.skip.weight.fill_(value)

    def init_gains(self, k: int) -> dict[Role, float]:
        """What the placement multiplies the std of branch k's weights by, per role; roles left out: 1."""
        return self.placement.init.at(self.sites[k])

    def reset_parameters(self) -> None:
        """Draw all parameters as at construction; after `to_empty`, where the module was made on the meta device."""
        for module in self.modules():
            initialize(module, None, "normal")


def wiring(placement: Placement) -> Placement:
    """What is the residual's own: no norm before a branch, nothing inside it, no norm at the ends of the stack."""
    bare: dict[str, Any] = dict.fromkeys(("pre", *INSIDE))
    each = placement.each

    def at(site: Site) -> Residual:
        return replace(placement.of(site), **bare)

    return replace(placement, each=replace(each, **bare) if isinstance(each, Residual) else at, first=None, final=None)


def _named(name: str, **options: Any) -> Placement:
    """An entry's wiring, with other numbers for its stream."""
    placement = wiring(get(name))
    return replace(placement, stream=replace(placement.stream, **options))


def _scaled(name: str, init: float | None) -> Placement:
    """An entry's wiring, its trained scale beginning elsewhere."""
    placement = wiring(get(name))
    if init is None:
        return placement
    assert isinstance(placement.each, Residual) and isinstance(placement.each.scale, Learned)
    return replace(placement, each=replace(placement.each, scale=replace(placement.each.scale, init=init)))


class HyperConnections(Residuals):
    """n copies of the stream; each branch reads a weighted sum of them and writes to all, and they are mixed.

        x = sum_j A_j0 S_j;   S_i <- sum_j A_ji S_j + B_i f(x)

    A (n, n + 1) and B (n) are trained, from e_(k mod n), the identity and 1; `dynamic` adds factor * tanh(W norm(S_j))
    to each, W from 0. Closes with the sum. At init it computes what Pre-LN does. State (batch, time, n, width).

    Zhu et al. 2024, arXiv 2409.19606.

    Args:
        copies: n.
        dynamic: maps that depend on the state (DHC), else trained numbers alone (SHC).
        factor: where the factor on the computed part begins.
    """

    def __init__(
        self,
        width: int,
        *,
        layers: int,
        copies: int = 4,
        dynamic: bool = True,
        factor: float = 0.01,
        **common: Unpack[Common],
    ) -> None:
        name = "hyper-connections" if dynamic else "hyper-connections-static"
        super().__init__(_named(name, copies=copies, factor=factor), width, layers=layers, **common)


class ManifoldHyperConnections(Residuals):
    """mHC: n copies, mixed by a doubly stochastic matrix.

        x = sum_i r_i S_i;   S <- C^T S + w f(x)
        r = sigmoid(.) + eps,  w = 2 sigmoid(.),  C = Sinkhorn(softmax(.) + eps)

    each (.) a factor times its rows of one projection of the flattened copies over their RMS, plus a base, in float32.
    Rows of the projection: r's, then w's, then C's row by row; DeepSeek-V4's weights load as they are. Closes with
    sum_i r_i S_i of that kind. State (batch, time, n, width).

    Xie et al. 2025, arXiv 2512.24880.

    Args:
        copies: n.
        iterations: of Sinkhorn and Knopp.
        factor: where the three factors begin.
    """

    def __init__(
        self,
        width: int,
        *,
        layers: int,
        copies: int = 4,
        iterations: int = 20,
        factor: float = 0.01,
        **common: Unpack[Common],
    ) -> None:
        placement = _named("mhc", copies=copies, iterations=iterations, factor=factor)
        super().__init__(placement, width, layers=layers, **({"eps": 1e-6} | common))


class IndependentStreams(Residuals):
    """HY-V4: n copies that are not mixed; x = sum_i r_i S_i, S_i <- S_i + w_i f(x).

    r = sigmoid(.) + eps, w = magnitude * sigmoid(.) + eps, projected first and divided by the RMS after. State (batch,
    time, n, width). transformers' `HYV4HyperConnection`.

    Args:
        copies: n.
        magnitude: the largest w.
    """

    def __init__(
        self, width: int, *, layers: int, copies: int = 4, magnitude: float = 2.0, **common: Unpack[Common]
    ) -> None:
        placement = _named("independent-streams", copies=copies, magnitude=magnitude)
        super().__init__(placement, width, layers=layers, **({"eps": 1e-6} | common))


class GatedStreams(Residuals):
    """Qwen4-exp: n copies; x = mean_i(g_i * n(S_i)) with a gate for each feature, S_i <- S_i + 2 sigmoid(.)_i f(x).

    g = sigmoid(W_up silu(W_down n(S) / n)), W_down of `rank` rows; n(S) each copy over its RMS times 1 + weight.
    Branches read x without a norm of their own, and no norm follows `close`. State (batch, time, n, width).
    transformers' `Qwen4ExpTextGatedResidual`.

    Args:
        copies: n.
        rank: of the gate.
    """

    def __init__(self, width: int, *, layers: int, copies: int = 4, rank: int = 16, **common: Unpack[Common]) -> None:
        placement = _named("gated-streams", copies=copies, rank=rank)
        super().__init__(placement, width, layers=layers, **({"eps": 1e-6} | common))


class AttentionResiduals(Residuals):
    """Each branch reads a softmax over everything written before it: x = sum_i a_i v_i, a = softmax_i(q . norm(v_i)).

    v_0 is what `open` was given; q, one vector per sublayer, begins at 0 (a plain mean). State: a tuple of tensors
    (batch, time, width), one more after each sublayer, or after each `block` layers.

    Moonshot AI 2026, arXiv 2603.15031.

    Args:
        block: layers whose outputs are summed to one source; 0: each sublayer is a source.
        norm_values: sum norm(v_i) in place of v_i, and divide the scores by sqrt(d) (Inkling 2).
    """

    def __init__(
        self, width: int, *, layers: int, block: int = 0, norm_values: bool = False, **common: Unpack[Common]
    ) -> None:
        placement = _named("attention-residuals", block=block, norm_values=norm_values)
        super().__init__(placement, width, layers=layers, **common)


class DepthAverages(Residuals):
    """DenseFormer: after layer l, x <- sum_j a_lj X_j; X_j is what layer j left, X_0 what `open` was given.

    a begins at 1 for X_l and 0 for the others: at init it computes what Pre-LN does. State: a tuple of tensors
    (batch, time, width), x first, then X_0, X_1, ... Pagliardini et al. 2024, arXiv 2402.02622.

    Args:
        dilation: only X_l, X_(l - dilation), ... are averaged (k in the paper).
        period: an average after every period-th layer only (p in the paper).
    """

    def __init__(
        self, width: int, *, layers: int, dilation: int = 1, period: int = 1, **common: Unpack[Common]
    ) -> None:
        placement = _named("denseformer", dilation=dilation, period=period)
        super().__init__(placement, width, layers=layers, **common)


class ParallelBranches(Residuals):
    """All branches of a layer read the layer's input: x <- x + attn(n_1 x) + ffn(n_2 x). State (x, layer input).

    GPT-NeoX. `shared_norm`: both read norm(x), and have no norm of their own (GPT-J, PaLM, Cohere).
    """

    def __init__(self, width: int, *, layers: int, shared_norm: bool = False, **common: Unpack[Common]) -> None:
        super().__init__(_named("parallel", shared_norm=shared_norm), width, layers=layers, **common)


class B2T(Residuals):
    """Post-LN with a second shortcut: the layer's last sum is norm(x_in + x + f(x)).

    Branches read x without a norm of their own. State (x, layer input). Takase et al. 2022, arXiv 2206.00330.
    """

    def __init__(self, width: int, *, layers: int, **common: Unpack[Common]) -> None:
        super().__init__(wiring(get("b2t")), width, layers=layers, **common)


class ResiDual(Residuals):
    """A Post-LN stream P and a plain sum Q: P <- norm(P + f(P)), Q <- Q + f(P); closes with P + norm(Q).

    Branches read P without a norm of their own, and no norm follows `close`. State (P, Q). Xie et al. 2023, arXiv
    2304.14802.
    """

    def __init__(self, width: int, *, layers: int, **common: Unpack[Common]) -> None:
        super().__init__(wiring(get("residual")), width, layers=layers, **common)


class SiameseNorm(Residuals):
    """P <- norm(P + f(x) / sqrt(2l)), Q <- Q + f(x), x = P + norm(Q), l the layer; closes with P + norm(Q).

    P opens with norm(x). Branches norm what they read, and a norm follows `close`. State (P, Q). arXiv 2602.08064.
    """

    def __init__(self, width: int, *, layers: int, **common: Unpack[Common]) -> None:
        super().__init__(wiring(get("siamesenorm")), width, layers=layers, **common)


class InputScalars(Residuals):
    """Before each layer x <- r x + z x_0, x_0 what `open` was given; r and z trained numbers. State (x, x_0).

    nanochat, whose r learns at a hundredth of z's rate, and whose W_O and W_2 begin at 0.

    Args:
        keep: where r begins; None: nanochat's, from 1.15 in the first layer to 1.05 in the last.
        first: where z begins; None: nanochat's, from 0.20 to 0.05.
    """

    def __init__(
        self,
        width: int,
        *,
        layers: int,
        keep: float | None = None,
        first: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        given = {name: value for name, value in (("keep", keep), ("first", first)) if value is not None}
        super().__init__(_named("x0-scalars", **given), width, layers=layers, **common)


class AffineShortcut(Residuals):
    """x <- (x + c) * r + (f(x) + d) * g, four trained vectors from c = d = 0 and r = g = 1 (Zaya)."""

    def __init__(self, width: int, *, layers: int, **common: Unpack[Common]) -> None:
        super().__init__(wiring(get("affine-shortcut")), width, layers=layers, **common)


class LayerScale(Residuals):
    """x <- x + lambda * f(x), lambda a trained vector of the width, from a small number.

    Touvron et al. 2021, arXiv 2103.17239.

    Args:
        init: where lambda begins; None: the paper's, 0.1 up to 18 layers, 1e-5 up to 24, 1e-6 in deeper stacks.
    """

    def __init__(self, width: int, *, layers: int, init: float | None = None, **common: Unpack[Common]) -> None:
        super().__init__(_scaled("layerscale", init), width, layers=layers, **common)


class ReZero(Residuals):
    """x <- x + a f(x), a one trained number per layer, from 0; branches without a norm.

    Bachlechner et al. 2020, arXiv 2003.04887.
    """

    def __init__(self, width: int, *, layers: int, **common: Unpack[Common]) -> None:
        super().__init__(wiring(get("rezero")), width, layers=layers, **common)


class SkipInit(Residuals):
    """x <- x + a f(x), a one trained number per sublayer, from 0. De and Smith 2020, arXiv 2002.10444."""

    def __init__(self, width: int, *, layers: int, **common: Unpack[Common]) -> None:
        super().__init__(wiring(get("skipinit")), width, layers=layers, **common)


class PostNorm(Residuals):
    """x <- norm(skip * x + f(x)): the norm on the sum. Vaswani et al. 2017, arXiv 1706.03762.

    Args:
        skip: the coefficient on x. DeepNorm: (2 layers)^(1/4), and W_V, W_O, W_1, W_2 times (8 layers)^(-1/4). KEEL:
            2 layers, with a norm before each branch.
    """

    def __init__(self, width: int, *, layers: int, skip: float = 1.0, **common: Unpack[Common]) -> None:
        super().__init__(Placement(each=Residual(post=Norm(), skip=skip)), width, layers=layers, **common)


class Admin(Residuals):
    """x <- norm(skip * x + f(x)), skip a trained vector per sublayer, set by `calibrating` before the first step.

    Until then every skip is 1, as in Post-LN. Branches have no norm of their own. Liu et al. 2020, arXiv 2004.08249.
    """

    def __init__(self, width: int, *, layers: int, **common: Unpack[Common]) -> None:
        super().__init__(wiring(get("admin")), width, layers=layers, **common)


class VarianceGate(Residuals):
    """x <- sqrt(1 - b^2) x + b norm(f(x)), b = sigmoid(.) a trained vector: the variance stays (Muse Spark).

    Args:
        init: where b begins; None: 1/2.
    """

    def __init__(self, width: int, *, layers: int, init: float | None = None, **common: Unpack[Common]) -> None:
        super().__init__(_scaled("variance-gate", init), width, layers=layers, **common)


class ValueResidual(nn.Module):
    """Each attention's values are (1 - mix) v + mix v_1, v_1 those of the first layer.

        v, first = values(v, layer, first)        # in each attention, layer from 0; hand `first` on to the next

    No stream, but a line inside the attention; `first` may be anything in layer 0. Zhou et al. 2024, arXiv 2410.17897
    (ResFormer).

    Args:
        mix: the share of v_1.
        learned: train both shares, a number each per layer.
    """

    def __init__(self, *, layers: int, mix: float = 0.5, learned: bool = False) -> None:
        super().__init__()
        if not (isinstance(layers, int) and layers > 0):
            raise ValueError(f"layers={layers!r}: an integer of at least 1 expected")
        stream = FirstValues(mix=mix, learned=learned)
        every = [site for site in sites(layers) if site.kind == "attn"]
        self.mixes = nn.ModuleList(FirstValuesConnection(stream, 1, site) for site in every)

    def forward(self, v: Tensor, layer: int, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the attention reads in place of its values v, and v_1; both of v's shape, whatever it is."""
        if first is None and layer > 0:
            raise ValueError(f"layer {layer} mixes the first layer's values: hand on `first`, which layer 0 returned")
        mix = self.mixes[layer]
        assert isinstance(mix, FirstValuesConnection)
        mixed, (_, one) = mix.values((v, v if first is None else first), v)
        return mixed, one
