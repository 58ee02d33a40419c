"""Each fault in several shapes is named, and healthy designs near it are not."""

import copy
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler, get_worker_info

import isograd
from tests.preflight.test_faults import loud
from tests.preflight.test_unusual import loss, setup

Parts = dict[str, Any]


def named(code: str, parts: Parts) -> bool:
    report = isograd.preflight(parts)
    assert not [one for one in report.missed if one.split(":")[0] in report.groups], report.missed
    return code in loud(report)


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(5)), nn.Linear(8, 4))


# Clipping.


def clipped(clip: Callable[[nn.Module], Any], scaled: bool = False) -> Parts:
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
    parts = setup(model=model, optimizer=optimizer, scaler=scaler)

    def step(batches: list[Any]) -> None:
        optimizer.zero_grad()
        value = loss(model, batches[0])
        (value if scaler is None else scaler.scale(value)).backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        clip(model)
        optimizer.step() if scaler is None else scaler.step(optimizer)
        if scaler is not None:
            scaler.update()

    return parts | {"step": step}


LIMIT = 0.005


def one_by_one(model: nn.Module) -> None:
    for p in model.parameters():
        nn.utils.clip_grad_norm_(p, LIMIT)


def by_hand(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad.mul_(min(1.0, LIMIT / float(p.grad.norm())))


def by_layer(model: nn.Module) -> None:
    for layer in model.children():
        nn.utils.clip_grad_norm_(layer.parameters(), LIMIT)


def adaptive(model: nn.Module) -> None:
    for p in model.parameters():
        nn.utils.clip_grad_norm_(p, 0.01 * float(p.norm()))


def two_parts(model: nn.Module) -> None:
    first, *rest = model.children()
    nn.utils.clip_grad_norm_(first.parameters(), LIMIT)
    nn.utils.clip_grad_norm_([p for layer in rest for p in layer.parameters()], LIMIT)


def normalized(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad.div_(p.grad.norm())


@pytest.mark.parametrize("clip", [one_by_one, by_hand, by_layer, partial(clipped, one_by_one, scaled=True)])
def test_clipping_of_tensors_one_by_one(clip: Any) -> None:
    assert named("clip-per-tensor", clip() if isinstance(clip, partial) else clipped(clip))


@pytest.mark.parametrize(
    "clip",
    [
        lambda model: nn.utils.clip_grad_norm_(model.parameters(), LIMIT),
        lambda model: nn.utils.clip_grad_value_(model.parameters(), LIMIT / 20),
        lambda model: None,
        adaptive,
        two_parts,
        normalized,
    ],
    ids=["whole", "value", "none", "adaptive", "two parts", "normalized"],
)
def test_another_clipping(clip: Callable[[nn.Module], Any]) -> None:
    assert not named("clip-per-tensor", clipped(clip))


# Schedules.


def scheduled(make: Callable[[Any], Any]) -> Parts:
    parts = setup(steps=60)
    return parts | {"scheduler": make(parts["optimizer"])}


def warmed(optimizer: Any, length: int) -> Any:
    up = lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=5)
    return lr_scheduler.SequentialLR(optimizer, [up, lr_scheduler.CosineAnnealingLR(optimizer, length)], [5])


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=6),
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=25, eta_min=1e-6),
        partial(warmed, length=8),
    ],
)
def test_a_schedule_of_epochs_that_is_stepped_per_update(make: Callable[[Any], Any]) -> None:
    assert named("schedule-ends-early", scheduled(make))


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=60),
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=55),
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=20),
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=12),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=6),
        lambda o: lr_scheduler.CyclicLR(o, 1e-5, 1e-3, step_size_up=5, cycle_momentum=False),
        lambda o: lr_scheduler.LambdaLR(o, lambda t: 0.5 + 0.5 * np.cos(t / 3)),
        partial(warmed, length=55),
    ],
)
def test_a_schedule_that_is_long_enough_or_has_cycles(make: Callable[[Any], Any]) -> None:
    assert not named("schedule-ends-early", scheduled(make))


