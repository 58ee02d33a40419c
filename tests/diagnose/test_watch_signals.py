"""Loops that are broken, as people break them: each signal comes, of itself, and not beside the same loop unbroken."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

import isograd
from isograd.diagnose.watch import causes
from isograd.diagnose.watch.baseline import Baseline
from isograd.diagnose.watch.batches import leaks
from isograd.diagnose.watch.batches import moved as moved_by
from isograd.diagnose.watch.losses import RESTS, STAYS, Losses
from isograd.diagnose.watch.overflow import culprit
from isograd.diagnose.watch.steps import Steps, WeightsMoved, settings_of

TIME, VOCABULARY = 12, 31
LEVEL = Baseline(kind="tokens", value=3.0)
Change = Callable[["Small"], None]


class Small(nn.Module):
    """Four layers of a causal Transformer, as people write one."""

    def __init__(self) -> None:
        super().__init__()
        self.causal, self.cut = True, False
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True) for _ in range(4)
        )
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.causal else None
        for i, layer in enumerate(self.layers):
            x = layer(x, mask)
            x = x.detach() if self.cut and i == 1 else x
        return self.head(x)


def signals(
    change: Change = lambda model: None,
    *,
    steps: int = 14,
    parameters: Callable[[Small], Any] = lambda model: model.parameters(),
    lr: Callable[[int], float] = lambda step: 1e-3,
    zero: str | None = "none",
    same: bool = False,
    shift: int = 1,
    roll: int = 0,
    decay: float = 0.01,
    accumulation: int = 1,
) -> list[tuple[int, str]]:
    """The steps and names of what a watch reports of a bare loop."""
    torch.manual_seed(0)
    model, draw = Small(), torch.Generator().manual_seed(1)
    change(model)
    optimizer = torch.optim.AdamW(parameters(model), 1e-3, weight_decay=decay)
    watch = isograd.watch(model)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr(step)
        for _ in range(accumulation):
            draw = torch.Generator().manual_seed(1) if same else draw
            rows = torch.randint(VOCABULARY, (4, TIME + 2), generator=draw)
            x, y = rows[:, 1 : TIME + 1], rows[:, 1 + shift : TIME + 1 + shift].roll(roll, 0)
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
        watch.step(loss, batch=(x, y))
        optimizer.step()
        if zero is not None:
            optimizer.zero_grad(set_to_none=zero == "none")
    watch.close()
    assert all(row["cause"] and row["remedy"] and row["message"] for row in watch.warnings)
    return [(row["step"], row["signal"]) for row in watch.warnings]


def cut(model: Small) -> None:
    model.cut = True


def see_all(model: Small) -> None:
    model.causal = False


def freeze(*which: int) -> Change:
    def change(model: Small) -> None:
        for i in which:
            model.layers[i].requires_grad_(False)

    return change


def without_two(model: Small) -> Any:
    out = {id(p) for layer in list(model.layers)[1:3] for p in layer.parameters()}
    return [p for p in model.parameters() if id(p) not in out]


@pytest.mark.parametrize(
    ("signal", "broken"),
    [
        ("same-batch", {"same": True}),
        ("updates", {"lr": lambda step: 0.0}),
        ("frozen", {"parameters": without_two}),
        ("gradient", {"change": cut}),
        ("zero-grad", {"zero": None}),
        ("leak", {"change": see_all}),
        ("labels", {"shift": -1}),
        ("labels", {"roll": 1}),
        ("decay", {"decay": 100.0, "steps": 60}),
    ],
)
def test_a_broken_loop_is_named(signal: str, broken: dict[str, Any]) -> None:
    assert [name for _, name in signals(**broken)] == [signal]


def test_weights_of_a_copy() -> None:
    copy = Small()
    assert signals(parameters=lambda _: copy.parameters()) == [(12, "updates")]


def test_layers_that_want_no_gradient() -> None:
    assert signals(freeze(2)) == [(12, "frozen")]
    assert signals(freeze(0, 1)) == []  # the first ones, as in fine-tuning


@pytest.mark.parametrize(
    "healthy",
    [
        {},
        {"zero": "in place"},
        {"lr": lambda step: 1e-3 * min(1, (step - 1) / 10)},  # the first update has the rate 0
        {"zero": "in place", "accumulation": 3},
        {"shift": 1, "accumulation": 2},
    ],
)
def test_a_healthy_loop_is_left_alone(healthy: dict[str, Any]) -> None:
    assert signals(**healthy) == []


def test_a_looked_at_model_is_left_as_it_was() -> None:
    """The leak is looked for in evaluation mode: dropout draws nothing, and modes come back."""
    config = GPT2Config(vocab_size=31, n_positions=12, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model, ids = GPT2LMHeadModel(config), torch.randint(31, (4, 12))
    model.transformer.h[1].eval()
    modes, state = [m.training for m in model.modules()], torch.get_rng_state()
    assert leaks(model, {"input_ids": ids, "labels": ids}, ids) == pytest.approx(0.0, abs=1e-5)
    assert [m.training for m in model.modules()] == modes and torch.equal(torch.get_rng_state(), state)
    small = Small()
    small.causal = False
    found = leaks(small, (ids, ids), ids)
    assert found is not None and found > 0.1


def test_labels_that_are_moved() -> None:
    x = torch.randint(31, (4, 12))
    assert [moved_by(x, x.roll(-d, dims=1)) for d in (0, 1, 2, -1)] == [0, 1, 2, -1]
    assert moved_by(x, x.flip(0)) is None
    ignored = x.clone()
    ignored[:, :5] = -100
    assert moved_by(x, ignored) == 0


def test_labels_that_the_model_shifts_again() -> None:
    config = GPT2Config(vocab_size=31, n_positions=12, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    for as_mapping, expected in ((True, ["labels"]), (False, [])):  # of a pair the loop forms the loss itself
        model = GPT2LMHeadModel(config)
        watch, optimizer = isograd.watch(model), torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(12):
            rows = torch.randint(31, (4, 13))
            x, y = rows[:, :-1], rows[:, 1:]
            loss = functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten())
            loss.backward()
            watch.step(loss, batch={"input_ids": x, "labels": y} if as_mapping else (x, y))
            optimizer.step()
            optimizer.zero_grad()
        assert [row["signal"] for row in watch.warnings] == expected


def test_a_loss_that_is_summed() -> None:
    torch.manual_seed(0)
    for reduction, expected in (("sum", ["loss-sum"]), ("mean", [])):
        model, rows = Small(), torch.randint(VOCABULARY, (4, TIME + 1))
        watch = isograd.watch(model)
        x, y = rows[:, :-1], rows[:, 1:]
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=reduction)
        loss.backward()
        watch.step(loss, batch=(x, y))
        assert [row["signal"] for row in watch.warnings] == expected


def test_a_stack_that_is_detached_from_the_head() -> None:
    def change(model: Small) -> None:
        model.layers[-1].register_forward_hook(lambda module, args, output: output.detach())

    assert signals(change) == [(12, "gradient")]


def moved(by: float, size: float = 1.0) -> WeightsMoved:
    return WeightsMoved(by=by, size=size, rate=1e-3, gradient=1.0)


def cause_of(
    losses: list[float], norms: Sequence[float] = (), by: Sequence[float] = (), **known: Any
) -> tuple[str, str]:
    """The signal and the cause; a norm of 1 where none is given, no movement where that is not."""
    watch = Losses(lambda: known.get("settings"))
    size, found = known.get("size", 1.0), []
    for i, loss in enumerate(losses):
        went = moved(by[i], size) if by else None
        rate = known["rates"][i] if "rates" in known else None
        found += watch.follow(i + 1, loss, norms[i] if i < len(norms) else 1.0, LEVEL, went, rate)
    (row,) = found
    return row["signal"], row["cause"]


def test_the_cause_of_a_rise() -> None:
    assert "maximized" in cause_of([4 + 0.3 * i for i in range(90)])[1]
    assert "jumped" in cause_of([*falling(150), *[4.0] * 100])[1]
    high = cause_of([5.6, 13, *[80.0 + 3 * (-1) ** i for i in range(100)]], by=[0.15] * 102)[1]
    assert "rate is far too high" in high
    assert "too high" in cause_of([*falling(150), *[2 + 0.05 * i for i in range(150)]])[1]


def test_the_cause_of_a_rise_by_what_was_first_out_of_the_ordinary() -> None:
    risen = [*falling(150), *[4.0] * 100]
    steady, large = [1e-3] * 250, [*[1.0] * 150, *[20.0] * 5, *[1.0] * 100]
    for leaps, norms, words in (
        ({150: 0.3}, large, "other weights were loaded"),
        ({150: 0.1, 151: 0.1, 152: 0.1}, large, "rate jumped: from step 151"),
        ({151: 0.1}, large, "gradient 20 times the usual (step 151)"),  # the weights went after it
        ({}, [], "the data changed"),
    ):
        by = [leaps.get(i, x) for i, x in enumerate(steady)]
        signal, cause = cause_of(risen, norms, by)
        assert signal == "rise" and words in cause, cause
    rates = [*[1e-3] * 150, *[0.3] * 100]
    leaps = [*[1e-3] * 151, *[0.3] * 99]
    assert cause_of(risen, large, leaps, rates=rates)[1] == "the learning rate rose from 0.001 to 0.3 at step 151"
    steady_rate = cause_of(risen, [], [*[1e-3] * 150, 0.3, *[1e-3] * 99], rates=[1e-3] * 250)[1]
    assert "other weights were loaded" in steady_rate and "rate" not in steady_rate
    up = [4 + 0.3 * i for i in range(90)]
    assert "maximized (a sign is turned)" in cause_of(up, by=[0.01] * 90)[1]
    assert "far too high: weights change by 50% of their size" in cause_of(up, by=[0.5] * 90)[1]


def test_matrices_that_blow_up_or_shrink() -> None:
    assert cause_of([3.2] * 130, by=[0.01] * 130, size=6.0)[1].startswith("the learning rate is too high")
    assert cause_of([3.2] * 30, by=[0.01] * 30, size=0.1)[0] == "decay"
    with pytest.raises(ValueError, match="not enough values"):  # nothing is reported of what learns
        cause_of(falling(200), by=[0.01] * 200, size=6.0)
    with pytest.raises(ValueError, match="not enough values"):  # nor of a warm-up
        cause_of([5.0 - 1e-4 * i * i for i in range(140)], by=[1e-7 * i for i in range(140)])


@pytest.mark.parametrize(
    ("make", "clip", "words"),
    [
        (lambda p: torch.optim.AdamW(p, 1e-3, eps=10.0), 1.0, "Adam's eps (10) is far larger"),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 1e-5, "clipped to nearly nothing"),
        (lambda p: torch.optim.AdamW(p, 1e-3), 1e-6, "clipped to nearly nothing"),
        (lambda p: torch.optim.AdamW(p, 1e-7), 1.0, "the learning rate is 1e-07"),
        (lambda p: torch.optim.SGD(p, 1e-6), 1.0, "the learning rate is 1e-06"),
    ],
)
def test_what_keeps_the_weights_still(make: Any, clip: float, words: str) -> None:
    torch.manual_seed(0)
    model = Small()
    optimizer, steps = make(model.parameters()), Steps(list(model.parameters()), 1)
    for _ in range(6):
        ids = torch.randint(VOCABULARY, (4, TIME))
        functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        steps.take()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    last = steps.read()[-1]
    assert last is not None
    assert words in causes.hardly_move(last, settings_of(optimizer, list(model.parameters())))[0]


def test_why_no_weight_moves() -> None:
    model, other = Small(), Small()
    for optimizer, words in (
        (torch.optim.AdamW(other.parameters(), 1e-3), "holds none"),
        (torch.optim.AdamW(model.parameters(), 0.0), "the learning rate is 0"),
        (torch.optim.AdamW(model.parameters(), 1e-3), "step() is not called"),
    ):
        watch = isograd.watch(model, optimizer=optimizer)
        for _ in range(12):
            ids = torch.randint(VOCABULARY, (4, TIME))
            loss = functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            watch.step(loss)
            model.zero_grad()
        (row,) = watch.warnings
        assert row["signal"] == "updates" and words in row["cause"]


def followed(losses: list[float], entropy: float | None = 3.0, norm: float = 1.0) -> list[tuple[int, str]]:
    watch, level = Losses(), None if entropy is None else Baseline(kind="tokens", value=entropy)
    rows = [row for step, loss in enumerate(losses, 1) for row in watch.follow(step, loss, norm, level)]
    return [(row["step"], row["signal"]) for row in rows]


def falling(count: int, end: float = 2.0) -> list[float]:
    return [end + 2 * math.exp(-i / 40) + 0.05 * (-1) ** i for i in range(count)]


def test_curves() -> None:
    assert followed(falling(400)) == []
    risen = followed([*falling(150), *[4.0] * 100])
    assert [name for _, name in risen] == ["rise"] and STAYS + 150 < risen[0][0] < STAYS + 165
    assert followed([*falling(150), *[4.0] * 20, *falling(200)]) == []  # it came back
    assert followed([*falling(150), *[4 - 0.03 * i for i in range(70)]]) == []  # and here it is coming back
    slowly = followed([*falling(150), *[6 - 0.001 * i for i in range(200)]])
    assert [name for _, name in slowly] == ["rise"]  # in as many steps again it would not be back
    draw = torch.Generator().manual_seed(0)
    blown = followed([5.6, 13, *[80.0 + 3 * (-1) ** i for i in range(100)]])  # before a mean of ten was formed
    assert [name for _, name in blown] == ["rise"] and blown[0][0] < 70
    assert followed([1.5, *[2.1 + 0.05 * (-1) ** i for i in range(90)]], entropy=None) == []  # an easy first batch
    noisy = [3.0 + 0.5 * float(torch.randn((), generator=draw)) for _ in range(400)]
    assert followed([*falling(40, end=3.0), *noisy]) == []  # batches of one sequence
    assert followed([5.0] * 200) == [(RESTS, "stall")]
    assert followed([5 - 0.002 * i for i in range(400)]) == []  # slow, and falling
    assert [name for _, name in followed(falling(400, end=0.1))] == ["low"]
    assert followed(falling(400, end=0.1), entropy=None) == []  # nobody knows what would be low
    assert followed([5.0] * 200, entropy=None) == [(RESTS, "stall")]


def test_the_module_that_overflows() -> None:
    torch.manual_seed(0)
    model, ids = Small(), torch.randint(VOCABULARY, (2, TIME))
    assert culprit(model, (ids, ids)) is None
    with torch.no_grad():
        model.layers[2].linear2.weight.fill_(3e38)
    found = culprit(model, (ids, ids))
    assert found is not None and found[0] == "layers.2.linear2" and "not finite" in found[1]
    with torch.no_grad():
        model.layers[1].norm1.weight[3] = math.nan
    found = culprit(model, (ids, ids))
    assert found is not None and found[0] == "layers.1.norm1.weight"


@pytest.mark.slow
def test_the_script_of_the_docs_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pasted from either page it collapses, and the watch says so."""
    docs = Path(__file__).parents[2] / "docs"
    pages = [(docs / name).read_text(encoding="utf-8") for name in ("watch.md", "start.md", "ko.md")]
    block, *same = (page.partition("```python\n")[2].partition("```")[0] for page in pages)
    assert same == [block, block]
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "watch.md", "exec"), {"__name__": "page"})
    (row,) = map(json.loads, (tmp_path / "runs/mine/warnings.jsonl").read_text().splitlines())
    assert row["signal"] == "gradients", row["message"]


