"""After preflight everything is as it was, bit for bit, and the run is the one that it would have been."""

import array
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

import isograd
from isograd.lint.step.kept import Kept, kept
from tests.preflight.program import LENGTH, VOCAB, Model, Text

PLAIN = (bool, int, float, str, type(None), tuple)
pytestmark = pytest.mark.filterwarnings("default")  # trainers' advice


def state(**parts: Any) -> dict[str, Any]:
    """All that a run is made of, by name: tensors copied, state dicts, random numbers, plain attributes."""
    found: dict[str, Any] = {}
    for name, part in parts.items():
        found |= {f"{name} {key}": value for key, value in _of(part)}
    numbers = np.random.get_state()
    found |= {"torch": torch.get_rng_state(), "random": random.getstate(), "numpy": tuple(numbers)[2:]}
    found["numpy keys"] = torch.from_numpy(np.array(numbers[1], dtype=np.int64))
    return deepcopy(found)


def _of(part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(part, nn.Module):
        for name, p in part.named_parameters():
            yield name, p.detach()
            yield f"{name} gradient", p.grad
            yield f"{name} trains", p.requires_grad
        yield from part.named_buffers()
        for name, module in part.named_modules():
            yield f"{name} attributes", _plain(module)
            yield f"{name} hooks", [len(vars(module)[k]) for k in vars(module) if k.endswith("_hooks")]
    elif isinstance(part, torch.Generator):
        yield "generator", part.get_state()
    elif isinstance(part, dict):
        yield from _flat(part)
    else:
        if hasattr(part, "state_dict") and not hasattr(part, "get_train_dataloader"):
            yield from _flat(part.state_dict())
        yield "attributes", _plain(part)
        yield "names", sorted(vars(part))


def _plain(thing: Any) -> dict[str, Any]:
    return {k: v for k, v in vars(thing).items() if isinstance(v, PLAIN)}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(part, f"{name} {key}".strip())
    elif isinstance(value, list):
        for at, part in enumerate(value):
            yield from _flat(part, f"{name} {at}".strip())
    else:
        yield name, value


def different(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what is not the same."""
    found = sorted(before.keys() ^ after.keys())
    for name in before.keys() & after.keys():
        a, b = before[name], after[name]
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            same = a.dtype == b.dtype and torch.equal(a, b)
        else:
            same = type(a) is type(b) and bool(np.all(a == b))
        if not same:
            found.append(f"{name}: {a} -> {b}"[:200] if isinstance(a, PLAIN) else name)
    return found


class Rows(Text):
    """It counts what is read, and has random numbers of its own."""

    def __init__(self) -> None:
        super().__init__("")
        self.read, self.own, self.numbers = 0, random.Random(2), np.random.default_rng(3)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        self.read += 1
        row = super().__getitem__(at)
        swapped = self.own.randrange(LENGTH) if self.numbers.random() < 0.3 else 0
        row["ids"][swapped] = random.randrange(1, VOCAB)
        return row


class Counting(Model):
    """Batch norm, a frozen table, a counter, and noise of numpy."""

    def __init__(self) -> None:
        super().__init__("")
        self.calls, self.seen = 0, [0]
        self.scale = nn.BatchNorm1d(32)
        self.places.weight.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(len(ids))
        noise = torch.from_numpy(np.random.default_rng(np.random.randint(9)).normal(size=32)).float()
        x = self.scale((self.embed(ids) + self.places.weight + 0.01 * noise).transpose(1, 2)).transpose(1, 2)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


class Loop:
    """A loop of one's own, with all that a loop may hold."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        self.model = model = Counting()
        self.average = average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        held = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer = torch.optim.AdamW(held, lr=1e-3)
        self.scheduler = scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, (t + 1) / 10))
        self.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.generator, self.rows = torch.Generator().manual_seed(1), Rows()
        self.data = DataLoader(self.rows, batch_size=8, shuffle=True, generator=self.generator, drop_last=True)
        self.log: dict[str, Any] = {"losses": [], "best": None}
        log = self.log
        updates = 0

        def step(batches: list[Any]) -> None:
            nonlocal updates
            model.train()
            for batch in batches:
                loss = self.loss(model, batch) * (1 + 0.01 * random.random()) / len(batches)
                scaler.scale(loss).backward()
                log["losses"].append(float(loss))
            scaler.unscale_(optimizer)
            log["norm"] = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            scaler.step(optimizer)
            scaler.update()
            if updates % 2 == 0:
                average.update_parameters(model)
            updates += 1
            log["best"] = min(log["best"] or 9.0, log["losses"][-1])
            scheduler.step()
            optimizer.zero_grad()

        self.step, self.updates = step, lambda: updates

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch["ids"]).transpose(1, 2), batch["labels"])

    def setup(self) -> dict[str, Any]:
        parts = ("model", "loss", "data", "optimizer", "scheduler", "scaler", "step")
        return {name: getattr(self, name) for name in parts} | {"steps": 100, "accumulate": 2}

    def state(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in ("model", "average", "optimizer", "scheduler", "scaler", "log")}
        counted = {"updates": self.updates(), "read": self.rows.read, "seen": self.model.seen}
        numbers = {"own": self.rows.own.getstate(), "numbers": str(self.rows.numbers.bit_generator.state)}
        return state(**parts, generator=self.generator, counted=counted, numbers=numbers, rows=self.rows)

    def run(self, updates: int = 4) -> None:
        batches = iter(self.data)
        for _ in range(updates):
            self.step([next(batches), next(batches)])


