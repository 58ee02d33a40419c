"""Negative controls: unusual designs that are right, of which `isograd check` says nothing."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isograd
from tests.lint.faults.plain import (
    HEADS,
    POSITIONS,
    WIDTH,
    Attention,
    Decoder,
    PreLayer,
    causal,
    join,
    pre,
    split,
    started,
)


class Scored(Attention):
    """Attention by hand; `scored` says what is done to q.k."""

    def scored(self, scores: Tensor) -> Tensor:
        return scores / math.sqrt(WIDTH // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        scores = self.scored(q @ k.transpose(-2, -1))
        scores = scores.masked_fill(~causal(x.shape[1]), float("-inf"))
        return self.out(join(scores.softmax(dim=-1) @ v))


class Capped(Scored):
    """Gemma 2: cap tanh(s / cap)."""

    def scored(self, scores: Tensor) -> Tensor:
        return 50 * torch.tanh(super().scored(scores) / 50)


class MuP(Scored):
    """1/d, not 1/sqrt(d)."""

    def scored(self, scores: Tensor) -> Tensor:
        return scores / (WIDTH // HEADS)


class Lowered(Scored):
    """The largest score taken off by hand, as before an exponential."""

    def scored(self, scores: Tensor) -> Tensor:
        scores = super().scored(scores)
        return scores - scores.amax(-1, keepdim=True)


class Sparse(Scored):
    """Each query sees its eight largest scores: a mask that is made of the scores."""

    def scored(self, scores: Tensor) -> Tensor:
        scores = super().scored(scores).masked_fill(~causal(scores.shape[-1]), -1e9)
        return scores.masked_fill(scores < scores.topk(8, -1).values[..., -1:], -torch.finfo(scores.dtype).max)


class Biased(Scored):
    """ALiBi: less for what is further back, by head."""

    def scored(self, scores: Tensor) -> Tensor:
        time = scores.shape[-1]
        back = torch.arange(time)[:, None] - torch.arange(time)
        return super().scored(scores) - 2.0 ** -torch.arange(HEADS)[:, None, None] * back


class WithAttention(PreLayer):
    attention: type[Attention] = Scored

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attn = self.attention()


class CappedLayer(WithAttention):
    attention = Capped


class MuPLayer(WithAttention):
    attention = MuP


class BiasedLayer(WithAttention):
    attention = Biased


class ParallelLayer(PreLayer):
    def forward(self, x: Tensor) -> Tensor:
        h = self.attn_norm(x)
        return x + self.attn(h) + self.ffn(h)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.ffn_norm


class SandwichLayer(PreLayer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attn_out_norm, self.ffn_out_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn_out_norm(self.attn(self.attn_norm(x)))
        return x + self.ffn_out_norm(self.ffn(self.ffn_norm(x)))


class ReZeroLayer(PreLayer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.attn_norm, self.ffn_norm
        self.gate_norm = nn.Parameter(torch.zeros(()))  # called so that transformers' Trainer does not decay it

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gate_norm * self.attn(x)
        return x + self.gate_norm * self.ffn(x)


class BalancedLayer(PreLayer):
    """(x + f(x)) / sqrt(2)."""

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.attn(self.attn_norm(x))) * 0.5**0.5
        return (x + self.ffn(self.ffn_norm(x))) * 0.5**0.5


class HalvedLayer(PreLayer):
    """Macaron: half of the feed-forward."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + 0.5 * self.ffn(self.ffn_norm(x))


class Looped(Decoder):
    """One layer run four times, as in ALBERT and the universal Transformer."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        for _ in range(4):
            x = self.layers[0](x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


class Unplaced(Decoder):
    """Without positions: a causal model tells order by its mask."""

    def __init__(self, layers: list[nn.Module], final: nn.Module | None) -> None:
        super().__init__(layers, final)
        del self.positions

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


def zeroed(*names: str) -> Decoder:
    model = pre()
    for name, parameter in model.named_parameters():
        if any(part in name for part in names):
            nn.init.zeros_(parameter)
    return model


def padded() -> Decoder:
    """A row of zeros for the padding."""
    model = pre()
    with torch.no_grad():
        model.tokens.weight[0] = 0
    return model


def depth_scaled() -> Decoder:
    """GPT-2: W_O and W_2 from N(0, 0.02^2 / 2L)."""
    model = pre(8)
    for name, parameter in model.named_parameters():
        if name.endswith(("out.weight", "down.weight")):
            nn.init.normal_(parameter, std=0.02 / math.sqrt(16))
    return model


def bilinear() -> Decoder:
    """A gated feed-forward without an activation: (W x) * (V x) is not linear."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.gate(x) * self.up(x))

    model = pre()
    layer: Any
    for layer in model.layers:
        layer.ffn = Gated()
    return started(model)


