"""transformers' classes that carry a design, as adapters: isograd conform mhc --adapter FILE:DeepseekV4, FILE this one.

Their inits are not the papers' (weights are meant to be loaded): that check is skipped, and says so.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from isograd.errors import UserError
from isograd.lint.conform import Setting

NOT_THE_PAPERS = {"init": "transformers' init is not the paper's: its weights are meant to be loaded"}


def _class(family: str, name: str) -> Any:
    try:
        return getattr(import_module(f"transformers.models.{family}.modeling_{family}"), name)
    except (ImportError, AttributeError) as error:
        import transformers

        raise UserError(
            f"transformers {transformers.__version__} has no {name} ({family}); install a newer one"
        ) from error


def _set(parameter: Any, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value.view(parameter.shape))


class _Classes(nn.Module):
    """A module per sublayer, `made`, and perhaps one at the end of the stack."""

    dtype = torch.float32
    skips = NOT_THE_PAPERS

    def __init__(self, setting: Setting, made: Callable[[], nn.Module], head: nn.Module | None = None) -> None:
        super().__init__()
        self.every = nn.ModuleList(made() for _ in range(setting.sublayers))
        self.head = head
        self.copies = getattr(setting.stream, "copies", 1)

    def open(self, x: Tensor) -> Any:
        return x.unsqueeze(-2).repeat(1, 1, self.copies, 1)


class DeepseekV4(_Classes):
    """`DeepseekV4HyperConnection` and `DeepseekV4HyperHead`, with the sums of `DeepseekV4DecoderLayer`."""

    def __init__(self, setting: Setting) -> None:
        stream = setting.stream
        config = SimpleNamespace(
            hc_mult=stream.copies,
            hc_sinkhorn_iters=stream.iterations,
            hc_eps=stream.eps,
            rms_norm_eps=setting.eps,
            hidden_size=setting.width,
        )
        kind, head = (_class("deepseek_v4", f"DeepseekV4{name}") for name in ("HyperConnection", "HyperHead"))
        super().__init__(setting, lambda: kind(config), head(config))

    def load(self, weights: Mapping[str, Tensor]) -> None:
        for k, one in enumerate(self.every):
            for theirs, ours in (("fn", "projection"), ("base", "base"), ("scale", "factors")):
                _set(getattr(one, theirs), weights[f"parts.{k}.stream.{ours}"])
        for theirs, ours in (("hc_fn", "projection"), ("hc_base", "base"), ("hc_scale", "factors")):
            _set(getattr(self.head, theirs), weights[f"ends.{ours}"])

    def read(self, state: Tensor, k: int) -> tuple[Tensor, Any]:
        post, comb, x = self.every[k](state)
        return x, (state, post, comb)

    def write(self, held: Any, u: Tensor, k: int) -> Tensor:
        state, post, comb = held
        written: Tensor = post.unsqueeze(-1) * u.unsqueeze(-2) + comb.transpose(-1, -2) @ state
        return written

    def close(self, state: Tensor) -> Tensor:
        assert self.head is not None
        closed: Tensor = self.head(state)
        return closed


class HYV4(DeepseekV4):
    """`HYV4HyperConnection` and `HYV4HyperHead`, with the sums of `HYV4DecoderLayer`."""

    def __init__(self, setting: Setting) -> None:
        stream = setting.stream
        config = SimpleNamespace(
            hc_mult=stream.copies,
            hc_eps=stream.eps,
            hc_magnitude=stream.magnitude,
            rms_norm_eps=setting.eps,
            hidden_size=setting.width,
        )
        kind, head = (_class("hy_v4", f"HYV4{name}") for name in ("HyperConnection", "HyperHead"))
        _Classes.__init__(self, setting, lambda: kind(config), head(config))

    def read(self, state: Tensor, k: int) -> tuple[Tensor, Any]:
        post, x = self.every[k](state)
        return x, (state, post)

    def write(self, held: Any, u: Tensor, k: int) -> Tensor:
        state, post = held
        written: Tensor = post.unsqueeze(-1) * u.unsqueeze(-2) + state
        return written


class Qwen4Exp(_Classes):
    """`Qwen4ExpTextGatedResidual`, with the sums of its decoder layer; the state is flat, (batch, time, n * width)."""

    def __init__(self, setting: Setting) -> None:
        stream = setting.stream
        config = SimpleNamespace(
            hc_count=stream.copies, hidden_size=setting.width, hc_lowrank=stream.rank, rms_norm_eps=setting.eps
        )
        kind = _class("qwen4_exp", "Qwen4ExpTextGatedResidual")
        super().__init__(setting, lambda: kind(config), kind(config, use_combine=False))

    def load(self, weights: Mapping[str, Tensor]) -> None:
        names = {"weight": "hc_norm", "down": "input_mix_weight_down", "up": "input_mix_weight_up"}
        at = {f"parts.{k}.stream": one for k, one in enumerate(self.every)}
        for address, one in (at | {"ends.gated": self.head}).items():
            for ours, theirs in (names | ({"inject": "block_inject_weight"} if address in at else {})).items():
                _set(getattr(one, theirs).weight, weights[f"{address}.{ours}"])

    def open(self, x: Tensor) -> Any:
        return x.repeat(1, 1, self.copies)

    def read(self, state: Tensor, k: int) -> tuple[Tensor, Any]:
        x, held, w = self.every[k](state)
        return x, (held, w)

    def write(self, held: Any, u: Tensor, k: int) -> Tensor:
        state, w = held
        written: Tensor = state + (u.unsqueeze(-2) * w.unsqueeze(-1)).flatten(-2)
        return written

    def close(self, state: Tensor) -> Tensor:
        assert self.head is not None
        return _first(self.head(state))


class Inkling2(_Classes):
    """`Inkling2BlockAttentionResidual`, with the sums of `Inkling2SlidingDecoderLayer`."""

    def __init__(self, setting: Setting) -> None:
        kind = _class("inkling2", "Inkling2BlockAttentionResidual")
        config = SimpleNamespace(hidden_size=setting.width, _attn_implementation="eager")
        super().__init__(setting, lambda: kind(config), kind(config))
        self.block = 2 * setting.stream.block
        assert self.head is not None
        for one in (*self.every, self.head):
            one.norm.eps = setting.eps

    def load(self, weights: Mapping[str, Tensor]) -> None:
        for k, one in enumerate(self.every):
            if k > 0:  # the first layer's attention reads the embedding
                _set(one.query, weights[f"parts.{k}.stream.query"])
        assert self.head is not None
        _set(self.head.query, weights["ends.last.query"])

    def open(self, x: Tensor) -> Any:
        return x.new_zeros(*x.shape[:-1], 0, x.shape[-1]), x

    def read(self, state: Any, k: int) -> tuple[Tensor, Any]:
        return _first(self.every[k](*state)) if k else state[1], state

    def write(self, held: Any, u: Tensor, k: int) -> Any:
        blocks, current = held
        if k % self.block:
            return blocks, current + u
        return torch.cat([blocks, current.unsqueeze(-2)], dim=-2), u

    def close(self, state: Any) -> Tensor:
        assert self.head is not None
        return _first(self.head(*state))


class MuseSpark(_Classes):
    """`MuseSparkResidualGate` with temperature 1, after a LayerNorm on the branch."""

    def __init__(self, setting: Setting) -> None:
        kind = _class("muse_spark", "MuseSparkResidualGate")
        super().__init__(
            setting, lambda: kind(SimpleNamespace(hidden_size=setting.width, residual_gate_temperature=1.0))
        )
        self.norms = nn.ModuleList(nn.LayerNorm(setting.width, setting.eps) for _ in self.every)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        for k, (one, norm) in enumerate(zip(self.every, self.norms, strict=True)):
            _set(one.gate, weights[f"parts.{k}.combine.scale.weight"])
            for name in ("weight", "bias"):
                _set(getattr(norm, name), weights[f"parts.{k}.out.{name}"])

    def open(self, x: Tensor) -> Any:
        return x

    def read(self, state: Tensor, k: int) -> tuple[Tensor, Any]:
        return state, state

    def write(self, held: Any, u: Tensor, k: int) -> Tensor:
        written: Tensor = self.every[k](held, self.norms[k](u))
        return written

    def close(self, state: Tensor) -> Tensor:
        return state


class Zaya(_Classes):
    """`ZayaResidualScaling`."""

    def __init__(self, setting: Setting) -> None:
        kind = _class("zaya", "ZayaResidualScaling")
        super().__init__(setting, lambda: kind(setting.width))

    def load(self, weights: Mapping[str, Tensor]) -> None:
        names = {
            "residual_scale": "skip",
            "residual_bias": "skip_offset",
            "hidden_states_scale": "scale",
            "hidden_states_bias": "scale_offset",
        }
        for k, one in enumerate(self.every):
            for theirs, ours in names.items():
                _set(getattr(one, theirs), weights[f"parts.{k}.stream.{ours}.weight"])

    def open(self, x: Tensor) -> Any:
        return x

    def read(self, state: Tensor, k: int) -> tuple[Tensor, Any]:
        return state, state

    def write(self, held: Any, u: Tensor, k: int) -> Tensor:
        written: Tensor = self.every[k](u, held)
        return written

    def close(self, state: Tensor) -> Tensor:
        return state


def _first(out: Any) -> Tensor:
    tensor: Tensor = out[0] if isinstance(out, tuple) else out
    return tensor


DESIGNS = {
    "DeepseekV4": "mhc",
    "HYV4": "independent-streams",
    "Qwen4Exp": "gated-streams",
    "Inkling2": "attention-residuals-inkling",
    "MuseSpark": "variance-gate",
    "Zaya": "affine-shortcut",
}