def by_four(make: Callable[[Any, int], Any], length: int) -> Parts:
    """As accelerate steps a schedule with four processes."""
    parts = setup(steps=60)
    model, optimizer = parts["model"], parts["optimizer"]
    schedule = make(optimizer, length)

    def step(batches: list[Any]) -> None:
        optimizer.zero_grad()
        parts["loss"](model, batches[0]).backward()
        optimizer.step()
        for _ in range(4):
            schedule.step()

    return parts | {"scheduler": schedule, "step": step}


@pytest.mark.parametrize(
    "make",
    [
        lr_scheduler.CosineAnnealingLR,
        lambda o, n: lr_scheduler.LambdaLR(o, lambda t: max(0.0, 1 - t / n)),
        lambda o, n: lr_scheduler.OneCycleLR(o, 1e-3, total_steps=n),
    ],
)
def test_a_schedule_that_is_stepped_once_per_process(make: Callable[[Any, int], Any]) -> None:
    assert named("schedule-per-batch", by_four(make, 60))
    assert not named("schedule-per-batch", by_four(make, 242))


# Causal models of ids.

VOCAB, LENGTH = 20, 12


class Causal(nn.Module):
    """The logits of a position are of the mean of all ids up to it."""

    def __init__(self, classes: int = VOCAB) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, 16), nn.Sequential(nn.Linear(16, 16), nn.Linear(16, classes))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(x + x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])


class Both(Causal):
    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids) + self.embed(ids).mean(1, keepdim=True))


def rows_of(hidden: float, seed: int = 0) -> TensorDataset:
    """Ids and labels, of which a share of rows has none."""
    torch.manual_seed(seed)
    ids = torch.randint(0, VOCAB, (96, LENGTH + 1))
    labels = ids.clone()
    labels[torch.rand(96) < hidden] = -100
    return TensorDataset(ids, labels)


def filled_up() -> TensorDataset:
    """Rows of padding alone, so that each batch has as many."""
    ids, labels = rows_of(0.0).tensors
    ids[::4], labels[::4] = 0, -100
    return TensorDataset(ids, labels)


def of_ids(form: Callable[[nn.Module, Any], Tensor], data: Any, model: nn.Module | None = None, **parts: Any) -> Parts:
    torch.manual_seed(0)
    model = Causal() if model is None else model
    loader = DataLoader(data, batch_size=12) if isinstance(data, Dataset) else data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return {"model": model, "loss": form, "data": loader, "optimizer": optimizer} | parts


def transposed(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0][:, :-1]).transpose(1, 2), batch[1][:, 1:])


def flat(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[1][:, 1:].reshape(-1))


def masked(model: nn.Module, batch: Any) -> Tensor:
    """Labels of which a mask is made, and the loss of every position."""
    asked = (batch[1][:, 1:] >= 0).float()
    each = functional.cross_entropy(model(batch[0][:, :-1]).transpose(1, 2), batch[0][:, 1:], reduction="none")
    return (each * asked).sum() / asked.sum()


def in_place(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]).transpose(1, 2), batch[1])


def two_tasks(model: nn.Module, batch: Any) -> Tensor:
    """Rows without labels have their place in another loss."""
    other = (batch[1] < 0).all(1)
    sums = functional.mse_loss(model(batch[0][:, :-1]).mean((1, 2))[other], batch[0][other].float().mean(1) / VOCAB)
    return transposed(model, batch) + sums


@pytest.mark.parametrize("form", [transposed, flat, masked])
def test_rows_without_targets(form: Callable[..., Tensor]) -> None:
    assert named("batch-without-targets", of_ids(form, rows_of(0.4)))