@pytest.mark.parametrize("trained", [0, 2])
def test_a_loop_is_as_it_was(trained: int) -> None:
    """Before the first step, and in the middle of a run, with gradients that were left."""
    one, other = Loop(), None
    for loop in (one,):
        loop.run(trained)
        if trained:
            loop.loss(loop.model, next(iter(loop.data))).backward()
    before = one.state()
    report = isograd.preflight(one.setup(), prove=False)
    assert different(before, one.state()) == []
    assert report.missed == ()
    one.run()
    after = one.state()
    other = Loop()
    other.run(trained)
    if trained:
        other.loss(other.model, next(iter(other.data))).backward()
    other.run()
    assert different(after, other.state()) == []


def test_what_is_compared_is_compared() -> None:
    """The negative control: every part of the state is one that an update changes."""
    loop = Loop()
    before = loop.state()
    loop.run(2)
    changed = " ".join(different(before, loop.state()))
    for part in (
        "model head.weight", "model scale.running_mean", "model  attributes", "average", "optimizer", "scheduler",
        "scaler", "log", "generator", "counted updates", "counted read", "counted seen", "numbers own",
        "numbers numbers",
        "torch", "random", "numpy",
    ):  # fmt: skip
        assert part in changed, part


class Slots:
    __slots__ = ("a", "b")


def test_what_a_program_may_hold_is_put_back(tmp_path: Path) -> None:
    """Containers of all kinds, function attributes, views, slots; files are left alone, and iterators are named."""

    def step() -> None:
        step.count += 1  # type: ignore[attr-defined]
        held["slots"].a, held["slots"].b = 2, 3
        held["deque"].append(3)
        held["default"]["new"] += 1
        held["ordered"].move_to_end("a")
        held["bytes"][0], held["array"][0], held["numpy"][0] = 0, 9, 7.0
        held["tensor"][1:].mul_(3).add_(1)
        held["tensor"].note = "seen"
        held["tuple"][1].append(5)
        held["set"].add(9)
        held["random"].random()
        held["file"][0] = 4
        held["more"] = 1

    step.count = 0  # type: ignore[attr-defined]
    slots = Slots()
    slots.a = 1
    on_disk = np.memmap(tmp_path / "tokens.bin", dtype="u2", mode="w+", shape=(8,))
    held: dict[str, Any] = {
        "slots": slots, "deque": deque([1, 2], maxlen=2), "default": defaultdict(int, a=1),
        "ordered": OrderedDict(a=1, b=2),
        "bytes": bytearray(b"abc"), "array": array.array("i", [1, 2]), "numpy": np.zeros(2), "tensor": torch.ones(3),
        "tuple": (1, [2]), "set": {1}, "random": random.Random(0), "file": on_disk,
    }  # fmt: skip
    with kept(step) as state:
        step()
    assert step.count == 0 and slots.a == 1 and not hasattr(slots, "b")  # type: ignore[attr-defined]
    assert held["deque"] == deque([1, 2]) and held["default"] == {"a": 1} and [*held["ordered"]] == ["a", "b"]
    assert held["bytes"] == b"abc" and held["array"][0] == 1 and not held["numpy"].any()
    assert torch.equal(held["tensor"], torch.ones(3)) and not hasattr(held["tensor"], "note")
    assert held["tuple"] == (1, [2]) and held["set"] == {1} and "more" not in held
    assert held["random"].random() == random.Random(0).random()
    assert on_disk[0] == 4 and not state.lost
    assert Kept([iter([1]), (x for x in "ab")]).lost == {
        "list_iterator",
        f"{test_what_a_program_may_hold_is_put_back.__name__}.<locals>.<genexpr>",
    }