# -------------------------------------------------------------------------------------------- what its wiring has to do


class Block(nn.Module):
    """A layer by the order of its norm and its sum: before the branch, on the sum, or x = norm(x); x = x + f(x)."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order, self.noise = order, nn.Dropout(0.1)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.ln1, self.ln2 = nn.LayerNorm(16), nn.LayerNorm(16)

    def mix(self, x: Tensor, mask: Tensor) -> Tensor:
        mixed: Tensor = self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        return self.noise(mixed)

    def feed(self, x: Tensor) -> Tensor:
        return self.noise(self.down(functional.gelu(self.up(x))))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.order == "sum":
            x = self.ln1(x + self.mix(x, mask))
            return self.ln2(x + self.feed(x))
        x = x + self.mix(self.ln1(x), mask)
        if self.order == "before":
            return x + self.feed(self.ln2(x))
        x = self.ln2(x)
        return x + self.feed(x)


class Stack(nn.Module):
    def __init__(self, order: str, *, breaks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.breaks, self.embed = breaks, nn.Embedding(VOCABULARY, 16)
        self.blocks = nn.ModuleList(Block(order) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        if self.breaks:
            raise RuntimeError("only on Mondays")
        x, mask = self.embed(ids), nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


ALARM = {"step": 3, "signal": "gradients", "layer": "blocks.0", "message": "m", "cause": "c", "remedy": "r"}


def trained(model: Stack, *, watched: bool = True, signal: str = "gradients") -> tuple[Any, list[Tensor]]:
    """Five steps with an alarm in the third; the watch, and the weights after them."""
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randint(VOCABULARY, (4, TIME + 1), generator=draw) for _ in range(5)]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    watch = isograd.watch(model) if watched else None
    torch.manual_seed(2)
    for step, ids in enumerate(batches, 1):
        loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        if watch:
            watch.step(loss)
            if step == 3:
                watch.report({**ALARM, "signal": signal})
        optimizer.step()
        optimizer.zero_grad()
    return watch, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(
    ("order", "cause", "remedy"),
    [
        ("crossed", "isograd.check finds shortcut-after-norm at blocks.0", "keep x: x = x + f(norm(x))"),
        (
            "sum",
            "4 Post-LN layers: each norm is on the sum",
            "normalize what each branch reads, not the sum (Pre-LN): in Block.forward",
        ),
    ],
)
def test_a_warning_names_the_wiring_of_the_model_once(
    order: str, cause: str, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a model whose norm weights have moved already; the run is bit for bit one that is not watched."""
    watch, weights = trained(Stack(order))
    (row,) = watch.warnings
    assert (
        row["cause"].startswith(cause)
        and remedy in row["remedy"]
        and ("; or train at lr=" in row["remedy"] or row["remedy"].endswith("; or r"))
    )
    assert {key: row[key] for key in ("step", "signal", "layer", "message")} == {
        key: ALARM[key] for key in ("step", "signal", "layer", "message")
    }
    assert cause in caplog.text and remedy in caplog.text
    assert all(map(torch.equal, weights, trained(Stack(order), watched=False)[1]))
    watch.report({**ALARM, "signal": "unigram"})
    assert watch.warnings[1]["cause"] == "c"  # it is asked once


