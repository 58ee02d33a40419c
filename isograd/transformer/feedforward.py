"""The feed-forward branch: W_2 mid(act(W_1 x + b_1)) + b_2, and its gated form."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from isograd.placement import Placement, Residual, Site
from isograd.transformer.kernels import make_dropout
from isograd.transformer.norms import make_norm
from isograd.transformer.parameters import Linear


def relu_squared(x: Tensor) -> Tensor:
    """relu(x)^2 (So et al. 2021, Primer)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # exact, by erf
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # GPT-2's
    "relu_squared": relu_squared,
    "silu": F.silu,
    "swiglu": F.silu,  # on the gate, this and those below; see GatedFeedForward
    "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"),
}
GATED = ("swiglu", "geglu", "geglu_tanh")


class FeedForward(nn.Module):
    """W_2 mid(dropout(act(W_1 x + b_1))) + b_2; W_1 of shape (inner, width), W_2 of shape (width, inner)."""

    def __init__(self, config: Any, placement: Placement, site: Site) -> None:
        super().__init__()
        residual, gains = placement.at(site), placement.init.at(site)
        width, inner = config.hidden_size, config.intermediate_size
        gain = gains.get("ffn_in", 1.0)
        self.into = Linear(width, inner, role="ffn_in", init_gain=gain, bias=config.has_bias("ffn_in"))
        self.into_norm = self._projected(residual, inner, config)
        self.act = ACTIVATIONS[config.hidden_act]
        self.dropout = make_dropout(config.activation_dropout)
        self.mid = make_norm(residual.mid, inner, config)
        biased = config.has_bias("ffn_out")
        self.out = Linear(inner, width, role="ffn_out", init_gain=gains.get("ffn_out", 1.0), bias=biased)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mid(self.dropout(self.act(self.into_norm(self.into(x))))))

    def _projected(self, residual: Residual, inner: int, config: Any) -> nn.Module:
        return make_norm(residual.projections.norm if residual.projections else None, inner, config)


class GatedFeedForward(FeedForward):
    """SwiGLU: W_2 mid(dropout(silu(W_g x) * (W_1 x))), GEGLU with gelu (Shazeer 2020, arXiv 2002.05202, equation 6)."""

    def __init__(self, config: Any, placement: Placement, site: Site) -> None:
        super().__init__(config, placement, site)
        width, inner = config.hidden_size, config.intermediate_size
        biased = config.has_bias("ffn_in")
        self.gate = Linear(width, inner, role="ffn_in", init_gain=self.into.init_gain, bias=biased)
        self.gate_norm = self._projected(placement.at(site), inner, config)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mid(self.dropout(self.act(self.gate_norm(self.gate(x))) * self.into_norm(self.into(x)))))


def make_feedforward(config: Any, placement: Placement, site: Site) -> FeedForward:
    kind = GatedFeedForward if config.hidden_act in GATED else FeedForward
    return kind(config, placement, site)