class LowRank(nn.Module):
    """LoRA: W x + 2 B A x, where B begins at 0."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.a, self.b = base, nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.b(self.a(x))


def turned(x: Tensor, sign: int = 1) -> Tensor:
    """Heads (batch, heads, time, width) rotated by position."""
    half = x.shape[-1] // 2
    angles = sign * torch.arange(x.shape[-2])[:, None] * 100.0 ** -(torch.arange(half) / half)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Rotary(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        heads = self.mixed(turned(q), turned(k), v, self.visible(x.shape[1]))
        return self.out(join(heads))

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class ValuesTurned(Rotary):
    """DeepSeek V4: values are rotated as keys are, and the mixture is rotated back."""

    back = True

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        mixed = super().mixed(q, k, turned(v), seen)
        return turned(mixed, -1) if self.back else mixed


class ValuesStayTurned(ValuesTurned):
    back = False


class Tempered(Rotary):
    """ZAYA: keys that are multiplied by a number that begins at 0."""

    def __init__(self, visible: Any = causal) -> None:
        super().__init__(visible)
        self.temperature_norm = nn.Parameter(torch.zeros(()))

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        return super().mixed(q, k * self.temperature_norm, v, seen)


class Choosing(Attention):
    """Top-k attention: what scores the keys only says which of them are seen."""

    def __init__(self, visible: Any = causal) -> None:
        super().__init__(visible)
        self.scorer = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        scores = self.scorer(x).transpose(1, 2).masked_fill(~causal(x.shape[1]), float("-inf"))
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, scores.topk(8, -1).indices, True)
        seen = (chosen & causal(x.shape[1])) | torch.eye(x.shape[1], dtype=torch.bool)
        return self.out(join(F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None])))


def attending(attention: type[Attention]) -> Decoder:
    return pre(layer=type("Layer", (WithAttention,), {"attention": attention}))


def adapted(attention: type[Attention] = Attention) -> Decoder:
    model = attending(attention)
    layer: Any
    for layer in model.layers:
        layer.attn.query, layer.attn.value = LowRank(layer.attn.query), LowRank(layer.attn.value)
    return model


class LaurelLayer(PreLayer):
    """LAuReL-LR: each sum has a map of rank 4 of the stream beside it, that begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.ModuleList(nn.Linear(WIDTH, 4, bias=False) for _ in range(2))
        self.widen = nn.ModuleList(nn.Linear(4, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x)) + self.widen[0](self.narrow[0](x))
        return x + self.ffn(self.ffn_norm(x)) + self.widen[1](self.narrow[1](x))


def laurel() -> Decoder:
    model = started(Decoder([LaurelLayer() for _ in range(4)], nn.LayerNorm(WIDTH)))
    for name, weight in model.named_parameters():
        if ".widen." in name:
            nn.init.zeros_(weight)
    return model


class Pooled(Decoder):
    """A norm of the first token, for a head that is not used here."""

    def __init__(self, layers: list[nn.Module], final: nn.Module | None) -> None:
        super().__init__(layers, final)
        self.post_norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids: Tensor) -> Tensor:
        logits = super().forward(input_ids)
        self.post_norm(self.tokens(input_ids)[:, 0])
        return logits


class CrossLayer(PreLayer):
    """A cross-attention for those who give a memory, and its norm."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.cross_norm, self.cross = nn.LayerNorm(WIDTH), Attention()

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        if memory is not None:
            x = x + self.cross(self.cross_norm(x))
        return super().forward(x)


class WideningLayer(PreLayer):
    """A stage of Hiera begins: the shortcut of its attention is a matrix of its own on the norm."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.wider = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attn_norm(x)
        x = self.wider(y) + self.attn(y)
        return x + self.ffn(self.ffn_norm(x))


