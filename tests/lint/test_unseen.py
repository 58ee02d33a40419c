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