@pytest.mark.parametrize(
    ("form", "hidden", "model"),
    [
        (transposed, 0.0, Causal),
        (masked, 0.0, Causal),
        (flat, 0.03, Causal),
        (in_place, 0.4, Both),
        (flat, 0.4, Both),
        (two_tasks, 0.4, Causal),
    ],
)
def test_rows_with_targets_or_with_another_loss_or_of_a_model_that_reads_both_ways(
    form: Any, hidden: float, model: Any
) -> None:
    assert not named("batch-without-targets", of_ids(form, rows_of(hidden), model()))


def test_rows_that_fill_a_batch_up() -> None:
    assert not named("batch-without-targets", of_ids(flat, filled_up()))


# What loss functions take.


def distilled(model: nn.Module, batch: Any, kind: str) -> Tensor:
    scores, teacher = model(batch[0]), functional.one_hot(batch[1], 4) * 0.8 + 0.05
    if kind == "probabilities":
        return functional.kl_div(scores.softmax(-1), teacher, reduction="batchmean")
    if kind == "module":
        return nn.KLDivLoss(reduction="none")(scores.softmax(-1), teacher).sum(-1).mean()
    if kind == "logarithms for a target":
        return functional.kl_div(scores.log_softmax(-1), teacher.log(), reduction="batchmean")
    if kind == "ctc":
        return ctc(scores.softmax(-1))
    if kind == "nll":
        return functional.nll_loss(scores.softmax(-1), batch[1])
    if kind == "scores":
        return functional.nll_loss(scores, batch[1])
    if kind == "scores and their sum":
        return scores.logsumexp(-1).mean() + functional.nll_loss(scores, batch[1])
    if kind == "kl":
        return functional.kl_div(scores.log_softmax(-1), teacher, reduction="batchmean")
    if kind == "kl of logarithms":
        return functional.kl_div(scores.log_softmax(-1), teacher.log(), reduction="batchmean", log_target=True)
    if kind == "ctc of logarithms":
        return ctc(scores.log_softmax(-1))
    if kind == "log of a smoothed one":
        return functional.kl_div((scores.softmax(-1) + 1e-8).log(), teacher, reduction="batchmean")
    return functional.nll_loss(scores.log_softmax(-1), batch[1])


def ctc(scores: Tensor) -> Tensor:
    """A sequence of eight, in which 1 2 is read."""
    return functional.ctc_loss(scores[:, None], torch.tensor([[1, 2]]), torch.tensor([8]), torch.tensor([2]))


@pytest.mark.parametrize("kind", ["probabilities", "module", "logarithms for a target", "ctc", "nll", "scores"])
def test_probabilities_for_logarithms(kind: str) -> None:
    assert named("loss-of-probabilities", setup(loss=partial(distilled, kind=kind)))


@pytest.mark.parametrize(
    "kind",
    ["kl", "kl of logarithms", "ctc of logarithms", "log of a smoothed one", "nll of logs", "scores and their sum"],
)
def test_logarithms(kind: str) -> None:
    assert not named("loss-of-probabilities", setup(loss=partial(distilled, kind=kind)))


# Log-probabilities in 16 bits.


def logps(logits: Tensor, ids: Tensor, how: str) -> Tensor:
    if how == "gather":
        return logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1).sum(-1)
    if how == "logsumexp":
        return (logits.gather(-1, ids[..., None]).squeeze(-1) - logits.logsumexp(-1)).sum(-1)
    if how == "mean":
        return logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1).mean(-1)
    return -functional.cross_entropy(logits.transpose(1, 2), ids, reduction="none").sum(-1)


def preferred(model: nn.Module, batch: Any, how: str, dtype: torch.dtype) -> Tensor:
    chosen, rejected = (logps(model(x[:, :-1]).to(dtype), x[:, 1:], how) for x in (batch[0], batch[0].flip(0)))
    return -functional.logsigmoid(0.1 * (chosen - rejected)).mean()


def alone(model: nn.Module, batch: Any, how: str, dtype: torch.dtype) -> Tensor:
    return -logps(model(batch[0][:, :-1]).to(dtype), batch[0][:, 1:], how).mean()


