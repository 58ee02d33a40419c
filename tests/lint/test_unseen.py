"""What models had that were written without sight of the rules: designs that are no faults, and faults not seen."""

import copy
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
from tests.lint.test_readings import checked, everywhere, serious

PAD = 0


def layers_of(layer: Callable[[], nn.Module], depth: int = 3) -> Decoder:
    torch.manual_seed(0)
    return started(Decoder([layer() for _ in range(depth)], nn.LayerNorm(WIDTH)))


class RotatedLayer(PreLayer):
    """Rotary angles of (T, D), on queries and keys as (B, H, T, D) or, wrongly, as (B, T, H, D)."""

    split_first = True

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(32.0), 0.1 ** torch.arange(WIDTH // HEADS // 2))
        self.register_buffer("angles", torch.cat((angles, angles), -1))

    def turned(self, x: Tensor) -> Tensor:
        angles = self.get_buffer("angles")[: x.shape[-2]]
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-b, a), -1) * angles.sin()

    def rotated(self, x: Tensor) -> Tensor:
        return self.turned(split(x)) if self.split_first else self.turned(split(x).transpose(1, 2)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attn_norm(x)
        q, k = self.rotated(self.attn.query(y)), self.rotated(self.attn.key(y))
        mixed = F.scaled_dot_product_attention(q, k, split(self.attn.value(y)), is_causal=True)
        x = x + self.attn.out(join(mixed))
        return x + self.ffn(self.ffn_norm(x))


class TurnedByHead(RotatedLayer):
    split_first = False


class Rotary(Decoder):
    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


@pytest.mark.parametrize(("layer", "codes"), [(RotatedLayer, []), (TurnedByHead, ["rotary-wrong"])])
def test_angles_along_the_heads_are_no_positions(layer: type[PreLayer], codes: list[str]) -> None:
    torch.manual_seed(0)
    model = started(Rotary([layer() for _ in range(3)], nn.LayerNorm(WIDTH)))
    del model.positions
    assert serious(checked(model)) == codes


class Sharpened(PreLayer):
    """Queries that grow with their position, and are not turned, as layers without rotary positions have for length."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.attn_norm(x)
        places = torch.arange(x.shape[1]).view(-1, 1)
        q = split(self.attn.query(y)) * (1 + 0.1 * torch.log1p(places / 4))
        mixed = F.scaled_dot_product_attention(q, split(self.attn.key(y)), split(self.attn.value(y)), is_causal=True)
        x = x + self.attn.out(join(mixed))
        return x + self.ffn(self.ffn_norm(x))


def test_a_factor_by_position_is_no_rotation() -> None:
    torch.manual_seed(0)
    model = started(Rotary([Sharpened() for _ in range(3)], nn.LayerNorm(WIDTH)))
    del model.positions
    assert "rotary-wrong" not in serious(checked(model))


class FromLayerInput(PreLayer):
    """The feed-forward is added to the layer's input, not to what it has read."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(self.ffn_norm(x + self.attn(self.attn_norm(x))))


def test_a_shortcut_around_two_sublayers_leaves_the_first_out() -> None:
    findings = checked(layers_of(FromLayerInput))
    assert serious(findings) == ["shortcut-missing"] and "starts before the attn" in str(findings)


class Nested(PreLayer):
    """Residual in residual, as super-resolution has it: x + conv(layers(x))."""

    def __init__(self) -> None:
        super().__init__()
        del self.attn, self.attn_norm, self.ffn, self.ffn_norm
        self.inner, self.last = nn.Sequential(PreLayer(), PreLayer()), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.inner(x))


def test_a_shortcut_around_a_stage_is_none_of_these() -> None:
    assert "shortcut-missing" not in checked(layers_of(Nested)).codes


class Normalized(nn.Linear):
    """Rows of length one."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.normalize(self.weight, dim=-1), self.bias)


class ByIndex(Decoder):
    """A normalized table that ids index, matrices that are normalized as they are used."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = F.normalize(self.tokens.weight, dim=-1)[input_ids] + self.positions.weight[: input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


def test_normalized_matrices_and_indexed_tables_are_matrices_and_tables() -> None:
    torch.manual_seed(0)
    model = started(ByIndex([PreLayer() for _ in range(3)], nn.LayerNorm(WIDTH)))
    for module in model.layers.modules():
        if type(module) is nn.Linear:
            module.__class__ = Normalized
    assert set(checked(model).placements.values()) == {"pre-ln"}


