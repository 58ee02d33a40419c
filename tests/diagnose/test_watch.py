"""What a watch says of each step, against gradients taken by hand; and that the training does not notice it."""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import isograd
from isograd import IsogradConfig, IsogradForCausalLM
from isograd.diagnose.watch.writers import flat
from tests.build import few

Loss = Callable[[nn.Module, Tensor], Tensor]


def ours(placement: str = "post-ln", layers: int = 3, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2, "vocab_size": 31}
    config = IsogradConfig(placement=placement, max_position_embeddings=12, hidden_dropout=dropout, **shape)
    return IsogradForCausalLM(config)


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=31, n_positions=12, n_embd=16, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return GPT2LMHeadModel(config)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids, labels=ids).loss


def batches(count: int = 5, rows: int = 4) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(31, (rows, 12), generator=draw) for _ in range(count)]


def train(model: nn.Module, watch: Any, steps: list[Tensor], lr: float = 1e-2) -> dict[str, Tensor]:
    """Adam with clipping; the weights after it."""
    torch.manual_seed(2)
    optimizer = torch.optim.Adam(model.parameters(), lr)
    for ids in steps:
        loss = loss_of(model, ids)
        loss.backward()
        if watch is not None:
            watch.step(loss, batch={"input_ids": ids, "labels": ids})
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_hand(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """torch.autograd.grad, one parameter at a time."""
    named = dict(model.named_parameters())
    return {n: torch.autograd.grad(loss_of(model, ids), p, retain_graph=False)[0] for n, p in named.items()}


def numbers(watch: Any) -> dict[str, float]:
    return flat(watch.row, watch.layers)


def length(tensors: list[Tensor]) -> float:
    return torch.cat([x.flatten() for x in tensors]).double().norm().item()


@pytest.mark.parametrize("placement", few(["post-ln", "pre-ln", "admin", "normformer-resscale"], 3))
def test_each_number_by_hand(placement: str) -> None:
    model, ids = ours(placement), batches(1)[0]
    grads = by_hand(model, ids)
    watch = isograd.watch(model)
    loss = loss_of(model, ids)
    loss.backward()
    watch.step(loss)
    watch.close()
    assert watch.row["step"] == 1 and watch.row["loss"] == loss.item()
    assert watch.row["grad_norm"] == pytest.approx(length(list(grads.values())), rel=1e-5)
    matrices: dict[str, list[Tensor]] = {"attn": [], "ffn": []}
    assert [(r["layer"], r["kind"]) for r in watch.layers] == [(i, k) for i in (1, 2, 3) for k in ("attn", "ffn")]
    for row in watch.layers:
        inside = [g for n, g in grads.items() if n.startswith(f"{row['address']}.")]
        matrix = grads[f"{row['address']}.branch.out.weight"]
        matrices[row["kind"]].append(matrix)
        assert row["gradient_norm"] == pytest.approx(length(inside), rel=1e-5)
        assert row["gradient_mean_abs"] == pytest.approx(matrix.abs().mean().item(), rel=1e-5)
    for kind, found in matrices.items():
        norms = [length([m]) for m in found]
        first, last = (found[i].abs().mean().item() for i in (0, -1))
        assert watch.row["max_min"][f"decoder {kind}"] == pytest.approx(max(norms) / min(norms), rel=1e-5)
        assert watch.row["first_last"][f"decoder {kind}"] == pytest.approx(first / last, rel=1e-5)


def test_each_number_of_a_model_of_others() -> None:
    model, ids = gpt2(), batches(1)[0]
    grads = by_hand(model, ids)
    watch = isograd.watch(model)
    loss_of(model, ids).backward()
    watch.step(3.5)
    assert watch.row["loss"] == 3.5
    assert [r["address"] for r in watch.layers] == [f"transformer.h.{i}" for i in range(3)]
    for row in watch.layers:
        inside = [g for n, g in grads.items() if n.startswith(f"{row['address']}.")]
        assert row["gradient_norm"] == pytest.approx(length(inside), rel=1e-5)
        expected = grads[f"{row['address']}.mlp.c_proj.weight"].abs().mean().item()
        assert row["gradient_mean_abs"] == pytest.approx(expected, rel=1e-5)
    norms = [length([grads[f"transformer.h.{i}.mlp.c_proj.weight"]]) for i in range(3)]
    assert watch.row["max_min"] == {"mlp.c_proj.weight": pytest.approx(max(norms) / min(norms), rel=1e-5)}


def test_updates_by_hand() -> None:
    model, steps = ours(), batches(3)
    before = [p.detach().clone() for n, p in model.named_parameters() if n.endswith("ffn.branch.out.weight")]
    watch = isograd.watch(model, updates=True)
    train(model, watch, steps[:1])
    assert all("update_ratio" not in row for row in watch.layers)  # nothing to compare with
    after = [p.detach().clone() for n, p in model.named_parameters() if n.endswith("ffn.branch.out.weight")]
    train(model, watch, steps[1:2])
    found = [row["update_ratio"] for row in watch.layers if row["kind"] == "ffn"]
    expected = [((b - a).norm() / a.norm()).item() for a, b in zip(before, after, strict=True)]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("build", [lambda: ours(dropout=0.1), gpt2])
@pytest.mark.parametrize("settings", [{}, {"every": 2}, {"updates": True}])
def test_a_watched_training_is_bit_equal(build: Callable[[], nn.Module], settings: Any, tmp_path: Path) -> None:
    plain = train(build(), None, batches())
    model = build()
    watched = train(model, isograd.watch(model, folder=tmp_path, **settings), batches())
    assert all(torch.equal(watched[name], value) for name, value in plain.items())
    other = train(build(), None, batches(), lr=1.0001e-2)  # negative control: the comparison would see a difference
    assert not all(torch.equal(other[name], value) for name, value in plain.items())


def test_nothing_happens_between_watched_steps(tmp_path: Path) -> None:
    model = ours()
    watch = isograd.watch(model, folder=tmp_path, every=3)
    before = {name: [len(v) for k, v in vars(m).items() if "hooks" in k] for name, m in model.named_modules()}
    train(model, watch, batches(7))
    watch.close()
    assert [r["step"] for r in rows(tmp_path / "metrics.jsonl")] == [1, 3, 6]
    assert [r["step"] for r in rows(tmp_path / "quantities.jsonl")] == [s for s in (1, 3, 6) for _ in range(6)]
    assert before == {name: [len(v) for k, v in vars(m).items() if "hooks" in k] for name, m in model.named_modules()}
    watch.step(1.0, step=8)  # no gradients are there: nobody looks
    with pytest.raises(ValueError, match=r"no parameter has a gradient; call step\(\) after loss\.backward"):
        watch.step(1.0, step=9)


def test_accumulation_is_the_whole_batch() -> None:
    model, (ids,) = ours(), batches(1, rows=8)
    whole, parts = isograd.watch(model), isograd.watch(model)
    loss = loss_of(model, ids)
    loss.backward()
    whole.step(loss)
    model.zero_grad()
    for part in ids.split(2):
        (loss_of(model, part) / 4).backward()
    parts.step(loss)
    assert parts.row["grad_norm"] == pytest.approx(whole.row["grad_norm"], rel=1e-5)
    assert numbers(parts) == pytest.approx(numbers(whole), rel=1e-5)
    model.zero_grad()
    loss_of(model, ids[:2]).backward()  # negative control: one micro-batch alone
    parts.step(loss)
    assert parts.row["grad_norm"] != pytest.approx(whole.row["grad_norm"], rel=1e-2)


def test_behind_unscaling_the_gradients_are_those_of_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    model, (ids,) = ours(), batches(1)
    plain = isograd.watch(model)
    loss = loss_of(model, ids)
    loss.backward()
    plain.step(loss)
    for scale, unscale in ((2.0**10, True), (2.0**10, False)):
        model.zero_grad()
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        watch = isograd.watch(model, overflows=True)
        scaler.scale(loss_of(model, ids)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        watch.step(loss)
        assert (watch.row["grad_norm"] == pytest.approx(plain.row["grad_norm"], rel=1e-5)) == unscale


def test_an_overflow_is_the_scalers_business() -> None:
    for overflows in (True, False):
        model, (ids,) = ours(), batches(1)
        watch = isograd.watch(model, overflows=overflows)
        loss_of(model, ids).backward()
        next(model.parameters()).grad[0, 0] = math.inf  # type: ignore[index]
        watch.step(2.0)
        assert [row["signal"] for row in watch.warnings] == ([] if overflows else ["nonfinite"])
        watch.step(math.nan)  # a loss that is not finite is nobody's business but ours
        assert [row["step"] for row in watch.warnings] == ([2] if overflows else [1])


def test_low_precision_gradients_are_measured_in_float32() -> None:
    model, (ids,) = ours().bfloat16(), batches(1)
    watch = isograd.watch(model)
    loss_of(model, ids).backward()
    watch.step(1.0)
    row = watch.layers[0]
    grads = [p.grad.float() for n, p in model.named_parameters() if n.startswith(row["address"]) and p.grad is not None]
    assert row["gradient_norm"] == pytest.approx(length(grads), rel=1e-5)


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
@pytest.mark.parametrize("way", few(["function", "module"], ["module"]))
def test_a_compiled_model(way: str) -> None:
    model, (ids,) = ours(), batches(1)
    plain, watch_before = isograd.watch(model), None
    loss_of(model, ids).backward()
    plain.step(1.0)
    model.zero_grad()
    compiled: Any = torch.compile(model, backend="aot_eager") if way == "function" else model
    if way == "module":
        watch_before = isograd.watch(model)
        model.compile(backend="aot_eager")
    watch = watch_before or isograd.watch(compiled)
    loss_of(compiled, ids).backward()
    watch.step(1.0)
    assert numbers(watch) == pytest.approx(numbers(plain), rel=1e-4)


def test_frozen_parameters_and_unused_layers() -> None:
    model, (ids,) = ours(), batches(1)
    for p in model.get_submodule("model.layers.0").parameters():
        p.requires_grad_(False)
    watch = isograd.watch(model)
    loss_of(model, ids).backward()
    watch.step(1.0)
    assert ["gradient_norm" in row for row in watch.layers] == [False, False, True, True, True, True]
    assert watch.row["max_min"]["decoder ffn"] >= 1.0


def test_sparse_gradients() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 4, sparse=True)
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            for layer in self.layers:
                x = x + layer(x)
            return x.square().sum()

    torch.manual_seed(0)
    model = Tagger()
    watch = isograd.watch(model)
    model(torch.tensor([1, 1, 2])).backward()
    watch.step(1.0)
    dense = [p.grad.to_dense() for p in model.parameters() if p.grad is not None]
    assert watch.row["grad_norm"] == pytest.approx(length(dense), rel=1e-6)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_led_to_a_number_that_is_not_finite(where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, steps = ours(), batches(4)
    watch = isograd.watch(model, folder=tmp_path)
    train(model, watch, steps[:3])
    loss = loss_of(model, steps[3])
    loss.backward()
    if where == "gradient":
        model.get_parameter("model.layers.1.ffn.branch.out.weight").grad[3, 3] = math.nan  # type: ignore[index]
    with caplog.at_level(logging.WARNING, logger="isograd"):
        watch.step(math.nan if where == "loss" else loss, batch={"input_ids": steps[3], "name": "fourth"})
    (line,) = caplog.messages
    named = "a gradient is not finite, first in model.layers.1.ffn" if where == "gradient" else "the loss is not finite"
    assert line.startswith(f"step 4: {named}; the steps before it are in {tmp_path / 'nonfinite'}\n  -> compute that")
    kept = rows(tmp_path / "nonfinite/rows.jsonl")
    assert [r["step"] for r in kept if "loss" in r] == [1, 2, 3, 4] and len(kept) == 4 * 7
    assert kept[21]["loss"] is None if where == "loss" else kept[21]["grad_norm"] is None
    batch = torch.load(tmp_path / "nonfinite/batch.pt")
    assert torch.equal(batch["input_ids"], steps[3]) and batch["name"] == "fourth"
    (warning,) = rows(tmp_path / "warnings.jsonl")
    assert warning["signal"] == "nonfinite" and warning["step"] == 4
    assert warning["layer"] == ("model.layers.1.ffn" if where == "gradient" else None)
    watch.step(math.nan, batch={"input_ids": steps[0]})  # only the first is kept
    assert torch.equal(torch.load(tmp_path / "nonfinite/batch.pt")["input_ids"], steps[3])
    assert len(rows(tmp_path / "warnings.jsonl")) == 1


def test_rows_go_to_every_sink(tmp_path: Path) -> None:
    seen: list[tuple[int, dict[str, float]]] = []
    model = gpt2()
    with isograd.watch(model, folder=tmp_path, log=lambda numbers, step: seen.append((step, numbers))) as watch:
        train(model, watch, batches(3))
    assert [step for step, _ in seen] == [1, 2, 3]
    metrics, quantities = rows(tmp_path / "metrics.jsonl"), rows(tmp_path / "quantities.jsonl")
    second = seen[1][1]
    assert second["isograd/01 loss"] == metrics[1]["loss"]
    assert second["isograd/04 largest over smallest/mlp.c_proj.weight"] == metrics[1]["max_min"]["mlp.c_proj.weight"]
    assert second["isograd/05 gradient norm of layers/3 transformer.h.2"] == quantities[5]["gradient_norm"]
    assert len(second) == 2 + 2 + 2 * 3


def test_rows_are_written_without_a_close(tmp_path: Path) -> None:
    model = ours()
    watch = isograd.watch(model, folder=tmp_path)
    train(model, watch, batches(3))
    assert not (tmp_path / "metrics.jsonl").exists()  # ten steps together
    del watch
    assert [r["step"] for r in rows(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_the_end_names_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once, on stderr, and only where a folder was given and rows are in it."""
    for folder, steps in ((tmp_path / "a", 2), (None, 2), (tmp_path / "b", 0)):
        model = gpt2()
        watch = isograd.watch(model, folder=folder)
        train(model, watch, batches(steps))
        watch.close()
        watch.close()
        out, err = capsys.readouterr()
        assert out == "" and err == (f"report: isograd report {folder}\n" if folder and steps else "")


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-not-found]

    model = gpt2()
    with isograd.watch(model, folder=tmp_path, tensorboard=True) as watch:
        train(model, watch, batches(3))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = [(e.step, e.value) for e in events.Scalars("isograd/01 loss")]
    assert found == [(r["step"], pytest.approx(r["loss"])) for r in rows(tmp_path / "metrics.jsonl")]


def test_what_cannot_be_watched_is_said() -> None:
    with pytest.raises(ValueError, match="every=0 must be at least 1"):
        isograd.watch(ours(), every=0)
    with pytest.raises(ValueError, match="tensorboard=True needs a folder"):
        isograd.watch(ours(), tensorboard=True)
    with pytest.raises(AttributeError, match=r"no module .transformer\.h\.7.; did you mean .transformer\.h\.2"):
        isograd.watch(gpt2(), addresses=["transformer.h.7"])
