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