class Masked(Decoder):
    """Attention by a mask of its own for each sequence."""

    def forward(self, input_ids: Tensor, seen: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        for layer in self.layers:
            y = layer.attn_norm(x)
            q, k, v = (split(p(y)) for p in (layer.attn.query, layer.attn.key, layer.attn.value))
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None])
            x = x + layer.attn.out(join(mixed))
            x = x + layer.ffn(layer.ffn_norm(x))
        logits: Tensor = self.head(self.final_norm(x))
        return logits


def masks(prefixes: tuple[int, int], length: int = 10) -> Tensor:
    """Causal, but for a prefix of each of two sequences."""
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return torch.stack([causal | (torch.arange(length) < prefix) for prefix in prefixes])


@pytest.mark.parametrize("prefixes", [(4, 6), (5, 5)])
def test_a_prefix_that_sees_all_of_itself_is_no_leak(prefixes: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = started(Masked([PreLayer() for _ in range(3)], nn.LayerNorm(WIDTH)))
    ids = torch.randint(VOCABULARY, (2, 10))
    assert "future-leaks" not in isograd.check(model, (ids, masks(prefixes))).codes


@pytest.mark.parametrize("hidden", [0, 3])
def test_padding_in_the_batch_makes_no_causal_model_of_one_that_reads_both_ways(hidden: int) -> None:
    torch.manual_seed(0)
    model = started(Masked([PreLayer() for _ in range(3)], nn.LayerNorm(WIDTH)))
    seen = torch.ones(2, 10, 10, dtype=torch.bool)
    seen[0, :, 10 - hidden :] = False
    findings = isograd.check(model, (torch.randint(VOCABULARY, (2, 10)), seen))
    assert "future-leaks" not in findings.codes and "bidirectional-logits" in findings.codes


class Reversible(torch.autograd.Function):
    """Two streams without kept activations: on its way back it calls backward() for the parameters itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, layer: nn.Module) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            y = y + layer.attn(layer.attn_norm(x))
            x = x + layer.ffn(layer.ffn_norm(y))
        ctx.layer, ctx.made = layer, (x, y)
        return x, y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        layer, (x, y), (of_x, of_y) = ctx.layer, ctx.made, grads
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            branch = layer.ffn(layer.ffn_norm(y))
            branch.backward(of_x)
            before = (x - branch).detach().requires_grad_()
            layer.attn(layer.attn_norm(before)).backward(of_y + y.grad)
        return of_x + before.grad, of_y + y.grad, None


class TwoStreams(Decoder):
    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        y = x
        for layer in self.layers:
            x, y = Reversible.apply(x, y, layer)
        logits: Tensor = self.head(self.final_norm((x + y) / 2))
        return logits


def test_gradients_that_a_reversible_layer_leaves_are_gradients() -> None:
    torch.manual_seed(0)
    model = started(TwoStreams([PreLayer() for _ in range(3)], nn.LayerNorm(WIDTH)))
    assert [f.code for f in checked(model) if f.severity != "info" and f.kind == "fact"] == []


class Conditioned(nn.Module):
    """adaLN: shift, scale and gate of every branch by the class and the time of a picture; gates begin at zero."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.patches, self.places = nn.Linear(12, WIDTH), nn.Parameter(torch.randn(16, WIDTH) * 0.02)
        self.classes = nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(
            PreLayer(norm=lambda d: nn.LayerNorm(d, elementwise_affine=False), visible=everywhere) for _ in range(3)
        )
        self.made = nn.ModuleList(nn.Linear(WIDTH, 6 * WIDTH) for _ in range(3))
        for made in self.made:
            nn.init.normal_(made.weight, std=gate)
            nn.init.zeros_(made.bias)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        x, c = self.patches(x) + self.places, F.silu(self.classes(label))
        for layer, made in zip(self.layers, self.made, strict=True):
            shift, scale, gate, shift2, scale2, gate2 = (z.unsqueeze(1) for z in made(c).chunk(6, -1))
            x = x + gate * layer.attn(layer.attn_norm(x) * (1 + scale) + shift)
            x = x + gate2 * layer.ffn(layer.ffn_norm(x) * (1 + scale2) + shift2)
        out: Tensor = self.head(self.norm(x))
        return out


@pytest.mark.parametrize("gate", [0.0, 0.3])
def test_modulated_norms_are_norms(gate: float) -> None:
    torch.manual_seed(0)
    findings = isograd.check(Conditioned(gate).eval(), (torch.randn(2, 16, 12), torch.tensor([3, 7])))
    assert set(findings.placements.values()) == {"pre-ln"} and not findings.errors, str(findings)


def test_the_row_of_padding_has_no_gradient_on_purpose() -> None:
    model = pre(3)
    model.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PAD)
    nn.init.normal_(model.tokens.weight, std=0.5)
    model.head = nn.Linear(WIDTH, VOCABULARY)
    ids = torch.randint(VOCABULARY, (2, 10))
    ids[:, :4] = PAD
    assert "gradient-cut" not in isograd.check(model, ids).codes