class Replaced(PreLayer):
    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.attn_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class LengthNorm(nn.Module):
    """sqrt(d) g x / |x|, as x-transformers writes RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * self.weight


class ShortNorm(LengthNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * self.weight


class ShortConvolution(nn.Module):
    """u + conv(u) over u and the two before it, one filter for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(0.02 * torch.randn(WIDTH, 1, 3))

    def forward(self, u: Tensor) -> Tensor:
        return u + F.conv1d(F.pad(u.transpose(1, 2), (2, 0)), self.filters, groups=WIDTH).transpose(1, 2)


class Convolved(Attention):
    """A branch that ends in a shortcut of its own."""

    def __init__(self, visible: Any = causal) -> None:
        super().__init__(visible)
        self.convolution = ShortConvolution()

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(super().forward(x))


class PoolLess(nn.Module):
    """pool(x) - x, PoolFormer's: what is taken off is no shortcut."""

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool1d(F.pad(x.transpose(1, 2), (2, 0)), 3, stride=1).transpose(1, 2) - x


class OpenGate(nn.Module):
    """A gate that begins open, as gMLP's: its matrix near 0 and its bias 1."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.mix = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)) * self.mix(x))


def gated() -> Decoder:
    model = pre()
    layer: Any
    for layer in model.layers:
        layer.ffn = started(OpenGate())
        nn.init.normal_(layer.ffn.mix.weight, std=1e-6)
        nn.init.ones_(layer.ffn.mix.bias)
    return model


class PoolLayer(PreLayer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attn = PoolLess()  # type: ignore[assignment]


class Sampled(nn.Module):
    """Deformable attention: each place reads one entry, at an offset that a matrix of zeros begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.step, self.out = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        at = self.offset(x) * self.step(x).sigmoid() + torch.linspace(-1, 1, x.shape[1])[:, None]
        grid = torch.stack([at, torch.zeros_like(at)], -1)
        return self.out(F.grid_sample(x.transpose(1, 2)[:, :, None], grid, align_corners=True)[..., 0].transpose(1, 2))


class SamplingLayer(PreLayer):
    """Reads both ways, and then as attention does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, visible=lambda time: torch.ones(time, time, dtype=torch.bool))
        self.sampled_norm, self.sampled = nn.LayerNorm(WIDTH), Sampled()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.sampled(self.sampled_norm(x)))


class Experts(nn.Module):
    """Each token goes to the expert that its router likes best; here none goes to the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        shares = (self.router(x) - torch.tensor([0.0, 0.0, 9.0])).softmax(-1)
        best = shares.argmax(-1)
        y = torch.zeros_like(x)
        for i in best.unique().tolist():
            y = torch.where((best == i)[..., None], shares[..., i : i + 1] * self.experts[i](x), y)
        return y


class GlobalAttention(Attention):
    """Longformer's: queries of their own for tokens that a mask calls global."""

    def __init__(self, visible: Any = causal) -> None:
        super().__init__(visible)
        self.query_global = nn.Linear(WIDTH, WIDTH)


class Global(Decoder):
    def forward(self, input_ids: Tensor, global_attention_mask: Tensor | None = None) -> Tensor:
        assert global_attention_mask is None
        return super().forward(input_ids)


def routed() -> Decoder:
    model = pre()
    layer: Any
    for layer in model.layers:
        layer.ffn = started(Experts())
    return model


def sampling() -> Decoder:
    model = pre(layer=SamplingLayer)
    layer: Any
    for layer in model.layers:
        nn.init.zeros_(layer.sampled.offset.weight)
    return model


class Priced(Decoder):
    """Its loss, a number for each sequence with a mean over the batch in it, stands before what it returns."""

    def forward(self, input_ids: Tensor) -> Any:
        logits = super().forward(input_ids)
        return {"loss": logits.square().mean((1, 2)) + logits.square().mean(), "scores": logits}


