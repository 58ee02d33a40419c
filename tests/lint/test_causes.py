"""Causes that are named where only their consequences were: stale caches, norms, positions, memory, routers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isograd
from tests.lint.faults.plain import (
    HEADS,
    POSITIONS,
    VOCABULARY,
    WIDTH,
    Attention,
    Decoder,
    PreLayer,
    join,
    pre,
    split,
    started,
)
from tests.lint.test_unseen import Rotary, layers_of

# ------------------------------------------------------------------------------ what a call leaves for the next


class Prompted(nn.Module):
    """A decoder over ids that reads the mean of a prompt; `keep` says what is kept of the prompt between calls."""

    def __init__(self, keep: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.project, self.keep = layers_of(PreLayer, 2), nn.Linear(WIDTH, WIDTH), keep
        self.kept: Any = None
        self.by_size: dict[Any, Tensor] = {}
        self.drawn: list[Tensor] = []

    def told(self, prompt: Tensor) -> Tensor:
        return self.project(self.body.tokens(prompt)).mean(1, keepdim=True)

    def forward(self, input_ids: Tensor, prompt: Tensor) -> Tensor:
        x = self.body.tokens(input_ids) + self.body.positions.weight[: input_ids.shape[1]] + self.keep(self, prompt)
        for layer in self.body.layers:
            x = layer(x)
        return self.body.head(self.body.final_norm(x))


def once(model: Any, prompt: Tensor) -> Tensor:
    model.kept = model.told(prompt) if model.kept is None else model.kept
    return model.kept


def by_shape(model: Any, prompt: Tensor) -> Tensor:
    return model.by_size.setdefault(prompt.shape, model.told(prompt))


def until_longer(model: Any, prompt: Tensor) -> Tensor:
    if not model.drawn or prompt.shape[1] > len(model.drawn):
        model.drawn[:] = [model.told(prompt)] * prompt.shape[1]
    return model.drawn[0]


def compared(model: Any, prompt: Tensor) -> Tensor:
    if model.kept is None or not torch.equal(model.kept[0], prompt):
        model.kept = prompt.clone(), model.told(prompt)
    return model.kept[1]


def shown(model: Any, prompt: Tensor) -> Tensor:
    model.drawn.append(model.told(prompt))  # to be drawn later
    return model.drawn[-1]


def of_length(model: Any, prompt: Tensor) -> Tensor:
    model.by_size.setdefault(prompt.shape[1], model.body.positions.weight[: prompt.shape[1]].mean(0))
    return model.told(prompt) + model.by_size[prompt.shape[1]]


def going_on(model: Any, prompt: Tensor) -> Tensor:
    model.kept = model.told(prompt) + (0.0 if model.kept is None else 0.5 * model.kept)  # a state
    return model.kept


@pytest.mark.parametrize(
    ("keep", "where"),
    [
        (once, "kept"), (by_shape, "by_size"), (until_longer, "drawn"),
        (Prompted.told, None), (compared, None), (shown, None), (of_length, None), (going_on, None),
    ],
)  # fmt: skip
def test_what_is_kept_of_another_batch_is_named(keep: Callable[[Any, Tensor], Tensor], where: str | None) -> None:
    model = Prompted(keep).eval()
    torch.manual_seed(0)
    batch = {name: torch.randint(1, VOCABULARY, (4, n)) for name, n in (("input_ids", 10), ("prompt", 6))}
    found = [f for f in isograd.check(model, batch, prove=False) if f.code == "batch-leaks"]
    assert [(f.address, f.severity) for f in found] == ([] if where is None else [(where, "error")])
    assert all("the call before" in f.message for f in found)


# ------------------------------------------------------------------------------ statistics of several sequences


class Standardized(nn.Module):
    """Frames, brought to one size by `over`, through a stack to one class per sequence."""

    def __init__(self, over: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.over, self.inner, self.body = over, nn.Linear(6, WIDTH), layers_of(PreLayer, 2)
        self.body.head = nn.Identity()

    def forward(self, frames: Tensor) -> Tensor:
        x = self.inner(self.over(frames)) + self.body.positions.weight[: frames.shape[1]]
        for layer in self.body.layers:
            x = layer(x)
        return self.body.final_norm(x).mean(1)


STATISTICS: dict[str, tuple[Callable[[Tensor], Tensor], str | None]] = {
    "whole": (lambda x: F.layer_norm(x, x.shape), "layer_norm takes its statistics of (4, 10, 6)"),
    "by-hand": (lambda x: (x - x.mean((0, 1), keepdim=True)) / (x.std() + 1e-5), "takes its statistics of (4, 10, 6)"),
    "batch-norm": (lambda x: F.batch_norm(x.mT, None, None, training=True).mT, "batch_norm takes its statistics"),
    "own": (lambda x: F.layer_norm(x, x.shape[1:]), None),
    "features": (lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5), None),
    "instance-norm": (lambda x: F.instance_norm(x.mT).mT, None),
    "constants": (lambda x: (x - 0.1) / 1.3, None),
    "known": (lambda x: F.batch_norm(x.mT, torch.zeros(6), torch.ones(6)).mT, None),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_norm_over_the_batch_is_named(name: str) -> None:
    over, said = STATISTICS[name]
    torch.manual_seed(0)
    findings = isograd.check(Standardized(over).eval(), torch.randn(4, 10, 6), prove=False)
    found = [f.message for f in findings if f.code == "batch-leaks"]
    assert len(found) == (said is not None)
    assert said is None or (said in found[0] and "over axis 0" in found[0])


# ------------------------------------------------------------------------------ rotations and biases by position


def pairs(x: Tensor) -> Tensor:
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-b, a), -1).flatten(-2)


def halves(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def mirrored(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((b, a), -1)


def twice(angles: Tensor) -> Tensor:
    return torch.cat((angles, angles), -1)


def each_twice(angles: Tensor) -> Tensor:
    return angles.repeat_interleave(2, -1)


def of_grid(angles: Tensor) -> Tensor:
    rows, columns = torch.arange(len(angles)) // 4, torch.arange(len(angles)) % 4
    return twice(torch.cat((angles[rows][:, :2], angles[columns][:, 2:]), -1))


def in_bfloat(time: int) -> Tensor:
    return torch.outer(torch.arange(time).bfloat16(), FREQUENCIES.bfloat16())


def in_half(time: int) -> Tensor:
    return (torch.arange(time).half()[:, None] * 1.3 * FREQUENCIES.half()).float()


def in_autocast(time: int) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.arange(time).float()[:, None] @ FREQUENCIES[None]


def in_float(time: int) -> Tensor:
    return torch.outer(torch.arange(time).float(), FREQUENCIES)


FREQUENCIES = 0.1 ** torch.arange(4.0)


class Turning(PreLayer):
    turn: Callable[[Tensor], Tensor] = staticmethod(halves)
    lay: Callable[[Tensor], Tensor] = staticmethod(twice)
    angles: Callable[[int], Tensor] = staticmethod(in_float)
    causal, dtype = False, torch.float32

    def forward(self, x: Tensor) -> Tensor:
        y, table = self.attn_norm(x), self.lay(self.angles(x.shape[1]))
        cos, sin = table.cos().to(self.dtype), table.sin().to(self.dtype)
        q, k = (z * cos + self.turn(z) * sin for z in (split(self.attn.query(y)), split(self.attn.key(y))))
        mixed = F.scaled_dot_product_attention(q, k, split(self.attn.value(y)), is_causal=self.causal)
        x = x + self.attn.out(join(mixed))
        return x + self.ffn(self.ffn_norm(x))


def turning(**options: Any) -> list[nn.Module]:
    torch.manual_seed(0)
    kind = type("Turning", (Turning,), {k: staticmethod(v) if callable(v) else v for k, v in options.items()})
    return [kind() for _ in range(2)]


@pytest.mark.parametrize(
    ("lay", "turn", "right"),
    [
        (twice, halves, True), (each_twice, pairs, True), (of_grid, halves, True),
        (twice, pairs, False), (each_twice, halves, False), (twice, mirrored, False),
    ],
)  # fmt: skip
def test_what_is_no_rotation_of_frames_is_reported(lay: Any, turn: Any, right: bool) -> None:
    model = started(nn.Sequential(nn.Linear(6, WIDTH), *turning(lay=lay, turn=turn), nn.LayerNorm(WIDTH)))
    found = [f for f in isograd.check(model, torch.randn(3, 12, 6), prove=False) if f.code == "rotary-wrong"]
    assert len(found) == (not right) and all("changes the size of a vector" in f.message for f in found)


@pytest.mark.parametrize(
    ("angles", "time", "said"),
    [
        (in_bfloat, 300, "bfloat16"), (in_autocast, 300, "bfloat16"), (in_half, 500, "float16"),
        (in_float, 300, None), (in_bfloat, 12, None),
    ],
)  # fmt: skip
def test_angles_in_16_bits_are_compared_with_float64(angles: Any, time: int, said: str | None) -> None:
    model = started(Rotary([*turning(angles=angles, causal=True)][:1], nn.LayerNorm(WIDTH)))
    del model.positions
    ids = torch.randint(1, VOCABULARY, (2, time))
    found = [f.message for f in isograd.check(model, ids, prove=False) if f.code == "rotary-wrong"]
    assert len(found) == (said is not None)
    assert said is None or f"are computed in {said}" in found[0]
    assert said != "bfloat16" or "positions 256 and 257 get the same" in found[0]


def test_cosines_may_be_cast_to_16_bits() -> None:
    model = started(Rotary(turning(dtype=torch.bfloat16, causal=True), nn.LayerNorm(WIDTH)))
    del model.positions
    findings = isograd.check(model, torch.randint(1, VOCABULARY, (2, 300)), prove=False)
    assert "rotary-wrong" not in findings.codes


SLOPES = 2.0 ** -torch.arange(1, HEADS + 1)[:, None, None]


def back(time: int) -> Tensor:
    return (torch.arange(time)[:, None] - torch.arange(time)).float()


class Biased(Attention):
    """Scores plus `bias`, by hand or as the mask of a fused attention."""

    def __init__(self, bias: Callable[[int], Tensor], fused: bool, causal: bool) -> None:
        super().__init__()
        self.bias, self.fused, self.causal = bias, fused, causal
        self.taken = False
        self.table = nn.Parameter(torch.randn(HEADS, 64))

    def forward(self, x: Tensor) -> Tensor:
        time = x.shape[1]
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        hidden = torch.ones(time, time, dtype=torch.bool).triu(1) & self.causal
        bias = self.table[:, back(time).abs().long()] if self.bias is learned else self.bias(time)
        if self.fused:
            return self.out(join(F.scaled_dot_product_attention(q, k, v, bias.masked_fill(hidden, float("-inf")))))
        scores = q @ k.mT / k.shape[-1] ** 0.5
        scores = scores - -bias if self.taken else scores + bias
        return self.out(join(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v))


def learned(time: int) -> Tensor:
    raise NotImplementedError  # a table of the attention


def absolute(time: int) -> Tensor:
    return (SLOPES.bfloat16() * torch.arange(time).bfloat16()).float().expand(-1, time, -1)


BIASES: dict[str, tuple[Callable[[int], Tensor], int, str | None]] = {
    "wrong-sign": (lambda time: SLOPES * back(time), 16, "grows with the distance"),
    "wrong-sign-both-ways": (lambda time: SLOPES * back(time).abs(), 16, "grows with the distance"),
    "wrong-sign-log": (lambda time: SLOPES * back(time).abs().log1p() * 4, 16, "grows with the distance"),
    "absolute-bfloat16": (absolute, 300, "positions 256 and 257 get the same"),
    "wrong-sign-taken-off": (lambda time: SLOPES * back(time), 16, "grows with the distance"),
    "taken-off": (lambda time: -SLOPES * back(time), 16, None),
    "linear": (lambda time: -SLOPES * back(time), 16, None),
    "both-ways": (lambda time: -SLOPES * back(time).abs(), 16, None),
    "of-the-key": (lambda time: SLOPES * torch.arange(time).expand(time, -1), 16, None),
    "distances-bfloat16": (lambda time: (-SLOPES.bfloat16() * back(time).bfloat16()).float(), 300, None),
    "learned": (learned, 16, None),
    "sink": (lambda time: 2.0 * (torch.arange(time) == 0).float().expand(time, -1), 16, None),
    "global-both-ways": (lambda time: 1.5 * (torch.arange(time) < 4).float().expand(time, -1), 16, None),
    "newest-first-both-ways": (lambda time: -0.3 * torch.arange(time).expand(time, -1), 16, None),
    "some-heads": (lambda time: SLOPES * back(time) * torch.tensor([1.0, -1, -1, -1])[:, None, None], 16, None),
}


@pytest.mark.parametrize("name", BIASES)
def test_biases_that_favour_what_is_far_or_are_rounded_are_reported(name: str) -> None:
    bias, time, said = BIASES[name]
    torch.manual_seed(0)
    layers = [PreLayer() for _ in range(2)]
    for layer in layers:
        layer.attn = Biased(bias, fused="log" in name or name == "both-ways", causal="both" not in name)
        layer.attn.taken = "taken" in name
    model = started(Rotary(layers, nn.LayerNorm(WIDTH)))
    del model.positions
    findings = isograd.check(model, torch.randint(1, VOCABULARY, (2, time)), prove=False)
    found = [f.message for f in findings if f.code == "position-bias-wrong"]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


class Frequent(Turning):
    """Frequencies in a buffer."""

    def __init__(self, filled: bool) -> None:
        super().__init__()
        self.register_buffer("inv_freq", FREQUENCIES * filled)

    def angles(self, time: int) -> Tensor:
        return torch.outer(torch.arange(time).float(), self.get_buffer("inv_freq"))


class Tabled(nn.Module):
    """An encoder whose positions, or their frequencies, are a buffer."""

    def __init__(self, filled: bool, frequencies: bool) -> None:
        super().__init__()
        layers = [Frequent(filled) for _ in range(2)] if frequencies else looking()
        self.body, self.frequencies = started(Decoder([*layers], None)), frequencies
        del self.body.positions
        table = torch.randn(POSITIONS, WIDTH) * 0.02
        self.register_buffer("table", table * filled)
        self.register_buffer("centre", torch.zeros(1, WIDTH))  # not yet moved

    def forward(self, ids: Tensor) -> Tensor:
        x = self.body.tokens(ids) - self.get_buffer("centre")
        x = x if self.frequencies else x + self.get_buffer("table")[: ids.shape[1]]
        for layer in self.body.layers:
            x = layer(x)
        return self.body.head(x)


def looking() -> list[nn.Module]:
    return [PreLayer(visible=lambda time: torch.ones(time, time, dtype=torch.bool)) for _ in range(2)]


@pytest.mark.parametrize("frequencies", [False, True])
@pytest.mark.parametrize("filled", [False, True])
def test_a_buffer_of_positions_that_was_never_filled_is_named(filled: bool, frequencies: bool) -> None:
    model = Tabled(filled, frequencies).eval()
    findings = isograd.check(model, torch.randint(1, VOCABULARY, (2, 12)), prove=False)
    found = [(f.address, "is all zeros" in f.message) for f in findings if f.code == "positions-missing"]
    assert found == ([] if filled else [("body.layers.0.inv_freq" if frequencies else "table", True)])


# ------------------------------------------------------------------------------ queries of the memory, and routers


class Crossing(PreLayer):
    """A decoder's layer; `swapped` takes the queries of its cross-attention from the memory."""

    def __init__(self, swapped: bool, by_hand: bool) -> None:
        super().__init__()
        self.cross_norm, self.swapped, self.by_hand = nn.LayerNorm(WIDTH), swapped, by_hand
        self.cross = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        y = self.cross_norm(x)
        ask, read = (memory, y) if self.swapped else (y, memory)
        if self.by_hand:
            scores = split(self.q(ask)) @ split(self.k(read)).mT / 8**0.5
            x = x + self.o(join(scores.softmax(-1) @ split(self.v(read))))
        else:
            x = x + self.cross(ask, read, read, need_weights=False)[0]
        return x + self.ffn(self.ffn_norm(x))