def bounded(model: nn.Module, batch: Any, how: str, dtype: torch.dtype) -> Tensor:
    """A bound whose two parts are only added up."""
    scores = model(batch[0][:, :-1]).to(dtype)
    return -(logps(scores, batch[0][:, 1:], how) - scores.square().mean((1, 2))).mean()


@pytest.mark.parametrize("how", ["gather", "logsumexp", "cross entropy"])
def test_log_probabilities_in_half(how: str) -> None:
    assert named("loss-in-half", of_ids(partial(preferred, how=how, dtype=torch.bfloat16), rows_of(0.0)))


@pytest.mark.parametrize(
    ("form", "how", "dtype"),
    [
        (preferred, "gather", torch.float32),
        (preferred, "logsumexp", torch.float32),
        (preferred, "mean", torch.bfloat16),
        (preferred, "gather", torch.float16),  # numbers are 0.03 nats apart
        (alone, "gather", torch.bfloat16),
        (bounded, "gather", torch.bfloat16),
        (bounded, "cross entropy", torch.bfloat16),
    ],
)
def test_log_probabilities_that_are_fine_enough(form: Any, how: str, dtype: torch.dtype) -> None:
    assert not named("loss-in-half", of_ids(partial(form, how=how, dtype=dtype), rows_of(0.0)))


# Scores whose classes stand on the second axis.


def frames(reshape: Callable[[Tensor, Tensor], Tensor], axes: int = 1, classes: int = 6, net: Any = None) -> Parts:
    torch.manual_seed(0)
    kind = (nn.Conv1d, nn.Conv2d)[axes - 1]
    model = nn.Sequential(kind(5, 16, 1), nn.Tanh(), kind(16, classes, 1)) if net is None else net
    size = (30,) if axes == 1 else (4, 7)
    data = TensorDataset(torch.randn(64, 5, *size), torch.randint(0, 6, (64, *size)))
    return of_ids(lambda model, batch: reshape(model(batch[0]), batch[1]), data, model)


@pytest.mark.parametrize(
    ("reshape", "axes"),
    [
        (lambda s, y: functional.nll_loss(s.log_softmax(1).reshape(-1, 6), y.reshape(-1)), 1),
        (lambda s, y: functional.cross_entropy(s.contiguous().view(-1, 6), y.flatten()), 1),
        (lambda s, y: functional.cross_entropy(s.reshape(-1, s.shape[1]), y.view(-1)), 2),
    ],
)
def test_scores_that_are_reshaped_across_classes(reshape: Any, axes: int) -> None:
    assert named("targets-mixed", frames(reshape, axes))


@pytest.mark.parametrize(
    ("reshape", "axes"),
    [
        (lambda s, y: functional.nll_loss(s.log_softmax(1).permute(0, 2, 1).reshape(-1, 6), y.reshape(-1)), 1),
        (lambda s, y: functional.cross_entropy(s, y), 1),
        (lambda s, y: functional.cross_entropy(s, y), 2),
        (lambda s, y: functional.cross_entropy(s.movedim(1, -1).flatten(0, 2), y.flatten()), 2),
        (lambda s, y: functional.cross_entropy(s.transpose(1, 2).contiguous().view(-1, 6), y.flatten()), 1),
    ],
)
def test_scores_whose_classes_are_moved_first(reshape: Any, axes: int) -> None:
    assert not named("targets-mixed", frames(reshape, axes))


# Workers.


class Stream(IterableDataset[Any]):
    def __init__(self, *, split: bool, shuffled: bool = False, drawn: bool = False) -> None:
        self.split, self.shuffled, self.drawn = split, shuffled, drawn

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        order = torch.randperm(96) if self.shuffled else torch.arange(96)
        for i in order.tolist():
            if not self.split or info is None or i % info.num_workers == info.id:
                fixed = torch.Generator().manual_seed(i)
                x = torch.randn(8) if self.drawn else torch.randn(8, generator=fixed)
                yield x, torch.tensor(i % 4)


