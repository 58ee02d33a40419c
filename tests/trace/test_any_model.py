"""Models that nobody tuned the trace to: other ways of writing attention, norms, experts, and what wraps a model."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import isograd
from isograd.errors import InputsError
from isograd.trace.anatomy import find_anatomy
from isograd.trace.inputs import guess_inputs
from isograd.trace.record import record
from tests.lint.families import FAMILIES, IMAGE, SMALL, of

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(0))


def softmax_by_hand(scores: Tensor) -> Tensor:
    grown = (scores - scores.amax(-1, keepdim=True)).exp()
    return grown / grown.sum(-1, keepdim=True)


def relu_weights(scores: Tensor) -> Tensor:
    kept = F.relu(scores) + 1e-3
    return kept / kept.sum(-1, keepdim=True)


def sigmoid_weights(scores: Tensor) -> Tensor:
    """No attention by what it does: rows do not sum to one."""
    return torch.sigmoid(scores) / 3


class Weighs(nn.Module):
    """Two layers x + W_O (weights(q k) v), x + ffn(x), each behind a norm."""

    def __init__(self, weights: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weights = weights
        self.projections = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))
        self.ffn = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for layer in range(2):
            q, k, v, out = self.projections[4 * layer : 4 * layer + 4]
            h = self.norms[2 * layer](x)
            x = x + out(self.weights(q(h) @ k(h).transpose(1, 2) / 4) @ v(h))
            into, back = self.ffn[2 * layer : 2 * layer + 2]
            x = x + back(F.gelu(into(self.norms[2 * layer + 1](x))))
        return self.norms[4](x)


@pytest.mark.parametrize(
    ("weights", "kind"), [(softmax_by_hand, "attn"), (relu_weights, "attn"), (sigmoid_weights, "mix")]
)
def test_attention_is_weights_that_sum_to_one(weights: Any, kind: str) -> None:
    torch.manual_seed(0)
    found = find_anatomy(Weighs(weights), X)
    assert [(s.kind, s.placement) for s in found.sublayers] == [(kind, "pre-ln"), ("ffn", "pre-ln")] * 2


class ChannelsFirst(nn.Module):
    """x + conv(norm(x)) on (batch, width, time), the norm over the width by hand, convolutions of one position."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.ModuleList(nn.Conv1d(16, 32, 1) for _ in range(3))
        self.back = nn.ModuleList(nn.Conv1d(32, 16, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for into, back in zip(self.into, self.back, strict=True):
            centred = x - x.mean(1, keepdim=True)
            normed = centred / torch.sqrt(centred.square().mean(1, keepdim=True) + 1e-5)
            x = x + back(F.gelu(into(normed)))
        return x


def test_a_norm_over_the_second_axis() -> None:
    found = find_anatomy(ChannelsFirst(), torch.randn(2, 16, 9))
    assert [(s.kind, s.placement) for s in found.sublayers] == [("ffn", "pre-ln")] * 3


class Wave(nn.Module):
    """A state-space layer in small: a cumulative sum of gated inputs, D x beside it, inside x + W_O(...)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into, self.gate, self.out = nn.LayerNorm(16), *(nn.Linear(16, 16) for _ in range(3))
        self.d = nn.Parameter(torch.rand(16))

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.into(self.norm(x)))
        state = torch.cumsum(h * torch.sigmoid(self.gate(h)), dim=1)
        return x + self.out(state + self.d * h)


def test_d_times_x_is_no_residual() -> None:
    found = find_anatomy(nn.Sequential(Wave(), Wave(), Wave()), X)
    assert [(s.kind, s.placement) for s in found.sublayers] == [("mix", "pre-ln")] * 3


def test_routing_stays_as_recorded() -> None:
    """Experts by index, whose rows would be others if the replayed router chose anew."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.one, self.two = nn.Linear(16, 2), nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            flat = x.reshape(-1, 16)
            chosen = self.router(flat).argmax(-1)
            out = torch.zeros_like(flat)
            for i, expert in enumerate((self.one, self.two)):
                rows = torch.where(chosen == i)[0]
                out = out.index_add(0, rows, expert(flat[rows]))
            return x + out.view_as(x)

    torch.manual_seed(0)
    model = Experts()
    trace = record(model, X)
    (out,) = trace.replay({trace.inputs["0"]: -X}, [trace.outputs[""]])
    assert out.shape == X.shape and out.isfinite().all()
    assert {s.kind for s in find_anatomy(model, X).sublayers} == {"ffn"}


def test_a_module_that_is_not_run_is_one_line() -> None:
    text = {**SMALL, "max_position_embeddings": 20}
    vision = {"image_size": 16, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**text), vision_config=transformers.CLIPVisionConfig(**vision)
    )
    findings = isograd.check(transformers.LlavaForConditionalGeneration(config), {"input_ids": IDS})
    assert "parameter-unused" not in findings.codes
    assert len([line for line in findings.missed if "do not run through" in line]) == 2  # its eye, and what joins it


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, when torch.compile is imported
def test_what_wraps_a_model_is_taken_off() -> None:
    model = FAMILIES["gpt2"].build()
    expected = isograd.check(model, {"input_ids": IDS})
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        found = isograd.check(wrapped, {"input_ids": IDS})  # type: ignore[arg-type]
        assert (found.placements, found.codes, found.missed) == (expected.placements, expected.codes, ())


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_ddp_is_taken_off_and_shards_are_one_line() -> None:
    model: Any = FAMILIES["llama"].build()
    expected = isograd.check(model, {"input_ids": IDS})
    found = isograd.check(nn.parallel.DistributedDataParallel(model), {"input_ids": IDS})
    assert (found.placements, found.codes, found.missed) == (expected.placements, expected.codes, ())
    sharded: Any = fully_shard(FAMILIES["llama"].build())
    found = isograd.check(sharded, {"input_ids": IDS})
    assert (found.placements, found.codes) == ({}, set())
    assert len(found.missed) == 1 and "FSDP2" in found.missed[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.ao, for torchao
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_quantized_matrices_are_one_line(name: str) -> None:
    quantized = torch.ao.quantization.quantize_dynamic(FAMILIES[name].build(), {nn.Linear}, dtype=torch.qint8)
    found = isograd.check(quantized, {"input_ids": IDS})
    assert found.codes == set()
    assert len(found.missed) == 1 and "quantized" in found.missed[0]


def test_matrices_that_hold_other_tensors_are_one_line() -> None:
    """As torchao's are, and torch's own example of such a tensor."""
    from torch.testing._internal.two_tensor import TwoTensor

    model = FAMILIES["llama"].build()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            half = module.weight.detach() / 2
            module.weight = nn.Parameter(TwoTensor(half, half), requires_grad=False)  # type: ignore[no-untyped-call]
    found = isograd.check(model, {"input_ids": IDS})
    assert found.codes == set()
    assert len(found.missed) == 1 and "quantized" in found.missed[0]


class Adapted(nn.Module):
    """W h + B A h, as a low-rank adapter does it."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.a, self.b = base, nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        return self.base(h) + self.b(self.a(h)) * 2.0


def test_a_low_rank_adapter_is_part_of_its_branch() -> None:
    model: Any = FAMILIES["llama"].build()
    expected = [(s.kind, s.placement) for s in find_anatomy(model, {"input_ids": IDS}).sublayers]
    for layer in model.model.layers:
        layer.self_attn.o_proj = Adapted(layer.self_attn.o_proj)
    assert [(s.kind, s.placement) for s in find_anatomy(model, {"input_ids": IDS}).sublayers] == expected


def test_videos_and_spectrograms() -> None:
    video = of(
        "VivitForVideoClassification", "Vivit", num_frames=4, tubelet_size=[2, 8, 8], **(IMAGE | {"image_size": 16})
    )()
    inputs = guess_inputs(video)
    assert isinstance(inputs, dict) and inputs["pixel_values"].shape == (2, 4, 3, 16, 16)
    sound = {name: IMAGE[name] for name in IMAGE if name not in ("image_size", "patch_size", "num_labels")}
    ast = of("ASTForAudioClassification", "AST", max_length=32, num_mel_bins=32, patch_size=16, **sound)()
    inputs = guess_inputs(ast)
    assert isinstance(inputs, dict) and inputs["input_values"].shape == (2, 32, 32)


class Counts(nn.Module):
    """A number among the arguments, and a table that is no Embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Parameter(torch.randn(20, 8)), nn.Linear(8, 20)

    def forward(self, tokens: Tensor, rounds: int) -> Tensor:
        x = F.embedding(tokens, self.table)
        for _ in range(rounds):
            x = x + torch.tanh(x)
        return self.out(x)


def test_numbers_among_the_arguments() -> None:
    tokens, rounds = guess_inputs(Counts())
    assert isinstance(tokens, Tensor) and tokens.max() < 20 and rounds == 2


def test_the_first_guess_and_its_error_are_shown() -> None:
    class Picky(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            raise RuntimeError(f"no {ids.shape[1]} for me")

    with pytest.raises(InputsError, match=r"on \(2, 16\): RuntimeError: no 16 for me"):
        guess_inputs(Picky(20, 4))
