"""Faults of how the parts are joined."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.lint.faults.plain import (
    HEADS,
    WIDTH,
    Attention,
    Decoder,
    Norm,
    PostLayer,
    PreLayer,
    RMSNorm,
    join,
    pre,
    split,
    started,
)


class Scale(nn.Module):
    """Learned factors, one for each place of an axis. Called `..._norm` where they are not to decay."""

    def __init__(self, count: int, start: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((count,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class HeadScaledAttention(Attention):
    """NormFormer's attention: each head times a learned number before W_O, a norm after it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.heads_norm = Scale(HEADS)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.scaled(self.heads(x)))

    def heads(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        return join(F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible(x.shape[1])))

    def scaled(self, x: Tensor) -> Tensor:
        """(batch, time, width) with each of its blocks times its number."""
        return (x.unflatten(-1, (HEADS, -1)) * self.heads_norm.weight[:, None]).flatten(-2)


class OutScaledAttention(HeadScaledAttention):
    """As fairseq released it: the blocks are scaled when W_O has mixed the heads already."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(self.out(self.heads(x)))


class NormFormerLayer(nn.Module):
    """Pre-LN with a norm after the attention and one inside the feed-forward."""

    attention: type[Attention] = HeadScaledAttention

    def __init__(self, norm: Norm = nn.LayerNorm) -> None:
        super().__init__()
        self.attn_norm, self.attn, self.attn_out_norm = norm(WIDTH), self.attention(), norm(WIDTH)
        self.ffn_norm, self.ffn_mid_norm = norm(WIDTH), norm(4 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn_out_norm(self.attn(self.attn_norm(x)))
        return x + self.down(self.ffn_mid_norm(F.gelu(self.up(self.ffn_norm(x)))))


class FairseqNormFormerLayer(NormFormerLayer):
    attention = OutScaledAttention


class NormedAttention(Attention):
    """A norm on the queries and one on the keys of each head."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.query_norm, self.key_norm = RMSNorm(WIDTH // HEADS), RMSNorm(WIDTH // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        q, k = self.normed(q, k)
        return self.out(join(F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible(x.shape[1]))))

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.query_norm(q), self.key_norm(k)


class ForgottenNormAttention(NormedAttention):
    """The norms are there, in every checkpoint and count of parameters, and nothing calls them."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k


class NormedLayer(PreLayer):
    attention: type[Attention] = NormedAttention

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attn = self.attention()


class ForgottenNormLayer(NormedLayer):
    attention = ForgottenNormAttention


def torch_encoder(*, norm_first: bool, final: bool, cloned: bool = False) -> nn.Module:
    """torch.nn.TransformerEncoder, which deep-copies one layer; each is drawn anew unless `cloned`."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=True, norm_first=norm_first)
    stack = nn.TransformerEncoder(layer, 4, nn.LayerNorm(WIDTH) if final else None, enable_nested_tensor=False)
    return (stack if cloned else redrawn(stack)).eval()


def torch_decoder(*, final: bool) -> nn.Module:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=True, norm_first=True)
    return redrawn(nn.TransformerDecoder(layer, 3, nn.LayerNorm(WIDTH) if final else None)).eval()


def torch_transformer() -> nn.Module:
    """nn.Transformer as it comes: post-norm, and one more norm at the end of each stack, which normalizes twice."""
    return nn.Transformer(WIDTH, HEADS, 3, 3, 64, dropout=0.0, batch_first=True).eval()


def torch_transformer_of_own_stacks() -> nn.Module:
    """nn.Transformer with stacks of one's own, which end where their last layer ends."""
    options: dict[str, Any] = {"d_model": WIDTH, "nhead": HEADS, "dropout": 0.0, "batch_first": True}
    above = nn.TransformerEncoderLayer(dim_feedforward=64, **options)
    below = nn.TransformerDecoderLayer(dim_feedforward=64, **options)
    return nn.Transformer(
        **options,
        custom_encoder=nn.TransformerEncoder(above, 3, enable_nested_tensor=False),
        custom_decoder=nn.TransformerDecoder(below, 3),
    ).eval()


def redrawn(stack: nn.Module) -> nn.Module:
    """Every matrix Xavier uniform, Q, K and V each as a matrix of its own."""
    for name, parameter in stack.named_parameters():
        if parameter.ndim > 1:
            for part in parameter.detach().chunk(3) if name.endswith("in_proj_weight") else [parameter.detach()]:
                nn.init.xavier_uniform_(part)
    return stack


def without_final() -> Decoder:
    model = pre()
    model.final_norm = nn.Identity()
    return model


def with_final_on_post() -> Decoder:
    return started(Decoder([PostLayer() for _ in range(4)], nn.LayerNorm(WIDTH)))


def deep_copied() -> Decoder:
    """`clones(layer, n)` of a well-known tutorial, with no start of the parameters afterwards."""
    model = pre()
    for i in range(1, len(model.layers)):
        model.layers[i] = copy.deepcopy(model.layers[0])
    return model


def one_post_among_pre() -> Decoder:
    return started(Decoder([PreLayer(), PreLayer(), PostLayer(), PreLayer()], nn.LayerNorm(WIDTH)))


def no_transformer() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 10)).eval()