class Noisy(Dataset[Any]):
    """Rows with noise of a generator of its own, or of torch's."""

    def __init__(self, source: Any = None) -> None:
        self.x, self.source = torch.randn(96, 8), source

    def __len__(self) -> int:
        return 96

    def __getitem__(self, i: int) -> Any:
        if isinstance(self.source, np.random.RandomState):
            noise = torch.from_numpy(self.source.randn(8)).float()
        elif isinstance(self.source, random.Random):
            noise = torch.tensor([self.source.gauss(0, 1) for _ in range(8)])
        elif self.source == "none":
            noise = torch.zeros(8)
        else:
            noise = torch.randn(8, generator=self.source)
        return self.x[i] + 0.1 * noise, i % 4


class InTurn(Noisy):
    """Parts of a row, the next one at each reading of it."""

    def __init__(self) -> None:
        super().__init__("none")
        self.times = [0] * 96

    def __getitem__(self, i: int) -> Any:
        self.times[i] += 1
        return self.x[i].roll(self.times[i]), i % 4


def reseeded(worker: int) -> None:
    get_worker_info().dataset.source.seed(torch.initial_seed() % 2**32)  # type: ignore[union-attr]


def read_by(dataset: Any, workers: int = 2, **options: Any) -> Parts:
    torch.manual_seed(0)
    context = "fork" if workers else None
    data: Any = DataLoader(dataset, 8, num_workers=workers, multiprocessing_context=context, **options)
    return setup(data=data)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("dataset", "workers"),
    [
        (Stream(split=False), 2),
        (Stream(split=False, shuffled=True), 2),
        (Stream(split=False), 3),
        (Noisy(np.random.RandomState(0)), 2),
        (Noisy(random.Random(0)), 2),
        (Noisy(torch.Generator().manual_seed(0)), 3),
    ],
)
def test_workers_that_do_the_same(dataset: Any, workers: int) -> None:
    assert named("workers-alike", read_by(dataset, workers))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("dataset", "workers", "options"),
    [
        (Stream(split=True), 2, {}),
        (Stream(split=True, shuffled=True), 2, {}),
        (Stream(split=False, drawn=True), 2, {}),
        (Noisy(), 2, {"shuffle": True}),
        (Noisy("none"), 2, {}),
        (InTurn(), 2, {}),
        (Noisy(np.random.RandomState(0)), 0, {}),
        (Noisy(np.random.RandomState(0)), 2, {"worker_init_fn": reseeded}),
    ],
)
def test_workers_that_share_the_work(dataset: Any, workers: int, options: Parts) -> None:
    assert not named("workers-alike", read_by(dataset, workers, **options))


class Faded(Noisy):
    """Rows that are made smaller: where they are kept, or in a copy; and what a data set may write to besides."""

    def __init__(self, how: str) -> None:
        super().__init__("none")
        self.how, self.seen, self.filled = how, torch.zeros(96), np.zeros((96, 8), np.float32)
        self.own = torch.Generator().manual_seed(0)

    def __getitem__(self, i: int) -> Any:
        row = self.x[i] if self.how in ("itself", "array") else self.x[i].clone()
        if self.how == "array":
            row = torch.from_numpy(self.filled[i])
            row += 1.0
        row *= 0.9
        self.seen[i] += 1
        if self.how == "filled in":
            self.filled[i] = row.numpy()
            return torch.from_numpy(self.filled[i]), i % 4
        if self.how == "own noise":
            row = row + torch.randn(8, generator=self.own)
        return row, i % 4


class Strings(Noisy):
    """With arrays that are no numbers, and rows that are not found by 0."""

    def __init__(self) -> None:
        super().__init__("none")
        self.names = np.array(["a", "b"])


@pytest.mark.parametrize("how", ["itself", "array"])
def test_rows_that_change_by_being_read(how: str) -> None:
    assert named("data-changes", read_by(Faded(how), 0))