def test_where_the_wiring_says_nothing_the_warning_stays_as_it_is() -> None:
    watch, _ = trained(Stack("before"))
    assert watch.warnings == [ALARM]
    watch, _ = trained(Stack("sum"), signal="rise")  # another signal's cause is another
    assert watch.warnings == [{**ALARM, "signal": "rise"}]
    model = Stack("sum")
    watch = isograd.watch(model)
    model.breaks = True
    watch.report(ALARM)
    assert watch.warnings == [ALARM]


# ------------------------------------------------------------------------------------------------- what is in the batch


def looked_up(
    bad: Callable[[dict[str, Tensor]], None], loss: Callable[[Tensor, Tensor], Tensor]
) -> list[dict[str, Any]]:
    """The warnings of a loop whose sixth batch is a bad one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    watch = isograd.watch(model)
    for step in range(1, 8):
        batch = {"features": torch.randn(8, 6), "target": torch.randn(8)}
        if step == 6:
            bad(batch)
        value = loss(model(batch["features"])[:, 0], batch["target"])
        value.backward()
        watch.step(value, batch=batch)
        model.zero_grad()
    return watch.warnings


def correlation(x: Tensor, y: Tensor) -> Tensor:
    return 1 - ((x - x.mean()) * (y - y.mean())).mean() / (x.std() * y.std())


@pytest.mark.parametrize(
    ("bad", "loss", "words"),
    [
        (lambda b: b["features"][3, 1:3].fill_(math.nan), functional.mse_loss,
         "the batch holds it: batch['features'][3, 1] is nan (2 of its 48 entries are not finite)"),
        (lambda b: b["target"][5:6].fill_(math.inf), functional.mse_loss,
         "the batch holds it: batch['target'][5] is inf"),
        (lambda b: b["target"].fill_(2.5), correlation, "all targets of this batch are 2.5 (batch['target'])"),
    ],
)  # fmt: skip
def test_a_bad_batch_is_named_by_its_tensor_and_place(bad: Any, loss: Any, words: str) -> None:
    (row,) = looked_up(bad, loss)
    assert row["signal"] == "nonfinite" and row["step"] == 6 and row["layer"] is None
    assert row["cause"].startswith(words) and words in row["message"], row["message"]
    assert "float32" not in row["remedy"]
    assert looked_up(lambda batch: None, loss) == []


def test_a_mask_may_hold_what_is_not_finite() -> None:
    def bad(batch: dict[str, Tensor]) -> None:
        batch["mask"] = torch.full((2, 2), -math.inf)
        batch["features"] *= math.nan

    assert "batch['features'][0, 0] is nan" in looked_up(bad, functional.mse_loss)[0]["cause"]


def test_an_id_that_has_no_row() -> None:
    """Before the forward pass fails on it; what the loss ignores, and a whole batch, are in order."""
    watch, ids = isograd.watch(Small()), torch.randint(VOCABULARY, (2, TIME))
    watch.before({"input_ids": ids, "labels": torch.full_like(ids, -100)})
    assert watch.warnings == []
    ids[1, 4] = VOCABULARY + 3
    watch.before({"input_ids": ids, "labels": ids})
    (row,) = watch.warnings
    assert row["signal"] == "ids"
    assert row["cause"] == "an id is out of range: batch['input_ids'][1, 4] is 34, and the model has 31 embeddings"


def test_targets_that_are_all_the_same() -> None:
    (row,) = [row for row in looked_up_constant(7.5) if row["signal"] == "labels"]
    assert "all targets of the first 12 batches are 7.5" in row["message"]
    assert looked_up_constant(1.0) == []  # a discriminator's, or the first part of sorted classes


def looked_up_constant(value: float) -> list[dict[str, Any]]:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    watch, optimizer = isograd.watch(model), torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(14):
        x, y = torch.randn(8, 6), torch.full((8, 1), value)
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        watch.step(loss, batch=(x, y))
        optimizer.step()
        optimizer.zero_grad()
    return watch.warnings