class Translating(nn.Module):
    def __init__(self, swapped: bool, by_hand: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = Rotary(looking(), nn.LayerNorm(WIDTH)), nn.ModuleList()
        self.encoder.head = nn.Identity()
        self.decoder.extend(Crossing(swapped, by_hand) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        table = self.encoder.positions.weight[: src.shape[1]]
        memory, x = self.encoder.tokens(src) + table, self.encoder.tokens(tgt) + table[: tgt.shape[1]]
        for layer in self.encoder.layers:
            memory = layer(memory)
        for layer in self.decoder:
            x = layer(x, self.encoder.final_norm(memory))
        return self.head(self.norm(x))


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_queries_of_the_memory_are_called_swapped(swapped: bool, by_hand: bool) -> None:
    torch.manual_seed(0)
    model = started(Translating(swapped, by_hand), 0.1)
    batch = {name: torch.randint(1, VOCABULARY, (3, 12)) for name in ("src", "tgt")}
    found = [f for f in isograd.check(model, batch, prove=False) if f.code == "future-leaks"]
    assert ["query and memory are swapped" in f.message for f in found] == [True] * swapped


SHARED: dict[str, tuple[int, Callable[[Tensor], Tensor], bool]] = {  # k, weights of the chosen, whether it learns
    "over-its-sum": (1, lambda w: w / (w.sum(-1, keepdim=True) + 1e-20), False),
    "softmax-of-one": (1, lambda w: w.softmax(-1) + 0 * w, False),
    "even": (2, lambda w: w / w.detach().clamp_min(1e-20) * 0 + 0.5, False),
    "probability": (1, lambda w: w, True),
    "two-over-their-sum": (2, lambda w: w / w.sum(-1, keepdim=True), True),
    "sigmoid": (1, lambda w: w.sigmoid(), True),
}


class Sharing(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.k, self.weigh, _ = SHARED[name]
        self.router, self.experts = nn.Linear(WIDTH, 4), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        best, at = shares.topk(self.k, -1)
        weights = torch.zeros_like(shares).scatter(-1, at, self.weigh(best))
        self.balance = 4 * (shares.mean((0, 1)) * F.one_hot(at[..., 0], 4).float().mean((0, 1))).sum()
        return torch.stack([e(x) for e in self.experts], -1).mul(weights[..., None, :]).sum(-1)


class Routed(Rotary):
    def forward(self, input_ids: Tensor) -> Any:
        logits = super().forward(input_ids)
        return logits, sum(layer.ffn.balance for layer in self.layers)


@pytest.mark.parametrize("name", SHARED)
def test_a_router_that_learns_from_its_balance_alone_is_reported(name: str) -> None:
    torch.manual_seed(0)
    layers = [PreLayer() for _ in range(2)]
    for layer in layers:
        layer.ffn = Sharing(name)
    model = started(Routed(layers, nn.LayerNorm(WIDTH)), 0.2)
    findings = isograd.check(model, torch.randint(1, VOCABULARY, (3, 12)), prove=False)
    found = [(f.severity, "router" in f.address) for f in findings if f.code in ("gradient-zero", "gradient-cut")]
    assert found == ([] if SHARED[name][2] else [("warning", True)])


class OverPositions(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean((1, 2), keepdim=True) + 1e-6) * self.scale


def test_a_norm_over_positions_is_the_cause_of_what_it_lets_through() -> None:
    torch.manual_seed(0)
    model = started(layers_of(lambda: PreLayer(norm=OverPositions)), 0.2)
    ids = torch.randint(1, VOCABULARY, (3, 12))

    def next_tokens(logits: Tensor, batch: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())

    (leak,) = [f for f in isograd.check(model, ids, loss=next_tokens, prove=True) if f.code == "future-leaks"]
    assert "mean takes its statistics of (3, 12, " in leak.message and "over axis 1, the positions" in leak.message
    assert leak.address == "layers.0.attn_norm"


# ------------------------------------------------------------------------------ what a table, a setting or an axis says


class Scanned(nn.Module):
    """A recurrence after a convolution over (batch, time) ids, or over (time, batch); which outputs are kept."""

    def __init__(self, ahead: int = 0, depth: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head = nn.Embedding(60, 16), nn.Linear(16, 60, bias=False)
        self.mix = nn.ModuleList(nn.Conv1d(16, 16, 4, padding=3, groups=16) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.ahead = ahead

    def forward(self, input_ids: Tensor) -> Tensor:
        x, time = self.tokens(input_ids), input_ids.shape[1]
        for mix, norm, out in zip(self.mix, self.norms, self.out, strict=True):
            h = mix(norm(x).transpose(1, 2))[:, :, self.ahead : self.ahead + time].transpose(1, 2)
            state, made = torch.zeros_like(h[:, 0]), []
            for t in range(time):
                state = 0.9 * state + F.silu(h[:, t])
                made.append(state)
            x = x + out(torch.stack(made, 1))
        return self.head(x)


class BothScans(Scanned):
    """Forward and backward, as in a bidirectional state space."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids) + super().forward(input_ids.flip(1)).flip(1)


def test_a_recurrence_that_reads_a_little_ahead_leaks() -> None:
    """Each of four layers sees three tokens ahead: of a short text together nearly all that follow."""
    (found,) = [f for f in isograd.check(Scanned(ahead=3)) if f.code in ("future-leaks", "bidirectional-logits")]
    assert found.code == "future-leaks" and found.severity == "error"
    assert not [f for f in isograd.check(Scanned()) if "leaks" in f.code or f.code == "bidirectional-logits"]
    (found,) = [f for f in isograd.check(BothScans()) if f.code in ("future-leaks", "bidirectional-logits")]
    assert found.code == "bidirectional-logits" and found.severity == "info"


class Unsaid(Scanned):
    def forward(self, tokens: Tensor) -> Tensor:
        x, made = self.tokens(tokens), []
        state = torch.zeros_like(x[0])
        for one in x:
            state = 0.9 * state + F.silu(self.out[0](one))
            made.append(state)
        return self.head(torch.stack(made))


def test_a_docstring_says_which_axis_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from isograd.lint import intent

    ids = torch.randint(60, (40, 4))
    assert "batch-leaks" in isograd.check(Unsaid(), ids).codes
    text = "class Unsaid:\n    def forward(self, tokens):\n        '''tokens (T, B)'''\n"
    monkeypatch.setattr(intent.inspect, "getsource", lambda of: text)
    assert "batch-leaks" not in isograd.check(Unsaid(), ids).codes


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("tie_weights", True, True), ("share_decoder_input_output_embed", True, True), ("weight_tying", True, True),
        ("share_embeddings", True, False), ("tie_qk", True, False), ("no_weight_tying", True, False),
        ("tie_weights", False, False), ("untied_head", True, False), ("share_layers", True, False),
    ],
)  # fmt: skip
def test_a_setting_that_ties_the_head(name: str, value: bool, named: bool) -> None:
    model = Scanned()
    model.settings = SimpleNamespace(**{name: value})  # type: ignore[assignment]
    assert ("embedding-untied" in isograd.check(model).codes) is named
    model.head.weight = model.tokens.weight
    assert "embedding-untied" not in isograd.check(model).codes


@pytest.mark.parametrize("frozen", [True, False])
def test_a_table_of_positions_that_was_never_filled(frozen: bool) -> None:
    """A frozen one at zero stays there; a trained one leaves it."""
    model = pre()
    model.positions.weight = nn.Parameter(torch.zeros_like(model.positions.weight), requires_grad=not frozen)
    assert ("positions-missing" in isograd.check(model).codes) is frozen


# ------------------------------------------------------------------------------ axes that a view joins and parts


class Interleaved(nn.Module):
    """Three kinds of tokens at each step, one after the other; `join` makes one axis of (b, kinds, steps, d)."""

    def __init__(self, join: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kinds = nn.ModuleList(nn.Linear(5, WIDTH) for _ in range(3))
        self.layers = nn.ModuleList(PreLayer() for _ in range(2))
        self.head, self.join = nn.Linear(WIDTH, 5), join

    def forward(self, x: Tensor) -> Tensor:
        batch, steps = x.shape[:2]
        tokens = self.join(torch.stack([kind(x) for kind in self.kinds], 1))
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(tokens.reshape(batch, steps, 3, WIDTH)[:, :, 1])


@pytest.mark.parametrize(
    ("join", "named"),
    [
        (lambda x: x.flatten(1, 2), True),
        (lambda x: x.reshape(len(x), -1, WIDTH), True),
        (lambda x: x.transpose(1, 2).reshape(len(x), -1, WIDTH), False),
        (lambda x: x.permute(0, 2, 1, 3).flatten(1, 2), False),
    ],
)
def test_axes_that_are_joined_and_parted_otherwise(join: Callable[[Tensor], Tensor], named: bool) -> None:
    assert ("axes-mixed" in isograd.check(Interleaved(join), torch.randn(2, 7, 5)).codes) is named


class Cut(nn.Module):
    """Pictures or series cut into rows of numbers by `cut`, which a matrix takes to tokens."""

    def __init__(self, cut: Callable[[Tensor], Tensor], size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.embed, self.head = cut, nn.Linear(size, WIDTH), nn.Linear(WIDTH, 10)
        self.layers = nn.ModuleList(PreLayer() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(self.cut(x))
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(tokens.mean(1))


PICTURES, SERIES = (2, 3, 16, 16), (2, 8, 96)


@pytest.mark.parametrize(
    ("shape", "size", "cut", "named"),
    [
        (PICTURES, 48, lambda x: x.reshape(2, 16, 48), True),
        (PICTURES, 48, lambda x: (x - 0.5).view(2, 16, 48), True),
        (SERIES, 64, lambda x: x.reshape(2, 12, 64), False),  # which axis is time, is not known
        (PICTURES, 48, lambda x: F.unfold(x, 4, stride=4).transpose(1, 2), False),
        (PICTURES, 48, lambda x: x.view(2, 3, 4, 4, 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(2, 16, 48), False),
        (PICTURES, 48, lambda x: x.permute(0, 2, 3, 1).reshape(2, 16, 48), False),  # a row of pixels each
        (PICTURES, 256, lambda x: x.reshape(2, 3, 256), False),  # a channel each
        (SERIES, 64, lambda x: x.transpose(1, 2).reshape(2, 12, 64), False),
        (SERIES, 8, lambda x: x.transpose(1, 2), False),
    ],
)
def test_data_that_is_cut_as_it_lies_in_memory(shape: Any, size: int, cut: Any, named: bool) -> None:
    assert ("axes-mixed" in isograd.check(Cut(cut, size), torch.randn(shape)).codes) is named


class Actor(nn.Module):
    """A policy's distribution, and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.policy, self.value = nn.Linear(6, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Any:
        h = self.body(x).tanh()
        return torch.distributions.Categorical(logits=self.policy(h)), self.value(h)


def test_a_distribution_is_an_output() -> None:
    assert not [f for f in isograd.check(Actor(), torch.randn(5, 6)) if f.severity != "info"]
