"""The whole loss of two rows with less of the padding that the data has."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import isograd

PAD, END, VOCABULARY, WIDTH, TIME = 0, 1, 40, 32, 18


class Decoder(nn.Module):
    """Reads to the left only: padding on the right moves no output of a real token."""

    def __init__(self, out: int = VOCABULARY, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TIME, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout, batch_first=True, norm_first=True)
        self.layers, self.norm = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, out)

    def forward(self, ids: Tensor) -> Tensor:
        time = ids.shape[1]
        x = self.tokens(ids) + self.places.weight[:time]
        return self.head(self.norm(self.layers(x, mask=torch.ones(time, time).triu(1).bool())))


class Encoder(Decoder):
    """Reads both ways, and hides padding."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.layers(x, src_key_padding_mask=ids == PAD)))


def rows(end: bool = True) -> list[Tensor]:
    """Texts of several lengths, filled up at their ends."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(2, VOCABULARY, (64, TIME), generator=draw)
    lengths = torch.randint(5, TIME, (64, 1), generator=draw)
    lengths[::8] = TIME
    if end:
        ids.scatter_(1, lengths - 1, END)
    ids = ids.masked_fill(torch.arange(TIME) >= lengths, PAD)
    return [*ids.split(8)]


def each(model: nn.Module, ids: Tensor, **more: Any) -> Tensor:
    return functional.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none", **more)


def smoothed(model: nn.Module, ids: Tensor) -> Tensor:
    scores = model(ids[:, :-1]).log_softmax(-1)
    return 0.9 * -scores.gather(-1, ids[:, 1:, None])[..., 0] + 0.1 * -scores.mean(-1)


def of_real(losses: Tensor, ids: Tensor) -> Tensor:
    return losses[ids[:, 1:] != PAD].mean()


def regressed(model: nn.Module, ids: Tensor) -> Tensor:
    """A number for each token, as the next one's size."""
    return (model(ids)[..., 0] - ids / VOCABULARY) ** 2


def preferred(values: Tensor) -> Tensor:
    better, worse = values.chunk(2)
    return -functional.logsigmoid(better - worse).mean()


def classes(scores: Tensor, ids: Tensor) -> Tensor:
    return functional.cross_entropy(scores, ids[:, 0] % 4)


def at_end(values: Tensor, ids: Tensor) -> Tensor:
    return values[torch.arange(len(ids)), (ids != PAD).sum(1) - 1]


def taught(model: nn.Module, ids: Tensor) -> Tensor:
    """Another model's distributions."""
    scores = model(ids).log_softmax(-1)
    wanted = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0)).softmax(0)
    return (wanted * (wanted.log() - scores)).sum(-1)


Loss = Callable[[nn.Module, Any], Tensor]
FAULTS: dict[str, tuple[Callable[[], nn.Module], Loss, str]] = {
    "smoothed": (Decoder, lambda m, x: smoothed(m, x).mean(), "counts padded"),
    "smoothed-both-ways": (Encoder, lambda m, x: smoothed(m, x).mean(), "counts padded"),
    "summed": (Decoder, lambda m, x: smoothed(m, x).sum(1).mean(), "counts padded"),
    "regressed": (lambda: Decoder(1), lambda m, x: regressed(m, x).mean(), "counts padded"),
    "distilled": (Decoder, lambda m, x: taught(m, x).mean(), "counts padded"),
    "reward-at-last": (lambda: Decoder(1), lambda m, x: preferred(m(x)[:, -1, 0]), "read at the last position"),
    "class-at-last": (lambda: Decoder(4), lambda m, x: classes(m(x)[:, -1], x), "read at the last position"),
    "mean-of-all": (lambda: Encoder(4), lambda m, x: classes(m(x).mean(1), x), "counts padded"),
}
SOUND: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "smoothed": (Decoder, lambda m, x: of_real(smoothed(m, x), x)),
    "ignored": (Decoder, lambda m, x: each(m, x, ignore_index=PAD).sum() / (x[:, 1:] != PAD).sum()),
    "divided-by-all": (Decoder, lambda m, x: each(m, x, ignore_index=PAD).mean()),  # padding has no gradient
    "reward-at-end": (lambda: Decoder(1), lambda m, x: preferred(at_end(m(x)[..., 0], x))),
    "mean-of-real": (lambda: Encoder(4), lambda m, x: classes((m(x) * (x != PAD)[..., None]).mean(1), x)),
    "drawn": (Decoder, lambda m, x: (smoothed(m, x) * torch.rand(len(x), 1)).mean()),
}


def found(model: nn.Module, loss: Loss, data: list[Any]) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return isograd.preflight(model, loss=loss, data=data, optimizer=optimizer, prove=False)


@pytest.mark.parametrize("name", FAULTS)
def test_a_loss_that_counts_padding_is_named(name: str) -> None:
    torch.manual_seed(0)
    build, loss, why = FAULTS[name]
    report = found(build(), loss, rows())
    assert any(why in f.message for f in report if f.code == "padding-scored"), str(report)


@pytest.mark.parametrize("name", SOUND)
def test_a_loss_of_real_positions_is_silent(name: str) -> None:
    torch.manual_seed(0)
    build, loss = SOUND[name]
    report = found(build(), loss, rows())
    assert "padding-scored" not in report.codes and "padding-leaks" not in report.codes, str(report)


@pytest.mark.parametrize("loss", [lambda m, x: smoothed(m, x).mean(), lambda m, x: preferred(m(x)[:, -1, 0])])
def test_where_nothing_says_what_padding_is_all_counts(loss: Loss) -> None:
    """Rows that end in a unit that stands in their midst, too."""
    torch.manual_seed(0)
    data = [x.masked_fill((torch.arange(TIME) % 3 == 1) & (x != END), PAD) for x in rows(end=False)]
    report = found(Decoder(), loss, data)
    assert "padding-scored" not in report.codes, str(report)


@pytest.mark.parametrize("hidden", [True, False])
def test_an_end_that_the_updates_read_and_never_score_is_named(hidden: bool) -> None:
    """Not one that stands only in batches after those of the updates, as of long texts that are packed."""
    torch.manual_seed(0)
    model: Any = Decoder()
    model.config = SimpleNamespace(eos_token_id=END)
    data = [(x[:, :-1], x[:, 1:].masked_fill(x[:, 1:] == END, -100)) for x in rows()]
    if not hidden:
        data = [(x.masked_fill(x == END, 2), y) for x, y in data[:4]] + [(x, x.roll(-1, 1)) for x, _ in data[4:]] * 2
    report = found(model, lambda m, b: functional.cross_entropy(m(b[0]).transpose(1, 2), b[1]), data)
    assert ("end-never-target" in report.codes) == hidden, str(report)
