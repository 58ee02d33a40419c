"""What only a GPU has: attention kernels, fp16 with a scaler, CUDA graphs, NCCL; `pytest -m gpu` runs it.

ISOGRAD_GPU_TESTS=cpu runs those that a CPU can run, so that the file itself is known to work.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

import isograd
from isograd.lab.train.train import train
from isograd.models import IsogradConfig, IsogradForCausalLM
from isograd.transformer import kernels
from isograd.transformer.loss import linear_cross_entropy
from tests.train.recipes import losses, small

DEVICE = os.environ.get("ISOGRAD_GPU_TESTS", "cuda")
ON_GPU = DEVICE == "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),  # as a compiler's, that TF32 would be faster
]
BACKEND = "inductor" if ON_GPU else "aot_eager"  # which needs no compiler
gpu_alone = pytest.mark.skipif(not ON_GPU, reason="a CPU has no such kernel")
PLACEMENTS = ("pre-ln", "normformer", "sandwich", "mhc")


def built(placement: str = "pre-ln", **options: Any) -> IsogradForCausalLM:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 101}
    config = IsogradConfig(placement=placement, max_position_embeddings=64, **{**shape, **options})
    model: IsogradForCausalLM = IsogradForCausalLM(config).to(DEVICE)
    return model


def ids(batch: int = 2, time: int = 64) -> Tensor:
    return torch.randint(1, 101, (batch, time), generator=torch.Generator().manual_seed(0)).to(DEVICE)


def gradients(model: Any, batch: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(input_ids=batch, labels=batch).loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def apart(got: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference over the largest value."""
    scale = max(e.abs().max() for e in expected)
    return float(max((g.float() - e.float()).abs().max() for g, e in zip(got, expected, strict=True)) / scale)


@pytest.mark.parametrize("kernel", [SDPBackend.MATH, *([SDPBackend.EFFICIENT_ATTENTION] if ON_GPU else [])])
def test_attention_kernels_in_float32(kernel: SDPBackend) -> None:
    model, batch = built(), ids()
    expected = gradients(built(attn_implementation="eager"), batch)
    with sdpa_kernel(kernel):
        assert apart(gradients(model, batch), expected) < 1e-4


@gpu_alone
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_flash_attention(placement: str) -> None:
    """torch's flash kernel, which takes 16 bits only, under autocast, beside float32."""
    model, batch = built(placement), ids()
    expected = gradients(model, batch)
    with torch.autocast("cuda", torch.bfloat16), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert apart(gradients(model, batch), expected) < 5e-2


@gpu_alone
def test_flex_attention() -> None:
    model, batch = built(attn_implementation="flex_attention"), ids()
    assert apart(gradients(model, batch), gradients(built(attn_implementation="eager"), batch)) < 1e-3


@gpu_alone
@pytest.mark.parametrize("compiled", [False, True])
def test_query_key_and_value_by_one_product(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 512 rows on; the gradients are those of three products."""
    model, batch = built(), ids(batch=8)
    monkeypatch.setattr(kernels, "ROWS_TO_JOIN", 10**9)
    expected = gradients(model, batch)
    monkeypatch.setattr(kernels, "ROWS_TO_JOIN", 512)
    call = torch.compile(model, fullgraph=True) if compiled else model
    assert apart(gradients(call, batch), expected) < 1e-4


@gpu_alone
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loss_of_narrow_logits(dtype: torch.dtype) -> None:
    """In few passes, beside the whole matrix of logits in float32."""
    hidden, weight = (torch.randn(n, 64, device="cuda", requires_grad=True) for n in (700, 1000))
    target = torch.randint(1000, (700,), device="cuda")
    target[::5] = -100
    expected = torch.autograd.grad(cross_entropy(hidden @ weight.t(), target), (hidden, weight))
    with torch.autocast("cuda", dtype):
        loss = linear_cross_entropy(hidden, weight, target, chunk=512)
    rounding = 6e-2 if dtype == torch.bfloat16 else 1e-2  # 0.012 to 0.027 and 0.002 to 0.004 of six seeds on a CPU
    assert apart(list(torch.autograd.grad(loss, (hidden, weight))), list(expected)) < rounding


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_bfloat16(placement: str) -> None:
    model, batch = built(placement), ids()
    expected = gradients(model, batch)
    with torch.autocast(DEVICE, torch.bfloat16):
        got = gradients(model, batch)
    assert 0 < apart(got, expected) < 5e-2


@gpu_alone
def test_fp16_with_a_scaler(tmp_path: Path) -> None:
    run = small(training={"precision": "fp16"})
    assert train(run, tmp_path)["outcome"] != "failed"
    assert abs(losses(tmp_path)[0] - losses_of(tmp_path / "fp32", "fp32")[0]) < 2e-2


def losses_of(folder: Path, precision: str) -> list[float]:
    train(small(training={"precision": precision}), folder)
    found: list[float] = losses(folder)
    return found


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_compiled(placement: str) -> None:
    model, batch = built(placement), ids()
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
    assert apart(gradients(compiled, batch), gradients(model, batch)) < 1e-4


@gpu_alone
def test_cuda_graphs() -> None:
    """Steps of captured graphs, beside eager ones."""
    model, batch = built(), ids()
    expected = gradients(model, batch)
    call = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    for _ in range(3):  # recorded in the second, replayed in the third
        torch.compiler.cudagraph_mark_step_begin()
        got = gradients(call, batch)
    assert apart(got, expected) < 1e-4


@pytest.mark.parametrize("placement", ("pre-ln", "mhc"))
def test_sharded(placement: str, tmp_path: Path) -> None:
    """FSDP2 over the processes that are there (one), by NCCL on a GPU."""
    model, batch = built(placement), ids()
    expected = gradients(model, batch)
    backend = "nccl" if ON_GPU else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        got = [gradient.full_tensor() for gradient in gradients(model, batch)]  # type: ignore[attr-defined]
    finally:
        dist.destroy_process_group()
    assert apart(got, expected) < 1e-5


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_generate(placement: str) -> None:
    """With a cache and without, greedy."""
    model, prompt = built(placement).eval(), ids(time=8)
    mask = torch.ones_like(prompt)
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    cached, plain = (model.generate(prompt, use_cache=use, **options) for use in (True, False))
    assert torch.equal(cached, plain)


def test_check() -> None:
    """Of a model where it is: no rule fails on two devices."""
    found = isograd.check(built())
    assert found.missed == () and [f.code for f in found if f.severity != "info"] == []


def test_resume_is_bit_equal(tmp_path: Path) -> None:
    run = small(model={"dropout": 0.2})
    train(run, tmp_path / "whole")

    def interrupt(step: int, loss: float) -> None:
        if step >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "halves", interrupt)
    train(run, tmp_path / "halves")
    assert losses(tmp_path / "halves") == losses(tmp_path / "whole")