class BatchNormed(nn.Module):
    """Features of each position by a BatchNorm, after one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x).transpose(1, 2)).transpose(1, 2))


def headed(head: nn.Module, *, final: nn.Module | None = None) -> Decoder:
    """A Pre-LN stack with another head than that of tokens."""
    model = started(Decoder([PreLayer() for _ in range(4)], final))
    model.head = head  # type: ignore[assignment]
    return started(model)


class OfKind(Decoder):
    """One vector for the kind of all inputs, of a table whose name is about frequency."""

    def __init__(self, layers: list[nn.Module], final: nn.Module | None) -> None:
        super().__init__(layers, final)
        del self.positions
        self.freq_emb = nn.Embedding(3, WIDTH)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.freq_emb(torch.zeros(1, 2, dtype=torch.long)).mean(1)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


LEGAL: dict[str, Callable[[], nn.Module]] = {
    "logit-cap": lambda: pre(layer=CappedLayer),
    "mup-scale": lambda: pre(layer=MuPLayer),
    "alibi": lambda: started(Unplaced([BiasedLayer() for _ in range(4)], nn.LayerNorm(WIDTH))),
    "parallel": lambda: pre(layer=ParallelLayer),
    "sandwich": lambda: pre(layer=SandwichLayer),
    "rezero": lambda: started(Decoder([ReZeroLayer() for _ in range(4)], nn.LayerNorm(WIDTH))),
    "balanced": lambda: pre(layer=BalancedLayer),
    "macaron": lambda: pre(layer=HalvedLayer),
    "looped": lambda: started(Looped([PreLayer()], nn.LayerNorm(WIDTH))),
    "no-positions": lambda: started(Unplaced([PreLayer() for _ in range(4)], nn.LayerNorm(WIDTH))),
    "zero-branches": lambda: zeroed("out.weight", "down.weight"),
    "zero-low-rank": laurel,
    "zero-queries": lambda: zeroed("query.weight"),
    "padding-row": padded,
    "depth-scaled": depth_scaled,
    "bilinear": bilinear,
    "low-rank": adapted,
    "low-rank-rotary": lambda: adapted(Rotary),
    "values-turned-back": lambda: attending(ValuesTurned),
    "keys-from-zero": lambda: attending(Tempered),
    "pooled-norm": lambda: started(Pooled([PreLayer() for _ in range(4)], nn.LayerNorm(WIDTH))),
    "length-norm": lambda: pre(norm=LengthNorm),
    "widening": lambda: started(Decoder([PreLayer(), WideningLayer(), PreLayer(), PreLayer()], nn.LayerNorm(WIDTH))),
    "largest-scores": lambda: attending(Sparse),
    "largest-off": lambda: attending(Lowered),
    "short-convolution": lambda: attending(Convolved),
    "open-gate": gated,
    "pool-less": lambda: pre(layer=PoolLayer),
    "offsets-from-zero": sampling,
    "loss-first": lambda: started(Priced([PreLayer() for _ in range(4)], nn.LayerNorm(WIDTH))),
    "one-class": lambda: headed(nn.Linear(WIDTH, 1), final=nn.LayerNorm(WIDTH)),
    "batch-norm-head": lambda: headed(BatchNormed()),
    "of-one-kind": lambda: started(OfKind([PreLayer() for _ in range(4)], nn.LayerNorm(WIDTH))),
    "dropout-in-training": lambda: nn.Sequential(*[nn.Sequential(pre(2), nn.Dropout(0.1))]),
}


@pytest.mark.parametrize("name", LEGAL)
def test_nothing_is_said_of_an_unusual_design(name: str) -> None:
    torch.manual_seed(0)
    model = LEGAL[name]()
    findings = isograd.check(model)
    if any(f.kind == "suspicion" and f.severity != "info" for f in findings):  # of a design the trial decides
        findings = isograd.check(model, prove=True)
    assert [str(f) for f in findings if f.severity != "info"] == []
    assert findings.missed == ()


WAITING = type("WaitingLayer", (WithAttention,), {"attention": GlobalAttention})


@pytest.mark.parametrize(("decoder", "codes"), [(Global, set()), (Decoder, {"parameter-unused"})])
def test_a_matrix_may_wait_for_the_input_that_it_is_called_after(decoder: type[Decoder], codes: set[str]) -> None:
    torch.manual_seed(0)
    findings = isograd.check(started(decoder([WAITING() for _ in range(4)], nn.LayerNorm(WIDTH))))
    assert findings.codes == codes


def test_experts_that_no_token_was_sent_to_wait() -> None:
    torch.manual_seed(0)
    findings = isograd.check(routed())
    assert [str(f) for f in findings if f.severity == "error"] == []


def test_values_that_stay_turned_are_reported() -> None:
    """The negative control of values that are turned back."""
    torch.manual_seed(0)
    assert "rotary-wrong" in isograd.check(attending(ValuesStayTurned)).codes


def test_a_zero_matrix_beside_no_other_is_reported() -> None:
    """The negative control of an adapter's zeros."""
    torch.manual_seed(0)
    model: Any = adapted()
    nn.init.zeros_(model.layers[1].attn.value.base.weight)
    assert "weights-zero" in isograd.check(model).codes