@pytest.mark.parametrize(
    "dataset",
    [
        Faded("copy"),
        Faded("filled in"),
        Faded("own noise"),
        Noisy(),
        Noisy(np.random.RandomState(0)),
        InTurn(),
        Strings(),
    ],
)
def test_rows_that_stay_or_are_drawn(dataset: Any) -> None:
    assert not named("data-changes", read_by(dataset, 0))


# Partners in a batch.


class BiEncoder(nn.Module):
    """Scores of questions (n, 8) and passages (n, 8), each with each."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.drop = nn.Linear(8, 16), nn.Linear(8, 16), nn.Dropout(0.1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.drop(self.left(a)) @ self.drop(self.right(b)).T


def retrieval(passages: int, form: str = "scores", rows: int = 128) -> Parts:
    torch.manual_seed(0)
    questions, of = torch.randn(rows, 8), torch.randn(passages, 8)[torch.arange(rows) % passages]
    model = BiEncoder()

    def ranked(model: nn.Module, batch: Any) -> Tensor:
        scores, right = model(*batch), torch.arange(len(batch[0]))
        if form == "equal ones left out":
            same = torch.cdist(batch[1], batch[1]) < 1e-6
            scores = scores.masked_fill(same & ~torch.eye(len(same), dtype=torch.bool), -1e9)
        return functional.cross_entropy(scores, right)

    loader: Any = DataLoader(TensorDataset(questions, of), 16, shuffle=True)
    return setup(model=model, loss=ranked, data=loader, optimizer=torch.optim.AdamW(model.parameters(), 1e-3))


@pytest.mark.parametrize("passages", [8, 40])
def test_partners_that_stand_in_a_batch_twice(passages: int) -> None:
    assert named("false-negatives", retrieval(passages))


@pytest.mark.parametrize("parts", [(128, "scores"), (8, "equal ones left out")])
def test_partners_that_stand_once_or_are_left_out(parts: Any) -> None:
    assert not named("false-negatives", retrieval(*parts))


# A loss that is one value, a blank among the targets, rows that are never drawn, clipping that comes late.


@pytest.mark.parametrize(("reference", "named_"), [("itself", True), ("a copy", False), ("another", False)])
def test_a_reference_that_is_the_policy(reference: str, named_: bool) -> None:
    model = deep()
    other = model if reference == "itself" else copy.deepcopy(model)
    if reference == "another":
        other = deep().double().float()
        nn.init.normal_(other[0][0].weight)  # type: ignore[index]

    def preferred(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        mine, its = (m(x).log_softmax(-1).gather(-1, y[:, None]) for m in (model, other))
        margin = mine - its.detach()
        chosen, rejected = margin.chunk(2)
        return -functional.logsigmoid(chosen - rejected).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert named("loss-constant", setup(model=model, loss=preferred, optimizer=optimizer)) is named_


def test_a_policy_loss_near_zero_is_no_constant() -> None:
    def centred(model: nn.Module, batch: Any) -> Tensor:
        logp = model(batch[0]).log_softmax(-1).gather(-1, batch[1][:, None]).squeeze(-1)
        reward = batch[0].sum(1)
        return -((logp - logp.detach()).exp() * (reward - reward.mean())).mean()

    model = deep()
    parts = setup(model=model, loss=centred, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert not named("loss-constant", parts)


@pytest.mark.parametrize(
    ("blank", "flat", "named_"), [(None, False, True), (None, True, True), (6, False, False), (6, True, False)]
)
def test_a_blank_among_the_targets(blank: int | None, flat: bool, named_: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 7))
    text, lengths = torch.randint(6, (96, 4)), torch.randint(2, 5, (96,))
    options = {} if blank is None else {"blank": blank}

    def ctc_of(model: nn.Module, batch: Any) -> Tensor:
        x, y, n = batch
        scores = model(x).log_softmax(-1).transpose(0, 1)
        real = (
            y[torch.arange(4) < n[:, None]]
            if flat
            else y.masked_fill(torch.arange(4) >= n[:, None], 6 if blank is None else 0)
        )
        return functional.ctc_loss(scores, real, torch.full((len(x),), 12), n, **options)

    loader: Any = DataLoader(TensorDataset(torch.randn(96, 12, 8), text, lengths), 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert named("blank-in-targets", setup(model=model, loss=ctc_of, data=loader, optimizer=optimizer)) is named_


@pytest.mark.parametrize(("each", "named_"), [(False, True), (True, False)])
def test_a_weight_for_each_row(each: bool, named_: bool) -> None:
    labels = torch.arange(96) % 4
    weights = torch.ones(4)
    sampler = WeightedRandomSampler((weights[labels] if each else weights).tolist(), 96)
    loader: Any = DataLoader(TensorDataset(torch.randn(96, 8), labels), 8, sampler=sampler)
    assert named("rows-never-drawn", setup(data=loader)) is named_


@pytest.mark.parametrize("late", [True, False])
def test_clipping_after_the_step(late: bool) -> None:
    """At a limit that no gradient comes to: the order of the calls tells it."""
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batches: list[Any]) -> None:
        optimizer.zero_grad()
        loss(model, batches[0]).backward()
        calls = [optimizer.step, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e3)]
        for call in calls if late else calls[::-1]:
            call()

    assert named("clip-after-step", setup(model=model, optimizer=optimizer) | {"step": step}) is late


# Ends of texts.


@pytest.mark.parametrize(("by_mask", "end"), [(True, 0), (False, 0), (False, 5)])
def test_an_end_that_fills_rows_up_and_is_never_a_target(by_mask: bool, end: int) -> None:
    """The end token of rows that it also fills up: labels are hidden by its id, or by the mask; or another id fills."""
    torch.manual_seed(0)
    ids, lengths = torch.randint(6, 20, (64, 16)), torch.randint(6, 15, (64,))
    mask = torch.arange(16) < lengths[:, None]
    ids[mask.logical_not()] = 0
    ids[torch.arange(64), lengths - 1] = end
    targets = ids.masked_fill(~mask if by_mask else (ids == 0), -100)
    rows = [{"ids": i, "attention_mask": m.long(), "labels": t} for i, m, t in zip(ids, mask, targets, strict=True)]

    def next_id(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch["ids"][:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())

    parts = of_ids(next_id, TensorDataset(ids)) | {"data": DataLoader(rows, 8)}  # type: ignore[arg-type]
    assert named("end-never-target", parts) is (not by_mask and end == 0)


# Micro-batches.


def added_up(form: Callable[[nn.Module, Any, int], Tensor], parts: int = 4, times: float = 1.0) -> Parts:
    made = of_ids(transposed, rows_of(0.0), accumulate=parts)

    def step(batches: list[Any]) -> None:
        made["optimizer"].zero_grad()
        for batch in batches:
            form(made["model"], batch, sum(b[1][:, 1:].numel() for b in batches)).backward()
        for p in made["model"].parameters():
            p.grad.mul_(times)
        made["optimizer"].step()

    return made | {"step": step}


def summed(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[1][:, 1:].flatten(), reduction="sum")


def of_each(model: nn.Module, batch: Any) -> Tensor:
    return -model(batch[0][:, :-1]).log_softmax(-1).gather(-1, batch[1][:, 1:, None]).mean()


@pytest.mark.parametrize(
    ("form", "parts"),
    [
        (lambda model, batch, items: summed(model, batch) / items / 4, 4),
        (lambda model, batch, items: transposed(model, batch) / 16, 4),
        (lambda model, batch, items: of_each(model, batch) / 4, 2),
        (lambda model, batch, items: of_each(model, batch), 4),
        (lambda model, batch, items: summed(model, batch) / items * 4, 4),
    ],
)
def test_micro_batches_that_are_divided_twice_or_never(form: Any, parts: int) -> None:
    assert named("accumulation-undivided", added_up(form, parts))


@pytest.mark.parametrize(
    ("form", "parts"),
    [
        (lambda model, batch, items: summed(model, batch) / items, 4),
        (lambda model, batch, items: transposed(model, batch) / 4, 4),
        (lambda model, batch, items: of_each(model, batch) / 2, 2),
        (lambda model, batch, items: 0.5 * of_each(model, batch) / 4, 4),
        (lambda model, batch, items: summed(model, batch), 4),
    ],
)
def test_micro_batches_that_are_divided_once(form: Any, parts: int) -> None:
    assert not named("accumulation-undivided", added_up(form, parts))


def test_gradients_may_be_divided_before_the_step() -> None:
    assert not named("accumulation-undivided", added_up(lambda model, batch, items: transposed(model, batch), 4, 1 / 4))


def test_two_backward_passes_of_one_batch_are_no_micro_batches() -> None:
    made = of_ids(transposed, rows_of(0.0))

    def step(batches: list[Any]) -> None:
        made["optimizer"].zero_grad()
        transposed(made["model"], batches[0]).backward()
        (1e-6 * made["model"](batches[0][0]).square().mean()).backward()
        made["optimizer"].step()

    assert not named("accumulation-undivided", made | {"step": step})


# Parts of a loss without a gradient.


def with_part(model: nn.Module, batch: Any, kind: str) -> Tensor:
    scores = model(batch[0])
    whole, size = functional.cross_entropy(scores, batch[1]), scores.square().mean()
    teacher = functional.one_hot(batch[1], 4) * 0.8 + 0.05
    log_teacher = teacher.log()
    if kind == "item":
        return whole + 0.1 * size.item()
    if kind == "float":
        return whole + float(size) * 0.1
    if kind == "teacher with itself":
        return whole + functional.kl_div(log_teacher, teacher, reduction="batchmean")
    if kind == "detached":
        return whole + functional.mse_loss(scores.detach(), teacher)
    if kind == "no_grad":
        with torch.no_grad():
            part = functional.mse_loss(scores, teacher)
        return whole + part
    if kind == "logged":
        size.item()
        functional.mse_loss(scores.detach(), teacher)
        return whole + 0.1 * size
    if kind == "normalized":
        return whole / whole.item() + 0.1 * size
    if kind == "stop gradient":
        other = model(batch[0] + 0.1)
        return functional.mse_loss(scores, other.detach()) + functional.mse_loss(other, scores.detach()) + whole
    if kind == "flooded":
        return (whole - 0.1).abs() + 0.1
    if kind == "reference":
        return whole - functional.cross_entropy(batch[0][:, :4], batch[1])
    if kind == "teacher's entropy":
        return functional.cross_entropy(scores, teacher) - functional.cross_entropy(log_teacher, teacher)
    if kind == "k1":
        each, other = (-functional.cross_entropy(x, batch[1], reduction="none") for x in (scores, log_teacher))
        return whole + 0.1 * (each - other).mean()
    if kind == "branch":
        return whole if whole.item() < 100 else whole * 0.1
    return whole + functional.kl_div(scores.log_softmax(-1), teacher, reduction="batchmean")


@pytest.mark.parametrize("kind", ["item", "float", "teacher with itself", "detached", "no_grad"])
def test_a_part_without_a_gradient(kind: str) -> None:
    assert named("gradient-cut", setup(loss=partial(with_part, kind=kind)))


@pytest.mark.parametrize(
    "kind",
    [
        "logged",
        "normalized",
        "stop gradient",
        "flooded",
        "branch",
        "distilled",
        "reference",
        "teacher's entropy",
        "k1",
    ],
)
def test_parts_with_a_gradient(kind: str) -> None:
    assert not named("gradient-cut", setup(loss=partial(with_part, kind=kind)))


# Names of parts.


def test_a_run_may_have_more_than_parts_with_names_near_theirs() -> None:
    parts = setup(saved={"weight": torch.zeros(2)}, loader="train.jsonl", models=["a"])
    assert not loud(isograd.preflight(parts))
    with pytest.raises(isograd.errors.InputsError, match="unknown key 'lr_scheduler'"):
        isograd.preflight(setup(lr_scheduler=None))