class Talking(Attention):
    """Heads mixed by a matrix that begins as the identity, and a last matrix before a gate, which begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.talk, self.gate = nn.Linear(HEADS, HEADS, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = self.talk(scores.movedim(1, -1)).movedim(-1, 1)
        scores = scores.masked_fill(~self.visible(x.shape[1]), float("-inf"))
        return torch.sigmoid(self.gate(x)) * self.out(join(scores.softmax(-1) @ v))


class TalkingLayer(PreLayer):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Talking()


def test_identities_are_no_copies_and_a_matrix_before_a_gate_may_begin_at_zero() -> None:
    model = layers_of(TalkingLayer)
    for layer in model.layers:
        nn.init.eye_(layer.attn.talk.weight)
        nn.init.zeros_(layer.attn.out.weight)
    assert [f.code for f in checked(model) if f.severity != "info" and f.kind == "fact"] == []


class LongSkips(Decoder):
    """A U-Net over depth: the second half reads the first half's sums again, with trained weights."""

    def __init__(self, layers: list[nn.Module], final: nn.Module | None) -> None:
        super().__init__(layers, final)
        self.skip_weights_norm = nn.Parameter(torch.ones(len(layers) // 2))

    def forward(self, input_ids: Tensor) -> Tensor:
        x, kept = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1])), list[Tensor]()
        for i, layer in enumerate(self.layers):
            if i >= len(self.layers) // 2:
                x = x + self.skip_weights_norm[i - len(self.layers) // 2] * kept.pop()
            x = layer(x)
            if i < len(self.layers) // 2:
                kept.append(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


def test_long_skips_are_no_shortcuts_of_a_sublayer() -> None:
    torch.manual_seed(0)
    model = started(LongSkips([PreLayer() for _ in range(6)], nn.LayerNorm(WIDTH)))
    for layer in model.layers:
        nn.init.zeros_(layer.ffn.down.weight)  # type: ignore[union-attr, arg-type]
        nn.init.zeros_(layer.attn.out.weight)  # type: ignore[union-attr, arg-type]
    findings = checked(model)
    assert serious(findings) == [] and set(findings.formulas.values()) == {"x + attn(pre(x))", "x + ffn(pre(x))"}


class FirstBare(Decoder):
    def __init__(self, layers: list[nn.Module], final: nn.Module | None) -> None:
        super().__init__(layers, final)
        layers[0].attn_norm = nn.Identity()


def test_a_first_attention_without_a_norm_is_a_design() -> None:
    """FT-Transformer's (Gorishniy et al. 2021)."""
    torch.manual_seed(0)
    assert serious(checked(started(FirstBare([PreLayer() for _ in range(4)], nn.LayerNorm(WIDTH))))) == []


class Translator(nn.Module):
    """Ids in, masks made within; the cross-attention gets the mask of the source or, wrongly, of the target."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong, options = wrong, {"dim_feedforward": 64, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.tokens, self.places = nn.Embedding(50, WIDTH), nn.Embedding(16, WIDTH)
        self.encoder = nn.ModuleList(
            copy.deepcopy(nn.TransformerEncoderLayer(WIDTH, HEADS, **options)) for _ in range(2)
        )
        self.decoder = nn.ModuleList(
            copy.deepcopy(nn.TransformerDecoderLayer(WIDTH, HEADS, **options)) for _ in range(2)
        )
        self.norm, self.last, self.head = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 50)

    def embedded(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1]))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        x, y, source, target = self.embedded(src), self.embedded(tgt), src == PAD, tgt == PAD
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=source)
        x, causal = self.norm(x), torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        for layer in self.decoder:
            across = target if self.wrong else source
            y = layer(y, x, causal, tgt_key_padding_mask=target, memory_key_padding_mask=across)
        logits: Tensor = self.head(self.last(y))
        return logits


@pytest.mark.parametrize("wrong", [True, False])
def test_a_cross_attention_with_the_mask_of_the_target(wrong: bool) -> None:
    torch.manual_seed(0)
    src, tgt = torch.randint(1, 50, (2, 10)), torch.randint(1, 50, (2, 10))
    src[0, 7:] = tgt[1, 8:] = PAD
    findings = isograd.check(Translator(wrong=wrong).eval(), (src, tgt))
    assert ("padding-leaks" in findings.codes) == wrong, str(findings)


class Ranked(Decoder):
    """Two sequences in, scores of both out, as a recommender is trained."""

    def forward(self, input_ids: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        state = self.final_norm(self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1])))
        for layer in self.layers:
            state = layer(state)
        state = self.final_norm(state)
        return (state * self.tokens(input_ids)).sum(-1), (state * self.tokens(negative)).sum(-1)


def test_an_input_of_the_second_output_is_read() -> None:
    torch.manual_seed(0)
    model = started(Ranked([PreLayer() for _ in range(2)], nn.LayerNorm(WIDTH)))
    assert "encoder-unused" not in isograd.check(model, tuple(torch.randint(VOCABULARY, (2, 2, 10)))).codes


class Looking(nn.Module):
    """Flamingo's: gates that begin at zero, and nothing for a text that stands before any picture."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, WIDTH), nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(PreLayer() for _ in range(2))
        self.looks, self.norms = (
            nn.ModuleList(make() for _ in range(2)) for make in (Attention, lambda: nn.LayerNorm(WIDTH))
        )
        self.gates_norm = nn.Parameter(torch.zeros(2))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 50)

    def forward(self, ids: Tensor, picture: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        after = (torch.arange(ids.shape[1]) > 3)[None, None, :, None]
        for layer, look, norm, gate in zip(self.layers, self.looks, self.norms, self.gates_norm, strict=True):
            q, k, v = split(look.query(norm(x))), split(look.key(picture)), split(look.value(picture))
            weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).masked_fill(~after, 0.0)
            x = layer(x + gate.tanh() * look.out(join(weights @ v)))
        logits: Tensor = self.head(self.last(x))
        return logits


def test_closed_gates_and_texts_before_a_picture() -> None:
    torch.manual_seed(0)
    findings = isograd.check(Looking().eval(), (torch.randint(50, (2, 10)), torch.randn(2, 6, WIDTH)))
    assert not findings.errors, str(findings)


class Turns(nn.Module):
    """Latents that read an input again and again: the first time with an attention of its own, as Perceiver's."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(6, WIDTH) * 0.02)
        self.first, self.shared = (
            nn.TransformerDecoderLayer(WIDTH, HEADS, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        inner = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, 0.0, batch_first=True, norm_first=True)
        self.turns = nn.ModuleList(nn.ModuleList([outer, inner]) for outer in (self.first, self.shared, self.shared))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, points: Tensor, mask: Tensor) -> Tensor:
        x = self.latents.expand(len(points), -1, -1)
        for look, think in self.turns:
            x = think(look(x, points, memory_key_padding_mask=mask))
        out: Tensor = self.head(self.norm(x))
        return out


def test_turns_that_share_all_but_the_first_attention() -> None:
    torch.manual_seed(0)
    mask = torch.arange(9).expand(2, 9) >= torch.tensor([[9], [6]])
    findings = isograd.check(Turns().eval(), (torch.randn(2, 9, WIDTH), mask))
    assert not {"layers-shared", "future-leaks"} & findings.codes, str(findings)


class Loop(Decoder):
    """Its layers run three times, and gradients of the last alone."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        for turn in range(3):
            for layer in self.layers:
                x = layer(x)
            x = x.detach() + 0.1 * x if turn < 1 else x
        logits: Tensor = self.head(self.final_norm(x))
        return logits


def test_what_a_loop_detaches_may_be_meant() -> None:
    torch.manual_seed(0)
    findings = isograd.check(started(Loop([PreLayer() for _ in range(2)], nn.LayerNorm(WIDTH))))
    assert [f.severity for f in findings if f.code == "gradient-cut"] in ([], ["info"])


class Scored(Masked):
    """One score for each position."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        seen = attention_mask.bool()[:, None, :].expand(-1, input_ids.shape[1], -1)
        return super().forward(input_ids, seen)[..., 0]


def test_scores_of_padding_may_change_with_it() -> None:
    torch.manual_seed(0)
    model = started(Scored([PreLayer() for _ in range(2)], nn.LayerNorm(WIDTH)))
    batch = {"input_ids": torch.randint(VOCABULARY, (2, 12)), "attention_mask": torch.ones(2, 12, dtype=torch.long)}
    assert "padding-leaks" not in isograd.check(model, batch).codes


@pytest.mark.parametrize("turned", [True, False])
def test_a_mask_of_padding_the_wrong_way_round_hides_whole_sequences(turned: bool) -> None:
    torch.manual_seed(0)
    model = started(Masked([PreLayer() for _ in range(2)], nn.LayerNorm(WIDTH)))
    padding = torch.arange(10).expand(2, 10) >= torch.tensor([[10], [7]])
    seen = (padding if turned else ~padding)[:, None, :].expand(-1, 10, -1)
    findings = isograd.check(model, (torch.randint(VOCABULARY, (2, 10)), seen))
    assert ("mask-blocks-self" in findings.codes) == turned, str(findings)


class Coded(nn.Module):
    """An encoder and a decoder with a narrow map of two matrices between them, which is no feed-forward of either."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.places = nn.Linear(6, WIDTH), nn.Parameter(torch.randn(10, WIDTH) * 0.02)
        self.encoder, self.decoder = (nn.ModuleList(PreLayer(visible=everywhere) for _ in range(2)) for _ in range(2))
        self.norm, self.last, self.head = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 6)
        self.code = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x) + self.places
        for layer in self.encoder:
            x = layer(x)
        x = self.code(self.norm(x))
        for layer in self.decoder:
            x = layer(x)
        out: Tensor = self.head(self.last(x))
        return out