def test_a_norm_to_length_one_is_reported() -> None:
    """The negative control of a factor that follows the norm."""
    torch.manual_seed(0)
    assert {"norm-scale", "norm-weights"} & isograd.check(pre(norm=ShortNorm)).codes


class OnePosition(Decoder):
    """A table of sines of which every position gets the first row."""

    rows = 1

    def __init__(self, layers: list[nn.Module], final: nn.Module | None) -> None:
        super().__init__(layers, final)
        del self.positions
        self.register_buffer("pe", torch.sin(torch.arange(POSITIONS)[:, None] / torch.arange(1, WIDTH + 1)))

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.get_buffer("pe")[: self.rows or input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


class EveryPosition(OnePosition):
    rows = 0


class StandingStill(Attention):
    """Rotary positions that are all 0."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        angles = self.at(x.shape[1])[:, None] * 100.0 ** -(torch.arange(q.shape[-1]) / q.shape[-1])
        turns = self.shown(angles.cos() * 1.0)
        heads = F.scaled_dot_product_attention(q * turns, k * turns, v, attn_mask=self.visible(x.shape[1]))
        return self.out(join(heads))

    def at(self, time: int) -> Tensor:
        return torch.zeros(time)

    def shown(self, rows: Tensor) -> Tensor:
        return rows


class FirstRow(StandingStill):
    """Rotary positions of which all get the first one's angles."""

    def at(self, time: int) -> Tensor:
        return torch.arange(time)

    def shown(self, rows: Tensor) -> Tensor:
        return rows[:1]


class StillLayer(WithAttention):
    attention = StandingStill


class FirstRowLayer(WithAttention):
    attention = FirstRow


@pytest.mark.parametrize(
    ("model", "codes"),
    [
        (lambda: started(OnePosition([PreLayer() for _ in range(4)], nn.LayerNorm(WIDTH))), {"positions-missing"}),
        (lambda: started(EveryPosition([PreLayer() for _ in range(4)], nn.LayerNorm(WIDTH))), set()),
        (lambda: started(Unplaced([StillLayer() for _ in range(4)], nn.LayerNorm(WIDTH))), {"positions-missing"}),
        (lambda: started(Unplaced([FirstRowLayer() for _ in range(4)], nn.LayerNorm(WIDTH))), {"positions-missing"}),
    ],
)
def test_one_row_for_all_positions_is_reported(model: Callable[[], nn.Module], codes: set[str]) -> None:
    """Though a causal model can do without positions: this one has them."""
    torch.manual_seed(0)
    findings = isograd.check(model())
    assert findings.codes == codes
    assert all("gets the same row" in f.message for f in findings)


def test_an_attention_without_any_shortcut_is_reported() -> None:
    """The negative control of a shortcut that is a matrix."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [PreLayer(), Replaced(), PreLayer(), PreLayer()]
    assert "shortcut-missing" in isograd.check(started(Decoder(layers, nn.LayerNorm(WIDTH)))).codes


def test_what_only_chooses_is_a_warning() -> None:
    torch.manual_seed(0)
    found = [f for f in isograd.check(attending(Choosing)) if f.code == "gradient-cut"]
    assert [(f.severity, f.measured) for f in found] == [("warning", 8.0)]
    assert "scorer" in found[0].address


def test_a_norm_beside_a_module_that_waits_is_not_unread() -> None:
    torch.manual_seed(0)
    findings = isograd.check(pre(layer=CrossLayer))
    assert findings.codes == set()
    assert len(findings.missed) == 4


def test_attention_by_hand_is_the_fused_one() -> None:
    """The ground on which the designs stand: the same numbers as F.scaled_dot_product_attention."""
    torch.manual_seed(0)
    x, own = torch.randn(2, 5, WIDTH), Scored()
    q, k, v = (split(project(x)) for project in (own.query, own.key, own.value))
    expected = own.out(join(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
    torch.testing.assert_close(own(x), expected)


def test_new_layers_of_a_deeper_model_begin_as_the_identity() -> None:
    """W_O and W_2 of a layer at zero together; one of them alone was never filled."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, **sizes)).eval()
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()
        assert "weights-zero" in isograd.check(model).codes
        model.model.layers[1].mlp.down_proj.weight.zero_()
    assert isograd.check(model).codes == set()