# --- transformers' Trainer


class Sentences(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        ids = torch.randint(1, 31, (12,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": ids, "labels": ids.clone()}


def trainer(folder: Any, **settings: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Counter(TrainerCallback):
        def __init__(self) -> None:
            self.begun = 0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun += 1

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=31, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    usual = {"max_steps": 6, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 1e-3}
    usual |= {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_steps": 2}
    arguments = TrainingArguments(output_dir=str(folder), **(usual | settings))
    return Trainer(model=model, args=arguments, train_dataset=Sentences(), callbacks=[Counter()])


def of_trainer(made: Any) -> dict[str, Any]:
    handler = made.callback_handler
    callbacks = {f"{i} {type(c).__name__}": _plain(c) for i, c in enumerate(handler.callbacks)}
    log = {"log": str(made.state.log_history), "arguments": str(made.args.to_dict())}
    return state(
        model=made.model, trainer=made, arguments=made.args, state=made.state, control=made.control,
        callbacks=callbacks, log=log, accelerator=_plain(made.accelerator) | {"models": len(made.accelerator._models)},
    )  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"lr_scheduler_type": "cosine", "warmup_steps": 2, "max_steps": 5}])
def test_a_trainer_is_as_it_was(settings: dict[str, Any], tmp_path: Any) -> None:
    one = trainer(tmp_path / "one", **settings)
    before, files = of_trainer(one), sorted(tmp_path.rglob("*"))
    report = isograd.preflight(one, prove=False)
    assert different(before, of_trainer(one)) == []
    assert report.missed == () and not report.errors, str(report)
    assert one.optimizer is None and one.lr_scheduler is None
    assert sorted(tmp_path.rglob("*")) == files
    assert weights(one) == weights(trainer(tmp_path / "one", **settings))


def weights(made: Any) -> list[Any]:
    """After training: parameters, moments and the log."""
    made.train()
    rows = [
        {k: v for k, v in row.items() if "runtime" not in k and "per_second" not in k} for row in made.state.log_history
    ]
    moments = [v.tolist() for s in made.optimizer.state.values() for v in s.values()]
    return [[p.tolist() for p in made.model.parameters()], moments, made.lr_scheduler.last_epoch, rows]


# --- Lightning


def module() -> Any:
    import lightning

    class Language(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net, self.calls = Model(""), 0

        def training_step(self, batch: dict[str, Tensor], place: int) -> Tensor:
            self.calls += 1
            loss = functional.cross_entropy(self.net(batch["ids"]).transpose(1, 2), batch["labels"])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> tuple[list[Optimizer], list[Any]]:
            optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    return Language()


def lightning_parts(folder: Any) -> tuple[Any, Any, Any]:
    lightning = pytest.importorskip("lightning")
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "enable_checkpointing": False,
    }
    fitting = lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_steps=8,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        **quiet,
    )
    shuffled = torch.Generator().manual_seed(1)
    return module(), fitting, DataLoader(Text(""), batch_size=8, shuffle=True, generator=shuffled, drop_last=True)


def test_lightning_is_as_it_was(tmp_path: Any) -> None:
    parts = one, fitting, data = lightning_parts(tmp_path)

    def now() -> dict[str, Any]:
        loops = {"step": fitting.global_step, "epoch": fitting.current_epoch, "callbacks": len(fitting.callbacks)}
        optimizers = {"optimizers": len(fitting.strategy.optimizers)}
        return state(model=one, trainer=fitting, loops=loops, generator=data.generator, optimizers=optimizers)

    before = now()
    report = isograd.preflight(parts, prove=False)
    assert different(before, now()) == []
    assert report.missed == () and not report.errors, str(report)
    assert report.placements  # the network that training_step calls
    assert fitted(parts) == fitted(lightning_parts(tmp_path))


def fitted(parts: tuple[Any, Any, Any]) -> list[Any]:
    one, fitting, data = parts
    torch.manual_seed(3)  # of dropout
    fitting.fit(one, data)
    (optimizer,) = fitting.optimizers
    moments = [v.tolist() for s in optimizer.state.values() for v in s.values()]
    return [[p.tolist() for p in one.parameters()], moments, fitting.global_step, one.calls, fitting.callback_metrics]