def test_a_bottleneck_between_two_stacks_needs_no_shortcut() -> None:
    torch.manual_seed(0)
    assert not isograd.check(Coded().eval(), torch.randn(2, 10, 6)).errors


class Local(Attention):
    """Attention both ways without the diagonal (locality self-attention), or strictly causal."""

    causal = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        hidden = seen.triu() if self.causal else ~(seen ^ torch.eye(x.shape[1], dtype=torch.bool))
        scores = (q @ k.transpose(-2, -1)) * k.shape[-1] ** -0.5
        return self.out(join(scores.masked_fill(hidden, -1e9).softmax(-1) @ v))


class LocalLayer(PreLayer):
    attention: type[Local] = Local

    def __init__(self) -> None:
        super().__init__()
        self.attn = self.attention()


class Strict(Local):
    causal = True


class StrictLayer(LocalLayer):
    attention = Strict


class ClassToken(nn.Module):
    """A classifier that reads the first position of the last layer."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.body = layers_of(layer)
        self.body.head = nn.Identity()
        self.classes = nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.classes(self.body(ids)[:, 0])


@pytest.mark.parametrize(("layer", "severity"), [(LocalLayer, "info"), (StrictLayer, "error")])
def test_a_hidden_diagonal_among_all_keys_may_be_meant(layer: Callable[[], nn.Module], severity: str) -> None:
    findings = isograd.check(ClassToken(layer), torch.randint(1, VOCABULARY, (4, 10)))
    assert [f.severity for f in findings if f.code == "mask-blocks-self"] == [severity]


class OwnQueries(Local):
    """Queries of the first position by a matrix of its own, as in Visformers with a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.others = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        rest = split(self.others(x))
        q = torch.cat([q[:, :, :1], rest[:, :, 1:]], dim=2)
        return self.out(join(F.scaled_dot_product_attention(q, k, v)))


class OwnQueriesLayer(LocalLayer):
    attention = OwnQueries


def test_queries_of_the_last_layer_that_a_class_token_leaves_are_no_error() -> None:
    findings = isograd.check(ClassToken(OwnQueriesLayer), torch.randint(1, VOCABULARY, (4, 10)))
    assert [(f.severity, "others" in f.address) for f in findings if f.code == "gradient-zero"] == [("warning", True)]
    assert not findings.errors


@pytest.mark.parametrize(("rows", "codes"), [((-3, None), set()), ((5, 9), {"weights-partial"})])
def test_rows_that_were_added_to_a_table_may_be_alike(rows: tuple[int, int | None], codes: set[str]) -> None:
    """New tokens begin as the mean of the others; rows in the middle that are alike were copied."""
    model = layers_of(PreLayer)
    table = next(p for p in model.parameters() if p.shape == (VOCABULARY, WIDTH))
    with torch.no_grad():
        table[slice(*rows)] = table[:10].mean(0)
    assert isograd.check(model, torch.randint(1, 10, (4, 8))).codes & {"weights-partial"} == codes


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
