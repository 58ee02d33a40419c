"""A recorded forward pass, run again with values changed, gives what the changed model gives."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BartConfig, BartForConditionalGeneration, GPT2Config, GPT2LMHeadModel

from isograd.trace.record import Trace, record

IDS = torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(0))


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    ).eval()


def named(trace: Trace, operation: str, module: str) -> Any:
    return next(o for o in trace.operations if o.name == operation and o.module == module)


@torch.no_grad()
def test_the_values_are_those_of_the_model() -> None:
    model = gpt2()
    trace = record(model, {"input_ids": IDS})
    assert torch.equal(trace[trace.outputs["logits"]], model(IDS).logits)
    assert trace.names[named(trace, "layer_norm", "transformer.h.1.ln_2").reads[1]] == "transformer.h.1.ln_2.weight"


@torch.no_grad()
def test_a_silenced_branch_is_a_layer_without_it() -> None:
    """Second source: the same model whose second feed-forward gives zeros."""
    model = gpt2()
    trace = record(model, {"input_ids": IDS})
    branch = named(trace, "addmm", "transformer.h.1.mlp.c_proj").makes[0]
    logits = trace.outputs["logits"]
    (replayed,) = trace.replay({branch: torch.zeros_like(trace[branch])}, [logits])
    second: Any = model.transformer.h[1]
    nn.init.zeros_(second.mlp.c_proj.weight)
    nn.init.zeros_(second.mlp.c_proj.bias)
    want = model(IDS).logits
    assert torch.allclose(replayed, want, atol=1e-6)
    assert not torch.allclose(trace[logits], want, atol=1e-3)  # negative control: silence is heard


@torch.no_grad()
def test_other_ids_are_the_model_on_other_ids() -> None:
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, decoder_start_token_id=2,
    )  # fmt: skip
    model = BartForConditionalGeneration(config).eval()
    trace = record(model, {"input_ids": IDS, "decoder_input_ids": IDS.flip(1)})
    other = (IDS + 1) % 47 + 3
    (logits,) = trace.replay({trace.inputs["input_ids"]: other}, [trace.outputs["logits"]])
    assert torch.allclose(logits, model(input_ids=other, decoder_input_ids=IDS.flip(1)).logits, atol=1e-6)


class InPlace(nn.Module):
    """Writes over what was recorded: the sum into x, a row of zeros into the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        x += F.relu(self.linear(x))
        x[:, 0] = 0.0
        return x.mul_(2.0)


@torch.no_grad()
def test_operations_in_place_leave_the_record_as_it_was() -> None:
    model, x = InPlace(), torch.randn(3, 5, 4)
    before = x.clone()
    trace = record(model, x)
    assert torch.equal(x, before)
    first = next(o for o in trace.operations if o.name == "mul")
    assert torch.equal(trace[first.makes[0]], before)
    for _ in range(2):  # a replay leaves it, too
        (out,) = trace.replay({trace.inputs["0"]: 3 * before}, [trace.outputs[""]])
        assert torch.allclose(out[:, 1:], model(3 * before)[:, 1:])


def test_the_model_is_left_alone() -> None:
    model = gpt2().train()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    record(model, {"input_ids": IDS})
    assert model.training and not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    model(IDS, labels=IDS).loss.backward()  # no tensor of the record is in the way


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_looked_at_in_float32(dtype: torch.dtype) -> None:
    model = gpt2().to(dtype)
    trace = record(model, {"input_ids": IDS})
    assert trace[trace.outputs["logits"]].dtype == torch.float32
    assert record(model, {"input_ids": IDS}, in_half=True)[trace.outputs["logits"]].dtype == dtype
    assert model.transformer.wte.weight.dtype == dtype


def test_torchs_encoder_is_seen_inside() -> None:
    """Its fused layer would be one operation."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    names = {o.name for o in record(encoder, torch.randn(2, 4, 8)).operations}
    assert "scaled_dot_product_attention" in names and torch.backends.mha.get_fastpath_enabled()


class Slices(nn.Module):
    """Writes a branch into a part of the stream, through views of views, and reads it from the whole."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.linear, self.way = nn.Linear(4, 4), way

    def forward(self, x: Tensor) -> Tensor:
        u = torch.tanh(self.linear(x))
        if self.way == "a slice in place":
            x = x * 1.0
            x[:, 1:] += u[:, 1:]
        elif self.way == "empty, then filled":
            made = torch.empty_like(x)
            for i in range(x.shape[1]):
                made[:, i] = x[:, i] + u[:, i]
            x = made
        elif self.way == "rows by index":
            x = x.clone().index_copy_(1, torch.tensor([2, 0]), u[:, :2])
        elif self.way == "a view of a view":
            x = x * 1.0
            part = x.transpose(0, 1)[1:].transpose(0, 1)
            part.mul_(u[:, 1:])
        elif self.way == "an earlier view":
            x = x * 1.0
            seen = x.view(-1, 4)
            first, _ = x.chunk(2, dim=-1)
            first += u[..., :2]
            x = seen.view(x.shape) * 2.0
        else:
            cache = torch.zeros(3, 9, 4)
            cache[:, : x.shape[1]].copy_(u)
            x = x + cache[:, : x.shape[1]]
        return x


@torch.no_grad()
@pytest.mark.parametrize("way", [
    "a slice in place", "empty, then filled", "rows by index", "a view of a view", "an earlier view", "a cache",
])  # fmt: skip
def test_what_is_written_into_a_part_is_in_the_whole(way: str) -> None:
    """Second source: the model on other numbers."""
    torch.manual_seed(0)
    model, x, other = Slices(way), torch.randn(3, 5, 4), torch.randn(3, 5, 4)
    trace = record(model, x)
    assert torch.equal(trace[trace.outputs[""]], model(x))
    (out,) = trace.replay({trace.inputs["0"]: other}, [trace.outputs[""]])
    assert torch.allclose(out, model(other), atol=1e-6)
    assert not torch.allclose(out, model(x))  # negative control


class Closure(nn.Module):
    """Computes with a function that holds the module itself: a copy would compute with the original's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen: list[Tensor] = []
        self.register_buffer("count", torch.zeros(()))
        self.branch = lambda x: x + self.linear(x)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.seen.append(x)
        return self.branch(x)


def test_a_model_that_no_copy_stands_for_runs_itself_and_is_put_back() -> None:
    model = Closure().train()
    trace = record(model, torch.randn(2, 3, 4))
    assert set(trace.names.values()) == {"linear.weight", "linear.bias"}
    assert any(trace.readers.get(value) for value in trace.names)
    assert model.training and model.count == 0 and model.seen == []
